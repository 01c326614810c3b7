#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step with the optimizer divided among the ranks, beside one that averages whole gradients and updates all.

The MLP of mlp.h (25 million parameters), SGD, 2 ranks, 64 samples each. Both must arrive at the same loss.
"""
import statistics

import common
import fair
import mlp


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--steps', type=int, default=22, help='per round, of which the first two warm up')
    words.add_argument('--batch', type=int, default=64, help="a rank's samples per step")
    args = words.parse_args()
    run = mlp.trainers(args, ['libcddp'])['libcddp']
    machine = common.machine(args)
    seen = {'whole': [], 'divided': []}
    for k in range(args.rounds):
        for name, mode in fair.turns((('whole', 'ddp'), ('divided', 'zero')), k):
            seen[name].append(run(mode, 2, args.batch, args.steps))
        whole, divided = (seen[name][-1]['step_ms'] for name in seen)
        print(f'  round {k + 1} of {args.rounds}: whole {whole:8.1f} ms, divided {divided:8.1f} ms, ratio {divided / whole:.3f}',
              flush=True)
    if {line['loss'] for line in seen['whole']} != {line['loss'] for line in seen['divided']}:
        raise SystemExit('the losses differ, so this was not the same training')
    speedup = fair.speedup([one['step_ms'] for one in seen['divided']], [one['step_ms'] for one in seen['whole']])
    summary = {'whole_ms': statistics.median(line['step_ms'] for line in seen['whole']),
               'divided_ms': statistics.median(line['step_ms'] for line in seen['divided']),
               'speedup': speedup}
    print(f'\n2 ranks, medians: whole {summary["whole_ms"]:.1f} ms, divided {summary["divided_ms"]:.1f} ms, '
          f'speedup {fair.speedup_text(speedup)}')
    common.write(args, 'zero', {'machine': machine, 'batch': args.batch, 'summary': summary, 'rounds': seen})


if __name__ == '__main__':
    main()
