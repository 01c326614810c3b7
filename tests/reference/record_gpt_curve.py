#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record the losses of PyTorch's DistributedDataParallel over gloo, two ranks, for the model of examples/gpt: the same
weights, order of the data, optimizer, schedule and clipping (torch 2.13.0, float32, CPU).

    record_gpt_curve.py GPT FILE     FILE is tests/data/gpt-curve.json; run it with a Python that has PyTorch
"""
import json
import math
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from record_gpt import forward, shapes

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
sys.path.append(os.path.join(ROOT, 'tests', 'support'))
from ports import free_port

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, STEPS, WARMUP, LR, SEED, RANKS = 2, 2, 32, 32, 8, 200, 20, 0.0005, 1, 2
FLAGS = f'--layers {LAYERS} --heads {HEADS} --width {WIDTH} --context {CONTEXT} --batch {BATCH} --steps {STEPS} ' \
        f'--warmup {WARMUP} --lr {LR} --seed {SEED}'.split()


class Gpt(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.names = []
        for name, shape in shapes(256, CONTEXT, LAYERS, WIDTH, False):
            count = math.prod(shape)
            self.names.append(name)
            self.register_parameter(name.replace('.', '_'), torch.nn.Parameter(weights[:count].view(shape).clone()))
            weights = weights[count:]
        assert len(weights) == 0

    def forward(self, tokens):
        return forward({name: getattr(self, name.replace('.', '_')) for name in self.names}, tokens, LAYERS, HEADS)


def rate(step):
    """optimizer_lr of examples/gpt/optimizer.c; its --min-lr is 0.1."""
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    return LR * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))))


def train(rank, port, weights, out):
    dist.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    with open(os.path.join(ROOT, 'examples', 'gpt', 'data', 'kjv.txt'), 'rb') as f:
        text = f.read()
    n_train = len(text) - len(text) // 10
    sampler = DistributedSampler(range((n_train - 1 - CONTEXT) // CONTEXT), RANKS, rank, seed=SEED, drop_last=True)
    order, share = list(sampler), BATCH // RANKS
    model = DistributedDataParallel(Gpt(torch.frombuffer(bytearray(weights), dtype=torch.float32)))
    parameters = list(model.parameters())
    adamw = torch.optim.AdamW([{'params': [p for p in parameters if p.dim() == 2], 'weight_decay': 0.1},
                               {'params': [p for p in parameters if p.dim() == 1], 'weight_decay': 0}],
                              betas=(0.9, 0.99), eps=1e-8)
    losses = []
    for step in range(STEPS):
        windows = [text[w * CONTEXT:w * CONTEXT + CONTEXT + 1] for w in order[step * share:(step + 1) * share]]
        batch = torch.tensor([list(w) for w in windows])
        for group in adamw.param_groups:
            group['lr'] = rate(step)
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).view(-1, 256), batch[:, 1:].reshape(-1))
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adamw.step()
        mean = loss.detach().double()
        dist.all_reduce(mean)
        losses.append(mean.item() / RANKS)
    if rank == 0:
        with open(out, 'w', encoding='ascii') as f:
            json.dump({'flags': FLAGS, 'losses': losses}, f)
            f.write('\n')
    dist.destroy_process_group()


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        start = os.path.join(folder, 'start')
        subprocess.run([sys.argv[1], *FLAGS, '--steps', '0', '--sample', '0', '--weights-out', start], check=True)
        with open(start, 'rb') as f:
            mp.spawn(train, (free_port(), f.read(), sys.argv[2]), nprocs=RANKS)
