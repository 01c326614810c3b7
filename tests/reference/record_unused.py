#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record gradients of DistributedDataParallel with skip_all_reduce_unused_params, after each step (torch 2.13.0, gloo, 2 ranks).

    record_unused.py FILE     run by a Python that has torch; FILE is tests/data/unused_vectors.json

A gradient that comes is new in each step; one that does not is left as it was. Numbers are hexadecimal.
"""
import json
import sys
import tempfile

import torch
import torch.distributed as dist

RANKS, SIZES = 2, [3, 5, 2, 7, 4, 1]
USED = [[0, 1, 2, 3, 4, 5], [0, 1, 5], [0, 1, 5], [2, 3, 5], [0, 1, 2, 3, 4, 5], [4]]  # by step, on both ranks
CAPS = {"one each": 1, "two each": 64}  # bytes at which a bucket closes


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(n, dtype=torch.float64)) for n in SIZES])

    def forward(self, x):
        return sum((self.w[i] * x[i]).sum() for i in x)


def given(rank, step, i):
    return [((rank * 31 + step * 17 + i * 5 + k) % 23) / 7 for k in range(SIZES[i])]


def train(rank, path, out):
    dist.init_process_group("gloo", init_method=f"file://{path}/meet", rank=rank, world_size=RANKS)
    cases = []
    for name, cap in CAPS.items():
        model = Model()
        ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=cap / (1 << 20), find_unused_parameters=True,
                                                        skip_all_reduce_unused_params=True)
        steps = []
        for step, used in enumerate(USED):
            for i in used:
                model.w[i].grad = None
            ddp({i: torch.tensor(given(rank, step, i), dtype=torch.float64) for i in used}).backward()
            steps.append({"used": used, "grads": [None if p.grad is None else [v.hex() for v in p.grad.tolist()]
                                                  for p in model.w]})
        cases.append({"name": name, "cap": cap, "steps": steps})
    if rank == 0:
        with open(out, "w", encoding="ascii") as file:
            json.dump({"sizes": SIZES, "cases": cases}, file, indent=0)
            file.write("\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as meet:
        torch.multiprocessing.spawn(train, (meet, sys.argv[1]), nprocs=RANKS)
