#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--data_ports: the range on which workers listen for those of other nodes."""
import os
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, run, wait_for


def wine(cddprun):
    return os.path.join(os.path.dirname(cddprun), '..', 'examples', 'wine', 'wine')


def listening(pid):
    """The ports on which a process listens."""
    inodes = set()
    for fd in os.listdir(f'/proc/{pid}/fd'):
        try:
            inodes.add(os.readlink(f'/proc/{pid}/fd/{fd}'))
        except OSError:
            pass
    found = set()
    for name in 'tcp', 'tcp6':
        with open(f'/proc/net/{name}', encoding='ascii') as f:
            for line in list(f)[1:]:
                words = line.split()
                if words[3] == '0A' and f'socket:[{words[9]}]' in inodes:
                    found.add(int(words[1].rpartition(':')[2], 16))
    return found


def nodes(cddprun, first, last, *words):
    """Two agents of two workers each."""
    port = launch.free_port()
    return [Job(cddprun, '--nnodes=2', f'--node_rank={i}', '--master_addr=127.0.0.1', f'--master_port={port}', '--nproc_per_node=2',
                f'--data_ports={first}-{last}', wine(cddprun), *words) for i in range(2)]


def test_workers_listen_in_the_range_only(cddprun):
    first = launch.free_ports(4)
    a, b = nodes(cddprun, first, first + 3, '--epochs', '1000000')
    with a, b:
        def ports():
            try:
                return [listening(pid) for pid in a.workers() + b.workers()]
            except OSError:
                return []
        wait_for('two listeners', lambda: len(ports()) == 4 and sum(len(p) for p in ports()) == 2, more=lambda: ports())
        used = [port for p in ports() for port in p]
        assert len(set(used)) == 2 and all(first <= port <= first + 3 for port in used), (first, used)
        for job in a, b:
            job.process.terminate()
        for job in a, b:
            job.finish()


def test_ports_are_used_again_after_a_job(cddprun):
    first = launch.free_ports(2)
    for _ in range(2):
        a, b = nodes(cddprun, first, first + 1, '--epochs', '3')
        with a, b:
            assert (a.finish(), b.finish()) == (0, 0), (a.err, b.err)


def test_says_when_the_range_is_used_up(cddprun):
    first = launch.free_ports(1)
    with socket.create_server(('', first)):
        a, b = nodes(cddprun, first, first, '--epochs', '3')
        with a, b:
            assert a.finish() != 0 and b.finish() != 0
            assert f'all ports of CDDP_DATA_PORTS={first}-{first} are in use on this node' in b.err, b.err


def test_refuses_what_is_no_range(cddprun):
    for text in '', '7', '7-', '-7', '9-8', '0-5', '1-65536', '1-2-3', ' 1-2', '1-2 ', 'a-b', '000000001-2':
        status, _, err = run(cddprun, f'--data_ports={text}', 'true')
        assert status == 2 and 'is not a range of ports such as 30000-30099' in err, (text, status, err)


if __name__ == '__main__':
    launch.main()
