#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's gloo, timed as ../measure.h says: gloo_allreduce.py SECONDS BYTES..."""
import json
import sys
import time

import torch
import torch.distributed as dist

SAMPLE_S, MIN_SAMPLES, MAX_SAMPLES = 0.003, 5, 101


def largest(mine):
    most = torch.tensor([mine], dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return most.item()


def sample(buf, fair, n_ops):
    dist.barrier()
    began = time.perf_counter()
    for k in range(n_ops):
        if fair:
            buf.fill_(k & 1)
        dist.all_reduce(buf)
        if fair:
            buf.sum()
    return largest(time.perf_counter() - began) / n_ops


def check(buf, rank, size):
    pattern = torch.arange(buf.numel(), dtype=torch.int64).remainder_(17).add_(1).to(torch.float32)
    buf.copy_(pattern * (rank + 1))
    dist.all_reduce(buf)
    if not torch.equal(buf, pattern * (size * (size + 1) // 2)):
        sys.exit('gloo: the sum is wrong')
    buf.copy_(pattern.remainder(2).add_(1))  # not zeros, as there


def measure(buf, fair, budget):
    times, once = [], 0.0
    for _ in range(3):
        once = sample(buf, fair, 10 if 0 < once < SAMPLE_S / 10 else 1)
    n_ops = int(SAMPLE_S / once) + 1 if once < SAMPLE_S else 1
    while len(times) < MAX_SAMPLES and (len(times) < MIN_SAMPLES or sum(times) * n_ops < budget):
        times.append(sample(buf, fair, n_ops))
    times.sort()
    if dist.get_rank() == 0:
        print(json.dumps({'what': 'gloo', 'variant': 'fair' if fair else 'back to back', 'bytes': buf.numel() * 4,
                          'us': times[len(times) // 2] * 1e6, 'us_min': times[0] * 1e6, 'us_max': times[-1] * 1e6,
                          'samples': len(times), 'operations': n_ops}), flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    for size in sys.argv[2:]:
        buf = torch.zeros(int(size) // 4)
        check(buf, dist.get_rank(), dist.get_world_size())
        for fair in (False, True):
            measure(buf, fair, float(sys.argv[1]))
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
