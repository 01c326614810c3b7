#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank is killed at a random moment of each phase of a job on NCCL's host code: every other rank's error names it, in time.

    deaths.py CDDPRUN PHASES [--moments N] [--ranks N]... [--seed N]      N moments for each phase and number of ranks

A rank that has left before the others noticed the death has no error to show. At the end a table: of each number of ranks and each
phase the moments, the survivors that named the dead rank, those that did so late, those that did not, those that had left, and the
median and largest time from the kill to an error. --json FILE adds a line for each moment to a file.
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch

KINDS = ('init', 'split', 'first', 'step', 'capture', 'replay', 'leave')
GOES_ON_US = {'step': 300000, 'capture': 300000, 'replay': 300000}  # until the kill; the others end by themselves
DEADLINE_S = min(launch.within(60), 300)
LIMIT_S = {'init': 2.5, 'split': 2.5}  # a call that makes a communicator gives up after two seconds (docs/gpu.md)
OTHERS_S = 1  # NCCL's abort alone takes half a second: its proxy thread may be in a poll() for as long (proxy.cc)
TRIES = 20  # for a moment that is in its phase


def run(args, ranks, phase, victim, after_us):
    """Returns what the job has printed, and whether it has ended."""
    command = [args.cddprun, '--standalone', f'--nproc_per_node={ranks}', '--on_failure=wait', args.phases, phase, str(victim), str(after_us)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        return done.stderr, True
    except subprocess.TimeoutExpired as late:
        return (late.stderr or b'').decode(errors='replace'), False


def lengths(args, ranks):
    """Returns how long each phase takes, by a job in which nobody dies."""
    took = {}
    said, _ = run(args, ranks, 'none', -1, 0)
    for phase, us in re.findall(r'TOOK \d+ (\S+) (\d+)', said):
        took[phase] = max(took.get(phase, 0), int(us))
    if not set(KINDS) <= set(took):
        sys.exit(f'deaths.py: without a death the job of {ranks} ranks failed:\n{said[-2000:]}')
    return {**took, **GOES_ON_US}


def judge(said, ranks, phase, victim):
    """Returns how each survivor ended: ('named', 'late', 'unnamed' or 'left', the time of its error in ms, its words)."""
    limit_ms = 1000 * launch.within(LIMIT_S.get(phase, OTHERS_S))
    killed_ns = int(re.search(r'KILLED \d+ (\d+)', said)[1])
    ends = []
    for rank in set(range(ranks)) - {victim}:
        error = re.search(rf'SURVIVOR {rank} (\d+) (\S+: .*)', said)
        if error is None:
            left = phase == 'leave' and re.search(rf'LEFT {rank}\b', said)
            ends.append(('left' if left else 'unnamed', None, said[-2000:]))
            continue
        named = re.search(rf'\brank {victim}\b.*(died|killed|SIGKILL)', error[2])
        took_ms = (int(error[1]) - killed_ns) / 1e6
        ends.append(('unnamed' if not named else 'late' if took_ms > limit_ms else 'named', took_ms, error[2]))
    return ends


def one(args, chance, ranks, phase, longest_us):
    """Kills a rank in the phase. Returns the victim, the moment, and how the others ended."""
    for _ in range(TRIES):
        victim, after_us = chance.randrange(ranks), int(chance.random() * longest_us)
        said, ended = run(args, ranks, phase, victim, after_us)
        if not ended:
            return victim, after_us, [('unnamed', None, 'the job did not end:\n' + said[-4000:])]
        if 'KILLED' in said:  # otherwise the phase was over
            return victim, after_us, judge(said, ranks, phase, victim)
    sys.exit(f'deaths.py: none of {TRIES} kills met the phase "{phase}"')


def table(seen):
    print(f'# {"ranks":>5} {"phase":8} {"moments":>7} {"named":>6} {"late":>5} {"unnamed":>7} {"left":>5} {"median":>9} {"largest":>9}')
    for (ranks, phase), moments in seen.items():
        ends = [end for ends in moments for end in ends]
        ms = [at for _, at, _ in ends if at is not None]
        counts = [sum(how == word for how, _, _ in ends) for word in ('named', 'late', 'unnamed', 'left')]
        times = [f'{value:.0f} ms' for value in (statistics.median(ms), max(ms))] if ms else ['-', '-']
        print('# {:5} {:8} {:7} {:6} {:5} {:7} {:5} {:>9} {:>9}'.format(ranks, phase, len(moments), *counts, *times), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('cddprun')
    parser.add_argument('phases')
    parser.add_argument('--moments', type=int, default=1)
    parser.add_argument('--ranks', type=int, action='append')
    parser.add_argument('--seed', type=int, default=random.randrange(1 << 30))
    parser.add_argument('--phase', choices=KINDS, action='append')
    parser.add_argument('--json', metavar='FILE')
    args = parser.parse_args()
    chance = random.Random(args.seed)
    failed = number = 0
    seen = {}
    plan = [(ranks, phase) for ranks in args.ranks or [2, 4] for phase in args.phase or KINDS]
    print(f'1..{len(plan) * args.moments}\n# seed {args.seed}', flush=True)
    longest_us = {ranks: lengths(args, ranks) for ranks in dict(plan)}
    for ranks, phase in [at for at in plan for _ in range(args.moments)]:
        number += 1
        victim, after_us, ends = one(args, chance, ranks, phase, longest_us[ranks][phase])
        wrong = [f'{how}: {words}' for how, _, words in ends if how in ('late', 'unnamed')]
        failed += bool(wrong)
        seen.setdefault((ranks, phase), []).append(ends)
        print(f'{"not ok" if wrong else "ok"} {number} - {phase}: rank {victim} of {ranks}, killed after {after_us} us', flush=True)
        for text in wrong:
            print('#', text.replace('\n', '\n# '), flush=True)
        if args.json:
            with open(args.json, 'a', encoding='utf-8') as out:
                print(json.dumps({'ranks': ranks, 'phase': phase, 'victim': victim, 'after_us': after_us, 'busyness': launch.busyness(), 'ends': ends}), file=out)
    table(seen)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
