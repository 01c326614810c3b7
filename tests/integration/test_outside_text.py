#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text of a hostile agent and of a hostile rendezvous server: no terminal, log, page or label gets a control character of
it, or a line that looks like cddprun's own. CDDP_RENDEZVOUS is the daemon."""
import json
import os
import socket
import struct
import sys
import tempfile
import threading
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import launch
from launch import Job

DAEMON = os.environ['CDDP_RENDEZVOUS']
HOSTILE = 'a\x1b[2J\x07b\rc\x7f\u009bd\u202ee\ncddprun: forged'
OPENING = b'CDDP\x01\r\n\0'
HELLO, CHALLENGE, PROOF, READY = 1000, 1001, 1002, 1003
JOIN, FAILED, STOPPED, LEAVE, WELCOME, WAITING, ASSIGN, CLOSED = 1, 2, 4, 5, 101, 102, 103, 105


def check(what, text, seen=True):
    """`text` has shown the hostile one, and none of its characters."""
    bad = [c for c in text if (ord(c) < 32 and c not in '\n\t') or 0x7f <= ord(c) < 0xa0 or c in '\u202e\u2028']
    assert not bad, (what, bad, text)
    assert not any(line.startswith('cddprun: forged') for line in text.splitlines()), (what, text)
    assert not seen or '[2J' in text, (what, text)


class Peer:
    """One end of a control connection."""

    def __init__(self, sock):
        self.sock = sock
        sock.settimeout(launch.DEADLINE)

    def read(self, n):
        data = b''
        while len(data) < n:
            more = self.sock.recv(n - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def send(self, kind, payload):
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.sock.sendall(struct.pack('<IHH', len(body), kind, 0) + body)

    def hear(self, *kinds):
        while True:
            size, kind, _ = struct.unpack('<IHH', self.read(8))
            body = self.read(size)
            if kind in kinds:
                return body

    def join(self, run_id):
        self.sock.sendall(OPENING)
        name = run_id.encode()
        self.send(HELLO, b'\1' + struct.pack('<I', 0xffffffff) + b'n' * 32 + struct.pack('<H', len(name)) + name)
        self.hear(CHALLENGE)
        self.send(PROOF, b'\0' * 32)
        self.hear(READY)
        self.send(JOIN, dict(version=1, release='\x1b[2J', run_id=run_id, host=HOSTILE, pid=1, node_rank=-1, n_procs=1,
                             min_nodes=2, max_nodes=2, spares=0, max_restarts=0, topology=HOSTILE, join_timeout_ms=-1,
                             last_call_ms=-1, close_timeout_ms=-1, lease_ms=-1, session='', round=-1))


def failure(**more):
    return dict(dict(kind=4, code=0, rank=0, local_rank=0, node_rank=0, pid=1, time_ms=1, core_dumped=0, host=HOSTILE, text=HOSTILE),
                **more)


def get(port, path):
    with urllib.request.urlopen(f'http://127.0.0.1:{port}{path}', timeout=launch.DEADLINE) as reply:
        return reply.read().decode()


def strings(value):
    if isinstance(value, dict):
        return [s for item in value.items() for one in item for s in strings(one)]
    return [s for one in value for s in strings(one)] if isinstance(value, list) else [value] if isinstance(value, str) else []


def beside_a_hostile_agent(cddprun, then, pages=False):
    """The stderr of a cddprun whose job has another agent, which joins and then sends `then`."""
    with tempfile.TemporaryDirectory() as folder, Job(DAEMON, '--bind=127.0.0.1', '--port=0') as daemon:
        port = int(daemon.process.stdout.readline().rsplit(':', 1)[1])
        report = os.path.join(folder, 'report.html')
        with socket.create_connection(('127.0.0.1', port)) as sock:
            peer = Peer(sock)
            peer.join('job')
            peer.hear(WELCOME)
            if pages:
                check('page', get(port, '/'), seen=False)
                check('metrics', get(port, '/metrics'), seen=False)
                check('JSON', '\n'.join(strings(json.loads(get(port, '/status')))))
            with Job(cddprun, '--nnodes=2', '--rdzv_backend=c10d', '--rdzv_id=job', f'--rdzv_endpoint=127.0.0.1:{port}',
                     f'--report={report}', 'sleep', '1000', env={'LOGLEVEL': 'debug'}) as job:
                peer.hear(ASSIGN)
                peer.send(*then)
                peer.send(STOPPED, dict(round=0))
                assert job.finish() != 0
                err = job.err
            if os.path.exists(report):
                with open(report, encoding='utf-8') as page:
                    check('report', page.read(), seen=False)
        daemon.process.terminate()
        daemon.finish()
        check('log of the server', daemon.err, seen=False)
        return err


def test_reason_of_an_agent_that_leaves(cddprun):
    err = beside_a_hostile_agent(cddprun, (LEAVE, dict(reason=HOSTILE, final=False)))
    check('cddprun', err)


def test_failures_of_another_node(cddprun):
    for kind in (1, 2, 3, 4, 5):
        told = failure(kind=kind, code=9 if kind != 4 else 0)
        err = beside_a_hostile_agent(cddprun, (FAILED, dict(round=0, failure=told)), pages=kind == 1)
        check(f'cddprun, failure {kind}', err)


def test_a_hostile_rendezvous(cddprun):
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        listener.listen()
        listener.settimeout(launch.DEADLINE)
        wrong = []

        def serve():
            try:
                sock, _ = listener.accept()
                with sock:
                    peer = Peer(sock)
                    peer.read(len(OPENING))
                    peer.hear(HELLO)
                    peer.send(CHALLENGE, b'\0' + b'n' * 32)
                    peer.hear(PROOF)
                    peer.send(READY, b'\0' * 32)
                    peer.hear(JOIN)
                    peer.send(WELCOME, dict(version=1, release='0.1.0', session='s', lease_ms=30000, resumed=False, hosted=False))
                    peer.send(WAITING, dict(have=1, need=2, text=HOSTILE))
                    peer.send(CLOSED, dict(status=1, text=HOSTILE, failure=failure(), retry=False, gone=False))
                    while peer.sock.recv(4096):
                        pass
            except Exception as why:  # the test must see it
                wrong.append(why)

        server = threading.Thread(target=serve)
        server.start()
        with Job(cddprun, '--nnodes=2', '--rdzv_backend=c10d', '--rdzv_id=job', '--rdzv_conf=is_host=0',
                 f'--rdzv_endpoint=127.0.0.1:{listener.getsockname()[1]}', 'true') as job:
            assert job.finish() != 0
            err = job.err
        server.join()
    assert not wrong, wrong
    check('cddprun', err)


launch.main()
