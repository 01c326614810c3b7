#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where this machine has what the GPU parts are built with and run on: one "name=value" a line, empty where missing.

find_cuda.py [--nccl-include DIR]   cuda_include, cuda_version, nccl_include, nccl_version, nvcc, nvcc_version, nvcc_codes,
                                    nccl_library, cublas_library, site

Looks in the system, in /usr/local/cuda, $CUDA_HOME and beside nvcc, in the nvidia folders of every Python in sight, and
in what `scripts/setup --cuda` downloaded. Starts no CUDA; needs no GPU.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys


def output(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True,
                              stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ''
    return done.stdout


def cache_dir():
    base = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.environ.get('HOME') or '/var', '.cache')
    return os.path.join(base, 'cddprun', 'cuda')


def site_folders():
    """The folders of Python packages: of setup's download, of this Python, and of the one on the PATH."""
    show = 'import site, sys; print("\\n".join(sys.path + site.getsitepackages() + [site.getusersitepackages()]))'
    found = [cache_dir(), *sys.path]
    for python in dict.fromkeys([sys.executable, shutil.which('python3') or '', shutil.which('python') or '']):
        if python:
            found += output(python, '-c', show).splitlines()
    return [path for path in dict.fromkeys(found) if os.path.isdir(os.path.join(path, 'nvidia'))]


def first_with(folders, name):
    for folder in folders:
        if folder and os.path.isfile(os.path.join(folder, name)):
            return folder
    return ''


def defines(folder, header, *names):
    """The numbers that a header defines."""
    try:
        with open(os.path.join(folder, header), encoding='utf-8', errors='replace') as source:
            text = source.read()
    except OSError:
        return []
    found = [re.search(rf'^\s*#\s*define\s+{name}\s+(\d+)', text, re.M) for name in names]
    return [int(match.group(1)) for match in found if match]


def cuda_version(folder):
    number = defines(folder, 'cuda.h', 'CUDA_VERSION')
    return f'{number[0] // 1000}.{number[0] % 1000 // 10}' if number else ''


def nccl_version(folder):
    return '.'.join(map(str, defines(folder, 'nccl.h', 'NCCL_MAJOR', 'NCCL_MINOR', 'NCCL_PATCH')))


def find_nvcc(homes, sites):
    places = [shutil.which('nvcc') or '']
    places += [os.path.join(home, 'bin', 'nvcc') for home in homes]
    for site in sites:
        places += sorted(glob.glob(os.path.join(site, 'nvidia', '*', 'bin', 'nvcc')))
    for place in places:
        version = output(place, '--version') if place and os.access(place, os.X_OK) else ''
        release = re.search(r'release (\d+\.\d+)', version)
        if release:
            return place, release.group(1)
    return '', ''


def find_library(name, folders):
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    for line in output('/sbin/ldconfig', '-p').splitlines():
        if line.strip().startswith(name + ' '):
            return line.split('=> ')[-1].strip()
    return ''


def find(nccl_include):
    sites = site_folders()
    homes = [os.environ.get('CUDA_HOME', ''), os.environ.get('CUDA_PATH', ''), '/usr/local/cuda', '/opt/cuda']
    homes = [home for home in homes if home]
    nvcc, nvcc_release = find_nvcc(homes, sites)
    if nvcc:
        homes.append(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))))
    packages = [path for site in sites for path in sorted(glob.glob(os.path.join(site, 'nvidia', '*')))]
    includes = ['/usr/include', *[os.path.join(home, 'include') for home in homes]]
    includes += [os.path.join(path, 'include') for path in packages]
    libraries = [os.path.join(path, 'lib') for path in packages]
    libraries += [os.path.join(home, 'lib64') for home in homes]
    cuda = first_with(includes, 'cuda.h')
    nccl = first_with([nccl_include] if nccl_include else includes, 'nccl.h')
    codes = re.findall(r'^sm_(\d+)$', output(nvcc, '--list-gpu-code') if nvcc else '', re.M)
    return {
        'cuda_include': cuda,
        'cuda_version': cuda_version(cuda),
        'nccl_include': nccl,
        'nccl_version': nccl_version(nccl),
        'nvcc': nvcc,
        'nvcc_version': nvcc_release,
        'nvcc_codes': ' '.join(f'sm_{code}' for code in sorted(map(int, codes)) if code >= 70),
        'nccl_library': find_library('libnccl.so.2', libraries),
        'cublas_library': find_library('libcublas.so.13', libraries) or find_library('libcublas.so.12', libraries),
        'site': os.pathsep.join(sites),
    }


def main():
    options = argparse.ArgumentParser(description='Find CUDA and NCCL.')
    options.add_argument('--nccl-include', default='')
    for name, value in find(options.parse_args().nccl_include).items():
        print(f'{name}={value}')


if __name__ == '__main__':
    main()
