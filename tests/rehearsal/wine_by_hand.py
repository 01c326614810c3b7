#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wine's ranks started by hand, without cddprun, for example under ThreadSanitizer: the losses of the first epochs equal PyTorch's.

    wine_by_hand.py WINE DATA RANKS
"""
import json
import os
import pathlib
import sys
import tempfile

sys.path[:0] = [os.path.join(os.path.dirname(__file__), '..', folder) for folder in ('reference', 'support')]
import by_hand
from check_wine import RUNS, TOLERANCE, largest, recorded

EPOCHS = 20


def main():
    wine, data, ranks = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    name, _, flags = next(run for run in RUNS if run[1] == ranks)
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / 'metrics'
        by_hand.run([wine, *flags, '--epochs', str(EPOCHS), '--metrics', metrics], ranks)
        losses = [json.loads(line)['loss'] for line in metrics.read_text().splitlines()]
    want = [loss for loss, _ in recorded(data, f'{name}_f32')[0][:EPOCHS]]
    if len(losses) != EPOCHS or largest(zip(losses, want)) > TOLERANCE['f32']:
        sys.exit(f'the losses are not PyTorch\'s:\n{losses}\n{want}')
    print(f'{ranks} ranks, {EPOCHS} epochs: largest difference of loss {largest(zip(losses, want)):.1e}')


if __name__ == '__main__':
    main()
