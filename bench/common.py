# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: timed runs in turn, the machine's description, one JSON file. fair.py has the rules."""
import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time

import fair

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.append(os.path.join(ROOT, 'tests', 'support'))
from ports import free_port


def parser(description, rounds=fair.LEAST_ROUNDS):
    """What every benchmark's command line has. rounds: how often all sides run, in turn."""
    newest = os.path.join(fair.cache(), 'torch', 'bin', 'python3')
    words = argparse.ArgumentParser(description=description)
    words.add_argument('--torch-python', help='a python3 that has PyTorch (and numpy); default: that of bench/peers.py install torch, or this one',
                        default=newest if os.access(newest, os.X_OK) else sys.executable)
    words.add_argument('--build', help='build folder, best with --buildtype=release', default=os.path.join(ROOT, 'build'))
    words.add_argument('--out', help='folder for the result', default=os.path.join(HERE, 'results'))
    words.add_argument('--rounds', type=int, help=f'in turn; with fewer than {fair.LEAST_ROUNDS} the result does not count', default=rounds)
    return words


def need_torch(args):
    args.build = os.path.abspath(args.build)
    if not torch_version(args.torch_python):
        # 77 is how 'meson test --benchmark' knows a skip.
        print(f'skipped: {args.torch_python} has no PyTorch; name one that has with --torch-python')
        sys.exit(77)


def torch_version(python):
    if not shutil.which(python):
        return None
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


def watched(name, command, program, ranks, env=None, **kwargs):
    """subprocess.run() of one side, which is read meanwhile."""
    with fair.side(name).watch(command, program, ranks, env) as env:
        return subprocess.run(command, stdin=subprocess.DEVNULL, text=True, check=False, env=env, **kwargs)


UNREAD = (None, None, 0)


def timed(command, retries=0, side=UNREAD, env=None, **kwargs):
    """Run to the end; return (seconds, output). A run that fails ends the benchmark: its time means nothing.

    side: its name, the ranks' program and their number, to be read while it runs.
    retries: how often a peer that fails is run again. PyTorch's workers sometimes abort in their teardown, with all
    their work done; such a run is reported and not counted.
    """
    name, program, ranks = side
    with fair.side(name).watch(command, program, ranks, env) if name else contextlib.nullcontext(env) as env:
        began = time.monotonic()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=600, check=False, env=env, **kwargs)
        seconds = time.monotonic() - began
    if done.returncode != 0 and retries > 0:
        print(f'  exit status {done.returncode} after {seconds:.1f} s, once more: {" ".join(command)}', flush=True)
        return timed(command, retries - 1, side, env, **kwargs)
    if done.returncode != 0:
        sys.exit(f'exit status {done.returncode}: {" ".join(command)}\n{done.stdout}')
    return seconds, done.stdout


def interleaved(rounds, runs):
    """{name: seconds of each round} of runs(untimed) that return seconds, in turn, with one untimed run of each before and after."""
    times = {name: [] for name in runs}
    for k in range(-1, rounds + 1):
        untimed = not 0 <= k < rounds
        for name in fair.turns(runs, k):
            seconds = runs[name](untimed)
            if not untimed:
                times[name].append(seconds)
        fair.check()
        if not untimed:
            print(f'  round {k + 1} of {rounds}: ' + ', '.join(f'{name} {of[-1]:.3f} s' for name, of in times.items()), flush=True)
    return times


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


def write(args, name, result):
    """Refuses where one side has fewer cores. A result of too few rounds has another name, which summary.py does not take."""
    rounds = getattr(args, 'rounds', None)
    told = fair.record(rounds)
    assert not told.keys() & result.keys(), 'a result has one of the names that fair.py uses'
    result = {**result, **told}
    few = '_few_rounds' if rounds is not None and rounds < fair.LEAST_ROUNDS else ''
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, f'{name}{few}-{result["machine"]["date"][:10]}-{result["machine"]["commit"] or "none"}.json')
    with open(path, 'w', encoding='utf-8') as out:
        json.dump(result, out, indent=2)
        out.write('\n')
    print(f'\nwritten: {path}')
