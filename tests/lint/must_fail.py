#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Positive control: run a command that must be caught. must_fail.py PATTERN COMMAND [ARGS...]

Passes only if the command fails by itself *and* prints what the check prints when it catches something; a program that
does not start, or fails for another reason, does not prove that the check works.
"""
import re
import subprocess
import sys


def main():
    pattern, command = sys.argv[1], sys.argv[2:]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=100, check=False)
    output = done.stdout.decode(errors='replace')
    # Indented, so that nothing takes the failure that is wanted here for a failure of the run.
    print('\n'.join('  | ' + line for line in output.splitlines()[-40:]))
    if done.returncode == 0:
        sys.exit('control: the fault was not caught: exit status 0')
    if not re.search(pattern, output):
        sys.exit(f'control: it failed (status {done.returncode}), but its output lacks "{pattern}"')
    print(f'control: caught, status {done.returncode}')


if __name__ == '__main__':
    main()
