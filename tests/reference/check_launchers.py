#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Wine job gives the same bits whoever starts its ranks.

    check_launchers.py HOW CDDPRUN WINE [PROGRAM]

HOW is by-hand, openmpi, mpich or torchrun; PROGRAM is mpirun, mpiexec, or a python3 with PyTorch. Without it (or with
an empty one) the exit status is 77: skipped.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from check_wine import train
from launch import free_port

CASES = [(2, ["--no-shuffle"]), (4, ["--seed", "7"])]
EPOCHS = ["--epochs", "20"]
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "MPI_", "SLURM_", "CDDP_")


def clean_env(**more):
    return {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)} | more


def by_hand(_, wine, ranks, args):
    """One process per rank, started by nobody but us."""
    port = str(free_port())
    started = [subprocess.Popen([wine, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env=clean_env(RANK=str(r), WORLD_SIZE=str(ranks), MASTER_ADDR="localhost",
                                                         MASTER_PORT=port)) for r in range(ranks)]
    try:
        said = [p.communicate(timeout=60)[0] for p in started]
    finally:
        for p in started:
            p.kill()
    return [p.returncode for p in started], "".join(said)


def run(command, **env):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env=clean_env(**env))
    return [done.returncode], done.stdout + done.stderr


def openmpi(mpirun, wine, ranks, args):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return run([mpirun, *root, "--oversubscribe", "-np", str(ranks), "-x", "MASTER_ADDR=127.0.0.1", "-x",
                f"MASTER_PORT={free_port()}", wine, *args])


def mpich(mpiexec, wine, ranks, args):
    return run([mpiexec, "-np", str(ranks), "-genv", "MASTER_ADDR", "127.0.0.1", "-genv", "MASTER_PORT", str(free_port()),
                wine, *args])


def torchrun(python, wine, ranks, args):
    return run([python, "-m", "torch.distributed.run", "--standalone", "--no-python", f"--nproc_per_node={ranks}", wine,
                *args])


def main():
    how, cddprun, wine = sys.argv[1], *(os.path.abspath(path) for path in sys.argv[2:4])
    program = sys.argv[4] if len(sys.argv) > 4 else ""
    start = {"by-hand": by_hand, "openmpi": openmpi, "mpich": mpich, "torchrun": torchrun}[how]
    if start is not by_hand and not program:
        print(f"skipped: there is no program to start the ranks by {how}")
        return 77
    bad = 0
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        metrics, weights = folder / "their.jsonl", folder / "their.txt"
        for ranks, flags in CASES if how != "torchrun" else CASES[:1]:
            for dtype in ("f64", "f32"):
                wanted = [*flags, *EPOCHS, "--dtype", dtype]
                _, _, ours = train(cddprun, wine, ranks, wanted, folder, epochs=20)
                for path in (metrics, weights):
                    path.unlink(missing_ok=True)
                status, said = start(program, wine, ranks, [*wanted, "--metrics", str(metrics), "--weights-out", str(weights)])
                if any(status):
                    sys.exit(f"{how}, {ranks} ranks: exit statuses {status}\n{said}")
                same = ours == (metrics.read_bytes(), weights.read_bytes())
                print(f"{'ok    ' if same else 'FAILED'} {how}, {ranks} ranks, {dtype}: {'' if same else 'not '}the bits of "
                      "a run by cddprun", flush=True)
                bad += not same
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
