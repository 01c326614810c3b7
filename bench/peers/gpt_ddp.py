# SPDX-License-Identifier: Apache-2.0
"""The training of examples/gpt as a PyTorch program: DistributedDataParallel over gloo, one thread per rank.

gpt_ddp.py --weights FILE --log FILE [the flags of gpt]   FILE is what gpt --weights-out writes; the same model, order of
the data, optimizer, schedule and clipping. The log has a line of JSON for each step: its loss and its time, of the
slowest rank.
"""
import argparse
import json
import math
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'examples', 'gpt', 'data', 'kjv.txt')


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln_2, self.fc, self.out = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        seqs, length, width = x.shape
        q, k, v = (part.view(seqs, length, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(self.ln_1(x)).split(width, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(seqs, length, width)
        x = x + self.proj(mixed)
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate='tanh'))


class Gpt(nn.Module):
    """The parameters in the order of examples/gpt/model.c; the output layer is the embedding."""

    def __init__(self, o):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, o.width), nn.Embedding(o.context, o.width)
        self.h = nn.ModuleList(Block(o.width, o.heads) for _ in range(o.layers))
        self.ln_f = nn.LayerNorm(o.width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)

    def load(self, path):
        with open(path, 'rb') as f:
            numbers = torch.frombuffer(bytearray(f.read()), dtype=torch.float32)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(numbers[:p.numel()].view(p.shape))
                numbers = numbers[p.numel():]
        assert len(numbers) == 0, 'the weights are those of another model'


def rate(o, step):
    """optimizer_lr of examples/gpt/optimizer.c; its --min-lr is 0.1."""
    if step < o.warmup:
        return o.lr * (step + 1) / (o.warmup + 1)
    rest = o.steps - o.warmup
    return o.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min((step - o.warmup) / rest, 1))))


def batches(o, rank, world):
    """The windows of each step, as examples/gpt/data.c takes them."""
    with open(TEXT, 'rb') as f:
        text = f.read()
    n = (len(text) - len(text) // 10 - 1 - o.context) // o.context
    sampler = DistributedSampler(range(n), world, rank, seed=o.seed, drop_last=True)
    share, steps = o.batch // world, n // o.batch
    for step in range(o.steps):
        if step % steps == 0:
            sampler.set_epoch(step // steps)
            order, shift = list(sampler), step // steps * 61 % o.context
        at = [shift + w * o.context for w in order[step % steps * share:(step % steps + 1) * share]]
        batch = torch.tensor([list(text[a:a + o.context + 1]) for a in at])
        yield batch[:, :-1].contiguous(), batch[:, 1:].reshape(-1)


def train(o, rank, world, log):
    model = Gpt(o)
    model.load(o.weights)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=o.bucket_mib)
    parameters = list(ddp.parameters())
    adamw = torch.optim.AdamW([{'params': [p for p in parameters if p.dim() == 2], 'weight_decay': 0.1},
                               {'params': [p for p in parameters if p.dim() == 1], 'weight_decay': 0}],
                              betas=(0.9, 0.99), eps=1e-8, fused=True)
    for step, (tokens, targets) in enumerate(batches(o, rank, world), 1):
        apart = o.apart_every > 0 and step % o.apart_every == 0
        for group in adamw.param_groups:
            group['lr'] = rate(o, step - 1)
        dist.barrier()
        began = time.monotonic()
        with ddp.no_sync() if apart else nullcontext():
            loss = F.cross_entropy(ddp(tokens).view(-1, 256), targets)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=False)  # the gradients stay where the buckets are
        took = torch.tensor([time.monotonic() - began], dtype=torch.float64)
        mean = loss.detach().double().view(1) / world
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        dist.all_reduce(mean)
        if rank == 0:
            log.write(json.dumps({'step': step, 'loss': mean.item(), 'ms': took.item() * 1e3}) + '\n')


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, default in [('weights', str, None), ('log', str, None), ('layers', int, 4), ('heads', int, 4), ('width', int, 128),
                                ('context', int, 128), ('batch', int, 8), ('steps', int, 2000), ('warmup', int, 50), ('lr', float, 2e-3),
                                ('seed', int, 1), ('apart-every', int, 0), ('bucket-mib', float, 25)]:
        words.add_argument('--' + name, type=kind, default=default, required=default is None)
    o = words.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    with open(o.log if dist.get_rank() == 0 else os.devnull, 'w', encoding='ascii') as log:
        train(o, dist.get_rank(), dist.get_world_size(), log)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
