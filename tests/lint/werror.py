#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A warning must stop the build: compile controls/warning.c as the build compiles a product file, with and without a fault.

werror.py BUILD_DIR PRODUCT_FILE CONTROL_FILE   exit 77 (skipped) if the build was not configured with --werror
"""
import json
import os
import shlex
import subprocess
import sys


def main():
    build, product, control = sys.argv[1:4]
    with open(os.path.join(build, 'compile_commands.json'), encoding='utf-8') as database:
        entry = next(one for one in json.load(database)
                     if os.path.realpath(os.path.join(one['directory'], one['file'])) == os.path.realpath(product))
    command = shlex.split(entry['command'])
    command = [word for i, word in enumerate(command)
               if word not in ('-MD', '-c', '-o', '-MQ', '-MF') and command[i - 1] not in ('-o', '-MQ', '-MF', '-c')]
    command += ['-fsyntax-only', control]
    if '-Werror' not in command:
        print('skipped: this build was not configured with --werror')
        sys.exit(77)

    clean = subprocess.run(command, cwd=entry['directory'], capture_output=True, text=True, check=False)
    if clean.returncode != 0:
        sys.exit(f'the control does not compile without its fault:\n{clean.stderr}')
    faulty = subprocess.run(command + ['-DFAULT'], cwd=entry['directory'], capture_output=True, text=True, check=False)
    print('\n'.join('  | ' + line for line in faulty.stderr.splitlines()))
    if faulty.returncode == 0 or 'conversion' not in faulty.stderr:
        sys.exit('the warning in the control did not stop the compiler')


if __name__ == '__main__':
    main()
