#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel training the model of examples/gpt on one GPU: tokens/s, eager and compiled. One JSON line.

    torch_gpt.py [--device cuda|cpu] [--config VOCAB,CONTEXT,LAYERS,HEADS,WIDTH] [--batch N] [--micro N] [--steps N] [--seconds N]

The model is that of tests/reference/record_gpt.py, with GPT-2's names: weights in float32, products in bf16 (autocast),
fused AdamW, gradients clipped at norm 1. A world of one, over NCCL on a GPU and gloo elsewhere. Tokens are random: time
does not depend on them. Exit status 77: no GPU. A way that fails is reported with its error, and the other one runs.
"""
import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

NO_GPU = 77
WARM = 5


class Block(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        seqs, time_, width = x.shape
        q, k, v = (part.view(seqs, time_, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(self.ln1(x)).split(width, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(seqs, time_, width))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate='tanh'))


class Model(nn.Module):
    def __init__(self, vocab, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(heads, width) for _ in range(layers))
        self.lnf, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.lnf(x)).flatten(0, 1).float(), targets.flatten())


def train(args, compiled):
    torch.manual_seed(1)
    vocab, context, *_ = args.config
    model = DistributedDataParallel(Model(*args.config).to(args.device), gradient_as_bucket_view=True)
    run = torch.compile(model) if compiled else model
    gpu = args.device == 'cuda'
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=gpu)
    text = torch.randint(vocab, (args.micro, context + 1), device=args.device)
    parts, took, losses = args.batch // args.micro, [], []
    began = time.monotonic()
    for step in range(WARM + args.steps):
        if gpu:
            torch.cuda.synchronize()
        from_ = time.perf_counter()
        for part in range(parts):
            with contextlib.ExitStack() as stack:
                if part + 1 < parts:
                    stack.enter_context(model.no_sync())
                with torch.autocast(args.device, torch.bfloat16):
                    loss = run(text[:, :-1], text[:, 1:])
                (loss / parts).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step >= WARM:
            took.append(time.perf_counter() - from_)
        if step > WARM and time.monotonic() - began > args.seconds:
            break
    if not losses[-1] < losses[0]:
        raise ArithmeticError(f'the loss does not fall: {losses[0]} to {losses[-1]}')
    return {'tokens_per_s': args.batch * context / statistics.median(took), 'steps': len(took), 'loss': [losses[0], losses[-1]]}


def too_long(_signal, _frame):
    raise TimeoutError('it took longer than twice --seconds, compiling included')


def main():
    signal.signal(signal.SIGALRM, too_long)
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument('--device', choices=['cuda', 'cpu'], default='cuda')
    words.add_argument('--config', type=lambda text: [int(word) for word in text.split(',')], default=[256, 1024, 12, 12, 768])
    words.add_argument('--batch', type=int, default=32)
    words.add_argument('--micro', type=int, default=32)
    words.add_argument('--steps', type=int, default=20)
    words.add_argument('--seconds', type=float, default=40, help='of each way, compiling not included')
    args = words.parse_args()
    if args.device == 'cuda' and not torch.cuda.is_available():
        print('there is no GPU', file=sys.stderr)
        return NO_GPU
    result = {'torch': torch.__version__, 'config': args.config, 'batch': args.batch, 'micro': args.micro, 'dtype': 'bf16'}
    with tempfile.TemporaryDirectory() as tmp:
        torch.distributed.init_process_group('nccl' if args.device == 'cuda' else 'gloo', rank=0, world_size=1,
                                             init_method='file://' + os.path.join(tmp, 'store'))
        for name, compiled in (('eager', False), ('compiled', True)):
            signal.alarm(int(2 * args.seconds) + 1)
            try:
                result[name] = train(args, compiled)
            except Exception as why:  # a compiler that is missing, or slow, must not hide the other way
                result[name] = {'error': f'{type(why).__name__}: {str(why)[:300]}'}
            signal.alarm(0)
        torch.distributed.destroy_process_group()
    print(json.dumps(result), flush=True)
    return 1 if 'error' in result['eager'] else 0


if __name__ == '__main__':
    sys.exit(main())
