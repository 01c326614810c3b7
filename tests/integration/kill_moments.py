#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank is killed at a random moment: every other rank says which one died, within a second, and nothing is left.

    kill_moments.py CDDPRUN PROBE [MOMENTS [SEED]]      MOMENTS (6): how often, half by hand, half under cddprun
        --args WORDS     what PROBE does, until a call fails, after it has printed "running" (loop)
        --ranks N        how many; several times: one of these numbers each time (3)
        --span S         the moment is in the first S seconds after that (0.05)

With CDDP_TEST_AGENT=1 all of them under cddprun: without an agent a GPU's library tells of a death late, or never.
"""
import argparse
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


def by_hand(_, probe, size):
    env = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launch.free_port())}
    ranks = [subprocess.Popen(probe, env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.PIPE) for r in range(size)]
    out, err = [Reader(r.stdout) for r in ranks], [Reader(r.stderr) for r in ranks]
    deadline = time.monotonic() + launch.within(30)
    for reader in out:
        reader.wait_for("running", 1, deadline)
    victim = yield
    began = time.monotonic()
    ranks[victim].kill()
    for rank in ranks:
        rank.wait(timeout=30)
    for reader in err:
        reader.join(5)
    yield began, {r: err[r].lines for r in range(size) if r != victim}
    for rank in ranks:
        rank.stdout.close()
        rank.stderr.close()


def under_cddprun(cddprun, probe, size):
    env = {k: v for k, v in os.environ.items() if k.startswith("CDDP_")}
    with launch.Job(cddprun, "--standalone", f"--nproc_per_node={size}", "--on_failure=wait", "sh", "-c",
                    f"echo pid $RANK $$; exec {shlex.join(probe)}", env=env) as job:
        out, err = Reader(job.process.stdout), Reader(job.process.stderr)
        out.wait_for("running", size, time.monotonic() + launch.within(30))
        victim = yield
        pid = next(int(line.split()[-1]) for _, line in out.lines if f"pid {victim} " in line)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        status = job.process.wait(timeout=30)
        err.join(5)
        lines = {r: [(when, line) for when, line in err.lines if line.startswith(f"[{r}] ")]
                 for r in range(size) if r != victim}
        if status != 137:
            lines[f"cddprun's exit status {status}, not 137"] = []
        yield began, lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("cddprun", type=pathlib.Path)
    parser.add_argument("probe", type=pathlib.Path)
    parser.add_argument("moments", type=int, nargs="?", default=6)
    parser.add_argument("seed", type=int, nargs="?", default=random.randrange(1 << 30))
    parser.add_argument("--args", default="loop")
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--span", type=float, default=0.05)
    args = parser.parse_args()
    probe = [str(args.probe.resolve()), *args.args.split()]
    chance = random.Random(args.seed)
    worst = {"by hand": 0.0, "under cddprun": 0.0}
    bad = []
    print(f"seed {args.seed}", flush=True)
    for moment in range(args.moments):
        hand = moment % 2 == 0 and not AGENT_ONLY
        how = "by hand" if hand else "under cddprun"
        size = chance.choice(args.ranks or [3])
        job = (by_hand if hand else under_cddprun)(str(args.cddprun.resolve()), probe, size)
        victim = chance.randrange(size)
        next(job)
        time.sleep(chance.random() * args.span)
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
    print(f"{args.moments} moments, {len(bad)} bad, slowest word of a death:",
          ", ".join(f"{how} {1000 * seconds:.0f} ms" for how, seconds in worst.items()))
    return 1 if bad else 0


sys.exit(main())
