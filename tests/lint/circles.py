#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No circles: source files of the product call one another in one direction only, along the rooms of include_rule.py.

circles.py BUILD         check the objects of a build: circles of files and of rooms, calls of a room above; exit 1 if any
circles.py --arrows BUILD  print every arrow between files, with the symbols
circles.py --self-test CC  compile a circle of two files, one of two rooms, and a call upwards; each must be found
"""
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import include_rule

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
TOPS = ('common/', 'protocol/', 'store/', 'worker/', 'launcher/', 'rendezvous/', 'watch/')


def symbols(objects):
    """By object: the symbols that it defines for others, and those that it needs."""
    found = {str(path): (set(), set()) for path in objects}
    listed = subprocess.run(['nm', '-A', '-P', *found], stdout=subprocess.PIPE, check=True, text=True).stdout
    for line in listed.splitlines():
        path, name, kind = line.split()[:3]
        defined, needed = found[path.removesuffix(':')]
        if kind in 'Uvw':
            needed.add(name)
        elif kind.isupper():
            defined.add(name)
    return found


def objects_of(build):
    """Source, by its path in the tree -> object. A source that several targets compile counts once."""
    entries = json.loads((build / 'compile_commands.json').read_text(encoding='utf-8'))
    found = {}
    for entry in sorted(entries, key=lambda e: ('tests/' in e.get('output', ''), e.get('output', ''))):
        folder = pathlib.Path(entry['directory'])
        source = os.path.normpath(folder / entry['file'])
        path = os.path.relpath(source, ROOT)
        target = folder / entry['output'] if 'output' in entry else None
        if path.startswith(TOPS) and path.endswith('.c') and target and target.exists():
            found.setdefault(path, target)
    return found


def arrows_of(objects):
    """File -> file that it needs -> symbols."""
    of_object = symbols(objects.values())
    tables = {source: of_object[str(target)] for source, target in objects.items()}
    owners = collections.defaultdict(list)
    for source, (defined, _) in tables.items():
        for name in defined:
            owners[name].append(source)
    arrows = collections.defaultdict(lambda: collections.defaultdict(set))
    for source, (_, needed) in tables.items():
        for name in needed:
            # Programs and modules may define one name each: the nearest one is meant.
            near = sorted((o for o in owners[name] if o != source), key=lambda o: -len(os.path.commonprefix([o, source])))
            if near and source not in owners[name]:
                arrows[source][near[0]].add(name)
    return arrows


def circles(arrows):
    """Strongly connected components of more than one node (R. Tarjan, 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(part) > 1:
                found.append(sorted(part))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def by_room(arrows):
    rooms = collections.defaultdict(lambda: collections.defaultdict(set))
    for source, others in arrows.items():
        for other in others:
            mine, its = os.path.dirname(source), os.path.dirname(other)
            if mine != its:
                rooms[mine][its].add(f'{source} -> {other}')
    return rooms


def upwards(arrows):
    return [(source, other) for source in sorted(arrows) for other in sorted(arrows[source])
            if not include_rule.allows(source, other)]


def check(arrows):
    bad = 0
    for source, other in upwards(arrows):
        bad += 1
        print(f'{source} must not use {other}: {", ".join(sorted(arrows[source][other])[:6])}')
    for what, graph in (('files', arrows), ('rooms', by_room(arrows))):
        for circle in circles(graph):
            bad += 1
            print(f'a circle of {what}: {", ".join(circle)}')
            for one in circle:
                for other in sorted(set(graph[one]) & set(circle)):
                    print(f'    {one} -> {other}: {", ".join(sorted(graph[one][other])[:6])}')
    return bad


SELF_TEST = {
    'common/a.c': 'int b(void); int a(void); int a(void) { return b(); }',
    'common/b.c': 'int a(void); int b(void); int b(void) { return a(); }',
    'worker/comm/c.c': 'int d(void); int c(void); int e(void); int c(void) { return d(); }',
    'worker/base/d.c': 'int d(void); int d(void) { return 0; } int f(void); int e(void); int f(void) { return e(); }',
    'worker/comm/e.c': 'int e(void); int e(void) { return 0; }',
}


def self_test(compiler):
    with tempfile.TemporaryDirectory() as folder:
        objects = {}
        for path, text in SELF_TEST.items():
            source = pathlib.Path(folder, path)
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(text, encoding='utf-8')
            objects[path] = source.with_suffix('.o')
            subprocess.run([compiler, '-c', source, '-o', objects[path]], check=True)
        arrows = arrows_of(objects)
        found = circles(arrows), circles(by_room(arrows)), upwards(arrows)
    print(*found)
    return found != ([['common/a.c', 'common/b.c']], [['worker/base', 'worker/comm']], [('worker/base/d.c', 'worker/comm/e.c')])


def main():
    if sys.argv[1] == '--self-test':
        sys.exit(self_test(sys.argv[2]))
    arrows = arrows_of(objects_of(pathlib.Path(sys.argv[-1])))
    if sys.argv[1] == '--arrows':
        for source in sorted(arrows):
            for other in sorted(arrows[source]):
                print(f'{source} -> {other}: {" ".join(sorted(arrows[source][other]))}')
        sys.exit(0)
    sys.exit(1 if check(arrows) else 0)


if __name__ == '__main__':
    main()
