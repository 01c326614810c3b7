#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/gpu-check on the stand-in: its report of a fault, and an archive of scripts/gpu-bundle.

gpu_check.py BUILD fault | lost | little | old | none | bundle
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

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
    """Every all-reduce fails: the part fails, runs again, and the table reports both."""
    env = {**os.environ, 'CDDP_STANDIN_FAIL': 'ncclAllReduce:1+:3'}
    env.pop('NCCL_COMM_BLOCKING', None)
    done = subprocess.run([ROOT / 'scripts/gpu-check', '--standin', '--build', build, '--ranks', '1', '--part', 'hook', '--out',
                           folder], env=env, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    check(done.returncode == 1, f'exit status {done.returncode}, not 1\n{done.stdout}{done.stderr}')
    parts = report_in(folder)
    hook = parts['hook-1']
    check(hook['status'] == 'failed' and hook['again']['status'] == 'failed', f'hook-1: {hook}')
    for words in ('CDDP_E_SYSTEM', 'with CDDP_NCCL_BLOCKING=0 it fails as well', '0 passed, 1 failed, 0 skipped'):
        check(words in done.stdout, f'"{words}" is not in\n{done.stdout}')
    print('ok - a failing part runs once more, and both runs are reported')


def begin(build, folder, *words, standin=True, **environment):
    return subprocess.Popen([ROOT / 'scripts/gpu-check', *(['--standin'] if standin else []), '--build', build, '--out', folder, *words],
                            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            stdin=subprocess.DEVNULL, start_new_session=True)


def lost(build, folder):
    """The machine is lost while a part runs: the result has every part before it."""
    running = begin(build, folder, '--ranks', '1,2', '--part', 'facts', '--part', 'hook-1', '--part', 'death', '--part', 'gpt')
    deadline = time.monotonic() + 100
    try:
        while not any('death-2' in path.read_text() for path in folder.glob('*.json')):
            check(time.monotonic() < deadline and running.poll() is None, f'no result of death-2 in {list(folder.iterdir())}')
            time.sleep(0.01)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    parts = report_in(folder)
    check(list(parts)[:3] == ['facts', 'hook-1', 'death-2'], f'parts {list(parts)}')
    check(all(part['status'] == 'passed' for part in parts.values()), f'{parts}')
    print(f'ok - a run that is killed leaves the results of its {len(parts)} parts')


def little(build, folder):
    """Little time is left: the first parts run, and each of the others is skipped with the reason."""
    running = begin(build, folder, '--ranks', '2', '--seconds', '6', '--part', 'facts', '--part', 'kernels_full',
                    '--part', 'wine')
    said, _ = running.communicate(timeout=100)
    parts = report_in(folder)
    check(running.returncode == 0, f'exit status {running.returncode}\n{said}')
    check(list(parts) == ['facts', 'kernels_full', 'wine-2'], f'parts {list(parts)}')
    check(parts['facts']['status'] == 'passed' and parts['wine-2']['status'] == 'skipped', f'{parts}')
    check('the total time is used up' in parts['wine-2']['reason'], parts['wine-2']['reason'])
    print('ok - with little time the first parts run, and the others are skipped')


def old(build, folder):
    """NCCL is too old: the part fails, and names both versions."""
    running = begin(build, folder, '--ranks', '1', '--part', 'hook', CDDP_STANDIN_NCCL_VERSION='21804')
    said, _ = running.communicate(timeout=100)
    parts = report_in(folder)
    check(running.returncode == 1, f'exit status {running.returncode}\n{said}')
    check('2.18.4' in parts['hook-1']['reason'] and '2.19' in parts['hook-1']['reason'], parts['hook-1']['reason'])
    print('ok - an NCCL that is too old is named')


def none(build, folder):
    """nvidia-smi is missing, fails, or hangs: one message with the reason, no result, and the status of a skipped test."""
    if list(pathlib.Path('/dev').glob('nvidia[0-9]*')):
        print('ok - skipped: this node has a GPU')
        return
    programs = folder / 'bin'
    programs.mkdir()
    for name in 'sh', 'env', 'sleep':
        os.symlink(shutil.which(name), programs / name)
    os.symlink(sys.executable, programs / 'python3')
    tool = programs / 'nvidia-smi'
    for text, reason in ((None, 'nvidia-smi is not on the PATH, and there is no /dev/nvidia0'),
                         ('echo "NVIDIA-SMI has failed."; exit 9', 'nvidia-smi lists none, with exit status 9: NVIDIA-SMI has failed.'),
                         ('exit 0', 'nvidia-smi lists none, with exit status 0: no output'),
                         ('[ "$1" = -L ] || exit 9; exec sleep 1000', 'nvidia-smi: Command ')):
        if text:
            tool.write_text(f'#!/bin/sh\n{text}\n')
            tool.chmod(0o755)
        running = begin(build, folder / 'out', standin=False, PATH=str(programs))
        said, _ = running.communicate(timeout=100)
        check(running.returncode == 77, f'exit status {running.returncode}\n{said}')
        check(said.startswith('skipped: there is no NVIDIA GPU on this node: ') and said.count('\n') == 1 and reason in said, said)
        check(not (folder / 'out').exists(), 'there is a result')
    print('ok - without a GPU the one message says why none is found')


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
        {'fault': fault, 'lost': lost, 'little': little, 'old': old, 'none': none, 'bundle': bundle}[what](build, pathlib.Path(folder))


if __name__ == '__main__':
    main()
