#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A host that etcd elects, on a real network: three nodes and three members of etcd, each on a separate host, whose
packets may vanish. One fault at a random moment: at any time one world runs, and training goes on.

    election.py CDDPRUN [TEST...]                  a partition in each direction, with a lease of 3 s
    election.py CDDPRUN --full [--side_by_side=N]  50 seeds: five faults, leases of 15 s (the default) and 3 s; a table of
                                                   how many went on, and how soon (20 minutes; N parts at the same time)
    election.py CDDPRUN --fault=NAME --lease=S --seeds=FIRST-LAST    a part of it, such as --seeds=3-3

CDDP_WORLD_WORKER is the path of tests/etcd/world_worker.
"""
import concurrent.futures
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time

import hosts
import launch

sys.path.insert(0, os.path.join(hosts.HERE, '..', 'etcd'))
import election
import etcd_members

NODES, MEMBERS, HERE = (1, 2, 3), (4, 5, 6), 7  # hosts
MORE = 10  # s beyond a lease in which a world that need not end must go on
FAULTS = ('host', 'member', 'leader', 'etcd', 'all')
TITLES = {'host': 'the host is killed', 'member': 'a member of etcd is killed', 'leader': "etcd's leader is killed",
          'etcd': 'no packet passes between the host and etcd, in one or both directions',
          'all': 'no packet passes between the host and all others'}


class Training(election.Training):
    """Node i is on host NODES[i]."""

    def add(self):
        self.start(lambda *command, **more: hosts.on(NODES[len(self.nodes)], *command, **more), self.etcd.endpoints())


@contextlib.contextmanager
def training(cddprun, lease):
    places = [(hosts.address(i), (hosts.SCRIPT, 'exec', str(i))) for i in MEMBERS]
    with contextlib.ExitStack() as stack:
        for i in NODES + MEMBERS:
            stack.callback(hosts.act, 'heal', i)
        etcd = stack.enter_context(etcd_members.Etcd(places=places))
        t = Training(stack, cddprun, etcd, '2:3', lease=lease)
        t.wait(3)
        yield t, etcd
        t.end()


def partition(kind, node, ways):
    if kind == 'all':
        hosts.act('cut', NODES[node])
        return
    for member in MEMBERS:
        if 'to' in ways:
            hosts.act('part', NODES[node], member)
        if 'from' in ways:
            hosts.act('part', member, NODES[node])


def new_world(t, at):
    """When the first world that began after this time was complete, in ns."""
    worlds = {}
    for name, size, rank, first, *_ in t.ranks():
        worlds.setdefault((name, size), {})[rank] = first
    return min((max(its.values()) for (_, size), its in worlds.items() if len(its) == size and min(its.values()) > at), default=None)


def one(cddprun, kind, lease, seed, ways=None):
    """A dict of what was seen."""
    rng = random.Random(f'{kind} {seed}')
    ways = ways or rng.choice([('to', 'from'), ('to',), ('from',)])
    seen = {'fault': kind, 'lease': lease, 'seed': seed}
    with training(cddprun, lease) as (t, etcd):
        time.sleep(rng.random() * lease / 5)  # a random moment between and in renewals
        host = t.host()
        member = etcd.leader() if kind == 'leader' else rng.choice(etcd.members)
        at = time.monotonic_ns()
        if kind == 'host':
            t.kill(host)
            t.wait(2, at, new=True)
        elif kind in ('member', 'leader'):
            member.kill()
            time.sleep(lease + MORE * rng.random())  # so long it is gone: what the test is about
            t.wait(3, time.monotonic_ns())
        else:
            seen['ways'] = ways if kind == 'etcd' else ('to', 'from')
            partition(kind, host, ways)
            t.wait([2, 3], at, new=True)
            time.sleep(rng.random() * lease)
            for i in NODES + MEMBERS:
                hosts.act('heal', i)
            t.wait(3, time.monotonic_ns())
        seen['worlds'] = t.check_one_world()
        began = new_world(t, at)
        seen['took'] = None if began is None else (began - at) / 1e9
        seen['pause'] = max(pause for *_, pause in t.ranks()) / 1e9
    return seen


def test_host_that_only_hears_or_only_reaches_etcd_is_replaced(cddprun):
    for ways in ('to',), ('from',):
        seen = one(cddprun, 'etcd', 3, 1, ways)
        election.say(f'packets {"to" if ways == ("to",) else "from"} etcd vanish (lease 3 s)', seen['took'])


def test_host_that_is_cut_off_from_all_is_replaced(cddprun):
    election.say('the host is cut off from all (lease 3 s)', one(cddprun, 'all', 3, 1)['took'])


def part(cddprun, kind, lease, first, last):
    """One line of JSON for each seed."""
    for seed in range(first, last + 1):
        try:
            seen = one(cddprun, kind, lease, seed)
        except Exception as e:  # the next seed runs anyway; the table has the number
            seen = {'fault': kind, 'lease': lease, 'seed': seed, 'failed': f'{type(e).__name__}: {e}'}
        print(json.dumps(seen), flush=True)


def full(cddprun, side_by_side):
    def run(what):
        kind, lease = what
        done = subprocess.run([sys.executable, __file__, cddprun, f'--fault={kind}', f'--lease={lease}', '--seeds=1-5'],
                              stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, end='', flush=True)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]

    parts = [(kind, lease) for kind in FAULTS for lease in (15, 3)]
    with concurrent.futures.ThreadPoolExecutor(side_by_side) as pool:
        seen = [s for its in pool.map(run, parts) for s in its]
    good = [s for s in seen if 'failed' not in s]
    print('| fault | lease | went on | old world kept | a new world runs after: median, max |\n|---|---|---|---|---|')
    for kind, lease in parts:
        its = [s for s in good if (s['fault'], s['lease']) == (kind, lease)]
        took = [s['took'] for s in its if s['took'] is not None]
        times = f'{statistics.median(took):.1f} s, {max(took):.1f} s' if took else '-'
        print(f'| {TITLES[kind]} | {lease} s | {len(its)} of 5 | {len(its) - len(took)} | {times} |')
    print(f'{len(good)} of {5 * len(parts)} went on, each with one world at any time')
    sys.exit(len(good) != 5 * len(parts))


def take(name, form):
    """The value of --NAME, removed from the arguments; None: it is not there."""
    for arg in sys.argv[1:]:
        if found := re.fullmatch(f'--{name}={form}', arg):
            sys.argv.remove(arg)
            return found
    return None


if __name__ == '__main__':
    if '--full' in sys.argv:
        n = take('side_by_side', r'(\d+)')
        full(os.path.abspath(sys.argv[1]), int(n[1]) if n else 1)
    hosts.enter(HERE)
    hosts.move_to(HERE)  # from where etcd can be asked
    kind, lease, seeds = take('fault', '([a-z]+)'), take('lease', r'(\d+)'), take('seeds', r'(\d+)-(\d+)')
    if kind:
        part(os.path.abspath(sys.argv[1]), kind[1], int(lease[1]), int(seeds[1]), int(seeds[2]))
    else:
        launch.main()
