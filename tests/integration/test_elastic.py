#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose nodes join and leave: --nnodes=MIN:MAX and --spares, every node on the loopback interface."""
import contextlib
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, free_port, wait_for
from test_nodes import Relay

# Every worker records its place in the job, then runs until $END exists.
WORK = ('exec 2>/dev/null; echo is $TORCHELASTIC_RESTART_COUNT $GROUP_RANK $RANK/$WORLD_SIZE >> "$TMPDIR/world"; '
        'while [ ! -e "$END" ]; do sleep 0.02; done; rm -f "$TMPDIR/world"')


class Elastic(contextlib.ExitStack):
    """Nodes that are started one after the other; the first hosts. world(job): what its workers said last."""

    def __init__(self, cddprun, nnodes, *flags, script=WORK, conf='last_call_timeout=0'):
        super().__init__()
        self.cddprun = cddprun
        self.n, self.port = 0, free_port()
        self.flags = [f'--nnodes={nnodes}', '--nproc_per_node=1', f'--rdzv_endpoint=127.0.0.1:{self.port}',
                      f'--rdzv_conf={conf}', *flags]
        self.script = script
        self.folder = self.enter_context(tempfile.TemporaryDirectory(prefix='cddp-test-'))
        self.end_file = os.path.join(self.folder, 'end')

    def node(self, *flags, script=None):
        """Starts the next node, with its own name; the first one listens when this returns."""
        self.n += 1
        err = os.path.join(self.folder, f'err{self.n}')
        job = self.enter_context(Job(self.cddprun, *self.flags, f'--local_addr=n{self.n}', *flags, 'sh', '-c',
                                     script or self.script, env={'END': self.end_file},
                                     stderr=self.enter_context(open(err, 'w', encoding='utf-8'))))
        job.err_file = err
        if self.n == 1:
            wait_for('the rendezvous', lambda: launch.listens(self.port))
        return job

    def end(self, *jobs):
        open(self.end_file, 'w', encoding='ascii').close()
        status = [job.finish() for job in jobs]
        assert status == [0] * len(jobs), (status, [said(job) for job in jobs])


def said(job):
    with open(job.err_file, encoding='utf-8') as f:
        return f.read()


def worlds(job):
    with contextlib.suppress(FileNotFoundError):
        with open(os.path.join(job.tmp, 'world'), encoding='ascii') as f:
            return f.read().replace('is ', '').splitlines()
    return []


def in_world(job, world, limit=5):
    """Until its workers are in this world: restarts, node rank, rank/size."""
    wait_for(f'world {world}', lambda: worlds(job)[-1:] == [world] or job.process.poll() is not None, launch.within(limit), lambda: said(job))
    assert worlds(job)[-1:] == [world], (worlds(job), job.process.poll() is not None and job.finish(), said(job))


def kill_agent(job):
    """Kills guard and agent: to the others the node is lost."""
    agent = job.agent()
    for pid in [agent, job.process.pid, *job.alive()]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.process.wait()
    for name in os.listdir(job.tmp):
        path = os.path.join(job.tmp, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def test_a_job_grows_and_shrinks(cddprun):
    with Elastic(cddprun, '1:3') as job:
        a = job.node()
        in_world(a, '0 0 0/1')
        b = job.node()
        in_world(b, '0 1 1/2')
        in_world(a, '0 0 0/2')
        c = job.node()
        for node, world in (a, '0 0 0/3'), (b, '0 1 1/3'), (c, '0 2 2/3'):
            in_world(node, world)
        began = time.monotonic()
        kill_agent(b)
        in_world(a, '0 0 0/2')
        in_world(c, '0 1 1/2')
        took = time.monotonic() - began
        assert took < launch.within(2), f'{took} s: a closed connection is seen at once'
        d = job.node()
        for node, world in (a, '0 0 0/3'), (c, '0 1 1/3'), (d, '0 2 2/3'):
            in_world(node, world)
        job.end(a, c, d)
        assert re.search(r'node 1 \(.*\) was lost while its workers ran: ', said(a)), said(a)
        assert 'the job continues with 2 nodes; this is node rank 0 (n1), ranks 0 to 0 of 2' in said(a), said(a)
        assert 'joined: the job continues with one more node' in said(a), said(a)


def test_spare_replaces_lost_node(cddprun):
    with Elastic(cddprun, '2', '--spares=1') as job:
        a, b = job.node(), job.node()
        in_world(a, '0 0 0/2')
        in_world(b, '0 1 1/2')
        spare = job.node()
        wait_for('a word', lambda: re.search(r'; n\d waits as a spare', said(spare)))
        late = job.node()
        assert late.finish() == 1
        assert 'already has all of its 2 nodes and 1 spares' in said(late), said(late)
        assert worlds(spare) == []
        kill_agent(b)
        in_world(spare, '0 1 1/2')
        wait_for('the same world again', lambda: worlds(a) == ['0 0 0/2'] * 2)
        job.end(a, spare)


def test_signalled_node_leaves_and_job_continues(cddprun):
    with Elastic(cddprun, '2:3') as job:
        a, b = job.node(), job.node()
        in_world(b, '0 1 1/2')
        c = job.node()
        in_world(a, '0 0 0/3')
        in_world(c, '0 2 2/3')
        b.process.send_signal(signal.SIGTERM)
        assert b.finish() == 143, said(b)
        os.unlink(os.path.join(b.tmp, 'world'))
        in_world(a, '0 0 0/2')
        in_world(c, '0 1 1/2')
        c.process.send_signal(signal.SIGTERM)
        assert (c.finish(), a.finish()) == (143, 1), (said(a), said(c))
        assert re.search(r'cddprun: node 1 \(.*\) left: it was ended by signal 15', said(a)), said(a)
        for node in a, c:
            os.unlink(os.path.join(node.tmp, 'world'))


def test_all_ranks_can_save_before_a_node_leaves_or_joins(cddprun):
    probe = shlex.quote(os.environ['CDDP_PROBE'])
    with Elastic(cddprun, '1:3', script=f'exec {probe} leave "$(dirname "$END")"') as job:
        def step(act, size, next_size):
            wait_for(f'a world of {size}', lambda: os.path.exists(f'{job.folder}/runs.{size}'), more=lambda: said(a))
            act()
            wait_for(f'a world of {next_size}', lambda: os.path.exists(f'{job.folder}/runs.{next_size}'), more=lambda: said(a))
            saved = [rank for rank in range(size) if os.path.exists(f'{job.folder}/saved.{size}.{rank}')]
            assert saved == list(range(size)), (saved, said(a))
            for name in os.listdir(job.folder):
                if name.startswith((f'runs.{size}', f'saved.{size}.')):
                    os.unlink(f'{job.folder}/{name}')
        a = job.node()
        more = []
        step(lambda: more.append(job.node()), 1, 2)
        step(lambda: more.append(job.node()), 2, 3)
        b, c = more
        step(lambda: c.process.send_signal(signal.SIGTERM), 3, 2)
        assert c.finish() == 143, said(c)
        a.process.send_signal(signal.SIGTERM)
        assert (a.finish(), b.finish()) == (143, 1), (said(a), said(b))
        assert os.path.exists(f'{job.folder}/saved.2.1'), said(a)


def test_failures_count_as_restarts_but_losses_do_not(cddprun):
    fails = WORK.replace('while', 'trap "exit 7" USR1; while')
    with Elastic(cddprun, '1:2', '--max_restarts=1', script=fails) as job:
        a = job.node()
        in_world(a, '0 0 0/1')
        b = job.node()
        in_world(a, '0 0 0/2')
        in_world(b, '0 1 1/2')
        kill_agent(b)
        in_world(a, '0 0 0/1')
        [worker] = a.workers()
        os.kill(worker, signal.SIGUSR1)
        in_world(a, '1 0 0/1')
        c = job.node()
        in_world(c, '1 1 1/2')
        in_world(a, '1 0 0/2')
        [worker] = c.workers()
        os.kill(worker, signal.SIGUSR1)
        assert (a.finish(), c.finish()) == (7, 7), (said(a), said(c))
        assert 'restarting all workers (restart 1 of 1)' in said(a), said(a)
        for node in a, c:
            os.unlink(os.path.join(node.tmp, 'world'))


def test_failure_after_node_loss_is_a_consequence(cddprun):
    # The workers of the remaining node fail before the loss of the other one is known.
    script = WORK.replace('while [ ! -e "$END" ]', 'while [ ! -e "$END" ] && [ ! -e "$END.dead$TORCHELASTIC_RESTART_COUNT" ]')
    script += '; [ ! -e "$END.dead0" ] || { mv "$END.dead0" "$END.was"; exit 5; }'
    # A stopped agent that dies resets its connection, since it has not read all: its lease runs.
    with Elastic(cddprun, '1:2', script=script, conf='last_call_timeout=0,lease=3') as job:
        a = job.node()
        in_world(a, '0 0 0/1')
        b = job.node(script='echo; exec sleep 1000')
        wait_for('two in the world', lambda: worlds(a)[-1:] == ['0 0 0/2'])
        b_agent = b.agent()
        os.kill(b_agent, signal.SIGSTOP)  # it cannot say STOPPED
        open(f'{job.end_file}.dead0', 'w', encoding='ascii').close()
        wait_for('the failure', lambda: os.path.exists(f'{job.end_file}.was'))
        kill_agent(b)
        in_world(a, '0 0 0/1')
        job.end(a)
        assert re.search(r'^cddprun: node 1 \(.*\) was lost while its workers ran: ', said(a), re.M), said(a)


def unread(pid, port):
    """Bytes that have come to a process from that port, and that it has not read."""
    its = set()
    for name in os.listdir(f'/proc/{pid}/fd'):
        with contextlib.suppress(OSError):
            its.add(os.readlink(f'/proc/{pid}/fd/{name}'))
    with open('/proc/net/tcp', encoding='ascii') as f:
        lines = [line.split() for line in f.readlines()[1:]]
    return sum(int(line[4].split(':')[1], 16) for line in lines
               if int(line[2].split(':')[1], 16) == port and f'socket:[{line[9]}]' in its)


def test_agent_that_dies_with_unread_bytes_is_lost_immediately(cddprun):
    # Its kernel would reset the connection, which looks like a fault of the network: the node would keep its lease.
    with Elastic(cddprun, '1:3', conf='last_call_timeout=0,lease=60') as job:
        a = job.node()
        in_world(a, '0 0 0/1')
        b = job.node()
        in_world(b, '0 1 1/2')
        c = job.node()
        in_world(c, '0 2 2/3')
        agent = b.agent()
        os.kill(agent, signal.SIGSTOP)
        kill_agent(c)
        wait_for('the loss', lambda: 'was lost while its workers ran' in said(a), more=lambda: said(a))
        wait_for('the news of it at the stopped agent', lambda: unread(agent, job.port))
        os.kill(agent, signal.SIGKILL)
        in_world(a, '0 0 0/1')
        assert b.finish() == 137, said(b)
        os.unlink(os.path.join(b.tmp, 'world'))
        job.end(a)


def cut_off(cddprun, seconds):
    """Two nodes, of which the second is cut off for so long; both are in one world again. What they said."""
    with Elastic(cddprun, '1:2', conf='last_call_timeout=0,lease=3') as job, Relay(job.port) as relay:
        a = job.node()
        in_world(a, '0 0 0/1')
        b = job.node(f'--rdzv_endpoint=127.0.0.1:{relay.port}', '--rdzv_conf=is_host=0')
        in_world(b, '0 1 1/2')
        in_world(a, '0 0 0/2')
        rounds = len(worlds(a))
        relay.silent = True
        time.sleep(seconds)
        assert not b.workers(), 'nobody can know that it lives: its workers must not'
        if seconds > 3:
            in_world(a, '0 0 0/1')
        relay.silent = False
        wait_for('both again', lambda: len(worlds(a)) > rounds and worlds(a)[-1] == '0 0 0/2' and
                 worlds(b)[-1:] == ['0 1 1/2'] and len(worlds(b)) == 2, launch.within(6), lambda: said(a) + said(b))
        job.end(a, b)
        return said(a), said(b)


def test_node_cut_off_within_its_lease_rejoins_as_itself(cddprun):
    said_a, said_b = cut_off(cddprun, 2.4)
    before = re.split('no message from the rendezvous', said_a.rpartition('continues with 2')[0])[-1]
    assert 'no message from the rendezvous' in said_b and not re.search('has come|joined:', before), (said_a, said_b)


def test_node_cut_off_for_longer_rejoins_as_new(cddprun):
    said_a, said_b = cut_off(cddprun, 4)
    assert "killing this node's workers" in said_b and 'this node (n2) will try to rejoin' in said_b, said_b
    assert re.search(r'n2.*was lost while its workers ran: (?s:.*)continues with 1 node;(?s:.*)n2 .*joined: (?s:.*)continues with 2 nodes',
                     said_a), said_a


def test_fixed_size_job_accepts_lost_node_again(cddprun):
    with Elastic(cddprun, '2', '--max_restarts=1', conf='lease=3') as job, Relay(job.port) as relay:
        a = job.node('--node_rank=0')
        b = job.node('--node_rank=1', f'--rdzv_endpoint=127.0.0.1:{relay.port}')
        in_world(a, '0 0 0/2')
        in_world(b, '0 1 1/2')
        relay.silent = True
        wait_for('the loss', lambda: 'was lost' in said(a), launch.within(5), lambda: said(a) + said(b))
        relay.silent = False
        in_world(a, '1 0 0/2')
        in_world(b, '1 1 1/2')
        job.end(a, b)


def test_a_node_that_waits_for_others_is_cut_off_and_joins_again(cddprun):
    """It has no round and no workers yet, so it joins again although no restart is left."""
    with Elastic(cddprun, '3', conf='lease=3') as job, Relay(job.port) as relay:
        a = job.node('--node_rank=0')
        b = job.node('--node_rank=1', f'--rdzv_endpoint=127.0.0.1:{relay.port}')
        wait_for('b to be in', lambda: relay.welcomes == 1, more=lambda: said(b))
        relay.silent = True
        wait_for('the silence', lambda: 'no message from the rendezvous' in said(b) or b.process.poll() is not None, more=lambda: said(b))
        time.sleep(2)  # the length of the cut is what is tested: its lease is over
        relay.silent = False
        wait_for('b to be in again', lambda: relay.welcomes == 2 or b.process.poll() is not None, more=lambda: said(b))
        assert 'killing this node' not in said(b) and 'this node (n2) will try to rejoin' in said(b), said(b)
        c = job.node('--node_rank=2')
        in_world(a, '0 0 0/3')
        in_world(b, '0 1 1/3')
        job.end(a, b, c)


def test_node_ends_if_its_rendezvous_has_ended(cddprun):
    with Elastic(cddprun, '1:2', conf='last_call_timeout=0,lease=2') as job, Relay(job.port) as relay:
        a = job.node()
        in_world(a, '0 0 0/1')
        b = job.node(f'--rdzv_endpoint=127.0.0.1:{relay.port}', '--rdzv_conf=is_host=0,join_timeout=3')
        in_world(b, '0 1 1/2')
        relay.silent = True
        in_world(a, '0 0 0/1')
        assert b.finish() == 1
        assert 'cddprun: cannot reach the rendezvous at' in said(b), said(b)
        job.end(a)
        os.unlink(os.path.join(b.tmp, 'world'))


def test_rejects_different_node_counts(cddprun):
    with Elastic(cddprun, '2:3', conf='join_timeout=20,last_call_timeout=0') as job:
        a = job.node()
        for flags, says in ([['--nnodes=2:4'], '--nnodes=2:4, but the job with 2:3'],
                            [['--spares=1'], '--spares=1, but the job with 0'],
                            [['--max_restarts=2'], '--max_restarts=2, but the job with 0']):
            other = job.node(*flags)
            assert other.finish() == 1 and says in said(other), said(other)
        job.end(a, job.node())


def test_too_few_in_time_after_a_loss(cddprun):
    with Elastic(cddprun, '2:3', conf='join_timeout=4,last_call_timeout=0') as job:
        a, b = job.node(), job.node()
        in_world(a, '0 0 0/2')
        kill_agent(b)
        assert a.finish() == 1, said(a)
        assert re.search(r'cddprun: node 1 \(.*\) was lost .*; not enough nodes joined within 4 s after that: '
                         r'1 of 2 to 3 nodes have joined', said(a)), said(a)
        os.unlink(os.path.join(a.tmp, 'world'))


if __name__ == '__main__':
    launch.main()
