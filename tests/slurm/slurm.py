#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/slurm/train.sbatch on a real Slurm of two nodes, each a host of its own.

    SLURM_TESTBED=PROGRAM slurm.py CDDPRUN [--slow] [TEST...]; README.md says what PROGRAM must do. wine is taken from
    CDDPRUN's build folder.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import run, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / 'scripts' / 'slurm' / 'train.sbatch'
BED = os.environ.get('SLURM_TESTBED', '')


def wine(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')


def bed(*words, check=True):
    done = subprocess.run([BED, *map(str, words)], capture_output=True, text=True, timeout=60, check=False,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
    return done.stdout


class Folder(tempfile.TemporaryDirectory):
    """Where a job writes; its output is in out()."""

    def __enter__(self):
        self.path = pathlib.Path(super().__enter__())
        return self

    def out(self):
        return ''.join(p.read_text() for p in sorted(self.path.glob('job-*.out')))


def submit(folder, cddprun, *words, env=None, script=TEMPLATE):
    """The job's number. The job's variables are sbatch's own, plus env."""
    more = {'CDDPRUN': cddprun, 'NPROC_PER_NODE': '2', **(env or {})}
    out = bed('run', '--', 'env', *(f'{k}={v}' for k, v in more.items()), 'sbatch', '--parsable', '--nodes=2',
              f'--chdir={folder.path}', f'--output={folder.path}/job-%j.out', script, *words)
    return int(out.strip().split(';')[0])


def show(job):
    return bed('run', '--', 'scontrol', 'show', 'job', job)


def finish(job):
    """Wait; 'COMPLETED', 'FAILED', 'CANCELLED' and the exit status."""
    bed('wait', job)
    text = show(job)
    return re.search(r'JobState=(\w+)', text)[1], int(re.search(r'ExitCode=(\d+):', text)[1])


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
        # Grandchildren in sessions of their own too: those escape Slurm where it knows a job by its ancestry only.
        script = f'setsid sleep 1000 & touch {folder.path}/up.$RANK; sleep 1000'
        mark = f'{os.getpid()}-slurm-{time.monotonic_ns()}'
        job = submit(folder, cddprun, 'sh', '-c', script, env={launch.MARK: mark})
        wait_for('four ranks', lambda: len(list(folder.path.glob('up.*'))) == 4)
        assert len(launch.marked(mark)) >= 12  # agents and guards, shells, sleepers
        bed('run', '--', 'scancel', job)
        state, _ = finish(job)
        assert state == 'CANCELLED', (state, folder.out())
        assert launch.marked(mark) == [], launch.marked(mark)


def script_in(folder, line):
    path = folder.path / 'job.sh'
    path.write_text(f'#!/bin/bash\n#SBATCH --ntasks-per-node=1\n{line}\n')
    return path


def test_a_forgotten_srun_is_named(cddprun):
    with Folder() as folder:
        script = script_in(folder, f'exec {cddprun} --nproc_per_node=2 true')
        state, status = finish(submit(folder, cddprun, script=script))
        assert state == 'FAILED' and status != 0, (state, status, folder.out())
        assert re.search('cddprun: .*srun', folder.out()), folder.out()


def test_a_node_rank_that_the_batch_shell_expanded_is_named(cddprun):
    with Folder() as folder:
        script = script_in(folder, f'exec srun --kill-on-bad-exit=1 {cddprun} --node_rank $SLURM_NODEID true')
        state, status = finish(submit(folder, cddprun, script=script))
        assert state == 'FAILED' and status != 0, (state, status, folder.out())
        assert re.search('cddprun: .*--node_rank.*SLURM_NODEID', folder.out()), folder.out()


def skip(why):
    print(f'1..0 # SKIP {why}')
    sys.exit(0)


def main():
    if not BED:
        skip('SLURM_TESTBED names no program that starts a Slurm (tests/slurm/README.md)')
    if os.getuid() != 0:
        skip('Slurm nodes with addresses of their own need root')
    for program in 'slurmctld', 'slurmd', 'munged', 'ip':
        if not shutil.which(program, path=os.environ['PATH'] + ':/usr/sbin:/sbin'):
            skip(f'there is no {program}')
    with tempfile.TemporaryDirectory(prefix='cddp-slurm-') as folder:
        os.chmod(folder, 0o755)  # munge wants its socket within everybody's reach
        os.environ.update({'SLURM_TESTBED_DIR': os.path.join(folder, 'bed'), 'NETNS_TESTBED': f'cddp{os.getpid()}'})
        try:
            bed('up', '--netns', 2)
            launch.main()
        finally:
            bed('down', check=False)


if __name__ == '__main__':
    main()
