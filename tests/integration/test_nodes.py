#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several nodes: one cddprun each, all on the loopback interface, with different --node_rank."""
import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, Skip, free_port, run


def sh(script):
    return ['sh', '-c', script]


class Nodes(contextlib.ExitStack):
    """Agents of one job; jobs[i] has node rank i. nproc and the program may differ."""

    def __init__(self, cddprun, nprocs, script, *flags, ranks=None, **popen):
        super().__init__()
        self.port = free_port()
        scripts = script if isinstance(script, list) else [script] * len(nprocs)
        ranks = range(len(nprocs)) if ranks is None else ranks
        self.jobs = [
            self.enter_context(Job(cddprun, f'--nnodes={len(nprocs)}', '--master_addr=127.0.0.1',
                                   f'--master_port={self.port}', f'--nproc_per_node={n}',
                                   *([f'--node_rank={rank}'] if rank is not None else []), *flags, *sh(one), **popen))
            for rank, n, one in zip(ranks, nprocs, scripts)]

    def finish(self):
        return [job.finish() for job in self.jobs]


def running(nodes, n):
    """Wait until n workers in all have touched their file."""
    launch.wait_for(f'{n} workers', lambda: sum(name.startswith('up') for job in nodes.jobs for name in os.listdir(job.tmp)) == n)


# 2>/dev/null: the shell would say "Terminated"
UP = 'exec 2>/dev/null; trap "rm -f $TMPDIR/up$RANK; exit 143" TERM; touch "$TMPDIR/up$RANK"; '
WAIT = 'while :; do sleep 0.02; done'


def test_a_part_outlives_the_part_that_it_was_split_from(cddprun):
    with Nodes(cddprun, [1, 2], f'exec {shlex.quote(os.environ["CDDP_COMMUNICATORS"])} outlive', env={'CDDP_BACKEND': 'cpu'}) as nodes:
        assert nodes.finish() == [0, 0], [job.err for job in nodes.jobs]


# --- a world --------------------------------------------------------------------------------------------------------

def test_nodes_of_different_size_form_one_job(cddprun):
    for nprocs in [2, 3], [1, 3, 2]:
        with Nodes(cddprun, nprocs, 'echo $RANK $WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE '
                                    '$MASTER_ADDR $MASTER_PORT $TORCHELASTIC_RUN_ID') as nodes:
            assert nodes.finish() == [0] * len(nprocs), [job.err for job in nodes.jobs]
            base = 0
            for node, (n, job) in enumerate(zip(nprocs, nodes.jobs)):
                assert sorted(job.out.splitlines()) == [
                    f'[{base + i}] {base + i} {sum(nprocs)} {node} {len(nprocs)} {i} {n} 127.0.0.1 {nodes.port} none'
                    for i in range(n)], job.out
                assert job.err == '', job.err
                base += n


def test_without_node_ranks_binding_decides_host(cddprun):
    port = free_port()
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(Job(cddprun, '--nnodes=3', '--rdzv-backend=c10d', f'--rdzv-endpoint=localhost:{port}',
                                        '--rdzv-id=run7', *sh('echo $RANK $GROUP_RANK $TORCHELASTIC_RUN_ID')))
                for _ in range(3)]
        assert [job.finish() for job in jobs] == [0, 0, 0], [job.err for job in jobs]
        assert sorted(job.out for job in jobs) == [f'[{i}] {i} {i} run7\n' for i in range(3)]


def test_early_agent_waits_for_host(cddprun):
    port = free_port()
    flags = ['--nnodes=2', '--master_addr=127.0.0.1', f'--master_port={port}']
    with Job(cddprun, *flags, '--node_rank=1', 'true', env={'LOGLEVEL': 'info'}) as early:
        deadline = time.monotonic() + 0.3
        launch.wait_for('some refused attempts', lambda: time.monotonic() > deadline)
        assert early.process.poll() is None
        with Job(cddprun, *flags, '--node_rank=0', 'true') as host:
            assert (host.finish(), early.finish()) == (0, 0), (host.err, early.err)


def test_ipv6(cddprun):
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(('::1', 0))
    except OSError:
        raise launch.Skip('this machine has no IPv6')
    port = free_port()
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(Job(cddprun, '--nnodes=2', f'--node_rank={i}', f'--rdzv_endpoint=[::1]:{port}',
                                        *sh('echo $MASTER_ADDR'))) for i in range(2)]
        assert [job.finish() for job in jobs] == [0, 0], [job.err for job in jobs]
        assert [job.out for job in jobs] == ['[0] ::1\n', '[1] ::1\n']


# --- failure and restart --------------------------------------------------------------------------------------------

def test_a_failure_on_either_node_ends_both_with_its_status(cddprun):
    for bad in 0, 3:
        script = 'exec 3>&2; ' + UP + f'[ $RANK = {bad} ] || {{ {WAIT}; }}; while [ ! -e "$TMPDIR/go" ]; do sleep 0.01; done; ' \
                      'rm -f "$TMPDIR/go" "$TMPDIR/up$RANK"; echo the reason >&3; exit 7'
        with Nodes(cddprun, [2, 2], script) as nodes:
            running(nodes, 4)
            began = time.monotonic()
            open(os.path.join(nodes.jobs[bad // 2].tmp, 'go'), 'w', encoding='ascii').close()
            assert nodes.finish() == [7, 7], [job.err for job in nodes.jobs]
            assert time.monotonic() - began < launch.within(3), 'a failure is pushed, not polled'
            for node, job in enumerate(nodes.jobs):
                assert re.search(rf'(?m)^cddprun: rank {bad} \(pid \d+ on \S+\) exited with status 7', job.err), job.err
                assert '    | the reason\n' in job.err, f'also where it ran elsewhere: {job.err}'
                assert ('of another node' in job.err) == (node != bad // 2), job.err


def test_early_exit_with_0_is_the_cause_on_every_node(cddprun):
    deserted = 'exited with status 0 in the middle of the job, without cddp_finalize'
    for nprocs in [1, 1], [1, 2], [2, 2]:
        with Nodes(cddprun, nprocs, f'exec {shlex.quote(os.environ["CDDP_PROBE"])} desert', env={'CDDP_TIMEOUT': '60'}) as nodes:
            assert nodes.finish() == [1, 1], (nprocs, said(nodes))
            for job in nodes.jobs:
                assert re.search(rf'(?m)^cddprun: rank 1 \(pid \d+ on \S+\) {deserted}', job.err), (nprocs, said(nodes))


def test_exit_with_0_before_joining_is_the_cause_on_every_node(cddprun):
    script = f'[ $RANK = 1 ] && exit 0; exec {shlex.quote(os.environ["CDDP_PROBE"])}'
    with Nodes(cddprun, [1, 1], script, env={'CDDP_JOIN_TIMEOUT': '2'}) as nodes:
        assert nodes.finish() == [1, 1], said(nodes)
        for job in nodes.jobs:
            assert re.search(r'(?m)^cddprun: rank 1 \(pid \d+ on \S+\) exited with status 0 before cddp_init', job.err), said(nodes)


def test_a_restart_is_one_of_the_whole_job(cddprun):
    script = ('echo $RANK of $WORLD_SIZE, restart $TORCHELASTIC_RESTART_COUNT; ' + UP +
              f'[ $TORCHELASTIC_RESTART_COUNT = 1 ] && rm -f "$TMPDIR/up$RANK" && exit 0; [ $RANK = 2 ] || {{ {WAIT}; }}; '
              'while [ ! -e "$TMPDIR/go" ]; do sleep 0.01; done; rm -f "$TMPDIR/go" "$TMPDIR/up$RANK"; exit 3')
    with Nodes(cddprun, [2, 1], script, '--max_restarts=1') as nodes:
        running(nodes, 3)
        open(os.path.join(nodes.jobs[1].tmp, 'go'), 'w', encoding='ascii').close()
        assert nodes.finish() == [0, 0], [job.err for job in nodes.jobs]
        assert sorted(nodes.jobs[0].out.splitlines()) == sorted(
            f'[{r}] {r} of 3, restart {k}' for r in (0, 1) for k in (0, 1))
        for job in nodes.jobs:
            assert 'rank 2' in job.err and 'restart 1 of 1' in job.err and job.err.count('\n') == 1, job.err


def test_a_killed_agent_ends_the_job_everywhere_and_is_named(cddprun):
    with Nodes(cddprun, [1, 1, 1], 'touch "$TMPDIR/up$RANK"; exec sleep 100') as nodes:
        running(nodes, 3)
        for job in nodes.jobs:
            for name in os.listdir(job.tmp):
                if name.startswith('up'):
                    os.unlink(os.path.join(job.tmp, name))
        os.kill(nodes.jobs[2].agent(), signal.SIGKILL)
        assert nodes.finish() == [1, 1, 137], [job.err for job in nodes.jobs]
        for job in nodes.jobs[:2]:
            assert re.match(r'cddprun: node 2 \(\S+, pid \d+\) was lost while its workers ran: ', job.err), job.err


def test_a_killed_host_ends_every_node_with_one_sentence(cddprun):
    with Nodes(cddprun, [1, 1, 1], 'touch "$TMPDIR/up$RANK"; exec sleep 100') as nodes:
        running(nodes, 3)
        for job in nodes.jobs:
            for name in os.listdir(job.tmp):
                if name.startswith('up'):
                    os.unlink(os.path.join(job.tmp, name))
        began = time.monotonic()
        os.kill(nodes.jobs[0].agent(), signal.SIGKILL)
        assert nodes.finish() == [137, 1, 1], [job.err for job in nodes.jobs]
        assert time.monotonic() - began < launch.within(15)
        for job in nodes.jobs[1:]:
            assert re.fullmatch(rf'cddprun: lost the rendezvous at 127\.0\.0\.1:{nodes.port}: .*\n', job.err), job.err


def kill_both_halves(job):
    """And all of their workers, as if the node were lost."""
    for pid in [job.agent(), job.process.pid, *job.alive()]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.process.wait()
    shutil.rmtree(job.tmp)
    os.mkdir(job.tmp)


def test_restarted_host_finds_the_others(cddprun):
    script = 'echo $TORCHELASTIC_RESTART_COUNT > "$TMPDIR/life"; while [ ! -e "$END" ]; do sleep 0.02; done; rm "$TMPDIR/life"'
    flags = ['--nnodes=2', '--max_restarts=1', '--master_addr=127.0.0.1', f'--master_port={free_port()}']

    def life(job):
        with contextlib.suppress(FileNotFoundError), open(os.path.join(job.tmp, 'life'), encoding='ascii') as file:
            return file.read().strip()
        return None
    with tempfile.TemporaryDirectory() as tmp, contextlib.ExitStack() as stack:
        def start(rank):
            return stack.enter_context(Job(cddprun, *flags, f'--node_rank={rank}', *sh(script), env={'END': f'{tmp}/end'}))
        first, second = start(0), start(1)
        launch.wait_for('the first life', lambda: life(first) == life(second) == '0')
        kill_both_halves(first)
        line = second.process.stderr.readline()
        assert 'lost the connection to the rendezvous' in line, line
        again = start(0)
        launch.wait_for('the second life', lambda: life(again) == life(second) == '1')
        open(f'{tmp}/end', 'w', encoding='ascii').close()
        assert [again.finish(), second.finish()] == [0, 0], (again.err, second.err)
        assert second.err.count('connected to the rendezvous at') == 1 and 'lost the connection' not in second.err, second.err


def test_wait_for_lost_host_is_bounded_by_lease(cddprun):
    script = 'touch "$TMPDIR/up$RANK"; exec sleep 100'
    with Nodes(cddprun, [1, 1], script, '--max_restarts=1', '--rdzv_conf=lease=3') as nodes:
        running(nodes, 2)
        os.unlink(os.path.join(nodes.jobs[1].tmp, 'up1'))
        kill_both_halves(nodes.jobs[0])
        began = time.monotonic()
        line = nodes.jobs[1].process.stderr.readline()
        assert re.fullmatch(rf'cddprun: lost the connection to the rendezvous at 127\.0\.0\.1:{nodes.port} \(127\.0\.0\.1: connection '
                            r'refused\); trying again for [01] s; after that this node kills its workers \(the lease\), and tries for another '
                            r'600 s \(--rdzv_conf=join_timeout=SECONDS\), but no longer than 1 s if its host refuses connections\n', line), line
        assert nodes.jobs[1].finish() == 1
        assert time.monotonic() - began < launch.within(12), 'join_timeout is 600 s'
        assert re.search(rf'^cddprun: lost the rendezvous at 127\.0\.0\.1:{nodes.port} \(127\.0\.0\.1: connection refused\)$',
                         nodes.jobs[1].err, re.M), nodes.jobs[1].err


def test_signal_to_one_agent_ends_both_and_is_reported(cddprun):
    for ended in 0, 1:
        with Nodes(cddprun, [1, 2], UP + WAIT) as nodes:
            running(nodes, 3)
            nodes.jobs[ended].process.send_signal(signal.SIGTERM)
            status = nodes.finish()
            assert status[ended] == 143 and status[1 - ended] == 1, (status, [job.err for job in nodes.jobs])
            other = nodes.jobs[1 - ended].err
            assert re.fullmatch(rf'cddprun: node {ended} \(\S+\) left: it was ended by signal 15 \(SIGTERM\)\n', other), other


# --- saving ---------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def savers(cddprun, nprocs, *flags, mortal=''):
    """Nodes whose ranks agree by all-reduce that one of them is to stop, and save; saved(): which ranks have."""
    with tempfile.TemporaryDirectory(prefix='cddp-test-') as folder:
        size = sum(nprocs)
        with Nodes(cddprun, nprocs, f'exec {shlex.quote(os.environ["CDDP_PROBE"])} leave {folder} {mortal}', *flags) as nodes:
            nodes.saved = lambda: [rank for rank in range(size) if os.path.exists(f'{folder}/saved.{size}.{rank}')]
            launch.wait_for('all to run', lambda: os.path.exists(f'{folder}/runs.{size}'))
            yield nodes


def said(nodes):
    return [job.err for job in nodes.jobs]


def test_all_ranks_can_save_when_one_node_is_signalled(cddprun):
    for flags in [], ['--on_failure=wait']:
        for ended in 0, 1:
            with savers(cddprun, [2, 1], *flags) as nodes:
                nodes.jobs[ended].process.send_signal(signal.SIGTERM)
                status = nodes.finish()
                assert nodes.saved() == [0, 1, 2], (nodes.saved(), said(nodes))
                assert status[ended] == 143 and status[1 - ended] == 1, (status, said(nodes))
                assert 'ended by signal 15 (SIGTERM)' in nodes.jobs[ended].err, said(nodes)
                assert 'probe:' not in ''.join(said(nodes)), said(nodes)


def test_all_ranks_can_save_when_nodes_are_signalled_in_turn(cddprun):
    with savers(cddprun, [1, 1, 1]) as nodes:
        for job in reversed(nodes.jobs):
            job.process.send_signal(signal.SIGTERM)
        assert nodes.finish() == [143] * 3, said(nodes)
        assert nodes.saved() == [0, 1, 2], (nodes.saved(), said(nodes))


def test_rank_killed_by_the_order_does_not_block_others(cddprun):
    for ended in 0, 1:
        with savers(cddprun, [2, 1], '--shutdown_timeout=600', mortal='1') as nodes:
            nodes.jobs[ended].process.send_signal(signal.SIGTERM)
            nodes.finish()
            assert nodes.saved() == [] and all('rank 1' in err for err in said(nodes)), (nodes.saved(), said(nodes))
            assert 'ended by signal 15 (SIGTERM)' in nodes.jobs[ended].err, said(nodes)


def test_a_failure_ends_the_collectives_of_all_nodes_at_once(cddprun):
    with savers(cddprun, [2, 1], '--shutdown_timeout=600') as nodes:
        os.kill(nodes.jobs[1].workers()[0], signal.SIGKILL)
        assert nodes.finish() == [137, 137], said(nodes)
        assert nodes.saved() == [] and 'rank 2' in nodes.jobs[0].err, (nodes.saved(), said(nodes))


def test_a_broken_connection_is_reported_as_such(cddprun):
    with Nodes(cddprun, [1, 1], f'exec {shlex.quote(os.environ["CDDP_COMMUNICATORS"])} reset', env={'CDDP_BACKEND': 'cpu'}) as nodes:
        assert nodes.finish() == [1, 1], said(nodes)
        for job in nodes.jobs:
            assert re.search(r'\| CDDP_E_IO: .*the connection of rank [01] with rank [01] \(pid \d+ on \S+\) broke: ', job.err), said(nodes)
            assert ') died' not in job.err and 'was killed' not in job.err, said(nodes)


def test_nodes_signalled_together_end_immediately(cddprun):
    # A node that leaves must not take back its word by a reset, else the host waits for it as long as the lease.
    for _ in range(15):
        with Nodes(cddprun, [1] * 4, UP + WAIT, '--rdzv_conf=lease=300') as nodes:
            running(nodes, 4)
            for pid in [pid for job in nodes.jobs for pid in job.alive()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            assert {0, *nodes.finish()} <= {0, 1, 143}, [job.err for job in nodes.jobs]


def test_on_failure_wait_keeps_survivors(cddprun):
    script = UP + ('[ $RANK = 1 ] && rm -f "$TMPDIR/up1" && exit 5; while [ ! -e "$TMPDIR/go" ]; do sleep 0.02; done; '
                   'rm -f "$TMPDIR/up$RANK"; [ $RANK != 2 ] || rm -f "$TMPDIR/go"; echo $RANK ended by itself')
    with Nodes(cddprun, [1, 1, 1], script, '--on_failure=wait') as nodes:
        launch.wait_for('the survivors', lambda: all(os.path.exists(os.path.join(nodes.jobs[i].tmp, f'up{i}')) for i in (0, 2)))
        for job in nodes.jobs:  # a node whose worker ends before it hears of rank 1 has none that continues
            line = job.process.stderr.readline()
            assert re.match(r'cddprun: rank 1 .* status 5; the other workers continue', line), line
        for i in 0, 2:
            open(os.path.join(nodes.jobs[i].tmp, 'go'), 'w', encoding='ascii').close()
        assert nodes.finish() == [5, 5, 5], [job.err for job in nodes.jobs]
        os.unlink(os.path.join(nodes.jobs[0].tmp, 'go'))
        assert [job.out for job in nodes.jobs] == ['[0] 0 ended by itself\n', '', '[2] 2 ended by itself\n']


# --- the lease ------------------------------------------------------------------------------------------------------

class Relay(threading.Thread):
    """A bad network between one agent and the host: the connection can be reset or delayed."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self.listener = socket.create_server(('127.0.0.1', 0))
        self.port = self.listener.getsockname()[1]
        self.target = target
        self.pairs = []
        self.welcomes = 0  # that the host has sent
        self.silent = self.over = False
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over = True
        self.join()
        self.listener.close()
        for pair in self.pairs:
            for s in pair:
                s.close()

    def run(self):
        while not self.over:
            try:
                ready, _, _ = select.select([self.listener, *(s for pair in self.pairs for s in pair)], [], [], 0.02)
            except (OSError, ValueError):  # reset_all() has just closed one
                continue
            if self.silent:
                time.sleep(0.02)
                continue
            for s in ready:
                if s is self.listener:
                    c, _ = s.accept()
                    try:
                        self.pairs.append((c, socket.create_connection(('127.0.0.1', self.target))))
                    except OSError:
                        c.close()
                else:
                    self.hand_on(s)

    def hand_on(self, s):
        for pair in [p for p in self.pairs if s in p]:
            other = pair[1] if pair[0] is s else pair[0]
            try:
                data = s.recv(65536)
                self.welcomes += s is pair[1] and b'"session"' in data
                other.sendall(data)
            except OSError:  # a reset stays a reset
                self.end(pair, True)
                continue
            if not data:
                self.end(pair, False)

    def end(self, pair, reset):
        try:
            self.pairs.remove(pair)
        except ValueError:  # the other thread ends it
            return
        for s in pair:
            if reset:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
            s.close()

    def reset_all(self):
        for pair in list(self.pairs):
            self.end(pair, True)


@contextlib.contextmanager
def through_a_relay(cddprun, script, lease, *more):
    """Two nodes; node 1 reaches node 0 through a relay: (relay, [job 0, job 1])."""
    port = free_port()
    flags = ['--nnodes=2', '--master_addr=127.0.0.1', f'--rdzv_conf=lease={lease}', *more]
    with Relay(port) as relay, \
            Job(cddprun, *flags, '--node_rank=0', f'--master_port={port}', *sh(script)) as host, \
            Job(cddprun, *flags, '--node_rank=1', f'--master_port={relay.port}', *sh(script)) as guest:
        nodes = [host, guest]
        launch.wait_for('both workers', lambda: all(any(n.startswith('up') for n in os.listdir(job.tmp)) for job in nodes))
        yield relay, nodes


UNTIL_GO = UP + 'while [ ! -e "$TMPDIR/go" ]; do sleep 0.02; done; rm -f "$TMPDIR/go" "$TMPDIR/up$RANK"'


def go(jobs):
    for job in jobs:
        open(os.path.join(job.tmp, 'go'), 'w', encoding='ascii').close()


def test_survives_reset_and_silent_connections(cddprun):
    with through_a_relay(cddprun, UNTIL_GO, 15) as (relay, nodes):
        for _ in range(2):
            relay.reset_all()
            launch.wait_for('the agent to come back', lambda: relay.pairs)
        relay.silent = True
        time.sleep(4)  # longer than the agent waits before it tries another connection
        assert all(job.process.poll() is None for job in nodes)
        relay.silent = False
        go(nodes)
        assert [job.finish() for job in nodes] == [0, 0], [job.err for job in nodes]
        assert [job.err for job in nodes] == ['', '']


def stop_all(nodes, seconds):
    """As a scheduler suspends a job: every process of all nodes stands still."""
    pids = [pid for job in nodes for pid in job.alive()]
    signal_those_left(pids, signal.SIGSTOP)
    time.sleep(seconds)
    return pids


def signal_those_left(pids, number):
    """A worker's short-lived child may be gone by now."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_job_stopped_longer_than_lease_continues(cddprun):
    with through_a_relay(cddprun, UNTIL_GO, 4) as (_, nodes):
        signal_those_left(stop_all(nodes, 7), signal.SIGCONT)
        time.sleep(5)  # longer than the lease again: nothing of the stop may come later
        assert all(job.process.poll() is None for job in nodes), [job.finish() for job in nodes]
        go(nodes)
        assert [job.finish() for job in nodes] == [0, 0], [job.err for job in nodes]
        assert [job.err for job in nodes] == ['', '']


# The same by one process. A shell that starts others waits in vfork() for what was stopped before it could exec: in state D.
ALONE_UNTIL_GO = UP + 'mkfifo "$TMPDIR/go"; : <"$TMPDIR/go"; rm -f "$TMPDIR/go" "$TMPDIR/up$RANK"'


def test_workers_of_a_node_that_was_stopped_wait_until_the_rendezvous_has_answered(cddprun):
    with through_a_relay(cddprun, ALONE_UNTIL_GO, 60) as (relay, nodes):
        launch.wait_for('both to wait', lambda: all(os.path.exists(os.path.join(job.tmp, 'go')) for job in nodes))
        [worker] = nodes[1].workers()
        pids = stop_all(nodes, 14)  # a fifth of the lease, and more
        relay.silent = True
        signal_those_left(pids, signal.SIGCONT)
        for _ in range(2):
            launch.wait_for('the worker to be stopped', lambda: launch.state(worker) == 'T')
            os.kill(worker, signal.SIGCONT)  # as a scheduler may do late
        relay.silent = False
        launch.wait_for('the worker to go on', lambda: launch.state(worker) != 'T')
        go(nodes)
        assert [job.finish() for job in nodes] == [0, 0], [job.err for job in nodes]


def both_fail(relay, nodes):
    """The worker of node 1 first, and its news last."""
    relay.silent = True
    for job in reversed(nodes):
        [worker] = job.workers()
        go([job])
        launch.wait_for('its worker to end', lambda: worker not in job.workers())
    relay.silent = False


def test_reports_first_failure_even_if_it_arrives_last(cddprun):
    script = UNTIL_GO.replace('exec 2>/dev/null; ', '') + '; echo last words of $RANK >&2; exit $((5 + 2 * RANK))'
    with through_a_relay(cddprun, script, 15) as (relay, nodes):
        both_fail(relay, nodes)
        assert [job.finish() for job in nodes] == [7, 7], [job.err for job in nodes]
        for job in nodes:
            assert re.search(r'^cddprun: rank 1 \(pid \d+ on \S+\) exited with status 7', job.err, re.M), job.err
            assert re.search(r'^    \| last words of 1$', job.err, re.M), job.err


def test_restart_names_first_failure_even_if_it_arrives_last(cddprun):
    script = '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; ' + UNTIL_GO + '; exit $((5 + 2 * RANK))'
    with through_a_relay(cddprun, script, 15, '--max_restarts=1') as (relay, nodes):
        both_fail(relay, nodes)
        assert [job.finish() for job in nodes] == [0, 0], [job.err for job in nodes]
        for job in nodes:
            lines = re.findall(r'^cddprun: (.*); restarting all workers \(restart 1 of 1\)$', job.err, re.M)
            assert re.search(r'^(before that )?rank 1 \(pid \d+ on \S+\) exited with status 7$', lines[-1]), job.err
            assert len(lines) == 1 or 'before that' in lines[-1], job.err  # on a node that was too slow


def test_stopped_agent_has_no_workers_after_lease(cddprun):
    with through_a_relay(cddprun, UNTIL_GO, 3) as (_, nodes):
        agent, began = nodes[1].agent(), time.monotonic()
        os.kill(agent, signal.SIGSTOP)
        launch.wait_for('its workers to end', lambda: not [pid for pid in nodes[1].alive() if launch.parent(pid) == agent])
        assert 2 < time.monotonic() - began < launch.within(3)
        assert nodes[1].finish() == 137 and f'agent (pid {agent}) was inactive' in nodes[1].err, nodes[1].err
        assert nodes[0].finish() == 1 and 'node 1' in nodes[0].err, nodes[0].err
        for job in nodes:
            for name in os.listdir(job.tmp):
                os.unlink(os.path.join(job.tmp, name))


def test_stopped_host_has_no_workers_after_lease(cddprun):
    with through_a_relay(cddprun, UNTIL_GO, 3) as (_, nodes):
        agent = nodes[0].agent()
        os.kill(agent, signal.SIGSTOP)
        assert nodes[0].finish() == 137 and f'agent (pid {agent}) was inactive' in nodes[0].err, nodes[0].err
        assert nodes[1].finish() == 1, nodes[1].err
        for job in nodes:
            for name in os.listdir(job.tmp):
                os.unlink(os.path.join(job.tmp, name))


def test_an_agent_that_was_stopped_together_with_its_guard_ends_its_workers_itself(cddprun):
    with through_a_relay(cddprun, UNTIL_GO, 2) as (_, nodes):
        both = [nodes[1].process.pid, nodes[1].agent()]
        for pid in both:
            os.kill(pid, signal.SIGSTOP)
        assert nodes[0].finish() == 1 and 'node 1' in nodes[0].err, nodes[0].err
        for pid in both:
            os.kill(pid, signal.SIGCONT)
        assert nodes[1].finish() != 0 and 'was inactive' not in nodes[1].err, nodes[1].err
        for job in nodes:
            for name in os.listdir(job.tmp):
                os.unlink(os.path.join(job.tmp, name))


def test_failure_sent_without_connection_arrives(cddprun):
    with through_a_relay(cddprun, UNTIL_GO + '; exit $RANK', 15) as (relay, nodes):
        relay.silent = True
        go(nodes[1:])
        launch.wait_for('the worker of node 1 to end', lambda: not nodes[1].workers())
        relay.reset_all()
        relay.silent = False
        assert [job.finish() for job in nodes] == [1, 1], [job.err for job in nodes]
        for job in nodes:
            assert re.match(r'cddprun: rank 1 \(pid \d+ on \S+\) exited with status 1', job.err), job.err


def test_cut_off_node_kills_workers_before_it_counts_as_lost(cddprun):
    script = 'touch "$TMPDIR/up$RANK"; exec sleep 100'
    with through_a_relay(cddprun, script, 3) as (relay, nodes):
        for job in nodes:
            for name in os.listdir(job.tmp):
                if name.startswith('up'):
                    os.unlink(os.path.join(job.tmp, name))
        relay.silent = True
        began = time.monotonic()
        assert nodes[1].finish() == 1, nodes[1].err
        assert nodes[0].process.poll() is None, 'the host still waited'
        assert re.fullmatch(r'cddprun: no message from the rendezvous at \S+ for 2 s; .*node.*\n', nodes[1].err), nodes[1].err
        assert nodes[0].finish() == 1
        assert time.monotonic() - began < 3 + launch.within(2)
        assert re.search(r'^cddprun: node 1 \(.*\) was lost while its workers ran: no message was received', nodes[0].err, re.M), nodes[0].err


def test_an_agent_that_was_stopped_for_too_long_kills_its_workers_first(cddprun):
    script = 'touch "$TMPDIR/up$RANK"; exec sleep 100'
    with through_a_relay(cddprun, script, 2) as (relay, nodes):
        for job in nodes:
            for name in os.listdir(job.tmp):
                if name.startswith('up'):
                    os.unlink(os.path.join(job.tmp, name))
        nodes[1].process.send_signal(signal.SIGTSTP)
        assert nodes[0].finish() == 1
        assert 'node 1' in nodes[0].err and 'lost' in nodes[0].err, nodes[0].err
        nodes[1].process.send_signal(signal.SIGCONT)
        assert nodes[1].finish() == 1
        assert re.fullmatch(r'cddprun: no message from the rendezvous .*\n', nodes[1].err), nodes[1].err


# --- the auth token -------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def secret_file(text, mode=0o600):
    with tempfile.NamedTemporaryFile('w') as f:
        f.write(text)
        f.flush()
        os.chmod(f.name, mode)
        yield f.name


def test_auth_token_admits_only_its_agents(cddprun):
    port = free_port()
    where = ['--nnodes=2', '--master_addr=127.0.0.1', f'--master_port={port}']
    with secret_file('correct horse battery\n') as good, secret_file('staple battery horse') as bad, \
            Job(cddprun, *where, '--node_rank=0', f'--auth_token_file={good}', *sh('cat $CDDP_AUTH_TOKEN_FILE')) as host:
        launch.wait_for('the host to listen', lambda: can_connect(port))
        one_sentence(run(cddprun, *where, '--node_rank=1', f'--auth_token_file={bad}', 'true'), 1, 'auth token')
        one_sentence(run(cddprun, *where, '--node_rank=1', 'true'), 1, 'auth token')
        assert host.process.poll() is None
        with Job(cddprun, *where, '--node_rank=1', 'true', env={'CDDP_AUTH_TOKEN_FILE': good}) as guest:
            assert (guest.finish(), host.finish()) == (0, 0), (guest.err, host.err)
        assert host.out == '[0] correct horse battery\n' and guest.err == '', (host.out, guest.err)


def test_agent_with_auth_token_rejects_host_without(cddprun):
    port = free_port()
    where = ['--nnodes=2', '--master_addr=127.0.0.1', f'--master_port={port}']
    with secret_file('s' * 16) as good, Job(cddprun, *where, '--node_rank=0', 'true') as host:
        launch.wait_for('the host to listen', lambda: can_connect(port))
        one_sentence(run(cddprun, *where, '--node_rank=1', f'--auth_token_file={good}', 'true'), 1, 'auth token')
        host.process.send_signal(signal.SIGTERM)
        assert host.finish() == 143, host.err


def test_rejects_readable_auth_token_file(cddprun):
    with secret_file('s' * 16, 0o644) as open_file:
        one_sentence(run(cddprun, f'--auth_token_file={open_file}', 'true'), 1, open_file)
    one_sentence(run(cddprun, '--auth_token_file=/no/such/file', 'true'), 1, '/no/such/file')


def test_standalone_creates_auth_token(cddprun):
    status, out, err = run(cddprun, '--standalone', *sh('stat -c "%a %s" "$CDDP_AUTH_TOKEN_FILE"; '
                                                         'grep -cE "^[0-9a-f]{64}$" "$CDDP_AUTH_TOKEN_FILE"'))
    assert (status, out, err) == (0, '[0] 600 64\n[0] 1\n', ''), (status, out, err)


# --- mistakes -------------------------------------------------------------------------------------------------------

def one_sentence(result, status, *words):
    assert result[0] == status, result
    assert result[2].startswith('cddprun: ') and result[2].count('\n') == 1, result
    for word in words:
        assert word in result[2], (word, result)


def test_two_agents_with_one_node_rank(cddprun):
    port = free_port()
    flags = ['--nnodes=2', '--master_addr=127.0.0.1', f'--master_port={port}', '--node_rank=0']
    with Job(cddprun, *flags, '--local_addr=first', 'true') as first:
        launch.wait_for('the host to listen', lambda: can_connect(port))
        one_sentence(run(cddprun, *flags, '--local_addr=second', 'true'), 1, 'node rank 0 is taken', 'first (pid', 'second (pid')
        first.process.send_signal(signal.SIGTERM)
        assert first.finish() == 143, first.err


def can_connect(port):
    try:
        socket.create_connection(('127.0.0.1', port)).close()
        return True
    except OSError:
        return False


def test_different_nnodes_or_job_names(cddprun):
    port = free_port()
    where = ['--master_addr=127.0.0.1', f'--master_port={port}']
    with Job(cddprun, '--nnodes=3', '--rdzv_id=here', '--node_rank=0', *where, 'true') as first:
        launch.wait_for('the host to listen', lambda: can_connect(port))
        one_sentence(run(cddprun, '--nnodes=2', '--rdzv_id=here', '--node_rank=1', *where, 'true'), 1, '--nnodes', '3')
        one_sentence(run(cddprun, '--nnodes=3', '--rdzv_id=there', '--node_rank=1', *where, 'true'), 1, "'here'", "'there'")
        first.process.send_signal(signal.SIGTERM)
        assert first.finish() == 143, first.err


def test_a_closed_port_is_tried_until_the_join_timeout(cddprun):
    port = free_port()
    began = time.monotonic()
    result = run(cddprun, '--nnodes=2', '--node_rank=1', '--rdzv_conf=join_timeout=1', '--master_addr=127.0.0.1',
                 f'--master_port={port}', 'true')
    one_sentence(result, 1, f'127.0.0.1:{port}', 'refused')
    assert time.monotonic() - began < launch.within(3)


def test_an_address_that_drops_packets(cddprun):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen(0)  # its backlog is filled below: the kernel then drops new connections
        port = s.getsockname()[1]
        full = []
        for _ in range(4):
            c = socket.socket()
            c.setblocking(False)
            c.connect_ex(('127.0.0.1', port))
            full.append(c)
        result = run(cddprun, '--nnodes=2', '--node_rank=1', '--rdzv_conf=join_timeout=2', '--master_addr=127.0.0.1',
                     f'--master_port={port}', 'true')
        for c in full:
            c.close()
    one_sentence(result, 1, f'127.0.0.1:{port}', 'no answer')


def test_unknown_host_name(cddprun):
    status, out, err = run(cddprun, '--nnodes=2', '--node_rank=1', '--rdzv_conf=join_timeout=1',
                           '--master_addr=no-such-host.invalid', 'true')
    assert status == 1 and err.count('no-such-host.invalid') == err.count('\n') and err.count('\n') in (1, 2), err


def test_unknown_host_name_is_tried_until_the_join_timeout(cddprun):
    with Job(cddprun, '--nnodes=2', '--node_rank=1', '--master_addr=no-such-host.invalid', 'true', stderr=subprocess.PIPE) as job:
        said = job.process.stderr.readline()
        assert re.search(r'does not resolve on this node: .*; trying again for (600|59\d) s$', said), said
        job.process.send_signal(signal.SIGTERM)
        assert job.finish() == 143, job.err


def test_silent_program_at_own_port_is_not_waited_for(cddprun):
    with socket.create_server(('127.0.0.1', 0)) as s:
        port = s.getsockname()[1]
        status, _, err = run(cddprun, '--nnodes=2', '--node_rank=0', '--master_addr=127.0.0.1', f'--master_port={port}', 'true')
        last = err.splitlines()[-1]
        assert status == 1 and f'127.0.0.1:{port}' in last, err
        assert 'is not a cddprun rendezvous server: it accepts connections but does not answer' in last and 'in use here' in last, err


def test_a_port_of_another_program(cddprun):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen()
        port = s.getsockname()[1]
        job = Job(cddprun, '--nnodes=2', '--node_rank=0', '--master_addr=127.0.0.1', f'--master_port={port}', 'true')
        with job:
            c, _ = s.accept()
            c.sendall(b'SSH-2.0-OpenSSH_9.2\r\n')
            status = job.finish()
            c.close()
        one_sentence((status, '', job.err), 1, f'127.0.0.1:{port}', 'is not a cddprun rendezvous server', 'in use')


def test_port_bound_without_listening(cddprun):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))  # as the local end of any other connection
        port = s.getsockname()[1]
        status, _, err = run(cddprun, '--nnodes=2', '--node_rank=0', '--master_addr=127.0.0.1', f'--master_port={port}',
                             '--rdzv_conf=join_timeout=2', 'true')
        first, last = err.splitlines()
        assert status == 1 and re.fullmatch(
            rf'cddprun: no answer from 127.0.0.1:{port} \(127.0.0.1: connection refused\); this agent cannot host it, since port '
            rf'{port} was in use here: end the program that uses it, or choose another port; trying for another [12] s', first), err
        assert f'cannot reach the rendezvous at 127.0.0.1:{port}' in last and 'in use here' in last, err


def test_silent_server_is_waited_for(cddprun):
    with socket.create_server(('127.0.0.1', 0)) as s:
        port = s.getsockname()[1]
        result = run(cddprun, '--nnodes=2', '--node_rank=1', '--master_addr=127.0.0.1', f'--master_port={port}',
                     '--rdzv_conf=join_timeout=2', 'true')
        one_sentence(result, 1, f'cannot reach the rendezvous at 127.0.0.1:{port}', 'accepts connections but does not answer')


def test_port_that_is_free_after_the_start_is_hosted(cddprun):
    """As by the processes of a job that was killed, which take a moment to end."""
    with socket.socket() as before, contextlib.ExitStack() as stack:
        before.bind(('127.0.0.1', 0))
        port = before.getsockname()[1]
        jobs = [stack.enter_context(Job(cddprun, '--nnodes=2', f'--node_rank={i}', '--master_addr=127.0.0.1', f'--master_port={port}',
                                        *sh('echo $RANK of $WORLD_SIZE'), env={'LOGLEVEL': 'INFO'})) for i in range(2)]
        time.sleep(1.5)
        before.close()
        assert [job.finish() for job in jobs] == [0, 0], [job.err for job in jobs]
        assert [job.out for job in jobs] == ['[0] 0 of 2\n', '[1] 1 of 2\n']
        assert f'port {port} was in use here, and is free now' in jobs[0].err, jobs[0].err


def test_timeout_names_missing_nodes(cddprun):
    port = free_port()
    result = run(cddprun, '--nnodes=3', '--node_rank=0', '--rdzv_conf=join_timeout=1', '--master_addr=127.0.0.1',
                 f'--master_port={port}', 'true')
    one_sentence(result, 1, '1 of 3 nodes', 'missing: node rank 1, 2')


def test_slurm(cddprun):
    step = {'SLURM_JOB_ID': '17', 'SLURM_STEP_ID': '0', 'SLURM_STEP_NUM_NODES': '2', 'SLURM_STEP_NODELIST': 'localhost',
            'SLURM_STEP_TASKS_PER_NODE': '1(x2)'}
    port = free_port()
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(Job(cddprun, f'--master_port={port}', *sh('echo $RANK $WORLD_SIZE $TORCHELASTIC_RUN_ID'),
                                        env={**step, 'SLURM_NODEID': str(i)})) for i in range(2)]
        assert [job.finish() for job in jobs] == [0, 0], [job.err for job in jobs]
        assert [job.out for job in jobs] == ['[0] 0 2 17.0.0\n', '[1] 1 2 17.0.0\n']
        assert re.fullmatch(rf'cddprun: Slurm step 17\.0\.0: 2 nodes .* node 0; .* localhost, port {port}\n', jobs[0].err)
        assert jobs[1].err == '', 'one line for the job'
    one_sentence(run(cddprun, '--nnodes=2', '--node_rank=0', '--master_addr=a', 'true', env={**step, 'SLURM_NODEID': '1'}),
                 2, '--node_rank is 0', 'SLURM_NODEID')
    one_sentence(run(cddprun, 'true', env={'SLURM_JOB_ID': '17', 'SLURM_JOB_NUM_NODES': '2'}), 2, 'srun', '--standalone')
    assert run(cddprun, '--standalone', 'true', env={'SLURM_JOB_ID': '17', 'SLURM_JOB_NUM_NODES': '2'})[0] == 0


def site_port(job):
    """As site_port() in launcher/cluster/detect.c: FNV-1a, in 20000 to 31996."""
    value = 2166136261
    for byte in job.encode():
        value = (value ^ byte) * 16777619 % 2 ** 32
    return 20000 + value % 11997


def free_job():
    """A number of a job whose step 0 has four free ports, now this test's, and the first of them."""
    for job in range(os.getpid(), os.getpid() + 1000):
        port = site_port(f'{job}.0')
        if all(launch.hold(port + i) for i in range(4)):
            return job, port
    raise AssertionError('no free ports')


def test_step_uses_next_free_port(cddprun):
    with contextlib.ExitStack() as stack, secret_file('0123456789abcdef' * 4) as secret:
        job, port = free_job()
        mute = stack.enter_context(socket.create_server(('127.0.0.1', port + 2)))  # of some other program, which says nothing to agents

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    c, _ = mute.accept()
                    c.sendall(b'SSH-2.0-OpenSSH_9.2\r\n')
                    c.close()
        threading.Thread(target=answer, daemon=True).start()
        others = []
        for i, flags in enumerate([[], [f'--auth_token_file={secret}']]):
            others.append(stack.enter_context(Job(cddprun, '--nnodes=2', '--node_rank=0', '--master_addr=127.0.0.1',
                                                  f'--rdzv_id=other{i}', f'--master_port={port + i}', *flags, 'true')))
            launch.wait_for('the other job to listen', lambda i=i: can_connect(port + i))
        step = {'SLURM_JOB_ID': str(job), 'SLURM_STEP_ID': '0', 'SLURM_STEP_NUM_NODES': '2', 'SLURM_STEP_NODELIST': 'localhost',
                'SLURM_STEP_TASKS_PER_NODE': '1(x2)'}
        jobs = [stack.enter_context(Job(cddprun, *sh('echo $RANK $WORLD_SIZE $MASTER_PORT'), env={**step, 'SLURM_NODEID': str(i)}))
                for i in (1, 0)]
        assert [j.finish() for j in jobs] == [0, 0], [j.err for j in jobs]
        assert [j.out for j in jobs] == [f'[1] 1 2 {port + 3}\n', f'[0] 0 2 {port + 3}\n'], [j.out for j in jobs]
        stack.enter_context(socket.create_server(('127.0.0.1', port + 3)))
        status, _, err = run(cddprun, 'true', env={**step, 'SLURM_NODEID': '0'})
        assert status == 1 and f'ports {port} to {port + 3} ' in err and '--master_port' in err, (status, err)
        for other in others:
            other.process.send_signal(signal.SIGTERM)
            assert other.finish() == 143, other.err


def test_waiting_client_does_not_connect_to_itself(cddprun):
    # The kernel takes the local port of a connection from this range, and so may give it the port that it goes to.
    alone = ['unshare', '-n', 'sh', '-c', 'ip link set lo up && sysctl -qw net.ipv4.ip_local_port_range="40000 40003" && exec "$@"', 'sh']
    if subprocess.run([*alone, 'true'], stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip('it needs a separate network namespace')
    by_hand = {**os.environ, 'RANK': '1', 'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '40002', 'CDDP_JOIN_TIMEOUT': '2'}
    rank = subprocess.Popen([*alone, os.environ['CDDP_PROBE']], env=by_hand, stderr=subprocess.PIPE, text=True)
    agent = subprocess.Popen([*alone, cddprun, '--nnodes=2', '--node_rank=1', '--master_addr=127.0.0.1', '--master_port=40002',
                              '--rdzv_conf=join_timeout=2', 'true'], stderr=subprocess.PIPE, text=True)
    assert 'cannot reach the store at 127.0.0.1:40002 (MASTER_ADDR, MASTER_PORT): Connection refused' in rank.communicate()[1]
    assert 'cannot reach the rendezvous at 127.0.0.1:40002' in agent.communicate()[1]


def test_rejects_invalid_flags(cddprun):
    one_sentence(run(cddprun, '--nnodes=2', 'true'), 2, '--master_addr', '--rdzv_endpoint', 'MASTER_ADDR')
    one_sentence(run(cddprun, '--nnodes=2', '--rdzv_backend=zookeeper', 'true'), 2, "'zookeeper'", 'c10d', 'etcd')
    one_sentence(run(cddprun, '--nnodes=2', '--node_rank=2', '--master_addr=a', 'true'), 2, '--node_rank 2')
    one_sentence(run(cddprun, '--nnodes=2', '--standalone', 'true'), 2, '--standalone')
    one_sentence(run(cddprun, '--rdzv_conf=a=b', 'true'), 2, "'a'", 'join_timeout')


if __name__ == '__main__':
    launch.main()
