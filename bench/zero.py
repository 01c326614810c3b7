#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step that averages whole gradients, beside three with ever more divided among the ranks: stages 1, 2 and 3.

The MLP of mlp.h (25 million parameters), SGD, 64 samples per rank. All must arrive at the same loss. called_ms: the time of a
step's calls that communicate, of the rank with the least; stage 1 has none, as its step also updates parameters.
library_exposed_ms: communication that the step waits for, by the library's times, which it has of the first two.
"""
import statistics

import common
import fair
import mlp

MODES = {'whole': 'ddp', 'divided': 'zero', 'stage 2': 'stage2', 'stage 3': 'stage3'}


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--steps', type=int, default=22, help='per round, of which the first two warm up')
    words.add_argument('--batch', type=int, default=64, help="a rank's samples per step")
    words.add_argument('--ranks', type=int, default=2)
    args = words.parse_args()
    run = mlp.trainers(args, ['libcddp'])['libcddp']
    machine = common.machine(args)
    seen = {name: [] for name in MODES}
    for k in range(args.rounds):
        for name in fair.turns(MODES, k):
            seen[name].append(run(MODES[name], args.ranks, args.batch, args.steps))
        print(f'  round {k + 1} of {args.rounds}: ' + ', '.join(f'{name} {lines[-1]["step_ms"]:.1f} ms' for name, lines in seen.items()), flush=True)
    if len({line['loss'] for lines in seen.values() for line in lines}) > 1:
        raise SystemExit('the losses differ, so this was not the same training')
    fields = 'step_ms', 'called_ms', 'library_exposed_ms'
    figures = {name: {field: fair.spread([line[field] for line in lines]) for field in fields if field in lines[0]} for name, lines in seen.items()}
    print(f'\n{args.ranks} ranks, ms, median (quartiles)' + ''.join(f'{field:>28}' for field in fields))
    for name, of in figures.items():
        print(f'{name:32}' + ''.join(f'{fair.speedup_text(of.get(field)):>28}' for field in fields))
    whole, divided = ([line['step_ms'] for line in seen[name]] for name in ('whole', 'divided'))
    summary = {'whole_ms': statistics.median(whole), 'divided_ms': statistics.median(divided), 'speedup': fair.speedup(divided, whole), 'stages': figures}
    print(f'speedup by stage 1: {fair.speedup_text(summary["speedup"])}')
    name = 'zero' if args.ranks == 2 else f'zero_{args.ranks}_ranks'
    common.write(args, name, {'machine': machine, 'batch': args.batch, 'ranks': args.ranks, 'summary': summary, 'rounds': seen})


if __name__ == '__main__':
    main()
