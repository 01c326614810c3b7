#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The store: each operation on our server, PyTorch's libuv store server and Redis, interleaved, by one load generator.

Operations per second, and microseconds of the server's processor time per operation; wake-up of 1 and of 1,000 waiters.
One at a time and in wake-ups a bare server, which does only the work that every server must do, shows the floor.
"""
import contextlib
import json
import os
import statistics
import subprocess
import sys

import common
import fair
import servers

CONFIGS = [(1, 1), (8, 1), (1, 64), (8, 64)]  # clients, requests in flight
WAKES = [(1, 300), (1000, 7)]  # waiters, repeats per round
MAIN = ('get', 'set', 'add')
SERVERS = ('cddprun', 'PyTorch', 'Redis', 'bare')


def load(args, *words):
    done = subprocess.run([os.path.join(args.build, 'bench', 'store'), *map(str, words)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False, timeout=60, preexec_fn=servers.for_child(1))
    if done.returncode != 0:
        sys.exit(f'store {" ".join(map(str, words))}: exit status {done.returncode}\n{done.stderr}')
    return done.stdout


def measure(args, operations, running):
    """{(operation, clients, depth): {server: [one dict per round]}}, and the same for wake-ups, by number of waiters."""
    rates, wakes = {}, {}
    for turn in range(args.rounds):
        for name, redis_too in operations:
            for clients, depth in CONFIGS:
                for one in fair.turns(running, turn):
                    if one.protocol == 'resp' and not redis_too:
                        continue
                    if one.name == 'bare' and (depth > 1 or name not in MAIN):
                        continue
                    line = load(args, one.protocol, one.port, one.pid, name, clients, depth, args.seconds)
                    rates.setdefault((name, clients, depth), {}).setdefault(one.name, []).append(json.loads(line))
        for waiters, repeats in WAKES:
            for one in fair.turns(running, turn):
                if one.protocol == 'c10d':
                    line = load(args, 'wake', one.port, one.pid, waiters, repeats)
                    wakes.setdefault(waiters, {}).setdefault(one.name, []).append(json.loads(line))
        print(f'  round {turn + 1} of {args.rounds}', flush=True)
    return rates, wakes


def median(rows, field):
    return statistics.median(row[field] for row in rows)


def ratios(by_server, ours_over, field, ours='cddprun'):
    """Round by round, ours / theirs (what disturbs the machine disturbs both)."""
    theirs = by_server.get(ours_over)
    return [a[field] / b[field] for a, b in zip(by_server[ours], theirs)] if theirs else []


def spread(values, wanted=''):
    if not values:
        return '-'
    low, middle, high = fair.quartiles(values)
    return f'{middle:.2f} ({low:.2f} to {high:.2f}){wanted}'


def show_rates(rates):
    for clients, depth in CONFIGS:
        print(f'\n{clients} client{"s" if clients > 1 else ""}, {depth} in flight: operations/s, and µs of the server\'s '
              f'processor per operation\n{"":28}' + ''.join(f'{name:>22}' for name in SERVERS))
        for (name, c, d), by_server in rates.items():
            if (c, d) == (clients, depth):
                cells = [f'{median(by_server[s], "per_s"):12,.0f}{median(by_server[s], "cpu_us"):10.3f}' if s in by_server
                         else '-' for s in SERVERS]
                print(f'{name:28}' + ''.join(f'{cell:>22}' for cell in cells))


def show_ratios(rates, wakes):
    print('\nratios, ours / theirs, median (quartiles) over the rounds')
    for name in MAIN:
        for clients in (1, 8):
            by_server = rates[name, clients, 64]
            print(f'  {name}, 64 in flight, {clients} clients: processor time / Redis\'s '
                  f'{spread(ratios(by_server, "Redis", "cpu_us"), " (at most 1)")}; '
                  f'/ PyTorch\'s {spread(ratios(by_server, "PyTorch", "cpu_us"))}')
    for name in MAIN:
        for clients in (1, 8):
            by_server = rates[name, clients, 1]
            print(f'  {name}, one at a time, {clients} clients: rate / PyTorch\'s '
                  f'{spread(ratios(by_server, "PyTorch", "per_s"), " (at least 1)")}; '
                  f'/ Redis\'s {spread(ratios(by_server, "Redis", "per_s"), " (at least 1)")}; '
                  f'/ the bare server\'s {spread(ratios(by_server, "bare", "per_s"))}')
    for waiters, by_server in wakes.items():
        print(f'  wake-up of {waiters:,}: ' + ', '.join(f'{name} {median(rows, "us"):,.0f} µs' for name, rows in by_server.items())
              + f': ours / PyTorch\'s {spread(ratios(by_server, "PyTorch", "us"), " (at most 0.5)")}; the bare server\'s / '
              f'PyTorch\'s {spread(ratios(by_server, "PyTorch", "us", "bare"))}')


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--seconds', type=float, default=0.2, help='per measurement')
    words.add_argument('--operations', help='only these, separated by commas')
    args = words.parse_args()
    common.need_torch(args)
    servers.raise_files(20000)
    operations = [(line.split('\t')[0], '\t' in line) for line in load(args, 'operations').splitlines()]
    if args.operations:
        operations = [one for one in operations if one[0] in args.operations.split(',') + list(MAIN)]
    result = {'machine': common.machine(args)}
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(one) for one in
                   (servers.ours(args), servers.torch(args), servers.redis(), servers.bare(args)) if one]
        if len(running) < len(SERVERS):
            print('note: no redis-server here (scripts/setup --bench installs it); compared with PyTorch alone')
        rates, wakes = measure(args, operations, running)
    show_rates(rates)
    show_ratios(rates, wakes)
    result['rates'] = [{'operation': name, 'clients': clients, 'in_flight': depth, **by_server}
                       for (name, clients, depth), by_server in rates.items()]
    result['wakes'] = [{'waiters': waiters, **by_server} for waiters, by_server in wakes.items()]
    common.write(args, 'store', result)


if __name__ == '__main__':
    main()
