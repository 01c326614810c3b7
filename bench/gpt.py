#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/gpt on 2 ranks beside PyTorch's DDP (gloo) of the same training.

Every second step does not communicate (--apart-every 2; PyTorch's no_sync). How much longer the others take, in pairs of
neighbouring steps, is the exposed communication. Both begin with the same weights and must end with the same loss. Each
round runs all of them, in an order that alternates.
"""
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import common
import fair

# The default model of examples/gpt. A lower rate: at its own one, roundings grow.
BATCH, CONTEXT, RANKS = 8, 128, 2
FLAGS = ['--lr', '0.0005', '--warmup', '20', '--batch', str(BATCH)]
TOLERANCE = 1e-3
WARM = 2  # steps that are not counted


class Peers:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.gpt = os.path.join(args.build, 'examples', 'gpt', 'gpt')
        self.env = {**os.environ, 'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}
        self.launch = [common.cddprun(args.build), '--standalone', f'--nproc_per_node={RANKS}', *args.launch, *args.prefix]
        self.weights = str(folder / 'weights')
        common.timed([self.gpt, '--steps', '0', '--sample', '0', '--weights-out', self.weights], env=self.env)

    def steps(self, name, program, command, log, retries=0):
        common.timed([*self.launch, *command, *FLAGS, '--steps', str(self.args.steps), '--log', log], retries=retries, env=self.env,
                     side=(name, program, RANKS))
        with open(log, encoding='ascii') as f:
            lines = [json.loads(line) for line in f]
        return [line for line in lines if 'loss' in line]

    def line(self, steps, ms):
        """The figures of one run. ms: of each step; those at even places communicate."""
        together, apart = ms[WARM::2], ms[WARM + 1::2]
        return {'step_ms': statistics.median(together), 'apart_ms': statistics.median(apart),
                'exposed_ms': statistics.median(a - b for a, b in zip(together, apart)),
                'tokens_per_s': BATCH * CONTEXT * 1e3 / statistics.median(together), 'loss': steps[-1]['loss'], 'ms': [round(x, 3) for x in ms]}

    def ours(self):
        steps = self.steps('libcddp', self.gpt, [self.gpt, '--log-every', '1', '--eval-every', '0', '--sample', '0', '--apart-every', '2',
                            *self.args.gpt_flags], str(self.folder / 'log'))
        return self.line(steps, [BATCH * CONTEXT * 1e3 / step['tokens_per_s'] for step in steps])

    def torch(self, name, mib):
        script = os.path.join(common.HERE, 'peers', 'gpt_ddp.py')
        steps = self.steps(name, script, [self.args.torch_python, script, '--weights', self.weights,
                            '--apart-every', '2', '--bucket-mib', str(mib)], str(self.folder / 'log'), retries=3)
        return self.line(steps, [step['ms'] for step in steps])

    def alone(self):
        """As many jobs of one rank at the same time, each with a rank's share: its steps never wait for anybody."""
        logs = [str(self.folder / f'alone{r}') for r in range(RANKS)]
        command = [*self.args.prefix, self.gpt, *FLAGS, '--batch', str(BATCH // RANKS), '--steps', str(self.args.steps), '--log-every', '1',
                   '--eval-every', '0', '--sample', '0', '--log']
        with fair.side('two jobs').watch(command, self.gpt, RANKS, self.env) as env:
            jobs = [subprocess.Popen([*command, log], env=env, stdout=subprocess.DEVNULL) for log in logs]
            if any([job.wait(600) for job in jobs]):
                sys.exit('gpt on one rank failed')
        ms = []
        for log in logs:
            with open(log, encoding='ascii') as f:
                rates = [line['tokens_per_s'] for line in map(json.loads, f) if 'loss' in line]
            ms.append(statistics.median(BATCH // RANKS * CONTEXT * 1e3 / rate for rate in rates[WARM:]))
        return {'step_ms': max(ms)}


def summary(seen):
    """Differences in ms, with their spread: some of ours are below 0, so there are no ratios of them."""
    found = {'exposed_ms': {name: fair.spread([line['exposed_ms'] for line in lines]) for name, lines in seen.items() if 'exposed_ms' in lines[0]}}
    ours = [line['step_ms'] for line in seen['libcddp']]
    found['step_longer_than_two_jobs_ms'] = fair.spread([a - b['step_ms'] for a, b in zip(ours, seen['two jobs'])])
    found['step'] = {name: fair.speedup(ours, [line['step_ms'] for line in lines]) for name, lines in seen.items() if name != 'libcddp'}
    return found


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--steps', type=int, default=82, help='of one training, of which the first two warm up')
    words.add_argument('--launch', type=str.split, default=[], help="more flags of cddprun, for all ranks alike, such as '--numa_binding=exclusive'")
    words.add_argument('--gpt-flags', type=str.split, default=[], help="more flags of gpt, such as '--bucket-kib 128'")
    words.add_argument('--prefix', type=shlex.split, default=[], help="before each rank's and each peer's command, such as 'nice -n -20' on a machine with others")
    words.add_argument('--pause', type=float, default=0, help='seconds before each command, for those others')
    args = words.parse_args()
    common.need_torch(args)
    machine = common.machine(args)
    with tempfile.TemporaryDirectory() as tmp:
        peers = Peers(args, pathlib.Path(tmp))
        runs = {'libcddp': peers.ours, 'two jobs': peers.alone}
        for name, mib in (('PyTorch DDP', 25), ('PyTorch DDP, 0.5 MiB', 0.5)):
            fair.side(name, f'PyTorch {common.torch_version(args.torch_python)}')
            runs[name] = lambda name=name, mib=mib: peers.torch(name, mib)
        seen, loads = {name: [] for name in runs}, []
        for k in range(args.rounds):
            loads.append(os.getloadavg()[0])
            for name in fair.turns(runs, k):
                time.sleep(args.pause)
                seen[name].append(runs[name]())
            fair.check()
            print(f'  round {k + 1} of {args.rounds}, load {loads[-1]:.1f}: ' + ', '.join(
                f'{name} {lines[-1]["step_ms"]:.1f}' + (f' ({lines[-1]["exposed_ms"]:.2f} exposed)' if 'exposed_ms' in lines[-1] else '')
                for name, lines in seen.items()) + ' ms', flush=True)
    losses = {name: [line['loss'] for line in lines] for name, lines in seen.items() if 'loss' in lines[0]}
    everyone = [x for one in losses.values() for x in one]
    if max(everyone) - min(everyone) > TOLERANCE:
        sys.exit(f'the losses differ, so this was not the same training: {losses}')
    found = summary(seen)
    print(json.dumps(found, indent=2))
    common.write(args, 'gpt', {'machine': machine, 'flags': FLAGS, 'prefix': args.prefix, 'launch': args.launch, 'gpt_flags': args.gpt_flags, 'loads': loads,
                               'summary': found, 'rounds': seen})


if __name__ == '__main__':
    main()
