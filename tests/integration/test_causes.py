#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank makes a mistake, and all others fail because of it: the report names the one that made it.

    test_causes.py CDDPRUN [NAMES]              CDDP_CAUSES_RUNS=200: how often each, with busy processes beside

CDDP_FAULTY is the program tests/integration/faulty.c.
"""
import contextlib
import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
import launch  # noqa: E402

FAULTY = os.environ.get('CDDP_FAULTY', '')
RUNS = int(os.environ.get('CDDP_CAUSES_RUNS', '4'))
RANKS = 3
STACK = ' crash() at ' if os.environ.get('CDDP_LIBDW') == '1' else ''


@contextlib.contextmanager
def busy(n):
    """So many processes that take all they can get."""
    spinners = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(n)]
    try:
        yield
    finally:
        for p in spinners:
            p.kill()
            p.wait()


def headline(err):
    found = re.findall(r'(?m)^cddprun: (rank (\d+) .*)$', err)
    return (int(found[-1][1]), found[-1][0]) if found else (-1, err)


def check(cddprun, how, what, runs=RUNS, ranks=RANKS, more=''):
    """Rank 1 is named in each of the runs, and its end is what it was."""
    wrong = []
    with busy(2 * (os.cpu_count() or 1)):
        for _ in range(runs):
            with launch.Job(cddprun, f'--nproc_per_node={ranks}', FAULTY, how, env={'CDDP_BACKEND': 'cpu'}) as job:
                job.finish()
            rank, line = headline(job.err)
            if rank != 1 or what not in line or more not in job.err:
                wrong.append(job.err)
    assert not wrong, f'{len(wrong)} of {runs} reports are wrong:\n' + '\n'.join(wrong[:5])


def test_rank_that_forgets_a_gradient_is_named(cddprun):
    check(cddprun, 'forgets', 'exited with status 3', more="1 of 4 gradients are missing in step 3")


def test_rank_with_another_size_is_named(cddprun):
    check(cddprun, 'size', 'exited with status 3')


def test_rank_with_1000_threads_that_crashes_is_named(cddprun):
    if launch.SLOW:
        raise launch.Skip('a sanitizer handles the crash')
    check(cddprun, 'threads', '(SIGSEGV)', runs=(RUNS + 1) // 2 if RUNS < 10 else RUNS, ranks=2, more=STACK)


def test_rank_whose_main_thread_has_ended_is_named(cddprun):
    if launch.SLOW:
        raise launch.Skip('a sanitizer handles the crash')
    check(cddprun, 'gone', '(SIGSEGV)', ranks=2, more=STACK)


def test_rank_that_forgets_is_named_though_the_others_abort(cddprun):
    check(cddprun, 'throws', 'exited with status 3')


def test_every_node_names_the_rank(cddprun):
    """Of two nodes, whichever learns of it first."""
    wrong = []
    with busy(2 * (os.cpu_count() or 1)):
        for i in range(RUNS):
            port = launch.free_port()
            with contextlib.ExitStack() as stack:
                jobs = [stack.enter_context(launch.Job(
                    cddprun, '--nnodes=2', f'--node_rank={node}', '--master_addr=127.0.0.1', f'--master_port={port}', f'--nproc_per_node={1 + i % 2}',
                    FAULTY, ('forgets', 'size', 'throws')[i % 3], env={'CDDP_BACKEND': 'cpu'})) for node in range(2)]
                for job in jobs:
                    job.finish()
            wrong += [job.err for job in jobs if headline(job.err)[0] != 1]
    assert not wrong, f'{len(wrong)} of {2 * RUNS} reports are wrong:\n' + '\n'.join(wrong[:5])


def test_rank_that_ends_slowly_is_named(cddprun):
    check(cddprun, 'slow', 'exited with status', runs=max(1, RUNS // 20))


if __name__ == '__main__':
    launch.main()
