#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs built with the header of another version run with this library.

grown.py ROOT CC INCLUDE_DIR... -- LIBCDDP_SO
grown.py ... -- LIBCDDP_SO --planted    where structs have grown in their middle, that must be found

The other headers are made from cddp.h: in the newer one each struct that begins with `size` has two members more, in the
older one its last eight bytes are gone. grown.c is built with each, and with enumerations as short as they can be.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / 'scripts' / 'lib'))
from public_headers import whole  # noqa: E402

STRUCT = re.compile(r'(typedef struct (\w+) \{\n    size_t size;.*?\n)(\} \2;)', re.S)
KEPT = {'cddp_bucket'}  # the library's own


def grow(match):
    return f'{match[1]}    uint64_t planted;\n    uint64_t planted_last;\n{match[3]}'


def grow_in_the_middle(match):
    return re.sub(r'(    size_t size;.*?\n)', r'\1    uint64_t planted;\n    uint64_t planted_last;\n', match[0], count=1)


def shrink(match):
    if match[2] in KEPT:
        return match[0]
    left = 8
    lines = match[1].rstrip('\n').split('\n')
    while left > 0:
        line = lines.pop()
        while not re.match(r'    \w.*;', line):  # the rest of a comment
            line = lines.pop()
        array = re.search(r'(\w+)\[(\d+)\];', line)
        left -= int(array[2]) if array else 4 if re.match(r'    (int|uint32_t) ', line) else 8
    return '\n'.join(lines) + '\n' + match[3]


def header_of(text, change):
    """The header of another version, and how many structs of it differ."""
    made = STRUCT.sub(change, text)
    before, after = ([m[0] for m in STRUCT.finditer(one)] for one in (text, made))
    return made, sum(a != b for a, b in zip(before, after))


def main():
    split = sys.argv.index('--')
    root, cc, dirs, lib = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:split], pathlib.Path(sys.argv[split + 1]).resolve()
    text = whole(root)
    n_structs = len(STRUCT.findall(text))
    wrong = []
    versions = [('the same', None, []), ('newer', grow, ['-DNEWER']), ('older', shrink, []),
                ('short enumerations', None, ['-fshort-enums'])]
    if sys.argv[-1] == '--planted':
        versions = [('planted', grow_in_the_middle, [])]
    for version, change, flags in versions:
        with tempfile.TemporaryDirectory() as tmp:
            include = pathlib.Path(tmp, 'cddp')
            include.mkdir()
            made, n_changed = header_of(text, change) if change else (text, 0)
            (include / 'cddp.h').write_text(made, encoding='utf-8')
            if change and n_changed < n_structs - len(KEPT):
                wrong.append(f'{version}: {n_changed} of {n_structs} structs were changed')
            program = os.path.join(tmp, 'grown')
            built = subprocess.run([cc, '-std=gnu17', '-Wall', '-Werror', '-Wpadded', *flags, f'-I{tmp}', *(f'-I{d}' for d in dirs),
                                    pathlib.Path(__file__).with_name('grown.c'), '-o', program, lib, f'-Wl,-rpath,{lib.parent}'],
                                   capture_output=True, text=True, check=False)
            if built.returncode != 0:
                wrong.append(f'{version}: {built.stderr}')
                continue
            bare = {k: v for k, v in os.environ.items() if not re.match(r'CDDP_|MASTER_|RANK$|WORLD_SIZE$|LOCAL_', k)}
            done = subprocess.run([program, tmp], capture_output=True, text=True, check=False, timeout=100, cwd=tmp, env=bare)
            print(f'{version}: {n_changed} structs changed; {done.stdout.strip()}')
            if done.returncode != 0:
                wrong.append(f'{version}: {done.stdout}{done.stderr}')
    print('\n'.join(wrong))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
