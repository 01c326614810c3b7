#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/lib/second_run.py forgives a test that fails once beside others, and no other failure: planted ones in a project.

second_run.py SOURCE MESON
"""
import json
import os
import subprocess
import sys
import tempfile

# Fails in its first run with this text and status, passes in the second; two at once fail, too.
ONCE = """
if [ -e $1.ran ]; then mkdir alone && sleep 0.2 && rmdir alone && echo second words && exit 0; fi
touch $1.ran; printf "$2\\n"; eval "$3"
"""
# name: (suite, what it prints, how its first run ends, whether the second run decides)
PLANTED = {
    'late': ('integration', 'first words: 3 s instead of 1 s', 'exit 1', True),
    'late_too': ('netns', 'it did not end in time', 'exit 9', True),
    'wrong_result': ('integration', 'rank 1: wrong result: element 3 is 4, not 5', 'exit 1', False),
    'other_bits': ('netns', 'not ok 1 - test_two_hosts_have_the_same_bits', 'exit 1', False),
    'element': ('unit', 'test_cpu.c:10: out[i] == i + 1', 'exit 1', False),
    'crash': ('integration', 'nothing', 'kill -SEGV $$', False),
    'sanitizer': ('integration', 'ERROR: AddressSanitizer: heap-use-after-free', 'exit 1', False),
    'control_planted': ('integration', 'it was not caught', 'exit 1', False),
    'sum': ('exact', 'late', 'exit 1', False),
    'race': ('stress', 'late', 'exit 1', False),
}
ALWAYS = {'broken': ('integration', 'broken: fails each time', 'exit 1')}


def plant(folder, tests):
    with open(os.path.join(folder, 'once.sh'), 'w', encoding='utf-8') as script:
        script.write(ONCE)
    with open(os.path.join(folder, 'meson.build'), 'w', encoding='utf-8') as build:
        build.write("project('planted')\n")
        for name, (suite, text, ending, *_) in tests.items():
            script = "'-c', 'printf \"$2\\\\n\"; $3', 'sh'" if name in ALWAYS else "files('once.sh')"
            build.write(f"test('{name}', find_program('bash'), args: [{script}, '{name}', '{text}', '{ending}'], suite: '{suite}')\n")


def verdict_of(source, names):
    return subprocess.run([sys.executable, os.path.join(source, 'scripts/lib/second_run.py'), '--verdict', names], capture_output=True,
                          check=False).returncode


def run(source, meson, tests):
    """Returns the output of second_run.py, the flaky tests, the counts and the verdict."""
    with tempfile.TemporaryDirectory() as folder:
        plant(folder, tests)
        build, names = os.path.join(folder, 'build'), os.path.join(folder, 'flaky')
        # The scripts' marks are in the folder that the tests run in.
        subprocess.run([meson, 'setup', build, folder], stdout=subprocess.DEVNULL, check=True)
        subprocess.run([meson, 'test', '-C', build], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        open(names, 'w', encoding='utf-8').close()
        lib = os.path.join(source, 'scripts', 'lib')
        printed = subprocess.run([sys.executable, os.path.join(lib, 'second_run.py'), build, names], capture_output=True, text=True, check=True).stdout
        counts = subprocess.run([sys.executable, os.path.join(lib, 'count_tests.py'), os.path.join(build, 'meson-logs', 'testlog.json')],
                                capture_output=True, text=True, check=True).stdout
        with open(names, encoding='utf-8') as listed:
            flaky = {line.rpartition(' / ')[2] for line in listed.read().splitlines()}
        return printed, flaky, counts.split(), verdict_of(source, names)


def main():
    source, meson = sys.argv[1:]
    wrong = []

    def expect(what, seen, wanted):
        if seen != wanted:
            wrong.append(f'{what}: {json.dumps(seen, default=sorted)} instead of {json.dumps(wanted, default=sorted)}')

    printed, flaky, counts, verdict = run(source, meson, PLANTED | ALWAYS)
    forgiven = {name for name, how in PLANTED.items() if how[3]}
    expect('flaky', flaky, forgiven)
    expect('counted', counts, [str(len(forgiven)), str(len(PLANTED) + len(ALWAYS) - len(forgiven)), '0'])
    expect('two may be flaky', verdict, 0)
    for words in ('first words: 3 s instead of 1 s', 'second words', 'broken: failed alone, too', 'broken: fails each time'):
        expect(f'"{words}" is printed', words in printed, True)
    with tempfile.NamedTemporaryFile('w', suffix='.flaky') as names:
        names.write('a\nb\nc\n')
        names.flush()
        expect('three are too many', verdict_of(source, names.name), 1)
    _, flaky, counts, *_ = run(source, meson, {f'late_{i}': PLANTED['late'] for i in range(5)})
    expect('of five, none runs again', (len(flaky), counts), (0, ['0', '5', '0']))
    if wrong:
        sys.exit('\n'.join(wrong) + f'\n{printed}')


if __name__ == '__main__':
    main()
