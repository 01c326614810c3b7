#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each public header alone must compile as C99 to C23 and as C++11 to C++23, without a warning, after any other header.

headers.py CC CXX INCLUDE_DIR... -- HEADER...   exit 77 (skipped) without a C++ compiler (CXX is '-')
headers.py --self-test CC CXX                   headers with faults of one language each must be found
"""
import os
import re
import subprocess
import sys
import tempfile

STANDARDS = ('c99', 'c11', 'c17', 'c2x', 'c++11', 'c++14', 'c++17', 'c++20', 'c++2b')  # c2x and c++2b: as gcc 12 calls them
STRICT = ['-fsyntax-only', '-Wall', '-Wextra', '-Wpedantic', '-Werror', '-Wundef', '-Wshadow']


def initializers(dirs, header):
    """A function for each struct of the header, which returns its initial value."""
    at = next(filter(os.path.exists, (os.path.join(d, header) for d in dirs)))
    with open(at, encoding='utf-8') as text:
        names = re.findall(r'^typedef struct (cddp_\w+) \{\n    size_t size;', text.read(), re.M)
    return ''.join(f'{n} make_{n}(void);\n{n} make_{n}(void) {{ {n} x = CDDP_INIT({n}); return x; }}\n' for n in names)


def compile_alone(cc, cxx, dirs, header):
    """What the compilers that refuse the header say, one text per language; a stable one needs no CDDP_EXPERIMENTAL."""
    refusals = []
    with tempfile.TemporaryDirectory() as tmp:
        for std, more in [(std, ['-DCDDP_EXPERIMENTAL']) for std in STANDARDS] + ([] if '/experimental/' in header else [('c99', [])]):
            compiler, suffix = (cxx, 'cpp') if '+' in std else (cc, 'c')
            source = os.path.join(tmp, 'alone.' + suffix)
            with open(source, 'w', encoding='utf-8') as out:
                out.write(f'#include <{header}>\n#include <{header}>\nint alone;\n' + initializers(dirs, header))
            done = subprocess.run([compiler, '-std=' + std, *STRICT, *more, *('-I' + d for d in dirs), source],
                                  capture_output=True, text=True, check=False)
            if done.returncode != 0:
                refusals.append(f'<{header}> as {std}:\n{done.stderr}')
    return refusals


FAULTS = {
    'c99.h': ('c99', '_Static_assert(sizeof(int) > 1, "C11");\n'),
    'c23.h': ('c2x', '#if __STDC_VERSION__ > 201710L\n#error "C23"\n#endif\n'),
    'cxx20.h': ('c++20', 'int f(int requires);\n'),
    'cxx.h': ('c++11', 'struct s { int class; };\n'),
    'experimental_alone.h': ('c99', '#ifndef CDDP_EXPERIMENTAL\n#error "this header is not stable"\n#endif\n'),
    'both.h': ('c99', 'size_t f(void);\n'),
    'no_size.h': ('c99', '#define CDDP_INIT(type) {sizeof(type)}\n#include <stddef.h>\ntypedef struct cddp_two {\n    size_t size;\n'
                         '    int two;\n} cddp_two;\n'),
    'prototype.h': ('c++11', '#include <string.h>\nstatic inline char *f(void *p) { return p; }\n'),
}


def self_test(cc, cxx):
    wrong = []
    with tempfile.TemporaryDirectory() as tmp:
        for name, (std, text) in FAULTS.items():
            with open(os.path.join(tmp, name), 'w', encoding='utf-8') as out:
                out.write('#pragma once\n' + text)
            if not any(f'as {std}:' in one for one in compile_alone(cc, cxx, [tmp], name)):
                wrong.append(f'the fault in {name} was not found as {std}')
        with open(os.path.join(tmp, 'clean.h'), 'w', encoding='utf-8') as out:
            out.write('#ifndef CLEAN_H\n#define CLEAN_H\n#include <stddef.h>\nsize_t f(void);\n#endif\n')
        wrong += compile_alone(cc, cxx, [tmp], 'clean.h')
    return wrong


def main():
    args = sys.argv[1:]
    if args[0] == '--self-test':
        cc, cxx = args[1:3]
    else:
        cc, cxx = args[:2]
    if cxx == '-':
        print('skipped: there is no C++ compiler')
        sys.exit(77)
    if args[0] == '--self-test':
        wrong = self_test(cc, cxx)
    else:
        split = args.index('--')
        wrong = [one for header in args[split + 1:] for one in compile_alone(cc, cxx, args[2:split], header)]
    print('\n'.join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == '__main__':
    main()
