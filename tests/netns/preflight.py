#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddprun --preflight on several hosts of which one has a planted fault: the table names it.

    preflight.py CDDPRUN [--slow] [TEST...]; CDDP_PLANTED_NODE is a library that plants some of them, and
    CDDP_FAKE_NVML one that stands in for NVIDIA's.
"""
import contextlib
import os
import re
import subprocess
import tempfile
import time

import hosts
import launch
from launch import Job, run

PORT = 29400


class Nodes(contextlib.ExitStack):
    """A job of one worker on each of n hosts; how[host] are words before cddprun, and variables of that host."""

    def __init__(self, cddprun, *flags, n=3, how=None, command=('sh', '-c', 'echo runs $RANK/$WORLD_SIZE')):
        super().__init__()
        self.jobs, self.command = {}, command
        for host in range(1, n + 1):
            self.start(cddprun, host, *flags, nodes=n, how=(how or {}).get(host, ([], {})))

    def start(self, cddprun, host, *flags, nodes, how=([], {})):
        words, env = how
        self.jobs[host] = self.enter_context(hosts.on(
            host, *words, cddprun, f'--nnodes={nodes}', '--rdzv_id=job', f'--rdzv_endpoint={hosts.address(1)}:{PORT}',
            f'--rdzv_conf=is_host={int(host == 1)}', f'--local_addr={hosts.address(host)}', *flags, *self.command, env=env))

    def finish(self):
        self.status = {host: job.finish() for host, job in self.jobs.items()}
        self.err = ''.join(job.err for job in self.jobs.values())
        self.out = ''.join(job.out for job in self.jobs.values())
        return self

    def findings(self):
        """All but slow links, which a machine that is busy with other tests may really have."""
        assert len(re.findall(r'preflight: \d+ nodes?, \d+ errors?, \d+ warnings?, [0-9.]+ s$', self.err, re.M)) == 1, self.err
        lines = re.findall(r'^\[\d+\] (?:error|warning): (.*)$', self.err, re.M)
        return [line for line in lines if ' is slow: ' not in line]

    def named(self, kind, host, text):
        """The table has this finding about this host, and the job's last word agrees."""
        name = re.escape(hosts.address(host))  # of --local_addr
        assert re.search(rf'^\[\d+\] {kind}: node \d+ \({name}\): .*{text}', self.err, re.M), (text, self.err)


def tc(host, *words):
    subprocess.run(['ip', 'netns', 'exec', f'{os.environ["NETNS_HOSTS"]}-{host}', 'tc', *words], check=True)


def ip(host, *words):
    subprocess.run(['ip', '-n', f'{os.environ["NETNS_HOSTS"]}-{host}', *words], check=True)


def test_all_nodes_are_fit(cddprun):
    with Nodes(cddprun, '--preflight') as nodes:
        nodes.finish()
        assert set(nodes.status.values()) == {0} and nodes.findings() == [], (nodes.status, nodes.err)
        assert sorted(re.findall(r'runs \S+', nodes.out)) == [f'runs {i}/3' for i in range(3)], nodes.out


def test_only_needs_no_program(cddprun):
    with Nodes(cddprun, '--preflight=only', command=()) as nodes:
        nodes.finish()
        assert set(nodes.status.values()) == {0} and nodes.findings() == [] and nodes.out == '', (nodes.status, nodes.err, nodes.out)


def test_slow_link(cddprun):
    tc(2, 'qdisc', 'add', 'dev', 'eth0', 'root', 'tbf', 'rate', '16mbit', 'burst', '32k', 'latency', '50ms')
    try:
        with Nodes(cddprun, '--preflight') as nodes:
            nodes.finish()
            nodes.named('warning', 2, r'the link from \S+ to \S+ is slow: [0-9.]+ MiB/s, the median is')
            assert nodes.findings() == [] and set(nodes.status.values()) == {0} and 'runs 0/3' in nodes.out, (nodes.status, nodes.err)
    finally:
        tc(2, 'qdisc', 'del', 'dev', 'eth0', 'root')


def stopped_by(nodes, host, text):
    """The job did not start; the host's own cddprun names the reason, too."""
    nodes.finish()
    nodes.named('error', host, text)
    assert 0 not in nodes.status.values() and nodes.out == '', (nodes.status, nodes.out, nodes.err)
    assert re.search(rf'cddp-preflight: node \d+ cannot take part: .*{text}', nodes.jobs[host].err), nodes.jobs[host].err


def test_port_without_a_route(cddprun):
    """CDDP_SOCKET_IFNAME selects an interface that the other hosts cannot reach."""
    ip(2, 'link', 'add', 'wrong0', 'type', 'veth', 'peer', 'name', 'wrong1')
    ip(2, 'addr', 'add', '10.98.0.2/24', 'dev', 'wrong0')
    ip(2, 'link', 'set', 'wrong0', 'up')
    ip(2, 'link', 'set', 'wrong1', 'up')
    try:
        with Nodes(cddprun, '--preflight', how={2: ([], {'CDDP_SOCKET_IFNAME': '=wrong0'})}) as nodes:
            stopped_by(nodes, 2, r'\S+ cannot reach its data ports: 10\.98\.0\.2:\d+: Network is unreachable')
    finally:
        ip(2, 'link', 'del', 'wrong0')


def test_port_behind_a_firewall(cddprun):
    """Host 3's answers from its data ports vanish; the rendezvous is let through."""
    rule = ['rule', 'add', 'blackhole', 'ipproto', 'tcp', 'sport', '30000-30015']
    try:
        ip(3, *rule)
    except subprocess.CalledProcessError as why:
        raise launch.Skip('this kernel has no rules for ports') from why
    try:
        with Nodes(cddprun, '--preflight', '--data_ports=30000-30015') as nodes:
            stopped_by(nodes, 3, r'\S+ cannot reach its data ports: 10\.99\.0\.3:300\d\d: Connection timed out')
    finally:
        ip(3, 'rule', 'del', *rule[2:])


def planted(**faults):
    return [], {'LD_PRELOAD': os.environ['CDDP_PLANTED_NODE'], **{name: str(value) for name, value in faults.items()}}


def test_wrong_clock(cddprun):
    for host, seconds, text in (3, 7, '7.0 s fast'), (1, -90, '90.0 s slow'):
        with Nodes(cddprun, '--preflight', how={host: planted(PLANT_CLOCK_S=seconds)}) as nodes:
            nodes.finish()
            nodes.named('warning', host, f'its clock is {text}')
            assert len(nodes.findings()) == 1 and set(nodes.status.values()) == {0}, (nodes.status, nodes.err)


def test_full_disk(cddprun):
    with tempfile.TemporaryDirectory(prefix='cddp-test-') as folder:
        subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'none', folder], check=True)
        try:
            with Nodes(cddprun, '--preflight', how={2: ([], {'TMPDIR': folder})}) as nodes:
                stopped_by(nodes, 2, f'the disk of {folder} is full')
        finally:
            subprocess.run(['umount', '-l', folder], check=True)


def test_disk_that_does_not_answer(cddprun):
    """The node itself cannot report it; the others wait for 20 seconds."""
    with Nodes(cddprun, '--preflight', how={2: planted(PLANT_DISK_S=600)}) as nodes:
        nodes.finish()
        assert re.search(r'^\[0\] error: node \d+ \(unknown host\): it has not reported in time$', nodes.err, re.M), nodes.err
        assert 0 not in nodes.status.values() and nodes.out == '', (nodes.status, nodes.out, nodes.err)
    with Nodes(cddprun, '--preflight', how={1: planted(PLANT_DISK_S=600)}) as nodes:
        nodes.finish()
        assert 'node 0 has not begun the checks within 20 s' in nodes.err, nodes.err
        assert 0 not in nodes.status.values() and nodes.out == '', (nodes.status, nodes.out, nodes.err)


FEW_FILES = ['sh', '-c', 'ulimit -n 200; exec "$@"', 'sh']


def test_few_open_files(cddprun):
    with Nodes(cddprun, '--preflight', how={2: (FEW_FILES, {})}) as nodes:
        stopped_by(nodes, 2, 'a worker may open only 200 files')
    with Nodes(cddprun, '--preflight=only', how={2: (FEW_FILES, {})}, command=()) as nodes:
        stopped_by(nodes, 2, 'a worker may open only 200 files')
        assert 'local rank 0 of cddp-preflight' in nodes.jobs[2].err, nodes.jobs[2].err
    with Nodes(cddprun, '--preflight', '--on_failure=wait', '--nproc_per_node=2', how={3: (FEW_FILES, {})}) as nodes:
        stopped_by(nodes, 3, 'a worker may open only 200 files')


def test_gpus_with_errors_heat_or_missing(cddprun):
    """Hosts 1 and 2 have the GPUs of a stand-in for NVIDIA's library, host 3 has none."""
    with tempfile.TemporaryDirectory(prefix='cddp-test-') as folder:
        os.symlink(os.path.abspath(os.environ['CDDP_FAKE_NVML']), os.path.join(folder, 'libnvidia-ml.so.1'))
        gpus = {'LD_LIBRARY_PATH': folder}
        how = {1: ([], gpus), 2: ([], {**gpus, 'FAKE_NVML_ECC': '2', 'FAKE_NVML_HOT': '1'})}
        with Nodes(cddprun, '--preflight', '--nproc_per_node=1', how=how) as nodes:
            nodes.finish()
            nodes.named('error', 2, '1 of 4 GPUs have memory errors that could not be corrected')
            nodes.named('warning', 2, '1 of 4 GPUs are slowed down by heat or by their power supply')
            nodes.named('error', 3, 'it has 0 GPUs, the others 4; look for a GPU that the driver has lost')
            assert len(nodes.findings()) == 3 and nodes.out == '', (nodes.status, nodes.err)
        how = {host: ([], gpus) for host in (1, 2, 3)}
        with Nodes(cddprun, '--preflight', '--nproc_per_node=1', how=how) as nodes:
            nodes.finish()
            assert nodes.findings() == [] and set(nodes.status.values()) == {0}, (nodes.status, nodes.err)


@contextlib.contextmanager
def even_links(*at):
    """So slow that no other load changes them: a slow link, too, excludes a node."""
    try:
        for host in at:
            tc(host, 'qdisc', 'add', 'dev', 'eth0', 'root', 'tbf', 'rate', '100mbit', 'burst', '64k', 'latency', '50ms')
        yield
    finally:
        for host in at:
            tc(host, 'qdisc', 'del', 'dev', 'eth0', 'root')


def test_excluded_node_is_replaced(cddprun):
    flags = ['--preflight=exclude', '--spares=1']
    with even_links(1, 2, 3), Nodes(cddprun, *flags, n=2, how={2: (FEW_FILES, {})}) as nodes:
        launch.wait_for('a worker on host 2', nodes.jobs[2].workers)
        nodes.start(cddprun, 3, *flags, nodes=2)
        nodes.finish()
        assert nodes.status == {1: 0, 2: 143, 3: 0}, (nodes.status, nodes.err)
        assert sorted(re.findall(r'runs \S+', nodes.out)) == ['runs 0/2', 'runs 1/2'] and nodes.jobs[2].out == '', nodes.out
        assert 'leaves the job: a worker may open only 200 files' in nodes.jobs[2].err, nodes.jobs[2].err


def test_excluded_node_without_a_spare(cddprun):
    with even_links(1, 2), Nodes(cddprun, '--preflight=exclude', '--spares=1', n=2, how={2: (FEW_FILES, {})}) as nodes:
        nodes.finish()
        assert nodes.status == {1: 1, 2: 143} and nodes.out == '', (nodes.status, nodes.out, nodes.err)
        assert 'leaves the job, and no other node has come to replace it: a worker may' in nodes.jobs[2].err, nodes.jobs[2].err


def test_workers_of_a_node_wait_for_one_of_them(cddprun):
    """Also where LOCAL_RANK is 0 for each."""
    for flags in [], ['--virtual_local_rank']:
        status, out, err = run(cddprun, '--standalone', '--nproc_per_node=4', '--preflight', *flags, 'sh', '-c', 'echo runs $RANK')
        assert status == 0 and sorted(re.findall(r'runs \d', out)) == [f'runs {i}' for i in range(4)], (status, out, err)
        assert err.count('preflight: 1 node, 0 errors, ') == 1, err


def test_exclude_needs_a_spare(cddprun):
    status, out, err = run(cddprun, '--nnodes=2', '--preflight=exclude', 'true')
    assert status == 2 and '--preflight=exclude needs' in err and err.count('\n') == 1, (status, out, err)


def test_programs_are_run_as_without_it(cddprun):
    status, out, err = run(cddprun, '--standalone', '--preflight', '/etc/passwd')
    assert status == 126 and 'not executable' in err, (status, out, err)
    with tempfile.TemporaryDirectory(prefix='cddp-test-') as folder:
        for first, expected in ('', (0, '[0] runs a b\n')), ('#!/bin/sh\n', (0, '[0] runs a b\n')), ('#!/nonexistent/x\n', (127, '')):
            path = f'{folder}/script'
            with open(path, 'w', encoding='ascii') as script:
                script.write(first + 'echo runs "$1"\n')
            os.chmod(path, 0o755)
            for flags in [], ['--preflight']:
                status, out, err = run(cddprun, '--standalone', *flags, path, 'a b')
                assert (status, out) == expected and (status == 0 or 'interpreter' in err), (first, flags, status, out, err)


def test_many_nodes_take_seconds(cddprun):
    """64 agents on one machine; the time is printed, not checked."""
    n, began = 64, time.monotonic()
    with contextlib.ExitStack() as stack:
        port = launch.free_port()
        jobs = [stack.enter_context(Job(cddprun, f'--nnodes={n}', f'--node_rank={i}', '--master_addr=127.0.0.1', f'--master_port={port}', '--preflight=only'))
                for i in range(n)]
        status = {job.finish() for job in jobs}
        print(f'# {time.monotonic() - began:.1f} s with the start of {n} agents; {jobs[0].err.splitlines()[-1]}')
        assert status == {0} and f'preflight: {n} nodes, 0 errors, ' in jobs[0].err, (status, jobs[0].err)
        assert jobs[0].err.count('\n') < 60, jobs[0].err


if __name__ == '__main__':
    hosts.enter(3)
    launch.main()
