#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of time limits in docs/stopping.md is that of common/time_limits.h, and each limit is used.

    time_limits.py ROOT           check
    time_limits.py ROOT --write   write the table
    time_limits.py --self-test    a table of another time, and a limit that nothing uses, must be found
"""
import pathlib
import re
import sys
import tempfile

ROW = re.compile(r'/\* (?P<who>[^|\n]+) \| (?P<what>[^|]+) \| (?P<flag>[^|]+) \*/\n#define (?P<name>CDI_LIMIT_\w+_S) (?P<seconds>\d+)\n')
HEADER, PAGE = 'common/time_limits.h', 'docs/stopping.md'
BEGIN, END = '<!-- time limits: tests/lint/time_limits.py --write -->\n', '<!-- end of time limits -->\n'
ROOMS = 'common', 'protocol', 'store', 'rendezvous', 'launcher', 'worker', 'preflight', 'watch'


def rows(root):
    """The limits of the header; every #define of a limit must be one."""
    text = (root / HEADER).read_text()
    found = [m.groupdict() for m in ROW.finditer(text)]
    assert len(found) == text.count('#define CDI_LIMIT_') - 2, f'{HEADER}: a limit has no "who | what | flag" in front of it'
    return found


def table(limits):
    """As Markdown."""
    lines = ['| limit | seconds | who waits | what for | set by |', '| --- | --- | --- | --- | --- |']
    for r in limits:
        name, flag = r['name'][len('CDI_LIMIT_'):-len('_S')].lower().replace('_', ' '), '' if r['flag'] == '-' else ' '.join(r['flag'].split())
        lines.append(f'| {name} | {r["seconds"]} | {r["who"]} | {r["what"]} | {flag} |')
    return BEGIN + '\n'.join(lines) + '\n' + END


def check(root):
    """Returns the faults; an empty list: none."""
    limits = rows(root)
    page = (root / PAGE).read_text()
    source = ''.join(p.read_text() for room in ROOMS for p in (root / room).rglob('*.[ch]') if p.name != 'time_limits.h')
    wrong = [f'{HEADER}: nothing uses {r["name"]}' for r in limits if not re.search(rf'\b{r["name"]}\b', source)]
    if table(limits) not in page:
        wrong.append(f'{PAGE}: the table is not that of {HEADER}; run tests/lint/time_limits.py ROOT --write')
    return wrong


def write(root):
    """Replaces the table of the page."""
    page = (root / PAGE).read_text()
    before, rest = page.split(BEGIN)
    (root / PAGE).write_text(before + table(rows(root)) + rest.split(END)[1])


def self_test():
    """Plants both faults."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in 'common', 'docs':
            (root / name).mkdir()
        limit = '/* a rank | for another | - */\n#define CDI_LIMIT_RANK_S 7\n'
        (root / HEADER).write_text('#define CDI_LIMIT_TEXT_(v) #v\n#define CDI_LIMIT_TEXT(v) CDI_LIMIT_TEXT_(v)\n' + limit)
        (root / 'common/use.c').write_text('int limit = CDI_LIMIT_RANK_S;\n')
        (root / PAGE).write_text(BEGIN + END)
        assert len(check(root)) == 1, 'an empty table is found'
        write(root)
        assert not check(root), 'the written table is right'
        (root / PAGE).write_text((root / PAGE).read_text().replace('| 7 |', '| 8 |'))
        assert len(check(root)) == 1, 'another time is found'
        write(root)
        (root / 'common/use.c').write_text('int limit = 7;\n')
        assert check(root) == [f'{HEADER}: nothing uses CDI_LIMIT_RANK_S'], 'an unused limit is found'


def main():
    """Runs what the arguments say."""
    if sys.argv[1] == '--self-test':
        self_test()
        return 0
    root = pathlib.Path(sys.argv[1])
    if sys.argv[2:] == ['--write']:
        write(root)
    wrong = check(root)
    print('\n'.join(wrong))
    return 1 if wrong else 0


sys.exit(main())
