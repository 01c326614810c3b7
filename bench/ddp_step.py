#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of a training step is communication that the backward pass does not hide: libcddp beside PyTorch's DDP.

The MLP of mlp.h (25 million parameters), 2 ranks, 64 samples each: every second step synchronises. What it takes
longer than one that does not is the exposed communication.
"""
import statistics

import common
import mlp


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--rounds', type=int, default=9, help='interleaved rounds')
    words.add_argument('--steps', type=int, default=22, help='per round, of which the first two warm up')
    words.add_argument('--batch', type=int, default=64, help="a rank's samples per step")
    words.add_argument('--auto', action='store_true', help='also with the bucket size found by trying (CDDP_DDP_TUNE)')
    args = words.parse_args()
    peers = mlp.trainers(args, ['libcddp', 'libcddp auto', 'PyTorch DDP'] if args.auto else ['libcddp', 'PyTorch DDP'])
    machine = common.machine(args)
    seen = {name: [] for name in peers}
    for k in range(args.rounds):
        for name, run in peers.items():
            line = run('alternate', 2, args.batch, args.steps)
            line['exposed'] = line['grads_ms'] / line['alone_ms'] - 1
            seen[name].append(line)
            print(f'  round {k + 1} of {args.rounds}: {name:12} alone {line["alone_ms"]:8.1f} ms, synchronised '
                  f'{line["grads_ms"]:8.1f} ms, exposed {100 * line["exposed"]:6.1f} %'
                  f'{", buckets of " + str(line["bucket_mib"]) + " MiB" if "bucket_mib" in line else ""}', flush=True)
    mlp.same_loss(seen)
    print(f'\n{"2 ranks, medians":24}{"alone":>12}{"synchronised":>14}{"exposed":>10}{"(min to max)":>20}')
    summary = {}
    for name, lines in seen.items():
        exposed = [line['exposed'] for line in lines]
        summary[name] = {'alone_ms': statistics.median(line['alone_ms'] for line in lines),
                         'synchronised_ms': statistics.median(line['grads_ms'] for line in lines),
                         'exposed_median': statistics.median(exposed), 'exposed_min': min(exposed),
                         'exposed_max': max(exposed)}
        one = summary[name]
        spread = f'({100 * one["exposed_min"]:.1f} to {100 * one["exposed_max"]:.1f})'
        print(f'{name:24}{one["alone_ms"]:9.1f} ms{one["synchronised_ms"]:11.1f} ms{100 * one["exposed_median"]:8.1f} %'
              f'{spread:>20}')
    common.write(args, 'ddp_step', {'machine': machine, 'batch': args.batch, 'summary': summary, 'rounds': seen})


if __name__ == '__main__':
    main()
