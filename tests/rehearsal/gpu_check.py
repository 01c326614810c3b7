#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/gpu-check on the stand-in: its report of a fault, and an archive of scripts/gpu-bundle.

gpu_check.py BUILD fault | bundle
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST = 30 << 20


def check(condition, text):
    if not condition:
        sys.exit(f'not ok - {text}')


def report_in(folder):
    paths = list(folder.glob('gpu-check-*.json'))
    check(len(paths) == 1, f'one report in {folder}, not {paths}')
    return {part['name']: part for part in json.loads(paths[0].read_text())['parts']}


def fault(build, folder):
    """Every all-reduce fails: the part fails, runs again, and the table reports both; parts without NCCL pass."""
    env = {**os.environ, 'CDDP_STANDIN_FAIL': 'ncclAllReduce:1+:3'}
    env.pop('NCCL_COMM_BLOCKING', None)
    done = subprocess.run([ROOT / 'scripts/gpu-check', '--standin', '--build', build, '--ranks', '1', '--part', 'kernels',
                           '--part', 'hook', '--out', folder], env=env, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    check(done.returncode == 1, f'exit status {done.returncode}, not 1\n{done.stdout}{done.stderr}')
    parts = report_in(folder)
    check(parts['kernels']['status'] == 'passed', f'kernels: {parts["kernels"]}')
    hook = parts['hook-1']
    check(hook['status'] == 'failed' and hook['again']['status'] == 'failed', f'hook-1: {hook}')
    for words in ('CDDP_E_SYSTEM', 'with CDDP_NCCL_BLOCKING=0 it fails as well', '1 passed, 1 failed, 0 skipped'):
        check(words in done.stdout, f'"{words}" is not in\n{done.stdout}')
    print('ok - a failing part runs once more, and both runs are reported')


def bundle(build, folder):
    """Unpacked elsewhere, with no program on the PATH but python3 and sh."""
    archive = folder / 'bundle.tar.gz'
    subprocess.run([ROOT / 'scripts/gpu-bundle', '--build', build, '--out', archive], check=True, stdout=subprocess.DEVNULL)
    check(archive.stat().st_size <= MOST, f'{archive.stat().st_size} bytes, more than {MOST}')
    subprocess.run(['tar', '-C', folder, '-xzf', archive], check=True)
    programs = folder / 'bin'
    programs.mkdir()
    for name in ('sh', 'env'):
        os.symlink(shutil.which(name), programs / name)
    os.symlink(sys.executable, programs / 'python3')
    done = subprocess.run([folder / 'gpu-bundle/scripts/gpu-check', '--standin', '--ranks', '2', '--part', 'facts', '--part',
                           'hook', '--part', 'death', '--out', folder / 'out'],
                          env={'PATH': str(programs), 'HOME': str(folder)}, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    check(done.returncode == 0, f'exit status {done.returncode}\n{done.stdout}{done.stderr}')
    parts = report_in(folder / 'out')
    check(sorted(parts) == ['death-2', 'facts', 'hook-2'], f'parts {sorted(parts)}')
    check(all(part['status'] == 'passed' for part in parts.values()), f'{parts}')
    facts = parts['facts']['detail']
    for words in ('host_us', 'pointers', 'nccl', 'surroundings'):
        check(facts.get(words), f'no {words} in the facts: {facts}')
    print(f'ok - an archive of {archive.stat().st_size >> 10} KiB runs without other software')


def main():
    build, what = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        {'fault': fault, 'bundle': bundle}[what](build, pathlib.Path(folder))


if __name__ == '__main__':
    main()
