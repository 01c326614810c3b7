#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Orderly stops: all ranks of all nodes agree by cddp_should_stop, save at the same step, and leave.

    test_stop.py CDDPRUN [--slow] [TEST...]; the program is CDDP_STOP_RANKS. CDDP_STOP_RUNS=20 repeats each kind of stop.
"""
import contextlib
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, free_port, run, wait_for

RUNS = int(os.environ.get('CDDP_STOP_RUNS', '1'))
STATUS = 85


class Nodes(contextlib.ExitStack):
    """Emulated nodes with two ranks each, whose ranks ask after every step of stop_ranks."""

    def __init__(self, cddprun, *flags, program=None, env=None):
        super().__init__()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory(prefix='cddp-test-')))
        self.cddprun, self.flags, self.port = cddprun, [*flags, f'--stop_exit_code={STATUS}'], free_port()
        self.program = program or [os.environ['CDDP_STOP_RANKS'], 'until', self.folder]
        self.env = {'CDDP_BACKEND': 'cpu', **(env or {})}
        self.jobs = []

    def start(self, *flags):
        self.jobs.append(self.enter_context(Job(
            self.cddprun, '--nproc_per_node=2', f'--local_addr=n{len(self.jobs)}', *flags, *self.flags, *map(str, self.program), env=self.env)))
        return self.jobs[-1]

    def start_fixed(self, n):
        for node in range(n):
            self.start(f'--nnodes={n}', f'--node_rank={node}', '--master_addr=127.0.0.1', f'--master_port={self.port}')
        self.run(2 * n)
        return self

    def start_elastic(self):
        return self.start('--nnodes=1:2', f'--rdzv_endpoint=127.0.0.1:{self.port}', '--rdzv_conf=last_call_timeout=0')

    def notes(self, what, size):
        return [int(f.read_text() or 0) for f in sorted(self.folder.glob(f'{what}.{size}.*'))]

    def run(self, size):
        """Until all ranks of a world of this size have trained for a while."""
        wait_for(f'{size} ranks', lambda: len(self.notes('runs', size)) == size,
                 more=lambda: (os.listdir(self.folder), [job.finish() and job.err for job in self.jobs if job.process.poll()]))

    def finish(self):
        return [job.finish() for job in self.jobs]

    def said(self):
        return [job.err for job in self.jobs]

    def check_saved(self, size):
        saved = self.notes('saved', size)
        assert len(saved) == size and len(set(saved)) == 1, (saved, self.said())

    def check_stopped(self, size, why):
        status = self.finish()
        assert status == [STATUS] * len(self.jobs), (status, self.said())
        self.check_saved(size)
        for text in self.said():
            assert 'stopped on purpose ' in text and f' of {size} left after step ' in text, text
        assert any(why in text for text in self.said()), self.said()


def test_signal_to_one_node(cddprun):
    for _ in range(RUNS):
        for n in 2, 4:
            for node in {0, n - 1}:  # the host of the rendezvous, and another one
                for number, *flags in (signal.SIGTERM,), (signal.SIGINT,), (signal.SIGUSR1, '--stop_signals=USR1'):
                    with Nodes(cddprun, *flags, '--max_restarts=3') as t:
                        t.start_fixed(n).jobs[node].process.send_signal(number)
                        t.check_stopped(2 * n, f'by {signal.Signals(number).name} to cddprun on n{node}: ranks {2 * node} to {2 * node + 1}')
                        assert not any('restart' in text for text in t.said()), t.said()


def test_request_by_a_rank(cddprun):
    """It is itself that gets the signal, as under a batch system that signals processes and not cddprun."""
    for _ in range(RUNS):
        for n in 2, 4:
            with Nodes(cddprun) as t:
                os.kill(random.choice(t.start_fixed(n).jobs[-1].workers()), signal.SIGTERM)
                t.check_stopped(2 * n, 'by a signal to rank ')


def test_batch_system_signals_every_process(cddprun):
    """As scancel and a preemption do; here even twice, as by a template and by Slurm itself."""
    for number, *flags in (signal.SIGTERM,), (signal.SIGUSR1, '--stop_signals=USR1'):
        with Nodes(cddprun, *flags) as t:
            t.start_fixed(2)
            pids = [pid for job in t.jobs for pid in [*job.workers(), job.agent(), job.process.pid]]
            random.shuffle(pids)
            for pid in 2 * pids if number == signal.SIGUSR1 else pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            t.check_stopped(4, 'by ')


def test_node_of_elastic_job_leaves_in_order(cddprun):
    with Nodes(cddprun) as t:
        a = t.start_elastic()
        t.run(2)
        b = t.start_elastic()
        t.run(4)
        t.check_saved(2)  # before the second node joined
        for file in t.folder.iterdir():
            file.unlink()
        b.process.send_signal(signal.SIGTERM)
        assert b.finish() == STATUS and 'stopped on purpose by SIGTERM to cddprun on n1' in b.err, b.err
        t.run(2)
        t.check_saved(4)
        (t.folder / 'saved.2.0').unlink(missing_ok=True)
        a.process.send_signal(signal.SIGTERM)
        assert a.finish() == STATUS and 'the job continues with 1 node' in a.err, a.err
        t.check_saved(2)


def test_host_of_elastic_job_leaves_in_order(cddprun):
    with Nodes(cddprun) as t:
        t.start_elastic()
        t.run(2)
        t.start_elastic()
        t.run(4)
        t.jobs[0].process.send_signal(signal.SIGTERM)
        t.check_stopped(4, 'since node 0 (n0) left')


def test_rendezvous_is_a_daemon(cddprun):
    with Job(os.environ['CDDP_RENDEZVOUS'], '--bind=127.0.0.1', '--port=0') as daemon, Nodes(cddprun) as t:
        port = daemon.process.stdout.readline().rsplit(':', 1)[1].strip()
        for _ in range(2):
            t.start('--nnodes=2', f'--rdzv_endpoint=127.0.0.1:{port}', '--rdzv_backend=c10d', '--rdzv_id=7')
        t.run(4)
        t.jobs[1].process.send_signal(signal.SIGTERM)
        t.check_stopped(4, 'by SIGTERM to cddprun on n1')
        daemon.process.send_signal(signal.SIGTERM)
        daemon.finish()


def test_rank_that_is_late_is_waited_for(cddprun):
    """Further requests change nothing, and neither does the first signal that is more than one."""
    with Nodes(cddprun, '--stop_signals=USR1', env={'LATE': '1'}) as t:
        t.start_fixed(2)
        for number in signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM:
            t.jobs[1].process.send_signal(number)
            time.sleep(0.05)
        t.check_stopped(4, 'by SIGUSR1 to cddprun on n1')


def test_second_signal_ends_workers_at_once(cddprun):
    with Job(cddprun, '--standalone', '--nproc_per_node=1', '--stop_signals=USR1', 'sh', '-c',
             'trap "" TERM; echo up; while :; do sleep 0.05; done') as job:
        assert job.process.stdout.readline() == '[0] up\n'
        for number in signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM:
            job.process.send_signal(number)
            time.sleep(0.7)  # the same signal within 0.5 s counts once
        assert job.finish() == 143 and 'stopped on purpose' not in job.err, job.err
        assert 'ended by signal 15 (SIGTERM); the second signal killed 1 worker' in job.err, job.err


def test_workers_that_never_ask_are_ended(cddprun):
    for number, flags, status in (signal.SIGTERM, [], 143), (signal.SIGUSR1, ['--stop_signals=USR1'], 138):
        with Job(cddprun, '--standalone', '--nproc_per_node=2', *flags, 'sh', '-c', 'echo up; exec sleep 1000') as job:
            for _ in range(2):
                assert job.process.stdout.readline().endswith('up\n')
            for pid in job.workers():  # a batch system signals them, too, before or after cddprun
                with contextlib.suppress(ProcessLookupError):  # the first one's end may have ended the others
                    os.kill(pid, number)
            job.process.send_signal(number)
            assert job.finish() == status and 'stopped on purpose' not in job.err, (status, job.err)


def test_status_of_a_rank_may_say_it_too(cddprun):
    with Nodes(cddprun, env={'CODE': str(STATUS)}) as t:
        t.start_fixed(2).jobs[1].process.send_signal(signal.SIGTERM)
        t.check_stopped(4, 'by SIGTERM')
    with Nodes(cddprun, env={'CODE': '3'}) as t:  # any other one is a failure
        t.start_fixed(2).jobs[1].process.send_signal(signal.SIGTERM)
        status = t.finish()
        assert STATUS not in status and 0 not in status, (status, t.said())
        assert not any('stopped on purpose' in text for text in t.said()), t.said()
        for node, text in enumerate(t.said()):  # also where no signal was received
            assert re.search(rf'; then rank [{2 * node}{2 * node + 1}] \(pid \d+ on n{node}\) exited with status 3$', text, re.M), t.said()


def test_rank_that_is_too_late_is_named_by_its_node(cddprun):
    """The other node gets the signal. Rank 0 waits for rank 1 in the step, and libcddp ends its wait when both are killed."""
    with Nodes(cddprun, '--shutdown_timeout=2', env={'LATE': '600'}) as t:
        t.start_fixed(2).jobs[1].process.send_signal(signal.SIGTERM)
        status = t.finish()
        assert status == [1, 143], (status, t.said())
        assert re.search(r'left: it was ended by signal 15 \(SIGTERM\); killed 2 workers that had not ended 2 s later \(--shutdown_timeout\)\n'
                         r'    at that moment: .*rank 1 after ', t.said()[0]), t.said()


def test_failure_ends_ranks_that_ask(cddprun):
    """libcddp's handler does not keep a rank from its end when another one has failed."""
    with Nodes(cddprun, env={'LATE': '1'}) as t:
        t.start_fixed(2)
        os.kill(t.jobs[1].workers()[0], signal.SIGKILL)
        status = t.finish()
        assert status == [137, 137], (status, t.said())


def test_flags_are_checked(cddprun):
    for flag, why in ('--stop_signals=NONSENSE', "'NONSENSE' is not a signal"), ('--stop_signals=KILL', 'KILL cannot be used'), \
            ('--stop_exit_code=256', '256'):
        status, _, err = run(cddprun, '--standalone', flag, 'true')
        assert status == 2 and why in err, (status, err)


def wine_over(cddprun, nodes, folder, epochs, act=lambda jobs: None, flags=()):
    """Wine over emulated nodes with two ranks each, until its end or its stop."""
    program = os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')
    port = free_port()
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(Job(
            cddprun, f'--nnodes={nodes}', f'--node_rank={node}', '--master_addr=127.0.0.1', f'--master_port={port}', f'--local_addr=n{node}',
            '--nproc_per_node=2', f'--stop_exit_code={STATUS}', *flags, program, '--epochs', str(epochs), '--metrics', str(folder / 'metrics'),
            '--weights-out', str(folder / 'weights'), '--save', str(folder / 'saved'), '--resume', str(folder / 'saved'),
            '--save-every', str(10**6), env={'CDDP_BACKEND': 'cpu'})) for node in range(nodes)]
        act(jobs)
        return [job.finish() for job in jobs], jobs[0].out, [job.err for job in jobs]


def test_resumed_run_has_the_bits_of_an_undisturbed_one(cddprun):
    def stop(jobs, folder, number):
        metrics = folder / 'metrics'
        wait_for('some epochs', lambda: metrics.exists() and metrics.read_text().count('\n') > 5)
        jobs[random.randrange(len(jobs))].process.send_signal(number)

    def results(folder):
        return [(folder / name).read_text() for name in ('metrics', 'weights')]

    for _ in range(RUNS):
        for nodes in 2, 4:
            for number, *flags in (signal.SIGTERM,), (signal.SIGUSR1, '--stop_signals=USR1'):
                with tempfile.TemporaryDirectory(prefix='cddp-test-') as one, tempfile.TemporaryDirectory(prefix='cddp-test-') as two:
                    folder, other = pathlib.Path(one), pathlib.Path(two)
                    status, out, err = wine_over(cddprun, nodes, folder, 10**6, lambda jobs, f=folder, s=number: stop(jobs, f, s), flags)
                    assert status == [STATUS] * nodes, (status, err)
                    left = re.search(r'asked to stop; saved in \S+ after epoch (\d+), step (\d+)\n', out)
                    assert left, (out, err)
                    epochs = int(left[1]) + 3
                    status, out, err = wine_over(cddprun, nodes, folder, epochs)
                    assert status == [0] * nodes and f'after epoch {left[1]}, step {left[2]}\n' in out, (status, out, err)
                    status, _, err = wine_over(cddprun, nodes, other, epochs)
                    assert status == [0] * nodes, err
                    assert results(folder) == results(other)


if __name__ == '__main__':
    launch.main()
