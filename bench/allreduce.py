#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce within a machine, or between two: libcddp beside current MPIs and PyTorch's gloo, interleaved.

README.md says how. --hosts runs it over TCP, between two network namespaces (root and iproute2 are needed).
"""
import os
import shlex
import statistics
import subprocess
import sys

import common
import fair
import peers

sys.path.insert(0, os.path.join(common.ROOT, 'tests', 'netns'))
import hosts

SIZES = [4, 4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20]
FAIR, BACK, TOUCH = 'fair', 'back to back', 'touch'
OURS = ('direct', 'private', 'shared', 'bound')
ADDRESSES = [hosts.address(1), hosts.address(2)]
PORT = 29611


class Peer:
    """A library to compare with: `why` says why it is skipped, else runs(ranks, sizes) gives [(command, environment, program, label, sizes)]."""

    def __init__(self, name, version='', why='', runs=None):
        self.name, self.version, self.why, self.runs = name, version, why, runs
        self.labels = {}


def words_of(args, sizes):
    return [str(args.seconds), *map(str, sizes)]


def mpi(args, one):
    """The peer program compiled by this MPI's own mpicc, started by its own launcher, each size as its sweep found it fastest."""
    name = peers.title(one) if not one.why else one.name
    if one.why:
        return Peer(name, why=one.why)
    program, n_hosts = one.compile(args.build, 'mpi_allreduce'), 2 if args.hosts else 1

    def runs(ranks, sizes):
        for setting, some in one.plan(ranks, sizes, n_hosts):
            yield *one.command(ranks, [program, *words_of(args, some)], setting, n_hosts), program, setting['label'], some
    return Peer(name, name, runs=runs)


def under_cddprun(args, ranks, command):
    """One cddprun, or one on each of the two hosts; rank 0's is waited for last."""
    if not args.hosts:
        return [common.cddprun(args.build), '--standalone', f'--nproc_per_node={ranks}', *command]
    on = [shlex.join([hosts.SCRIPT, 'exec', str(node + 1), common.cddprun(args.build), '--nnodes=2', f'--node_rank={node}',
                      f'--master_addr={ADDRESSES[0]}', f'--master_port={PORT}', f'--nproc_per_node={ranks // 2}', *command])
          for node in (0, 1)]
    return ['sh', '-c', f'{on[1]} & {on[0]}; status=$?; wait; exit $status']


def gloo(args):
    version = common.torch_version(args.torch_python)
    if not version:
        return Peer('gloo', why=f'{args.torch_python} has no PyTorch (bench/peers.py install torch)')
    script = os.path.join(common.HERE, 'peers', 'gloo_allreduce.py')
    env = {**peers.ENV, **({'GLOO_SOCKET_IFNAME': 'eth0'} if args.hosts else {})}
    return Peer('gloo', f'PyTorch {version}', runs=lambda ranks, sizes: [
        (under_cddprun(args, ranks, [args.torch_python, script, *words_of(args, sizes)]), env, script, '', sizes)])


def ours(args):
    program = os.path.join(args.build, 'bench', 'allreduce')
    return Peer('libcddp', runs=lambda ranks, sizes: [(under_cddprun(args, ranks, [program, *words_of(args, sizes)]), peers.ENV, program, '', sizes)])


def sent():
    """Bytes that the first host has sent."""
    text = subprocess.run([hosts.SCRIPT, 'exec', '1', 'cat', '/proc/net/dev'], capture_output=True, text=True, check=True).stdout
    return next(int(line.split(':')[1].split()[8]) for line in text.splitlines() if line.strip().startswith('eth0:'))


def launch(args, peer, ranks, sizes):
    """{(what, variant, bytes): the line}; the peer is skipped from now on if it fails."""
    found = {}
    for command, env, program, label, some in peer.runs(ranks, sizes):
        before = sent() if args.hosts else 0
        try:
            done = common.watched(peer.name, command, program, ranks, env, timeout=peers.LIMIT_S, capture_output=True)
        except subprocess.TimeoutExpired:
            peer.why = f'{ranks} ranks took more than {peers.LIMIT_S} s'
            return {}
        if done.returncode != 0:
            peer.why = f'exit status {done.returncode} of {" ".join(command)}: {done.stderr.strip()[-400:]}'
            return {}
        lines = peers.lines_of(done.stdout)
        needed = sum(one['bytes'] * one['samples'] * one['operations'] for one in lines if one['what'] != 'bound' and one['variant'] != TOUCH)
        if args.hosts and sent() - before < 0.9 * needed:
            peer.why = 'its data did not cross the network between the hosts'
            return {}
        for size in some:
            peer.labels[size] = label
        found.update({(one.pop('what') if peer.name == 'libcddp' else peer.name, one['variant'], one['bytes']): one for one in lines})
    return found


def rounds(args, sides, ranks):
    seen = []
    for k in range(args.rounds):
        seen.append({'load': os.getloadavg()[0]})
        for peer in fair.turns(sides, k):
            if not peer.why:
                print(f'  {ranks} ranks, round {k + 1} of {args.rounds}: {peer.name}', flush=True)
                seen[-1].update(launch(args, peer, ranks, args.sizes))
                if peer.why and peer.name == 'libcddp':
                    sys.exit(peer.why)
                if peer.why:
                    fair.leave_out(peer.name)
        fair.check()
    return seen


def compare(args, sides, seen):
    """Per size and variant: each one's times, and how many times as fast as it "direct" is, round by round; for us what part of the bound we reach."""
    names, result = [*OURS, *(peer.name for peer in sides[1:])], []
    for size in args.sizes:
        for variant in (BACK, FAIR, TOUCH):
            times = {what: [one.get((what, variant, size), {}).get('us') for one in seen] for what in names}
            for what in names:
                if not any(times[what]):
                    continue
                reached = fair.speedup(times[what], times['bound']) if what in OURS else None
                result.append({'bytes': size, 'variant': variant, 'what': what, 'us': statistics.median(filter(None, times[what])),
                               'round_us': times[what], 'speedup_of_direct': fair.speedup(times['direct'], times[what]),
                               'of_bound': reached and reached['median'],
                               'setting': next((peer.labels.get(size) for peer in sides if peer.name == what), None)})
    return result


def size_text(size):
    return f'{size >> 20} MiB' if size >= 1 << 20 else f'{size >> 10} KiB' if size >= 1 << 10 else f'{size} B'


def cell(one, what):
    if not one:
        return '-'
    time = f'{one["us"]:.{2 if one["us"] < 100 else 0}f}'
    return time if what in OURS else f'{time}  {fair.speedup_text(one["speedup_of_direct"])}'


def show(ranks, names, result):
    for variant in (FAIR, BACK):
        print(f'\n{ranks} ranks, {variant}: microseconds, median over rounds; beside a peer the speedup of "direct", median (quartiles)')
        print(f'{"":8}{"touch alone":>14}{"of bound":>10}' + ''.join(f'{what:>{14 if what in OURS else 38}}' for what in names))
        for size in sorted({one['bytes'] for one in result}):
            cells = {one['what']: one for one in result if one['bytes'] == size and one['variant'] == variant}
            touch = next((one['us'] for one in result if one['bytes'] == size and one['variant'] == TOUCH), None)
            reached = cells['direct']['of_bound'] if size >= 1 << 20 else None  # below, it is not memory that is slow
            print(f'{size_text(size):8}{f"{touch:.1f}" if touch and variant == FAIR else "-":>14}{f"{reached:.0%}" if reached else "-":>10}' +
                  ''.join(f'{cell(cells.get(what), what):>{14 if what in OURS else 38}}' for what in names))
            print(f'{"":8}' + ', '.join(f'{what}: {one["setting"]}' for what, one in cells.items() if one['setting']))


def main():
    parser = common.parser(__doc__.splitlines()[0])
    parser.add_argument('--ranks', type=int, nargs='+', default=[2, 4])
    parser.add_argument('--sizes', type=int, nargs='+', help='bytes', default=SIZES)
    parser.add_argument('--seconds', type=float, help='of each measurement', default=0.05)
    parser.add_argument('--hosts', action='store_true', help='half of the ranks on each of two hosts, over TCP')
    parser.add_argument('--peers', help=f'MPIs to compare with, of {", ".join(peers.MPIS)}', default=peers.CURRENT)
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    if args.hosts:
        hosts.enter(2)
    result = {'machine': common.machine(args), 'hosts': 2 if args.hosts else 1, 'sizes': args.sizes, 'seconds': args.seconds, 'peers': {}}
    for ranks in args.ranks:
        sides = [ours(args), *(mpi(args, one) for one in peers.chosen(args.peers)), gloo(args)]
        for peer in sides[1:]:
            if not peer.why:
                fair.side(peer.name, peer.version)
        seen = rounds(args, sides, ranks)
        result[f'ranks_{ranks}'] = {'load': [one['load'] for one in seen], 'times': compare(args, sides, seen)}
        result['peers'].update({peer.name: peer.version or None for peer in sides[1:]})
        show(ranks, ['direct', 'private', *(peer.name for peer in sides[1:])], result[f'ranks_{ranks}']['times'])
        for peer in sides:
            if peer.why:
                print(f'{peer.name} was skipped: {peer.why}')
                result[f'ranks_{ranks}'][f'skipped {peer.name}'] = peer.why
    common.write(args, 'allreduce_two_hosts' if args.hosts else 'allreduce', result)


if __name__ == '__main__':
    main()
