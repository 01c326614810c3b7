#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose host is elected by a real etcd of three members, and faults: exactly one world runs at any time, and training
goes on. CDDP_WORLD_WORKER is the path of world_worker.

    tests/etcd/election.py build/launcher/cddprun [--seeds=N]     N random faults besides; 1 by default

tests/netns/election.py --full is the full run, on a real network.
"""
import contextlib
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import etcd_members
import launch
from launch import Job

WORKER = os.path.abspath(os.environ['CDDP_WORLD_WORKER'])
SEEDS, FIRST = 1, 1
LEASE = int(os.environ.get('CDDP_ETCD_LEASE', '6'))  # s; with 3 s, a busy machine may lose the host


class Training:
    """A job, each of whose nodes reaches etcd by a separate proxy. tests/netns/election.py has nodes on several hosts."""

    def __init__(self, stack, cddprun, etcd, nnodes, *flags, n=3, lease=LEASE):
        self.stack, self.cddprun, self.etcd = stack, cddprun, etcd
        self.dir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.id = f'job{random.getrandbits(40):x}'
        self.flags = [f'--nnodes={nnodes}', '--rdzv_backend=etcd', f'--rdzv_id={self.id}', '--shutdown_timeout=2', *flags]
        self.conf = f'--rdzv_conf=lease={lease},last_call_timeout=2,join_timeout=120'
        self.nodes, self.proxies, self.gone = [], [], set()
        for _ in range(n):
            self.add()

    def add(self):
        proxy = etcd_members.Proxy(self.etcd)
        self.stack.callback(proxy.close)
        self.proxies.append(proxy)
        self.start(Job, proxy.endpoints())

    def start(self, job, endpoints):
        self.nodes.append(self.stack.enter_context(job(self.cddprun, *self.flags, self.conf, f'--rdzv_endpoint={endpoints}',
                                                       WORKER, str(self.dir), env={'CDDP_BACKEND': 'cpu'})))

    def ranks(self):
        """(name, size, rank, first, last, steps, last step, longest pause) of each process that has ever been in a world."""
        found = []
        for path in self.dir.glob('rank-*'):
            text = path.read_text(encoding='ascii').split()
            if len(text) == 8:
                found.append((text[0], *map(int, text[1:])))
        return found

    def steps_after(self, at_ns, size, new):
        """The time of a step of a whole world of this size that began (or, unless `new`, went on) after that time; None: not yet."""
        worlds = {}
        for name, n, rank, first, _, _, step, _ in self.ranks():
            if n in size and step > at_ns and (first > at_ns or not new):
                worlds.setdefault((name, n), {})[rank] = step
        return next((min(its.values()) for (_, n), its in worlds.items() if len(its) == n), None)

    def wait(self, size, after_ns=0, new=False):
        size = [size] if isinstance(size, int) else size
        for i, job in enumerate(self.nodes):
            assert i in self.gone or job.process.poll() is None, self.describe()
        return launch.wait_for(f'a world of {size}', lambda: self.steps_after(after_ns, size, new), more=self.describe)

    def describe(self):
        for job in self.nodes:
            job.process.kill()
        time.sleep(0.2)
        return f'{self.ranks()} {[job.process.stderr.read() for job in self.nodes]} {self.etcd.keys()}'

    def first_step_of_next(self, after_ns):
        """When the first world that began after that time had its first ranks up, in s."""
        return min((first - after_ns) / 1e9 for _, _, _, first, *_ in self.ranks() if first > after_ns)

    def host(self):
        """The node that hosts: the one whose agent listens at the port in etcd's key."""
        def find():
            text = next((v for k, v in self.etcd.keys().items() if k == f'/cddp/{self.id}/host'), None)
            port = None if text is None else int(text.rsplit(':', 1)[1].rstrip('}'))
            at = next((i for i, job in enumerate(self.nodes) if i not in self.gone and port and listens_at(job.agent(), port)), None)
            return None if at is None else (at,)
        return launch.wait_for('a host', find, more=self.describe)[0]

    def kill(self, i, number=signal.SIGKILL):
        for pid in self.nodes[i].alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGKILL:
            self.gone.add(i)
            launch.wait_for('the node to be dead', lambda: not self.nodes[i].alive())
            shutil.rmtree(self.nodes[i].tmp)  # both halves of cddprun died together: no process was left to clean up
            os.mkdir(self.nodes[i].tmp)

    def check_one_world(self):
        worlds = {}
        for name, _, _, first, last, _, step, _ in self.ranks():
            old = worlds.get(name, (first, last))
            worlds[name] = min(old[0], first), max(old[1], last, step)
        spans = sorted((span, name) for name, span in worlds.items())
        for ((_, last), one), ((first, _), other) in zip(spans, spans[1:]):
            assert last < first, f'worlds {one} and {other} ran at the same time for {(last - first) / 1e6:.3f} ms: {self.ranks()}'
        return len(spans)

    def end(self):
        (self.dir / 'end').touch()
        for i, job in enumerate(self.nodes):
            status = job.finish()
            assert i in self.gone or status == 0, (i, status, job.err, self.ranks())
        self.check_one_world()
        left = [key for key in self.etcd.keys() if self.id in key]
        assert left in ([], [f'/cddp/{self.id}/over']), left


def listens_at(pid, port):
    """Has this process a socket that listens at this port, on its host?"""
    with contextlib.suppress(OSError):
        with open(f'/proc/{pid}/net/tcp', encoding='ascii') as v4, open(f'/proc/{pid}/net/tcp6', encoding='ascii') as v6:
            rows = [row.split() for row in (v4.read() + v6.read()).splitlines() if ':' in row]
        inodes = {f'socket:[{row[9]}]' for row in rows if row[3] == '0A' and int(row[1].rpartition(':')[2], 16) == port}
        for fd in os.listdir(f'/proc/{pid}/fd'):
            with contextlib.suppress(OSError):
                if os.readlink(f'/proc/{pid}/fd/{fd}') in inodes:
                    return True
    return False


def say(what, took):
    print(f'# {what}: training goes on after {took:.2f} s', flush=True)


@contextlib.contextmanager
def training(cddprun, nnodes, *flags, **more):
    with etcd_members.Etcd() as etcd, contextlib.ExitStack() as stack:
        t = Training(stack, cddprun, etcd, nnodes, *flags, **more)
        t.wait(3)
        yield t, etcd
        t.end()


def test_host_is_killed_and_the_others_go_on(cddprun):
    with training(cddprun, '2:3') as (t, _):
        at = time.monotonic_ns()
        t.kill(t.host())
        t.wait(2, at, new=True)
        say(f'the host is killed (2:3 nodes, lease {LEASE} s)', t.first_step_of_next(at))


def test_node_of_host_comes_back_in_a_job_of_fixed_size(cddprun):
    with training(cddprun, '3', '--max_restarts=1') as (t, _):
        at = time.monotonic_ns()
        t.kill(t.host())
        t.add()
        t.wait(3, at, new=True)
        say(f'the host is killed, and its node started anew (3 nodes, lease {LEASE} s)', t.first_step_of_next(at))


def test_any_member_or_the_leader_of_etcd_is_killed(cddprun):
    with training(cddprun, '2:3') as (t, etcd):
        began = t.check_one_world()
        leader = etcd.leader()
        at = time.monotonic_ns()
        leader.kill()
        time.sleep(1.5 * LEASE)  # longer than a lease: what the test is about
        t.wait(3, time.monotonic_ns())
        leader.start(etcd.cluster, 'existing', etcd.flags)
        etcd.wait()
        other = next(m for m in etcd.members if m is not leader)
        other.kill()
        t.wait(3, time.monotonic_ns())
        worlds = t.check_one_world()
        print(f'# the leader and a member of etcd are killed: {worlds - began} new worlds within {(time.monotonic_ns() - at) / 1e9:.0f} s', flush=True)


def test_host_that_is_cut_off_from_etcd_ends_its_world(cddprun):
    with training(cddprun, '2:3') as (t, _):
        host = t.host()
        at = time.monotonic_ns()
        t.proxies[host].open.clear()
        t.wait([2, 3], at, new=True)
        say(f'the host is cut off from etcd (lease {LEASE} s)', t.first_step_of_next(at))
        t.proxies[host].open.set()
        t.wait(3, time.monotonic_ns())


def test_host_that_waits_for_others_survives_a_slow_etcd(cddprun):
    """It has joined its own server (at the latest before the second cut), and has no round yet."""
    with etcd_members.Etcd() as etcd, contextlib.ExitStack() as stack:
        t = Training(stack, cddprun, etcd, '2', n=1)
        t.host()
        for _ in range(2):
            t.proxies[0].open.clear()
            time.sleep(LEASE / 2)  # longer than a server answers without etcd, shorter than the lease
            t.proxies[0].open.set()
            t.etcd.wait()
        t.add()
        t.wait(2)
        t.end()


def test_host_that_was_stopped_finds_another(cddprun):
    with training(cddprun, '2:3') as (t, _):
        host = t.host()
        at = time.monotonic_ns()
        t.kill(host, signal.SIGSTOP)
        t.wait(2, at, new=True)
        say(f'all processes of the host are stopped (lease {LEASE} s)', t.first_step_of_next(at))
        t.kill(host, signal.SIGCONT)
        t.wait(3, time.monotonic_ns())


def test_host_that_leaves_hands_over(cddprun):
    with training(cddprun, '2:3', lease=60) as (t, _):
        host = t.host()
        at = time.monotonic_ns()
        t.gone.add(host)
        t.nodes[host].process.send_signal(signal.SIGTERM)
        t.wait(2, at, new=True)
        say('the host leaves (SIGTERM, lease 60 s)', t.first_step_of_next(at))


def test_node_that_missed_the_end_does_not_run_the_job_again(cddprun):
    with etcd_members.Etcd() as etcd, contextlib.ExitStack() as stack:
        t = Training(stack, cddprun, etcd, '1:2', n=2)
        t.wait(2)
        other = 1 - t.host()
        at = time.monotonic_ns()
        t.kill(other, signal.SIGSTOP)
        t.wait(1, at, new=True)
        (t.dir / 'end').touch()
        assert t.nodes[1 - other].finish() == 0, t.nodes[1 - other].err
        began = len(t.ranks())
        t.kill(other, signal.SIGCONT)
        assert t.nodes[other].finish() == 1, t.nodes[other].err
        assert f"cddprun: job '{t.id}' is over\n" in t.nodes[other].err, t.nodes[other].err
        assert len(t.ranks()) == began and t.check_one_world() == 2, t.ranks()
        assert {k: v for k, v in etcd.keys().items() if t.id in k} == {f'/cddp/{t.id}/over': 'done'}


def random_fault(t, etcd, rng):
    kind = rng.choice(['host', 'node', 'member', 'leader', 'cut host', 'cut node', 'stop host', 'stop member', 'leave'])
    host = t.host()
    at, size, heal = time.monotonic_ns(), [3], lambda: None
    node = host if 'host' in kind or kind == 'leave' else rng.randrange(3)
    member = etcd.leader() if kind == 'leader' else rng.choice(etcd.members)
    if kind in ('host', 'node'):
        t.kill(node)
        size = [2]
    elif kind == 'leave':
        t.gone.add(node)
        t.nodes[node].process.send_signal(signal.SIGTERM)
        size = [2]
    elif kind in ('member', 'leader'):
        member.kill()
    elif kind == 'stop member':
        member.process.send_signal(signal.SIGSTOP)
        heal = lambda: member.process.send_signal(signal.SIGCONT)
    elif kind == 'stop host':
        t.kill(node, signal.SIGSTOP)
        heal = lambda: t.kill(node, signal.SIGCONT)
    else:
        t.proxies[node].open.clear()
        heal = t.proxies[node].open.set
    time.sleep(rng.choice([0, 0.3, 1, LEASE, 2 * LEASE]))
    heal()
    t.wait(size, time.monotonic_ns())
    return kind, at


def test_random_faults(cddprun):
    for seed in range(FIRST, FIRST + SEEDS):
        rng = random.Random(seed)
        with training(cddprun, '2:3') as (t, etcd):
            time.sleep(rng.random())
            kind, at = random_fault(t, etcd, rng)
            starts = sorted((first - at) / 1e9 for _, _, rank, first, *_ in t.ranks() if first > at and rank == 0)
            print(f'# seed {seed}: {kind}; worlds that began after it: {[round(s, 2) for s in starts]}', flush=True)


if __name__ == '__main__':
    for arg in [a for a in sys.argv[1:] if a.startswith(('--seeds=', '--first='))]:
        sys.argv.remove(arg)
        if arg.startswith('--seeds='):
            SEEDS = int(arg.partition('=')[2])
        else:
            FIRST = int(arg.partition('=')[2])
    launch.main()
