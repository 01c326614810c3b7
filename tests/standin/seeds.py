#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the GPU path with many seeds of the stand-in's delays, every version of NCCL that differs, blocking or not.

    seeds.py BUILD [--seeds N] [--first S] [--jobs J]

Each seed is one version and one way to launch: by the 14th all have had their turn. With it run the conformance cases of
splits and regions; on two ranks Wine, GPT, the hook, clipping, the optimizer, PowerSGD, and one kind each of captured
steps, of whole ones and of those with divided parameters, all of which have had their turn by the 8th. Prints the seeds
that fail, with what they said; 200 are the proof.
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

VERSIONS = ('21903', '22304', '22403', '22707', '22809', '22907', '23007')
CAPTURES = ('global', 'thread_local', 'relaxed', 'forked', 'beside', 'bfloat16', 'twice', 'refused', 'meanwhile')
QUERYING = 22703  # from here on a thread of NCCL ends captures in global mode (docs/gpu.md)
LIMIT_S = 200
HERE = pathlib.Path(__file__).resolve().parent


def is_blocking(seed):
    return seed // 7 % 2 == 1


def captures(seed):
    if is_blocking(seed) or int(VERSIONS[seed % 7]) < QUERYING:
        return CAPTURES[seed % len(CAPTURES)]
    return ('thread_local', 'relaxed')[seed % 2]


def jobs(build, seed):
    start = [build / 'launcher/cddprun', '--standalone', '--nproc_per_node=2']
    conformance = build / 'tests/conformance/test_conformance'
    return {
        'split': [conformance, 'nccl:3', 'split'],
        'regions': [conformance, 'nccl:3', 'region'],
        'wine': [*start, build / 'examples/wine/wine', '--epochs', '2'],
        'gpt': [sys.executable, HERE.parent / 'rehearsal/gpt_by_hand.py', build / 'examples/gpt/gpt', '2',
                *(['--divided'] if seed % 2 else ['--dtype', 'bf16', '--micro', '1'])],
        'hook': [*start, build / 'tests/gpu/hook'],
        'clip': [*start, build / 'tests/standin/device_clip'],
        'optim': [*start, build / 'tests/standin/device_optim'],
        'powersgd': [*start, build / 'tests/standin/device_powersgd', os.devnull],
        'capture': [*start, build / 'tests/standin/device_capture', captures(seed)],
        'whole': [*start, build / 'tests/standin/device_whole', ('all', 'saved', 'refused')[seed % 3]],
        'sharded': [*start, build / 'tests/standin/device_sharded', ('all', 'refused')[seed % 2]],
    }


def run_seed(build, seed):
    """Returns the names of failed programs, each with the end of its output."""
    standin = str(build / 'tests/standin/libcddp_standin.so')
    env = os.environ | {
        'CDDP_BACKEND': 'nccl', 'CDDP_MODULE_DIR': str(build / 'worker/backend/nccl'), 'CDDP_CUDA_LIBRARY': standin,
        'CDDP_NCCL_LIBRARY': standin, 'CDDP_CUBLAS_LIBRARY': standin,
        'CDDP_STANDIN_KERNELS': ':'.join(str(build / f'tests/rehearsal/lib{program}_twin.so') for program in ('wine', 'gpt')),
        'CDDP_STANDIN_SEED': str(seed), 'CDDP_STANDIN_NCCL_VERSION': VERSIONS[seed % 7],
        'CDDP_STANDIN_PROGRESS': '90', 'CDDP_NCCL_BLOCKING': str(int(is_blocking(seed)))}
    bad = []
    for name, command in jobs(build, seed).items():
        try:
            done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors='replace', timeout=LIMIT_S, check=False)
            status, said = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            status, said = 'none within the limit', (late.stdout or b'').decode(errors='replace')
        if status != 0:
            bad.append(f'{name}: exit status {status}\n  | ' + '\n  | '.join(said.splitlines()[-12:]))
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('build', type=pathlib.Path)
    parser.add_argument('--seeds', type=int, default=200)
    parser.add_argument('--first', type=int, default=1)
    parser.add_argument('--jobs', type=int, default=2)
    args = parser.parse_args()
    build, seeds, failed = args.build.resolve(), range(args.first, args.first + args.seeds), 0

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for seed, bad in zip(seeds, pool.map(lambda seed: run_seed(build, seed), seeds)):
            failed += bool(bad)
            for one in bad:
                print(f'seed {seed}, NCCL {VERSIONS[seed % 7]}, blocking {seed // 7 % 2}: {one}', flush=True)
    print(f'{len(seeds) - failed} of {len(seeds)} seeds passed')
    sys.exit(failed != 0)


if __name__ == '__main__':
    main()
