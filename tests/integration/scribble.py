#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs with a worker that writes over its flight page, the memory that it shares with its agent: the exit status is the
worker's, the agent does not spin, it answers SIGTERM, and nothing is left.

    scribble.py CDDPRUN [--jobs N | --minutes M] [--seed N] [--slow]        the full size: --minutes 10

The seed is printed, and --seed repeats the same jobs (not the same timing).
"""
import argparse
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job

EXTREME = (2 ** 64 - 1, 2 ** 63, 2 ** 63 - 1, 2 ** 62, 1, 0)
WORKER_HALF = 8192  # before it is what the agent writes
CPU_SHARE = 0.5     # of one processor: an agent that spins takes all of it
NOISE = ('ones', 'words', 'extremes', 'bytes', 'shorter')
ENDS = ('stay', '3', '0', '-11', 'stay', '-9')  # stay: until cddprun gets SIGTERM


# ------------------------------------------------------------------------------------------------------ the worker ----
def knock(page):
    """Call the agent through the pipe for crashes: its pid and the pipe's number stand side by side in the page."""
    words = struct.unpack(f'={len(page) // 4}i', page[:])
    for pid, number in zip(words, words[1:]):
        if pid == os.getppid() and number > 2:
            yield f'/proc/{pid}/fd/{number}'


def scribble(page, fd, noise, rng):
    if noise == 'ones':
        page[:] = b'\xff' * len(page)
    elif noise == 'bytes':
        page[:] = rng.randbytes(len(page))
    elif noise == 'shorter':
        try:
            os.ftruncate(fd, rng.choice((0, 4096)))
            sys.exit('the page became shorter')
        except PermissionError:
            page[WORKER_HALF:] = bytes([rng.randrange(256)]) * (len(page) - WORKER_HALF)
    else:
        for _ in range(200):
            value = rng.choice(EXTREME) if noise == 'extremes' else rng.getrandbits(64)
            struct.pack_into('=Q', page, WORKER_HALF + 8 * rng.randrange((len(page) - WORKER_HALF) // 8), value)


def work(noise, seconds, end, seed):
    rng = random.Random(seed)
    fd = int(os.environ['CDDP_FLIGHT'].split(',')[0].removeprefix('fd:'))
    page = mmap.mmap(fd, os.fstat(fd).st_size)
    pipes = list(knock(page))
    until = time.monotonic() + seconds
    with open('up_scribbler', 'w', encoding='ascii'):
        pass
    while end == 'stay' or time.monotonic() < until:
        scribble(page, fd, noise, rng)
        for pipe in pipes:
            with open(pipe, 'wb', buffering=0) as f:
                f.write(b'.')
        time.sleep(0.002)
    if end.startswith('-'):
        os.kill(os.getpid(), -int(end))
    os._exit(int(end))


# -------------------------------------------------------------------------------------------------------- the test ----
def processor_seconds(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
        fields = f.read().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def check_idle(job, seconds):
    """Look at the agent while the worker writes."""
    agent = launch.wait_for('the agent', job.agent)
    began, used = time.monotonic(), processor_seconds(agent)
    time.sleep(seconds)
    share = (processor_seconds(agent) - used) / (time.monotonic() - began)
    assert share < CPU_SHARE, f'the agent used {share:.2f} of a processor'


def one_job(cddprun, seed):
    noise, end = NOISE[seed % len(NOISE)], ENDS[seed % len(ENDS)]
    with tempfile.TemporaryDirectory() as folder:
        scribbler = ' '.join((sys.executable, os.path.abspath(__file__), '--worker', noise, '0.4', end, str(seed)))
        script = f'cd {folder}; [ $RANK = 1 ] && exec {scribbler}; [ {end} = 0 ] && exit 0; exec sleep 1000'
        flags = ['--shutdown_timeout=1', '--hang_warning=1', f'--trace={folder}/trace.json', f'--report={folder}/report.html']
        with Job(cddprun, '--standalone', '--nproc_per_node=2', *flags, 'sh', '-c', script) as job:
            launch.wait_for('the worker', lambda: os.path.exists(f'{folder}/up_scribbler') or job.process.poll() is not None)
            if end == 'stay':
                check_idle(job, 1.5 if launch.SLOW else 0.5)
                job.process.send_signal(signal.SIGTERM)
            status = job.finish()
            wanted = 128 + signal.SIGTERM if end == 'stay' else 128 - int(end) if end.startswith('-') else int(end)
            assert status == wanted, f'seed {seed}, {noise}, {end}: status {status} instead of {wanted}\n{job.err}'
            assert 'Sanitizer' not in job.err and 'runtime error' not in job.err, job.err


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('cddprun')
    parser.add_argument('--jobs', type=int, default=6)
    parser.add_argument('--minutes', type=float, default=0)
    parser.add_argument('--seed', type=int, default=random.SystemRandom().randrange(2 ** 31))
    parser.add_argument('--slow', action='store_true')
    args = parser.parse_args()
    launch.take_signals()
    launch.SLOW = args.slow
    began, done = time.monotonic(), 0
    print(f'seed {args.seed}', flush=True)
    while time.monotonic() < began + 60 * args.minutes if args.minutes else done < args.jobs:
        one_job(os.path.abspath(args.cddprun), args.seed + done)
        done += 1
    print(f'{done} jobs in {time.monotonic() - began:.0f} s')


if sys.argv[1:2] == ['--worker']:
    work(sys.argv[2], float(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
main()
