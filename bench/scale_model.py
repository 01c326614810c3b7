#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of all-reduce between N nodes by each algorithm (docs/internals/collectives.md); and a plot of a result of scale.py.

    scale_model.py                        the tables of docs/internals/collectives.md, for 10 GbE
    scale_model.py --hop-us 20 --gbit 25  for another network
    scale_model.py --plot RESULT.json     writes RESULT.svg
"""
import argparse
import json
import math

NODES = [8, 32, 128, 512, 1024]
SIZES = [4, 4 << 10, 64 << 10, 1 << 20, 25 << 20]
LEAST_PIECE = 16 << 10
COLOURS = ['#d1495b', '#0b6e4f', '#3a6ea5']


def barrier(n, net):
    return math.ceil(math.log2(n)) * net.a


def rounds(n, size, net):
    return math.ceil(math.log2(n)) * net.a + (n - 1) * size * net.b


def shards(n, size, net):
    return 2 * net.a + 2 * (n - 1) * (net.c + size / n * net.b)


def chain(n, size, net):
    """Pieces of m bytes: the least time, but m is at least LEAST_PIECE and at most the buffer."""
    hops = 2 * (n - 1)
    best = math.sqrt(size * net.a / (hops * net.b))
    m = min(size, max(LEAST_PIECE, best))
    return (hops + max(0, size / m - 1)) * (net.a + m * net.b)


WAYS = {'rounds': rounds, 'shards': shards, 'chain': chain}


def text(seconds):
    return f'{seconds:.1f} s' if seconds >= 1 else f'{seconds * 1e3:.0f} ms' if seconds >= 0.1 else f'{seconds * 1e3:.2g} ms'


def size_text(n):
    return f'{n >> 20} MiB' if n >= 1 << 20 else f'{n >> 10} KiB' if n >= 1 << 10 else f'{n} B'


def tables(net):
    print('| nodes | barrier | ' + ' | '.join(size_text(size) for size in SIZES) + ' |\n' + '|---' * (len(SIZES) + 2) + '|')
    for n in NODES:
        cells = []
        for size in SIZES:
            times = {name: way(n, size, net) for name, way in WAYS.items()}
            best = min(times, key=times.get)
            cells.append(f'**{best} {text(times[best])}**; ' + ', '.join(f'{name} {text(t)}' for name, t in times.items() if name != best))
        print(f'| {n} | {text(barrier(n, net))} | ' + ' | '.join(cells) + ' |')


def panel(left, title, curves, model):
    """Both axes are logarithmic: hosts from 2 to 32, ms in whole decades."""
    width, height, top = 300, 240, 50
    values = [ms for curve in [*curves.values(), model] for ms in curve.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def at(n, ms):
        return f'{left + width * (math.log2(n) - 1) / 4:.1f}', f'{top + height * (high - math.log10(ms)) / (high - low):.1f}'
    parts = [f'<text x="{left + width / 2}" y="30" text-anchor="middle" font-weight="bold">{title}</text>']
    for decade in range(low, high + 1):
        y = at(2, 10**decade)[1]
        parts += [f'<line x1="{left}" y1="{y}" x2="{left + width}" y2="{y}" stroke="#ddd"/>',
                  f'<text x="{left - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{10**decade:g} ms</text>']
    parts += [f'<text x="{at(n, 10**low)[0]}" y="{top + height + 18}" text-anchor="middle">{n}</text>' for n in (2, 4, 8, 16, 32)]
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 36}" text-anchor="middle">hosts</text>')
    for curve, colour in [*zip(curves.values(), COLOURS), (model, '#999')]:
        points = ' '.join(','.join(at(n, ms)) for n, ms in sorted(curve.items()))
        dashes = ' stroke-dasharray="5 4"' if colour == '#999' else ''
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"{dashes}/>')
    return parts


def plot(path):
    with open(path, encoding='utf-8') as file:
        result = json.load(file)
    rows = [row for row in result['table'] if row['delay_ms']]
    net = argparse.Namespace(a=rows[0]['delay_ms'] / 1e3, b=0, c=0)
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="1180" height="390" font-family="sans-serif" font-size="12">',
             '<rect width="1180" height="390" fill="white"/>']
    picked = (('barrier', 0, barrier), ('all_reduce', 4, lambda n, net: rounds(n, 0, net)), ('all_reduce', 65536, lambda n, net: shards(n, 0, net)))
    for k, (what, size, model) in enumerate(picked):
        of = [row for row in rows if row['what'] == what and row['bytes'] == size]
        curves = {name: {row['hosts']: row['libraries'][name]['us'] / 1e3 for row in of} for name in result['libraries']}
        title = f'{what}{f", {size_text(size)}" if size else ""}, {rows[0]["delay_ms"]:g} ms one way'
        parts += panel(70 + 390 * k, title, curves, {row['hosts']: model(row['hosts'], net) * 1e3 for row in of})
    for k, (name, colour) in enumerate([*zip(result['libraries'], COLOURS), (f'hops alone (log2 N; two for {size_text(65536)})', '#999')]):
        parts += [f'<rect x="{70 + 170 * k}" y="362" width="14" height="4" fill="{colour}"/>', f'<text x="{90 + 170 * k}" y="368">{name}</text>']
    out = path.replace('.json', '.svg')
    with open(out, 'w', encoding='utf-8') as file:
        file.write('\n'.join([*parts, '</svg>']) + '\n')
    print(f'written: {out}')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--hop-us', type=float, default=40, help='a: from one rank to another, both awake from sleep')
    parser.add_argument('--gbit', type=float, default=9.4, help='b is 8 / this, in ns a byte')
    parser.add_argument('--message-us', type=float, default=5, help='c: processor time of one more message of the same round')
    parser.add_argument('--plot', metavar='RESULT.json')
    args = parser.parse_args()
    if args.plot:
        plot(args.plot)
    else:
        tables(argparse.Namespace(a=args.hop_us * 1e-6, b=8e-9 / args.gbit, c=args.message_us * 1e-6))


if __name__ == '__main__':
    main()
