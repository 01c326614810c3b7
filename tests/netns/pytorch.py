#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An unmodified PyTorch DDP program (gloo) over two hosts of one rank each, under cddprun: it trains, and trains again after
a crash.

    pytorch.py CDDPRUN PYTHON [--slow] [TEST...]     PYTHON has torch; skipped if it is empty
"""
import contextlib
import os
import re
import shutil
import sys

import hosts
import launch

PORT = 29400
PROGRAM = os.path.join(hosts.HERE, '..', 'interop', 'ddp_train.py')
DONE = re.compile(r'rank (\d+) done loss (\S+) restart (\d+) port (\d+)')
TEARDOWN = 'terminate called without an active exception'  # PyTorch's own, after all is done: see peer/check_ddp.py
ABORTED = 134, 139


def train(cddprun, *flags, tries=5, **env):
    # Host names resolve nowhere here, and gloo would take the loopback.
    env = {'GLOO_SOCKET_IFNAME': 'eth0', **env}
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(hosts.on(i + 1, cddprun, '--nnodes=2', f'--node_rank={i}', '--nproc_per_node=1',
                                             f'--master_addr={hosts.address(1)}', f'--master_port={PORT}', *flags, PYTHON,
                                             '-u', PROGRAM, env=env)) for i in range(2)]
        status = [job.finish(timeout=120) for job in jobs]
        for job in jobs:
            for name in job.left_in_tmp():
                if name.startswith('torchinductor_'):  # PyTorch's
                    shutil.rmtree(os.path.join(job.tmp, name))
        out, err = ''.join(job.out for job in jobs), ''.join(job.err for job in jobs)
    ranks = {int(m[1]): m for m in DONE.finditer(out)}
    if status[0] == status[1] and status[0] in ABORTED and TEARDOWN in err and len(ranks) == 2 and tries > 1:
        return train(cddprun, *flags, tries=tries - 1, **env)
    return status, ranks, err


def test_two_hosts_train_and_a_crash_starts_both_again(cddprun):
    status, plain, err = train(cddprun)
    assert status == [0, 0] and sorted(plain) == [0, 1], (status, err)
    assert {m[3] for m in plain.values()} == {'0'} and plain[0][2] == plain[1][2]
    status, again, err = train(cddprun, '--max_restarts=1', CRASH_ONCE='1')
    assert status == [0, 0] and sorted(again) == [0, 1], (status, err)
    assert {m[3] for m in again.values()} == {'1'}, 'the restart count is seen'
    assert again[0][2] == plain[0][2], 'the second life trains as the first'
    assert re.search(r'exited with status 7(: .*)?; restarting all workers \(restart 1 of 1\)', err), err


def test_recorded_exception_is_in_the_report(cddprun):
    status, _, err = train(cddprun, RAISE='1')
    assert status == [1, 1] and '| ValueError: a bad batch' in err, (status, err)


if __name__ == '__main__':
    if len(sys.argv) < 3 or not sys.argv[2]:
        print('1..0 # SKIP no python with torch was given (meson option torch_python)')
        sys.exit(0)
    hosts.enter(2)
    PYTHON = sys.argv.pop(2)
    launch.main()
