#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An unmodified PyTorch DDP program under cddprun: it trains; and one that crashes once trains again, on the same port.

    check_ddp.py CDDPRUN PYTHON     PYTHON has torch; exits 77 (skipped) if it is empty
"""
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
DONE = re.compile(r"rank (\d+) done loss (\S+) restart (\d+) port (\d+)")


# PyTorch's own: a rank that has done all its work and left its process group aborts now and then while Python ends. Seen
# under torchrun as well (exitcode -6), on a busy node. Sometimes its abort faults (139), too.
TEARDOWN = "terminate called without an active exception"
ABORTED = 134, 139


def run(cddprun, python, flags, env=None, tries=5):
    command = [cddprun, "--standalone", "--nproc_per_node=2", *flags, python, "-u", str(HERE / "ddp_train.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})})
    ranks = {int(m[1]): m for m in DONE.finditer(done.stdout)}
    if done.returncode in ABORTED and TEARDOWN in done.stderr and len(ranks) == 2 and tries > 1:
        print(f"once more: both ranks were done, then PyTorch's teardown aborted ({TEARDOWN})")
        return run(cddprun, python, flags, env, tries - 1)
    return done, ranks


def main():
    if len(sys.argv) < 3 or not sys.argv[2]:
        print("skipped: no python with torch was given (meson option torch_python)")
        return 77
    cddprun, python = sys.argv[1:3]
    bad = []

    done, ranks = run(cddprun, python, [])
    if done.returncode != 0 or sorted(ranks) != [0, 1]:
        bad.append(f"plain run: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    plain = ranks.get(0)

    done, ranks = run(cddprun, python, ["--max_restarts=1", "--master_port=0"], {"CRASH_ONCE": "1"})
    if done.returncode != 0 or sorted(ranks) != [0, 1]:
        bad.append(f"crash and restart: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    elif any(m[3] != "1" for m in ranks.values()):
        bad.append(f"crash and restart: the second life did not say so\n{done.stdout}")
    elif plain and ranks[0][2] != plain[2]:
        bad.append(f"crash and restart: loss {ranks[0][2]}, but {plain[2]} without a crash")

    done, _ = run(cddprun, python, [], {"CRASH_ONCE": "1"})
    if done.returncode != 7 or "rank 1" not in done.stderr:
        bad.append(f"crash without restarts: exit status {done.returncode}, not 7\n{done.stderr}")

    done, _ = run(cddprun, python, [], {"RAISE": "1"})
    report = done.stderr[done.stderr.rfind("cddprun: rank"):]
    end = "exited with status 1"
    if done.returncode in ABORTED and TEARDOWN in report:
        print(f"rank 1 was done with its exception, then PyTorch's teardown aborted ({TEARDOWN})")
        end = "was killed by signal"
    elif done.returncode != 1:
        bad.append(f"an exception that @record noted: exit status {done.returncode}, not 1\n{done.stderr}")
    if not re.match(rf"cddprun: rank 1 .*{end}", report) or "| ValueError: a bad batch" not in report:
        bad.append(f"an exception that @record noted: no word of it\n{done.stderr}")

    for text in bad:
        print("FAILED", text)
    if not bad:
        print(f"PyTorch DDP under cddprun: trained, loss {plain[2]}; crashed once and trained again to the same loss")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
