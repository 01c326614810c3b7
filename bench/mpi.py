#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of libcddp's MPI backend beside the MPI_Allreduce of the same MPI, interleaved, on this machine."""
import os
import statistics

import allreduce
import common


def backend_over(args, peer, folder):
    """libcddp's bench over this MPI; its lines are called by the MPI's name, "direct" (a bucket) and "private"."""
    program = os.path.join(args.build, 'bench', 'allreduce')
    module = os.path.join(args.build, 'worker', 'backend', 'mpi', folder)
    why = peer.why or ('' if os.path.exists(os.path.join(module, 'cddp_mpi.so')) else f'the build has no module for {peer.name}')
    env = ['env', 'CDDP_BACKEND=mpi', f'CDDP_MODULE_DIR={module}', 'MASTER_ADDR=127.0.0.1', f'MASTER_PORT={allreduce.PORT}']

    def run(ranks, words):
        command = peer.run(ranks, words)  # launcher, its flags, "-n", ranks, program, words
        return [*command[:command.index('-n') + 2], *env, program, *words]
    return allreduce.Peer('libcddp', why=why, run=run)


def main():
    parser = common.parser(__doc__)
    parser.add_argument('--ranks', type=int, nargs='+', default=[2, 4])
    parser.add_argument('--sizes', type=int, nargs='+', help='bytes', default=[4, 64 << 10, 25 << 20])
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--seconds', type=float, help='of each measurement', default=0.1)
    args = parser.parse_args()
    args.build, args.hosts = os.path.abspath(args.build), False
    result = {'machine': common.machine(args), 'sizes': args.sizes, 'seconds': args.seconds, 'times': []}
    words = [str(args.seconds), *map(str, args.sizes)]
    for find, folder in ((allreduce.open_mpi, 'openmpi'), (allreduce.mpich, 'mpich')):
        plain = find(args)
        ours = backend_over(args, plain, folder)
        if ours.why:
            print(f'{plain.name} was skipped: {ours.why}')
            continue
        for ranks in args.ranks:
            seen = []
            for _ in range(args.rounds):
                seen.append({**allreduce.launch(plain, ranks, words), **allreduce.launch(ours, ranks, words)})
                if plain.why or ours.why:
                    raise SystemExit(plain.why or ours.why)
            result['times'] += show(plain, ranks, args.sizes, seen)
    common.write(args, 'mpi', result)


def show(plain, ranks, sizes, seen):
    lines = []
    print(f'\n{plain.name} {plain.version}, {ranks} ranks: microseconds, median over rounds; ratio to its MPI_Allreduce (and spread)')
    for size in sizes:
        for variant in (allreduce.FAIR, allreduce.BACK):
            base = [one[plain.name, variant, size]['us'] for one in seen]
            text = f'{allreduce.size_text(size):8} {variant:13} MPI_Allreduce {statistics.median(base):10.1f}'
            for what in ('direct', 'private'):
                times = [one[what, variant, size]['us'] for one in seen]
                ratios = [ours / theirs for ours, theirs in zip(times, base)]
                lines.append({'mpi': plain.name, 'version': plain.version, 'ranks': ranks, 'bytes': size, 'variant': variant,
                              'what': what, 'us': statistics.median(times), 'mpi_us': statistics.median(base),
                              'ratio': statistics.median(ratios), 'ratio_min': min(ratios), 'ratio_max': max(ratios)})
                text += (f'   {what} {statistics.median(times):10.1f} '
                         f'{statistics.median(ratios):5.2f} ({min(ratios):.2f}-{max(ratios):.2f})')
            print(text, flush=True)
    return lines


if __name__ == '__main__':
    main()
