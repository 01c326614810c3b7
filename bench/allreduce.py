#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce within a machine, or between two: libcddp beside Open MPI, MPICH and PyTorch's gloo, interleaved.

README.md says how. --hosts runs it over TCP, between two network namespaces (root and iproute2 are needed).
"""
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys

import common

sys.path.insert(0, os.path.join(common.ROOT, 'tests', 'netns'))
import hosts

SIZES = [4, 4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20]
FAIR, BACK = 'fair', 'back to back'
SHOWN = ['direct', 'private', 'Open MPI', 'MPICH', 'gloo']
REMOTE_SHELL = os.path.join(common.HERE, 'peers', 'remote_shell')
ADDRESSES = [hosts.address(1), hosts.address(2)]
PORT = 29611


def output(command, **kwargs):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **kwargs)
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ''


class Peer:
    """A library to compare with: `why` says why it is skipped, else run(ranks, words) is its command."""

    def __init__(self, name, version='', why='', run=None):
        self.name, self.version, self.why, self.run = name, version, why, run


def mpi(args, name, flavour, launcher, flags, version):
    """The peer program compiled by this MPI's own mpicc, and this MPI's own launcher."""
    mpicc, start = shutil.which(f'mpicc.{flavour}'), shutil.which(f'{launcher}.{flavour}')
    if not mpicc or not start:
        return Peer(name, why=f'no mpicc.{flavour} and {launcher}.{flavour} (scripts/setup --bench installs them)')
    program = os.path.join(args.build, 'bench', f'allreduce_{flavour}')
    done = subprocess.run([mpicc, '-O3', '-o', program, os.path.join(common.HERE, 'peers', 'mpi_allreduce.c')],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return Peer(name, why=f'mpicc.{flavour} failed: {done.stderr.strip()[-300:]}')
    on_first = [hosts.SCRIPT, 'exec', '1'] if args.hosts else []
    return Peer(name, version(start),
                run=lambda ranks, words: [*on_first, start, *flags(ranks), '-n', str(ranks), program, *words])


def open_mpi(args):
    cores = len(os.sched_getaffinity(0))

    def flags(ranks):
        if args.hosts:  # each host believes that all cores are its own
            return ['--oversubscribe', '--host', ','.join(f'{one}:{ranks // 2}' for one in ADDRESSES), '--mca',
                    'plm_rsh_agent', REMOTE_SHELL, '--mca', 'btl_tcp_if_include', 'eth0', '--mca', 'oob_tcp_if_include', 'eth0']
        return ['--oversubscribe'] if ranks > cores else []  # it then yields, rather than spin
    return mpi(args, 'Open MPI', 'openmpi', 'mpirun', flags, lambda start: output([start, '--version']).splitlines()[0])


def mpich(args):
    def version(start):
        return next((line.split()[-1] for line in output([start, '--version']).splitlines() if 'Version:' in line), '')

    def flags(ranks):
        if args.hosts:
            return ['-launcher', 'rsh', '-launcher-exec', REMOTE_SHELL, '-iface', 'eth0', '-hosts', ','.join(ADDRESSES),
                    '-ppn', str(ranks // 2),
                    # The hosts share a kernel, and it was seen to use that: with one rank on each it may not.
                    *(['-genv', 'MPIR_CVAR_NOLOCAL', '1'] if ranks == 2 else [])]
        return []
    return mpi(args, 'MPICH', 'mpich', 'mpiexec', flags, version)


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
        return Peer('gloo', why=f'{args.torch_python} has no PyTorch (name one that has with --torch-python)')
    script = os.path.join(common.HERE, 'peers', 'gloo_allreduce.py')
    return Peer('gloo', f'PyTorch {version}',
                run=lambda ranks, words: under_cddprun(args, ranks, [args.torch_python, script, *words]))


def ours(args):
    program = os.path.join(args.build, 'bench', 'allreduce')
    return Peer('libcddp', run=lambda ranks, words: under_cddprun(args, ranks, [program, *words]))


# Both MPIs: running as root in a container is intended here. gloo: one thread per rank, as torchrun has it.
ENV = {**os.environ, 'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'OMP_NUM_THREADS': '1'}


def launch(peer, ranks, words):
    """{(what, variant, bytes): the line}; the peer is skipped from now on if it fails."""
    command = peer.run(ranks, words)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False,
                              env=ENV)
    except subprocess.TimeoutExpired:
        peer.why = f'{ranks} ranks took more than 240 s'
        return {}
    if done.returncode != 0:
        peer.why = f'exit status {done.returncode} of {" ".join(command)}: {done.stderr.strip()[-400:]}'
        return {}
    lines = [json.loads(line[line.index('{'):]) for line in done.stdout.splitlines() if '{"what"' in line]
    return {(peer.name if peer.name != 'libcddp' else one.pop('what'), one['variant'], one['bytes']): one for one in lines}


def rounds(args, peers, ranks):
    words = [str(args.seconds), *map(str, args.sizes)]
    seen = []
    for k in range(args.rounds):
        seen.append({'load': os.getloadavg()[0]})
        for peer in peers:
            if not peer.why:
                print(f'  {ranks} ranks, round {k + 1} of {args.rounds}: {peer.name}', flush=True)
                seen[-1].update(launch(peer, ranks, words))
                if peer.why and peer.name == 'libcddp':
                    sys.exit(peer.why)
    return seen


def compare(args, seen):
    """Per size and variant: each one's median over rounds, and the median of its per-round ratios to Open MPI.

    For "direct" also what part of the memory bound it reaches, round by round.
    """
    result = []
    for size in args.sizes:
        for variant in (BACK, FAIR, 'touch'):
            for what in (*SHOWN, 'bound'):
                key, base = (what, variant, size), ('Open MPI', variant, size)
                times = [one[key] for one in seen if key in one]
                if not times:
                    continue
                ratios = [one[key]['us'] / one[base]['us'] for one in seen if key in one and base in one]
                bound = ('bound', variant, size)
                touch = ('direct', 'touch', size)
                floor = [one[touch]['us'] / one[base]['us'] for one in seen if touch in one and base in one]
                reached = [one[bound]['us'] / one[key]['us'] for one in seen if key in one and bound in one]
                result.append({'bytes': size, 'variant': variant, 'what': what,
                               'us': statistics.median(one['us'] for one in times),
                               'us_min': min(one['us_min'] for one in times),
                               'us_max': max(one['us_max'] for one in times),
                               'round_us': [one['us'] for one in times],
                               'ratio': statistics.median(ratios) if ratios else None,
                               'ratio_min': min(ratios, default=None), 'ratio_max': max(ratios, default=None),
                               'of_bound': statistics.median(reached) if reached else None,
                               'touch_ratio': statistics.median(floor) if floor and variant == FAIR else None})
    return result


def size_text(size):
    return f'{size >> 20} MiB' if size >= 1 << 20 else f'{size >> 10} KiB' if size >= 1 << 10 else f'{size} B'


def cell(one):
    if not one:
        return '-'
    ratio = f' {one["ratio"]:.2f} ({one["ratio_min"]:.2f}-{one["ratio_max"]:.2f})' if one['ratio'] else ''
    return f'{one["us"]:.{2 if one["us"] < 100 else 0}f}{ratio}'


def show(ranks, result):
    for variant in (FAIR, BACK):
        print(f'\n{ranks} ranks, {variant}: microseconds, median over rounds; ratio to Open MPI: median of per-round ratios (and spread)')
        print(f'{"":8}' + ''.join(f'{what:>26}' for what in SHOWN) + f'{"direct reaches of bound":>26}' +
              (f'{"touch alone":>14}' if variant == FAIR else ''))
        for size in sorted({one['bytes'] for one in result}):
            cells = {one['what']: one for one in result if one['bytes'] == size and one['variant'] == variant}
            reached = cells['direct']['of_bound'] if size >= 1 << 20 else None  # below, it is not memory that is slow
            print(f'{size_text(size):8}' + ''.join(f'{cell(cells.get(what)):>26}' for what in SHOWN) +
                  f'{f"{reached:.0%}" if reached else "-":>26}' +
                  (f'{cells["direct"]["touch_ratio"]:>14.2f}' if cells['direct'].get('touch_ratio') else ''))


def main():
    parser = common.parser(__doc__.splitlines()[0])
    parser.add_argument('--ranks', type=int, nargs='+', default=[2, 4])
    parser.add_argument('--sizes', type=int, nargs='+', help='bytes', default=SIZES)
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--seconds', type=float, help='of each measurement', default=0.05)
    parser.add_argument('--hosts', action='store_true', help='half of the ranks on each of two hosts, over TCP')
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    if args.hosts:
        hosts.enter(2)
        ENV['GLOO_SOCKET_IFNAME'] = 'eth0'
    result = {'machine': common.machine(args), 'hosts': 2 if args.hosts else 1, 'sizes': args.sizes, 'seconds': args.seconds, 'peers': {}}
    for ranks in args.ranks:
        peers = [ours(args), open_mpi(args), mpich(args), gloo(args)]
        seen = rounds(args, peers, ranks)
        result[f'ranks_{ranks}'] = {'load': [one['load'] for one in seen], 'times': compare(args, seen)}
        result['peers'].update({peer.name: peer.version or None for peer in peers[1:]})
        show(ranks, result[f'ranks_{ranks}']['times'])
        for peer in peers:
            if peer.why:
                print(f'{peer.name} was skipped: {peer.why}')
                result[f'ranks_{ranks}'][f'skipped {peer.name}'] = peer.why
    common.write(args, 'allreduce_two_hosts' if args.hosts else 'allreduce', result)


if __name__ == '__main__':
    main()
