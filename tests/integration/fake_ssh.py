#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replaces ssh for cddprun --hosts, without a network: `ssh [flags] HOST COMMAND` has COMMAND run by sh, in a separate
session, with pipes for the connection. Killing this process breaks the connection, as killing ssh does.

FAKE_SSH_SERVER: the socket of launch.far_ends() in the test, which runs COMMAND: it must not be a descendant of cddprun.
FAKE_SSH_LOG: a folder; HOST is written there with our pid. FAKE_SSH_EXEC: tests/netns/hosts.sh, which enters host I
if HOST is an address that ends in .I.
The host "nowhere" cannot be reached.
"""
import json
import os
import signal
import socket
import sys
import threading

args = sys.argv[1:]
while args[0].startswith('-'):
    del args[0]
host, command = args[0].rpartition('@')[2], ' '.join(args[1:])
if host == 'nowhere':
    print('ssh: Could not resolve hostname nowhere', file=sys.stderr)
    sys.exit(255)
signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.environ.get('FAKE_SSH_LOG'):
    with open(os.path.join(os.environ['FAKE_SSH_LOG'], host), 'w', encoding='ascii') as f:
        f.write(str(os.getpid()))
there = ['sh', '-c', command]
if os.environ.get('FAKE_SSH_EXEC'):
    there = [os.environ['FAKE_SSH_EXEC'], 'exec', host.rpartition('.')[2], *there]
# Of our environment ssh takes nothing along; the tests' own mark must stay, so that they find every process.
env = {k: v for k, v in os.environ.items() if not k.startswith(('PET_', 'CDDP_', 'FAKE_')) or k == 'CDDP_TEST_MARK'}
env.pop('NOT_SENT', None)

server = socket.socket(socket.AF_UNIX)
server.connect(os.environ['FAKE_SSH_SERVER'])
pipes = [os.pipe() for _ in range(3)]
fars = [pipes[0][0], pipes[1][1], pipes[2][1]]
socket.send_fds(server, [json.dumps([there, env, os.getcwd()]).encode()], fars)
server.shutdown(socket.SHUT_WR)
for fd in fars:
    os.close(fd)


def pump(source, target):
    try:
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(target, data):]
    except OSError:
        pass
    if target == pipes[0][1]:
        os.close(target)


threading.Thread(target=pump, args=(0, pipes[0][1]), daemon=True).start()
outs = [threading.Thread(target=pump, args=(pipes[i][0], i)) for i in (1, 2)]
for out in outs:
    out.start()
for out in outs:
    out.join()
status = int(server.recv(100))
os._exit(status if status >= 0 else 128 - status)
