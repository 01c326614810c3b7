#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddp-rendezvous is killed (SIGKILL) while jobs train, and started again later, at the same port: every job goes on.

    CDDP_RENDEZVOUS=build/rendezvous/cddp-rendezvous tests/integration/daemon_gaps.py build/launcher/cddprun
    ... daemon_gaps.py build/launcher/cddprun --full    20 jobs: gaps of 0.1, 3, 8 and 60 s, five jobs in each

Half of the jobs are elastic (--nnodes=1:3). The others have three nodes and --max_restarts=3; one of their ranks has
failed before, so that a count is there to be carried on.
"""
import contextlib
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from test_rendezvous import Daemon, LIVES, life, lives, node

GAPS, JOBS = (0.1, 3), 2


class Training:
    """A job of three nodes. Its expected lives are known at each moment."""

    def __init__(self, stack, cddprun, daemon, number):
        self.tmp = stack.enter_context(tempfile.TemporaryDirectory())
        self.elastic, self.count = number % 2 == 0, 0
        flags = ['1:3', '--rdzv_conf=last_call_timeout=60'] if self.elastic else ['3', '--max_restarts=3']
        self.nodes = [node(stack, cddprun, daemon, f'job{number}', flags[0], LIVES.format(self.tmp), *flags[1:]) for _ in range(3)]
        self.expected = life(0, 3)

    def wait(self):
        launch.wait_for(f'{self.expected}', lambda: lives(self.tmp) == sorted(self.expected), timeout=launch.DEADLINE + max(GAPS),
                        more=lambda: f'{lives(self.tmp)} {[job.process.poll() for job in self.nodes]}')

    def fail(self):
        if self.elastic:
            return
        open(f'{self.tmp}/fail', 'w', encoding='ascii').close()
        self.again()

    def again(self):
        self.count += not self.elastic
        self.expected += life(self.count, 3)

    def end(self):
        open(f'{self.tmp}/end', 'w', encoding='ascii').close()
        assert [job.finish() for job in self.nodes] == [0, 0, 0], [job.err for job in self.nodes]
        assert lives(self.tmp) == sorted(self.expected), lives(self.tmp)


def test_jobs_go_on_after_each_gap(cddprun):
    with contextlib.ExitStack() as stack:
        daemons = [stack.enter_context(Daemon()) for _ in GAPS]
        jobs = [[Training(stack, cddprun, daemon, i) for i in range(JOBS)] for daemon in daemons]
        everything = [job for its in jobs for job in its]
        for step in Training.wait, Training.fail, Training.wait:
            for job in everything:
                step(job)
        killed = []
        for daemon in daemons:
            daemon.kill()
            killed.append(time.monotonic())
        again = []
        for daemon, gap, at in zip(daemons, GAPS, killed):
            time.sleep(max(0, at + gap - time.monotonic()))  # no process listens for this time: the subject of the test
            again.append(stack.enter_context(Daemon(port=daemon.port)))
        for job in everything:
            job.again()
        for job in everything:
            job.wait()
            job.end()
        print(f'# {len(everything)} of {len(everything)} jobs went on, after gaps of {GAPS} s', flush=True)
        for daemon in again:
            assert daemon.end() == 0, daemon.err


if __name__ == '__main__':
    if '--full' in sys.argv:
        sys.argv.remove('--full')
        GAPS, JOBS = (0.1, 3, 8, 60), 5
    launch.main()
