#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants faults, each of which the stand-in must report in every run; without a fault, it must not report any.

planted.py BUILD [--runs N] [--tsan]        BUILD: the build folder

mini_reducer contains its faults. In libcddp's NCCL backend and reducer they are planted from outside: the
stand-in ignores one event wait, or exchanges two launches (CDDP_STANDIN_SKIP_WAIT, _SWAP_LAUNCH). Likewise for the
communication hooks of a program.

Run i has seed i; even runs have a slow device, odd ones a slow host. With --tsan (a build with ThreadSanitizer) the
stand-in only counts faults, and ThreadSanitizer must report the race: the stand-in must not hide it.
Prints a table and exits with 1 if the result of a run is wrong. The project's requirement is 50 of 50: --runs 50.
"""
import argparse
import os
import re
import subprocess
import sys

STANDIN_EXIT, TSAN_EXIT, STUCK = 86, 66, 4
UNORDERED = 'standin: fault: unordered access'
DISAGREE = 'standin: fault: ranks do not agree'
RACE = 'ThreadSanitizer: data race'
NOTHING = None
SCAN = 40  # event waits, or launches, until a planted one must be noticed


class Fault:
    def __init__(self, name, command, status, said, **env):
        self.name, self.command, self.status, self.said, self.env = name, command, status, said, env

    def run(self, **settings):
        env = dict(os.environ, **self.env, **{f'CDDP_STANDIN_{key}': value for key, value in settings.items()})
        done = subprocess.run(self.command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=90, check=False)
        return done.returncode, done.stdout.decode(errors='replace')

    def is_caught(self, status, output):
        if self.said is NOTHING:
            return status == self.status and 'fault:' not in output
        return status == self.status and re.search(self.said, output) is not None


def mini(build, tsan):
    program = f'{build}/tests/standin/mini_reducer'
    if tsan:
        # In clang's runtime UBSan's log_path overrides ThreadSanitizer's: reports of planted races belong to this test alone.
        env = {'CDDP_STANDIN_REPORT': 'count', 'TSAN_OPTIONS': 'halt_on_error=1:log_path=stderr',
               'UBSAN_OPTIONS': 'log_path=stderr'}
        return [Fault('none', [program, 'none'], 0, NOTHING, **env)] + [
            Fault(name, [program, name], TSAN_EXIT, RACE, **env) for name in ('comm_wait', 'compute_wait', 'reuse')]
    return [
        Fault('none', [program, 'none'], 0, NOTHING),
        Fault('comm_wait', [program, 'comm_wait'], STANDIN_EXIT, UNORDERED),
        Fault('compute_wait', [program, 'compute_wait'], STANDIN_EXIT, UNORDERED),
        Fault('reuse', [program, 'reuse'], STANDIN_EXIT, UNORDERED),
        Fault('in_progress', [program, 'in_progress'], STANDIN_EXIT, UNORDERED, CDDP_STANDIN_PROGRESS='100'),
        Fault('order', [program, 'order'], STANDIN_EXIT, DISAGREE),
        Fault('order_equal', [program, 'order_equal'], STANDIN_EXIT, DISAGREE),
        Fault('missing_rank', [program, 'missing_rank'], STUCK, 'aborted: a rank did not come'),
    ]


def product(build):
    start = [f'{build}/launcher/cddprun', '--standalone', '--nproc_per_node=2']
    job, hook = [*start, f'{build}/tests/standin/device_reducer'], [*start, f'{build}/tests/gpu/hook']
    library = f'{build}/tests/standin/libcddp_standin.so'
    here = {'CDDP_MODULE_DIR': f'{build}/worker/backend/nccl', 'CDDP_CUDA_LIBRARY': library, 'CDDP_NCCL_LIBRARY': library}

    def planted(name, said, what, job=job, **env):
        """Returns the fault with the first K that is noticed: others leave out a wait that another one covers."""
        for k in range(1, SCAN):
            fault = Fault(name, job, STANDIN_EXIT, said, **here, **env, **{what: str(k)})
            if fault.is_caught(*fault.run(DELAY='none')):
                return fault
        sys.exit(f'{name}: no {what} up to {SCAN} was caught')

    # A whole step in a graph, with one call that a capture forbids, or one wait that is left out.
    whole = {'CDDP_STANDIN_CAPTURE': 'fault', 'CDDP_STANDIN_QUEUE': '100000'}
    captured = [*start, f'{build}/tests/standin/device_whole', 'ahead']
    # These are forbidden everywhere, so also where libcddp is in the relaxed mode; those only where a thread's mode says so.
    asked = [f'{call}:9' for call in ('cuStreamQuery', 'cuStreamSynchronize', 'cuCtxSynchronize', 'cuEventQuery', 'cuEventSynchronize')]
    asked += [f'{call}:1' for call in ('cuMemAlloc', 'cuMemFree', 'cuMemHostAlloc', 'cuMemcpyHtoD', 'cuFuncLoad')]

    return [
        Fault('captured: none', captured, 0, NOTHING, **whole, **here),
        *(Fault(f'captured: {call}', captured, STANDIN_EXIT, f'standin: fault: {call.split(":")[0]}: forbidden', **whole, **here,
                CDDP_STANDIN_UNSAFE=call) for call in asked),
        Fault('captured: not relaxed', captured, STANDIN_EXIT, 'standin: fault: cu[A-Za-z]*: forbidden', **whole, **here,
              CDDP_STANDIN_NEVER_RELAXED='1'),
        planted('captured: join', 'standin: fault: cuStreamEndCapture: a stream of the capture was not joined',
                'CDDP_STANDIN_SKIP_CAPTURED_WAIT', captured, **whole),
        planted('captured: order', UNORDERED, 'CDDP_STANDIN_SKIP_CAPTURED_WAIT', captured, **whole),
        Fault('libcddp: none', job, 0, NOTHING, **here),
        Fault('libcddp: auto', [*job, 'auto'], 0, NOTHING, **here),
        Fault('libcddp: own', [*job, 'own'], 0, NOTHING, **here),
        Fault('libcddp: unused', [*job, 'unused'], 0, NOTHING, **here),
        Fault('libcddp: unused own', [*job, 'unused_own'], 0, NOTHING, **here),
        Fault('libcddp: static graph', [*job, 'static'], 0, NOTHING, **here),
        Fault('libcddp: static graph own', [*job, 'static_own'], 0, NOTHING, **here),
        Fault('libcddp: skips unused', [*job, 'skip'], 0, NOTHING, **here),
        planted('libcddp: comm_wait', UNORDERED + ": 'ncclAllReduce'.*reads.*'fill'", 'CDDP_STANDIN_SKIP_WAIT'),
        planted('libcddp: compute_wait', UNORDERED + ": 'axpy'.*reads.*'cdi_scale'", 'CDDP_STANDIN_SKIP_WAIT'),
        Fault('libcddp: reuse', [*job, 'reuse'], STANDIN_EXIT, UNORDERED, **here),
        Fault('libcddp: asks', [*job, 'asks'], 0, NOTHING, CDDP_STANDIN_PROGRESS='100', **here),
        Fault('hook: none', hook, 0, NOTHING, CDDP_STANDIN_PROGRESS='100', **here),
        Fault('hook: own_stream', [*hook, 'own_stream'], STANDIN_EXIT, UNORDERED + ": 'ncclAllReduce'.*'cdi_cast'", **here),
        planted('hook: comm_wait', UNORDERED + ": 'cdi_cast'.*reads.*'cdi_pack'", 'CDDP_STANDIN_SKIP_WAIT', hook),
        planted('hook: compute_wait', UNORDERED + ": 'cdi_pack'.*reads.*'cdi_cast'", 'CDDP_STANDIN_SKIP_WAIT', hook),
        planted('libcddp: order', DISAGREE, 'CDDP_STANDIN_SWAP_LAUNCH', CDDP_STANDIN_RANK='1'),
        Fault('libcddp: missing_rank', [*job, 'missing'], STUCK, 'rank 1 did not arrive within', CDDP_TIMEOUT='2',
              **here),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('build')
    parser.add_argument('--runs', type=int, default=3)
    parser.add_argument('--tsan', action='store_true')
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    bad = 0
    for fault in mini(build, args.tsan) + ([] if args.tsan else product(build)):
        good = 0
        for seed in range(1, args.runs + 1):
            status, output = fault.run(SEED=str(seed), DELAY=('device', 'host')[seed % 2])
            if fault.is_caught(status, output):
                good += 1
            else:
                print(f'{fault.name}, seed {seed}: exit status {status}, wanted {fault.status} and {fault.said}')
                print('\n'.join('  | ' + line for line in output.splitlines()[-30:]))
        bad += args.runs - good
        print(f'{fault.name:22} {"quiet" if fault.said is NOTHING else "caught"} {good} of {args.runs}', flush=True)
    sys.exit(1 if bad else 0)


if __name__ == '__main__':
    main()
