#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/lib/count_tests.py must see each way in which a test can fail, and must not see what is not there."""
import json
import subprocess
import sys
import tempfile

TAP = 'TAP version 13\n1..%d\n# Criterion\n'
CASES = [
    ('a plain success', {'result': 'OK', 'stdout': ''}, '1 0 0'),
    ('two good subtests', {'result': 'OK', 'stdout': TAP % 2 + 'ok - a::b\nok - a::c\n'}, '2 0 0'),
    ('one bad subtest', {'result': 'FAIL', 'stdout': TAP % 2 + 'ok - a::b\nnot ok - a::c\n'}, '1 1 0'),
    ('a plan without a version, at the end', {'result': 'ERROR', 'stdout': 'ok 1 - a\nnot ok 2 - b\n# why\n1..2\n'}, '1 1 0'),
    ('a skipped subtest', {'result': 'OK', 'stdout': TAP % 2 + 'ok - a::b\nok - a::c # SKIP no GPU\n'}, '1 0 1'),
    ('good subtests, then a crash', {'result': 'ERROR', 'stdout': TAP % 2 + 'ok - a::b\n'}, '1 1 0'),
    ('a filter that leaves nothing', {'result': 'OK', 'stdout': TAP % 0}, '0 1 0'),
    ('all skipped, and why', {'result': 'SKIP', 'stdout': '1..0 # SKIP no cluster\n'}, '0 0 1'),
    ('nothing, without a reason', {'result': 'SKIP', 'stdout': TAP % 0}, '0 1 0'),
    ('a failure', {'result': 'FAIL', 'stdout': ''}, '0 1 0'),
    ('too late', {'result': 'TIMEOUT', 'stdout': ''}, '0 1 0'),
    ('too late after good subtests', {'result': 'TIMEOUT', 'stdout': TAP % 2 + 'ok - a::b\n'}, '1 1 0'),
    ('an unexpected success', {'result': 'UNEXPECTEDPASS', 'stdout': ''}, '0 1 0'),
    ('an expected failure', {'result': 'EXPECTEDFAIL', 'stdout': ''}, '1 0 0'),
    ('a skip', {'result': 'SKIP', 'stdout': ''}, '0 0 1'),
    ('interrupted', {'result': 'INTERRUPT', 'stdout': ''}, '0 1 0'),
]


def main():
    wrong = 0
    for what, entry, expected in CASES:
        with tempfile.NamedTemporaryFile('w', suffix='.json') as log:
            log.write(json.dumps({'name': 'x', 'returncode': 1, **entry}) + '\n')
            log.flush()
            seen = subprocess.run([sys.executable, sys.argv[1], log.name], capture_output=True, text=True, check=True).stdout
        if seen.strip() != expected:
            print(f'{what}: counted "{seen.strip()}", not "{expected}"')
            wrong += 1
    with tempfile.NamedTemporaryFile('w', suffix='.json') as log:
        lines = ''.join(f'line {i}\n' for i in range(30))
        log.write(json.dumps({'name': 'y', 'returncode': 1, 'result': 'FAIL', 'stdout': '', 'stderr': lines}) + '\n')
        log.write(json.dumps({'name': 'z', 'returncode': 0, 'result': 'OK', 'stdout': '', 'stderr': lines}) + '\n')
        log.flush()
        err = subprocess.run([sys.executable, sys.argv[1], log.name], capture_output=True, text=True, check=True).stderr
    if 'stderr: line 29' not in err or 'line 9\n' in err or 'z' in err:
        print(f'the end of stderr of what failed, and of nothing else, was to be shown: "{err}"')
        wrong += 1
    sys.exit(1 if wrong else 0)


if __name__ == '__main__':
    main()
