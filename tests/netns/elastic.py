#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training on two to three hosts of which one is lost, cut off, or joins: it resumes from its checkpoint.

    elastic.py CDDPRUN [--slow] [TEST...]
    elastic.py CDDPRUN --write PYTHON      the same, then what torchrun does in the Python that has torch, and docs/elastic.md
"""
import contextlib
import os
import pathlib
import re
import signal
import shutil
import sys
import tempfile
import time

import hosts
import launch
from launch import wait_for

PORT = 29400
LEASE = 15.0
PATIENCE = 60.0  # for torchrun, before it counts as hanging
ROOT = pathlib.Path(__file__).resolve().parents[2]
seen = {}  # event: seconds to notice, seconds to resume
# Every worker notes its process and its place, then becomes the program.
NOTE = 'echo $$ $RANK $WORLD_SIZE >> "$FOLDER/world.$HOST"; exec "$@"'


class Training(contextlib.ExitStack):
    """Jobs on hosts 1 to 3, one worker each. command(host) is what a host runs."""

    def __init__(self, command):
        super().__init__()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory(prefix='cddp-test-')))
        self.metrics, self.note = self.folder / 'metrics', self.folder / 'note.sh'
        self.note.write_text(NOTE)
        self.command, self.jobs = command, {}
        for host in 1, 2, 3:
            self.callback(hosts.act, 'heal', host)

    def start(self, host):
        out, err = (self.enter_context(open(self.folder / f'{name}.{host}', 'a', encoding='utf-8')) for name in ('out', 'err'))
        self.jobs[host] = self.enter_context(hosts.on(host, *self.command(self, host), stdout=out, stderr=err, env={
            'FOLDER': str(self.folder), 'HOST': str(host), 'GLOO_SOCKET_IFNAME': 'eth0', 'OMP_NUM_THREADS': '1'}))

    def said(self, host, name='err'):
        return (self.folder / f'{name}.{host}').read_text()

    def worlds(self, host):
        """(pid, rank, size) of the workers that this host has had."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / f'world.{host}').read_text().splitlines()
            return [tuple(map(int, line.split())) for line in lines if line.count(' ') == 2]
        return []

    def size(self):
        with contextlib.suppress(FileNotFoundError):
            return self.metrics.stat().st_size
        return 0

    def in_world(self, places, limit=launch.DEADLINE):
        """Until every host has its place: {host: (rank, size)}."""
        wait_for(f'{places}', lambda: all(self.worlds(host)[-1:] and self.worlds(host)[-1][1:] == place
                                          for host, place in places.items()), limit,
                 lambda: {host: (self.worlds(host), self.said(host)) for host in self.jobs})

    def trains(self, limit=launch.DEADLINE):
        """Until an epoch more is done."""
        size = self.size()
        wait_for('an epoch', lambda: self.size() != size, limit, lambda: {host: self.said(host) for host in self.jobs})

    def watch(self, act, survivor, places, limit):
        """Do it; the seconds until the survivor's worker was stopped, and until one trains in the new world."""
        old = self.worlds(survivor)[-1][0]
        began = time.monotonic()
        self.took = [None, None]
        act()
        wait_for('the old world to end', lambda: launch.state(old) in (None, 'Z', 'X'), limit, lambda: self.said(survivor))
        self.took[0] = time.monotonic() - began
        self.in_world(places, limit)
        self.trains(limit)
        self.took[1] = time.monotonic() - began
        return self.took

    def end(self):
        """Kills the remaining processes: torchrun leaves orphans."""
        for job in self.jobs.values():
            for pid in [job.process.pid, *job.alive()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for name in os.listdir(job.tmp):
                shutil.rmtree(os.path.join(job.tmp, name), ignore_errors=True)


def wine(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')


def with_cddprun(cddprun):
    return lambda t, host: [cddprun, '--nnodes=2:3', f'--rdzv_endpoint={hosts.address(1)}:{PORT}', 'sh', t.note,
                            wine(cddprun), '--epochs', 1000000, '--metrics', t.metrics, '--save', t.folder / 'saved',
                            '--resume', t.folder / 'saved']


def checkpoints(t):
    return sorted(int(p.stem.split('-')[1]) for p in (t.folder / 'saved').glob('checkpoint-*.cddp'))


def resumed_from(t):
    """Steps at which rank 0, on host 1, went on."""
    return [int(n) for n in re.findall(r'resumed from \S+ after epoch \d+, step (\d+)', t.said(1, 'out'))]


def step(t, title, act, places, limit):
    saved = wait_for('a checkpoint', lambda: checkpoints(t))[-1]
    before = len(resumed_from(t))
    seen[title] = t.watch(act, 1, places, limit)
    # Two of them may have been written by the time it ended: the newest counts.
    wait_for('the word of rank 0', lambda: len(resumed_from(t)) > before)
    assert resumed_from(t)[-1] >= saved, (resumed_from(t), saved)
    return seen[title]


def test_training_continues_after_node_loss_and_return(cddprun):
    with Training(with_cddprun(cddprun)) as t:
        for host in 1, 2, 3:
            t.start(host)
        t.in_world({1: (0, 3), 2: (1, 3), 3: (2, 3)})
        t.trains()

        took = step(t, 'a node\'s agent is killed', lambda: os.kill(t.jobs[2].agent(), signal.SIGKILL), {1: (0, 2), 3: (1, 2)}, 10)
        assert took[0] < launch.within(1), took
        assert re.search(r'node 1 \(host2, pid \d+\) was lost while its workers ran: its connection closed', t.said(1))
        t.jobs[2].process.wait()
        # Remaining nodes keep their ranks, and the new node gets the new one.
        step(t, 'a node comes', lambda: t.start(2), {1: (0, 3), 3: (1, 3), 2: (2, 3)}, 10)

        took = step(t, 'a node is cut off', lambda: hosts.act('cut', 3), {1: (0, 2), 2: (1, 2)}, LEASE + 10)
        assert LEASE - 2 < took[0] < LEASE + launch.within(1.5), took
        assert 'was lost while its workers ran: no message was received from it for 15 s' in t.said(1), t.said(1)
        assert not t.jobs[3].workers(), 'a node that is cut off ends its workers'
        step(t, 'its network is back', lambda: hosts.act('heal', 3), {1: (0, 3), 2: (1, 3), 3: (2, 3)}, 20)

        t.jobs[1].process.send_signal(signal.SIGTERM)
        status = [t.jobs[host].finish() for host in (1, 2, 3)]
        assert status == [0, 0, 0], (status, t.said(1), t.said(2), t.said(3))  # Wine saves, and leaves on purpose
        assert 'stopped on purpose by SIGTERM to cddprun on host1' in t.said(1), t.said(1)
        assert all('stopped on purpose' in t.said(host) for host in (2, 3)), (t.said(2), t.said(3))


def with_torchrun(python):
    def command(t, host):
        conf = f'is_host={int(host == 1)},last_call_timeout=2'
        return [python, '-m', 'torch.distributed.run', '--nnodes=2:3', '--rdzv_backend=c10d', '--max_restarts=3',
                f'--rdzv_endpoint={hosts.address(1)}:{PORT}', f'--rdzv_conf={conf}', f'--local_addr={hosts.address(host)}',
                '--no_python', 'sh', t.note, python, ROOT / 'tests/netns/torch_elastic.py', t.metrics,
                t.folder / 'checkpoint']
    return command


def measure_torchrun(python, title, first, act, places):
    """The same step with torchrun; None: not within PATIENCE."""
    with Training(with_torchrun(python)) as t:
        try:
            for host in first:
                t.start(host)
            wait_for('all to train', lambda: all(t.worlds(host) and t.worlds(host)[-1][2] == len(first) for host in first), 90)
            t.trains(60)
            with contextlib.suppress(AssertionError):
                t.watch(lambda: act(t), 1, places, PATIENCE)
            return t.took
        finally:
            print(f'# torchrun, {title}: ' + t.said(1)[-400:].replace('\n', '\n#   '))
            t.end()


def seconds(took):
    return ' | '.join(f'not within {PATIENCE:.0f} s' if s is None else f'{s:.2f} s' for s in took)


def write(python):
    peer = {
        "a node's agent is killed": measure_torchrun(
            python, 'kill', (1, 2, 3), lambda t: os.kill(t.jobs[2].process.pid, signal.SIGKILL), {1: (0, 2)}),
        'a node comes': measure_torchrun(python, 'come', (1, 2), lambda t: t.start(3), {1: (0, 3)}),
        'a node is cut off': measure_torchrun(python, 'cut', (1, 2, 3), lambda t: hosts.act('cut', 3), {1: (0, 2)}),
    }
    lines = ['## How soon a job continues, with --nnodes=2:3', '',
             'Three hosts, each in its own network namespace, with one worker; the first hosts the rendezvous. Under cddprun',
             'the Wine example trains with `--save` and `--resume`, in one run for all rows; under torchrun 2.13 (c10d,',
             '`--max_restarts=3`, `last_call_timeout=2`) a loop of all-reduces, a run for each row. Times count from the event: until',
             'the old worker of the first host has been stopped, and until an epoch of the new round is done. Surviving nodes keep their',
             'ranks if these still exist, and training resumes from the newest checkpoint.', '',
             '| event | cddprun notices | trains again | torchrun notices | trains again |',
             '| --- | --- | --- | --- | --- |']
    for title, took in seen.items():
        lines.append(f'| {title} | {seconds(took)} | {seconds(peer[title]) if title in peer else "not tried | not tried"} |')
    lines += ['', 'A node that is cut off is silent, and counts as present for the lease (15 s): it may reconnect within it, as',
              '[failure-modes.md](failure-modes.md) shows.']
    page = ROOT / 'docs' / 'elastic.md'
    head, mark, _ = page.read_text(encoding='utf-8').partition('<!-- tests/netns/elastic.py --write writes what follows -->\n')
    assert mark, page
    page.write_text(head + mark + '\n'.join(lines) + '\n', encoding='utf-8')


if __name__ == '__main__':
    hosts.enter(3)
    if '--write' in sys.argv:
        at = sys.argv.index('--write')
        torch_python = sys.argv[at + 1]
        del sys.argv[at:at + 2]
        try:
            launch.main()
        except SystemExit as over:
            if over.code == 0:
                write(torch_python)
            raise
    launch.main()
