#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce of libcddp's MPI backend beside the MPI_Allreduce of the same MPI, interleaved, on this machine."""
import os
import statistics

import allreduce
import common
import fair
import peers


def backend_over(args, one):
    """libcddp's bench over this MPI, started alike; its ways are "direct" (a bucket) and "private"."""
    program = os.path.join(args.build, 'bench', 'allreduce')
    module = os.path.join(args.build, 'worker', 'backend', 'mpi', one.name)
    why = one.why or ('' if os.path.exists(os.path.join(module, 'cddp_mpi.so')) else f'the build has no module for {one.name}')

    def runs(ranks, sizes):
        for setting, some in one.plan(ranks, sizes):
            command, env = one.command(ranks, [program, *allreduce.words_of(args, some)], setting)
            env.update({'CDDP_BACKEND': 'mpi', 'CDDP_MODULE_DIR': module, 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(common.free_port())})
            yield command, env, program, setting['label'], some
    return allreduce.Peer('libcddp', why=why, runs=runs)


def main():
    parser = common.parser(__doc__)
    parser.add_argument('--ranks', type=int, nargs='+', default=[2, 4])
    parser.add_argument('--sizes', type=int, nargs='+', help='bytes', default=[4, 64 << 10, 25 << 20])
    parser.add_argument('--seconds', type=float, help='of each measurement', default=0.1)
    parser.add_argument('--peers', help='those that the build has a module for', default='openmpi,mpich')
    args = parser.parse_args()
    args.build, args.hosts = os.path.abspath(args.build), False
    result = {'machine': common.machine(args), 'sizes': args.sizes, 'seconds': args.seconds, 'times': []}
    for one in peers.chosen(args.peers):
        plain, ours = allreduce.mpi(args, one), backend_over(args, one)
        if ours.why:
            print(f'{plain.name} was skipped: {ours.why}')
            continue
        fair.side(plain.name, plain.version)
        for ranks in args.ranks:
            seen = []
            for k in range(args.rounds):
                seen.append({})
                for side in fair.turns((plain, ours), k):
                    seen[-1].update(allreduce.launch(args, side, ranks, args.sizes))
                if plain.why or ours.why:
                    raise SystemExit(plain.why or ours.why)
                fair.check()
            result['times'] += show(plain, ranks, args.sizes, seen)
    common.write(args, 'mpi', result)


def show(plain, ranks, sizes, seen):
    lines = []
    print(f'\n{plain.name}, {ranks} ranks: microseconds, median over rounds; speedup beside its MPI_Allreduce, median (quartiles)')
    for size in sizes:
        for variant in (allreduce.FAIR, allreduce.BACK):
            base = [one[plain.name, variant, size]['us'] for one in seen]
            text = f'{allreduce.size_text(size):8} {variant:13} MPI_Allreduce {statistics.median(base):10.1f}'
            for what in ('direct', 'private'):
                times = [one[what, variant, size]['us'] for one in seen]
                lines.append({'mpi': plain.name, 'setting': plain.labels.get(size), 'ranks': ranks, 'bytes': size, 'variant': variant, 'what': what,
                              'us': statistics.median(times), 'mpi_us': statistics.median(base), 'speedup': fair.speedup(times, base)})
                text += f'   {what} {statistics.median(times):10.1f} {fair.speedup_text(lines[-1]["speedup"])}'
            print(text, flush=True)
    return lines


if __name__ == '__main__':
    main()
