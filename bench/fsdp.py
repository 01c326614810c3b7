#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step of one PyTorch module whose parameters are divided: cddp.FSDP beside PyTorch's fully_shard over gloo.

peers/fsdp_gpt.py is the training, of both: a GPT of 4.8 million parameters, AdamW, one thread per rank. Each round runs both,
in an order that alternates, and the losses must agree.
"""
import json
import os
import statistics

import common
import fair

SCRIPT = os.path.join(common.HERE, 'peers', 'fsdp_gpt.py')
SIDES = {'libcddp': 'cddp', 'PyTorch fully_shard': 'fully_shard'}
WARM = 3  # steps that are not counted: the first one finds the order of units


def run(args, name):
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': os.path.join(common.ROOT, 'python'), 'CDDP_BACKEND': 'cpu',
           'CDDP_LIBRARY': os.path.join(args.build, 'worker', 'libcddp.so.0')}
    command = [common.cddprun(args.build), '--standalone', f'--nproc_per_node={args.ranks}', args.torch_python, SCRIPT, SIDES[name],
               '--steps', str(args.steps), '--batch', str(args.batch)]
    _, out = common.timed(command, retries=0 if name == 'libcddp' else 3, side=(name, SCRIPT, args.ranks), env=env)
    line = next(line for line in out.splitlines() if '{"ms"' in line)
    line = json.loads(line[line.index('{'):])
    return {**line, 'step_ms': statistics.median(line['ms'][WARM:])}


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--ranks', type=int, default=2)
    words.add_argument('--steps', type=int, default=13, help='per round, of which the first three warm up')
    words.add_argument('--batch', type=int, default=4, help="a rank's sequences per step")
    args = words.parse_args()
    common.need_torch(args)
    machine = common.machine(args)
    fair.side('PyTorch fully_shard', f'PyTorch {common.torch_version(args.torch_python)}')
    seen = {name: [] for name in SIDES}
    for k in range(args.rounds):
        for name in fair.turns(SIDES, k):
            seen[name].append(run(args, name))
        fair.check()
        print(f'  round {k + 1} of {args.rounds}, load {os.getloadavg()[0]:.1f}: ' + ', '.join(
            f'{name} {lines[-1]["step_ms"]:.1f} ms, {lines[-1]["peak_mib"]:.0f} MiB' for name, lines in seen.items()), flush=True)
    losses = [line['loss'] for lines in seen.values() for line in lines]
    if max(losses) - min(losses) > 1e-4 * max(losses):
        raise SystemExit(f'the losses differ, so this was not the same training: {losses}')
    ours, theirs = ([line['step_ms'] for line in lines] for lines in seen.values())
    speedup = fair.speedup(ours, theirs)
    print(f'\n{args.ranks} ranks, medians: libcddp {statistics.median(ours):.1f} ms, fully_shard {statistics.median(theirs):.1f} ms, '
          f'speedup {fair.speedup_text(speedup)}')
    common.write(args, 'fsdp', {'machine': machine, 'ranks': args.ranks, 'batch': args.batch, 'summary': {'speedup': speedup}, 'rounds': seen})


if __name__ == '__main__':
    main()
