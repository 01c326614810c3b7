# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: timed runs in interleaved pairs, the machine's description, a table, one JSON file."""
import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def parser(description):
    """What every benchmark's command line has."""
    words = argparse.ArgumentParser(description=description)
    words.add_argument('--torch-python', help='a python3 that has PyTorch (and numpy); default: this one',
                        default=sys.executable)
    words.add_argument('--build', help='build folder, best with --buildtype=release', default=os.path.join(ROOT, 'build'))
    words.add_argument('--out', help='folder for the result', default=os.path.join(HERE, 'results'))
    return words


def arguments(description):
    words = parser(description)
    words.add_argument('--pairs', type=int, help='interleaved pairs', default=5)
    args = words.parse_args()
    need_torch(args)
    return args


def need_torch(args):
    args.build = os.path.abspath(args.build)
    if not torch_version(args.torch_python):
        # 77 is how 'meson test --benchmark' knows a skip.
        print(f'skipped: {args.torch_python} has no PyTorch; name one that has with --torch-python')
        sys.exit(77)


def torch_version(python):
    done = subprocess.run([python, '-c', 'import numpy, torch; print(torch.__version__)'], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def cddprun(build):
    path = os.path.join(build, 'launcher', 'cddprun')
    if not os.access(path, os.X_OK):
        sys.exit(f'{path} is missing: build it first, or name the folder with --build')
    return path


def torchrun(python):
    """torchrun itself is a three-line script that starts this module."""
    return [python, '-m', 'torch.distributed.run']


def timed(command, retries=0, **kwargs):
    """Run to the end; return (seconds, output). A run that fails ends the benchmark: its time means nothing.

    retries: how often a peer that fails is run again. PyTorch's workers sometimes abort in their teardown, with all
    their work done; such a run is reported and not counted.
    """
    began = time.monotonic()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=600, check=False, **kwargs)
    seconds = time.monotonic() - began
    if done.returncode != 0 and retries > 0:
        print(f'  exit status {done.returncode} after {seconds:.1f} s, once more: {" ".join(command)}', flush=True)
        return timed(command, retries - 1, **kwargs)
    if done.returncode != 0:
        sys.exit(f'exit status {done.returncode}: {" ".join(command)}\n{done.stdout}')
    return seconds, done.stdout


def interleaved(pairs, ours, theirs):
    """Time ours() and theirs() in turn, after one untimed run of each; both return seconds."""
    ours(), theirs()
    times = []
    for pair in range(pairs):
        times.append((ours(), theirs()))
        print(f'  pair {pair + 1} of {pairs}: cddprun {times[-1][0]:8.3f} s   torchrun {times[-1][1]:8.3f} s', flush=True)
    return summary(times)


def summary(times):
    """Ratios are taken pair by pair: what disturbs the machine disturbs both of a pair."""
    ratios = [theirs / ours for ours, theirs in times]
    return {
        'cddprun_s': [ours for ours, _ in times],
        'torchrun_s': [theirs for _, theirs in times],
        'cddprun_median_s': statistics.median(ours for ours, _ in times),
        'torchrun_median_s': statistics.median(theirs for _, theirs in times),
        'ratio_median': statistics.median(ratios),
        'ratio_min': min(ratios),
        'ratio_max': max(ratios),
    }


def cpu_model():
    try:
        with open('/proc/cpuinfo', encoding='ascii', errors='replace') as info:
            return next(line.split(':', 1)[1].strip() for line in info if line.startswith('model name'))
    except (OSError, StopIteration):
        return platform.machine()


def git_commit():
    """The commit, with '+' after it if product code differs from it."""
    def git(*words):
        return subprocess.run(['git', '-C', ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()
    commit = git('rev-parse', '--short=12', 'HEAD')
    return commit + ('+' if commit and git('status', '--porcelain', '--', ':!bench/results') else '')


def machine(args):
    options = subprocess.run(['meson', 'introspect', '--buildoptions', args.build], capture_output=True, text=True,
                             check=False)
    buildtype = next((one['value'] for one in json.loads(options.stdout or '[]') if one['name'] == 'buildtype'), None)
    if buildtype != 'release':
        print(f'note: {os.path.basename(args.build)} is a {buildtype} build; meson configure it with --buildtype=release')
    return {
        'date': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'cpu': cpu_model(),
        'cores': len(os.sched_getaffinity(0)),
        'load': os.getloadavg()[0],
        'kernel': platform.release(),
        'buildtype': buildtype,
        'commit': git_commit(),
        'cddprun': subprocess.run([cddprun(args.build), '--version'], capture_output=True, text=True,
                                  check=False).stdout.strip(),
        'torch': torch_version(args.torch_python),
        'python': subprocess.run([args.torch_python, '--version'], capture_output=True, text=True,
                                 check=True).stdout.split()[-1],
    }


def table(rows):
    """rows: (name, summary)"""
    print(f'\n{"":24}{"cddprun":>12}{"torchrun":>12}{"ratio":>10}{"(min to max)":>20}')
    for name, one in rows:
        spread = f'({one["ratio_min"]:.1f} to {one["ratio_max"]:.1f})'
        print(f'{name:24}{one["cddprun_median_s"]:10.3f} s{one["torchrun_median_s"]:10.3f} s'
              f'{one["ratio_median"]:9.1f}x{spread:>20}')


def write(args, name, result):
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, f'{name}-{result["machine"]["date"][:10]}-{result["machine"]["commit"] or "none"}.json')
    with open(path, 'w', encoding='utf-8') as out:
        json.dump(result, out, indent=2)
        out.write('\n')
    print(f'\nwritten: {path}')
