#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Count what 'meson test' ran: reads a testlog.json, prints "PASSED FAILED SKIPPED", names on stderr what failed.

The subtests of a TAP program (every Criterion program of ours) count one by one. A TAP program that ran no test at all
counts as failed: a filter or a build mistake that leaves nothing to run must not look green.
"""
import json
import re
import shlex
import sys

TAP_PLAN = re.compile(r'^1\.\.\d+', re.M)
TAP_SKIP_ALL = re.compile(r'^1\.\.0\s*#\s*skip', re.M | re.I)
TAP_LINE = re.compile(r'^\s*(not )?ok\b(.*)$')
DETAILS = 20  # lines of what a failed subtest says about itself


def count_tap(test):
    """Return [passed, failed, skipped], names of failed subtests."""
    counts, failed, details = [0, 0, 0], [], 0
    for line in test.get('stdout', '').splitlines():
        match = TAP_LINE.match(line)
        if not match:
            if details > 0:
                failed[-1] += '\n    ' + line
                details -= 1
            continue
        details = 0
        directive = match.group(2).upper()
        if '# SKIP' in directive:
            counts[2] += 1
        elif match.group(1) and '# TODO' not in directive:
            counts[1] += 1
            failed.append(match.group(2).strip(' -'))
            details = DETAILS
        else:
            counts[0] += 1
    return counts, failed


def hint(test):
    """Criterion's TAP output hides what a test says in its teardown, where hygiene.h finds leaks."""
    command = [word for word in test.get('command', []) if word != '--tap']
    return '; a leak, or a crash outside the tests; see: ' + shlex.join(command) if command else ''


def count(test):
    """Return [passed, failed, skipped], names for one entry of the log."""
    name, result = test['name'], test['result']
    is_tap = TAP_PLAN.search(test.get('stdout', ''))
    if is_tap and result != 'EXPECTEDFAIL':
        counts, failed = count_tap(test)
        names = [f'{name}: {one}' for one in failed]
        if result not in ('OK', 'SKIP') and not counts[1]:
            counts[1], names = 1, [f'{name}: {result.lower()}, exit status {test.get("returncode")}{hint(test)}']
        if sum(counts) == 0 and TAP_SKIP_ALL.search(test['stdout']):
            return [0, 0, 1], []
        if sum(counts) == 0:
            counts[1], names = 1, [f'{name}: ran no test']
        return counts, names
    if result in ('OK', 'EXPECTEDFAIL'):
        return [1, 0, 0], []
    if result == 'SKIP':
        return [0, 0, 1], []
    return [0, 1, 0], [f'{name}: {result.lower()}, exit status {test.get("returncode")}']


def last_words(test):
    """The end of what a failed test printed on stderr, indented: the next run overwrites meson's own log."""
    return ''.join(f'\n    stderr: {line[:400]}' for line in test.get('stderr', '').rstrip().splitlines()[-DETAILS:])


def main():
    total = [0, 0, 0]
    with open(sys.argv[1], encoding='utf-8', errors='replace') as log:
        for line in log:
            test = json.loads(line)
            counts, names = count(test)
            total = [a + b for a, b in zip(total, counts)]
            for name in names:
                print('failed:', name, file=sys.stderr)
            if names and last_words(test):
                print(f'{test["name"]}:{last_words(test)}', file=sys.stderr)
    print(*total)


if __name__ == '__main__':
    main()
