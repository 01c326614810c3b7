#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a program writes the same lines with the CPU backend and with the one that the environment names.

    same_lines.py CDDPRUN RANKS PROGRAM     PROGRAM takes the file to write
"""
import os
import pathlib
import subprocess
import sys
import tempfile


def lines_of(cddprun, ranks, program, backend, folder):
    path = pathlib.Path(folder) / backend
    command = [cddprun, "--standalone", f"--nproc_per_node={ranks}", program, str(path)]
    done = subprocess.run(command, env={**os.environ, "CDDP_BACKEND": backend}, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{backend}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return path.read_text().splitlines()


def main():
    cddprun, ranks, program = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        cpu = lines_of(cddprun, ranks, program, "cpu", folder)
        gpu = lines_of(cddprun, ranks, program, "nccl", folder)
    other = [(a, b) for a, b in zip(cpu, gpu) if a != b]
    for a, b in other[:20]:
        print(f"cpu: {a}\ngpu: {b}")
    print(f"{len(cpu)} lines of the CPU, {len(gpu)} of the GPU, {len(other)} differ")
    return 0 if cpu and len(cpu) == len(gpu) and not other else 1


if __name__ == "__main__":
    sys.exit(main())
