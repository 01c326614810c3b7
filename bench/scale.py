#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives over 2 to 32 hosts, one rank each: libcddp's CPU backend beside MPIs over TCP, with and without a delay.

Hosts are network namespaces (root and iproute2 are needed). README.md says how to read the figures. --check times
nothing and checks every element of every result, as a test (TAP).
"""
import contextlib
import os
import statistics
import subprocess
import sys
import time

import common
import fair
import peers

sys.path.insert(0, os.path.join(common.ROOT, 'tests', 'netns'))
import hosts
import launch

CASES = ['barrier', 'all_reduce:4', f'all_reduce:{4 << 10}', f'all_reduce:{64 << 10}', f'all_reduce:{1 << 20}', f'all_reduce:{25 << 20}',
         f'all_to_all:{64 << 10}']
CHECKED = ['barrier', *(f'all_reduce:{n}' for n in (4, 12, 252, 4096, 4100, 16 << 10, 64 << 10, 300004, 1 << 20, 3 << 20)),
           *(f'all_to_all:{n}' for n in (4, 1000, 64 << 10, 400000))]
DELAY_MS = 4.8
RUN_S = 400
ENV = {**peers.ENV, 'CDDP_BACKEND': 'cpu'}


def busy_share(seconds=0.3):
    """The part of all cores that is busy now. Between two runs that is the work of others."""
    def read():
        with open('/proc/stat', encoding='ascii') as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]
    total, idle = read()
    time.sleep(seconds)
    total_then, idle_then = read()
    return 1 - (idle_then - idle) / max(1, total_then - total)


@contextlib.contextmanager
def delayed(build, n, ms):
    """Within the block, frames between the first n hosts are ms milliseconds late."""
    net, links = f'{os.environ["NETNS_HOSTS"]}-net', [f'port{i + 1}' for i in range(n)]
    if not ms:
        yield
        return
    for link in links:
        subprocess.run(['ip', '-n', net, 'link', 'set', link, 'nomaster'], check=True)
    # It is the network, and not among what is measured: it goes first.
    switch = subprocess.Popen(['ip', 'netns', 'exec', net, 'nice', '-n', '-10', os.path.join(build, 'bench', 'late_switch'), str(ms), *links],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if switch.stdout.readline() != 'ready\n':
            sys.exit('late_switch did not start')
        yield
    finally:
        switch.stdin.close()
        switch.wait(30)
        switch.stdout.close()
        for link in links:
            subprocess.run(['ip', '-n', net, 'link', 'set', link, 'master', 'br0'], check=True)


def finish(processes, names):
    """The output of the first process; all must exit with status 0. Nothing is left running."""
    end = time.monotonic() + RUN_S
    try:
        out, err = processes[0].communicate(timeout=RUN_S)
        status = [process.wait(max(1, end - time.monotonic())) for process in processes]
        if any(status):
            sys.exit(f'{names}: exit status {status}\n{err[-2000:]}')
        return out
    except subprocess.TimeoutExpired:
        sys.exit(f'{names}: took more than {RUN_S} s')
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Ours:
    """libcddp of a build folder, under one cddprun on each host."""

    def __init__(self, name, build):
        self.name, self.build = name, os.path.abspath(build)

    def run(self, n, cases, seconds, ranks_per_host=1):
        port = launch.free_port()
        program = os.path.join(self.build, 'bench', 'scale')
        commands = [[hosts.SCRIPT, 'exec', str(i + 1), common.cddprun(self.build), f'--nnodes={n}', f'--node_rank={i}',
                     f'--master_addr={hosts.address(1)}', f'--master_port={port}', f'--nproc_per_node={ranks_per_host}', program, seconds, *cases]
                    for i in range(n)]
        with fair.side(self.name).watch(commands[0], program, n * ranks_per_host, ENV) as env:
            processes = [subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, text=True,
                                          stdout=subprocess.DEVNULL if i else subprocess.PIPE, stderr=subprocess.DEVNULL if i else subprocess.PIPE)
                         for i, command in enumerate(commands)]
            return finish(processes, f'{self.name}, {n} hosts')


class Mpi:
    """An MPI over TCP, between the same hosts; all-reduces as its sweep found them fastest, where there is one for so many hosts."""

    def __init__(self, build, one):
        self.one, self.name = one, peers.title(one)
        self.program = one.compile(build, 'mpi_scale')
        fair.side(self.name, self.name)

    def run(self, n, cases, seconds):
        sizes = [int(case.partition(':')[2]) for case in cases if case.startswith('all_reduce')]
        plan = [(setting, [f'all_reduce:{size}' for size in some]) for setting, some in self.one.plan(n, sizes, n)]
        plan.append(({}, [case for case in cases if not case.startswith('all_reduce')]))
        out = ''
        for setting, some in plan:
            if some:
                command, env = self.one.command(n, [self.program, seconds, *some], setting, n)
                with fair.side(self.name).watch(command, self.program, n, env) as env:
                    out += finish([subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)],
                                  f'{self.name}, {n} hosts')
        return out


def rounds(args, libraries):
    """The lines of each block of runs (one number of hosts, one delay), with round, hosts, delay, library and the work of others beside each."""
    for k in range(args.rounds):
        for ms in args.delays:
            for n in args.hosts:
                cases = [case for case in args.cases if not too_large(args, case, n, ms)]
                lines = []
                with delayed(args.build, n, ms):
                    for peer in fair.turns(libraries, k):
                        others, load = busy_share(), os.getloadavg()[0]
                        seen = peers.lines_of(peer.run(n, cases, str(args.seconds)))
                        others = (others + busy_share()) / 2
                        beside = {'round': k, 'hosts': n, 'delay_ms': ms, 'library': peer.name, 'others': round(others, 3), 'load': load}
                        lines += [{**beside, **one} for one in seen]
                        print(f'  round {k + 1} of {args.rounds}, {n} hosts, delay {ms:g} ms: {peer.name} '
                              f'(before and after, others kept {others:.0%} of the cores busy)', flush=True)
                fair.check()
                yield lines


def too_large(args, case, n, ms):
    """On a small machine the largest cases of many hosts take minutes, and show its memory only."""
    kind, _, size = case.partition(':')
    return kind == 'all_reduce' and n * int(size) > args.most_mib << 20 or kind == 'all_to_all' and ms and n * n * int(size) > args.most_mib << 20


def key(line):
    return line['delay_ms'], line['hosts'], line['what'], line.get('bytes', 0)


def table(lines, names):
    """[{case, and for each library its times, and the speedup of the first one beside it, round by round}]"""
    rows = []
    for at in sorted({key(line) for line in lines if 'us' in line}, key=lambda at: (at[0], ['barrier', 'all_reduce', 'all_to_all'].index(at[2]), at[3], at[1])):
        times = {name: {line['round']: line['us'] for line in lines if 'us' in line and key(line) == at and line['library'] == name} for name in names}
        row = {'delay_ms': at[0], 'hosts': at[1], 'what': at[2], 'bytes': at[3], 'libraries': {}}
        for name in names:
            pairs = [(times[names[0]].get(k), us) for k, us in times[name].items()]
            of = list(times[name].values())
            row['libraries'][name] = {'us': statistics.median(of), 'us_quartiles': fair.quartiles(of)[::2],
                                      'speedup': fair.speedup([a for a, _ in pairs], [b for _, b in pairs])}
        rows.append(row)
    return rows


def time_text(us):
    return f'{us / 1e6:.2f} s' if us >= 1e6 else f'{us / 1e3:.1f} ms' if us >= 1e4 else f'{us / 1e3:.2f} ms' if us >= 1e3 else f'{us:.0f} us'


def size_text(n):
    return f'{n >> 20} MiB' if n >= 1 << 20 else f'{n >> 10} KiB' if n >= 1 << 10 else f'{n} B'


def cells(row, name, base):
    one = row['libraries'][name]
    low, high = map(time_text, one['us_quartiles'])
    return [f'{time_text(one["us"])} ({low} to {high})'] + ([fair.speedup_text(one['speedup'])] if name != base else [])


def case_text(row):
    return row['what'] if not row['bytes'] else f'{row["what"]}, {size_text(row["bytes"])}'


def markdown(rows, names):
    head = ['operation', 'hosts'] + [word for name in names for word in ([name] if name == names[0] else [name, 'speedup'])]
    for ms in sorted({row['delay_ms'] for row in rows}):
        yield f'\n{f"{ms:g} ms one way" if ms else "no delay"}: median over rounds (quartiles); the speedup of {names[0]}\n'
        yield '| ' + ' | '.join(head) + ' |'
        yield '|' + '---|' * len(head)
        for row in rows:
            if row['delay_ms'] == ms:
                yield '| ' + ' | '.join([case_text(row), str(row['hosts'])] + [cell for name in names for cell in cells(row, name, names[0])]) + ' |'


def check(args):
    """TAP: the results of each case on so many hosts, to the bit, with and without a delay, and with two ranks a host."""
    ours, plan = Ours('libcddp', args.build), [(n, 0, 1) for n in args.hosts]
    plan += [(args.hosts[0], 0, 2), (args.hosts[0], 1, 1)]
    print(f'1..{len(plan)}')
    for i, (n, ms, ranks) in enumerate(plan):
        with delayed(args.build, n, ms):
            seen = peers.lines_of(ours.run(n, CHECKED, '0', ranks))
        done = [one for one in seen if 'checked' in one]
        good = len(done) == len(CHECKED) and all(one['checked'] > 0 for one in done)
        print(f'{"ok" if good else "not ok"} {i + 1} - {n} hosts, {ranks} rank(s) each, delay {ms} ms: {len(done)} of {len(CHECKED)} cases', flush=True)


def main():
    parser = common.parser(__doc__.splitlines()[0])
    parser.add_argument('--hosts', type=int, nargs='+')
    parser.add_argument('--delays', type=float, nargs='+', help='ms one way; 0: none', default=[0, DELAY_MS])
    parser.add_argument('--cases', nargs='+', default=CASES)
    parser.add_argument('--seconds', type=float, help='of each case', default=0.3)
    parser.add_argument('--most_mib', type=int, help='skip cases whose data on all hosts is larger', default=400)
    parser.add_argument('--beside', action='append', default=[], metavar='NAME=BUILD', help='libcddp of another build folder, measured by turns')
    parser.add_argument('--name', help='of the libcddp in --build', default='libcddp')
    parser.add_argument('--alone', action='store_true', help='without MPIs')
    parser.add_argument('--peers', help=f'MPIs to compare with, of {", ".join(peers.MPIS)}', default=peers.CURRENT)
    parser.add_argument('--check', action='store_true', help='check every result and time nothing')
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    args.hosts = args.hosts or ([4, 5] if args.check else [2, 4, 8, 16, 32])
    hosts.enter(max(args.hosts))
    if args.check:
        check(args)
        return
    libraries = [Ours(args.name, args.build), *(Ours(*one.split('=', 1)) for one in args.beside)]
    for one in [] if args.alone else peers.chosen(args.peers):
        if one.why:
            print(f'{one.name} is skipped: {one.why}')
        else:
            libraries.append(Mpi(args.build, one))
    result = {'machine': common.machine(args), 'seconds': args.seconds, 'libraries': [one.name for one in libraries]}
    result['lines'] = []
    for lines in rounds(args, libraries):  # written after each block: a run of all takes long, and may be ended
        result['lines'] += lines
        result['table'] = table(result['lines'], result['libraries'])
        common.write(args, 'scale', result)
    print('\n'.join(markdown(result['table'], result['libraries'])))


if __name__ == '__main__':
    main()
