#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's DistributedDataParallel takes of one GPU: the same buckets and the same backward pass as bench/gpu_step,
in a world of one. One JSON line.

    torch_ddp.py [--quick] [--device cuda|cpu]

A step is a backward pass that passes over every gradient `work` times; its time is that between two events, the host's
that of the call of backward(). Both are taken with and without DDP, in turn: the difference is what DDP costs. Exit status
77: no GPU. The CPU, over gloo, is for trying the script.
"""
import argparse
import json
import statistics
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel

NO_GPU = 77
WARM = 10


class Pass(torch.autograd.Function):
    """Makes one parameter's gradient, as a kernel of a backward pass would: `work` passes over it."""

    @staticmethod
    def forward(ctx, x, parameter, work):
        ctx.work = work
        ctx.like = parameter
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        made = torch.empty_like(ctx.like)
        for _ in range(ctx.work):
            made.mul_(1.0)
        return grad, made, None


class Model(torch.nn.Module):
    def __init__(self, count, elements, work, device):
        super().__init__()
        self.work = work
        self.parts = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(elements, device=device)) for _ in range(count))

    def forward(self, x):
        for parameter in self.parts:
            x = Pass.apply(x, parameter, self.work)
        return x.sum()


class Timer:
    """Of one step, in milliseconds: by events on a GPU, else by the clock."""

    def __init__(self, device):
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device == 'cuda' else None

    def __enter__(self):
        if self.events:
            self.events[0].record()
        self.began = time.perf_counter()
        return self

    def __exit__(self, *_):
        if self.events:
            self.events[1].record()
            self.events[1].synchronize()
            self.ms = self.events[0].elapsed_time(self.events[1])
        else:
            self.ms = (time.perf_counter() - self.began) * 1e3


def step(model, x, device):
    """(milliseconds, microseconds of the host) of one backward pass."""
    model.zero_grad()
    loss = model(x)
    if device == 'cuda':
        torch.cuda.synchronize()
    with Timer(device) as timer:
        before = time.perf_counter()
        loss.backward()
        host_us = (time.perf_counter() - before) * 1e6
    return timer.ms, host_us


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return [round(low, 4), round(middle, 4), round(high, 4)]


def measure(args):
    kib, bucket_kib, pairs, work = (1024, 256, 8, 1) if args.quick else (1024000, 25600, 50, 8)
    device = args.device
    count, elements = kib // bucket_kib * 4, bucket_kib * 1024 // 4 // 4
    x = torch.zeros(1, device=device, requires_grad=True)
    plain = Model(count, elements, work, device)
    reduced = DistributedDataParallel(Model(count, elements, work, device), bucket_cap_mb=bucket_kib / 1024,
                                      gradient_as_bucket_view=True)
    times = {'plain': [], 'ddp': []}
    if device == 'cuda':
        torch.cuda.reset_peak_memory_stats()
    for i in range(-WARM, pairs):
        for name, model in (('plain', plain), ('ddp', reduced)):
            one = step(model, x, device)
            if i >= 0:
                times[name].append(one)
    host = {name: quartiles([us for _, us in values]) for name, values in times.items()}
    return {
        'torch': torch.__version__, 'nccl': list(torch.cuda.nccl.version()) if device == 'cuda' else None,
        'device': torch.cuda.get_device_name() if device == 'cuda' else 'cpu', 'params': count, 'work': work,
        'bucket_bytes': bucket_kib * 1024, 'pairs': pairs,
        'plain_ms': quartiles([ms for ms, _ in times['plain']]), 'ddp_ms': quartiles([ms for ms, _ in times['ddp']]),
        'plain_host_us': host['plain'], 'ddp_host_us': host['ddp'], 'host_us_more': host['ddp'][1] - host['plain'][1],
        'gradient_mib': kib / 1024,
        'peak_mib': torch.cuda.max_memory_allocated() / 2**20 if device == 'cuda' else 0,
    }


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument('--quick', action='store_true')
    words.add_argument('--device', default='cuda', choices=['cuda', 'cpu'])
    args = words.parse_args()
    if args.device == 'cuda' and not torch.cuda.is_available():
        print('torch_ddp: PyTorch finds no GPU', file=sys.stderr)
        sys.exit(NO_GPU)
    store = torch.distributed.TCPStore('127.0.0.1', 0, 1, True)
    torch.distributed.init_process_group('nccl' if args.device == 'cuda' else 'gloo', store=store, rank=0, world_size=1)
    print(json.dumps(measure(args)), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main()
