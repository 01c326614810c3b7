# SPDX-License-Identifier: Apache-2.0
"""Tests over several hosts: hosts.sh for Python. A test file calls enter(N) first."""
import ctypes
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, 'hosts.sh')
sys.path.insert(0, os.path.join(HERE, '..', 'support'))
from launch import Job


def enter(n):
    """Go on inside N hosts, or end as a skipped test with the reason."""
    if 'NETNS_HOSTS' in os.environ:
        return
    check = subprocess.run([SCRIPT, 'check'], capture_output=True, text=True, check=False)
    if check.returncode == 77:
        print(f'1..0 # SKIP {check.stdout.strip()}')
        sys.exit(0)
    os.execv(SCRIPT, [SCRIPT, 'up', str(n), sys.executable, *sys.argv])


def address(i):
    return f'10.99.0.{i}'


def act(what, *i):
    """cut, mute, heal or kill host i; part hosts i, j: what i sends to j vanishes."""
    subprocess.run([SCRIPT, what, *map(str, i)], check=True)


def move_to(i):
    """This thread, and what it starts, goes on at host i. (os.setns() is new in Python 3.12.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f'/run/netns/{os.environ["NETNS_HOSTS"]}-{i}', encoding='ascii') as namespace:
        if libc.setns(namespace.fileno(), 0x40000000) != 0:  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), 'setns')


def on(i, *command, **more):
    """A Job on host i. hosts.sh becomes the command, so the job's pid is the command's."""
    env = {'NETNS_HOSTS': os.environ['NETNS_HOSTS'], **more.pop('env', {})}
    return Job(SCRIPT, 'exec', str(i), *map(str, command), env=env, **more)
