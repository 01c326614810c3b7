#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Thousands of ranks meet: our store server beside PyTorch's libuv server, over real connections, interleaved.

Each rank connects, adds itself, waits for the last and gets a 128-byte id. PyTorch's server looks up the name of every
client that it accepts: rows have that switched off, or a resolver that needs 0.5 ms (one in the same building), or 10 ms.
Beside them, where no names are looked up, a bare server, which does only the work that every server must do: the floor.
"""
import json
import os
import socket
import statistics
import subprocess
import sys
import time

import common
import fair
import servers

SIZES = [1000, 4000, 10000]
LARGEST = 100000
IDLE = 10000
VALIDATE = b'\x00\xce\xf7\x85\x3c'
RESOLVERS_US = {500: SIZES, 10000: SIZES[:1]}


def join(args, server, ranks, timeout=300):
    """Seconds; per rank: µs of the server's processor time and of the load's, KiB of the server's memory."""
    before = server.memory_kib()
    with subprocess.Popen([os.path.join(args.build, 'bench', 'join'), str(server.port), server.pid,
                           str(ranks)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, preexec_fn=servers.for_child(1)) as load:
        try:
            line = load.stdout.readline()
            memory = server.memory_kib() - before
        finally:
            load.stdin.close()
        try:
            status = load.wait(timeout)
        except subprocess.TimeoutExpired:
            load.kill()
            raise
    if status != 0 or not line:
        sys.exit(f'{ranks} ranks on {server.name}: exit status {status}')
    return {**json.loads(line), 'kib_per_connection': memory / ranks}


def once(args, start, ranks):
    """A new server each time: its memory is that of these connections."""
    with start() as server:
        return join(args, server, ranks)


def compare(args, ranks, names_us, rounds):
    start = {'cddprun': lambda: servers.ours(args), 'PyTorch': lambda: servers.torch(args, names_us)}
    if names_us == 0:
        start['bare'] = lambda: servers.bare(args)
    rows = {name: [] for name in start}
    for k in range(rounds):
        for name in fair.turns(start, k):
            rows[name].append(once(args, start[name], ranks))
    fair.check()
    return rows


def ratio(rows, ours, theirs, field):
    values = [a[field] / b[field] for a, b in zip(rows[ours], rows[theirs])]
    low, middle, high = fair.quartiles(values)
    return f'{middle:.2f} ({low:.2f} to {high:.2f})'


def show(name, rows):
    """A line for each server, with its time over PyTorch's."""
    for one, runs in rows.items():
        cells = ''.join(f'{statistics.median(row[field] for row in runs):{form}}' for field, form in
                        (('s', '9.3f'), ('cpu_us', '10.1f'), ('load_us', '10.1f'), ('kib_per_connection', '10.2f')))
        against = '' if one == 'PyTorch' else (f'{ratio(rows, one, "PyTorch", "s"):>24}'
                                               f'{ratio(rows, one, "PyTorch", "cpu_us"):>24}')
        print(f'{name:38}{one:8}{cells}{against}', flush=True)


def largest(args, files):
    """Ours alone, at the most ranks that this machine has descriptors for, up to 100,000."""
    ranks = min(LARGEST, files - 1000)
    rows = [once(args, lambda: servers.ours(args), ranks) for _ in range(3)]
    times = [row['s'] for row in rows]
    print(f'{ranks:,} ranks, ours alone: {statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f}; 100,000 must '
          f'take less than 10), {statistics.median(row["kib_per_connection"] for row in rows):.2f} KiB per connection')
    return {'ranks': ranks, 'cddprun': rows}


def ping(sock):
    """Seconds until the answer is there."""
    began = time.monotonic()
    sock.sendall(b'\x0dABCD')
    if sock.recv(4, socket.MSG_WAITALL) != b'ABCD':
        sys.exit('a PING had a wrong answer, or none')
    return time.monotonic() - began


def gone(sock):
    try:
        return not sock.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def idle(args, n, greeting, what):
    """n connections that greet, or say nothing, and then do nothing; what they cost memory, and another client."""
    with servers.ours(args) as server, socket.create_connection(('127.0.0.1', server.port), 10) as other:
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        other.sendall(VALIDATE)
        before = server.memory_kib()
        crowd = [socket.create_connection(('127.0.0.1', server.port), 10) for _ in range(n)]
        for sock in crowd:
            sock.sendall(greeting)
        for sock in crowd if greeting else []:
            ping(sock)
        memory = (server.memory_kib() - before) / n
        answer_us = statistics.median(ping(other) for _ in range(1000)) * 1e6
        for sock in crowd:
            sock.setblocking(False)
        if not greeting:
            end = time.monotonic() + 20
            while not all(gone(sock) for sock in crowd):
                if time.monotonic() > end:
                    sys.exit('those who say nothing are not closed')
                time.sleep(0.1)
        ping(other)
        for sock in crowd:
            sock.close()
    print(f'{n:,} {what}: {memory:.2f} KiB per connection; one more client is answered in {answer_us:.0f} µs', flush=True)
    return {'connections': n, 'kib_per_connection': memory, 'ping_us': answer_us}


def crowd(args, files, result):
    n = min(IDLE, files - 1000)
    result['idle'] = {'clients': idle(args, n, VALIDATE, 'idle clients of the store'),
                      'strangers': idle(args, n, b'', 'strangers that say nothing (and are closed after 5 s)')}
    result['largest'] = largest(args, files)


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--crowd', action='store_true', help='only ours, without PyTorch: 10,000 idle connections, and the '
                       'largest join that the limit on open files allows')
    args = words.parse_args()
    args.build = os.path.abspath(args.build)
    files = servers.raise_files(LARGEST + 1000)
    if args.crowd:
        args.rounds = None
        crowd(args, files, result := {'machine': common.machine(args)})
        common.write(args, 'join', result)
        return
    common.need_torch(args)
    result = {'machine': common.machine(args), 'joins': []}
    print(f'\nbare: the floor, a server that does only what none can do without; at most 0.5 of PyTorch\'s time is wanted\n'
          f'{"ranks":38}{"":8}{"s":>9}{"server":>10}{"load":>10}{"KiB per":>10}{"time / PyTorch":>24}{"server / PyTorch":>24}\n'
          f'{"":46}{"":9}{"µs/rank":>10}{"µs/rank":>10}{"rank":>10}')
    cases = [(ranks, 0, f'{ranks:,}, no look-up of names') for ranks in SIZES]
    cases += [(ranks, us, f'{ranks:,}, a resolver that needs {us / 1e3:g} ms') for us, sizes in RESOLVERS_US.items()
              for ranks in sizes]
    for ranks, names_us, name in cases:
        rows = compare(args, ranks, names_us, args.rounds if names_us == 0 else min(args.rounds, 2))
        show(name, rows)
        result['joins'].append({'ranks': ranks, 'names_us': names_us, **rows})
    crowd(args, files, result)
    common.write(args, 'join', result)


if __name__ == '__main__':
    main()
