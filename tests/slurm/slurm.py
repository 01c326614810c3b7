#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/slurm/train.sbatch on a real Slurm of four nodes, each a separate host.

    SLURM_TESTBED=PROGRAM slurm.py CDDPRUN [--slow] [TEST...]
    SLURM_TESTBED=PROGRAM slurm.py CDDPRUN --full[=RUNS] [CASE...]

The first runs tests once each, with short ways to the same ends: it takes a minute. The second runs the cases of a
job's life RUNS times (10), as they happen on a cluster, and prints a table. README.md says what PROGRAM must do. wine
is taken from CDDPRUN's build folder.
"""
import os
import pathlib
import re
import shlex
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import run, wait_for

import bed
from bed import (LONG, Folder, crash, ended_well, finish, leave, let_end, preempt, show, slurm, start_again, state, submit,
                 template, train, train_until_told, wait_for_checkpoint, wine)

RESUMED = r'resumed'


def preempted(cddprun, full):
    """Slurm sends TERM to the steps only; the script has to stay until the job is queued again."""
    nodes = 4 if full else 2
    with Folder() as folder:
        job = submit(folder, cddprun, *train_until_told(folder, cddprun), env={'NPROC_PER_NODE': '1'}, nodes=nodes)
        wait_for_checkpoint(folder)
        preempt(folder)
        epochs = start_again(folder, job)
        ended_well(folder, cddprun, job, nodes, epochs, 'another job preempts this one', RESUMED)


def requeued(cddprun, full):
    nodes = 4 if full else 2
    with Folder() as folder:
        job = submit(folder, cddprun, *train_until_told(folder, cddprun), env={'NPROC_PER_NODE': '1'}, nodes=nodes)
        wait_for_checkpoint(folder)
        slurm('scontrol', 'requeue', job)
        epochs = start_again(folder, job)
        ended_well(folder, cddprun, job, nodes, epochs, RESUMED, rf'Slurm step {job}\.0\.1')


def time_limit(cddprun, full):
    """
    Slurm is coarse: at a limit of 1 minute it signals 12 to 22 s after the start, so a life has to be longer than that
    on a calm machine, too. In short, scancel signals.
    """
    nodes, epochs = (4, 15000) if full else (2, None)
    flags = ['--time=1', '--signal=B:USR1@50'] if full else []
    words = [wine(cddprun), *train(epochs)] if full else None
    with Folder() as folder:
        job = submit(folder, cddprun, *(words or train_until_told(folder, cddprun)), env={'NPROC_PER_NODE': '1'}, nodes=nodes,
                     flags=flags)
        wait_for_checkpoint(folder)
        if not full:
            slurm('scancel', '--batch', '--signal=USR1', job)
        told = start_again(folder, job)
        for times in range(2, 20):
            wait_for('the end of this life', lambda n=times: state(job) == ('PENDING', n) or state(job)[0] == 'COMPLETED', LONG,
                     lambda: show(job) + folder.out())
            if state(job)[0] == 'COMPLETED':
                break
            start_again(folder, job, times)
        ended_well(folder, cddprun, job, nodes, epochs or told, 'the time limit is near', RESUMED)
        assert 'User defined signal' not in folder.out(), folder.out()


def crashed(cddprun, _):
    """Without --wait srun would wait until slurmctld gives the node up: 300 s, and all others idle."""
    nodes = 3
    with Folder() as folder:
        try:
            job = submit(folder, cddprun, *train_until_told(folder, cddprun), nodes=nodes, env={'NPROC_PER_NODE': '1'})
            wait_for_checkpoint(folder)
            crash(job, 'node2')
            wait_for('the other nodes to be free', lambda: state(job)[1] == 1, LONG, lambda: show(job) + folder.out())
            slurm('scontrol', 'update', 'nodename=node2', 'state=down', 'reason=crashed')
            epochs = start_again(folder, job)
            ended_well(folder, cddprun, job, nodes, epochs, 'a node does not answer', RESUMED, r'node\[1,3-4\]')
        finally:
            bed.up()


def array(cddprun, full):
    """The last task of an array has the number of the whole array, and the others must not hear of what it asks for."""
    with Folder() as folder:
        script = folder.path / 'each.sh'
        script.write_text('[ "$SLURM_ARRAY_TASK_ID" != 0 ] || exit 0\nexec sleep 300\n')
        job = submit(folder, cddprun, 'sh', script, env={'NPROC_PER_NODE': '1'}, nodes=1, flags=['--array=0-1'])
        wait_for('task 0 to end', lambda: state(f'{job}_0')[0] == 'COMPLETED', LONG, lambda: show(job))
        wait_for('task 1 to run', lambda: state(f'{job}_1')[0] == 'RUNNING', LONG, lambda: show(job))
        wait_for('its step', lambda: slurm('squeue', '--noheader', f'--steps={job}_1.0').strip(), LONG)
        slurm('scancel', '--batch', '--signal=USR1', f'{job}_1')
        wait_for('task 1 to be queued again', lambda: state(f'{job}_1') == ('PENDING', 1), LONG, lambda: show(job))
        assert state(f'{job}_0') == ('COMPLETED', 0), show(job)
        slurm('scancel', job)


def tasks_per_node(cddprun, full):
    """As sites ask for that count a task for each GPU."""
    nodes, epochs = (4, 800) if full else (2, 100)
    with Folder() as folder:
        job = submit(folder, cddprun, 'sh', '-c', f'echo $CUDA_VISIBLE_DEVICES >gpus.$GROUP_RANK; exec {shlex.quote(wine(cddprun))} "$@"', 'sh',
                     *train(epochs), env={'NPROC_PER_NODE': '1'}, nodes=nodes,
                     flags=['--ntasks-per-node=2', '--cpus-per-task=2', '--gpus-per-task=2'])
        ended_well(folder, cddprun, job, nodes, epochs, rf'Slurm step {job}\.0\.0: {nodes} nodes')
        for i in range(nodes):
            assert (folder.path / f'gpus.{i}').read_text() == '0,1,2,3\n'


def suspended(cddprun, _):
    """Longer than the lease (15 s): time in which no process of the job ran does not count."""
    nodes, epochs = 4, 1500
    with Folder() as folder:
        job = submit(folder, cddprun, wine(cddprun), *train(epochs), env={'NPROC_PER_NODE': '1'}, nodes=nodes)
        wait_for_checkpoint(folder)
        slurm('scontrol', 'suspend', job)
        time.sleep(20)  # the time itself is tested
        slurm('scontrol', 'resume', job)
        ended_well(folder, cddprun, job, nodes, epochs)
        assert 'resumed' not in folder.out() and state(job)[1] == 0, folder.out()


def heterogeneous(cddprun, _):
    """Components that are not in the order of their names. Slurm starts such jobs every 30 s only."""
    with Folder() as folder:
        script = folder.path / 'job.sh'
        script.write_text('#!/bin/bash\n#SBATCH --nodes=1 -w node3\n#SBATCH hetjob\n#SBATCH --nodes=2 -w node1,node2\n'
                          f'srun --het-group=0,1 {shlex.quote(cddprun)} --nproc_per_node=1 sh -c \'echo $RANK $MASTER_ADDR $(hostname)\'\n')
        job = int(slurm('sbatch', '--parsable', f'--chdir={folder.path}', f'--output={folder.path}/job-%j.out', script))
        assert finish(job) == ('COMPLETED', 0), folder.out()
        assert 'node 0; rendezvous at node3' in folder.out(), folder.out()
        assert re.search(r'\[0\] 0 \S+ node3', folder.out()), folder.out()


def elastic(cddprun, _):
    """A node leaves; its status is not the job's."""
    with Folder() as folder:
        job = submit(folder, cddprun, *train_until_told(folder, cddprun), nodes=3, script=template('elastic.sbatch'),
                     env={'NPROC_PER_NODE': '1', 'MIN_NODES': '2'})
        wait_for_checkpoint(folder)
        epochs = let_end(folder, more=5000)  # more than it trains until the node is gone
        leave(job, 'node3')
        end, status = finish(job)
        assert re.search(r'the job continues with 2 nodes', folder.out()) and f'epoch {epochs}/{epochs}' in folder.out(), folder.out()
        assert (end, status) == ('COMPLETED', 0), (end, status, folder.out())


CASES = {'preempted': preempted, 'requeued': requeued, 'time limit': time_limit, 'crashed node': crashed,
         'tasks per node given': tasks_per_node, 'suspended 20 s': suspended,
         'elastic, a node leaves': elastic, 'array': array, 'heterogeneous': heterogeneous}


def test_preempted_job_is_requeued(cddprun):
    preempted(cddprun, False)


def test_requeued_job_resumes_from_checkpoint(cddprun):
    requeued(cddprun, False)


def test_job_near_time_limit_is_requeued(cddprun):
    time_limit(cddprun, False)


def test_array_task_is_requeued_alone(cddprun):
    array(cddprun, False)


def test_more_tasks_per_node_are_one_cddprun_with_all_their_gpus(cddprun):
    tasks_per_node(cddprun, False)


def test_elastic_job_continues_when_node_leaves(cddprun):
    elastic(cddprun, False)


def test_the_template_trains_to_the_bits_of_four_ranks_on_one_node(cddprun):
    for dtype in 'f32', 'f64':
        with Folder() as folder:
            def flags(name):
                return ['--dtype', dtype, '--metrics', folder.path / f'metrics.{name}', '--weights-out',
                        folder.path / f'weights.{name}']
            status = finish(submit(folder, cddprun, wine(cddprun), *flags('slurm')))
            assert status == ('COMPLETED', 0), (status, folder.out())
            assert re.search(r'cddprun: Slurm step \d+\.0\.0: 2 nodes \(node\[1-2\]\), this is node 0', folder.out()), folder.out()
            assert 'wine: 4 ranks' in folder.out(), folder.out()
            one = run(cddprun, '--standalone', '--nproc_per_node=4', wine(cddprun), *map(str, flags('one')))
            assert one[0] == 0, one
            for what in 'metrics', 'weights':
                assert (folder.path / f'{what}.slurm').read_bytes() == (folder.path / f'{what}.one').read_bytes(), what


def test_a_failing_rank_ends_the_job_with_its_status(cddprun):
    with Folder() as folder:
        script = '[ $RANK = 3 ] && exit 5; exec sleep 60'
        status = finish(submit(folder, cddprun, 'sh', '-c', script))
        assert status == ('FAILED', 5), (status, folder.out())
        assert re.search(r'rank 3 \(pid \d+ on node2\) exited with status 5', folder.out()), folder.out()


def test_scancel_leaves_nothing_on_any_node(cddprun):
    with Folder() as folder:
        # Grandchildren in separate sessions, too: those escape Slurm where it knows a job by its ancestry only.
        script = f'setsid sleep 1000 & touch {folder.path}/up.$RANK; sleep 1000'
        mark = f'{os.getpid()}-slurm-{time.monotonic_ns()}'
        job = submit(folder, cddprun, 'sh', '-c', script, env={launch.MARK: mark})
        wait_for('four ranks', lambda: len(list(folder.path.glob('up.*'))) == 4)
        assert len(launch.marked(mark)) >= 12  # agents and guards, shells, sleepers
        slurm('scancel', job)
        status = finish(job)[0]
        assert status == 'CANCELLED', (status, folder.out())
        assert launch.marked(mark) == [], launch.marked(mark)


if __name__ == '__main__':
    bed.main(CASES)
