#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker that writes down what its launcher gave it, as JSON in $PROBE_DIR/RANK.RESTART; see launchers.py.

    launcher_probe.py [MODE]    fail: rank 1 exits with status 3, the others wait    restart: the same, in its first life only
                                wait: until a signal that ends it    stubborn: the same, but SIGTERM is ignored
"""
import json
import os
import signal
import sys
import time

folder = os.environ["PROBE_DIR"]
rank, life = int(os.environ.get("RANK", -1)), os.environ.get("TORCHELASTIC_RESTART_COUNT", "?")
mode = sys.argv[1] if len(sys.argv) > 1 else ""
caught = []


def write(suffix, value):
    path = os.path.join(folder, f"{rank}.{life}.{suffix}")
    with open(path + ".part", "w", encoding="utf-8") as f:
        json.dump(value, f)
    os.rename(path + ".part", path)


def ended_by(number, frame):
    write("signal", signal.Signals(number).name)
    os._exit(0)


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, ended_by)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
write("start", {"env": dict(os.environ), "argv": sys.argv[1:], "orig": sys.orig_argv[1:]})
print(f"probe out {rank}", flush=True)
print(f"probe err {rank}", file=sys.stderr, flush=True)
if rank == 1 and (mode == "fail" or (mode == "restart" and life == "0")):
    deadline = time.monotonic() + 20
    while len([n for n in os.listdir(folder) if n.endswith(f".{life}.start")]) < int(os.environ["WORLD_SIZE"]):
        if time.monotonic() > deadline:
            sys.exit(4)
        time.sleep(0.01)
    sys.exit(3)
if mode in ("wait", "stubborn", "fail") or (mode == "restart" and life == "0"):
    time.sleep(60)
