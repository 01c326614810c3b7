#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does cddp-bench measure what bench/allreduce measures? All-reduces in place, back to back, the two programs in turn.

"private" is memory of each rank, "shared" what the ranks share (cddp-bench -R 1); both programs call cddp_all_reduce
(-z 2). "begun" is how nccl-tests measures, and cddp-bench without options: on memory of each rank, the mean of many
operations of which none is waited for, averaged over ranks. A ratio is that of the bus bandwidths, cddp-bench to
allreduce, round by round.
"""
import json
import os
import statistics
import sys

import common
import fair
import peers

SIZES = [4 << 10, 64 << 10, 1 << 20, 25 << 20]
SAMPLE_S = 0.05  # of each measurement
SAMPLES = 31
MOST = 0.1       # a ratio may be off 1 by this
# How each way is measured: cddp-bench's options, and the way of bench/allreduce to compare with.
WAYS = {'private': (['-z', '2', '-a', '3'], 'private'),
        'shared': (['-z', '2', '-a', '3', '-R', '1'], 'shared'),
        'begun': ([], 'private')}


def lines_of(args, name, command, program, env):
    done = common.watched(name, command, program, args.ranks, env, capture_output=True, timeout=240)
    if done.returncode != 0:
        sys.exit(f'exit status {done.returncode}: {" ".join(command)}\n{done.stdout}{done.stderr}')
    return [line.removeprefix('[0] ') for line in done.stdout.splitlines()]


def by_allreduce(args, start, env, size):
    """{way: microseconds}"""
    found = {}
    program = f'{args.build}/bench/allreduce'
    for line in lines_of(args, 'allreduce', [*start, program, str(SAMPLE_S), str(size)], program, env):
        one = json.loads(line) if line.startswith('{') else {}
        if one.get('variant') == 'back to back':
            found[one['what']] = one['us']
    return found


def by_tool(args, start, env, size, us):
    """The median of samples as long as bench/allreduce's; before them, each way is checked once."""
    found = {}
    for way, (flags, other) in WAYS.items():
        program = f'{args.build}/bench/tool/cddp-bench'
        command = [*start, program, '-b', str(size), '-e', str(size), '-o', 'sum', *flags]
        # Each sample follows operations out of place, which leave a cold cache: warm it as long as bench/allreduce does.
        n, warm_up = int(3000 / us[other]) + 1, int(20000 / us[other]) + 3
        for more in (['-n', '1', '-c', '1'], ['-w', str(warm_up), '-n', str(n), '-c', '0', '-N', str(SAMPLES)]):
            rows = [line.split() for line in lines_of(args, 'cddp-bench', [*command, *more], program, env) if line[:1] == ' ']
            assert rows and all(row[12] in ('0', 'N/A') for row in rows), rows
        found[way] = statistics.median(float(row[9]) for row in rows)
    return found


def starts(args, backend):
    """The command that starts the ranks on a backend, and their environment; None: not here."""
    if backend == 'cpu':
        return [common.cddprun(args.build), '--standalone', f'--nproc_per_node={args.ranks}'], {**peers.ENV, 'CDDP_BACKEND': backend}
    one, module = peers.MPIS['openmpi'](), f'{args.build}/worker/backend/mpi/openmpi'  # as Debian names it
    if one.why or not os.path.isdir(module):
        return None
    start, env = one.command(args.ranks, [])
    return start, {**env, 'CDDP_BACKEND': backend, 'CDDP_MODULE_DIR': module, 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(common.free_port())}


def compare(args, backend, start, env, size):
    """One result for each way; prints them."""
    share, seen, result = 2 * (args.ranks - 1) / args.ranks / 1e3, [], []
    for k in range(args.rounds):
        theirs = by_allreduce(args, start, env, size)
        ours = by_tool(args, start, env, size, theirs)
        if k % 2:  # the other order, as well
            theirs = by_allreduce(args, start, env, size)
        seen.append((theirs, ours))
    for way, (_, other) in WAYS.items():
        ratios = [theirs[other] / ours[way] for theirs, ours in seen]
        low, median, high = fair.quartiles(ratios)
        one = {'backend': backend, 'bytes': size, 'way': way, 'ratio': median, 'ratio_quartiles': [low, high], 'ratios': ratios,
               'allreduce_gb_s': statistics.median(share * size / theirs[other] for theirs, _ in seen),
               'cddp_bench_gb_s': statistics.median(share * size / ours[way] for _, ours in seen)}
        result.append(one)
        print(f'{backend:>7} {size:10} {way:>8} {one["allreduce_gb_s"]:15.3f} {one["cddp_bench_gb_s"]:16.3f} {median:7.3f} '
              f'({low:.3f} to {high:.3f}){" differs" if way != "begun" and abs(median - 1) > MOST else ""}', flush=True)
    return result


def main():
    words = common.parser(__doc__.splitlines()[0], rounds=15)
    words.add_argument('--ranks', type=int, default=2)
    words.add_argument('--sizes', type=int, nargs='+', default=SIZES, help='bytes')
    words.add_argument('--backends', nargs='+', default=['cpu', 'mpi'], choices=['cpu', 'mpi'])
    args = words.parse_args()
    args.build = os.path.abspath(args.build)
    machine, result = common.machine(args), []
    print(f'{"backend":>7} {"bytes":>10} {"way":>8} {"allreduce GB/s":>15} {"cddp-bench GB/s":>16} {"ratio":>7} (quartiles)')
    for backend in args.backends:
        how = starts(args, backend)
        if how is None:
            print(f'{backend:>7} is skipped: no mpirun.openmpi, or no module for it in {args.build}')
            continue
        for size in args.sizes:
            result += compare(args, backend, *how, size)
    common.write(args, 'tool', {'machine': machine, 'ranks': args.ranks, 'results': result})


if __name__ == '__main__':
    main()
