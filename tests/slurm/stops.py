#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Orderly stops of scripts/slurm/train.sbatch on a real Slurm, with two ranks per node, by everything that stops a job there.

    SLURM_TESTBED=PROGRAM stops.py CDDPRUN [TEST...]
    SLURM_TESTBED=PROGRAM stops.py CDDPRUN --full=20

All ranks leave after the same step, no process remains, and the job that goes on ends with the bits of one that was
never stopped.
"""
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch

import bed
from bed import (Folder, ended_well, finish, leave, let_end, slurm, start_again, submit, train_until_told, wait_for_checkpoint,
                 wait_until_queued)


# The call that stops the job, and the job's state after it. 'time limit' is the signal that Slurm sends 120 s before it.
STOPS = {
    'SIGTERM to the cddprun of one node': (lambda job, _: leave(job, 'node2'), 'FAILED'),
    'scancel': (lambda job, _: slurm('scancel', job), 'CANCELLED'),
    'time limit': (lambda job, _: slurm('scancel', '--batch', '--signal=USR1', job), 'PENDING'),
    'preemption': (lambda _, folder: bed.preempt(folder), 'PENDING'),
    'requeue': (lambda job, _: slurm('scontrol', 'requeue', job), 'PENDING'),
}


def check_step(folder, nodes):
    """Every node names the step after which its ranks left; the checkpoint is of the same step."""
    left = re.findall(r'stopped on purpose .*: ranks \d+ to \d+ of \d+ left after step (\d+)', folder.out())
    saved = re.findall(r'asked to stop; saved in ck after epoch \d+, step (\d+)', folder.out())
    assert len(left) == nodes and len(saved) == 1 and set(left) == set(saved), (left, saved, folder.out())


def stop(cddprun, name, nodes):
    stop_it, after = STOPS[name]
    mark = f'{os.getpid()}-slurm-{time.monotonic_ns()}'
    with Folder() as folder:
        words, env = train_until_told(folder, cddprun), {launch.MARK: mark}
        job = submit(folder, cddprun, *words, nodes=nodes, env=env)
        wait_for_checkpoint(folder)
        assert len(launch.marked(mark)) > 2 * nodes
        stop_it(job, folder)
        if after == 'PENDING':
            wait_until_queued(folder, job)
        else:
            assert finish(job, folder)[0] == after, folder.out()
        assert launch.marked(mark) == [], launch.marked(mark)
        check_step(folder, nodes)
        if after == 'PENDING':
            epochs = start_again(folder, job)
        else:
            epochs = let_end(folder)
            job = submit(folder, cddprun, *words, nodes=nodes, env=env)
        ended_well(folder, cddprun, job, 2 * nodes, epochs, 'resumed')


def test_scancel(cddprun):
    stop(cddprun, 'scancel', 2)


def test_sigterm_to_one_node(cddprun):
    stop(cddprun, 'SIGTERM to the cddprun of one node', 2)


CASES = {f'{name}, {nodes} nodes': (lambda cddprun, _, n=name, m=nodes: stop(cddprun, n, m)) for nodes in (2, 4) for name in STOPS}

if __name__ == '__main__':
    bed.main(CASES)
