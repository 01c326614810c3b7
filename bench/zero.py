#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step with the optimizer divided among the ranks, beside one that averages whole gradients and updates all.

The MLP of mlp.h (25 million parameters), SGD, 2 ranks, 64 samples each. Both must arrive at the same loss.
"""
import statistics

import common
import mlp


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--rounds', type=int, default=9, help='interleaved rounds')
    words.add_argument('--steps', type=int, default=22, help='per round, of which the first two warm up')
    words.add_argument('--batch', type=int, default=64, help="a rank's samples per step")
    args = words.parse_args()
    run = mlp.trainers(args, ['libcddp'])['libcddp']
    machine = common.machine(args)
    seen = {'whole': [], 'divided': []}
    for k in range(args.rounds):
        for name, mode in (('whole', 'ddp'), ('divided', 'zero')):
            seen[name].append(run(mode, 2, args.batch, args.steps))
        whole, divided = (seen[name][-1]['step_ms'] for name in seen)
        print(f'  round {k + 1} of {args.rounds}: whole {whole:8.1f} ms, divided {divided:8.1f} ms, ratio {divided / whole:.3f}',
              flush=True)
    if {line['loss'] for line in seen['whole']} != {line['loss'] for line in seen['divided']}:
        raise SystemExit('the losses differ, so this was not the same training')
    ratios = [two['step_ms'] / one['step_ms'] for one, two in zip(seen['whole'], seen['divided'])]
    summary = {'whole_ms': statistics.median(line['step_ms'] for line in seen['whole']),
               'divided_ms': statistics.median(line['step_ms'] for line in seen['divided']),
               'ratio_median': statistics.median(ratios), 'ratio_min': min(ratios), 'ratio_max': max(ratios)}
    print(f'\n2 ranks, medians: whole {summary["whole_ms"]:.1f} ms, divided {summary["divided_ms"]:.1f} ms, ratio '
          f'{summary["ratio_median"]:.3f} ({summary["ratio_min"]:.3f} to {summary["ratio_max"]:.3f})')
    common.write(args, 'zero', {'machine': machine, 'batch': args.batch, 'summary': summary, 'rounds': seen})


if __name__ == '__main__':
    main()
