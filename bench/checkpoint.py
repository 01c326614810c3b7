#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A sharded checkpoint beside the disk's own time: 4 ranks save 4 GiB, in the background and not, and load it.

The same processes write and read as many bytes, each in one file, with fsync and without checksums: by turns, in one folder.
Ratios are taken round by round.
"""
import json
import os
import subprocess
import sys
import tempfile

import common
import fair

RATIOS = {'save': 'plain', 'background': 'plain', 'call': 'plain', 'load': 'read'}


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--ranks', type=int, default=4)
    words.add_argument('--mib', type=int, default=4096, help='of the whole checkpoint')
    words.add_argument('--folder', default='.', help='where the files are written')
    args = words.parse_args()
    args.build = os.path.abspath(args.build)
    machine = common.machine(args)
    program = os.path.join(args.build, 'bench', 'checkpoint')
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        done = common.watched('libcddp', [common.cddprun(args.build), '--standalone', f'--nproc_per_node={args.ranks}', program, folder,
                                          str(args.mib), str(args.rounds)], program, args.ranks, stdout=subprocess.PIPE, timeout=3000)
    if done.returncode != 0:
        sys.exit(f'checkpoint ended with status {done.returncode}')
    rounds = [json.loads(line.removeprefix('[0] ')) for line in done.stdout.splitlines()]
    summary = {}
    for name in ('plain', 'read', *RATIOS):
        times = [line[name] for line in rounds]
        summary[name] = fair.spread(times)
        low, middle, high = fair.quartiles(times)
        text = f'{name:10} {middle:7.2f} s ({low:.2f} to {high:.2f}), {args.mib / 1024 / middle:5.2f} GiB/s'
        if name in RATIOS:
            ratio = fair.spread([line[name] / line[RATIOS[name]] for line in rounds])
            summary[f'{name}_by_{RATIOS[name]}'] = ratio
            text += f', {ratio["median"]:.2f} times {RATIOS[name]} ({ratio["quartiles"][0]:.2f} to {ratio["quartiles"][1]:.2f})'
        print(text)
    common.write(args, 'checkpoint', {'machine': machine, 'ranks': args.ranks, 'mib': args.mib, 'summary': summary, 'times': rounds})


if __name__ == '__main__':
    main()
