#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does cddp-bench measure what bench/allreduce measures? All-reduces in place, back to back, the two programs in turn.

"private" is memory of each rank (cddp-bench -z 2), "direct" what the ranks share (-R 1). A ratio is that of the bus
bandwidths, cddp-bench to allreduce, round by round.
"""
import json
import statistics
import subprocess

import common

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
SAMPLE_S = 0.05  # of each measurement


def lines_of(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=True)
    return [line.removeprefix('[0] ') for line in done.stdout.splitlines()]


def by_allreduce(args, start, size):
    """{way: microseconds}"""
    found = {}
    for line in lines_of([*start, f'{args.build}/bench/allreduce', str(SAMPLE_S), str(size)]):
        one = json.loads(line) if line.startswith('{') else {}
        if one.get('variant') == 'back to back' and one['what'] in ('private', 'direct'):
            found[one['what']] = one['us']
    return found


def by_tool(args, start, size, us):
    """The median of short samples, as bench/allreduce takes it; before them, each way is checked once."""
    found = {}
    for way, flags in (('private', []), ('direct', ['-R', '1'])):
        command = [*start, f'{args.build}/bench/tool/cddp-bench', '-b', str(size), '-e', str(size), '-z', '2', '-a', '3', '-w', '3',
                   '-o', 'avg' if way == 'direct' else 'sum', *flags]
        for more in (['-n', '1', '-c', '1'], ['-n', str(int(3000 / us[way]) + 1), '-c', '0', '-N', '15']):
            rows = [line.split() for line in lines_of([*command, *more]) if line[:1] == ' ']
            assert rows and all(row[12] in ('0', 'N/A') for row in rows), rows
        found[way] = statistics.median(float(row[9]) for row in rows)
    return found


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--ranks', type=int, default=2)
    words.add_argument('--rounds', type=int, default=15)
    words.add_argument('--sizes', type=int, nargs='+', default=SIZES, help='bytes')
    args = words.parse_args()
    start = [common.cddprun(args.build), '--standalone', f'--nproc_per_node={args.ranks}']
    share = 2 * (args.ranks - 1) / args.ranks / 1e3
    machine, result = common.machine(args), []
    print(f'{"bytes":>10} {"memory":>8} {"allreduce GB/s":>15} {"cddp-bench GB/s":>16} {"ratio":>7} (quartiles)')
    for size in args.sizes:
        seen = []
        for k in range(args.rounds):
            theirs = by_allreduce(args, start, size)
            ours = by_tool(args, start, size, theirs)
            if k % 2:  # the other order, as well
                theirs = by_allreduce(args, start, size)
            seen.append((theirs, ours))
        for way in 'private', 'direct':
            ratios = [theirs[way] / ours[way] for theirs, ours in seen]
            low, median, high = statistics.quantiles(ratios, n=4)
            one = {'bytes': size, 'memory': way, 'ratio': median, 'ratio_quartiles': [low, high], 'ratios': ratios,
                   'allreduce_gb_s': statistics.median(share * size / theirs[way] for theirs, _ in seen),
                   'cddp_bench_gb_s': statistics.median(share * size / ours[way] for _, ours in seen)}
            result.append(one)
            print(f'{size:10} {way:>8} {one["allreduce_gb_s"]:15.3f} {one["cddp_bench_gb_s"]:16.3f} {median:7.3f} ({low:.3f} to {high:.3f})',
                  flush=True)
    common.write(args, 'tool', {'machine': machine, 'ranks': args.ranks, 'rounds': args.rounds, 'results': result})


if __name__ == '__main__':
    main()
