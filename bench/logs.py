#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank that prints as fast as it can, beside one that prints the time every millisecond: MB/s to the console, to a file,
and to both (--tee); how long the other's writes took, and how long its lines took from print to console. Every byte is
checked: each line whole, none missing. It fails where the rank is held below 100 MB/s (--least)."""
import os
import statistics
import subprocess
import sys
import tempfile
import time

import common
import fair

LINE = bytes(ord('!') + i % 90 for i in range(99)) + b'\n'
MODES = {'console': [], 'file': ['--redirects=0:1'], 'tee': ['--tee=0:1']}


def read_all(out):
    """[(when, bytes)]: checked later, since checking is slower than printing."""
    chunks = []
    while chunk := out.read1(1 << 20):
        chunks.append((time.monotonic_ns(), chunk))
    return chunks


def check(chunks):
    """(lines of rank 0, delays of rank 1's lines in s); anything else there is a fault."""
    many, delays, rest = 0, [], b''
    for when, chunk in chunks:
        whole, newline, rest = (rest + chunk).rpartition(b'\n')
        others = (whole + newline).replace(b'[0] ' + LINE, b'')
        many += (len(whole) + len(newline) - len(others)) // (len(LINE) + 4)
        for line in others.splitlines():
            if not line.startswith(b'[1] ') or not line[4:].isdigit():
                sys.exit(f'a torn line: {line[:200]!r}')
            delays.append((when - int(line[4:])) / 1e9)
    if rest:
        sys.exit(f'a line without its end: {rest[:200]!r}')
    return many, delays


def number(path):
    with open(path, encoding='ascii') as f:
        return float(f.read())


def check_file(folder, lines):
    """The file of rank 0, whole."""
    path = next(os.path.join(at, 'stdout.log') for at, _, names in os.walk(folder) if at.endswith('/0') and 'stdout.log' in names)
    if os.path.getsize(path) != lines * len(LINE):
        sys.exit(f'the file has {os.path.getsize(path)} bytes instead of {lines * len(LINE)}')
    with open(path, 'rb') as f:
        while chunk := f.read(len(LINE) << 14):
            if chunk.replace(LINE, b''):
                sys.exit('a torn line in the file')


def once(args, flags):
    lines = args.mib * (1 << 20) // len(LINE)
    with tempfile.TemporaryDirectory(prefix='cddp-bench-logs-') as folder:
        logs = os.path.join(folder, 'logs')
        program = os.path.join(args.build, 'bench', 'logs')
        command = [common.cddprun(args.build), '--standalone', '--nproc_per_node=2', *(flags and [*flags, f'--log_dir={logs}']), program,
                   str(lines), os.path.join(folder, 'time')]
        with fair.side('cddprun').watch(command, program, 2) as env:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env)
            chunks = read_all(process.stdout)
            if process.wait() != 0:
                sys.exit(f'exit status {process.returncode}')
        shown, delays = check(chunks)
        if shown != (0 if '--redirects=0:1' in flags else lines):
            sys.exit(f'{shown} lines on the console instead of {lines}')
        if flags:
            check_file(logs, lines)
        return {'mb_per_s': lines * len(LINE) / 1e6 / number(os.path.join(folder, 'time.0')),
                'longest_write_s': number(os.path.join(folder, 'time.1')),
                'delay_median_s': statistics.median(delays), 'delay_max_s': max(delays), 'lines_of_the_other': len(delays)}


def main():
    words = common.parser(__doc__)
    words.add_argument('--mib', type=int, default=256, help='what the rank prints in a run, which this keeps in memory')
    words.add_argument('--least', type=float, default=100, help='MB/s of the median, below which this fails')
    args = words.parse_args()
    args.build = os.path.abspath(args.build)
    result = {'machine': common.machine(args), 'mib': args.mib}
    print(f'{"":10}{"MB/s":>8}{"(min to max)":>20}{"other: longest write":>24}{"line to console, median":>26}{"max":>12}')
    for name, flags in MODES.items():
        runs = [once(args, flags) for _ in range(args.rounds)]
        rates = [one['mb_per_s'] for one in runs]
        print(f'{name:10}{statistics.median(rates):8.0f}{f"({min(rates):.0f} to {max(rates):.0f})":>20}'
              f'{max(one["longest_write_s"] for one in runs) * 1000:21.2f} ms'
              f'{statistics.median(one["delay_median_s"] for one in runs) * 1000:23.2f} ms'
              f'{max(one["delay_max_s"] for one in runs) * 1000:9.1f} ms', flush=True)
        result[name] = {'runs': runs, 'mb_per_s_median': statistics.median(rates)}
    common.write(args, 'logs', result)
    slow = [name for name in MODES if result[name]['mb_per_s_median'] < args.least]
    if slow:
        sys.exit(f'below {args.least:.0f} MB/s: {", ".join(slow)}')


if __name__ == '__main__':
    main()
