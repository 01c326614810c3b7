#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wine's ranks started by hand, without cddprun, for example under ThreadSanitizer: the losses of the first epochs equal PyTorch's.

    wine_by_hand.py WINE DATA RANKS
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path[:0] = [os.path.join(os.path.dirname(__file__), '..', folder) for folder in ('reference', 'support')]
from check_wine import RUNS, TOLERANCE, largest, recorded
from launch import free_port

EPOCHS = 20


def main():
    wine, data, ranks = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    name, _, flags = next(run for run in RUNS if run[1] == ranks)
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / 'metrics'
        where = {'WORLD_SIZE': str(ranks), 'LOCAL_WORLD_SIZE': str(ranks), 'MASTER_ADDR': '127.0.0.1',
                 'MASTER_PORT': str(free_port()), 'CDDP_TIMEOUT': '60'}
        started = [subprocess.Popen([wine, *flags, '--epochs', str(EPOCHS), '--metrics', str(metrics)],
                                    env=os.environ | where | {'RANK': str(rank), 'LOCAL_RANK': str(rank)},
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                   for rank in range(ranks)]
        try:
            said = [one.communicate(timeout=120)[0] for one in started]
        finally:
            for one in started:
                one.kill()
        for rank, one in enumerate(started):
            if one.returncode != 0:
                sys.exit(f'rank {rank}: exit status {one.returncode}\n{said[rank]}')
        losses = [json.loads(line)['loss'] for line in metrics.read_text().splitlines()]
    want = [loss for loss, _ in recorded(data, f'{name}_f32')[0][:EPOCHS]]
    if len(losses) != EPOCHS or largest(zip(losses, want)) > TOLERANCE['f32']:
        sys.exit(f'the losses are not PyTorch\'s:\n{losses}\n{want}')
    print(f'{ranks} ranks, {EPOCHS} epochs: largest difference of loss {largest(zip(losses, want)):.1e}')


if __name__ == '__main__':
    main()
