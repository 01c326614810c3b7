#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes C source of a page: embed_page.py NAME PAGE.html > PAGE.c

The text before and after @DATA@ become two arrays, NAME_head and NAME_tail. @STYLE@ and @SCRIPT@ become the hashes of
the page's own style and script, so that a browser runs nothing else, whatever the data holds.
"""
import base64
import hashlib
import re
import sys


def source(page, tag):
    """The hash of the contents of <tag>...</tag>, as Content-Security-Policy wants it."""
    found = re.findall(rf'<{tag}>(.*?)</{tag}>', page, re.S)
    assert len(found) == 1, f'the page has {len(found)} times <{tag}>, and not once'
    digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
    return f"'sha256-{digest}'"


def array(name, text):
    data = text.encode()
    rows = [', '.join(str(b) for b in data[i:i + 32]) for i in range(0, len(data), 32)]
    return f'const unsigned char {name}[] = {{\n' + ',\n'.join(rows) + f'}};\nconst unsigned long {name}_size = {len(data)};\n'


def main():
    name, path = sys.argv[1:]
    with open(path, encoding='utf-8') as f:
        page = f.read()
    page = page.replace('@STYLE@', source(page, 'style')).replace('@SCRIPT@', source(page, 'script'))
    parts = page.split('@DATA@')
    assert len(parts) == 2, 'the page has not one @DATA@'
    print('/* Made by embed_page.py. */')
    for part, text in zip(('head', 'tail'), parts):
        print(f'extern const unsigned char {name}_{part}[];\nextern const unsigned long {name}_{part}_size;')
        print(array(f'{name}_{part}', text), end='')


if __name__ == '__main__':
    main()
