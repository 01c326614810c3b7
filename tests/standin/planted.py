#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Planted faults, each of which the stand-in has to catch in every run; without one, nothing may be reported.

planted.py MINI_REDUCER [--runs N] [--tsan]

Run i has seed i; even ones a slow device, odd ones a slow host. With --tsan (a build with ThreadSanitizer) the stand-in
only counts what it finds, and ThreadSanitizer has to report the race: a check that the stand-in hides none from it.
Prints a table and exits with 1 if a run was not as it should be. The project's promise is 50 of 50: --runs 50.
"""
import argparse
import os
import subprocess
import sys

STANDIN_EXIT, TSAN_EXIT, STUCK = 86, 66, 4
UNORDERED = 'standin: fault: unordered access'
DISAGREE = 'standin: fault: ranks do not agree'
# fault -> exit status, what has to be said
FAULTS = {
    'none': (0, None),
    'comm_wait': (STANDIN_EXIT, UNORDERED),
    'compute_wait': (STANDIN_EXIT, UNORDERED),
    'reuse': (STANDIN_EXIT, UNORDERED),
    'in_progress': (STANDIN_EXIT, UNORDERED),
    'order': (STANDIN_EXIT, DISAGREE),
    'order_equal': (STANDIN_EXIT, DISAGREE),
    'missing_rank': (STUCK, 'aborted: a rank did not come'),
}
RACES = {
    'none': (0, None),
    'comm_wait': (TSAN_EXIT, 'ThreadSanitizer: data race'),
    'compute_wait': (TSAN_EXIT, 'ThreadSanitizer: data race'),
    'reuse': (TSAN_EXIT, 'ThreadSanitizer: data race'),
}


def run(program, fault, seed, tsan):
    env = dict(os.environ, CDDP_STANDIN_SEED=str(seed), CDDP_STANDIN_DELAY=('device', 'host')[seed % 2],
               CDDP_STANDIN_QUERY='none')
    if fault == 'in_progress':
        env['CDDP_STANDIN_PROGRESS'] = '100'
    if tsan:
        env.update(CDDP_STANDIN_REPORT='count', TSAN_OPTIONS='halt_on_error=1:log_path=stderr')
    done = subprocess.run([program, fault], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=90, check=False)
    return done.returncode, done.stdout.decode(errors='replace')


def as_wanted(status, output, wanted):
    if wanted[1] is None:
        return status == wanted[0] and 'fault:' not in output
    return status == wanted[0] and wanted[1] in output


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('program')
    parser.add_argument('--runs', type=int, default=3)
    parser.add_argument('--tsan', action='store_true')
    args = parser.parse_args()
    bad = 0
    for fault, wanted in (RACES if args.tsan else FAULTS).items():
        good = 0
        for seed in range(1, args.runs + 1):
            status, output = run(args.program, fault, seed, args.tsan)
            if as_wanted(status, output, wanted):
                good += 1
            else:
                print(f'{fault}, seed {seed}: exit status {status}, wanted {wanted}')
                print('\n'.join('  | ' + line for line in output.splitlines()[-30:]))
        bad += args.runs - good
        print(f'{fault:14} {"quiet" if wanted[1] is None else "caught"} {good} of {args.runs}', flush=True)
    sys.exit(1 if bad else 0)


if __name__ == '__main__':
    main()
