#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The losses of examples/gpt on two ranks beside those of PyTorch's DDP (gloo), which trains the same model live: the same
weights at the start, order of the data, optimizer, schedule and clipping.

    gpt_curve.py CDDPRUN PYTHON [--full]     PYTHON has torch; exits 77 (skipped) if it is empty
                                             --full: the model and the 200 steps of tests/data/gpt-curve.json, and the
                                             default model; a minute or two
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from check_ddp import ABORTED, TEARDOWN

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 1e-3
SMALL = [  # name, flags of both programs, of gpt alone
    ("one epoch and a half, divided optimizer", "--layers 1 --heads 2 --width 16 --context 1024 --batch 8 --steps 60 --warmup 10 --lr 0.001",
     "--divided"),
    ("buckets of 8 KiB, by parts", "--layers 2 --heads 2 --width 32 --context 32 --batch 8 --steps 60 --warmup 20 --lr 0.0005",
     "--bucket-kib 8 --micro 1"),
    ("every second step apart", "--layers 2 --heads 2 --width 32 --context 32 --batch 8 --steps 60 --warmup 20 --lr 0.0005 --apart-every 2", ""),
]
FULL = [
    ("200 steps", "--layers 2 --heads 2 --width 32 --context 32 --batch 8 --steps 200 --warmup 20 --lr 0.0005", ""),
    ("the default model", "--steps 300 --warmup 20 --lr 0.0005", ""),
]


def losses(log):
    lines = [json.loads(line) for line in log.read_text(encoding="ascii").splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def launch(command, tries):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode in ABORTED and TEARDOWN in done.stderr and tries > 1:
        print(f"once more: PyTorch's teardown aborted ({TEARDOWN})")
        return launch(command, tries - 1)
    if done.returncode != 0:
        sys.exit(f"exit status {done.returncode}: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done


def furthest_apart(cddprun, python, flags, ours_only):
    gpt = os.path.join(os.path.dirname(cddprun), "..", "examples", "gpt", "gpt")
    two = [cddprun, "--standalone", "--nproc_per_node=2"]
    with tempfile.TemporaryDirectory(prefix="cddp-test-") as name:
        f = pathlib.Path(name)
        launch([gpt, *flags, "--steps", "0", "--sample", "0", "--weights-out", str(f / "start")], 1)
        launch([*two, gpt, *flags, *ours_only, "--sample", "0", "--log-every", "1", "--eval-every", "0", "--log", str(f / "ours")], 1)
        launch([*two, python, "-u", str(ROOT / "bench" / "peers" / "gpt_ddp.py"), *flags, "--weights", str(f / "start"), "--log",
                str(f / "theirs")], 5)
        ours, theirs = losses(f / "ours"), losses(f / "theirs")
    steps = int(flags[flags.index("--steps") + 1])
    assert len(ours) == len(theirs) == steps, (len(ours), len(theirs))
    assert ours[-1] < ours[0] - 0.2, (ours[0], ours[-1])
    return max(abs(a - b) for a, b in zip(ours, theirs))


def main():
    if len(sys.argv) < 3 or not sys.argv[2]:
        print("skipped: no python with torch was given (meson option torch_python)")
        return 77
    bad = 0
    for what, flags, ours_only in FULL if "--full" in sys.argv else SMALL:
        apart = furthest_apart(sys.argv[1], sys.argv[2], flags.split(), ours_only.split())
        print(f"{'ok' if apart <= LIMIT else 'FAILED'}: {what}: the losses are at most {apart:.1e} apart", flush=True)
        bad += apart > LIMIT
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
