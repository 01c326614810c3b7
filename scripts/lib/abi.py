#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs built with the headers of the last release must run with this library: is that still so?

    abi.py ROOT CC INCLUDE_DIR... -- LIBCDDP_SO   compile tests/data/abi.inc, what that release promised, with the headers of now
    abi.py ROOT --bless                           make tests/data/abi.inc from the headers of now: with a release, and with a new
                                                  soversion where something was taken away
    abi.py --self-test ROOT CC INCLUDE_DIR...     planted changes must be found, and compatible ones must pass
    abi.py ROOT --abidiff ABIDIFF LIBCDDP_SO      compare with tests/data/abi.xml, the library of that release
    abi.py ROOT --bless-library LIBCDDP_SO        make tests/data/abi.xml of this library (with debugging information)

The promise is C: each function once more, and the place, size and type of each member and the value of each constant as
static assertions, for enumerations of 32 bits and with -fshort-enums. A struct that begins with `size` may grow at its end,
and in no other way; the others keep their size. No struct has padding, in which a new member would find garbage.
abidiff cannot tell such a member from a change that breaks: of what it finds only symbols that are gone, or have another
version, are an error, unless they are experimental (tests/data/abi.suppr). All else is printed for people, and the promise decides.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from api_page import read
from public_headers import whole

PROMISE = 'tests/data/abi.inc'
DUMP = 'tests/data/abi.xml'
NO_PROMISE = 'tests/data/abi.suppr'
DUMPED = ['--no-show-locs', '--drop-private-types', '--no-elf-needed', '--no-corpus-path', '--no-comp-dir-path',
          '--exported-interfaces-only']
HEAD = '''/* SPDX-License-Identifier: Apache-2.0 */
/* What libcddp {version} promised to programs that were built with it. Made by scripts/lib/abi.py --bless. */
#include <cddp/cddp.h>

#define IS(type, member, at, what)                                                                                \\
    _Static_assert(offsetof(type, member) == (at), #type "." #member " is at another place");                     \\
    _Static_assert(__builtin_types_compatible_p(__typeof__(((type *)0)->member), what), #type "." #member " is of another type")
'''


def bare(text):
    return ' '.join(re.sub(r'/\*.*?\*/', '', text, flags=re.S).split())


def members(body):
    """(name, type) of each member of a struct."""
    for one in filter(None, map(str.strip, bare(body).split(';'))):
        pointer = re.match(r'(.*?)\(\*(\w+)\)(\(.*\))$', one)
        if pointer:
            yield pointer[2], f'{pointer[1]}(*){pointer[3]}'
            continue
        first, *more = one.split(',')
        plain = re.match(r'(.*?)(\w+)((?:\[\w+\])*)$', first)
        yield plain[2], plain[1].strip() + plain[3]
        for name in more:  # double beta1, beta2;
            yield name.strip(), plain[1].strip()


def promise(root, cc, dirs):
    """The text of the promise that the headers of now make."""
    text = whole(root, experimental=False).split('#ifndef CDDP_H', 1)[1]
    status = (root / 'include/cddp/status.h').read_text(encoding='utf-8')
    version = re.search(r"version: '([^']+)'", (root / 'meson.build').read_text(encoding='utf-8'))[1]
    values = re.findall(r'(CDDP_\w+) = (-?\d+),', status)
    functions, structs, enums = [], [], ['cddp_status']
    for kind, name, declaration, _ in read(text):
        body = re.search(r'\{(.*)\}', declaration, re.S)
        if kind == 'function':
            functions.append(re.sub(r'CDDP_(API|NODISCARD) ', '', declaration))
        elif kind == 'macro':
            values.append((name, declaration.split(None, 2)[2]))
        elif kind == 'flag':
            values.append(tuple(declaration.split(' = ')))
        elif declaration.startswith('typedef enum'):
            values += re.findall(r'(CDDP_\w+) = (\w+)', bare(body[1]))
            enums.append(name)
        elif body:
            structs.append((name, list(members(body[1]))))
    lines = ['', *functions, '']
    lines += [f'_Static_assert({name} == {value}, "{name} has another value");' for name, value in values] + ['']
    lines += [f'_Static_assert(sizeof({name}) == 4, "{name} is not 32 bits wide");' for name in enums] + ['']
    for name, parts in structs:
        if parts[0] == ('size', 'size_t'):
            lines.append(f'_Static_assert(sizeof({name}) >= @sizeof({name})@, "{name} is smaller");')
            lines.append(f'_Static_assert(sizeof({name}) % 8 == 0 && sizeof({name}) <= 4096, "{name} has a size that is refused");')
        else:
            lines.append(f'_Static_assert(sizeof({name}) == @sizeof({name})@, "{name} has another size");')
        lines += [f'IS({name}, {part}, @offsetof({name}, {part})@, {what});' for part, what in parts]
    made = HEAD.format(version=version) + '\n'.join(lines) + '\n'
    wanted = re.findall(r'@(.*?)@', made)
    numbers = iter(measure(cc, dirs, wanted))
    return re.sub(r'@(.*?)@', lambda _: next(numbers), made)


def measure(cc, dirs, expressions):
    with tempfile.TemporaryDirectory() as tmp:
        source, program = pathlib.Path(tmp, 'a.c'), pathlib.Path(tmp, 'a')
        source.write_text('#include <cddp/cddp.h>\n#include <stdio.h>\nint main(void) {\n'
                          + ''.join(f'printf("%zu\\n", {one});\n' for one in expressions) + '}\n', encoding='utf-8')
        subprocess.run([cc, *(f'-I{d}' for d in dirs), '-o', program, source], check=True)
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()


def broken(root, cc, dirs, text):
    """What the headers do not keep of a promise."""
    with tempfile.TemporaryDirectory() as tmp:
        source = pathlib.Path(tmp, 'abi.c')
        source.write_text(text, encoding='utf-8')
        said = [subprocess.run([cc, '-std=gnu17', '-fsyntax-only', '-Wall', '-Wpadded', '-Werror', *more,
                                *(f'-I{d}' for d in dirs), source], capture_output=True, text=True, check=False).stderr
                for more in ([], ['-fshort-enums'])]
    wrong = sorted({line.split('error: ', 1)[1] for line in ''.join(said).splitlines() if 'error: ' in line})
    declared = {name for kind, name, _, _ in read(whole(root)) if kind == 'function'}
    # Said once more, a function that is gone would be declared here and nowhere else.
    return wrong + [f'{name} is gone' for name in promised(text) if name not in declared]


def promised(text):
    return re.findall(r'^[^#_\n/].*?\b(cddp_\w+)\(', text, re.M)


def not_exported(lib, text):
    lines = subprocess.run(['nm', '-D', '--defined-only', '--format=posix', lib], capture_output=True, text=True, check=True).stdout
    exported = {line.split('@')[0].split()[0] for line in lines.splitlines()}
    return [f'{lib} does not export {name}' for name in promised(text) if name not in exported]


PLANTED = [  # a text of cddp.h, its replacement, and the complaint that must follow (None: none)
    (r'CDDP_API size_t cddp_ddp_bucket_count\(.*?\);', '', None),  # experimental
    (r'CDDP_API int cddp_restart_count\(.*?\);', '', 'cddp_restart_count is gone'),
    (r'(cddp_sampler_set_epoch\(cddp_sampler \*sampler, )int64_t', r'\1int32_t', 'conflicting types'),
    (r'CDDP_FLOAT16 = 7', 'CDDP_FLOAT16 = 17', 'CDDP_FLOAT16 has another value'),
    (r'CDDP_DDP_SUM = 2', 'CDDP_DDP_SUM = 64', 'CDDP_DDP_SUM has another value'),
    (r'(    const char \*backend;.*?\n)(    const char \*device;.*?\n)', r'\2\1', 'cddp_init_options.backend is at another place'),
    (r'(    int join_timeout_ms;)', r'    uint64_t planted;\n\1', 'cddp_init_options.join_timeout_ms is at another place'),
    (r'    int join_timeout_ms;', '    unsigned join_timeout_ms;', 'cddp_init_options.join_timeout_ms is of another type'),
    (r'    int timeout_ms;   ', '    int64_t timeout_ms;   ', 'cddp_init_options.timeout_ms is of another type'),
    (r'(    void \*arg;[^\n]*\n)(?=} cddp_init_options;)', r'\1    int planted;\n', 'padding'),
    (r'(    void \*arg;[^\n]*\n)(?=} cddp_init_options;)', r'\1    char planted[4096];\n', 'cddp_init_options has a size that is refused'),
    (r'(    const size_t \*in_counts;[^\n]*\n)', '', "no member named .in_counts"),
    (r'(    uint64_t n;      [^\n]*\n)', r'\1    uint64_t planted;\n', 'cddp_metric has another size'),
    (r'uint64_t words\[8\]', 'uint64_t words[9]', 'cddp_sampler_state has another size'),
    (r'    CDDP_ENUM_32\(CDDP_DTYPE\)\n', '', 'cddp_dtype is not 32 bits wide'),
    (r'(\(\*interrupted\)\(void \*arg)', r'\1, int planted', 'cddp_init_options.interrupted is of another type'),
    (r'(    void \*arg;[^\n]*\n)(?=} cddp_init_options;)', r'\1    uint64_t planted;\n', None),
    (r'(#ifdef __cplusplus\n\}\n)', r'CDDP_API int cddp_planted(void);\n\1', None),
    (r'CDDP_COLL_RECV = 10', 'CDDP_COLL_RECV = 10,\n    CDDP_PLANTED = 1000', None),
]


def self_test(root, cc, dirs):
    before, wrong = promise(root, cc, dirs), []
    text = whole(root)
    for pattern, to, says in PLANTED:
        with tempfile.TemporaryDirectory() as tmp:
            shutil.copytree(root / 'include', pathlib.Path(tmp, 'include'))
            changed, n = re.subn(pattern, to, text, count=1, flags=re.S)
            pathlib.Path(tmp, 'include/cddp/cddp.h').write_text(changed, encoding='utf-8')
            found = broken(pathlib.Path(tmp), cc, [f'{tmp}/include', *dirs], before)
        if n != 1:
            wrong.append(f'there is no {pattern} to change')
        elif not any(re.search(says, one) for one in found) if says else found:
            wrong.append(f'{pattern}: {says} expected, but {found}')
    return wrong


def compare(abidiff, dump, lib, root):
    """(what is wrong, abidiff's report); its exit status: 1 an error, 2 of the command line, 4 changes, 8 surely breaking."""
    with tempfile.NamedTemporaryFile('w', suffix='.xml', encoding='utf-8') as old:
        old.write(dump)
        old.flush()
        done = subprocess.run([abidiff, '--suppressions', root / NO_PROMISE, '--headers-dir2', root / 'include', old.name, lib], capture_output=True, text=True, check=False)
    if done.returncode & 3:
        return [f'abidiff failed: {done.stdout + done.stderr}'], ''
    return (['abidiff: symbols of the last release are gone'] if done.returncode & 8 else []), done.stdout


def compare_library(root, abidiff, lib):
    dump = (root / DUMP).read_text(encoding='utf-8')
    wrong, report = compare(abidiff, dump, lib, root)
    for what, planted in (('a function that is gone', dump.replace("'cddp_abort'", "'cddp_planted'")),
                          ('a symbol of another version', dump.replace("version='CDDP_0.1'", "version='CDDP_PLANTED'"))):
        if planted == dump or not compare(abidiff, planted, lib, root)[0]:
            wrong.append(f'planted, and not found: {what}')
    experimental = dump.replace("'cddp_coll_enqueue'", "'cddp_planted'")
    if experimental == dump or compare(abidiff, experimental, lib, root)[0]:
        wrong.append('an experimental function that is gone is an error')
    return wrong + [report]


def main():
    args = sys.argv[1:]
    if args[0] == '--self-test':
        wrong = self_test(pathlib.Path(args[1]), args[2], args[3:])
    elif args[1] == '--bless':
        root = pathlib.Path(args[0])
        with tempfile.TemporaryDirectory() as tmp: # whose version.h says nothing that counts here
            pathlib.Path(tmp, 'cddp').mkdir()
            pathlib.Path(tmp, 'cddp/version.h').touch()
            (root / PROMISE).write_text(promise(root, 'cc', [root / 'include', tmp]), encoding='utf-8')
        return 0
    elif args[1] == '--bless-library':
        root = pathlib.Path(args[0])
        subprocess.run(['abidw', *DUMPED, '--headers-dir', root / 'include', '--out-file', root / DUMP, args[2]], check=True)
        return 0
    elif args[1] == '--abidiff':
        *wrong, report = compare_library(pathlib.Path(args[0]), *args[2:])
        print(report)
    else:
        root, text = pathlib.Path(args[0]), (pathlib.Path(args[0]) / PROMISE).read_text(encoding='utf-8')
        wrong = broken(root, args[1], args[2:args.index('--')], text)
        wrong += not_exported(args[args.index('--') + 1], text)
        if wrong:
            wrong.append('A program of the last release would break. If that is meant: a new soversion in meson.build, and '
                         'scripts/lib/abi.py ROOT --bless')
    print('\n'.join(wrong))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
