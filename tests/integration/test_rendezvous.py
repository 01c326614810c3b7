#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cddp-rendezvous, as a user starts it, and jobs of cddprun that meet there. CDDP_RENDEZVOUS is its path."""
import contextlib
import json
import os
import re
import resource
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
    def __init__(self, *flags, **popen):
        super().__init__(DAEMON, '--bind=127.0.0.1', '--port=0', *flags, **popen)

    def __enter__(self):
        line = self.process.stdout.readline()
        assert line.startswith('listening 127.0.0.1:'), (line, self.process.stderr.read())
        self.port = int(line.rsplit(':', 1)[1])
        return self

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.finish()


def node(stack, cddprun, daemon, run_id, nnodes, script, *flags, **popen):
    return stack.enter_context(Job(cddprun, f'--nnodes={nnodes}', '--rdzv_backend=c10d', f'--rdzv_id={run_id}',
                                   f'--rdzv_endpoint=127.0.0.1:{daemon.port}', *flags, 'sh', '-c', script, **popen))


def test_two_jobs_of_two_nodes_meet_side_by_side(cddprun):
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


def test_clients_that_go_while_they_are_answered_cost_nobody_anything(cddprun):
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


def test_a_failure_on_one_node_restarts_the_job_and_the_other_job_goes_on(cddprun):
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


def test_a_job_brings_its_own_times_and_numbers(cddprun):
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        began = time.monotonic()
        lonely = node(stack, cddprun, daemon, 'lonely', '2:3', 'true', '--rdzv_conf=join_timeout=1')
        assert lonely.finish() == 1 and time.monotonic() - began < launch.within(5), lonely.err
        assert 'not enough nodes came within 1 s: 1 of 2 to 3 nodes are here' in lonely.err, lonely.err
        began = time.monotonic()
        quick = node(stack, cddprun, daemon, 'quick', '1:2', 'echo $WORLD_SIZE', '--rdzv_conf=last_call_timeout=0')
        assert quick.finish() == 0 and quick.out == '[0] 1\n' and time.monotonic() - began < launch.within(2), quick.err
        patient = node(stack, cddprun, daemon, 'patient', '1:2', 'echo $WORLD_SIZE', '--rdzv_conf=last_call_timeout=60')
        other = node(stack, cddprun, daemon, 'patient', '1:2', 'echo $WORLD_SIZE')
        assert (patient.finish(), other.finish()) == (0, 0), (patient.err, other.err)
        assert {patient.out[4:], other.out[4:]} == {'2\n'}, (patient.out, other.out)
        assert daemon.end() == 0


def test_ranks_that_there_is_no_room_for_say_so_at_once(cddprun):
    hello = os.path.join(os.path.dirname(cddprun), '..', 'examples', 'hello_ranks')
    few = 'takes no more connections: the rendezvous may open no more than 40 files on '
    many = 'takes no more connections: there are 16 connections already, as many as --max_connections allows; raise it'
    limit = {'preexec_fn': lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))}
    with tempfile.TemporaryDirectory() as tmp:
        token = os.path.join(tmp, 'token')
        with open(token, 'w', encoding='ascii') as file:
            file.write('secret\n')
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
            assert job.finish() == 1 and 'as many as --rdzv_conf=max_connections allows; raise it' in job.err, job.err
        # Agents too.
        with Daemon('--max_connections=1') as daemon, contextlib.ExitStack() as stack:
            nodes = [node(stack, cddprun, daemon, 'job', 2, 'true') for _ in range(2)]
            assert until(lambda: any(job.process.poll() is not None for job in nodes))
            (refused, waits) = sorted(nodes, key=lambda job: job.process.poll() is None)
            assert refused.finish() == 1 and many.replace('16', '1') in refused.err, refused.err
            waits.process.send_signal(signal.SIGTERM)
            waits.finish()
            assert daemon.end(signal.SIGINT) == 0


def test_health_is_answered(cddprun):
    with Daemon() as daemon:
        with urllib.request.urlopen(f'http://127.0.0.1:{daemon.port}/healthz', timeout=10) as answer:
            assert answer.read() == b'ok\n'
        assert daemon.end() == 0


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
    """What `promtool check metrics` would say: a list of sentences."""
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


def test_metrics_are_as_promtool_wants_them(cddprun):
    bad = '# HELP a_ms x\n# TYPE a_ms counter\na_ms 1\na_ms 2\nb{le="1"} 1\n'
    assert len(lint(bad)) == 4, 'the check itself finds faults: ' + str(lint(bad))
    with Daemon() as daemon:
        assert lint(page(daemon, '/metrics')) == []
        with running_job(cddprun, daemon, 'a "job" <1>\\'):
            metrics = page(daemon, '/metrics')
            assert lint(metrics) == [] and metrics.count('\n') > 40, metrics
        assert daemon.end() == 0


def test_the_pages_tell_about_jobs(cddprun):
    with Daemon() as daemon:
        assert json.loads(page(daemon, '/status'))['jobs'] == []
        with running_job(cddprun, daemon, 'a "job" <1>') as (job, _):
            assert job['round'] == 0 and job['restarts'] == 0 and job['ranks'] == 6, job
            assert job['nodes'] == {'present': 2, 'waiting': 0, 'needed': 2}, job
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
                assert 'a "job" &lt;1>' in text and '<td>0 to 2' in text and '<script' not in text, text
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
            assert late.finish() == 1 and 'takes no new jobs' in late.err, late.err
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


def test_systemd_is_told_and_the_secret_read_again(cddprun):
    with tempfile.TemporaryDirectory() as tmp, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f'{tmp}/notify')
        systemd.settimeout(10)
        path, new = f'{tmp}/secret', f'{tmp}/new'
        for name, secret in (path, 'hunter2\n'), (new, 'hunter3\n'):
            with open(name, 'w', opener=lambda name, flags: os.open(name, flags, 0o600)) as f:
                f.write(secret)
        with Daemon(f'--auth_token_file={path}', env={'NOTIFY_SOCKET': f'{tmp}/notify'}) as daemon:
            assert systemd.recv(100) == b'READY=1'
            flags = ['--nnodes=1', '--rdzv_backend=c10d', '--rdzv_id=job', f'--rdzv_endpoint=127.0.0.1:{daemon.port}']
            assert run(cddprun, *flags, f'--auth_token_file={new}', 'true')[0] == 1
            with open(path, 'w') as f:
                f.write('hunter3\n')
            daemon.process.send_signal(signal.SIGHUP)
            assert systemd.recv(100).startswith(b'RELOADING=1\nMONOTONIC_USEC=')
            assert systemd.recv(100) == b'READY=1'
            status, _, err = run(cddprun, *flags, f'--auth_token_file={new}', 'true')
            assert status == 0, err
            assert daemon.end() == 0
            assert systemd.recv(100) == b'STOPPING=1'
            assert 'the secret was read again' in daemon.err, daemon.err


def test_what_is_wrong_is_one_sentence(cddprun):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases = [
            (['--port=x'], 2, "--port is 'x'; it must be a port, 0 to 65535"),
            (['--bind=127.0.0.1', f'--port={port}'], 1, f'port {port} on 127.0.0.1 is in use by another program; end '
             'that one, or choose another port with --port (0: any free one)'),
            (['--bind=no.such.host.invalid'], 1, "the address 'no.such.host.invalid' to listen on does not resolve"),
            (['--bind=192.0.2.1'], 1, 'cannot listen there; check --bind'),
            (['--auth_token_file=/no/such/file'], 1, '/no/such/file'),
        ]
        for flags, status, says in cases:
            with Job(DAEMON, *flags) as daemon:
                assert daemon.finish() == status, flags
                assert daemon.err.count('\n') == 1 and says in daemon.err, (flags, daemon.err)
                assert daemon.out == ''


def test_a_secret_that_others_may_read_is_refused_and_a_good_one_taken(cddprun):
    with tempfile.TemporaryDirectory() as tmp:
        path = f'{tmp}/secret'
        with open(path, 'w') as f:
            f.write('hunter2\n')
        os.chmod(path, 0o644)
        with Job(DAEMON, '--bind=127.0.0.1', '--port=0', f'--auth_token_file={path}') as daemon:
            assert daemon.finish() == 1
            assert daemon.err.count('\n') == 1 and path in daemon.err, daemon.err
        os.chmod(path, 0o600)
        other = f'{tmp}/other'
        with open(other, 'w') as f:
            f.write('hunter3\n')
        os.chmod(other, 0o600)
        hello = os.path.join(os.path.dirname(cddprun), '..', 'examples', 'hello_ranks')
        with Daemon('--plain_store=never', env={'CDDP_AUTH_TOKEN_FILE': path}) as daemon:
            flags = ['--nnodes=1', '--rdzv_backend=c10d', '--rdzv_id=job', f'--rdzv_endpoint=127.0.0.1:{daemon.port}',
                     '--nproc_per_node=2']
            for lacks in [], [f'--auth_token_file={other}']:
                with Job(cddprun, *flags, *lacks, hello) as job:
                    assert job.finish() == 1
                    assert job.out == '' and job.err.count('\n') == 1 and 'secret' in job.err, (job.out, job.err)
            with Job(cddprun, *flags, f'--auth_token_file={path}', hello) as job:
                assert job.finish() == 0, job.err
                assert job.out.count('\n') == 2, job.out
            assert daemon.end() == 0
            assert daemon.err.count('secret') == 1 and 'connection from 127.0.0.1:' in daemon.err, daemon.err


def test_help_and_version(cddprun):
    status, out, err = run(DAEMON, '--help')
    assert status == 0 and err == '' and '--job_ports=A-B' in out, (out, err)
    status, out, err = run(DAEMON, '--version')
    assert status == 0 and out.startswith('cddp-rendezvous 0.'), (out, err)


launch.main()
