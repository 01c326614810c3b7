#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An unmodified PyTorch DDP program (gloo, 4 ranks) that hangs in one rank: cddprun names rank, host and function.

    check_hang.py CDDPRUN PYTHON     PYTHON has torch, and py-spy beside it; exits 77 (skipped) without

No privileges are used: cddprun and its workers run without any capability, if setpriv can take them away.
"""
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import launch

HERE = pathlib.Path(__file__).resolve().parent
IMPORT_S = 60  # in which four Pythons import torch on a calm machine, and rank 2 comes to the planted function


def without_privileges():
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0 or setpriv is None:
        return []
    drop = [setpriv, "--bounding-set=-all", "--inh-caps=-all", "--"]
    return drop if subprocess.run([*drop, "true"], check=False, capture_output=True).returncode == 0 else []


def stderr_of_hang(cddprun, python, how):
    """What cddprun prints until its message about the planted function is there, or should be."""
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "err"), "w+", encoding="utf-8") as err:
        there = os.path.join(folder, "there")
        command = [*without_privileges(), cddprun, "--standalone", "--nproc_per_node=4", "--hang_warning=3", "--shutdown_timeout=1",
                   python, "-u", str(HERE / "ddp_hang.py"), how, there]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
                                   env={**os.environ, "PATH": os.environ["PATH"] + os.pathsep + os.path.dirname(python), "TMPDIR": folder})

        def text():
            err.seek(0)
            return err.read()

        def until(condition, limit_s):
            deadline = time.monotonic() + limit_s
            while not condition() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
        try:
            until(lambda: os.path.exists(there), launch.within(IMPORT_S))
            # An import from a slow disk is a standstill, too: an earlier message may name that.
            until(lambda: not check(text(), how), launch.DEADLINE)
        finally:
            process.terminate()
            try:
                process.wait(launch.DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return text()


def check(text, how):
    state = "burning its processor" if how == "spin" else "asleep"
    late = rf"\n    rank 2 \(pid \d+ on {re.escape(socket.gethostname())}, {state}\): in planted_function \([^)]*ddp_hang\.py:\d+\), called from "
    others = r"\n    ranks 0, 1, 3: in .*; waiting for the store's key '[^']*planted key'" if how == "key" \
        else r"\n    ranks 0, 1, 3: in \w+ \(torch/.*\), called from train \("
    return [f"{how}: no line like {pattern}" for pattern in (late, others) if not re.search(pattern, text)]


def main():
    if len(sys.argv) < 3 or not sys.argv[2]:
        print("skipped: no python with torch was given (meson option torch_python)")
        return 77
    if shutil.which("py-spy", path=os.environ["PATH"] + os.pathsep + os.path.dirname(sys.argv[2])) is None:
        print("skipped: needs py-spy: pip install py-spy")
        return 77
    bad = []
    for how in "sleep", "spin", "key":
        text = stderr_of_hang(*sys.argv[1:3], how)
        found = check(text, how)
        print(f"--- {how}\n{text}")
        bad += found
    print("\n".join(bad))
    return 1 if bad else 0


sys.exit(main())
