#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/recipes.md, on two ranks, where a python3 has their packages.

    test_recipes.py CDDPRUN    the variables are those of test_module.py
"""
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
sys.path.insert(0, str(HERE))
import launch  # noqa: E402
from launch import Skip  # noqa: E402
from test_module import ENV, python_with  # noqa: E402

PROGRAMS = dict(re.findall(r'```python\n# (\w+\.py)\n(.*?)```', (ROOT / 'docs/recipes.md').read_text(encoding='utf-8'), re.S))
DEADLINE = 300  # some packages take a minute to load


def said(name, launcher, python):
    """Runs a program by a launcher; returns what each rank prints after 'rank N of 2: '."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in PROGRAMS.items():
            pathlib.Path(folder, path).write_text(text, encoding='utf-8')
        with launch.Job(*launcher, python, os.path.join(folder, name), env={**ENV, 'TF_CPP_MIN_LOG_LEVEL': '3'}) as job:
            status = job.finish(DEADLINE)
            ranks = sorted(re.findall(r'rank (\d) of 2: (.*)', job.out))
            assert status == 0 and [rank for rank, _ in ranks] == ['0', '1'], (status, job.out, job.err)
            return [words for _, words in ranks]


def under_cddprun(cddprun, name, module):
    return said(name, [cddprun, '--standalone', '--nproc_per_node=2'], python_with(module))


def test_each_rank_knows_all_endpoints(cddprun):
    PROGRAMS['show.py'] = ('from endpoints import endpoints\n'
                           'hosts, rank = endpoints()\n'
                           'print(f"rank {rank} of {len(hosts)}: {hosts}")\n')
    first, second = said('show.py', [cddprun, '--standalone', '--nproc_per_node=2'], sys.executable)
    ports = re.fullmatch(r"\['(?:127\.0\.0\.1|\[::1\]):(\d+)', '(?:127\.0\.0\.1|\[::1\]):(\d+)'\]", first)
    assert first == second and ports and ports[1] != ports[2], (first, second)


def test_jax(cddprun):
    assert under_cddprun(cddprun, 'jax_sum.py', 'jax') == ['3.0', '3.0']


def test_tensorflow(cddprun):
    assert under_cddprun(cddprun, 'tensorflow_sum.py', 'tensorflow') == ['3.0', '3.0']


def test_xgboost(cddprun):
    first, second = under_cddprun(cddprun, 'xgboost_train.py', 'xgboost')
    assert first == second  # their rows differ, so each has learned from both


def test_lightgbm(cddprun):
    first, second = under_cddprun(cddprun, 'lightgbm_train.py', 'lightgbm')
    assert first == second


def test_mpi4py(_):
    mpirun = shutil.which('mpirun')
    python = python_with('mpi4py.MPI')
    if mpirun is None:
        raise Skip('no mpirun')
    version = subprocess.run([mpirun, '--version'], capture_output=True, text=True, check=False).stdout
    more = ['--allow-run-as-root', '--oversubscribe'] if 'Open MPI' in version or 'OpenRTE' in version else []
    assert said('mpi4py_sum.py', [mpirun, *more, '-n', '2'], python) == ['3.0', '3.0']


if __name__ == '__main__':
    launch.main()
