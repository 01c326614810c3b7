#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What happens to a job of two hosts when a part of it fails: who says what, how it ends, and how soon.

    faults.py CDDPRUN [--slow] [TEST...]     every end must come within the lease
    faults.py CDDPRUN --write                the same, and docs/faults.md is written from what was seen
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
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
seen = []  # for docs/faults.md


def wine(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')


class Training(contextlib.ExitStack):
    """Two hosts, two ranks on each, and when each of them ended. jobs[i] is node i, on host i+1."""

    def __init__(self, cddprun, epochs):
        super().__init__()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory(prefix='cddp-test-')))
        script = f'echo $$ > {self.folder}/pid.$RANK; exec "$@"'
        self.jobs, self.took, self.began = [], [None, None], None
        for node in 0, 1:
            self.callback(hosts.act, 'heal', node + 1)
            out, err = (self.enter_context(open(self.file(name, node), 'w', encoding='utf-8')) for name in ('out', 'err'))
            self.jobs.append(self.enter_context(hosts.on(
                node + 1, cddprun, '--nnodes=2', f'--node_rank={node}', f'--master_addr={hosts.address(1)}',
                f'--master_port={PORT}', '--nproc_per_node=2', 'sh', '-c', script, 'sh', wine(cddprun), '--epochs',
                epochs, '--metrics', self.folder / 'metrics', '--weights-out', self.folder / 'weights',
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
    assert re.search(pattern, err), f'node {node} does not say {pattern!r}: {err}'


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
               f'{min(t.took) - 8:.1f} s after the healing.')
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


def test_the_hosts_node_is_killed(cddprun):
    with Training(cddprun, FOREVER) as t:
        t.start()
        hosts.act('kill', 1)
        status = t.finish(LEASE + STOPPING)
        shutil.rmtree(t.jobs[0].tmp)  # both halves of cddprun died at once: nobody was left to clean up there
        os.mkdir(t.jobs[0].tmp)
        record("The host's node dies", 'SIGKILL for every process on node 0, which hosts the rendezvous', t)
        assert status == [-9, 1], (status, t.err(0), t.err(1))
        says(t, 1, rf'cddprun: the rendezvous at 10\.99\.0\.1:{PORT} is gone')


def status_text(status):
    return f'killed by signal {-status}' if status < 0 else f'exit status {status}'


def write():
    lines = ['<!-- SPDX-License-Identifier: Apache-2.0 -->', '<!-- Written by tests/netns/faults.py --write -->',
             '# Faults: who says what, and how soon', '',
             'The Wine job on two nodes (host1: node 0, ranks 0 and 1, host of the rendezvous; host2: node 1, ranks 2 and 3), each',
             'in a network namespace of its own, and one fault while it trains. Times are counted from the fault to the end of',
             f'cddprun on that node; every job ends within the lease ({LEASE:.0f} s), and leaves no process.', '',
             '| fault | node 0 | node 1 |', '| --- | --- | --- |']
    for title, _, nodes, _ in seen:
        cells = [f'{status_text(status)} after {took:.2f} s' for status, took, _ in nodes]
        lines.append(f'| {title} | {cells[0]} | {cells[1]} |')
    for title, what, nodes, note in seen:
        lines += ['', f'## {title}', '', f'Done: {what}.', *([note] if note else [])]
        for node, (status, took, err) in enumerate(nodes):
            lines += ['', f'Node {node}, {status_text(status)} after {took:.2f} s' + (':' if err else ', says nothing.')]
            if err:
                lines += ['', '```text', *err.rstrip('\n').splitlines(), '```']
    (ROOT / 'docs' / 'faults.md').write_text('\n'.join(lines) + '\n', encoding='utf-8')


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
