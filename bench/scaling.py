#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Strong and weak scaling of the MLP's training: libcddp, PyTorch's DDP, a parameter server, and threads of one process.

Strong: the same samples per step, divided among the ranks; efficiency T1 / (N * Tn). Weak: the same samples per rank;
T1 / Tn. T1 is the same program's with one rank. With more ranks than cores no program can exceed cores / N.
"""
import os
import statistics

import common
import fair
import mlp

NAMES = ['libcddp', 'PyTorch DDP', 'parameter server', 'threads']
COLOURS = {'libcddp': '#0b6e4f', 'PyTorch DDP': '#d1495b', 'parameter server': '#8d6a9f', 'threads': '#e0a030'}


def measure(args, peers):
    """{kind: {name: {ranks: [step_ms of each round]}}}"""
    seen = {kind: {name: {n: [] for n in args.ranks} for name in peers} for kind in ('strong', 'weak')}
    for k in range(args.rounds):
        for n in args.ranks:
            for kind, batch in (('strong', args.batch * max(args.ranks) // n), ('weak', args.batch)):
                lines = {name: [peers[name]('ddp', n, batch, args.steps)] for name in fair.turns(peers, k)}
                mlp.same_loss(lines)
                for name, (line,) in lines.items():
                    seen[kind][name][n].append(line['step_ms'])
        fair.check()
        print(f'  round {k + 1} of {args.rounds} is done', flush=True)
    return seen


def efficiency(kind, times):
    """{ranks: [by round]}: pairs of one round, so that what disturbs the machine disturbs both."""
    return {n: [one / (n * many) if kind == 'strong' else one / many for one, many in zip(times[1], of_n)]
            for n, of_n in times.items()}


def text(x, y, what, **more):
    attributes = ' '.join(f'{key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{x:.0f}" y="{y:.0f}" {attributes}>{what}</text>'


def panel(left, kind, ranks, curves, cores):
    width, height, top = 300, 220, 50

    def at(n, value):
        return left + width * (n - 1) / (max(ranks) - 1), top + height * (1 - value / 1.2)
    parts = [text(left + width / 2, 30, f'{kind} scaling', text_anchor='middle', font_weight='bold')]
    for tenth in range(0, 13, 2):
        y = at(1, tenth / 10)[1]
        parts += [f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" stroke="#ddd"/>',
                  text(left - 8, y + 4, f'{tenth * 10} %', text_anchor='end')]
    parts += [text(at(n, 0)[0], top + height + 18, n, text_anchor='middle') for n in ranks]
    parts.append(text(left + width / 2, top + height + 36, 'ranks', text_anchor='middle'))
    bound = ' '.join('%.1f,%.1f' % at(n, min(1, cores / n)) for n in ranks)
    parts.append(f'<polyline points="{bound}" fill="none" stroke="#999" stroke-dasharray="5 4"/>')
    for name, curve in curves.items():
        points = ' '.join('%.1f,%.1f' % at(n, curve[n]) for n in ranks)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2.5"/>')
        parts += ['<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>' % (*at(n, curve[n]), COLOURS[name]) for n in ranks]
    return parts


def plot(path, ranks, curves, cores):
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="800" height="360" font-family="sans-serif" font-size="12">',
             '<rect width="800" height="360" fill="white"/>']
    for k, kind in enumerate(('strong', 'weak')):
        parts += panel(70 + 380 * k, kind, ranks, curves[kind], cores)
    x = 70
    for name in curves['weak']:
        parts += [f'<rect x="{x}" y="330" width="14" height="4" fill="{COLOURS[name]}"/>', text(x + 20, 336, name)]
        x += 160
    parts += [f'<line x1="{x}" y1="332" x2="{x + 14}" y2="332" stroke="#999" stroke-dasharray="5 4"/>',
              text(x + 20, 336, f'{cores} cores'), '</svg>']
    with open(path, 'w', encoding='utf-8') as out:
        out.write('\n'.join(parts) + '\n')


def main():
    words = common.parser(__doc__.splitlines()[0])
    words.add_argument('--steps', type=int, default=8, help='per run, of which the first two warm up')
    words.add_argument('--batch', type=int, default=32, help="a rank's samples per step; of strong scaling, with most ranks")
    words.add_argument('--ranks', type=int, nargs='+', default=[1, 2, 4])
    args = words.parse_args()
    if args.ranks[0] != 1 or len(args.ranks) < 2:
        words.error('--ranks must begin with 1, which all others are compared with')
    peers = mlp.trainers(args, NAMES)
    machine = common.machine(args)
    seen = measure(args, peers)
    rounds = {kind: {name: efficiency(kind, of) for name, of in by_name.items()} for kind, by_name in seen.items()}
    curves = {kind: {name: {n: statistics.median(values) for n, values in of.items()} for name, of in by_name.items()}
              for kind, by_name in rounds.items()}
    print(f'\n{"":18}' + ''.join(f'{kind + ", " + str(n) + " ranks":>28}' for kind in rounds for n in args.ranks[1:]))
    for name in peers:
        cells = []
        for kind in rounds:
            for n in args.ranks[1:]:
                low, _, high = fair.quartiles(rounds[kind][name][n])
                cells.append(f'{100 * curves[kind][name][n]:.0f} % ({100 * low:.0f} to {100 * high:.0f})')
        print(f'{name:18}' + ''.join(f'{cell:>28}' for cell in cells))
    print(f'\n{"ms per step":18}' + ''.join(f'{kind + ", " + str(n):>14}' for kind in seen for n in args.ranks))
    for name in peers:
        print(f'{name:18}' + ''.join(f'{statistics.median(seen[kind][name][n]):14.1f}' for kind in seen for n in args.ranks))
    common.write(args, 'scaling', {'machine': machine, 'batch': args.batch, 'step_ms': seen, 'efficiency': curves, 'efficiency_rounds': rounds})
    path = os.path.join(args.out, f'scaling-{machine["date"][:10]}-{machine["commit"] or "none"}.svg')
    plot(path, args.ranks, curves, machine['cores'])
    print(f'written: {path}')


if __name__ == '__main__':
    main()
