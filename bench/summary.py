#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks.md: what the newest result of each benchmark says, on one page; and README's table, the shortest of it.

    summary.py           say whether both are up to date
    summary.py --write   write them
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(os.path.dirname(HERE), 'docs', 'benchmarks.md')
README = os.path.join(os.path.dirname(HERE), 'README.md')
SHORT = r'(?<=<!-- bench/summary.py writes this table -->\n).*?(?=<!-- until here -->\n)'
HEAD = """# Figures

Made by `bench/summary.py` from the newest file of each kind in [bench/results](../bench/results); [bench/README.md](../bench/README.md)
describes how each was measured, and its unfair sides. "Times as long" is the other's time (or processor
time) divided by ours, taken round by round: the median, and in brackets the smallest and the largest. Below 1 the other was
faster.

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
        if not name.endswith('.json') or name.startswith('gpu-check'):
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


def spread(ratios):
    ratios = sorted(ratios)
    return f'{number(statistics.median(ratios))} ({number(ratios[0])} to {number(ratios[-1])})'


def size(n):
    return f'{n >> 20} MiB' if n >= 1 << 20 else f'{n >> 10} KiB' if n >= 1 << 10 else f'{n} B'


def against(what, ours, theirs, name, text=seconds):
    """A row of a table: times of rounds, of which a peer may lack some (it hung)."""
    pairs = [(a, b) for a, b in zip(ours, theirs) if a and b]
    hung = len([b for b in theirs if b is None])
    return (what, text(statistics.median(ours)), f'{name}: {text(statistics.median(b for _, b in pairs))}',
            spread([b / a for a, b in pairs]) + (f'; hung {hung} of {len(theirs)} times' if hung else ''))


# --------------------------------------------------------------------------------------------- one function per kind

def wine(d):
    yield against('the whole Wine job, its start included, 2 ranks', d['wine']['cddprun_s'], d['wine']['torchrun_s'], 'torchrun, PyTorch DDP')


def launch(d):
    for n in (1, 8, 64):
        runs = d[f'ranks_{n}']
        for name in (peer for peer in runs if peer != 'cddprun'):
            yield against(f'`/bin/true`, {n} rank{"s" * (n > 1)}', runs['cddprun']['s'], runs[name]['s'], name)
    ours, theirs = d['memory_kib']['cddprun'], d['memory_kib']['torchrun']
    yield 'memory of the launcher', f'{ours / 1024:.1f} MiB', f'torchrun: {theirs / 1024:.0f} MiB', f'{theirs / ours:.0f}'


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


def allreduce(d):
    for ranks in (2, 4):
        rows = {(r['what'], r['bytes']): r for r in d.get(f'ranks_{ranks}', {'times': []})['times'] if r['variant'] == 'fair'}
        for n in d['sizes']:
            ours = rows.get(('direct', n))
            for name in ('Open MPI', 'MPICH', 'gloo'):
                if ours and (name, n) in rows:
                    yield against(f'{size(n)}, {ranks} ranks', [t / 1e6 for t in ours['round_us']], [t / 1e6 for t in rows[name, n]['round_us']], name)


def ddp_step(d):
    one = d['summary']
    shares = {name: [r['exposed'] for r in d['rounds'][name]] for name in d['rounds']}
    yield against('communication that the backward pass does not hide, as a part of the step without it', shares['libcddp'],
                  shares['PyTorch DDP'], 'PyTorch DDP', lambda x: f'{100 * x:.1f} %')
    yield ('a step\'s gradients, averaged', f'{one["libcddp"]["synchronised_ms"]:.0f} ms', f'PyTorch DDP: {one["PyTorch DDP"]["synchronised_ms"]:.0f} ms',
           f'{one["PyTorch DDP"]["synchronised_ms"] / one["libcddp"]["synchronised_ms"]:.2f}')


def gpt(d):
    runs = {name: [line['step_ms'] / 1e3 for line in lines] for name, lines in d['rounds'].items()}
    for name in (peer for peer in runs if peer.startswith('PyTorch')):
        # No ratios: some rounds of ours are below 0.
        ours, theirs = (f'{one["median"]:.2f} ms ({one["min"]:.2f} to {one["max"]:.2f})'
                        for one in (d['summary']['exposed_ms']['libcddp'], d['summary']['exposed_ms'][name]))
        yield 'GPT: communication that the backward pass does not hide', ours, f'{name}: {theirs}', ''
    for name in (peer for peer in runs if peer.startswith('PyTorch') or peer == 'llm.c'):
        yield against('GPT: a whole step', runs['libcddp'], runs[name], name)


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
     'Two network namespaces. MPICH finds that they share a kernel and uses its memory, so its rows are none of TCP.\n\n'),
    ('Training steps', (('ddp_step', ddp_step), ('gpt', gpt), ('zero', zero), ('scaling', scaling)),
     'An MLP of 25 million parameters, and the default model of examples/gpt; efficiency is T1 / (N Tn) or T1 / Tn of each program\'s own one-rank time.\n\n'),
)


def machine_of(name, content):
    m = content['machine']
    return f'[{name}](../bench/results/{name}): {m["date"][:10]}, {m["cpu"]}, {m["cores"]} cores, load {m["load"]:.1f}, commit {m["commit"]}'


def page(found):
    text = HEAD
    for title, kinds, before in SECTIONS:
        there = [(kind, rows) for kind, rows in kinds if kind in found]
        text += f'## {title}\n\n{before}| what | here | beside it | times as long |\n|---|---|---|---|\n'
        text += ''.join('| ' + ' | '.join(row) + ' |\n' for kind, rows in there for row in rows(found[kind][1]))
        for kind, _ in there:
            plot = found[kind][0].replace('.json', '.svg')
            if os.path.exists(os.path.join(HERE, 'results', plot)):
                text += f'\n![{kind}](../bench/results/{plot})\n'
        text += '\nFrom ' + ';\n'.join(machine_of(*found[kind]) for kind, _ in there) + '.\n\n'
    return text.rstrip('\n') + '\n'


IN_README = (  # kind, its rows, how the row begins, whom it is beside
    ('launch', launch, '`/bin/true`, 8 ranks', 'torchrun'),
    ('launch', launch, '`/bin/true`, 8 ranks', 'Hydra'),
    ('wine_vs_torchrun', wine, 'the whole Wine job', 'torchrun'),
    ('restart', restart, '`kill -9`', 'torchrun'),
    ('store', store, 'server\'s processor time of GET, 8 clients', 'Redis'),
    ('allreduce', allreduce, '25 MiB, 2 ranks', 'Open MPI'),
    ('allreduce_two_hosts', allreduce, '25 MiB, 2 ranks', 'Open MPI'),
    ('ddp_step', ddp_step, 'communication', 'PyTorch DDP'),
)
NAMED = {'allreduce': 'all-reduce within a machine: ', 'allreduce_two_hosts': 'all-reduce between two hosts: '}


def short(found):
    """README's table."""
    text = '| what | here | beside it | times as long |\n|---|---|---|---|\n'
    for kind, rows, begins, beside in IN_README:
        row = next(row for row in rows(found[kind][1]) if row[0].startswith(begins) and row[2].startswith(beside))
        text += f'| {NAMED.get(kind, "")}' + ' | '.join(row) + ' |\n'
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
