#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/setup asks for what the build needs and no more: any C compiler, no Criterion, for any PATH.

setup_needs.py SETUP    runs SETUP --check with a separate PATH, on which pretended programs and libraries are
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

TOOLS = ['bash', 'cat', 'dirname', 'id', 'sed', 'sort']  # what scripts/setup itself runs
PROGRAMS = {'meson': 'echo 1.0.1', 'ninja': ':', 'python3': ':'}
LIBRARIES = ['libsodium', 'libuv', 'jansson']
BUILD = {**PROGRAMS, 'clang': 'cat'}
WORDS = 'a C compiler', 'meson 1.0', 'ninja', 'pkg-config', 'python3', 'libsodium 1.0.16', 'libuv 1.40', 'jansson 2.12'


def check(setup, programs, libraries, *args, debian=True, **env):
    """Exit status and words of scripts/setup --check on such a machine."""
    with tempfile.TemporaryDirectory() as folder:
        scripts = {**programs}
        if libraries:
            scripts['pkg-config'] = f'set -- $2; case $1 in {"|".join(libraries)}) exit 0 ;; esac; exit 1'
        if debian:
            scripts |= {'dpkg-query': 'exit 1', 'apt-get': 'exit 1'}  # not one package is installed
        for name, text in scripts.items():
            path = pathlib.Path(folder, name)
            path.write_text(f'#!/bin/sh\n{text}\n', encoding='ascii')
            path.chmod(0o755)
        for name in TOOLS:
            os.symlink(shutil.which(name), os.path.join(folder, name))
        done = subprocess.run([os.path.join(folder, 'bash'), setup, '--check', *args], env={'PATH': folder, **env},
                              capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr


def expect(what, found, status, *words):
    if found[0] != status or not all(word in found[1] for word in words):
        sys.exit(f'{what}: status {found[0]}, not {status}; it says: {found[1]!r}, which should have {words}')
    print(f'{what}: as it should be')


def main():
    setup = sys.argv[1]
    expect('clang and no Criterion', check(setup, BUILD, LIBRARIES), 0)
    expect('the same elsewhere than on Debian', check(setup, BUILD, LIBRARIES, debian=False), 0)
    expect('a compiler in CC', check(setup, {**PROGRAMS, 'mycc': 'cat'}, LIBRARIES, CC='mycc -m64'), 0)
    expect('a CC that is not there', check(setup, BUILD, LIBRARIES, CC='mycc'), 1, "CC is 'mycc'")
    expect('no compiler', check(setup, PROGRAMS, LIBRARIES), 1, 'missing: gcc libc6-dev\n')
    expect('a meson that is too old', check(setup, {**BUILD, 'meson': 'echo 0.61.2'}, LIBRARIES), 1, 'missing: meson\n')
    expect('no libuv', check(setup, BUILD, ['libsodium', 'jansson']), 1, 'missing: libuv1-dev\n')
    expect('nothing', check(setup, {}, []), 1, 'missing: gcc libc6-dev meson ninja-build pkg-config python3 libsodium-dev')
    expect('nothing, elsewhere than on Debian', check(setup, {}, [], debian=False), 1, *WORDS, '/bin/pip install meson ninja')
    expect('tests need gcc and Criterion', check(setup, BUILD, LIBRARIES, '--quick'), 1, 'missing: gcc libcriterion-dev')


if __name__ == '__main__':
    main()
