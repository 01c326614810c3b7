#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replaces ssh for cddprun --hosts, without a network: `ssh [flags] HOST COMMAND` runs COMMAND by sh, in a separate
session, with pipes for the connection. Killing this process breaks the connection, as killing ssh does.

FAKE_SSH_LOG: a folder; HOST is written there with our pid. FAKE_SSH_EXEC: tests/netns/hosts.sh, which enters host I
if HOST is an address that ends in .I.
The host "nowhere" cannot be reached.
"""
import os
import signal
import subprocess
import sys
import threading

args = sys.argv[1:]
while args[0].startswith('-'):
    del args[:2 if args[0] == '-o' else 1]
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
env = {k: v for k, v in os.environ.items() if not k.startswith(('PET_', 'CDDP_')) or k == 'CDDP_TEST_MARK'}
env.pop('NOT_SENT', None)


def fresh():
    """Restores the signals that are ignored here."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


far = subprocess.Popen(there, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                       start_new_session=True, preexec_fn=fresh)


def pump(source, target):
    try:
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(target, data):]
    except OSError:
        pass
    if target == far.stdin.fileno():
        far.stdin.close()


threading.Thread(target=pump, args=(0, far.stdin.fileno()), daemon=True).start()
outs = [threading.Thread(target=pump, args=(far.stdout.fileno(), 1)), threading.Thread(target=pump, args=(far.stderr.fileno(), 2))]
for out in outs:
    out.start()
status = far.wait()
for out in outs:
    out.join()
os._exit(status if status >= 0 else 128 - status)
