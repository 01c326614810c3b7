#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--hosts over network namespaces: each cddprun has its own host, and they connect over the network."""
import os
import re
import sys
import tempfile

import hosts
from hosts import address, enter
import launch
from launch import Job

FAKE_SSH = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'integration', 'fake_ssh.py')


def job(cddprun, folder, *command):
    os.symlink(os.path.realpath(FAKE_SSH), os.path.join(folder, 'ssh'))
    env = {'PATH': folder + os.pathsep + os.environ['PATH'], 'FAKE_SSH_EXEC': hosts.SCRIPT, 'FAKE_SSH_SERVER': launch.far_ends(), 'NETNS_HOSTS': os.environ['NETNS_HOSTS']}
    return Job(cddprun, '--hosts', f'{address(1)}:2,{address(2)}:1', *command, env=env)


def test_each_cddprun_is_on_its_host(cddprun):
    with tempfile.TemporaryDirectory() as folder, \
            job(cddprun, folder, 'sh', '-c', 'echo $RANK/$WORLD_SIZE $MASTER_ADDR; ip -o -4 addr show scope global') as run:
        assert run.finish() == 0, run.err
        for rank, host in ((0, 1), (1, 1), (2, 2)):
            lines = [line for line in run.out.splitlines() if line.startswith(f'[{rank}] ')]
            assert f'[{rank}] {rank}/3 {address(1)}' in lines, run.out
            assert re.search(rf'\b{re.escape(address(host))}/', '\n'.join(lines)), run.out


def test_a_failure_on_one_host_ends_the_other(cddprun):
    with tempfile.TemporaryDirectory() as folder, \
            job(cddprun, folder, 'sh', '-c', '[ $RANK = 2 ] && exit 9; exec sleep 60') as run:
        assert run.finish() == 9, run.err
        assert f'on {address(2)}) exited with status 9' in run.err, run.err


if __name__ == '__main__':
    enter(2)
    launch.main()
