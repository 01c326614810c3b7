#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a Containerfile's steps in a root folder, where no builder of images is: for tests, as root.

    containerfile.py FILE CONTEXT ROOT ARGUMENT...

FROM is what ROOT already has, whatever ARG says. ADD unpacks or copies from CONTEXT, RUN runs in the root, ENV and USER hold from there on, and
at the end ENTRYPOINT runs with the ARGUMENTs (CMD without any). Another instruction is an error, not skipped.
"""
import json
import pathlib
import shlex
import subprocess
import sys


def instructions(text):
    lines = [line for line in text.replace('\\\n', ' ').splitlines() if line.strip() and not line.lstrip().startswith('#')]
    return [tuple(line.strip().split(None, 1)) for line in lines]


class Root:
    def __init__(self, context, root):
        self.context, self.root = pathlib.Path(context), root
        self.env, self.user, self.entrypoint, self.cmd = {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin'}, '0', [], []

    def within(self, words, user='0'):
        env = [f'{name}={value}' for name, value in self.env.items()]
        subprocess.run(['chroot', f'--userspec={user}:{user}', self.root, '/usr/bin/env', '-i', *env, *words], check=True)

    def apply(self, name, rest):
        if name in ('FROM', 'ARG'):
            return
        if name == 'ADD':
            source, target = rest.split()
            subprocess.run(['tar', '-C', self.root + target, '--no-same-owner', '-xzf', self.context / source], check=True)
        elif name == 'RUN':
            self.within(['/bin/sh', '-euc', rest])
        elif name == 'ENV':
            for word in shlex.split(rest):
                key, _, value = word.partition('=')
                self.env[key] = value
        elif name == 'USER':
            self.user = rest
        elif name == 'ENTRYPOINT':
            self.entrypoint = json.loads(rest)
        elif name == 'CMD':
            self.cmd = json.loads(rest)
        else:
            sys.exit(f'containerfile.py does not know {name}')


def main():
    file, context, root, *arguments = sys.argv[1:]
    there = Root(context, root)
    for name, rest in instructions(pathlib.Path(file).read_text(encoding='utf-8')):
        there.apply(name, rest)
    there.within([*there.entrypoint, *(arguments or there.cmd)], there.user)


if __name__ == '__main__':
    main()
