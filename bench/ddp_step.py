#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of a training step is communication that the backward pass does not hide: libcddp beside PyTorch's DDP, and MPIs.

The MLP of mlp.h (25 million parameters), 2 ranks, 64 samples each: every second step synchronises. What it takes
longer than one that does not is the exposed communication.
"""
import common
import fair
import mlp
import peers


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--steps', type=int, default=22, help='per round, of which the first two warm up')
    words.add_argument('--batch', type=int, default=64, help="a rank's samples per step")
    words.add_argument('--auto', action='store_true', help='also with the bucket size found by trying (CDDP_DDP_TUNE)')
    words.add_argument('--peers', help=f'MPIs to compare with, of {", ".join(peers.MPIS)}', default=peers.CURRENT)
    args = words.parse_args()
    sides = mlp.trainers(args, ['libcddp', *(['libcddp auto'] if args.auto else []), 'PyTorch DDP', 'PyTorch DDP, compiled', mlp.SHM], args.peers)
    machine = common.machine(args)
    seen = {name: [] for name in sides}
    for k in range(args.rounds):
        for name in fair.turns(sides, k):
            line = sides[name]('alternate', 2, args.batch, args.steps)
            line['exposed_ms'] = line['grads_ms'] - line['alone_ms']
            seen[name].append(line)
            print(f'  round {k + 1} of {args.rounds}: {name:36} alone {line["alone_ms"]:8.1f} ms, synchronised '
                  f'{line["grads_ms"]:8.1f} ms, exposed {line["exposed_ms"]:6.1f} ms'
                  f'{", buckets of " + str(line["bucket_mib"]) + " MiB" if "bucket_mib" in line else ""}', flush=True)
        fair.check()
    mlp.same_loss(seen)
    print(f'\n{"2 ranks, ms, median (quartiles)":34}{"alone":>28}{"synchronised":>28}{"exposed":>28}')
    summary = {}
    for name, lines in seen.items():
        summary[name] = {field: fair.spread([line[field] for line in lines]) for field in ('alone_ms', 'grads_ms', 'exposed_ms')}
        print(f'{name:34}' + ''.join(f'{fair.speedup_text(one):>28}' for one in summary[name].values()))
    summary['step'] = {name: fair.speedup([one['grads_ms'] for one in seen['libcddp']], [one['grads_ms'] for one in lines]) for name, lines in seen.items()}
    common.write(args, 'ddp_step', {'machine': machine, 'batch': args.batch, 'summary': summary, 'rounds': seen})


if __name__ == '__main__':
    main()
