#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wine on the stand-in, with one event wait of a step left out: the stand-in must report that in every run.

planted_waits.py CDDPRUN WINE [--runs N]    N (3) runs for each side of a bucket, each with another seed

The host also orders the work of the creation, so that leaving out one of its waits changes nothing; the waits from the
first reported one on belong to steps: the communication stream waits for the gradients, the compute stream for the means.
"""
import argparse
import os
import subprocess
import sys

SIDES = {
    'communication starts before the gradients are there': ("'ncclAllReduce'", "which 'wine_kernel_"),
    'the optimizer starts before the means are there': ("'wine_kernel_adam_f32'", "which 'cdi_scale'"),
}
LAST_WAIT = 60


def run(cddprun, wine, skip, seed):
    """The first fault that the stand-in reports, or ''."""
    env = {**os.environ, 'CDDP_STANDIN_SEED': str(seed)}
    if skip:
        env['CDDP_STANDIN_SKIP_WAIT'] = str(skip)
    done = subprocess.run([cddprun, '--standalone', '--nproc_per_node=2', wine, '--epochs', '2'], env=env, check=False,
                          capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    faults = [line for line in (done.stdout + done.stderr).splitlines() if 'standin: fault: unordered access' in line]
    if not faults and done.returncode != 0:
        raise SystemExit(f'not ok - without a fault exit status {done.returncode}:\n{done.stderr[-2000:]}')
    return faults[0] if faults else ''


def first_noticed(cddprun, wine, words):
    for skip in range(1, LAST_WAIT):
        if all(word in run(cddprun, wine, skip, skip) for word in words):
            return skip
    raise SystemExit(f'not ok - no wait, left out, makes a fault like {words}')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('cddprun')
    parser.add_argument('wine')
    parser.add_argument('--runs', type=int, default=3)
    args = parser.parse_args()
    bad = 0
    if run(args.cddprun, args.wine, 0, 1):
        raise SystemExit('not ok - a fault where none was planted')
    for side, words in SIDES.items():
        skip = first_noticed(args.cddprun, args.wine, words)
        # An epoch has three steps, each with one wait of either side.
        caught = sum(all(word in run(args.cddprun, args.wine, skip + 2 * (n % 3), 1000 + n) for word in words)
                     for n in range(args.runs))
        bad += caught != args.runs
        print(f'{side}: caught in {caught} of {args.runs} runs, the first being wait {skip}', flush=True)
    sys.exit(1 if bad else 0)


if __name__ == '__main__':
    main()
