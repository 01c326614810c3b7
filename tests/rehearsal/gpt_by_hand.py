#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPT's ranks on the stand-in, started by hand, without cddprun, for example under ThreadSanitizer: their losses are the CPU's.

    gpt_by_hand.py GPT RANKS [FLAG...]
"""
import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import by_hand

SMALL = ['--layers', '2', '--heads', '2', '--width', '16', '--context', '16', '--batch', '4', '--steps', '8', '--lr', '0.002',
         '--warmup', '2', '--log-every', '1', '--sample', '5']


def losses(gpt, ranks, flags):
    with tempfile.TemporaryDirectory() as folder:
        text, log = pathlib.Path(folder) / 'text', pathlib.Path(folder) / 'log'
        text.write_bytes(b'In the beginning God created the heaven and the earth. ' * 40)
        by_hand.run([gpt, *SMALL, '--text', text, '--log', log, *flags], ranks)
        return [line['loss'] for line in map(json.loads, log.read_text().splitlines()) if 'loss' in line]


def main():
    gpt, ranks, flags = os.path.abspath(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    want, got = losses(gpt, ranks, ['--device', 'cpu']), losses(gpt, ranks, ['--device', 'gpu', *flags])
    apart = max(abs(x - y) for x, y in zip(want, got))
    if len(got) != 8 or apart > (0.02 if 'bf16' in flags else 1e-4):
        sys.exit(f'the losses are not the CPU\'s:\n{got}\n{want}')
    print(f'{ranks} ranks, {len(got)} steps: largest difference of loss {apart:.1e}')


if __name__ == '__main__':
    main()
