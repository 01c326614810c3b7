#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Links of the documents lead to files that are in the tree, and to headings that those have; docs/index.md leads to all of docs/.
Programs in build/ are those that scripts/quickstart builds, or the page says how to build them.

links.py ROOT         names those that do not, and lines of README.md that are too long
links.py --self-test  a page with one fault of each kind must fail
"""
import pathlib
import re
import sys
import tempfile

LINK = re.compile(r'(?<!\\)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)')
PROGRAM = re.compile(r'(?<![\w/.-])build/(\w+/[\w/-]+)')
WIDEST = 160  # columns of README.md
LONGEST = 250  # lines of it


def anchors(text):
    """What a forge makes of the headings."""
    text = re.sub(r'(?ms)^```.*?^```$', '', text)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in re.findall(r'(?m)^#+ (.*)$', text)}


def faults(root):
    pages = [page for page in sorted(root.rglob('*.md')) if not {'tests', 'subprojects'} & set(page.relative_to(root).parts)
             and not page.relative_to(root).parts[0].startswith(('build', '.'))]
    built = (root / 'scripts/quickstart').read_text(encoding='utf-8').split()
    for page in pages:
        text = page.read_text(encoding='utf-8')
        for program in sorted(set(PROGRAM.findall(text)) - set(built)):
            if f'ninja -C build {program}\n' not in text:
                yield f'{page.relative_to(root)}: scripts/quickstart does not build {program}: write "ninja -C build {program}"'
        for target in LINK.findall(re.sub(r'(?ms)^```.*?^```$', '', text)):
            if re.match(r'\w+:', target):
                continue
            path, _, anchor = target.partition('#')
            there = (page.parent / path).resolve() if path else page
            if not there.exists():
                yield f'{page.relative_to(root)}: {target} is not there'
            elif anchor and there.suffix == '.md' and anchor not in anchors(there.read_text(encoding='utf-8')):
                yield f'{page.relative_to(root)}: {target} names no heading'
    index = (root / 'docs/index.md').read_text(encoding='utf-8')
    for page in sorted((root / 'docs').glob('*.md')):
        if page.name != 'index.md' and f']({page.name})' not in index:
            yield f'docs/index.md does not lead to {page.name}'
    readme = (root / 'README.md').read_text(encoding='utf-8').splitlines()
    yield from (f'README.md:{n}: {len(line)} columns' for n, line in enumerate(readme, 1) if len(line) > WIDEST)
    if len(readme) > LONGEST:
        yield f'README.md has {len(readme)} lines'


def self_test():
    with tempfile.TemporaryDirectory() as tmp:
        root = pathlib.Path(tmp)
        (root / 'docs').mkdir()
        (root / 'docs/index.md').write_text('# Here, and `there`\n[a](#here-and-there) [b](../README.md#top) [c](https://x/#y) [d](in.md)\n'
                                            '```\n[code](nowhere)\n```\n')
        (root / 'docs/in.md').write_text('')
        (root / 'README.md').write_text('# Top\n```\nbuild/a/quick\nninja -C build b/slow\nbuild/b/slow\n```\n')
        (root / 'scripts').mkdir()
        (root / 'scripts/quickstart').write_text('ninja -C "$build" a/quick\n')
        assert not list(faults(root)), list(faults(root))
        (root / 'docs/out.md').write_text('[a](gone.md) [b](../README.md#gone) `build/b/slow`\n')
        (root / 'README.md').write_text('# Top\n' + 'x' * (WIDEST + 1) + '\n' * LONGEST)
        found = ' '.join(faults(root))
        for says in ('does not build b/slow', 'gone.md is not there', 'README.md#gone names no heading', 'does not lead to out.md', 'README.md:2: ', 'README.md has '):
            assert says in found, (says, found)


def main():
    if sys.argv[1] == '--self-test':
        self_test()
        return 0
    found = list(faults(pathlib.Path(sys.argv[1]).resolve()))
    print('\n'.join(found))
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
