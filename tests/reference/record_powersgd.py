#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record what PyTorch's powerSGD_hook makes of gradients of two ranks (torch 2.13.0, gloo), and what torch.randn draws.

    record_powersgd.py FILE     run by a Python that has torch; FILE is tests/data/powersgd_vectors.json. Numbers are hexadecimal.

The gradients are those of tests/unit/worker/reducer/test_powersgd.c: six parameters, in buckets of three, the last ones first.
"""
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

SHAPES = [(6, 5), (9,), (4, 3, 2), (8, 7), (5, 6), (8, 7)]
BUCKETS = [[5, 4, 3], [2, 1, 0]]
START, STEPS, RANKS = 2, 6, 2  # the steps before START are not recorded
CASES = [  # name, type, options
    ("rank 1", "f64", {"min_compression_rate": 0.5}),
    ("rank 2", "f64", {"matrix_approximation_rank": 2, "min_compression_rate": 0.5}),
    ("rank 3", "f64", {"matrix_approximation_rank": 3, "min_compression_rate": 0.5}),
    ("large ones only", "f64", {"matrix_approximation_rank": 1, "min_compression_rate": 3, "random_seed": 11}),
    ("no warm start", "f64", {"matrix_approximation_rank": 2, "min_compression_rate": 0.5, "warm_start": False}),
    ("no error feedback", "f64", {"matrix_approximation_rank": 2, "min_compression_rate": 0.5, "use_error_feedback": False}),
    ("neither", "f64", {"min_compression_rate": 0.5, "use_error_feedback": False, "warm_start": False}),
    ("epsilon", "f64", {"matrix_approximation_rank": 2, "min_compression_rate": 0.5, "orthogonalization_epsilon": 1e-3}),
    ("float32", "f32", {"matrix_approximation_rank": 2, "min_compression_rate": 0.5, "random_seed": 3}),
]


class Bucket:
    """What powerSGD_hook asks of a GradBucket."""

    def __init__(self, at, grads):
        self.at, self.flat = at, torch.cat([g.flatten() for g in grads])
        self.shapes = [g.shape for g in grads]

    def index(self):
        return self.at

    def is_last(self):
        return self.at == len(BUCKETS) - 1

    def buffer(self):
        return self.flat

    def gradients(self):
        parts = torch.split(self.flat, [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes)]


def gradient(rank, step, i, dtype):
    n = torch.Size(SHAPES[i]).numel()
    values = [((rank * 7919 + step * 104729 + i * 1299709 + k * k * 31 + k * 15485863) % 1009) / 1009 - 0.5 for k in range(n)]
    return torch.tensor(values, dtype=torch.float64).to(dtype).view(SHAPES[i])


def run(rank, folder, path):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    record = {"cases": [], "randn": []}
    for name, kind, options in CASES:
        dtype = torch.float64 if kind == "f64" else torch.float32
        state = power.PowerSGDState(None, start_powerSGD_iter=START, **options)
        steps = []
        for step in range(STEPS):
            means = [None] * len(SHAPES)
            for at, params in enumerate(BUCKETS):
                bucket = Bucket(at, [gradient(rank, step, i, dtype) for i in params])
                bucket.flat = power.powerSGD_hook(state, bucket).wait()
                for i, mean in zip(params, bucket.gradients()):
                    means[i] = [float(v).hex() for v in mean.flatten().tolist()]
            if step >= START:
                steps.append(means)
        record["cases"].append({"name": name, "type": kind, "options": options, "steps": steps})
    for seed, n in ((0, 3), (5, 15), (7, 16), (12345, 50), (987654321, 64)):
        for kind, dtype in (("f64", torch.float64), ("f32", torch.float32)):
            torch.manual_seed(seed)
            drawn = [torch.randn(n, dtype=dtype), torch.randn(5, dtype=dtype)]
            record["randn"].append({"seed": seed, "type": kind, "drawn": [[float(v).hex() for v in d.tolist()] for d in drawn]})
    if rank == 0:
        with open(path, "w", encoding="ascii") as out:
            json.dump(record, out, indent=0)
            out.write("\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        torch.multiprocessing.spawn(run, (tmp, os.path.abspath(sys.argv[1])), nprocs=RANKS)
