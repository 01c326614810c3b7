# SPDX-License-Identifier: Apache-2.0
"""The command cddp-bench of the wheel: the program finds libcddp in this package."""
import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'bin', 'cddp-bench')
    try:
        os.execv(program, ['cddp-bench', *sys.argv[1:]])
    except OSError as error:
        sys.exit(f'cddp-bench: cannot run {program}: {error.strerror}; install the wheel of cddprun again')
