#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank is killed at a random moment of each phase of a job on NCCL's host code: the error of every other rank names it.

    deaths.py CDDPRUN PHASES [--moments N] [--ranks N]... [--seed N]      N moments for each phase and number of ranks

A rank that has left before the others noticed the death has no error to show.
"""
import argparse
import random
import re
import subprocess
import sys
import time

KINDS = ('init', 'split', 'first', 'step', 'leave')
LONGEST_US = {'init': 1500000, 'split': 300000, 'first': 200000, 'step': 300000, 'leave': 100000}
DEADLINE_S = 90


def one(cddprun, program, ranks, phase, victim, after_us):
    """Returns what is wrong, and each survivor's word."""
    command = [cddprun, '--standalone', f'--nproc_per_node={ranks}', '--on_failure=wait', program, phase, str(victim), str(after_us)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return ['it did not end'], []
    words = re.findall(r'(?:SURVIVOR|LEFT) \d+.*', done.stderr)
    wrong = []
    for rank in set(range(ranks)) - {victim}:
        said = [w for w in words if re.match(rf'(SURVIVOR|LEFT) {rank}\b', w)]
        named = [w for w in said if re.search(rf'\brank {victim}\b.*(died|killed|SIGKILL)', w)]
        left = phase == 'leave' and any(w.startswith('LEFT') for w in said)
        if not named and not left:
            wrong.append(f'rank {rank} said {said or done.stderr[-600:]}')
    return wrong, words


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('cddprun')
    parser.add_argument('phases')
    parser.add_argument('--moments', type=int, default=1)
    parser.add_argument('--ranks', type=int, action='append')
    parser.add_argument('--seed', type=int, default=random.randrange(1 << 30))
    parser.add_argument('--phase', choices=KINDS, action='append')
    args = parser.parse_args()
    chance = random.Random(args.seed)
    failed = number = 0
    plan = [(ranks, phase) for ranks in args.ranks or [2, 4] for phase in args.phase or KINDS for _ in range(args.moments)]
    print(f'1..{len(plan)}\n# seed {args.seed}', flush=True)
    for ranks, phase in plan:
        number += 1
        victim, after_us = chance.randrange(ranks), int(chance.random() * LONGEST_US[phase])
        began = time.monotonic()
        wrong, _ = one(args.cddprun, args.phases, ranks, phase, victim, after_us)
        failed += bool(wrong)
        print(f'{"not ok" if wrong else "ok"} {number} - {phase}: rank {victim} of {ranks}, killed after {after_us} us '
              f'({time.monotonic() - began:.1f} s)', flush=True)
        for text in wrong:
            print('#', text, flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
