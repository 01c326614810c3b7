#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks.md: what the newest result of each benchmark says, on one page; and README's table, the shortest of it.

    summary.py           say whether both are up to date
    summary.py --write   write them
"""
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys

import fair

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(os.path.dirname(HERE), 'docs', 'benchmarks.md')
README = os.path.join(os.path.dirname(HERE), 'README.md')
SHORT = r'(?<=<!-- bench/summary.py writes this table -->\n).*?(?=<!-- until here -->\n)'
HEAD = """# Figures

Made by `bench/summary.py` from the newest file of each kind in [bench/results](../bench/results); [bench/README.md](../bench/README.md)
describes how each was measured, and its unfair sides. "Speedup" is the other's time (or processor time) divided by ours, taken
round by round: the median, and in brackets the quartiles. Below 1 the other was faster. A peer that was older than two years
then is named as that.

"""


def results(all_of_them):
    """The files' names; not, unless all are wanted, those that somebody made here and did not add to the repository."""
    names = tracked = os.listdir(os.path.join(HERE, 'results'))
    if shutil.which('git'):
        done = subprocess.run(['git', '-C', os.path.join(HERE, 'results'), 'ls-files'], capture_output=True, text=True, check=False)
        tracked = done.stdout.split('\n') if done.returncode == 0 and done.stdout else names
    return sorted(name for name in names if all_of_them or name in tracked)


def newest(all_of_them):
    """{kind: (file's name, its content)}"""
    found = {}
    for name in results(all_of_them):
        if not name.endswith('.json') or name.startswith('gpu-check') or '_few_rounds-' in name:
            continue
        with open(os.path.join(HERE, 'results', name), encoding='utf-8') as file:
            content = json.load(file)
        kind = name.split('-', 1)[0]
        if kind not in found or content['machine']['date'] > found[kind][1]['machine']['date']:
            found[kind] = name, content
    return found


def number(x):
    return f'{x:,.0f}' if abs(x) >= 100 else f'{x:.3g}'


def seconds(s):
    for factor, unit in ((1, 's'), (1e3, 'ms'), (1e6, 'us')):
        if s * factor >= 1:
            return f'{number(s * factor)} {unit}'
    return f'{number(s * 1e9)} ns'


def spread(values, text=number):
    low, middle, high = fair.quartiles(values)
    return f'{text(middle)} ({text(low)} to {text(high)})'


def size(n):
    return f'{n >> 20} MiB' if n >= 1 << 20 else f'{n >> 10} KiB' if n >= 1 << 10 else f'{n} B'


class Row(tuple):
    """Of a table, with the quartiles of its speedup beside it, if it has one."""

    quartiles = None

    @classmethod
    def of(cls, row):
        return row if isinstance(row, cls) else cls(row)


def against(what, ours, theirs, name):
    """A row: times of rounds, of which a peer may lack some (it hung)."""
    pairs = [(a, b) for a, b in zip(ours, theirs) if a and b]
    if not pairs:
        return Row((what, seconds(statistics.median(ours)), name, f'hung {len(theirs)} of {len(theirs)} times'))
    hung = len([b for b in theirs if b is None])
    ratios = [b / a for a, b in pairs]
    row = Row((what, seconds(statistics.median(ours)), f'{name}: {seconds(statistics.median(b for _, b in pairs))}',
               spread(ratios) + (f'; hung {hung} of {len(theirs)} times' if hung else '')))
    row.quartiles = fair.quartiles(ratios)
    return row


def ms(values):
    return f'{spread(values, lambda x: f"{x:.3g}")} ms'


# --------------------------------------------------------------------------------------------- one function per kind

def wine(d):
    yield against('the whole Wine job, its start included, 2 ranks', d['wine']['cddprun_s'], d['wine']['torchrun_s'], 'torchrun, PyTorch DDP')


def launch(d):
    for n in (1, 8, 64):
        runs = d[f'ranks_{n}']
        for name in (peer for peer in runs if peer != 'cddprun'):
            yield against(f'`/bin/true`, {n} rank{"s" * (n > 1)}', runs['cddprun']['s'], runs[name]['s'], name)
    ours, theirs = d['memory_kib']['cddprun'], d['memory_kib']['torchrun']
    yield 'memory of the launcher', f'{ours / 1024:.1f} MiB', f'torchrun, mostly its imports: {theirs / 1024:.0f} MiB', ''


def launch_hang(d):
    yield (f'{d["runs"]:,} jobs of {d["ranks"]} ranks that end at once', f'{seconds(d["median_s"])}, the slowest {seconds(d["slowest_s"])}', '',
           f'hung: {d["hung"]}, failed: {d["failed"]}')


def restart(d):
    for name, key in (('torchrun', 'torchrun'), ('a bare loop that spawns them', 'bare_spawn')):
        yield against('`kill -9` of one of 8 ranks until all 8 run again', [t / 1e3 for t in d['cddprun']['ms']],
                      [t / 1e3 for t in d[key]['ms']], name)


def logs(d):
    for how in ('console', 'file', 'tee'):
        yield f'output of one rank, {how}', f'{d[how]["mb_per_s_median"]:.0f} MB/s', '', ''


def store(d):
    for r in d['rates']:
        if r['in_flight'] != 64 or r['operation'] not in ('get', 'set', 'add'):
            continue
        for name in ('Redis', 'PyTorch'):
            yield against(f'server\'s processor time of {r["operation"].upper()}, {r["clients"]} client{"s" * (r["clients"] > 1)}, 64 in flight',
                          [x['cpu_us'] / 1e6 for x in r['cddprun']], [x['cpu_us'] / 1e6 for x in r[name]], name)
    for r in d['wakes']:
        for name in ('PyTorch', 'bare'):
            yield against(f'until {r["waiters"]:,} waiting client{"s wake" if r["waiters"] > 1 else " wakes"}', [x['us'] / 1e6 for x in r['cddprun']],
                          [x['us'] / 1e6 for x in r[name]], 'a server without a store' if name == 'bare' else name)


def join(d):
    for r in d['joins']:
        for name in ('PyTorch', 'bare'):
            if name in r:
                names = f', resolver of {r["names_us"] / 1000:g} ms' if r['names_us'] else ''
                yield against(f'{r["ranks"]:,} ranks meet{names}', [x['s'] for x in r['cddprun']], [x['s'] for x in r[name]],
                              'a server without a store' if name == 'bare' else name)
    largest = [x['s'] for x in d['largest']['cddprun']]
    yield f'{d["largest"]["ranks"]:,} ranks meet (all the files that machine lets be open)', seconds(statistics.median(largest)), '', ''


def versioned(name, d):
    """A peer's name with its version, which the oldest results have elsewhere, and with its age then."""
    version = (d['peers'].get(name) or name).split()[-1]
    name = name if name == 'gloo' or version in name else f'{name} {version}'
    old = '' if name == 'gloo' else fair.age(name, datetime.date.fromisoformat(d['machine']['date'][:10]))
    return name + (f', {old}' if old else '')


def allreduce(d):
    for ranks in (2, 4):
        rows = [r for r in d.get(f'ranks_{ranks}', {'times': []})['times'] if r['variant'] == 'fair']
        for ours in rows:
            for r in rows:
                if ours['what'] == 'direct' and r['bytes'] == ours['bytes'] and r['what'] not in ('direct', 'private', 'shared', 'bound'):
                    setting = f' ({r["setting"]})' if r.get('setting') else ''
                    name = versioned(r['what'], d)
                    yield against(f'{size(r["bytes"])}, {ranks} ranks', *([t and t / 1e6 for t in one['round_us']] for one in (ours, r)),
                                  name + setting)


def ddp_step(d):
    """Differences in ms, and no ratio: one of them is near 0."""
    lines = {name: [{**r, 'exposed_ms': r['grads_ms'] - r['alone_ms']} for r in of] for name, of in d['rounds'].items()}
    for name in (peer for peer in lines if not peer.startswith('libcddp')):
        ours, theirs = ([r['exposed_ms'] for r in lines[one]] for one in ('libcddp', name))
        yield 'communication that the backward pass does not hide', ms(ours), f'{name}: {ms(theirs)}', ''
        yield against("a step with its gradients averaged", *([r['grads_ms'] / 1e3 for r in lines[one]] for one in ('libcddp', name)), name)


def gpt(d):
    lines = {name: of for name, of in d['rounds'].items() if name.startswith('PyTorch')}
    for name, of in lines.items():
        ours, theirs = ([r['exposed_ms'] for r in one] for one in (d['rounds']['libcddp'], of))
        yield 'GPT: communication that the backward pass does not hide', ms(ours), f'{name}: {ms(theirs)}', ''
    for name, of in lines.items():
        yield against('GPT: a whole step', *([r['step_ms'] / 1e3 for r in one] for one in (d['rounds']['libcddp'], of)), name)


def zero(d):
    yield against('a whole step with the optimizer divided among 2 ranks', [r['step_ms'] / 1e3 for r in d['rounds']['divided']],
                  [r['step_ms'] / 1e3 for r in d['rounds']['whole']], 'libcddp, every rank updates all')


def scaling(d):
    ours = {kind: d['efficiency'][kind]['libcddp'] for kind in ('strong', 'weak')}
    for kind in ('strong', 'weak'):
        for n in ('2', '4'):
            others = ', '.join(f'{name} {100 * of[n]:.0f} %' for name, of in d['efficiency'][kind].items() if name != 'libcddp')
            yield f'{kind} scaling, {n} ranks', f'{100 * ours[kind][n]:.0f} %', others, ''


SECTIONS = (  # title, kinds, the text before the table
    ('Starting', (('wine_vs_torchrun', wine), ('launch', launch), ('launch_hang', launch_hang), ('restart', restart), ('logs', logs)), ''),
    ('Rendezvous', (('store', store), ('join', join)),
     'A server without a store answers at once and keeps nothing: what the kernel and the load alone take.\n\n'),
    ('All-reduce within a machine', (('allreduce', allreduce),),
     'A bucket of float32 that is rewritten before and read after, both timed, as in a training step.\n\n'),
    ('All-reduce between two hosts, over TCP', (('allreduce_two_hosts', allreduce),),
     'Two network namespaces, and a check that the data crossed between them.\n\n'),
    ('Training steps', (('ddp_step', ddp_step), ('gpt', gpt), ('zero', zero), ('scaling', scaling)),
     'An MLP of 25 million parameters, and the default model of examples/gpt; efficiency is T1 / (N Tn) or T1 / Tn of each program\'s own one-rank time.\n\n'),
)


def machine_of(name, content):
    """Where a file comes from, and the versions beside it. Results older than fair.py do not have the cores of both sides."""
    m, load = content['machine'], content.get('load_before_and_after')
    text = (f'[{name}](../bench/results/{name}): {m["date"][:10]}, {m["cpu"]}, {m["cores"]} cores, load '
            f'{f"{load[0]:.1f} before and {load[1]:.1f} after" if load else format(m["load"], ".1f")}, commit {m["commit"]}')
    if 'sides' not in content:
        return text + ', cores of both sides not recorded'
    return text + ''.join(f'; {one["version"]}' + (f' ({one["age"]})' if one['age'] else '') for one in content['sides'].values() if one['version'])


def page(found):
    text = HEAD
    for title, kinds, before in SECTIONS:
        there = [(kind, rows) for kind, rows in kinds if kind in found]
        if not there:
            text += f'## {title}\n\nThis is measured anew: earlier peers were not started fairly.\n\n'
            continue
        text += f'## {title}\n\n{before}| what | here | peer | speedup |\n|---|---|---|---|\n'
        text += ''.join('| ' + ' | '.join(row) + ' |\n' for kind, rows in there for row in rows(found[kind][1]))
        for kind, _ in there:
            plot = found[kind][0].replace('.json', '.svg')
            if os.path.exists(os.path.join(HERE, 'results', plot)):
                text += f'\n![{kind}](../bench/results/{plot})\n'
        text += '\nFrom ' + ';\n'.join(machine_of(*found[kind]) for kind, _ in there) + '.\n\n'
    return text.rstrip('\n') + '\n'


IN_README = (  # kind, its rows, how the row begins, whom it is beside
    ('launch', launch, '`/bin/true`, 8 ranks', 'Hydra', ''),
    ('launch', launch, '`/bin/true`, 8 ranks', 'MPICH', ''),
    ('restart', restart, '`kill -9`', 'torchrun', ''),
    ('store', store, 'server\'s processor time of GET, 8 clients', 'Redis', ''),
    ('allreduce', allreduce, '25 MiB, 2 ranks', '', 'all-reduce within a machine: '),
    ('allreduce_two_hosts', allreduce, '25 MiB, 2 ranks', '', 'all-reduce between two hosts: '),
    ('ddp_step', ddp_step, 'communication', 'PyTorch DDP', ''),
    ('ddp_step', ddp_step, 'a step', 'PyTorch DDP', ''),
)


FLOORS = ('a bare loop', 'a server without a store')  # no peers: they do not do the work


def excludes_one(row):
    return not row.quartiles or row.quartiles[0] > 1 or row.quartiles[2] < 1


def short(found):
    """README's table: rows whose quartiles exclude 1, and the row where a peer is most ahead."""
    rows = [(before, row) for kind, rows_of, begins, beside, before in IN_README if kind in found for row in rows_of(found[kind][1])
            if row[0].startswith(begins) and row[2].startswith(beside) and excludes_one(Row.of(row))]
    named = {kind: before for kind, _, _, _, before in IN_README}
    behind = [(row.quartiles[1], named.get(kind, ''), row) for _, kinds, _ in SECTIONS for kind, rows_of in kinds if kind in found
              for row in map(Row.of, rows_of(found[kind][1])) if row.quartiles and row.quartiles[2] < 1 and not row[2].startswith(FLOORS)]
    rows += [one[1:] for one in sorted(behind, key=lambda one: one[0])[:1]]
    text = '| what | here | peer | speedup |\n|---|---|---|---|\n' + ''.join(f'| {before}' + ' | '.join(row) + ' |\n' for before, row in rows)
    shown = sorted({(found[kind][1]['machine']['date'][:10], found[kind][1]['machine']['commit']) for kind, *_ in IN_README if kind in found})
    text += '\nFrom ' + ', '.join(f'{date} (commit {commit})' for date, commit in shown) + '.\n'
    return text + f'\n![scaling](bench/results/{found["scaling"][0].replace(".json", ".svg")})\n\n'


def main():
    write = sys.argv[1:] == ['--write']
    found = newest(write)
    with open(README, encoding='utf-8') as file:
        readme = file.read()
    wanted = {PAGE: page(found), README: re.sub(SHORT, lambda _: short(found), readme, flags=re.S)}
    old = [path for path, text in wanted.items() if not os.path.exists(path) or open(path, encoding='utf-8').read() != text]
    if write:
        for path in old:
            with open(path, 'w', encoding='utf-8') as out:
                out.write(wanted[path])
        return 0
    for path in old:
        print(f'{os.path.basename(path)} is not what the results say: bench/summary.py --write')
    return 1 if old or not re.search(SHORT, readme, re.S) else 0


if __name__ == '__main__':
    sys.exit(main())
