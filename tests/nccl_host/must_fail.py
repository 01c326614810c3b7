#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""On NCCL's host code, one rank does its work with one thing wrong: the conformance suite must notice each.

    must_fail.py CONFORMANCE        with the environment of tests/nccl_host
"""
import os
import subprocess
import sys

# The fault, the number of ranks, and the case that must notice it. Without a fault each case passes.
FAULTS = (
    ('buffer', 2, 'all_reduce'),
    ('count', 2, 'all_reduce'),
    ('offset', 2, 'all_reduce'),
    ('operation', 2, 'all_reduce'),
    ('root', 3, 'broadcast sends'),
    ('peer', 3, 'send and recv work'),
)


def failures(conformance, fault, ranks, case):
    env = dict(os.environ, **({'NCCL_HOST_FAULT': fault} if fault else {}))
    done = subprocess.run([conformance, f'nccl:{ranks}', case], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=240, check=False)
    ran = [line for line in done.stdout.splitlines() if line.startswith(('ok', 'not ok')) and 'SKIP' not in line]
    if not ran:
        raise SystemExit(f'no case is named {case!r}:\n{done.stdout}{done.stderr}')
    return sum(line.startswith('not ok') for line in ran)


def main():
    bad = number = 0
    cases = sorted({(ranks, case) for _, ranks, case in FAULTS})
    print(f'1..{len(cases) + len(FAULTS)}', flush=True)
    for fault, ranks, case in [('', *c) for c in cases] + list(FAULTS):
        number += 1
        right = (failures(sys.argv[1], fault, ranks, case) > 0) == (fault != '')
        bad += not right
        print(f'{"ok" if right else "not ok"} {number} - {case}: {fault or "nothing"} wrong', flush=True)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
