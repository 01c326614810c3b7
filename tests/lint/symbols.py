#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What libcddp shows to the world and asks of it.

symbols.py LIBCDDP_SO LIBCDDP_A CC HEADER...   check both libraries against the public headers
symbols.py --map MAP HEADER...                 the map of versions has each public function, by name, and nothing else
symbols.py --module MODULE_SO [mpi]            check a module, which may want of an MPI what MPI defines
symbols.py --self-test CC                      libraries with planted faults must be found
"""
import os
import re
import subprocess
import sys
import tempfile

NEEDED = re.compile(r'^(libc\.so\.\d+|libm\.so\.\d+|ld-linux.*\.so\.\d+)$')


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, 'LC_ALL': 'C'}).stdout


def defined(*nm_args):
    lines = run('nm', '--defined-only', '--format=posix', *nm_args).splitlines()
    # A is the name of a version, CDDP_0.1.
    return {fields[0] for fields in map(str.split, lines) if len(fields) >= 2 and len(fields[1]) == 1 and fields[1] != 'A'}


def declared(headers):
    """Names of the functions that the headers mark CDDP_API."""
    names = set()
    for header in headers:
        with open(header, encoding='utf-8') as source:
            names |= set(re.findall(r'\bCDDP_API\b[^;{}()]*?\b(cddp_\w+)\s*\(', source.read()))
    return names


def check_shared(lib, headers):
    versioned = defined('-D', lib)
    exported = {name.split('@')[0] for name in versioned}
    for name in sorted(versioned):
        if not re.search(r'@@CDDP_(\d+\.\d+|EXPERIMENTAL)$', name):
            yield f'{lib} exports {name} without a version'
    for name in sorted(exported):
        if not name.startswith('cddp_'):
            yield f'{lib} exports {name}: only cddp_* may be seen'
    if not exported:
        yield f'{lib} exports nothing'
    for name in sorted(declared(headers) - exported):
        yield f'{name} is declared in a public header, but {lib} does not export it'
    for needed in re.findall(r'\(NEEDED\).*\[(.*)\]', run('readelf', '-d', lib)):
        if not NEEDED.match(needed):
            yield f'{lib} needs {needed}: only libc, libm and the loader are allowed'
    if '(TEXTREL)' in run('readelf', '-d', lib):
        yield f'{lib} has relocations in its text'


def check_map(path, headers):
    """Both ways: each declared function has a version, and each function with a version is declared."""
    with open(path, encoding='utf-8') as source:
        text = re.sub(r'/\*.*?\*/', '', source.read(), flags=re.S)
    listed = []
    known = declared(headers)
    experimental = declared(one for one in headers if '/experimental/' in one)
    for node, body in re.findall(r'(\S+)\s*\{(.*?)\}', text, re.S):
        if not re.match(r'^CDDP_(\d+\.\d+|EXPERIMENTAL)$', node):
            yield f'{path}: node {node} is not named by a version'
        shown = re.search(r'global:(.*?)(?:local:|$)', body, re.S)
        names = shown[1].replace(';', ' ').split() if shown else []
        listed += names
        wrongly = experimental if node != 'CDDP_EXPERIMENTAL' else known - experimental
        for name in sorted(wrongly.intersection(names)):
            yield f'{path} lists {name} under {node}, which is not where its header belongs'
    for name in sorted(set(listed)):
        if '*' in name or '?' in name:
            yield f'{path} lists {name}: each function has its own line, or a later one joins an older version'
        elif name not in known:
            yield f'{path} lists {name}, which no public header declares'
        if listed.count(name) > 1:
            yield f'{path} lists {name} twice'
    for name in sorted(known - set(listed)):
        yield f'{name} is declared in a public header, but {path} does not list it'


def check_static(lib, cc):
    for name in sorted(defined('-g', lib)):
        if not name.startswith(('cddp_', 'cdi_')):
            yield f'{lib} defines {name}: a program that has the same name cannot link it; name it cdi_{name}'
    with tempfile.TemporaryDirectory() as tmp:
        done = subprocess.run([cc, '-shared', '-o', os.path.join(tmp, 'all.so'), '-Wl,-z,defs', '-Wl,--whole-archive', lib,
                               '-Wl,--no-whole-archive', '-lsodium', '-lm', '-pthread'], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield f'{lib} does not link against libsodium, libc and libm alone:\n{done.stderr}'


def check_module(lib, mpi=False):
    """One symbol to be found by, and nothing that libc, or an MPI, does not have."""
    exported = {line.split()[0].split('@')[0] for line in run('nm', '-D', '--defined-only', '--format=posix', lib).splitlines()}
    if exported != {'cddp_module'}:
        yield f'{lib} exports {", ".join(sorted(exported)) or "nothing"}: only cddp_module may be seen'
    for needed in re.findall(r'\(NEEDED\).*\[(.*)\]', run('readelf', '-d', lib)):
        if not re.match(r'^(libc\.so\.\d+|ld-linux.*\.so\.\d+)$', needed) and not (mpi and re.match(r'^lib\w*mpi\w*\.so', needed)):
            yield f'{lib} needs {needed}: only libc and the loader are allowed'
    for line in run('nm', '-D', '--undefined-only', '--format=posix', lib).splitlines():
        name, kind = line.split()[:2]
        if '@GLIBC' not in name and kind == 'U' and not (mpi and name.startswith(('MPI_', 'ompi_'))):
            yield f'{lib} wants {name}, which is not libc\'s'


def build(cc, folder, text, *link):
    """A shared and a static library from one text, as libcddp is built."""
    source, obj = os.path.join(folder, 'a.c'), os.path.join(folder, 'a.o')
    shared, static = os.path.join(folder, 'a.so'), os.path.join(folder, 'a.a')
    with open(source, 'w', encoding='utf-8') as out:
        out.write('#define API __attribute__((visibility("default")))\n' + text)
    run(cc, '-c', '-fPIC', '-fvisibility=hidden', '-o', obj, source)
    with open(os.path.join(folder, 'map'), 'w', encoding='utf-8') as out:
        out.write('CDDP_0.1 { *; };\n')
    versions = [] if link == ('unversioned',) else ['-Wl,--version-script=' + out.name]
    run(cc, '-shared', '-o', shared, obj, '-Wl,--no-as-needed', *(link if versions else []), *versions)
    run('ar', 'rcs', static, obj)
    return shared, static


def self_test(cc):
    good = 'API int cddp_f(void); int cdi_g(void); int cdi_g(void) { return 1; } API int cddp_f(void) { return cdi_g(); }\n'
    wrong = []
    cases = [
        ('clean', good, [], None),
        ('exported', good + 'API int planted(void); int planted(void) { return 1; }\n', [], 'exports planted'),
        ('internal', good + 'API int cdi_x(void); int cdi_x(void) { return 1; }\n', [], 'exports cdi_x'),
        ('version', 'API int cddp_f(void); int cddp_f(void) { return 1; }\n', ['unversioned'], 'exports cddp_f without a version'),
        ('collides', good + 'int list_add(void); int list_add(void) { return 1; }\n', [], 'defines list_add'),
        ('undefined', good + 'int uv_now(void); int cdi_y(void); int cdi_y(void) { return uv_now(); }\n', [], 'uv_now'),
        ('needed', good, ['-lresolv'], 'needs libresolv'),
        ('missing', good, [], 'cddp_missing is declared'),
    ]
    for name, text, link, expected in cases:
        with tempfile.TemporaryDirectory() as tmp:
            header = os.path.join(tmp, 'a.h')
            with open(header, 'w', encoding='utf-8') as out:
                out.write('CDDP_API int cddp_f(void);\n')
                if name == 'missing':
                    out.write('CDDP_API CDDP_NODISCARD int\n    cddp_missing(int a);\n')
            shared, static = build(cc, tmp, text, *link)
            found = list(check_shared(shared, [header])) + list(check_static(static, cc))
            module_faults = {'exported': 'planted', 'undefined': 'wants uv_now', 'needed': 'needs libresolv'}
            if name in module_faults and not any(module_faults[name] in one for one in check_module(shared)):
                wrong.append(f'{name}: not found in a module')
            if expected is None:
                wrong += [f'taken for a fault: {one}' for one in found]
            elif not any(expected in one for one in found):
                wrong.append(f'{name}: "{expected}" was not found, but {found}')
    maps = [
        ('CDDP_0.1 { global: cddp_f; local: *; };', None),
        ('/* cddp_g; */ CDDP_0.1 { global: cddp_f; local: *; }; CDDP_0.2 { } CDDP_0.1;', None),
        ('CDDP_0.1 { global: local: *; };', 'cddp_f is declared in a public header, but'),
        ('CDDP_0.1 { global: cddp_f; cddp_g; local: *; };', 'lists cddp_g, which no public header declares'),
        ('CDDP_0.1 { global: cddp_*; local: *; };', 'lists cddp_*: each function has its own line'),
        ('CDDP_0.1 { global: cddp_f; }; CDDP_0.2 { global: cddp_f; } CDDP_0.1;', 'lists cddp_f twice'),
        ('CDDP_0.1 { global: cddp_f; local: *; }; CDDP_EXPERIMENTAL { global: cddp_new; };', None),
        ('CDDP_0.1 { global: cddp_f; cddp_new; local: *; };', 'lists cddp_new under CDDP_0.1'),
        ('CDDP_EXPERIMENTAL { global: cddp_f; cddp_new; local: *; };', 'lists cddp_f under CDDP_EXPERIMENTAL'),
        ('CDDP_0 { global: cddp_f; local: *; };', 'node CDDP_0 is not named by a version'),
    ]
    for text, expected in maps:
        with tempfile.TemporaryDirectory() as tmp:
            header, path, new = os.path.join(tmp, 'a.h'), os.path.join(tmp, 'a.map'), os.path.join(tmp, 'experimental', 'b.h')
            with open(header, 'w', encoding='utf-8') as out:
                out.write('CDDP_API int cddp_f(void);\n')
            os.mkdir(os.path.dirname(new))
            with open(new, 'w', encoding='utf-8') as out:
                out.write('CDDP_API int cddp_new(void);\n' if 'cddp_new' in text else '')
            with open(path, 'w', encoding='utf-8') as out:
                out.write(text)
            found = list(check_map(path, [header, new]))
        if found if expected is None else not any(expected in one for one in found):
            wrong.append(f'{text}: {expected} expected, but {found}')
    return wrong


def main():
    if sys.argv[1] == '--self-test':
        wrong = self_test(sys.argv[2])
    elif sys.argv[1] == '--map':
        wrong = list(check_map(sys.argv[2], sys.argv[3:]))
    elif sys.argv[1] == '--module':
        wrong = list(check_module(sys.argv[2], sys.argv[3:] == ['mpi']))
    else:
        shared, static, cc = sys.argv[1:4]
        wrong = list(check_shared(shared, sys.argv[4:])) + list(check_static(static, cc))
    print('\n'.join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == '__main__':
    main()
