#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every operation of the store on thousands of connections at once: each answer is right, and in the order of the requests.

    thousands.py RDZV_SERVER [CONNECTIONS]     (2000)
"""
import collections
import resource
import selectors
import socket
import struct
import subprocess
import sys
import time

SERVER, N = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000
DEADLINE_S = 90


def u64(n):
    return struct.pack('<Q', n & (1 << 64) - 1)


def s(data):
    return u64(len(data)) + data


def keys(*names):
    return u64(len(names)) + b''.join(map(s, names))


def requests(i):
    """(request, its answer) of connection i: its own keys, so that every answer but the last few is known."""
    own = b'%d:' % i
    k, q, b, n, m1, m2 = (own + name for name in (b'k', b'q', b'b', b'n', b'm1', b'm2'))
    return [
        (b'\0\xce\xf7\x85\x3c', b''),                                    # VALIDATE
        (b'\x0d' + struct.pack('<I', i), struct.pack('<I', i)),          # PING
        (b'\x01' + s(k) + s(own), b''),                                  # SET
        (b'\x03' + s(k), s(own)),                                        # GET
        (b'\x02' + s(k) + s(own) + s(b'new'), s(b'new')),                # COMPARE_SET
        (b'\x09' + s(k) + s(b'er'), b''),                                # APPEND
        (b'\x03' + s(k), s(b'newer')),
        (b'\x04' + s(n) + u64(i), u64(i)),                               # ADD
        (b'\x04' + s(n) + u64(-1), u64(i - 1)),
        (b'\x05' + keys(k, n), b'\0'),                                   # CHECK
        (b'\x05' + keys(k, own + b'none'), b'\1'),
        (b'\x06' + keys(k, n), b'\0'),                                   # WAIT
        (b'\x06' + keys(own + b'none'), b''),                            # pending, until
        (b'\x0c', b'\1'),                                                # CANCEL_WAIT
        (b'\x0b' + u64(2) + s(m1) + s(b'1') + s(m2) + s(b'2'), b''),     # MULTI_SET
        (b'\x0a' + keys(m2, own + b'none', m1), s(b'2') + s(b'') + s(b'1')),  # MULTI_GET
        (b'\x0e' + s(q) + s(b'i1') + b'\x0e' + s(q) + s(b'i2'), b''),    # QUEUE_PUSH
        (b'\x10' + s(q), u64(2)),                                        # QUEUE_LEN
        (b'\x0f' + s(q), u64(2) + s(b'i1')),                             # QUEUE_POP
        (b'\x0f' + s(q) + b'\x0f' + s(q), u64(1) + s(b'i2') + u64(0)),
        (b'\x12' + s(b) + u64(1), b'\0'),                                # BARRIER
        (b'\x08' + s(b) + b'\x08' + s(b), u64(1) + u64(0)),              # DELETE_KEY
        (b'\x04' + s(b'all') + u64(1), None),                            # its place among all: 8 bytes
        (b'\x12' + s(b'meet') + u64(N), b'\0'),                          # comes when the last one has come
    ]


def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = subprocess.Popen([SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port, end = int(server.stdout.readline()), time.monotonic() + DEADLINE_S
    socks, want, got = [], [], [b''] * N
    poll = selectors.DefaultSelector()
    for i in range(N):
        sock = socket.create_connection(('127.0.0.1', port), 10)
        script = requests(i)
        sock.sendall(b''.join(request for request, _ in script))
        sock.setblocking(False)
        want.append(b''.join(b'?' * 8 if answer is None else answer for _, answer in script))
        poll.register(sock, selectors.EVENT_READ, i)
        socks.append(sock)
    left = N
    while left:
        assert time.monotonic() < end, f'{left} of {N} connections have not had all their answers'
        for key, _ in poll.select(1):
            i = key.data
            more = key.fileobj.recv(65536)
            assert more, f'connection {i} was closed after {got[i]!r}'
            got[i] += more
            left -= len(got[i]) == len(want[i])
    places = collections.Counter()
    for i in range(N):
        assert got[i][:-9] == want[i][:-9] and got[i][-1:] == b'\0', (i, got[i], want[i])
        places[struct.unpack('<q', got[i][-9:-1])[0]] += 1
    assert places == collections.Counter(range(1, N + 1)), 'each place was given once'

    # Only the server as a whole can answer these: how many keys there are, and which.
    first = socks[0]
    first.setblocking(True)
    first.settimeout(30)
    first.sendall(b'\x07\x11')
    n_keys = 4 * N + 2
    length = 16 + sum(8 + len(b'%d:' % i) + len(name) for i in range(N) for name in (b'k', b'n', b'm1', b'm2')) + 8 + 3 + 8 + 4
    answer = b''
    while len(answer) < length:
        more = first.recv(1 << 20)
        assert more, 'closed while it lists its keys'
        answer += more
    assert struct.unpack('<qq', answer[:16]) == (n_keys, n_keys) and len(answer) == length, (answer[:16], len(answer), length)

    # One key wakes all who wait for it.
    for sock in socks:
        sock.setblocking(True)
        sock.settimeout(30)
        sock.sendall(b'\x06' + keys(b'go') + b'\x0d1234')
    for sock in socks:
        assert sock.recv(4, socket.MSG_WAITALL) == b'1234'
    first.sendall(b'\x01' + s(b'go') + s(b'!'))
    for sock in socks:
        assert sock.recv(1) == b'\0'
        sock.close()
    server.stdin.close()
    assert server.wait(30) == 0
    print(f'{N} connections, {len(requests(0))} steps each, every answer right')


main()
