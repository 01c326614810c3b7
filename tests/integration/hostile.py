#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peers that break every rule, beside one that keeps them: it notices nothing, and each drop has its line in the log.

    hostile.py CDDPRUN [IDLE]     CDDP_RENDEZVOUS is the daemon; IDLE: how many connections say nothing (200)
"""
import contextlib
import json
import os
import re
import resource
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.request

CDDPRUN, IDLE = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200
sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
from launch import Job, within

HELLO = b'\0\xce\xf7\x85\x3c'
CONTROL = b'CDDP\x01\r\n\0'
SLOWEST_S = 2.0  # how long the good client may wait for one answer, whatever the others do


def u64(n):
    return struct.pack('<Q', n & (1 << 64) - 1)


def s(data):
    return u64(len(data)) + data


# The bytes sent, and the log's message about them. A good client's PING follows, so that nothing is left undecided.
BAD = {
    'an operation that there is not': (HELLO + b'\x13', '19 is not a store operation'),
    'the last byte as one': (HELLO + b'\xff', '255 is not a store operation'),
    'no VALIDATE': (b'\x0d1234', 'unrecognized protocol'),
    'a wrong magic': (b'\0\1\2\3\4', 'unrecognized protocol'),
    'VALIDATE twice': (HELLO + HELLO, 'VALIDATE after VALIDATE'),
    'a giant key': (HELLO + b'\x03' + u64(-1), 'a key of 18446744073709551615 bytes in a GET request; the limit is 8192'),
    'a key too long': (HELLO + b'\x03' + u64(8193), 'a key of 8193 bytes in a GET request; the limit is 8192'),
    'a giant value': (HELLO + b'\x01' + s(b'k') + u64(1 << 40), 'a value of 1099511627776 bytes in a SET request'),
    'a value larger than the flag allows': (HELLO + b'\x01' + s(b'k') + s(b'x' * 100001),
                                            'a value of 100001 bytes; the limit is 100000'),
    'a giant list': (HELLO + b'\x06' + u64(-1), 'a list of 18446744073709551615 keys in a WAIT request'),
    'a list too long': (HELLO + b'\x0b' + u64(131073), 'a list of 131073 keys in a MULTI_SET request'),
    'a sum that is none': (HELLO + b'\x01' + s(b'text') + s(b'x') + b'\x04' + s(b'text') + u64(1),
                           "cannot add to key 'text': its value is not a number"),
    'too much in the store': (HELLO + b''.join(b'\x01' + s(b'%d' % i) + s(b'x' * 100000) for i in range(30)),
                              'the store is full: the limit of its keys, values and waits is 2097152 bytes'),
    'too many waits': (HELLO + (b'\x06' + u64(1) + s(b'never')) * 11, '10 waits are pending already'),
    'no HTTP': (b'GET nothing\r\n\r\n', 'invalid HTTP request line'),
    'an endless HTTP head': (b'GET / HTTP/1.1\r\n' + b'a: b\r\n' * 2000, 'HTTP head longer than 8192 bytes'),
    'a giant frame': (CONTROL + struct.pack('<IHH', 0xffffffff, 50, 0), 'frame'),
    'a frame of no type': (CONTROL + struct.pack('<IHH', 2, 999, 0) + b'{}', 'HELLO'),
    'a JOIN that is not JSON': (CONTROL + struct.pack('<IHH', 3, 1, 0) + b'{{{', 'instead of HELLO'),
    'random bytes': (bytes((i * i * 7 + 3) % 256 for i in range(4096)), 'unrecognized protocol'),
}


class Good(threading.Thread):
    """Sets, adds and gets all the time, and notes how long the slowest answer took."""

    def __init__(self, port):
        super().__init__()
        self.sock = socket.create_connection(('127.0.0.1', port), 5)
        self.sock.settimeout(10)
        self.slowest, self.count, self.stop, self.error = 0, 0, False, None

    def receive(self, n):
        got = b''
        while len(got) < n:
            more = self.sock.recv(n - len(got))
            assert more, 'the server closed the good connection'
            got += more
        return got

    def run(self):
        try:
            self.sock.sendall(HELLO)
            while not self.stop:
                began = time.monotonic()
                self.count += 1
                self.sock.sendall(b'\x01' + s(b'good') + s(b'%d' % self.count) + b'\x04' + s(b'n') + u64(1) + b'\x03' + s(b'good'))
                number = struct.unpack('<q', self.receive(8))[0]
                value = self.receive(struct.unpack('<Q', self.receive(8))[0])
                assert number == self.count and value == b'%d' % self.count, (number, value, self.count)
                self.slowest = max(self.slowest, time.monotonic() - began)
        except Exception as error:
            self.error = error


def dial(port):
    sock = socket.create_connection(('127.0.0.1', port), 5)
    sock.settimeout(10)
    return sock


def status(port):
    with urllib.request.urlopen(f'http://127.0.0.1:{port}/status', timeout=10) as answer:
        return json.loads(answer.read())


def wait_for(what):
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end, 'it did not come in 30 s'
        time.sleep(0.02)


def is_closed(sock):
    """All that it still says, until the end."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(65536):
            pass
    return True


def break_every_rule(port):
    """Each in turn: closed, and nothing else happens. Returns the local port of each."""
    names = {}
    for what, (data, _) in BAD.items():
        with dial(port) as sock:
            names[what] = sock.getsockname()[1]
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(data)
            assert is_closed(sock), what
    return names


def dawdle(port, stack):
    """Half requests, silence, one byte at a time, and a client that does not read: they stay open for a while."""
    for data in HELLO + b'\x01', HELLO + b'\x01' + u64(8000) + b'k', HELLO + b'\x0b' + u64(100000) + s(b'k'), b'GET /he', CONTROL[:3]:
        stack.enter_context(dial(port)).sendall(data)
    for _ in range(IDLE):
        stack.enter_context(dial(port))
    deaf = stack.enter_context(dial(port))
    deaf.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        deaf.sendall(HELLO + b'\x01' + s(b'deaf') + s(b'y' * 90000) + (b'\x03' + s(b'deaf')) * 100000)
    slow = stack.enter_context(dial(port))
    for byte in HELLO + b'\x04' + s(b'slow') + u64(5):
        slow.sendall(bytes([byte]))
        time.sleep(0.02)
    assert struct.unpack('<q', slow.recv(8))[0] == 5, 'a slow client is served, too'


def leave_waiting(port):
    """A wait ends with its client."""
    sock = dial(port)
    sock.sendall(HELLO + b'\x06' + u64(1) + s(b'never') + b'\x0d1234')
    assert sock.recv(4) == b'1234'
    assert status(port)['jobs'][0]['store']['waits'] == 1
    sock.close()
    wait_for(lambda: status(port)['jobs'][0]['store']['waits'] == 0)


def check_log(log, names):
    for what, (_, says) in BAD.items():
        lines = re.findall(rf'connection from 127\.0\.0\.1:{names[what]} closed: (.*)', log)
        assert len(lines) == 1, (what, lines, log)
        assert says in lines[0], (what, lines)
    assert log.count('\n') < len(BAD) + 20, 'idle and closed connections are not logged:\n' + log


def main():
    flags = ['--bind=127.0.0.1', '--port=0', '--max_value=100000', '--store_memory=2M', '--max_waits=10']
    with tempfile.TemporaryDirectory() as tmp, Job(os.environ['CDDP_RENDEZVOUS'], *flags) as daemon, \
            contextlib.ExitStack() as stack:
        port = int(daemon.process.stdout.readline().rsplit(':', 1)[1])
        job = stack.enter_context(Job(CDDPRUN, '--nnodes=1', f'--rdzv_endpoint=127.0.0.1:{port}', '--rdzv_backend=c10d',
                                      '--rdzv_id=job', 'sh', '-c', f'while [ ! -e {tmp}/end ]; do sleep 0.05; done'))
        wait_for(lambda: any(one['state'] == 'running' for one in status(port)['jobs']))
        port = status(port)['jobs'][0]['port']
        good = Good(port)
        good.start()
        leave_waiting(port)
        names = break_every_rule(port)
        dawdle(port, stack)
        wait_for(lambda: status(port)['connections']['open'] < 20)  # the idle are closed after five seconds
        good.stop = True
        good.join()
        good.sock.close()
        assert good.error is None and good.count > 10, (good.error, good.count)
        assert good.slowest < within(SLOWEST_S) * (3 if '--slow' in sys.argv else 1), f'the good client waited {good.slowest:.2f} s'
        counted = status(port)['connections']['dropped']
        open(f'{tmp}/end', 'w').close()
        assert job.finish() == 0, job.err
        daemon.process.terminate()
        assert daemon.finish() == 0
        check_log(daemon.err, names)
        print(f'{len(BAD)} ways to break a rule, {IDLE} that say nothing, {counted} dropped; the good client had '
              f'{good.count} answers, the slowest in {good.slowest * 1e3:.0f} ms')


if __name__ == '__main__':
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    main()
