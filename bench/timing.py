#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What times and records of collectives cost (CDDP_TIMING on, off, none), and whether the overlap that they show is true.

Each round runs every mode once, in turn. all-reduce of 4 B: per process the fastest and the median of its samples. The
training step is that of ddp_step.py; what it takes longer than one without communication is compared with what
cddp_ddp_get_stats() calls exposed, with the processor time of hidden communication where no core is spare.
"""
import json
import os
import resource
import shlex
import time

import common
import fair

MODES = ('on', 'off', 'none')


def run(args, mode, ranks, *program):
    """The lines of JSON, and the processor time of the whole job in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _, text = common.timed([*args.prefix, common.cddprun(args.build), '--standalone', f'--nproc_per_node={ranks}', *program],
                           side=(mode, program[0], ranks),
                           env={**os.environ, 'CDDP_TIMING': mode, 'CDDP_BACKEND': 'cpu', 'OPENBLAS_NUM_THREADS': '1'})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [json.loads(line[line.index('{'):]) for line in text.splitlines() if '{' in line]
    return lines, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_turn(k):
    return MODES[k % 3:] + MODES[:k % 3]


def all_reduce(args):
    seen = {}
    for k in range(args.rounds):
        for ranks in 1, 2:
            for mode in in_turn(k):
                for line in run(args, mode, ranks, os.path.join(args.build, 'bench', 'allreduce'), '0.05', '4')[0]:
                    if line['variant'] == 'back to back' and line['what'] != 'bound':
                        one = seen.setdefault((ranks, line['what']), {name: {'least': [], 'median': []} for name in MODES})[mode]
                        one['least'].append(1e3 * line['us_min'])
                        one['median'].append(1e3 * line['us'])
    found = []
    print(f'\n{"4 B, ns per operation":28}{"on":>9}{"off":>9}{"none":>9}{"on - off":>12}{"on - none":>12}{"(min to max)":>20}')
    for (ranks, what), modes in sorted(seen.items()):
        for kind in 'least', 'median':
            more = {name: [on - other for on, other in zip(modes['on'][kind], modes[name][kind])] for name in ('off', 'none')}
            row = {'ranks': ranks, 'what': what, 'of_samples': kind, **{f'{name}_ns': fair.spread(modes[name][kind]) for name in MODES},
                   'on_less_off_ns': fair.spread(more['off']), 'on_less_none_ns': fair.spread(more['none']), 'rounds': {name: modes[name][kind] for name in MODES}}
            found.append(row)
            one = row['on_less_none_ns']
            spread_text = f'({one["min"]:.0f} to {one["max"]:.0f})'
            print(f'{ranks} ranks, {what:8} {kind:9}' + ''.join(f'{row[name + "_ns"]["median"]:9.0f}' for name in MODES) +
                  f'{row["on_less_off_ns"]["median"]:12.0f}{one["median"]:12.0f}{spread_text:>20}')
    return found


def training(args):
    modes = ('on', 'off')
    seen = {mode: [] for mode in modes}
    for k in range(args.steps_rounds):
        for mode in modes if k % 2 else reversed(modes):
            time.sleep(args.pause)
            lines, cpu_s = run(args, mode, 2, os.path.join(args.build, 'bench', 'mlp_train'), 'alternate', '64', str(args.steps))
            line = {**lines[-1], 'cpu_s': cpu_s}
            line['exposed'] = line['grads_ms'] / line['alone_ms'] - 1
            lost = line['library_thread_ms'] if os.cpu_count() < 4 else 0  # no core is spare for the thread
            line['library_exposed'] = (line['library_exposed_ms'] + lost) / line['alone_ms']
            seen[mode].append(line)
            print(f'  round {k + 1} of {args.steps_rounds}: {mode:5} alone {line["alone_ms"]:8.1f} ms, synchronised {line["grads_ms"]:8.1f} ms, '
                  f'{cpu_s:6.2f} s of processors; exposed {100 * line["exposed"]:6.1f} %, the library says {100 * line["library_exposed"]:5.1f} %', flush=True)
    found = {'rounds': seen, 'exposed': fair.spread([line['exposed'] for line in seen['on']]),
             'library_exposed': fair.spread([line['library_exposed'] for line in seen['on']])}
    for name in 'grads_ms', 'cpu_s':
        found[f'{name}_on_to_off'] = fair.spread([on[name] / off[name] for on, off in zip(seen['on'], seen['off'])])
    found['apart_points'] = 100 * abs(found['exposed']['median'] - found['library_exposed']['median'])
    for name in 'grads_ms_on_to_off', 'cpu_s_on_to_off':
        one = found[name]
        print(f'{name:24}{one["median"]:8.4f}  ({one["min"]:.3f} to {one["max"]:.3f})')
    print(f'exposed: {100 * found["exposed"]["median"]:.1f} % of a step without communication, the library says '
          f'{100 * found["library_exposed"]["median"]:.1f} %: {found["apart_points"]:.1f} points apart')
    return found


def main():
    words = common.parser(__doc__.splitlines()[0], rounds=21)
    words.add_argument('--steps-rounds', type=int, default=9, help='of the training; 0: none')
    words.add_argument('--steps', type=int, default=22, help='of one training, of which the first two warm up')
    words.add_argument('--pause', type=float, default=0, help='seconds before each training, for others on the machine')
    words.add_argument('--prefix', type=shlex.split, default=[], help="before each command, such as 'chrt -f 1'")
    args = words.parse_args()
    args.build = os.path.abspath(args.build)
    for name, rounds, measure in ('timing_4_bytes', args.rounds, all_reduce), ('timing_step', args.steps_rounds, training):
        if rounds > 0:
            fair.start_anew()
            common.write(args, name, {'machine': common.machine(args), 'prefix': args.prefix, 'result': measure(args)})


if __name__ == '__main__':
    main()
