# SPDX-License-Identifier: Apache-2.0
"""The trainers of the MLP benchmarks: mlp_train in its ways, and PyTorch's DDP; each gives its line of JSON."""
import json
import os
import sys

import common

TOLERANCE = 1e-3  # of the loss: float32, sums in another order, and steps that differ by one rounding


def line_of(output):
    line = next(one for one in output.splitlines() if '{"mode"' in one)
    return json.loads(line[line.index('{'):])


def trainers(args, names):
    """{name: run(mode, ranks, batch, steps)}; those that cannot run here are left out, which is printed."""
    program = os.path.join(args.build, 'bench', 'mlp_train')
    if not os.access(program, os.X_OK):
        sys.exit(f'{program} is missing: scripts/setup --bench installs OpenBLAS, then build again')
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}

    def launch(ranks, command, retries=0):
        return line_of(common.timed([common.cddprun(args.build), '--standalone', f'--nproc_per_node={ranks}', *command],
                                    retries=retries, env=env)[1])

    def ours(mode, ranks, batch, steps, *more):
        return launch(ranks, [program, mode, str(batch), str(steps), *more])

    def auto(mode, ranks, batch, steps):
        return ours(mode, ranks, batch, steps, 'auto')

    def server(_, ranks, batch, steps):
        return ours('server', ranks, batch, steps)

    def threads(_, ranks, batch, steps):
        return line_of(common.timed([program, 'threads', str(batch), str(steps), str(ranks)], env=env)[1])

    def torch(mode, ranks, batch, steps):
        return launch(ranks, [args.torch_python, os.path.join(common.HERE, 'peers', 'mlp_ddp.py'), mode, str(batch),
                              str(steps)], retries=3)

    known = {'libcddp': ours, 'libcddp auto': auto, 'PyTorch DDP': torch, 'parameter server': server, 'threads': threads}
    chosen = {name: known[name] for name in names}
    if 'PyTorch DDP' in chosen and not common.torch_version(args.torch_python):
        print(f'PyTorch DDP is skipped: {args.torch_python} has no PyTorch (name one that has with --torch-python)')
        del chosen['PyTorch DDP']
    return chosen


def same_loss(seen):
    """seen: {name: [line, ...]}, of one kind of training. Those who do not arrive at the same loss were not doing the same."""
    losses = {name: lines[0]['loss'] for name, lines in seen.items() if lines}
    if max(losses.values()) - min(losses.values()) > TOLERANCE:
        sys.exit(f'the losses differ, so this was not the same training: {losses}')
