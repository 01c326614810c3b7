# SPDX-License-Identifier: Apache-2.0
"""A strict reader of the array form of Chrome's Trace Event Format (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU),
and the questions that Perfetto's trace processor would answer by SQL: slices of a track, with their parents.

read(path) returns a Trace, or raises Wrong with the line. Perfetto and chrome://tracing ignore or repair much of what is an
error here: unknown phases, an E without a B, slices of a thread that overlap without one containing the other, times that are
not numbers, events before the names of their process.
"""
import decimal
import json
import os

PHASES = {  # phase -> members that it must have, beyond those of all
    'B': {'name', 'ts', 'cat'},
    'E': {'ts'},
    'X': {'name', 'ts', 'dur', 'cat'},
    'i': {'name', 'ts', 's', 'cat'},
    'M': {'name', 'args'},
}
MAY = {'ph', 'pid', 'tid', 'name', 'ts', 'dur', 'cat', 's', 'args'}
METADATA = {'process_name': 'name', 'thread_name': 'name', 'process_labels': 'labels', 'process_sort_index': 'sort_index',
            'thread_sort_index': 'sort_index'}


class Wrong(Exception):
    pass


def no_duplicates(pairs):
    names = [name for name, value in pairs]
    if len(names) != len(set(names)):
        raise Wrong(f'a member twice: {names}')
    return dict(pairs)


def check(event):
    phase = event.get('ph')
    if phase not in PHASES:
        raise Wrong(f'unknown phase: {event}')
    missing = (PHASES[phase] | {'pid', 'tid'}) - event.keys()
    if missing or event.keys() - MAY:
        raise Wrong(f'members {sorted(missing)} are missing, or not known: {event}')
    for name in 'pid', 'tid':
        if type(event[name]) is not int or event[name] <= 0:
            raise Wrong(f'{name}: {event}')
    for name in {'ts', 'dur'} & event.keys():
        if type(event[name]) not in (int, decimal.Decimal) or not 0 <= event[name] < 2**53 or event[name] * 1000 % 1 != 0:
            raise Wrong(f'{name}: {event}')
    for name in {'name', 'cat'} & event.keys():
        if type(event[name]) is not str or not event[name]:
            raise Wrong(f'{name}: {event}')
    if event.get('s', 'g') not in ('g', 'p', 't') or type(event.get('args', {})) is not dict:
        raise Wrong(f'scope or args: {event}')
    if phase == 'M' and event['name'] in METADATA and METADATA[event['name']] not in event['args']:
        raise Wrong(f'metadata: {event}')


def ns(us):
    return None if us is None else int(us * 1000)


class Slice:
    """ts and dur are in ns, as in Perfetto's tables; dur None: it never ended."""

    def __init__(self, event, parent):
        self.name, self.cat, self.args = event['name'], event['cat'], event.get('args', {})
        self.ts, self.dur = ns(event['ts']), ns(event.get('dur'))
        self.pid, self.tid, self.parent = event['pid'], event['tid'], parent

    @property
    def end(self):
        return None if self.dur is None else self.ts + self.dur

    def __repr__(self):
        return f'{self.name} [{self.ts} +{self.dur}] {self.args}'


class Trace:
    """events; slices (with parents); instants; processes: pid -> name; threads: (pid, tid) -> name; complete: it has its end."""

    def __init__(self, events, complete):
        self.events, self.complete = events, complete
        self.slices, self.instants, self.processes, self.threads, self.metadata = [], [], {}, {}, []
        for event in events:
            if event['ph'] == 'M':
                self.metadata.append(event)
            if event['ph'] == 'M' and event['name'] == 'process_name':
                self.processes[event['pid']] = event['args']['name']
            elif event['ph'] == 'M' and event['name'] == 'thread_name':
                self.threads[event['pid'], event['tid']] = event['args']['name']
            elif event['ph'] == 'i':
                self.instants.append(event)
        if set(self.processes) & {tid for pid, tid in self.threads}:
            raise Wrong('a thread has the number of a process')
        for event in events:
            if event['pid'] not in self.processes or (event['pid'], event['tid']) not in self.threads:
                raise Wrong(f'process or thread without a name: {event}')
        for track in self.threads:
            self.nest([e for e in events if (e['pid'], e['tid']) == track and e['ph'] in 'BEX'])

    def nest(self, events):
        """The slices of one track. Events with the same time: in the order of the file, as Perfetto sorts them."""
        stack = []
        for event in sorted(events, key=lambda e: e['ts']):
            while stack and stack[-1].dur is not None and stack[-1].end <= ns(event['ts']):
                stack.pop()
            if event['ph'] == 'E':
                if not stack or stack[-1].dur is not None:
                    raise Wrong(f'an end without its begin: {event}')
                done = stack.pop()
                done.dur = ns(event['ts']) - done.ts
                continue
            one = Slice(event, stack[-1] if stack else None)
            if one.dur is not None and one.parent is not None and one.parent.dur is not None and one.end > one.parent.end:
                raise Wrong(f'{one} overlaps {one.parent}')
            stack.append(one)
            self.slices.append(one)
        self.unfinished = [s for s in self.slices if s.dur is None]
        if self.complete and any(s.dur is None for s in stack):
            raise Wrong(f'never ended: {stack}')

    def select(self, cat, name=None, **args):
        return [s for s in self.slices if s.cat == cat and (name is None or s.name == name)
                and all(s.args.get(k) == v for k, v in args.items())]


def read(path):
    """A file that is complete, or that was cut at any byte: then its last line may be missing."""
    with open(path, encoding='utf-8', errors='strict') as f:
        text = f.read()
    if not text.startswith('[\n'):
        raise Wrong('it does not begin with [')
    complete = text.endswith('}\n]\n')
    lines = text[2:].split('\n')
    if complete:
        json.loads(text)
        lines = lines[:-2]
    else:
        lines = lines[:-1]  # "" after a whole line, or the part of one that was cut
    events = []
    for n, line in enumerate(lines):
        if not line.endswith(',') and not (complete and n == len(lines) - 1):
            raise Wrong(f'line {n + 2} does not end with a comma: {line[-80:]}')
        try:
            event = json.loads(line.removesuffix(','), object_pairs_hook=no_duplicates, parse_float=decimal.Decimal)
        except ValueError as e:
            raise Wrong(f'line {n + 2}: {e}') from e
        check(event)
        events.append(event)
    if os.path.getsize(path) == 0 or not events:
        raise Wrong('no events')
    return Trace(events, complete)


def self_test(folder):
    """Every kind of error is found, alone; a right trace is read."""
    path = os.path.join(folder, 'planted.json')
    head = ['{"ph":"M","pid":1,"tid":9,"name":"process_name","args":{"name":"p"}}', '{"ph":"M","pid":1,"tid":9,"name":"thread_name","args":{"name":"t"}}']
    def x(ts, dur, more=''):
        return f'{{"ph":"X","pid":1,"tid":9,"ts":{ts},"dur":{dur},"cat":"c","name":"n"{more}}}'

    def outcome(lines, end='\n]\n', begin='[\n'):
        with open(path, 'w', encoding='utf-8') as f:
            f.write(begin + ',\n'.join(head + lines) + end)
        try:
            return read(path)
        except Wrong:
            return None

    trace = outcome([x(1, 10), x(2, 3), x(5, 6)])
    assert trace and trace.complete and trace.slices[1].parent is trace.slices[0] and trace.slices[2].parent is trace.slices[0]
    cut = outcome([x(1, 10), x(2, 3)[:-7]], end='')
    assert cut and not cut.complete and len(cut.slices) == 1
    for wrong in ([x(1, 10), x(5, 10)], [x(-1, 2)], [x(1, '"2"')], [x(1, 2.0001)], [x('1e999', 2)], [x(1, 2, ',"what":1')], [x(1, 2)[:-1]],
                  [x(1, 2).replace('"X"', '"Q"')], [x(1, 2).replace('"tid":9', '"tid":8')], [x(1, 2).replace('"cat":"c",', '')],
                  ['{"ph":"E","pid":1,"tid":9,"ts":3}'], ['{"ph":"B","pid":1,"tid":9,"ts":3,"cat":"c","name":"n"}'],
                  [x(1, 2, ',"ts":1')], [x(1, 2).replace('"tid":9', '"tid":1')]):
        assert outcome(wrong) is None, wrong
    assert outcome([x(1, 2)], begin='{\n') is None and outcome([x(1, 2)], begin='') is None
