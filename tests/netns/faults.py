#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Failures of a job on two hosts: the messages, how it ends, and how soon.

    faults.py CDDPRUN [--slow] [TEST...]     every job must end within the lease
    faults.py CDDPRUN --write                the same, and docs/failure-modes.md is written from the results
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import hosts
import launch
from launch import run, wait_for

PORT = 29400
LEASE = 15.0
STOPPING = 1.5  # on top of it: to end the workers and to say so
ROOT = pathlib.Path(__file__).resolve().parents[2]
seen = []  # for docs/failure-modes.md


def wine(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')


class Training(contextlib.ExitStack):
    """
    Two hosts, two ranks on each, and when each of them ended. jobs[i] is node i, on host i+1.

    names: the contents of /etc/hosts, for these jobs only; it may change. meet: the flags that say where the nodes meet.
    more: further flags of the program.
    """

    def __init__(self, cddprun, epochs, *flags, names=None, meet=None, more=()):
        super().__init__()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory(prefix='cddp-test-')))
        script = f'echo $$ > {self.folder}/pid.$RANK; exec "$@"'
        known = []
        if names is not None:
            self.file('hosts', 0).write_text(names)
            known = ['sh', '-c', f'mount --bind {self.file("hosts", 0)} /etc/hosts && exec "$@"', 'sh']
        meet = meet or [f'--master_addr={hosts.address(1)}', f'--master_port={PORT}']
        self.jobs, self.took, self.began = [], [None, None], None
        for node in 0, 1:
            self.callback(hosts.act, 'heal', node + 1)
            out, err = (self.enter_context(open(self.file(name, node), 'w', encoding='utf-8')) for name in ('out', 'err'))
            self.jobs.append(self.enter_context(hosts.on(
                node + 1, *known, cddprun, '--nnodes=2', f'--node_rank={node}', *meet, '--nproc_per_node=2', *flags, 'sh', '-c', script,
                'sh', wine(cddprun), '--epochs', epochs, '--metrics', self.folder / 'metrics', '--weights-out',
                self.folder / 'weights', *(str(flag).format(folder=self.folder) for flag in more),
                stdout=out, stderr=err)))

    def file(self, name, node):
        return self.folder / f'{name}.{node}'

    def err(self, node):
        return self.file('err', node).read_text()

    def epochs(self):
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / 'metrics').read_text().count('\n')
        return 0

    def pid(self, rank):
        return int((self.folder / f'pid.{rank}').read_text())

    def over(self):
        for node in 0, 1:
            if self.took[node] is None and self.jobs[node].process.poll() is not None:
                self.took[node] = time.monotonic() - self.began
        return None not in self.took

    def start(self):
        """Until some epochs are done; the clock runs from here."""
        self.began = time.monotonic()
        wait_for('some epochs', lambda: self.over() or self.epochs() >= 10)
        assert self.took == [None, None], [self.err(0), self.err(1)]
        self.began = time.monotonic()

    def finish(self, limit):
        """The exit statuses; took[] holds the seconds since start()."""
        with contextlib.suppress(AssertionError):
            wait_for('the end', self.over, launch.within(limit))
        assert self.over(), f'not over within {limit} s: ended {self.took}, said {[self.err(0), self.err(1)]}'
        return [job.process.returncode for job in self.jobs]


def record(title, what, training, note=''):
    seen.append((title, what, [(training.jobs[node].process.returncode, training.took[node], training.err(node))
                               for node in (0, 1)], note))


def says(training, node, pattern):
    err = training.err(node)
    assert re.search(pattern, err), f'node {node} does not print {pattern!r}: {err}'


FOREVER = 1000000


def test_a_killed_worker(cddprun):
    with Training(cddprun, FOREVER) as t:
        t.start()
        os.kill(t.pid(3), signal.SIGKILL)
        status = t.finish(3)
        record('A worker is killed', 'SIGKILL for rank 3, on node 1', t)
        assert status == [137, 137], (status, t.err(0), t.err(1))
        for node in 0, 1:
            says(t, node, r'rank 3 \(pid \d+ on host2\) was killed by signal 9 \(SIGKILL\)')


def test_a_killed_agent(cddprun):
    with Training(cddprun, FOREVER) as t:
        t.start()
        os.kill(t.jobs[1].agent(), signal.SIGKILL)
        status = t.finish(3)
        record('An agent is killed', 'SIGKILL for the inner process of cddprun on node 1', t)
        assert status == [1, 137], (status, t.err(0), t.err(1))
        says(t, 0, r'cddprun: node 1 \(host2.*\) was lost')


def test_a_connection_that_is_ended_from_outside(cddprun):
    """As by a firewall that restarts: node 0's to its own rendezvous, too."""
    if shutil.which('ss') is None:
        raise launch.Skip('needs ss of iproute2')
    with Training(cddprun, 1500) as t:
        t.start()
        for node in 0, 1:
            out = subprocess.run([hosts.SCRIPT, 'exec', str(node + 1), 'ss', '-HKtn', 'dport', '=', f':{PORT}'], check=True,
                                 capture_output=True, text=True).stdout
            assert 'ESTAB' in out or not out, out  # nothing: the kernel cannot do it
        status = t.finish(LEASE)
        assert status == [0, 0], (status, t.err(0), t.err(1))


def test_a_node_cut_off_for_eight_seconds(cddprun):
    epochs = 3000
    with Training(cddprun, epochs) as t:
        t.start()
        hosts.act('cut', 2)
        cut = time.monotonic()
        at_cut = None
        while time.monotonic() < cut + 8:
            time.sleep(0.1)  # the length of the cut is what is tested
            if at_cut is None and time.monotonic() > cut + 2:
                at_cut = t.epochs()
        assert 0 < at_cut == t.epochs() < epochs, 'the training went on through the cut'
        hosts.act('heal', 2)
        status = t.finish(60)
        record('A node is cut off for 8 s', 'the packets of node 1 vanish for 8 s; then they do not', t,
               f'Training stands still at the cut and ends as if nothing had been, with the same weights, '
               f"{min(t.took) - 8:.1f} s after the healing. Before Linux 6.15, TCP's\nback-off may add as much time as the cut lasted.\n"
               'A cut of up to 8 s is safe with this lease: a node kills its workers 10 s (two thirds of the lease) after it sent the last\n'
               'heartbeat that was answered. That may be a second before the cut, and the next connection takes up to another second.')
        assert status == [0, 0], (status, t.err(0), t.err(1))
        assert t.epochs() == epochs
        status, _, err = run(cddprun, '--standalone', '--nproc_per_node=4', wine(cddprun), '--epochs', str(epochs),
                             '--weights-out', str(t.folder / 'undisturbed'))
        assert status == 0, err
        assert (t.folder / 'undisturbed').read_text() == (t.folder / 'weights').read_text()


def test_a_node_cut_off_for_good(cddprun):
    with Training(cddprun, FOREVER) as t:
        t.start()
        hosts.act('cut', 2)
        status = t.finish(LEASE + STOPPING)
        record('A node is cut off for good', 'the packets of node 1 vanish', t)
        assert status == [1, 1], (status, t.err(0), t.err(1))
        says(t, 0, r'cddprun: node 1 \(host2.*\) was lost')
        says(t, 1, r'cddprun: .*10\.99\.0\.1:29400')
        assert t.took[1] < t.took[0], 'the node that is cut off must have ended its workers before it counts as lost'


def test_unreachable_host_is_the_cause(cddprun):
    """Node 1 hears nothing of node 0, and kills its workers in time; ranks 0 and 1 see only that rank 2 or 3 died."""
    with Training(cddprun, FOREVER) as t:
        t.start()
        hosts.act('mute', 1)
        status = t.finish(LEASE + 2 * STOPPING)
        assert status == [1, 1], (status, t.err(0), t.err(1))
        says(t, 0, r'cddprun: node 1 \(host2, pid \d+\) was lost')
        says(t, 1, r'cddprun: .*no message from the rendezvous at .* for 1\d s')
        assert 'exited with status' not in t.err(1), t.err(1)


def test_reconnected_node_reports_why_it_killed_workers(cddprun):
    """It reconnects within its lease, and its report is the cause, not the errors of ranks 0 and 1."""
    with Training(cddprun, FOREVER, '--max_restarts=1') as t:
        t.start()
        hosts.act('mute', 1)
        wait_for('the end of its workers', lambda: 'will try to rejoin' in t.err(1), LEASE, lambda: t.err(1))
        hosts.act('heal', 1)
        for node in 0, 1:
            wait_for('the cause', lambda: re.search(
                r'node 1 \(host2, pid \d+\) killed its workers: no message from the rendezvous at \S+ for 1\d s; '
                r'restarting all workers \(restart 1 of 1\)', t.err(node)), more=lambda: (t.err(0), t.err(1)))
        for job in t.jobs:
            job.process.send_signal(signal.SIGTERM)
        status = t.finish(LEASE)
        assert set(status) <= {143, 1}, (status, t.err(0), t.err(1))


def test_the_hosts_node_is_killed(cddprun):
    with Training(cddprun, FOREVER) as t:
        t.start()
        hosts.act('kill', 1)
        status = t.finish(LEASE + STOPPING)
        shutil.rmtree(t.jobs[0].tmp)  # both halves of cddprun died together: no process was left to clean up
        os.mkdir(t.jobs[0].tmp)
        record("The host's node dies", 'SIGKILL for every process on node 0, which hosts the rendezvous', t)
        assert status == [-9, 1], (status, t.err(0), t.err(1))
        says(t, 1, rf'cddprun: lost the rendezvous at 10\.99\.0\.1:{PORT}')


def start_daemon(stack, host):
    daemon = stack.enter_context(hosts.on(host, os.environ['CDDP_RENDEZVOUS'], f'--bind={hosts.address(host)}', f'--port={PORT}'))
    assert daemon.process.stdout.readline() == f'listening {hosts.address(host)}:{PORT}\n', daemon.process.stderr.read()
    return daemon


def test_the_rendezvous_is_killed_and_started_on_another_host(cddprun):
    with contextlib.ExitStack() as stack:
        daemon = start_daemon(stack, 1)
        t = stack.enter_context(Training(
            cddprun, 1500, names=f'127.0.0.1 localhost\n{hosts.address(1)} rdzv\n',
            meet=[f'--rdzv_endpoint=rdzv:{PORT}', '--rdzv_backend=c10d', '--rdzv_id=wine', '--max_restarts=1'],
            more=['--save', '{folder}', '--save-every', '5', '--resume', '{folder}']))
        t.start()
        daemon.process.kill()
        daemon.process.wait()
        time.sleep(2)  # for so long there is none: what the test is about
        other = start_daemon(stack, 2)
        t.file('hosts', 0).write_text(f'127.0.0.1 localhost\n{hosts.address(2)} rdzv\n')
        status = t.finish(120)
        record('The rendezvous is killed, and started on another host',
               'SIGKILL for cddp-rendezvous on host1. After 2 s there is one on host2, and its name leads there',
               t, 'The nodes, which have one restart, find it there, and training goes on from the newest checkpoint.')
        other.process.terminate()
        assert other.finish() == 0, other.err
        assert status == [0, 0], (status, t.err(0), t.err(1))
        assert (t.folder / 'metrics').read_text().count('\n') >= 1500
        for node in 0, 1:
            says(t, node, r'(rendezvous was started anew|server was restarted); .*will try to rejoin')


def status_text(status):
    return f'killed by signal {-status}' if status < 0 else f'exit status {status}'


def write():
    lines = ['<!-- SPDX-License-Identifier: Apache-2.0 -->', '<!-- Written by tests/netns/faults.py --write -->',
             '# Failure modes: messages and detection times', '',
             'The Wine job on two nodes (host1: node 0, ranks 0 and 1, host of the rendezvous; host2: node 1, ranks 2 and 3), each',
             'in a separate network namespace, and one fault while it trains. Times are counted from the fault to the end of',
             f'cddprun on that node; every job ends within the lease ({LEASE:.0f} s), and leaves no process.', '',
             '| fault | node 0 | node 1 |', '| --- | --- | --- |']
    for title, _, nodes, _ in seen:
        cells = [f'{status_text(status)} after {took:.2f} s' for status, took, _ in nodes]
        lines.append(f'| {title} | {cells[0]} | {cells[1]} |')
    for title, what, nodes, note in seen:
        lines += ['', f'## {title}', '', f'Done: {what}.', *([note] if note else [])]
        for node, (status, took, err) in enumerate(nodes):
            lines += ['', f'Node {node}, {status_text(status)} after {took:.2f} s' + (':' if err else ', without a message.')]
            if err:
                lines += ['', '```text', *err.rstrip('\n').splitlines(), '```']
    (ROOT / 'docs' / 'failure-modes.md').write_text('\n'.join(lines) + '\n', encoding='utf-8')


if __name__ == '__main__':
    hosts.enter(2)
    if '--write' in sys.argv:
        sys.argv.remove('--write')
        try:
            launch.main()
        except SystemExit as end:
            if end.code == 0:
                write()
            raise
    launch.main()
