#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/install.md, word for word: its commands install, compile a program and run it, and remove all again.

install_section.py SOURCE [WORD...]   SOURCE is a tree that may be written to; the words are added to 'meson setup'
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

RESULT = [f'w[{d}] = {d + 1}.00' for d in range(8)]


def blocks(page):
    """The commands that install, those that use the build folder, and the lines for CMake."""
    section = re.search(r'(?ms)^## With meson\n(.*?)^## ', page)
    found = re.findall(r'(?ms)^```(\w+)\n(.*?)^```$', section[1]) if section else []
    if [kind for kind, _ in found] != ['sh', 'sh', 'cmake']:
        sys.exit(f"docs/install.md has {[kind for kind, _ in found]}, not two blocks of sh and one of cmake")
    uninstall = re.search(r'`(ninja -C \S+ uninstall)`', section[1])
    if not uninstall:
        sys.exit("docs/install.md does not tell how to uninstall")
    return [text for _, text in found] + [uninstall[1]]


def run(what, script, source, env):
    """Runs a script in the source tree; its output. The program that it leaves is removed."""
    done = subprocess.run(['bash', '-ec', script], cwd=source, env=env, capture_output=True, text=True, timeout=1800)
    if os.path.exists(os.path.join(source, 'train')):
        os.unlink(os.path.join(source, 'train'))
    if done.returncode != 0:
        sys.exit(f'{what}: status {done.returncode}\n{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}')
    return done.stdout


def expect(what, output):
    lacking = [line for line in RESULT if line not in output]
    if lacking:
        sys.exit(f'{what}: the program does not say {lacking[0]}, but:\n{output[-3000:]}')
    print(f'{what}: works', flush=True)


def with_cmake(lines, source, home, env):
    if not shutil.which('cmake'):
        print('CMake: skipped, there is no cmake here')
        return
    folder = os.path.join(home, 'cmake')
    os.mkdir(folder)
    shutil.copy(os.path.join(source, 'train.c'), folder)
    with open(os.path.join(folder, 'CMakeLists.txt'), 'w', encoding='utf-8') as f:
        f.write(f'cmake_minimum_required(VERSION 3.16)\nproject(train C)\nadd_executable(train train.c)\n{lines}')
    script = f'cmake -S {folder} -B {folder}/build -DCMAKE_PREFIX_PATH={home}/cddp && cmake --build {folder}/build && {home}/cddp/bin/cddprun -n 2 {folder}/build/train'
    expect('CMake', run('CMake', script, source, {**env, 'PKG_CONFIG_PATH': f'{home}/cddp/lib/pkgconfig'}))


def main():
    source, words = os.path.abspath(sys.argv[1]), sys.argv[2:]
    with open(os.path.join(source, 'docs/install.md'), encoding='utf-8') as f:
        install, in_place, cmake, uninstall = blocks(f.read())
    shutil.copy(os.path.join(source, 'examples/line/together.c'), os.path.join(source, 'train.c'))
    with tempfile.TemporaryDirectory() as home:
        env = {k: v for k, v in os.environ.items() if k not in ('LD_LIBRARY_PATH', 'LD_RUN_PATH', 'DESTDIR')}
        env['HOME'] = home
        if not re.search(r'(?m)^meson setup build-install .*$', install):
            sys.exit("docs/install.md has no 'meson setup build-install'")
        extended = re.sub(r'(?m)^(meson setup build-install .*)$', lambda m: f'{m[1]} {shlex.join(words)}', install)
        expect('installed', run('installed', extended, source, env))
        with_cmake(cmake, source, home, env)
        run('uninstall', uninstall, source, env)
        left = [os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(home, 'cddp')) for name in names]
        if left:
            sys.exit(f'left after {uninstall}: {left}')
        print('uninstall: leaves nothing', flush=True)
        # The installed files are gone, so this runs the build folder's; scripts/quickstart's is called build.
        if in_place.count('build/') != 2:
            sys.exit("docs/install.md's commands without an installation do not name build/ twice")
        expect('not installed', run('not installed', in_place.replace('build/', 'build-install/'), source, env))


if __name__ == '__main__':
    main()
