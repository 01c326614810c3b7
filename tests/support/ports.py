# SPDX-License-Identifier: Apache-2.0
"""Ports for programs that need a number before they start. One that is free now may be gone when the program binds it: to another
test, or to any connection, as its local end. So this process keeps each port bound, to its own end. The kernel then gives it
to nobody who asks for any port, and to nobody who binds it as hold() does; only a program that sets SO_REUSEADDR, as servers
do, can listen there. Connections to it are refused until one does. by_hand.h does the same in C.
"""
import random
import socket

FIRST, LAST = 10000, 19999  # below the ports that cddprun derives from a Slurm job, and most systems' ephemeral ports
held = {}


def hold(port):
    """Keep this port for the programs of this process; False: somebody has it."""
    six = socket.has_dualstack_ipv6()
    s = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
    if six:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        s.bind(('', port))
    except OSError:
        s.close()
        return False
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before bind(), which would then share the port
    held[port] = s
    return True


def free_ports(n):
    """The first of n ports in a row that are for the programs of this process alone."""
    for _ in range(1000):
        first = random.randint(FIRST, LAST - n + 1)  # not ephemeral: also a program in another network namespace can have it
        if any(port in held for port in range(first, first + n)):
            continue
        if all(hold(port) for port in range(first, first + n)):
            return first
        for port in range(first, first + n):
            if port in held:
                held.pop(port).close()
    raise OSError(f'there are no {n} free ports in a row from {FIRST} to {LAST}')


def free_port():
    return free_ports(1)
