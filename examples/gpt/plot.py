#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the losses of several runs of gpt as an SVG: plot.py OUT.svg 'TITLE=LOG'... where LOG is a file of --log."""
import html
import json
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 360, 60, 40, 20
COLOURS = ['#1f77b4', '#ff7f0e', '#2ca02c', '#d62728', '#9467bd']


def read(path):
    """(step, loss) of each line that has a loss."""
    with open(path, encoding='ascii') as f:
        told = [json.loads(line) for line in f]
    return [(line['step'], line['loss']) for line in told if line.get('loss') is not None]


def draw(runs):
    points = [point for run in runs.values() for point in run]
    last = max(step for step, _ in points) or 1
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)

    def x(step):
        return LEFT + (WIDTH - LEFT - 20) * step / last

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / ((high - low) or 1)

    def text(at_x, at_y, words, anchor='middle', colour='#000'):
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(words)}</text>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for k in range(6):
        loss, step = low + (high - low) * k / 5, last * k / 5
        parts += [f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - 20}" stroke="#ddd"/>', text(LEFT - 6, y(loss) + 4, f'{loss:.2f}', 'end'),
                  text(x(step), HEIGHT - BOTTOM + 18, f'{step:.0f}')]
    parts.append(text(WIDTH / 2, HEIGHT - 6, 'step'))
    # The first run is the widest line, so that those above it can be seen to agree with it.
    for k, (title, run) in enumerate(runs.items()):
        colour, wide = COLOURS[k % len(COLOURS)], max(1, 2 * (len(runs) - k) - 1)
        path = 'L'.join(f'{x(step):.1f} {y(loss):.1f}' for step, loss in run)
        parts += [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{wide}"/>',
                  text(WIDTH - 30, TOP + 16 * (k + 1), title, 'end', colour)]
    return '\n'.join([*parts, '</svg>', ''])


if __name__ == '__main__':
    if len(sys.argv) < 3 or not all('=' in word for word in sys.argv[2:]):
        sys.exit(__doc__)
    with open(sys.argv[1], 'w', encoding='ascii') as f:
        f.write(draw({title: read(path) for title, path in (word.split('=', 1) for word in sys.argv[2:])}))
