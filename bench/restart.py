#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Restart: one of 8 workers is killed with -9; how long until all 8 run their new life, in C workers that obey SIGTERM.

Beside it, in the same run: 8 such workers started through the same shim by a loop that does nothing else, and torchrun.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

import common
import fair

RANKS = 8
RESTARTS = 3
LIMIT = 4.0  # times the bare spawn


def lives(path, life):
    """Of the workers that run this life: {rank: (pid, ns)}. The last line may still be being written."""
    try:
        with open(path, encoding='ascii') as f:
            lines = [line.split() for line in f if line.endswith('\n')]
    except FileNotFoundError:
        return {}
    return {int(rank) if life is not None else i: (int(pid), int(ns))
            for i, (count, rank, pid, ns) in enumerate(lines) if life is None or int(count) == life}


def wait_for_all(path, life, process):
    deadline = time.monotonic() + 60
    while len(found := lives(path, life)) < RANKS:
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f'life {life} has {len(found)} of {RANKS} workers, exit status {process.poll()}: '
                     f'{process.stderr.read() if process.poll() is not None else ""}')
        time.sleep(0.0005)
    return found


def bare(program, shim):
    """Milliseconds from the first spawn to the last worker's main()."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'lives')
        process = subprocess.Popen([program, 'bare', str(RANKS), shim, program, path], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        began = int(process.stdout.readline())
        ended = max(ns for _, ns in wait_for_all(path, None, process).values())
        process.communicate('\n')
    return (ended - began) / 1e6


def restarts(name, command, program, victims):
    """Milliseconds from each kill to the last of the new workers' main(), in one job."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'lives')
        with fair.side(name).watch(command, program, RANKS) as env:
            process = subprocess.Popen([*command, program, 'worker', path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True, env=env)
            wait_for_all(path, 0, process)
            time.sleep(0.3)  # all are read
        for life, victim in enumerate(victims):
            pid, _ = wait_for_all(path, life, process)[victim]
            time.sleep(0.05 + 0.013 * (victim % 8))  # all are asleep by then, and torchrun's polls are met at any phase
            began = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)
            times.append((max(ns for _, ns in wait_for_all(path, life + 1, process).values()) - began) / 1e6)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    return times


def main():
    words = common.parser(__doc__.splitlines()[0])
    args = words.parse_args()
    args.build = os.path.abspath(args.build)
    program = os.path.join(args.build, 'bench', 'restart')
    shim = os.path.join(args.build, 'launcher', 'cddprun-shim')
    flags = ['--standalone', f'--nproc_per_node={RANKS}', f'--max_restarts={RESTARTS}']
    ours = [common.cddprun(args.build), *flags]
    theirs = None
    if common.torch_version(args.torch_python):
        theirs = [*common.torchrun(args.torch_python), '--no-python', *flags]
    else:
        print(f'torchrun is skipped: {args.torch_python} has no PyTorch; bench/peers.py install torch')
    if theirs:
        fair.side('torchrun', f'PyTorch {common.torch_version(args.torch_python)}')
    result = {'machine': common.machine(args), 'ranks': RANKS, 'max_restarts': RESTARTS}
    times = {'bare spawn': [], 'cddprun': [], **({'torchrun': []} if theirs else {})}
    bare(program, shim)
    for k in range(args.rounds):
        victims = [(RESTARTS * k + i) % RANKS for i in range(RESTARTS)]
        for name in fair.turns(times, k):
            times[name] += [bare(program, shim) for _ in victims] if name == 'bare spawn' else \
                restarts(name, ours if name == 'cddprun' else theirs, program, victims)
        fair.check()
        print(f'  round {k + 1} of {args.rounds}', flush=True)
    for name, of in times.items():
        one = result[name.replace(' ', '_')] = {'ms': of, **fair.spread(of), 'speedup': fair.speedup(times['cddprun'], of)}
        print(f'{name:12}{one["median"]:9.2f} ms   speedup {fair.speedup_text(one["speedup"])}')
    result['ratio_to_bare'] = result['cddprun']['median'] / result['bare_spawn']['median']
    print(f'cddprun takes {result["ratio_to_bare"]:.2f} times the bare spawn (at most {LIMIT:.0f} are wanted)')
    common.write(args, 'restart', result)
    return 0 if result['ratio_to_bare'] <= LIMIT else 1


if __name__ == '__main__':
    sys.exit(main())
