#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python wheel: made from what meson installs, put into a fresh virtual environment, used, and removed again.

    test_wheel.py CDDPRUN    from the environment: CDDP_TEST_MESON, CDDP_TEST_BUILD and CDDP_TEST_PREFIX, the command meson,
                             the build folder and its prefix; CDDP_TEST_TORCH_PYTHON, a python3 with PyTorch, or empty
"""
import atexit
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / 'support'))
import launch  # noqa: E402
from launch import Skip  # noqa: E402

TORCH_PYTHON = os.environ.get('CDDP_TEST_TORCH_PYTHON', '')
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(('CDDP_', 'PIP_', 'PYTHON', 'LD_LIBRARY_PATH'))}


def run(*command, **how):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          timeout=launch.within(120), **{'env': CLEAN, **how})
    assert done.returncode == 0, f'{command}: {done.returncode}\n{done.stdout}{done.stderr}'
    return done.stdout


@functools.lru_cache(maxsize=None)
def scratch():
    folder = pathlib.Path(tempfile.mkdtemp(prefix='cddp wheel '))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.lru_cache(maxsize=None)
def wheel():
    stage = scratch() / 'stage'
    run(os.environ['CDDP_TEST_MESON'], 'install', '-C', os.environ['CDDP_TEST_BUILD'], '--no-rebuild', '--tags', 'runtime',
        '--destdir', stage)
    tree = pathlib.Path(f"{stage}{os.environ['CDDP_TEST_PREFIX']}")
    run(sys.executable, ROOT / 'scripts/wheel', '--tree', tree, '--tag', 'linux_x86_64' if os.uname().machine == 'x86_64' else
        f'linux_{os.uname().machine}', '--out', scratch() / 'wheels')
    shutil.rmtree(stage)  # the wheel is all that there is
    return next((scratch() / 'wheels').glob('*.whl'))


@functools.lru_cache(maxsize=None)
def environment():
    """A fresh virtual environment with the wheel, and the packages of TORCH_PYTHON within sight: its bin folder."""
    python = TORCH_PYTHON or sys.executable
    venv = scratch() / 'venv'
    try:
        run(python, '-m', 'venv', venv)
    except AssertionError as error:
        raise Skip(f'this python3 makes no virtual environment: {str(error).splitlines()[-1]}') from None
    run(venv / 'bin/python', '-m', 'pip', 'install', '--no-index', '--no-deps', '--disable-pip-version-check', wheel())
    if TORCH_PYTHON:
        others = run(python, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))')
        own = run(venv / 'bin/python', '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))').strip()
        pathlib.Path(own, 'others.pth').write_text(others)
    return venv / 'bin'


def inside(*command, cwd=None, **env):
    """In the environment as after `activate`, in an empty folder."""
    path = environment()
    with tempfile.TemporaryDirectory() as tmp:
        return run(*command, cwd=cwd or tmp, env={**CLEAN, 'PATH': f"{path}:{CLEAN['PATH']}", 'CDDP_BACKEND': 'cpu',
                                                  'OMP_NUM_THREADS': '1', **env})


def needs(module):
    environment()
    if subprocess.run([environment() / 'python', '-c', f'import {module}'], env=CLEAN, check=False,
                      stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip(f'no {module} for this python3 (meson option torch_python)')


def test_version_is_that_of_meson_build(_):
    version = re.search(r"\n  version: '([^']+)'", (ROOT / 'meson.build').read_text())[1]
    assert wheel().name.startswith(f'cddprun-{version}-py3-none-'), wheel()
    page = (ROOT / 'docs/install.md').read_text(encoding='utf-8')
    assert set(re.findall(r'cddprun-(\d[^-/`]*)-(?:py3|linux)', page)) == {version}, 'docs/install.md names another version'
    assert version in inside('cddprun', '--version').split()
    assert version in inside('cddp-rendezvous', '--version').split()
    assert inside('python', '-c', 'import cddp; print(cddp.__version__)').strip() == version
    shown = inside('python', '-m', 'pip', 'show', 'cddprun')
    assert f'Version: {version}\n' in shown and 'Requires: py-spy\n' in shown, shown


def test_programs_run(_):
    assert os.readlink(environment() / 'python') and shutil.which('cddprun', path=environment())
    out = inside('cddprun', '--standalone', '--nproc_per_node=2', 'sh', '-c', 'echo rank $RANK of $WORLD_SIZE')
    assert 'rank 0 of 2' in out and 'rank 1 of 2' in out, out
    out = inside('cddprun', '--standalone', '--nproc_per_node=2', 'cddp-bench', 'all_reduce', '-b', '8', '-e', '64K', '-n', '3')
    assert 'Out of bounds values : 0 OK' in out, out


def test_averages_gradients(_):
    needs('numpy')
    shutil.copy(HERE / 'ranks.py', scratch() / 'ranks.py')
    out = inside('cddprun', '--standalone', '--nproc_per_node=2', 'ranks.py', 'mean', cwd=scratch())
    assert all(f"rank {rank}: the mean is numpy's" in out for rank in (0, 1)), out
    inside('cddprun', '--standalone', '--nproc_per_node=2', 'ranks.py', 'plain', cwd=scratch())


def test_torch_ddp_trains(_):
    needs('torch')
    shutil.copy(HERE.parent / 'interop/ddp_train.py', scratch() / 'script.py')
    for attempt in range(3):
        try:
            out = inside('cddprun', '--nproc_per_node=2', '--master_port=0', 'script.py', cwd=scratch())
            break
        except AssertionError as error:
            # PyTorch's own: see tests/interop/check_ddp.py.
            if attempt == 2 or 'terminate called without an active exception' not in str(error):
                raise
    losses = dict(re.findall(r'rank (\d) done loss (\S+)', out))
    assert sorted(losses) == ['0', '1'] and float(losses['0']) < 8, out


def test_uninstall_leaves_nothing(_):
    inside('python', '-m', 'pip', 'uninstall', '--yes', 'cddprun')
    left = [path for path in environment().parent.rglob('*cddp*')]
    assert not left, left


if __name__ == '__main__':
    launch.main()
