#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddp-rendezvous, as a user starts it, and jobs of cddprun that use it. CDDP_RENDEZVOUS is its path."""
import collections
import contextlib
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job, run

DAEMON = os.environ['CDDP_RENDEZVOUS']


class Daemon(Job):
    def __init__(self, *flags, port=0, bind='127.0.0.1', **popen):
        super().__init__(DAEMON, f'--bind={bind}', f'--port={port}', *flags, **popen)

    def __enter__(self):
        line = self.process.stdout.readline()
        assert line.startswith('listening 127.0.0.'), (line, self.process.stderr.read())
        self.port = int(line.rsplit(':', 1)[1])
        return self

    def kill(self):
        """Kills it without any message, as the kernel's OOM killer does."""
        self.process.kill()
        self.process.wait()

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.finish()


def node(stack, cddprun, daemon, run_id, nnodes, script, *flags, **popen):
    return stack.enter_context(Job(cddprun, f'--nnodes={nnodes}', '--rdzv_backend=c10d', f'--rdzv_id={run_id}',
                                   f'--rdzv_endpoint=127.0.0.1:{daemon.port}', *flags, 'sh', '-c', script, **popen))


def test_two_jobs_share_the_server(cddprun):
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        jobs = {name: [node(stack, cddprun, daemon, name, 2, 'echo $TORCHELASTIC_RUN_ID $RANK/$WORLD_SIZE $MASTER_PORT',
                            '--nproc_per_node=2') for _ in range(2)] for name in ('red', 'blue')}
        ports = set()
        for name, nodes in jobs.items():
            assert [job.finish() for job in nodes] == [0, 0], [job.err for job in nodes]
            lines = sorted(line for job in nodes for line in job.out.splitlines())
            assert [line.split()[1:3] for line in lines] == [[name, f'{i}/4'] for i in range(4)], lines
            its = {line.split()[3] for line in lines}
            assert len(its) == 1, lines
            ports |= its
        assert len(ports) == 2 and str(daemon.port) not in ports, ports
        assert daemon.end() == 0, daemon.err


# Records the round of the job, and runs until a file exists; a rank that finds FAIL fails, once.
LIVES = ('echo "life $TORCHELASTIC_RESTART_COUNT $RANK/$WORLD_SIZE" >> {0}/lives; '
         'while [ ! -e {0}/end ]; do [ $RANK != 0 ] || ! rm {0}/fail 2>/dev/null || exit 3; sleep 0.05; done')


def lives(tmp):
    try:
        with open(f'{tmp}/lives', encoding='ascii') as file:
            return sorted(file.read().splitlines())
    except FileNotFoundError:
        return []


def life(count, ranks):
    return [f'life {count} {rank}/{ranks}' for rank in range(ranks)]


def in_life(tmp, expected, nodes):
    launch.wait_for(f'{expected}', lambda: lives(tmp) == sorted(expected),
                    more=lambda: f'{lives(tmp)} {[job.process.poll() for job in nodes]}')


def test_restarted_server_keeps_restartable_jobs(cddprun):
    for nnodes, flags, counts in (2, ['--max_restarts=3'], [1, 2, 3]), ('1:2', ['--rdzv_conf=last_call_timeout=1'], [0, 0, 0]):
        with tempfile.TemporaryDirectory() as tmp, contextlib.ExitStack() as stack:
            daemon = stack.enter_context(Daemon())
            nodes = [node(stack, cddprun, daemon, 'job', nnodes, LIVES.format(tmp), *flags) for _ in range(2)]
            expected = life(0, 2)
            in_life(tmp, expected, nodes)
            for count, gap in zip(counts, (0, 0.3, 3)):
                daemon.kill()
                time.sleep(gap)  # no process listens for this time: the subject of the test
                daemon = stack.enter_context(Daemon(port=daemon.port))
                expected += life(count, 2)
                in_life(tmp, expected, nodes)
            open(f'{tmp}/end', 'w', encoding='ascii').close()
            assert [job.finish() for job in nodes] == [0, 0], [job.err for job in nodes]
            for job in nodes:
                assert re.search(r'or the server was restarted; .*will try to rejoin', job.err), job.err
                assert 'cannot host' not in job.err, job.err
            assert daemon.end() == 0, daemon.err


def test_node_does_not_run_ended_job_again(cddprun):
    flags = ['--rdzv_conf=lease=2,join_timeout=60,last_call_timeout=0', '--shutdown_timeout=2']
    with Daemon() as daemon, tempfile.TemporaryDirectory() as tmp, contextlib.ExitStack() as stack:
        one, other = (node(stack, cddprun, daemon, 'x', '1:2', LIVES.format(tmp), *flags) for _ in range(2))
        launch.wait_for('a world of two', lambda: life(0, 2)[1] in lives(tmp) and life(0, 2)[0] in lives(tmp))
        stopped, alone = [other.process.pid, other.agent(), *other.workers()], lives(tmp).count(life(0, 1)[0])
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        launch.wait_for('a world of one', lambda: lives(tmp).count(life(0, 1)[0]) > alone)
        open(f'{tmp}/end', 'w', encoding='ascii').close()
        assert one.finish() == 0, one.err
        began = lives(tmp)
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        assert other.finish() == 1
        assert "cddprun: job 'x' is over\n" in other.err, other.err
        assert lives(tmp) == began, 'the finished job has run again'
        assert daemon.end() == 0, daemon.err


def test_restart_count_survives_server_restart(cddprun):
    with tempfile.TemporaryDirectory() as tmp, contextlib.ExitStack() as stack:
        daemon = stack.enter_context(Daemon())
        nodes = [node(stack, cddprun, daemon, 'job', 2, LIVES.format(tmp), '--max_restarts=2') for _ in range(2)]
        in_life(tmp, life(0, 2), nodes)
        open(f'{tmp}/fail', 'w', encoding='ascii').close()
        in_life(tmp, life(0, 2) + life(1, 2), nodes)
        daemon.kill()
        daemon = stack.enter_context(Daemon(port=daemon.port))
        in_life(tmp, life(0, 2) + life(1, 2) + life(2, 2), nodes)
        job = json.loads(page(daemon, '/status'))['jobs'][0]
        assert job['restarts'] == 2, job
        daemon.kill()  # no restart is left
        daemon = stack.enter_context(Daemon(port=daemon.port))
        assert [job.finish() for job in nodes] == [1, 1], [job.err for job in nodes]
        for job in nodes:
            assert re.search(r'^cddprun: (lost the rendezvous at|the rendezvous .*(re|)started)', job.err, re.M), job.err
        assert len(lives(tmp)) == 6, lives(tmp)
        assert daemon.end() == 0, daemon.err


def test_dead_server_ends_job_without_restarts(cddprun):
    with tempfile.TemporaryDirectory() as tmp, contextlib.ExitStack() as stack:
        daemon = stack.enter_context(Daemon())
        nodes = [node(stack, cddprun, daemon, 'job', 2, LIVES.format(tmp)) for _ in range(2)]
        in_life(tmp, life(0, 2), nodes)
        daemon.kill()
        began = time.monotonic()
        assert [job.finish() for job in nodes] == [1, 1], [job.err for job in nodes]
        assert time.monotonic() - began < launch.within(8), 'no lease is waited for'
        for job in nodes:
            assert re.fullmatch(rf'cddprun: lost the rendezvous at 127.0.0.1:{daemon.port}: '
                                r'it (closed|reset) the connection\n', job.err), job.err


def unread(port):
    """On how many connections something has come for the server at this port that it has not read."""
    with open('/proc/net/tcp', encoding='ascii') as file:
        rows = [row.split() for row in file.read().splitlines()[1:]]
    return sum(int(row[1].rpartition(':')[2], 16) == port and row[3] == '01' and int(row[4].rpartition(':')[2], 16) > 0
               for row in rows)


def test_server_killed_with_unread_bytes_ends_job(cddprun):
    with tempfile.TemporaryDirectory() as tmp, contextlib.ExitStack() as stack:
        daemon = stack.enter_context(Daemon())
        nodes = [node(stack, cddprun, daemon, 'job', 2, LIVES.format(tmp)) for _ in range(2)]
        in_life(tmp, life(0, 2), nodes)
        daemon.process.send_signal(signal.SIGSTOP)
        open(f'{tmp}/end', 'w', encoding='ascii').close()
        launch.wait_for('both agents to tell of the end', lambda: unread(daemon.port) == 2)
        daemon.kill()  # the kernel resets its connections
        began = time.monotonic()
        assert [job.finish() for job in nodes] == [1, 1], [job.err for job in nodes]
        assert time.monotonic() - began < launch.within(8), 'no lease is waited for'
        for job in nodes:
            assert re.fullmatch(rf'cddprun: lost the rendezvous at 127.0.0.1:{daemon.port}: '
                                r'it reset the connection\n', job.err), job.err


def test_waits_join_timeout_for_server(cddprun):
    with tempfile.TemporaryDirectory() as tmp, contextlib.ExitStack() as stack:
        daemon = stack.enter_context(Daemon())
        job = node(stack, cddprun, daemon, 'job', 1, LIVES.format(tmp), '--max_restarts=1',
                   '--rdzv_conf=lease=1,join_timeout=8')
        in_life(tmp, life(0, 1), [job])
        daemon.kill()
        began = time.monotonic()
        assert job.finish() == 1, job.err
        assert time.monotonic() - began > 7, 'it gave up before join_timeout: ' + job.err
        assert f'cannot reach the rendezvous at 127.0.0.1:{daemon.port} (127.0.0.1: connection refused)' in job.err, job.err


class LosesTheAnswer(threading.Thread):
    """Between an agent and the rendezvous: on the first connection, all bytes after the JOIN are lost, and it is reset."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.target, self.listener = port, socket.create_server(('127.0.0.1', 0))
        self.port, self.lost, self.open = self.listener.getsockname()[1], 0, []

    def run(self):
        while True:
            try:
                agent = self.listener.accept()[0]
            except OSError:
                return
            self.open += [agent, socket.create_connection(('127.0.0.1', self.target))]
            (self.lose if self.lost == 0 else self.carry)(agent, self.open[-1])

    def lose(self, agent, rendezvous):
        sent = answered = b''
        while b'"session"' not in answered:  # that of WELCOME: the JOIN has arrived
            for sock in select.select([agent, rendezvous], [], [])[0]:
                data = sock.recv(65536)
                (rendezvous if sock is agent else agent).sendall(data if b'"session"' not in data or sock is agent else b'')
                if sock is agent:
                    sent += data
                else:
                    answered += data
        assert b'"run_id"' in sent
        self.lost += 1
        agent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        agent.close()  # by a reset; what leads to the rendezvous seems to stand

    def carry(self, agent, rendezvous):
        def one_way(a, b):
            with contextlib.suppress(OSError):
                while data := a.recv(65536):
                    b.sendall(data)
                b.shutdown(socket.SHUT_WR)
        for pair in (agent, rendezvous), (rendezvous, agent):
            threading.Thread(target=one_way, args=pair, daemon=True).start()

    def __exit__(self, *_):
        self.listener.close()
        for sock in self.open:
            sock.close()

    def __enter__(self):
        self.start()
        return self


def test_agent_with_lost_join_answer_is_recognized(cddprun):
    for ranks in (['--node_rank=0'], ['--node_rank=1']), ([], []):
        with Daemon() as daemon, LosesTheAnswer(daemon.port) as bad, contextlib.ExitStack() as stack:
            first = node(stack, cddprun, daemon, 'job', 2, 'echo $RANK/$WORLD_SIZE', *ranks[0])
            launch.wait_for('the first', lambda: any(job['nodes']['waiting'] == 1 for job in json.loads(page(daemon, '/status'))['jobs']))
            second = node(stack, cddprun, bad, 'job', 2, 'echo $RANK/$WORLD_SIZE', *ranks[1])
            assert [first.finish(), second.finish()] == [0, 0], (first.err, second.err)
            assert bad.lost == 1 and sorted([first.out[4:], second.out[4:]]) == ['0/2\n', '1/2\n'], (first.out, second.out)
            assert daemon.end() == 0, daemon.err


def test_clients_that_disconnect_during_answers_are_harmless(cddprun):
    def come_and_go(port):
        for i in range(600):
            with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port)) as s:
                if i % 2:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))  # closes by a reset
                for _ in range(3):
                    s.sendall(b'GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n')
                if i % 3 == 0:
                    s.shutdown(socket.SHUT_WR)
    with Daemon() as daemon:
        threads = [threading.Thread(target=come_and_go, args=(daemon.port,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert page(daemon, '/healthz') == 'ok\n'
        assert daemon.end() == 0, daemon.err


def test_failure_restarts_its_job_only(cddprun):
    with tempfile.TemporaryDirectory() as tmp, Daemon() as daemon, contextlib.ExitStack() as stack:
        other = node(stack, cddprun, daemon, 'other', 1, f'while [ ! -e {tmp}/end ]; do sleep 0.05; done')
        fails = '[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || exit 3; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 60'
        nodes = [node(stack, cddprun, daemon, 'fails', 2, fails, '--max_restarts=1') for _ in range(2)]
        assert [job.finish() for job in nodes] == [0, 0], [job.err for job in nodes]
        assert other.process.poll() is None
        with open(f'{tmp}/end', 'w'):
            pass
        assert other.finish() == 0, other.err
        assert daemon.end(signal.SIGINT) == 0


def test_an_ignored_interrupt_stays_ignored(cddprun):
    """A script that starts the server in its background ignores it there: a Ctrl-C is for the script."""
    with Daemon(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) as daemon:
        with open(f'/proc/{daemon.process.pid}/status', encoding='ascii') as f:
            masks = dict(line.split(':\t') for line in f.read().splitlines() if line.startswith('Sig'))
        bit = 1 << signal.SIGINT - 1
        assert int(masks['SigIgn'], 16) & bit and not int(masks['SigCgt'], 16) & bit, masks
        assert daemon.end() == 0, daemon.err


def test_a_log_at_the_limit_of_file_sizes_does_not_end_the_daemon(cddprun):
    with tempfile.TemporaryFile('w') as full, \
            Daemon(stderr=full, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))) as daemon:
        assert page(daemon, '/healthz') == 'ok\n' and daemon.end() == 0


def test_jobs_have_their_own_limits(cddprun):
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        began = time.monotonic()
        lonely = node(stack, cddprun, daemon, 'lonely', '2:3', 'true', '--rdzv_conf=join_timeout=1')
        assert lonely.finish() == 1 and time.monotonic() - began < launch.within(5), lonely.err
        assert 'not enough nodes joined within 1 s: 1 of 2 to 3 nodes have joined' in lonely.err, lonely.err
        began = time.monotonic()
        quick = node(stack, cddprun, daemon, 'quick', '1:2', 'echo $WORLD_SIZE', '--rdzv_conf=last_call_timeout=0')
        assert quick.finish() == 0 and quick.out == '[0] 1\n' and time.monotonic() - began < launch.within(2), quick.err
        patient = node(stack, cddprun, daemon, 'patient', '1:2', 'echo $WORLD_SIZE', '--rdzv_conf=last_call_timeout=60')
        other = node(stack, cddprun, daemon, 'patient', '1:2', 'echo $WORLD_SIZE')
        assert (patient.finish(), other.finish()) == (0, 0), (patient.err, other.err)
        assert {patient.out[4:], other.out[4:]} == {'2\n'}, (patient.out, other.out)
        assert daemon.end() == 0


def test_ranks_without_room_fail_immediately(cddprun):
    hello = os.path.join(os.path.dirname(cddprun), '..', 'examples', 'hello_ranks')
    few = 'takes no more connections: the rendezvous server has 40 open files on '
    many = 'takes no more connections: all 16 connections that --max_connections allows are open; raise it'
    limit = {'preexec_fn': lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))}
    with tempfile.TemporaryDirectory() as tmp:
        token = os.path.join(tmp, 'token')
        with open(token, 'w', encoding='ascii') as file:
            file.write('secret-secret-secret\n')
        os.chmod(token, 0o600)
        for flags, popen, says, secret in [([], limit, few, []), (['--max_connections=16'], {}, many, []),
                                           (['--max_connections=16'], {}, many, [f'--auth_token_file={token}'])]:
            with Daemon(*flags, *secret, **popen) as daemon:
                began = time.monotonic()
                with Job(cddprun, '--nnodes=1', '--rdzv_backend=c10d', '--rdzv_id=job', '--nproc_per_node=40', *secret,
                         f'--rdzv_endpoint=127.0.0.1:{daemon.port}', hello) as job:
                    assert job.finish() == 1
                    assert says in job.err and time.monotonic() - began < launch.within(10), job.err
                assert daemon.end() == 0
                assert says[27:] in daemon.err, daemon.err
        # Where cddprun hosts, the same limits are keys of --rdzv_conf.
        with Job(cddprun, '--standalone', '--nproc_per_node=8', '--rdzv_conf=max_connections=4', hello) as job:
            assert job.finish() == 1 and 'that --rdzv_conf=max_connections allows are open; raise it' in job.err, job.err


def test_an_agent_that_there_is_no_room_for_says_so_and_waits(cddprun):
    many = 'takes no more connections: all 1 connections that --max_connections allows are open; raise it'
    with Daemon('--max_connections=1') as daemon, contextlib.ExitStack() as stack:
        errs = [stack.enter_context(tempfile.TemporaryFile('w+')) for _ in range(2)]

        def said(i):
            return os.pread(errs[i].fileno(), 1 << 20, 0).decode()  # the job shares the file's offset

        def jobs():
            try:
                return [job['run_id'] for job in json.loads(page(daemon, '/status'))['jobs']]
            except OSError:  # an agent may have the only connection
                return []
        nodes = [node(stack, cddprun, daemon, f'job{i}', 2 - i, 'true', '--rdzv_conf=join_timeout=30', stderr=errs[i])
                 for i in range(2) if i == 0 or launch.wait_for('the first', jobs)]
        launch.wait_for('the message', lambda: many + '; trying again for ' in said(1), more=lambda: said(1))
        assert [job.process.poll() for job in nodes] == [None, None]
        nodes[0].process.send_signal(signal.SIGTERM)  # which makes room
        nodes[0].finish()
        assert nodes[1].finish() == 0, said(1)
        # In vain. Other than the jobs before, which the daemon may remember, this one is not over.
        waits = node(stack, cddprun, daemon, 'late', 2, 'true')
        launch.wait_for('the job', lambda: 'late' in jobs())
        late = node(stack, cddprun, daemon, 'late', 2, 'true', '--rdzv_conf=join_timeout=2')
        assert late.finish() == 1 and late.err.splitlines()[-1].endswith(many), late.err
        waits.process.send_signal(signal.SIGTERM)
        waits.finish()
        assert daemon.end(signal.SIGINT) == 0


class Squatters(threading.Thread):
    """Strangers who take each place that they can get, say next to nothing, and come again when they are closed."""

    WORDS = b'', b'CDDP', b'CDDP\x01\r\n\0', b'GET / HT', b'GET / HTTP/1.1\r\n\r\n'

    def __init__(self, port, n, words=WORDS):
        super().__init__(daemon=True)
        self.port, self.n, self.words, self.over, self.came = port, n, words, False, 0
        self.open = collections.deque()

    def __enter__(self):
        self.start()
        launch.wait_for('all of them', lambda: self.came >= 2 * self.n)
        return self

    def run(self):
        while not self.over:
            sock = socket.socket()
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(('127.0.0.1', self.port))
            if select.select([], [sock], [], 1)[1]:
                with contextlib.suppress(OSError):
                    sock.sendall(self.words[self.came % len(self.words)])
            self.open.append(sock)
            self.came += 1
            while len(self.open) > self.n:
                self.open.popleft().close()
            time.sleep(0.005)  # 200 a second

    def __exit__(self, *_):
        self.over = True
        self.join()
        for sock in self.open:
            sock.close()


def secret_file(tmp):
    with open(f'{tmp}/secret', 'w', opener=lambda name, flags: os.open(name, flags, 0o600), encoding='ascii') as file:
        file.write('hunter2-hunter2-hunter2\n')
    return f'--auth_token_file={tmp}/secret'


def test_unauthenticated_clients_do_not_block_agents(cddprun):
    hello = os.path.join(os.path.dirname(cddprun), '..', 'examples', 'hello_ranks')
    with tempfile.TemporaryDirectory() as tmp, contextlib.ExitStack() as stack:
        secret = secret_file(tmp)
        with Daemon(secret, '--max_connections=20') as daemon, Squatters(daemon.port, 60):
            for i in range(3):
                with Job(cddprun, '--nnodes=1', '--rdzv_backend=c10d', f'--rdzv_id=job{i}', '--nproc_per_node=4', secret,
                         f'--rdzv_endpoint=127.0.0.1:{daemon.port}', hello) as job:
                    assert job.finish() == 0, job.err
            daemon.end(signal.SIGINT)
            assert 'it sent no request, and another connection needs its slot' in daemon.err, daemon.err
        # The same where descriptors are what is scarce, and cddprun hosts.
        flags = ['--nnodes=2', '--nproc_per_node=2', '--master_addr=127.0.0.1', f'--master_port={launch.free_port()}', secret]
        port = int(flags[3].rsplit('=', 1)[1])
        first = stack.enter_context(Job(cddprun, *flags, '--node_rank=0', hello, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (64, 64))))
        launch.wait_for('the host', lambda: launch.listens(port))
        with Squatters(port, 120):
            second = stack.enter_context(Job(cddprun, *flags, '--node_rank=1', hello))
            assert [first.finish(), second.finish()] == [0, 0], (first.err, second.err)


def test_unauthenticated_clients_do_not_block_store_of_rank_0(cddprun):
    hello = os.path.join(os.path.dirname(cddprun), '..', 'examples', 'hello_ranks')
    port = launch.free_port()
    env = {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port)}
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Job(hello, env={**env, 'RANK': '0'}, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (64, 64))))
        launch.wait_for('the store', lambda: launch.listens(port))
        with Squatters(port, 200, Squatters.WORDS[:2]):
            second = stack.enter_context(Job(hello, env={**env, 'RANK': '1'}))
            assert [first.finish(), second.finish()] == [0, 0], (first.err, second.err)


def test_job_waits_for_free_slot(cddprun):
    with tempfile.TemporaryDirectory() as tmp, Daemon('--max_jobs=1') as daemon, contextlib.ExitStack() as stack:
        first = node(stack, cddprun, daemon, 'first', 1, LIVES.format(tmp), '--rdzv_conf=close_timeout=1')
        in_life(tmp, life(0, 1), [first])
        full = 'cddprun: the rendezvous server already has 1 jobs, the limit of --max_jobs'
        late = node(stack, cddprun, daemon, 'late', 1, 'true', '--rdzv_conf=join_timeout=1')
        assert late.finish() == 1 and late.err.splitlines()[-1] == full, late.err
        err = stack.enter_context(tempfile.TemporaryFile('w+'))
        second = node(stack, cddprun, daemon, 'second', 1, 'echo it ran', stderr=err)

        def said():
            err.seek(0)
            return err.read()
        launch.wait_for('the message', lambda: said().startswith(full + '; trying again for '), more=said)
        open(f'{tmp}/end', 'w', encoding='ascii').close()
        assert [first.finish(), second.finish()] == [0, 0], (first.err, said())
        assert second.out == '[0] it ran\n'
        assert daemon.end() == 0, daemon.err


def test_health_is_answered(cddprun):
    with Daemon() as daemon:
        with urllib.request.urlopen(f'http://127.0.0.1:{daemon.port}/healthz', timeout=10) as answer:
            assert answer.read() == b'ok\n'
        assert daemon.end() == 0


def test_head_requests_and_host_header(cddprun):
    with Daemon() as daemon:
        for line in 'HEAD /status HTTP/1.1', f'GET http://127.0.0.1:{daemon.port}/healthz HTTP/1.1':
            with socket.create_connection(('127.0.0.1', daemon.port), 10) as sock:
                sock.sendall(line.encode() + b'\r\nHost: x\r\n\r\n')
                head, _, body = b''.join(iter(lambda: sock.recv(65536), b'')).partition(b'\r\n\r\n')
            assert head.startswith(b'HTTP/1.1 200 OK\r\n') and b'Content-Length: ' in head, head
            assert body == (b'' if line.startswith('HEAD') else b'ok\n'), (line, body)
        assert daemon.end() == 0


def test_store_client_on_shared_port_gets_error(cddprun):
    with Daemon() as daemon:
        answers = []
        for nonce in 12345, 404, 0xCDD << 20 | 7:  # PyTorch's is its process id; libcddp's begins with CDD
            with socket.create_connection(('127.0.0.1', daemon.port), 10) as sock:
                sock.sendall(b'\0\xce\xf7\x85\x3c\x0d' + struct.pack('<I', nonce))
                answers.append(b''.join(iter(lambda: sock.recv(65536), b'')))
        assert answers[:2] == [struct.pack('<I', 404), struct.pack('<I', 405)], answers
        assert b'workers use the port of their job (MASTER_PORT)' in answers[2], answers
        assert daemon.end() == 0
        assert daemon.err.count('workers use the port of their job (MASTER_PORT), and torchrun cannot use this') == 3, daemon.err


def page(daemon, path, port=None):
    with urllib.request.urlopen(f'http://127.0.0.1:{port or daemon.port}{path}', timeout=10) as answer:
        return answer.read().decode()


def until(what, seconds=20):
    """The first true value of what()."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.02)


@contextlib.contextmanager
def running_job(cddprun, daemon, run_id, *flags):
    """A job of 2 nodes that runs until the block ends; yields its entry in /status and its agents."""
    def entry():
        jobs = json.loads(page(daemon, '/status'))['jobs']
        return next((job for job in jobs if job['run_id'] == run_id and job['state'] == 'running'), None)
    with tempfile.TemporaryDirectory() as tmp, contextlib.ExitStack() as stack:
        script = f'while [ ! -e {tmp}/end ]; do sleep 0.05; done'
        nodes = [node(stack, cddprun, daemon, run_id, 2, script, '--nproc_per_node=3', *flags) for _ in range(2)]
        try:
            yield until(entry), nodes
        finally:
            open(f'{tmp}/end', 'w').close()
        assert [job.finish() for job in nodes] == [0, 0], [job.err for job in nodes]


NOT_BASE_UNITS = {'s', 'ms', 'us', 'ns', 'sec', 'secs', 'milliseconds', 'microseconds', 'minutes', 'hours', 'b', 'kb', 'mb', 'gb', 'kib',
                  'mib', 'gib', 'kilobytes', 'megabytes', 'percent', 'pct'}
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?[0-9][0-9.e+-]*)$')


def lint(metrics):
    """What `promtool check metrics` would print: a list of messages."""
    found, types, helps, series, family = [], {}, set(), set(), None
    for line in metrics.splitlines():
        if line.startswith('# HELP '):
            family, _, text = line[7:].partition(' ')
            if family in helps or not text:
                found.append(f'{family}: a second HELP, or an empty one')
            helps.add(family)
        elif line.startswith('# TYPE '):
            name, _, types[name] = line[7:].partition(' ')
            if name != family:
                found.append(f'{name}: its TYPE stands below the HELP of {family}')
        else:
            sample = SAMPLE.match(line)
            if not sample or sample[1] != family:
                found.append(f'no sample of {family}: {line}')
            elif sample.group(1, 2) in series:
                found.append(f'twice: {line}')
            else:
                series.add(sample.group(1, 2))
                labels = re.findall(r'([a-z_]+)="', sample[2] or '')
                if len(labels) != len(set(labels)) or {'le', 'quantile'} & set(labels):
                    found.append(f'labels: {line}')
    for name, kind in types.items():
        words = name.split('_')
        if (kind == 'counter') != name.endswith('_total'):
            found.append(f'{name}: counters, and nothing else, end in _total')
        if kind not in ('counter', 'gauge') or {'counter', 'gauge', 'histogram', 'summary'} & set(words):
            found.append(f'{name}: its type')
        if NOT_BASE_UNITS & set(words) or {'seconds', 'bytes'} & set(words[:-1] if words[-1] != 'total' else words[:-2]):
            found.append(f'{name}: the unit is a base unit, at the end')
        if words[-1] in ('count', 'sum', 'bucket'):
            found.append(f'{name}: an end that histograms have')
    if not metrics.endswith('\n') or helps != set(types):
        found.append('no newline at the end, or HELP without TYPE')
    return found


def test_metrics_pass_promtool_rules(cddprun):
    bad = '# HELP a_ms x\n# TYPE a_ms counter\na_ms 1\na_ms 2\nb{le="1"} 1\n'
    assert len(lint(bad)) == 4, 'the check itself finds faults: ' + str(lint(bad))
    with Daemon() as daemon:
        assert lint(page(daemon, '/metrics')) == []
        with running_job(cddprun, daemon, 'a "job" <1>\\'):
            metrics = page(daemon, '/metrics')
            assert lint(metrics) == [] and metrics.count('\n') > 40, metrics
        assert daemon.end() == 0


def test_pages_show_jobs(cddprun):
    with Daemon() as daemon:
        assert json.loads(page(daemon, '/status'))['jobs'] == []
        with running_job(cddprun, daemon, 'a "job" <1>') as (job, _):
            assert job['round'] == 0 and job['restarts'] == 0 and job['ranks'] == 6, job
            assert job['nodes'] == {'present': 2, 'waiting': 0, 'needed': 2, 'min': 2, 'max': 2}, job
            assert {agent['host'] for agent in job['agents']} == {socket.gethostname()}, job
            assert [agent['first_rank'] for agent in job['agents']] == [0, 3], job
            assert job['store']['bytes_limit'] == 1 << 30, job
            with socket.create_connection(('127.0.0.1', job['port']), 5) as store:
                store.sendall(b'\0\xce\xf7\x85\x3c\x06' + struct.pack('<QQ', 1, 1) + b'k\x0d1234')
                assert store.recv(4) == b'1234'
                for path in '/status', '/metrics', '/':
                    assert page(daemon, path) and page(daemon, path, job['port']), path
                job = json.loads(page(daemon, '/status'))['jobs'][0]
                assert job['store']['waits'] == 1 and job['store']['connections'] == 1, job
                assert job['store']['operations']['WAIT'] == 1, job
                metrics = page(daemon, '/metrics')
                label = 'run_id="a \\"job\\" <1>"'
                for line in f'cddp_job_ranks{{{label}}} 6', f'cddp_store_waits{{{label}}} 1', \
                        f'cddp_job_state{{{label},state="running"}} 1', 'cddp_rendezvous_jobs 1':
                    assert line + '\n' in metrics, (line, metrics)
                text = page(daemon, '/')
                assert 'a &quot;job&quot; &lt;1&gt;' in text and '"Ranks">0 to 2' in text and 'job" <1>' not in text, text
        assert daemon.end() == 0


def test_memory_of_a_job_goes_with_it(cddprun):
    def used():
        with open(f'/proc/{daemon.process.pid}/statm', encoding='ascii') as file:
            return int(file.read().split()[1]) * resource.getpagesize() >> 20
    if launch.SLOW:
        raise launch.Skip('AddressSanitizer keeps memory that was freed')
    with Daemon() as daemon:
        with running_job(cddprun, daemon, 'job') as (job, _):
            before = used()
            with socket.create_connection(('127.0.0.1', job['port']), 5) as store:
                store.sendall(b'\0\xce\xf7\x85\x3c')
                for size in [1 << 10] * (48 << 10) + [3 << 20] * 16:  # on the heap, and large enough for a mapping
                    name = os.urandom(8)
                    store.sendall(b'\x01' + struct.pack('<Q', 8) + name + struct.pack('<Q', size) + bytes(size))
                store.sendall(b'\x0d1234')
                assert store.recv(4) == b'1234'
            assert used() > before + 96, (before, used())
        launch.wait_for('the end of the job', lambda: json.loads(page(daemon, '/status'))['jobs'] == [])
        assert used() < before + 16, (before, used())
        assert daemon.end() == 0


def test_cddprun_itself_has_the_pages(cddprun):
    script = 'import os, urllib.request; print(urllib.request.urlopen("http://127.0.0.1:" + os.environ["MASTER_PORT"] + ' \
             '"/metrics").read().decode())'
    status, out, err = run(cddprun, '--standalone', '--nproc_per_node=1', sys.executable, '-c', script)
    assert status == 0 and '} 1\n' in out and 'cddp_job_ranks{' in out, (out, err)


def test_sigterm_waits_for_the_jobs_and_a_second_one_does_not(cddprun):
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        with running_job(cddprun, daemon, 'first'):
            daemon.process.send_signal(signal.SIGTERM)
            assert until(lambda: json.loads(page(daemon, '/status'))['draining'])
            late = node(stack, cddprun, daemon, 'second', 1, 'true')
            assert late.finish() == 1 and 'accepts no new jobs' in late.err, late.err
            assert daemon.process.poll() is None
        assert daemon.finish() == 0, daemon.err
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        job = node(stack, cddprun, daemon, 'stays', 1, 'sleep 60')
        assert until(lambda: json.loads(page(daemon, '/status'))['jobs'])
        daemon.process.send_signal(signal.SIGTERM)
        assert until(lambda: json.loads(page(daemon, '/status'))['draining'])
        assert daemon.end() == 0, daemon.err
        job.process.terminate()
        assert job.finish() != 0


def test_systemd_notify_and_auth_token_reload(cddprun):
    with tempfile.TemporaryDirectory() as tmp, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f'{tmp}/notify')
        systemd.settimeout(10)
        path, new = f'{tmp}/secret', f'{tmp}/new'
        for name, secret in (path, 'hunter2-hunter2-hunter2\n'), (new, 'hunter3-hunter3-hunter3\n'):
            with open(name, 'w', opener=lambda name, flags: os.open(name, flags, 0o600)) as f:
                f.write(secret)
        with Daemon(f'--auth_token_file={path}', env={'NOTIFY_SOCKET': f'{tmp}/notify'}) as daemon:
            assert systemd.recv(100) == b'READY=1'
            flags = ['--nnodes=1', '--rdzv_backend=c10d', '--rdzv_id=job', f'--rdzv_endpoint=127.0.0.1:{daemon.port}']
            assert run(cddprun, *flags, f'--auth_token_file={new}', 'true')[0] == 1
            with open(path, 'w') as f:
                f.write('hunter3-hunter3-hunter3\n')
            daemon.process.send_signal(signal.SIGHUP)
            assert systemd.recv(100).startswith(b'RELOADING=1\nMONOTONIC_USEC=')
            assert systemd.recv(100) == b'READY=1'
            status, _, err = run(cddprun, *flags, f'--auth_token_file={new}', 'true')
            assert status == 0, err
            assert daemon.end() == 0
            assert systemd.recv(100) == b'STOPPING=1'
            assert 'auth token reloaded' in daemon.err, daemon.err


def test_errors_are_one_message(cddprun):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases = [
            (['--port=x'], 2, "--port is 'x'; it must be a port, 0 to 65535"),
            (['--bind=127.0.0.1', f'--port={port}'], 1, f'port {port} on 127.0.0.1 is in use by another program; end '
             'that one, or choose another port with --port (0: any free port)'),
            (['--bind=127.0.0.1:80'], 1, "--bind '127.0.0.1:80' is an address with a port; give --bind=127.0.0.1 and --port=80"),
            (['--bind=no.such.host.invalid'], 1, "the listening address 'no.such.host.invalid' does not resolve"),
            (['--bind=192.0.2.1'], 1, 'cannot listen on it; check --bind'),
            (['--auth_token_file=/no/such/file'], 1, '/no/such/file'),
        ]
        for flags, status, says in cases:
            with Job(DAEMON, *flags) as daemon:
                assert daemon.finish() == status, flags
                assert daemon.err.count('\n') == 1 and says in daemon.err, (flags, daemon.err)
                assert daemon.out == ''


def test_rejects_readable_auth_token_and_accepts_good_one(cddprun):
    with tempfile.TemporaryDirectory() as tmp:
        path = f'{tmp}/secret'
        with open(path, 'w') as f:
            f.write('hunter2-hunter2-hunter2\n')
        os.chmod(path, 0o644)
        with Job(DAEMON, '--bind=127.0.0.1', '--port=0', f'--auth_token_file={path}') as daemon:
            assert daemon.finish() == 1
            assert daemon.err.count('\n') == 1 and path in daemon.err, daemon.err
        os.chmod(path, 0o600)
        other = f'{tmp}/other'
        with open(other, 'w') as f:
            f.write('hunter3-hunter3-hunter3\n')
        os.chmod(other, 0o600)
        hello = os.path.join(os.path.dirname(cddprun), '..', 'examples', 'hello_ranks')
        with Daemon('--plain_store=never', env={'CDDP_AUTH_TOKEN_FILE': path}) as daemon:
            flags = ['--nnodes=1', '--rdzv_backend=c10d', '--rdzv_id=job', f'--rdzv_endpoint=127.0.0.1:{daemon.port}',
                     '--nproc_per_node=2']
            for lacks in [], [f'--auth_token_file={other}']:
                with Job(cddprun, *flags, *lacks, hello) as job:
                    assert job.finish() == 1
                    assert job.out == '' and job.err.count('\n') == 1 and 'auth token' in job.err, (job.out, job.err)
            with Job(cddprun, *flags, f'--auth_token_file={path}', hello) as job:
                assert job.finish() == 0, job.err
                assert job.out.count('\n') == 2, job.out
            assert daemon.end() == 0
            assert daemon.err.count('auth token') == 1 and 'connection from 127.0.0.1:' in daemon.err, daemon.err


def test_help_and_version(cddprun):
    status, out, err = run(DAEMON, '--help')
    assert status == 0 and err == '' and '--job_ports=A-B' in out, (out, err)
    status, out, err = run(DAEMON, '--version')
    assert status == 0 and out.startswith('cddp-rendezvous 0.'), (out, err)


if __name__ == '__main__':
    launch.main()
