#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank is killed at a random moment inside collectives: every other rank says which one died, within a second.

    kill_moments.py CDDPRUN PROBE [MOMENTS [SEED]]      MOMENTS (6): how often, half by hand, half under cddprun

With CDDP_TEST_AGENT=1 all of them under cddprun: without an agent a GPU's library tells of a death late, or never.
"""
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import launch

RANKS = 3
AGENT_ONLY = os.environ.get("CDDP_TEST_AGENT") == "1"
LIMIT_S = float(os.environ.get("CDDP_TEST_LIMIT_S", "1.0"))


class Reader(threading.Thread):
    """Keeps the lines of a stream with the time at which each came."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self.stream, self.lines = stream, []
        self.start()

    def run(self):
        for line in self.stream:
            self.lines.append((time.monotonic(), line))

    def wait_for(self, text, count, deadline):
        while sum(text in line for _, line in self.lines) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"not ok: {text!r} did not come {count} times: {self.lines}")
            time.sleep(0.002)


def by_hand(probe):
    env = {**os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launch.free_port())}
    ranks = [subprocess.Popen([probe, "loop"], env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.PIPE) for r in range(RANKS)]
    out, err = [Reader(r.stdout) for r in ranks], [Reader(r.stderr) for r in ranks]
    deadline = time.monotonic() + 30
    for reader in out:
        reader.wait_for("running", 1, deadline)
    victim = yield
    began = time.monotonic()
    ranks[victim].kill()
    for rank in ranks:
        rank.wait(timeout=30)
    for reader in err:
        reader.join(5)
    yield began, {r: err[r].lines for r in range(RANKS) if r != victim}
    for rank in ranks:
        rank.stdout.close()
        rank.stderr.close()


def under_cddprun(cddprun, probe):
    job = subprocess.Popen([cddprun, "--standalone", f"--nproc_per_node={RANKS}", "--on_failure=wait", "sh", "-c",
                            f"echo pid $RANK $$; exec {shlex.quote(probe)} loop"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, stdin=subprocess.DEVNULL)
    out, err = Reader(job.stdout), Reader(job.stderr)
    out.wait_for("running", RANKS, time.monotonic() + 30)
    victim = yield
    pid = next(int(line.split()[-1]) for _, line in out.lines if f"pid {victim} " in line)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    status = job.wait(timeout=30)
    err.join(5)
    lines = {r: [(when, line) for when, line in err.lines if line.startswith(f"[{r}] ")] for r in range(RANKS) if r != victim}
    if status != 137:
        lines[f"cddprun's exit status {status}, not 137"] = []
    yield began, lines
    job.stdout.close()
    job.stderr.close()


def main():
    cddprun, probe = (str(pathlib.Path(a).resolve()) for a in sys.argv[1:3])
    moments = int(sys.argv[3]) if len(sys.argv) > 3 else 6
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 30)
    chance = random.Random(seed)
    worst = {"by hand": 0.0, "under cddprun": 0.0}
    bad = []
    print(f"seed {seed}", flush=True)
    for moment in range(moments):
        hand = moment % 2 == 0 and not AGENT_ONLY
        how = "by hand" if hand else "under cddprun"
        job = by_hand(probe) if hand else under_cddprun(cddprun, probe)
        victim = chance.randrange(RANKS)
        next(job)
        time.sleep(chance.random() * 0.05)
        began, told = job.send(victim)
        for rank, lines in told.items():
            named = [when for when, line in lines if re.search(rf"\brank {victim}\b.*(died|killed|SIGKILL)", line)]
            if not named:
                bad.append(f"moment {moment}, {how}: rank {victim} was killed, and rank {rank} said {lines}")
                continue
            took = named[0] - began
            worst[how] = max(worst[how], took)
            if took > launch.within(LIMIT_S):
                bad.append(f"moment {moment}, {how}: rank {victim} was killed; rank {rank} said so after {took:.2f} s")
        next(job, None)
    for text in bad:
        print("FAILED", text)
    print(f"{moments} moments, {RANKS} ranks, slowest word of a death:",
          ", ".join(f"{how} {1000 * seconds:.0f} ms" for how, seconds in worst.items()))
    return 1 if bad else 0


sys.exit(main())
