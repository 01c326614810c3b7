#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which glibc the ELF files below a folder need, and which libraries of the system.

glibc_versions.py FOLDER [--at-most 2.28]   prints each file with the highest version of a symbol of glibc that it uses;
                                            fails if one is higher, if a file needs a library that is neither part
                                            of glibc nor in the folder, if a program copies variables of glibc, or
                                            if there is no ELF file at all
glibc_versions.py --self-test               each of these faults must be found

Variables are copied (copy relocations) where an object was compiled without -fPIC. Their places then come from the
libc that the program was linked with; in zig's, which has no code, all variables have the same place.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

GLIBC = re.compile(r'(ld-linux[\w-]*|libc|libm|libdl|libpthread|librt|libresolv|libutil)\.so\.\d+')


def elf_files(folder):
    for path in sorted(pathlib.Path(folder).rglob('*')):
        if path.is_file() and not path.is_symlink():
            with path.open('rb') as f:
                if f.read(4) == b'\x7fELF':
                    yield path


def version(text):
    return tuple(int(part) for part in text.split('.'))


def needs(path):
    """The highest GLIBC version of a symbol ('' for a static program), and the libraries."""
    text = subprocess.run(['readelf', '--wide', '--version-info', '--dynamic', str(path)], capture_output=True, text=True,
                          check=True, env={**os.environ, 'LC_ALL': 'C'}).stdout
    versions = set(re.findall(r'Name: GLIBC_([\d.]+)', text))
    return max(versions, key=version, default=''), re.findall(r'\(NEEDED\)\s+Shared library: \[(.+)\]', text)


def copies(path):
    text = subprocess.run(['readelf', '--wide', '--relocs', str(path)], capture_output=True, text=True, check=True,
                          env={**os.environ, 'LC_ALL': 'C'}).stdout
    return re.findall(r'_COPY +[0-9a-f]+ +([^ @]+)', text)


def faults(folder, most):
    files = list(elf_files(folder))
    if not files:
        yield f'{folder}: no ELF file'
    own = {path.name for path in pathlib.Path(folder).rglob('*.so*')}
    for path in files:
        name = path.relative_to(folder)
        highest, libraries = needs(path)
        print(f'{str(name):44} {"GLIBC_" + highest if highest else "static"}')
        if highest and most and version(highest) > version(most):
            yield f'{name} needs GLIBC_{highest}'
        yield from (f'{name} copies {variable}' for variable in copies(path))
        yield from (f'{name} needs {library}' for library in libraries if library not in own and not GLIBC.fullmatch(library))


def self_test():
    with tempfile.TemporaryDirectory() as tmp:
        library = pathlib.Path(tmp, 'libown.so.1')
        subprocess.run(['cc', '-shared', '-x', 'c', '-', '-o', library, '-Wl,-soname,libown.so.1'], check=True, text=True,
                       input='#include <stdio.h>\nvoid own(void) { puts(""); }')
        program = pathlib.Path(tmp, 'program')
        subprocess.run(['cc', '-x', 'c', '-', '-x', 'none', library, '-o', program], check=True, text=True,
                       input='void own(void);\nint main(void) { own(); }')
        assert not list(faults(tmp, '99')), 'a fault where there is none'
        assert any('GLIBC_' in fault for fault in faults(tmp, '1.0')), 'a version that is too high was not found'
        library.unlink()
        assert list(faults(tmp, '99')) == ['program needs libown.so.1'], 'a library that is missing was not found'
        subprocess.run(['cc', '-fno-pie', '-no-pie', '-x', 'c', '-', '-o', program], check=True, text=True,
                       input='#include <stdio.h>\nint main(void) { fputs("x", stderr); }')
        assert list(faults(tmp, '99')) == ['program copies stderr'], 'a copied variable was not found'
        program.unlink()
        assert list(faults(tmp, '')), 'an empty folder was accepted'


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', nargs='?')
    parser.add_argument('--at-most', default='')
    parser.add_argument('--self-test', action='store_true')
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if args.folder is None:
        parser.error('FOLDER is missing')
    found = list(faults(args.folder, args.at_most))
    return '\n'.join(found) if found else 0


if __name__ == '__main__':
    sys.exit(main())
