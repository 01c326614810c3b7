#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stops everything for a moment, again and again, as a host does that pauses a virtual machine.

usage: stalls.py SEED

A process on each processor, with a real-time priority, lets nothing else run for 0.2 to 0.8 s, every 2 s on average, all at
the same moment. Tests then see time pass in which nobody did anything. Needs CAP_SYS_NICE; ends with the process that
started it.
"""

import ctypes
import os
import random
import signal
import sys
import time

LEAST, MOST, EVERY = 0.2, 0.8, 2.0  # seconds; the kernel leaves 5 % to others, and ends a longer stall
PR_SET_PDEATHSIG = 1


def end_with(parent):
    """Be killed when that process, which is our parent, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def stall(cpu, seed, begin):
    """Never returns. The seed is the same for all processors, so that they stop together."""
    chance = random.Random(seed)
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    end = begin
    while True:
        at = end + chance.uniform(0, 2 * EVERY)
        end = at + chance.uniform(LEAST, MOST)
        time.sleep(max(0.0, at - time.monotonic()))
        while time.monotonic() < end:
            pass


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    end_with(os.getppid())
    me, begin = os.getpid(), time.monotonic() + 1
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    except PermissionError:
        sys.exit('stalls: this needs the right to real-time priorities (CAP_SYS_NICE)')
    for cpu in sorted(os.sched_getaffinity(0)):
        if os.fork() == 0:
            end_with(me)
            stall(cpu, int(sys.argv[1]), begin)
    os.wait()
    sys.exit('stalls: a process ended')


if __name__ == '__main__':
    main()
