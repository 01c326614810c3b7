#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the checks for NaN and for replicas that differ cost: steps with and without them, by turns, on 2 ranks.

The ratio to a step without a check is taken round by round; the table has its median, smallest and largest, and the
ratio of the fastest rounds, which a busy machine disturbs least.

On a GPU the check is part of kernels. Without one only calls of the driver can be counted, on the stand-in, if the build
has it: per bucket, and per step beside the buckets. On a GPU scripts/gpu-check measures those kernels beside the plain
ones.
"""
import json
import os
import re
import statistics
import subprocess
import sys

import common

MODES = ('warn', 'error', 'replicas_10')


CALLS = re.compile(r'(?:\[0\] )?(.+): calls of the driver: ([0-9.]+) per bucket and (-?[0-9.]+) per step beside')


def calls_on_standin(build):
    """Returns kind -> mode -> [calls per bucket, per step beside]; {}: there is no stand-in."""
    standin = os.path.join(build, 'tests', 'standin', 'libcddp_standin.so')
    program = os.path.join(build, 'tests', 'standin', 'device_costs')
    calls = {}
    if not (os.path.exists(standin) and os.path.exists(program)):
        return calls
    for mode in ('off', 'warn', 'error'):
        env = {**os.environ, 'CDDP_NAN_CHECK': mode, 'CDDP_STANDIN_CONNECT': '1', 'CDDP_CUDA_LIBRARY': standin,
               'CDDP_NCCL_LIBRARY': standin, 'CDDP_MODULE_DIR': os.path.join(build, 'worker', 'backend', 'nccl')}
        done = subprocess.run([common.cddprun(build), '--standalone', '--nproc_per_node=2', program, '-1', '0'], env=env,
                              stdout=subprocess.PIPE, text=True, timeout=300, check=False)
        if done.returncode != 0:
            sys.exit(f'device_costs ended with status {done.returncode}')
        for kind, a_bucket, a_step in CALLS.findall(done.stdout):
            calls.setdefault(kind, {})[mode] = [float(a_bucket), float(a_step)]
    return calls


def main():
    words = common.parser(__doc__.splitlines()[0], rounds=21)
    words.add_argument('--ranks', type=int, default=2)
    args = words.parse_args()
    args.build = os.path.abspath(args.build)
    machine = common.machine(args)
    program = os.path.join(args.build, 'bench', 'nan_check')
    done = common.watched('libcddp', [common.cddprun(args.build), '--standalone', f'--nproc_per_node={args.ranks}', program, str(args.rounds)], program,
                          args.ranks, stdout=subprocess.PIPE, timeout=1000)
    if done.returncode != 0:
        sys.exit(f'nan_check ended with status {done.returncode}')
    rounds = [json.loads(line.removeprefix('[0] ')) for line in done.stdout.splitlines()]
    summary = []
    print(f'{"gradients":>12}{"off":>12}' + ''.join(f'{mode:>30}' for mode in MODES))
    for size in sorted({line['bytes'] for line in rounds}):
        lines = [line for line in rounds if line['bytes'] == size]
        one = {'bytes': size, 'off_us': 1e6 * statistics.median(line['off'] for line in lines)}
        for mode in MODES:
            ratios = [line[mode] / line['off'] for line in lines]
            one[mode] = {'median': statistics.median(ratios), 'min': min(ratios), 'max': max(ratios),
                         'fastest': min(line[mode] for line in lines) / min(line['off'] for line in lines),
                         'more_us': 1e6 * statistics.median(line[mode] - line['off'] for line in lines)}
        summary.append(one)
        print(f'{size / 1024:8.0f} KiB{one["off_us"]:9.1f} us' + ''.join(
            f'{one[mode]["median"]:8.3f} ({one[mode]["min"]:.2f} to {one[mode]["max"]:.2f}){one[mode]["fastest"]:9.3f}'
            for mode in MODES))
    calls = calls_on_standin(args.build)
    for kind, modes in calls.items():
        print(f'{kind:>28}: calls of the driver ' + ', '.join(
            f'{mode} {one[0]:g} per bucket and {one[1]:g} per step' for mode, one in modes.items()))
    common.write(args, 'nan_check', {'machine': machine, 'ranks': args.ranks, 'summary': summary, 'rounds': rounds,
                                     'calls_on_standin': calls})


if __name__ == '__main__':
    main()
