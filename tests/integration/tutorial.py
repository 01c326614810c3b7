#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md, command by command: each runs, and prints the lines that are shown.

    tutorial.py CDDPRUN BUILD     exit 77 (skipped) without pkg-config

A number stands for any number, and node1 for any name. "..." stands for any lines.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARK = '=== the next command ==='


def commands(page):
    """(command, the lines that it prints) of all blocks."""
    found = []
    for block in re.findall(r'(?ms)^```console\n(.*?)^```$', page):
        for line in block.splitlines():
            if line.startswith('$ '):
                found.append((line[2:], []))
            elif line != '...':
                found[-1][1].append(line)
    return found


def pattern(line):
    return re.sub(r'\d+(\\\.\d+)?', r'[0-9.]+', re.escape(line.replace('node1', 'NODE'))).replace('NODE', r'\S+')


def lacking(lines, output):
    return [line for line in lines if not re.search(rf'(?m)^{pattern(line)}', output)]


def main():
    cddprun, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    if not shutil.which('pkg-config'):
        print('skipped: there is no pkg-config')
        return 77
    todo = commands((ROOT / 'docs/tutorial.md').read_text(encoding='utf-8'))
    script = 'ulimit -c 0\n' + ''.join(f'echo "{MARK}"\n{command}\n' for command, _ in todo).replace('29500', str(launch.free_port()))
    with tempfile.TemporaryDirectory() as tmp:
        os.symlink(ROOT / 'examples', os.path.join(tmp, 'examples'))
        env = {**os.environ, 'CDDP_BACKEND': 'cpu', 'PATH': f'{cddprun.parent}:{os.environ["PATH"]}',
               'PKG_CONFIG_PATH': f'{build}/meson-uninstalled'}
        done = subprocess.run(['bash'], input=script, cwd=tmp, env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
    outputs = done.stdout.split(MARK + '\n')[1:]
    wrong = [f'{len(outputs)} of {len(todo)} commands ran'] if len(outputs) != len(todo) else []
    for (command, lines), output in zip(todo, outputs):
        missing = lacking(lines, output)
        print('FAILED' if missing else 'ok    ', command)
        wrong += [f'{command}\n  does not print: {line}\n  but:\n{output}' for line in missing]
        # A command without shown output prints nothing, or the output shown for the command beside it.
        if not lines and not command.endswith('&') and output.strip() and command != 'wait':
            wrong.append(f'{command}\n  prints:\n{output}')
    print('\n'.join(wrong))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
