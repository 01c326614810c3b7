#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""When does train.sbatch take a node for lost after srun has failed? Scripts replace the commands of Slurm.

    lost_node.py CDDPRUN [TEST...]
"""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch

TEMPLATE = pathlib.Path(__file__).resolve().parents[2] / 'scripts' / 'slurm' / 'train.sbatch'
# A command prints line N of its file at call N, and the last line for ever.
ANSWERS = '#!/bin/sh\nn=$(($(cat "$0.n" 2>/dev/null || echo 0) + 1)); echo $n >"$0.n"\n{ sed -n "${n}p;\\$p" "$0.says" | head -n 1; } | grep . || :\n'


def run(cddprun, steps, silent):
    """(exit status, the requests of scontrol). steps and silent: the lines of squeue and sinfo, look by look."""
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder)
        scripts = {'srun': '#!/bin/sh\nexit 5\n', 'sleep': '#!/bin/sh\n', 'squeue': ANSWERS, 'sinfo': ANSWERS,
                   'scontrol': f'#!/bin/sh\necho "$@" >>{where}/told\n'}
        for name, text in scripts.items():
            (where / name).write_text(text)
            (where / name).chmod(0o755)
        (where / 'squeue.says').write_text('\n'.join(steps) + '\n')
        (where / 'sinfo.says').write_text('\n'.join(silent) + '\n')
        env = {**os.environ, 'PATH': f'{folder}:{os.environ["PATH"]}', 'CDDPRUN': cddprun, 'SLURM_JOB_NUM_NODES': '2',
               'SLURM_JOB_ID': '7', 'SLURM_JOB_NODELIST': 'node[1-2]'}
        for name in 'SLURM_ARRAY_JOB_ID', 'SLURM_NTASKS_PER_NODE', 'SLURM_CPUS_PER_TASK', 'SLURM_GPUS_PER_TASK':
            env.pop(name, None)
        done = subprocess.run(['bash', TEMPLATE, 'true'], env=env, capture_output=True, text=True, timeout=60, check=False)
        told = (where / 'told').read_text() if (where / 'told').exists() else ''
        return done.returncode, [line for line in told.splitlines() if line.startswith('requeue')]


def test_failed_job_whose_step_is_gone(cddprun):
    assert run(cddprun, [''], ['node2']) == (5, [])


def test_node_that_is_busy_for_a_moment(cddprun):
    """Its step ends late, and Slurm has marked it."""
    assert run(cddprun, ['7.0'] * 5 + [''], ['node2']) == (5, [])


def test_node_that_responds_again(cddprun):
    assert run(cddprun, ['7.0'], ['node2'] * 9 + ['', 'node2'] + [''] * 60) == (5, [])


def test_step_that_ends_late_on_nodes_that_respond(cddprun):
    assert run(cddprun, ['7.0'], ['']) == (5, [])


def test_node_that_does_not_respond(cddprun):
    assert run(cddprun, ['7.0'], ['', '', 'node2']) == (5, ['requeue 7'])


if __name__ == '__main__':
    launch.main()
