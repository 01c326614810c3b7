#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs each test that failed in 'meson test' once more, alone: a test that passes then counts as passed, and as flaky.

    second_run.py BUILD LIST ARG...     the arguments are those of meson test, but for the choice of tests
    second_run.py --verdict LIST        names the flaky tests of a whole run; fails if they are too many

It replaces the entry of each flaky test in BUILD/meson-logs/testlog.json, appends its name to the file LIST, and prints the
ends of both logs. Failures that final() names stay what they are. If more than MANY are left, none runs again.
tests/README.md describes the rules.
"""
import json
import os
import re
import signal
import subprocess
import sys

import count_tests

ALLOWED = 2    # flaky tests of a whole run
MANY = 4       # failures of one 'meson test' beyond which the change is at fault, and not the clock
LINES = 15     # of the end of each log
# Tests that compute, race or search the sources: a failure there is never one of time.
FINAL_SUITES = {'conformance', 'exact', 'lint', 'reference', 'sanitizer', 'sim', 'standin', 'stress'}
FINAL_SIGNALS = [signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT]
CRASH = re.compile(r'unexpected signal caught|segmentation fault|bus error|core dumped|stack smashing|double free|corrupt|free\(\): ', re.I)
SANITIZER = re.compile(r'(Address|Leak|Memory|Thread|UndefinedBehavior)Sanitizer|: runtime error: ')
# The words of a comparison that failed, and the conditions of elements and memory in C.
WRONG = re.compile(r'\bwrong\b|\bdiffers?\b|\bbits\b|mismatch|not the same|unequal|\bnan\b|elements? \d+ .*\bnot\b|memcmp|\].{0,40} [!=]= |'
                   r'assert .*(loss|weight|grad|sum).* == |conditions for this assertion were not met', re.I)


def said(entry):
    """What a failed test printed, without the names of its subtests that passed."""
    lines = entry.get('stdout', '').splitlines() + entry.get('stderr', '').splitlines()
    return '\n'.join(line for line in lines if not re.match(r'\s*ok\b', line))


def final(entry, suites):
    """Returns why this failure is not to be forgiven; None: a second run may decide."""
    status = entry.get('returncode') or 0
    if entry['result'] == 'UNEXPECTEDPASS' or entry['name'].rpartition(' / ')[2].startswith('control_'):
        return 'a fault that was planted was not found'
    if suites & FINAL_SUITES:
        return f'no failure of the suite {min(suites & FINAL_SUITES)} is one of time'
    if any(status in (-number, 128 + number) for number in FINAL_SIGNALS) or CRASH.search(said(entry)):
        return 'it crashed'
    if SANITIZER.search(said(entry)):
        return 'a sanitizer reported'
    if WRONG.search(said(entry).replace('_', ' ')):
        return 'a result is wrong'
    return None


def end(entry):
    return ''.join(f'\n    | {line[:300]}' for line in said(entry).rstrip().splitlines()[-LINES:]) or '\n    | (nothing)'


def read_log(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding='utf-8', errors='replace') as log:
        return [json.loads(line) for line in log]


def failed(entry):
    return count_tests.count(entry)[0][1] > 0


def passed(entry):
    counts = count_tests.count(entry)[0]
    return counts[0] > 0 and counts[1] == 0


def again(build, test, args):
    """Runs one test beside no other; its entry, or None."""
    path = os.path.join(build, 'meson-logs', 'second.json')
    if os.path.exists(path):
        os.unlink(path)
    subprocess.run(['meson', 'test', '-C', build, *args, '--no-rebuild', '--quiet', '--num-processes', '1', '--logbase', 'second',
                    '--suite', test['suite'][0].rpartition(':')[2], test['name']], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    entries = read_log(path)
    return entries[0] if len(entries) == 1 else None


def known_tests(build):
    """Each test of the build, by the name that 'meson test' gives it."""
    with open(os.path.join(build, 'meson-info', 'intro-tests.json'), encoding='utf-8') as tests:
        found = {}
        for test in json.load(tests):
            project = test['suite'][0].partition(':')[0]
            suites = '+'.join(suite.partition(':')[2] for suite in test['suite'])
            found[f'{project}:{suites} / {test["name"]}'] = test
            found.setdefault(test['name'], test)  # that of a project with one suite
        return found


def run_again(build, names, args):
    path = os.path.join(build, 'meson-logs', 'testlog.json')
    entries, tests = read_log(path), known_tests(build)
    bad = {}
    for i, entry in enumerate(entries):
        test = tests.get(entry['name'])
        if failed(entry):
            why = final(entry, {suite.rpartition(':')[2] for suite in test['suite']}) if test else 'its name is not unique'
            if why:
                print(f'{entry["name"]}: no second run: {why}')
            else:
                bad[i] = test
    if len(bad) > MANY:
        print(f'{len(bad)} tests failed: none runs again')
        return
    for i, test in bad.items():
        entry, second = entries[i], again(build, test, args)
        if second is None or not passed(second):
            print(f'{entry["name"]}: failed alone, too:{end(second or {})}')
            continue
        entries[i] = second
        with open(names, 'a', encoding='utf-8') as flaky:
            flaky.write(entry['name'] + '\n')
        print(f'flaky: {entry["name"]}: failed beside other tests ({entry["result"].lower()}, {entry["duration"]:.1f} s):{end(entry)}\n'
              f'  passed alone ({second["duration"]:.1f} s):{end(second)}\n---')
    with open(path, 'w', encoding='utf-8') as log:
        log.writelines(json.dumps(entry) + '\n' for entry in entries)


def verdict(names):
    with open(names, encoding='utf-8') as listed:
        flaky = listed.read().splitlines()
    if flaky:
        print('flaky, passed only alone:', *flaky, sep='\n  ')
    if len(flaky) > ALLOWED:
        print(f'{len(flaky)} are flaky, and a run may have {ALLOWED}: this run fails')
    return len(flaky) <= ALLOWED


def main():
    if sys.argv[1] == '--verdict':
        sys.exit(0 if verdict(sys.argv[2]) else 1)
    run_again(sys.argv[1], sys.argv[2], sys.argv[3:])


if __name__ == '__main__':
    main()
