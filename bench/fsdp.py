#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step of one PyTorch module whose parameters are divided: cddp.FSDP beside PyTorch's fully_shard, and DeepSpeed's stage 3.

peers/fsdp_gpt.py is the training, of all: a GPT of 4.8 million parameters, AdamW, one thread per rank, the peers over gloo. Each
round runs all, in an order that alternates, and the losses must agree. DeepSpeed's defaults keep up to 1e9 parameters whole, so
all of this model; "tight" keeps two blocks, as the others do.
"""
import json
import os
import statistics

import common
import fair
import peers

SCRIPT = os.path.join(common.HERE, 'peers', 'fsdp_gpt.py')
SIDES = {'libcddp': ['cddp'], 'PyTorch fully_shard': ['fully_shard'], 'DeepSpeed stage 3': ['deepspeed'], 'DeepSpeed stage 3, tight': ['deepspeed', '--tight']}
WARM = 3  # steps that are not counted: the first one finds the order of units


def command(args, words, more):
    """(command, environment) of a side: its words, and the flags of all."""
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': os.path.join(common.ROOT, 'python'), 'CDDP_BACKEND': 'cpu',
           'CDDP_LIBRARY': os.path.join(args.build, 'worker', 'libcddp.so.0')}
    python = peers.python('deepspeed') if words[0] == 'deepspeed' else args.torch_python
    return [common.cddprun(args.build), '--standalone', f'--nproc_per_node={args.ranks}', python, SCRIPT, *words, *more], env


def line_of(out):
    line = next(line for line in out.splitlines() if '{"ms"' in line)
    return json.loads(line[line.index('{'):])


def available(args):
    """The sides that are here, each with its version."""
    version, sides = peers.deepspeed_version(), {}
    for name, words in SIDES.items():
        if words[0] == 'deepspeed' and not version:
            print(f'{name} is skipped: bench/peers.py install deepspeed installs it')
            continue
        sides[name] = words
        if name != 'libcddp':
            fair.side(name, version if words[0] == 'deepspeed' else f'PyTorch {common.torch_version(args.torch_python)}')
    return sides


def run(args, name):
    line, env = command(args, SIDES[name], ['--steps', str(args.steps), '--batch', str(args.batch)])
    _, out = common.timed(line, retries=0 if name == 'libcddp' else 3, side=(name, SCRIPT, args.ranks), env=env)
    line = line_of(out)
    return {**line, 'step_ms': statistics.median(line['ms'][WARM:])}


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--ranks', type=int, default=2)
    words.add_argument('--steps', type=int, default=13, help='per round, of which the first three warm up')
    words.add_argument('--batch', type=int, default=4, help="a rank's sequences per step")
    args = words.parse_args()
    common.need_torch(args)
    machine, sides = common.machine(args), available(args)
    seen = {name: [] for name in sides}
    for k in range(args.rounds):
        for name in fair.turns(sides, k):
            seen[name].append(run(args, name))
        fair.check()
        print(f'  round {k + 1} of {args.rounds}, load {os.getloadavg()[0]:.1f}: ' + ', '.join(
            f'{name} {lines[-1]["step_ms"]:.1f} ms, {lines[-1]["peak_mib"]:.0f} MiB' for name, lines in seen.items()), flush=True)
    losses = [line['loss'] for lines in seen.values() for line in lines]
    if max(losses) - min(losses) > 1e-4 * max(losses):
        raise SystemExit(f'the losses differ, so this was not the same training: {losses}')
    ms = {name: [line['step_ms'] for line in lines] for name, lines in seen.items()}
    speedups = {name: fair.speedup(ms['libcddp'], of) for name, of in ms.items() if name != 'libcddp'}
    print(f'\n{args.ranks} ranks, medians: libcddp {statistics.median(ms["libcddp"]):.1f} ms')
    for name, speedup in speedups.items():
        print(f'  {name} {statistics.median(ms[name]):.1f} ms, speedup {fair.speedup_text(speedup)}')
    common.write(args, 'fsdp' if args.ranks == 2 else f'fsdp_{args.ranks}_ranks', {
        'machine': machine, 'ranks': args.ranks, 'batch': args.batch, 'summary': {'speedup': speedups['PyTorch fully_shard'], 'speedups': speedups}, 'rounds': seen})


if __name__ == '__main__':
    main()
