#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What 'meson install' leaves must serve a stranger: everything is there, and pkg-config or CMake is all that a user needs.

installed.py STAGE CC CXX   STAGE is the DESTDIR of an installation with --prefix=/usr
"""
import glob
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LINE = os.path.join(HERE, '..', '..', 'examples', 'line')
EXPECTED = [
    'usr/bin/cddprun',
    'usr/bin/cddp-bench',
    'usr/bin/cddp-rendezvous',
    '**/lib/systemd/system/cddp-rendezvous.service',
    'usr/share/man/man1/cddprun.1',
    'usr/share/man/man1/cddp-bench.1',
    'usr/share/man/man7/libcddp.7',
    'usr/share/man/man8/cddp-rendezvous.8',
    'usr/share/bash-completion/completions/cddprun',
    'usr/share/bash-completion/completions/cddp-rendezvous',
    'usr/libexec/cddp/cddprun-shim',
    'usr/libexec/cddp/cddp-preflight',
    'usr/libexec/cddp/examples/wine',
    'usr/share/cddp/wine/wine.csv',
    'usr/include/cddp/cddp.h',
    'usr/include/cddp/status.h',
    'usr/include/cddp/version.h',
    'usr/include/cddp/coll.h',
    'usr/include/cddp/experimental/fsdp.h',
    'usr/include/cddp/experimental/optim.h',
    'usr/lib/**/libcddp.a',
    'usr/lib/**/libcddp.so',
    'usr/lib/**/libcddp.so.[0-9]',
    'usr/lib/**/pkgconfig/cddp.pc',
    'usr/lib/**/cmake/cddp/cddp-config.cmake',
    'usr/lib/**/cmake/cddp/cddp-config-version.cmake',
]


def check_cmake(stage, cc, cxx, try_out):
    """Builds a CMake project against the stage, which lies elsewhere than its prefix says."""
    if not shutil.which('cmake'):
        print('CMake project: not built, as there is no cmake')
        return
    stage = os.path.realpath(stage)
    version = subprocess.run([os.path.join(stage, 'usr/bin/cddprun'), '--version'], capture_output=True, text=True,
                             check=True).stdout.split()[1]
    with tempfile.TemporaryDirectory() as tmp:
        for command in (['cmake', '-S', os.path.join(HERE, 'cmake'), '-B', tmp, f'-DVERSION={version}', f'-DSTAGE={stage}',
                         f'-DCMAKE_PREFIX_PATH={stage}/usr', f'-DCMAKE_C_COMPILER={cc}', f'-DCMAKE_CXX_COMPILER={cxx}'],
                        ['cmake', '--build', tmp]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f'CMake project:\n{done.stdout}')
        for name in ('c_shared', 'c_static', 'cxx_shared', 'cxx_static'):
            # CMake's own path in the program serves, without LD_LIBRARY_PATH.
            try_out(f'CMake, {name}', os.path.join(tmp, name), 'shared' in name,
                    {k: v for k, v in os.environ.items() if k != 'LD_LIBRARY_PATH'})


def main():
    stage, cc, cxx = sys.argv[1:4]
    lacking = [name for name in EXPECTED if not glob.glob(os.path.join(glob.escape(stage), name), recursive=True)]
    if lacking:
        sys.exit('not installed: ' + ', '.join(lacking))
    pkgconfig = os.path.dirname(glob.glob(os.path.join(glob.escape(stage), 'usr/lib/**/cddp.pc'), recursive=True)[0])
    libdir = os.path.dirname(pkgconfig)
    cddprun = os.path.join(stage, 'usr/bin/cddprun')

    def pkg_config(*args, **extra):
        # The stage's path may hold blanks, which pkg-config writes with a backslash.
        return shlex.split(subprocess.run(['pkg-config', *args], env={**os.environ, **extra}, capture_output=True,
                                          text=True, check=True).stdout)

    # cddp.pc names libsodium, which is the system's own; nothing else of the system is to be found.
    sodium = os.path.join(*pkg_config('--variable=pcfiledir', 'libsodium'), 'libsodium.pc')
    shutil.copy(sodium, pkgconfig)

    def flags(*args):
        return pkg_config(*args, 'cddp', PKG_CONFIG_LIBDIR=pkgconfig, PKG_CONFIG_SYSROOT_DIR=stage)

    strict = ['-Wall', '-Wextra', '-Wpedantic', '-Werror', '-O2', '-x']
    source = os.path.join(HERE, 'consumer.c')
    static = [word for word in flags('--static', '--libs') if word != '-lcddp']
    archive = ['-Wl,--push-state,-Bstatic', '-lcddp', '-Wl,--pop-state']
    shapes = {
        'C, shared': [cc, '-std=c99', *strict, 'c', source, '-x', 'none', *flags('--cflags', '--libs')],
        'C++, shared': [cxx, '-std=c++11', *strict, 'c++', source, '-x', 'none', *flags('--cflags', '--libs')],
        'C, static libcddp': [cc, '-std=c99', *strict, 'c', source, '-x', 'none', *flags('--cflags'), *static[:1],
                              *archive, *static[1:]],
        'C++, static libcddp': [cxx, '-std=c++11', *strict, 'c++', source, '-x', 'none', *flags('--cflags'),
                                *static[:1], *archive, *static[1:]],
        'C, -static-pie': [cc, '-std=c99', *strict, 'c', source, '-x', 'none', '-static-pie', *flags('--cflags'),
                           *flags('--static', '--libs')],
    }
    def try_out(name, program, shared, environment):
        needed = subprocess.run(['readelf', '-d', program], capture_output=True, text=True, check=True).stdout
        if ('libcddp.so' in needed) != shared:
            sys.exit(f'{name}: libcddp was linked the other way:\n{needed}')
        subprocess.run([program], env=environment, check=True, timeout=60)
        launched = subprocess.run([cddprun, '--standalone', '--nproc_per_node=2', program], env=environment, check=True,
                                  timeout=60, capture_output=True, text=True).stdout
        if not all(f'rank {rank} of 2: the mean is right' in launched for rank in (0, 1)):
            sys.exit(f'{name}: under the installed cddprun it says:\n{launched}')
        print(f'{name}: works, alone and on two ranks')

    for name, command in shapes.items():
        with tempfile.TemporaryDirectory() as tmp:
            program = os.path.join(tmp, 'consumer')
            subprocess.run([*command, '-o', program], check=True)
            try_out(name, program, 'shared' in name, {**os.environ, 'LD_LIBRARY_PATH': libdir})
    check_cmake(stage, cc, cxx, try_out)

    # The same job in five languages; gfortran and rustc are run where they are found.
    libraries = {**os.environ, 'LD_LIBRARY_PATH': libdir}
    link = flags('--libs')
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, 'line')
        for name, command in {
                'together.c': [cc, *strict, 'c', '{}', '-x', 'none', *flags('--cflags'), *link, '-o', out],
                'line.cpp': [cxx, '-std=c++17', *strict, 'c++', '{}', '-x', 'none', *flags('--cflags'), *link, '-o', out],
                'line.f90': ['gfortran', '-std=f2018', '-Wall', '-Wextra', '-Werror', '-O2', '-J', tmp, '{}', *link, '-o', out],
                'line.rs': ['rustc', '--edition=2021', '-Dwarnings', '-O', '-L', libdir, '{}', '-o', out],
                'line.py': None}.items():
            source = os.path.join(LINE, name)
            if command and not shutil.which(command[0]):
                print(f'examples/line/{name}: not run, as there is no {command[0]}')
                continue
            if command:
                subprocess.run([source if word == '{}' else word for word in command], check=True)
            done = subprocess.run([cddprun, '--standalone', '--nproc_per_node=2', *([out] if command else [sys.executable, source])],
                                  env=libraries, check=True, timeout=120, capture_output=True, text=True).stdout
            if not all(f'w[{d}] = {d + 1}.00' in done for d in range(8)):
                sys.exit(f'{name}: under the installed cddprun it says:\n{done}')
            print(f'examples/line/{name}: finds the plane on two ranks')

    wine = subprocess.run([cddprun, '--standalone', '--nproc_per_node=2', f'{stage}/usr/libexec/cddp/examples/wine',
                           '--epochs', '3'], check=True, timeout=60, capture_output=True, text=True).stdout
    if 'test accuracy' not in wine:
        sys.exit(f'the installed example says:\n{wine}')
    print('the installed example trains')
    # It finds its data and the library from where it lies, wherever the tree was put.
    subprocess.run([os.path.join(stage, 'usr/libexec/cddp/examples/wine'), '--epochs', '1'], check=True, timeout=60,
                   env={k: v for k, v in os.environ.items() if k != 'LD_LIBRARY_PATH'})


if __name__ == '__main__':
    main()
