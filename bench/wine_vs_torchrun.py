#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole Wine job, launch included: cddprun with examples/wine against torchrun with the same training in PyTorch.

Two ranks, float32, seed 0, 100 epochs, in interleaved pairs. Both must end with the same loss, or nothing is written.
"""
import csv
import json
import math
import os
import re
import shutil
import struct
import tempfile

import common
import fair

EPOCHS = 100
TOLERANCE = 1e-6  # float32, and the order of sums within a rank differs


def read_rows(data):
    with open(os.path.join(data, 'wine.csv'), encoding='ascii') as source:
        rows = [[float(cell) for cell in row] for row in list(csv.reader(source))[1:]]
    return [row[:-1] for row in rows], [int(row[-1]) for row in rows]


def read_split(data, name):
    with open(os.path.join(data, f'split_{name}_idx.csv'), encoding='ascii') as source:
        return [int(word) for word in re.findall(r'\d+', source.read())]


def prepare(folder):
    """Put the PyTorch program and the files that it reads (standardised by the training rows) into folder."""
    data = os.path.join(common.ROOT, 'examples', 'wine', 'data')
    features, classes = read_rows(data)
    splits = {name: read_split(data, name) for name in ('train', 'test')}
    columns = list(zip(*(features[i] for i in splits['train'])))
    means = [math.fsum(column) / len(column) for column in columns]
    scales = [math.sqrt(math.fsum((x - mean) ** 2 for x in column) / len(column)) for column, mean in zip(columns, means)]
    for name, rows in splits.items():
        flat = [(x - mean) / scale for i in rows for x, mean, scale in zip(features[i], means, scales)]
        with open(os.path.join(folder, f'X{name}.f32'), 'wb') as out:
            out.write(struct.pack(f'<{len(flat)}f', *flat))
        with open(os.path.join(folder, f'y{name}.i32'), 'wb') as out:
            out.write(struct.pack(f'<{len(rows)}i', *(classes[i] for i in rows)))
    shutil.copy(os.path.join(data, 'init.f32'), folder)
    shutil.copy(os.path.join(common.HERE, 'peers', 'wine_ddp.py'), folder)


def main():
    args = common.parser(__doc__.splitlines()[0]).parse_args()
    common.need_torch(args)
    fair.side('torchrun', f'PyTorch {common.torch_version(args.torch_python)}')
    machine = common.machine(args)
    wine = os.path.join(args.build, 'examples', 'wine', 'wine')
    launch = ['--standalone', '--nproc_per_node=2']
    losses = {}

    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        metrics = os.path.join(folder, 'metrics.jsonl')

        def ours(untimed):  # only an untimed run is read, and it is longer: a timed one is too short not to be disturbed
            seconds, _ = common.timed([common.cddprun(args.build), *launch, wine, '--dtype', 'f32', '--seed', '0',
                                       '--epochs', str(EPOCHS * (50 if untimed else 1)), '--metrics', metrics],
                                      side=('cddprun', wine, 2) if untimed else common.UNREAD)
            if untimed:
                return seconds
            with open(metrics, encoding='ascii') as lines:
                losses['cddprun'] = json.loads(lines.read().splitlines()[-1])['loss']
            return seconds

        def theirs(untimed):
            program = os.path.join(folder, 'wine_ddp.py')
            seconds, output = common.timed([*common.torchrun(args.torch_python), *launch, program, 'f32', '0'], retries=3,
                                           side=('torchrun', program, 2) if untimed else common.UNREAD)
            losses['torchrun'] = float(re.search(r'loss first/last \S+ (\S+)', output).group(1))
            return seconds

        print(f'the Wine job, 2 ranks, float32, {EPOCHS} epochs, launch included')
        times = common.interleaved(args.rounds, {'cddprun': ours, 'torchrun': theirs})

    speedup = fair.speedup(times['cddprun'], times['torchrun'])
    print(f'speedup {fair.speedup_text(speedup)}')
    difference = abs(losses['cddprun'] - losses['torchrun'])
    print(f'loss of the last epoch: {losses["cddprun"]:.9f} and {losses["torchrun"]:.9f}')
    if not difference <= TOLERANCE:
        raise SystemExit(f'the losses differ by {difference:.3g}: these were not the same training')
    common.write(args, 'wine_vs_torchrun', {'machine': machine, 'wine': {'cddprun_s': times['cddprun'], 'torchrun_s': times['torchrun'], 'speedup': speedup}, 'last_loss': losses})


if __name__ == '__main__':
    main()
