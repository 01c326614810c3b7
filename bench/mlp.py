# SPDX-License-Identifier: Apache-2.0
"""The trainers of the MLP benchmarks: mlp_train in its ways, and PyTorch's DDP; each gives its line of JSON."""
import json
import os
import subprocess
import sys

import common
import fair
import peers

SHM = "PyTorch DDP, DeepSpeed's shared memory"
TOLERANCE = 1e-3  # of the loss: float32, sums in another order, and steps that differ by one rounding


def line_of(output):
    line = next(one for one in output.splitlines() if '{"mode"' in one)
    return json.loads(line[line.index('{'):])


def trainers(args, names, mpis=''):
    """{name: run(mode, ranks, batch, steps)}; those that cannot run here are left out, which is printed.

    mpis: one MPI_Iallreduce for each bucket on each of these, with and without a progress thread; only "alternate".
    """
    program = os.path.join(args.build, 'bench', 'mlp_train')
    if not os.access(program, os.X_OK):
        sys.exit(f'{program} is missing: scripts/setup --bench installs OpenBLAS, then build again')
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}

    def launch(name, ranks, command, retries=0, script=program):
        return line_of(common.timed([common.cddprun(args.build), '--standalone', f'--nproc_per_node={ranks}', *command],
                                    retries=retries, env=env, side=(name, script, ranks))[1])

    def ours(mode, ranks, batch, steps, *more, name='libcddp'):
        return launch(name, ranks, [program, mode, str(batch), str(steps), *more])

    def auto(mode, ranks, batch, steps):
        return ours(mode, ranks, batch, steps, 'auto', name='libcddp auto')

    def server(_, ranks, batch, steps):
        return ours('server', ranks, batch, steps, name='parameter server')

    def threads(_, ranks, batch, steps):
        return line_of(common.timed([program, 'threads', str(batch), str(steps), str(ranks)], env=env, side=('threads', program, 1))[1])

    def torch(mode, ranks, batch, steps, *how, name='PyTorch DDP', python=args.torch_python):
        script = os.path.join(common.HERE, 'peers', 'mlp_ddp.py')
        return launch(name, ranks, [python, script, mode, str(batch), str(steps), *how], retries=3, script=script)

    def compiled(mode, ranks, batch, steps):
        return torch(mode, ranks, batch, steps, 'compiled', name='PyTorch DDP, compiled')

    def in_shared_memory(mode, ranks, batch, steps):
        return torch(mode, ranks, batch, steps, 'shm', name=SHM, python=peers.python('deepspeed'))

    def over(one, *more):
        flags = subprocess.run(['pkg-config', '--cflags', '--libs', 'openblas'], capture_output=True, text=True, check=True).stdout.split()
        by_hand = one.compile(args.build, 'mpi_mlp', [os.path.join(common.HERE, 'mlp.c'), *flags, '-lm', '-pthread'])
        name = ', '.join([peers.title(one), *(['progress thread'] if more else [])])
        fair.side(name, peers.title(one))

        def run(mode, ranks, batch, steps):
            command, env = one.command(ranks, [by_hand, str(batch), str(steps), '25', *more])  # a sweep is one of blocking calls
            return line_of(common.timed(command, env=env, side=(name, by_hand, ranks))[1])
        return name, run

    known = {'libcddp': ours, 'libcddp auto': auto, 'PyTorch DDP': torch, 'PyTorch DDP, compiled': compiled, SHM: in_shared_memory,
             'parameter server': server, 'threads': threads}
    chosen = {name: known[name] for name in names}
    for name, python, how in ((name, *((peers.python('deepspeed'), 'deepspeed') if name == SHM else (args.torch_python, 'torch'))) for name in names
                              if name.startswith('PyTorch')):
        version = common.torch_version(python)
        if version:
            fair.side(name, f'PyTorch {version}')
        else:
            print(f'{name} is skipped: {python} has no PyTorch (bench/peers.py install {how})')
            del chosen[name]
    for one in peers.chosen(mpis) if mpis else ():
        if one.why:
            print(f'{one.name} is skipped: {one.why}')
        else:
            chosen.update([over(one), over(one, 'thread')])
    return chosen


def same_loss(seen):
    """seen: {name: [line, ...]}, of one kind of training. Those who do not arrive at the same loss were not doing the same."""
    losses = {name: lines[0]['loss'] for name, lines in seen.items() if lines}
    if max(losses.values()) - min(losses.values()) > TOLERANCE:
        sys.exit(f'the losses differ, so this was not the same training: {losses}')
