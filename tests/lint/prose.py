#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plain English: counts phrases that this project does not use, in comments, messages, names of tests, and documents.

prose.py ROOT              check the tree: one line per phrase that prose_allowed.txt does not list; exit 1 if there is any
prose.py --count ROOT      how often each pattern occurs, and the length of sentences in the documents
prose.py FILE...           the phrases of these files, whether allowed or not
prose.py --self-test       each pattern finds its planted phrase, and none of those that are right
"""
import pathlib
import re
import statistics
import subprocess
import sys

# Name of a pattern, what to write, the expression. Sources: house rules in CONTRIBUTING.md, section "English".
VERB = (r'(?:is|are|was|were|has|have|had|does|do|did|can|may|must|would|will|should|needs?|wants?|knows?|comes?|came|goes|went|gets?|takes?|'
        r'gives?|makes?|waits?|reads?|writes?|holds?|lies|lie|stands?|uses?|calls?|asks?|sends?|starts?|stops?|ends?|fails?|follows?|lacks?|'
        r'runs?|sees?|hears?|says?|looks?|leaves?|left|joins?|finds?|keeps?|counts?|listens?|answers?|opens?|closes?|speaks?|tells?|cannot|'
        r'belongs?|happens?|happened|remains?|sleeps?|spins?|begins?|never|already|still|only|once|else|not|no|has|sets?|works?|stays?|dies|died|passes|shares?)')
PATTERNS = {
    'headless': ('begin with the subject: "A rank that waits", not "who waits"',
                 rf'(?:^|[.;:(!?]["\')]? |, |\b(?:and|or|but|that|if|when|while|so) )(?:who|whoever|whatever|what) {VERB}\b(?![^.;]*\?)'),
    'said': ('software prints, reports, returns or sends', r'\b(?:is|are|was|were|be|been|being) (?:\w+ly |then |not |also |never )?(?:said|told)\b(?! apart)'),
    'sentence': ('error message, message or line', r'\bsentences?\b'),
    'is_no': ('"is not a"', r"\b(?<!there )(?:is|are|was|were) no (?!longer\b|more than\b|less than\b|fewer than\b|later than\b|better than\b|worse than\b|\d)\w+"),
    'behind': ('"after"', r'(?<!\bis )(?<!\bare )(?<!\bbe )\bbehind\b'),
    'of_its_own': ('"its own", "separate"', r'\bof (?:its|their|his|her|your|our) own\b'),
    'such_as': ('"such as"', r'(?<=, )as (?:in )?["`\'][^"`\']{1,30}["`\']'),
    'he': ('"it", "they"', r'\b(?:he|him|himself)\b'),
    'else': ('"otherwise"', r'(?<!thing)(?<!body)(?<!where)(?<!one)(?<!who)(?<!what)(?<!all),? \belse[.;:)](?= |$)'),
}
COMPILED = {name: re.compile(expression, re.IGNORECASE | re.MULTILINE) for name, (_, expression) in PATTERNS.items()}
HERE = pathlib.Path(__file__).resolve().parent
ALLOWED = HERE / 'prose_allowed.txt'
SKIP = ('bench/results/', 'tests/data/', 'tests/fuzz/corpus', 'examples/wine/data', 'examples/gpt/data', 'LICENSE', '.codespellrc', 'tests/lint/prose')
SUFFIXES = ('.c', '.h', '.cu', '.in', '.inc', '.py', '.md', '.sh', '.build', '.txt')
C_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\bTest\([^)]*\)', re.S)
PY_TEXT = re.compile(r'(?P<doc>""".*?"""|\'\'\'.*?\'\'\')|#[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def plain(text):
    """Comment marks and line ends become spaces of the same number, so that a place in the text is a place in the file."""
    text = re.sub(r'^[ \t]*(/\*+|\*+/|\*|//+|#+)', lambda m: ' ' * len(m.group(0)), text, flags=re.M)
    return re.sub(r'\*/|\\n', lambda m: ' ' * len(m.group(0)), text)


def c_segments(text):
    """Comments whole, neighbouring strings as one text."""
    last, start, out = None, 0, []
    for m in C_TEXT.finditer(text):
        piece = m.group(0)
        if piece.startswith('"'):
            if last == '"' and not re.sub(r'\s|PRI\w+', '', text[out[-1][0] + len(out[-1][1]):m.start()]):
                gap = text[out[-1][0] + len(out[-1][1]):m.start()]
                out[-1] = (out[-1][0], out[-1][1] + re.sub(r'[^\n]', ' ', gap) + piece)
                continue
            last = '"'
        else:
            last = piece[0]
            if piece.startswith('Test('):
                piece = piece.replace('_', ' ')
        out.append((m.start(), piece))
    return out


def segments(path, text):
    name = path.name
    if name.endswith(('.c', '.h', '.cu', '.h.in', '.inc')):
        # Neighbouring // lines are one text.
        text = re.sub(r'(//[^\n]*\n)(?=[ \t]*//)', lambda m: m.group(1), text)
        found = c_segments(text)
    elif name.endswith('.md'):
        found, at = [], 0
        text = re.sub(r'^#.*$', lambda m: ' ' * len(m.group(0)), text, flags=re.M)
        fenced = re.sub(r'^```.*?^```', lambda m: re.sub(r'[^\n]', ' ', m.group(0)), text, flags=re.S | re.M)
        for part in re.split(r'(\n[ \t]*\n|\n(?=[ \t]*(?:[-*|]|\d+\.) ?))', fenced):
            found.append((at, part))
            at += len(part)
    else:
        found = [(m.start(), m.group(0)) for m in PY_TEXT.finditer(text)]
    for at, piece in found:
        clean = plain(piece)
        if clean[:1] in '"\'':
            clean = ' ' + re.sub(r'"\s*"', lambda m: ' ' * len(m.group(0)), clean[1:-1]) + ' '
            if clean.startswith(' ""'):
                clean = '   ' + clean[3:]
        lead = len(clean) - len(clean.lstrip())
        yield at + lead, clean[lead:]


def squeeze(text):
    """One space for each run of spaces, and for each place in the result its place in the text."""
    out, where = [], []
    for i, ch in enumerate(text):
        ch = ' ' if ch in '\n\t' else ch
        if ch == ' ' and out and out[-1] == ' ':
            continue
        out.append(ch)
        where.append(i)
    return ''.join(out), where


def find(path, text):
    for at, piece in segments(path, text):
        line, where = squeeze(piece)
        for name, pattern in COMPILED.items():
            for m in pattern.finditer(line):
                lead = len(m.group(0)) - len(m.group(0).lstrip(' .;:(!?"\'),'))
                begin = where[min(m.start() + lead, len(where) - 1)]
                yield (name, text.count('\n', 0, at + begin) + 1, line[max(0, m.start() - 30):m.end() + 40].strip())


def tree_files(root):
    listed = subprocess.run(['git', '-C', root, 'ls-files', '-z'], stdout=subprocess.PIPE, check=False)
    names = listed.stdout.decode().split('\0') if listed.returncode == 0 else [str(p.relative_to(root)) for p in pathlib.Path(root).rglob('*')]
    for name in sorted(names):
        path = pathlib.Path(root, name)
        script = name.startswith('scripts/') and '.' not in path.name
        if path.is_file() and not path.is_symlink() and not name.startswith(SKIP) and (script or name.endswith(SUFFIXES)):
            yield name, path


def allowed():
    if not ALLOWED.exists():
        return []
    rows = [line.split('\t') for line in ALLOWED.read_text(encoding='utf-8').splitlines() if line and not line.startswith('#')]
    return [tuple(row) for row in rows]


def check(root):
    rows, used, bad = allowed(), set(), 0
    for name, path in tree_files(root):
        for kind, line, text in find(path, path.read_text(encoding='utf-8', errors='replace')):
            row = next((r for r in rows if r[0] == kind and r[1] == name and r[2] in text), None)
            if row:
                used.add(row)
                continue
            bad += 1
            print(f'{name}:{line}: {kind}: write {PATTERNS[kind][0]}: {text}')
    for row in rows:
        if row not in used:
            bad += 1
            print(f'prose_allowed.txt: no longer needed: {" ".join(row)}')
    return bad


def sentence_lengths(root):
    for name, path in tree_files(root):
        if name == 'README.md' or (name.startswith('docs/') and name.endswith('.md') and name != 'docs/api.md'):
            text = re.sub(r'^```.*?^```', '', path.read_text(encoding='utf-8'), flags=re.S | re.M)
            text = re.sub(r'^[ \t]*\|.*$|^#.*$|<[^>]+>', '', text, flags=re.M)
            words = [len(s.split()) for p in re.split(r'\n\s*\n|\n(?=- )', text) for s in re.split(r'(?<=[.!?:;])\s', p) if len(s.split()) > 2]
            if words:
                words.sort()
                yield name, len(words), statistics.median(words), words[int(len(words) * 0.9)], words[-1]


def count(root):
    total = dict.fromkeys(PATTERNS, 0)
    where = {name: {} for name in PATTERNS}
    for name, path in tree_files(root):
        for kind, _, _ in find(path, path.read_text(encoding='utf-8', errors='replace')):
            total[kind] += 1
            room = '/'.join(name.split('/')[:2])
            where[kind][room] = where[kind].get(room, 0) + 1
    for kind, n in total.items():
        print(f'{kind:12} {n:5}   ' + ', '.join(f'{r} {k}' for r, k in sorted(where[kind].items(), key=lambda x: -x[1])[:8]))
    print('\nsentences: document, number, words in the median, 90 % and longest')
    for row in sentence_lengths(root):
        print('%-36s %4d %5.1f %4d %4d' % row)


PLANTED = {
    'headless': ['/* Who waits gets the lock. */', '"what is left is closed"', '/* a; who knows it waits */', 'Test(x, who_does_not_answer_is_closed)'],
    'said': ['/* The error is said once. */', '"rank %d was told"'],
    'sentence': ['/* the sentence of the failure */'], 'is_no': ['"%s is no rendezvous"'], 'behind': ['/* put behind the others */'],
    'of_its_own': ['/* a thread of its own */'], 'such_as': ['/* a text, as "timed out" */'], 'he': ['/* until he answers */'],
    'else': ['/* 0 if it is set, -1 else. */'],
}
RIGHT = ['/* A rank that waits gets the lock. */', '/* Returns what the caller stored. */', '/* It is no longer used. */', 'if (x) a(); else b();',
         '"such as \\"timed out\\""', '/* Who has not answered? */', '/* its own thread */', 'int behind_it = 1;', '/* There is no limit. */', '/* It holds nothing else. */', '/* They are told apart. */', '/* Both can be told apart. */']


def self_test():
    wrong = []
    for kind, texts in PLANTED.items():
        for text in texts:
            if kind not in [k for k, _, _ in find(pathlib.Path('a.c'), text)]:
                wrong.append(f'{kind} is not found in: {text}')
    for text in RIGHT:
        wrong += [f'{k} is found in: {text}' for k, _, _ in find(pathlib.Path('a.c'), text)]
    print('\n'.join(wrong) or 'each planted phrase is found')
    return len(wrong)


def main():
    if sys.argv[1:] == ['--self-test']:
        return 1 if self_test() else 0
    if len(sys.argv) == 3 and sys.argv[1] == '--count':
        count(sys.argv[2])
        return 0
    if len(sys.argv) == 2 and pathlib.Path(sys.argv[1]).is_dir():
        return 1 if check(sys.argv[1]) else 0
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        for kind, line, text in find(path, path.read_text(encoding='utf-8', errors='replace')):
            print(f'{name}:{line}: {kind}: {text}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
