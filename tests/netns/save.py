#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job on two hosts that is stopped, or whose nodes change: every rank of every host can save first.

    save.py CDDPRUN [--slow] [TEST...]; the program is CDDP_PROBE.
"""
import contextlib
import os
import pathlib
import re
import signal
import tempfile

import hosts
import launch
from launch import run, wait_for

PORT = 29400


class Savers(contextlib.ExitStack):
    """Two ranks on each of two hosts; they agree by all-reduce that one of them is to stop, and save."""

    def __init__(self, cddprun, *flags):
        super().__init__()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory(prefix='cddp-test-')))
        self.command = [cddprun, '--nproc_per_node=2', *flags, os.environ['CDDP_PROBE'], 'leave', self.folder]
        self.jobs = []

    def start(self, host, *flags):
        job = self.enter_context(hosts.on(host, self.command[0], *flags, *self.command[1:]))
        self.jobs.append(job)
        return job

    def start_fixed(self):
        for node in 0, 1:
            self.start(node + 1, '--nnodes=2', f'--node_rank={node}', f'--master_addr={hosts.address(1)}', f'--master_port={PORT}')
        self.run(4)

    def run(self, size):
        """Until all ranks of a world of this size train."""
        wait_for(f'{size} ranks', lambda: (self.folder / f'runs.{size}').exists(), more=lambda: os.listdir(self.folder))

    def finish(self):
        return [job.finish() for job in self.jobs]

    def check_saved(self, size):
        saved = [rank for rank in range(size) if (self.folder / f'saved.{size}.{rank}').exists()]
        assert saved == list(range(size)), (saved, [job.err for job in self.jobs])


def test_a_signal_to_one_host(cddprun):
    for flags in [], ['--on_failure=wait']:
        for ended in 0, 1:
            with Savers(cddprun, *flags) as t:
                t.start_fixed()
                t.jobs[ended].process.send_signal(signal.SIGTERM)
                status = t.finish()
                t.check_saved(4)
                assert (status[ended], status[1 - ended]) == (143, 1), (status, [job.err for job in t.jobs])


def test_a_signal_to_both_hosts(cddprun):
    with Savers(cddprun) as t:
        t.start_fixed()
        for job in t.jobs:
            job.process.send_signal(signal.SIGTERM)
        assert t.finish() == [143, 143], [job.err for job in t.jobs]
        t.check_saved(4)


def test_one_node_joins_and_another_leaves(cddprun):
    elastic = '--nnodes=1:2', f'--rdzv_endpoint={hosts.address(1)}:{PORT}', '--rdzv_conf=last_call_timeout=0'
    with Savers(cddprun) as t:
        a = t.start(1, *elastic)
        t.run(2)
        b = t.start(2, *elastic)
        t.run(4)
        t.check_saved(2)
        for file in t.folder.iterdir():
            file.unlink()
        b.process.send_signal(signal.SIGTERM)
        assert b.finish() == 143, b.err
        t.run(2)
        t.check_saved(4)
        a.process.send_signal(signal.SIGTERM)
        assert a.finish() == 143, a.err
        t.check_saved(2)


def test_ranks_that_ask_leave_on_purpose(cddprun):
    """cddp_should_stop: no rank gets a signal, and both hosts end with the status of an orderly stop."""
    for ended in 0, 1:
        for number, *flags in (signal.SIGTERM,), (signal.SIGUSR1, '--stop_signals=USR1'):
            with Savers(cddprun, '--stop_exit_code=85', *flags) as t:
                t.command[-3:] = [os.environ['CDDP_STOP_RANKS'], 'until', t.folder]
                for node in 0, 1:
                    t.start(node + 1, '--nnodes=2', f'--node_rank={node}', f'--master_addr={hosts.address(1)}', f'--master_port={PORT}')
                wait_for('4 ranks', lambda: all((t.folder / f'runs.4.{rank}').exists() for rank in range(4)))
                t.jobs[ended].process.send_signal(number)
                assert t.finish() == [85, 85], [job.err for job in t.jobs]
                t.check_saved(4)
                assert len({(t.folder / f'saved.4.{rank}').read_text() for rank in range(4)}) == 1


def wine(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')


def test_wine_loses_no_step(cddprun):
    with tempfile.TemporaryDirectory(prefix='cddp-test-') as tmp:
        folder = pathlib.Path(tmp)
        files = ['--metrics', folder / 'metrics', '--weights-out', folder / 'weights']

        def over_hosts(epochs, act):
            with contextlib.ExitStack() as stack:
                jobs = [stack.enter_context(hosts.on(
                    node + 1, cddprun, '--nnodes=2', f'--node_rank={node}', f'--master_addr={hosts.address(1)}',
                    f'--master_port={PORT}', '--nproc_per_node=2', wine(cddprun), '--epochs', epochs, *files,
                    '--save', folder / 'saved', '--resume', folder / 'saved', '--save-every', 10**6)) for node in (0, 1)]
                act(jobs)
                return [job.finish() for job in jobs], jobs[0].out, [job.err for job in jobs]

        def spot_notice(jobs):
            wait_for('some epochs', lambda: (folder / 'metrics').exists() and (folder / 'metrics').read_text().count('\n') > 5)
            jobs[1].process.send_signal(signal.SIGTERM)

        status, out, err = over_hosts(10**6, spot_notice)
        assert status == [0, 0] and 'stopped on purpose by SIGTERM to cddprun' in err[1], (status, out, err)
        assert 'stopped on purpose since node 1 (' in err[0], err[0]
        left = re.search(r'asked to stop; saved in \S+ after epoch (\d+), step (\d+)\n', out)
        assert left, (out, err)
        epochs = int(left[1]) + 3
        status, out, err = over_hosts(epochs, lambda jobs: None)
        assert status == [0, 0] and f'after epoch {left[1]}, step {left[2]}\n' in out, (status, out, err)
        resumed = [(folder / name).read_text() for name in ('metrics', 'weights')]
        status, _, err = run(cddprun, '--standalone', '--nproc_per_node=4', wine(cddprun), '--epochs', str(epochs), *map(str, files))
        assert status == 0 and resumed == [(folder / name).read_text() for name in ('metrics', 'weights')], err


if __name__ == '__main__':
    hosts.enter(2)
    launch.main()
