# SPDX-License-Identifier: Apache-2.0
"""One rank that trains the model of gpt_ddp.py on random tokens, divided among the ranks: one thread, AdamW, each block a unit.

fsdp_gpt.py cddp|fully_shard|deepspeed    by cddp.FSDP, by PyTorch's fully_shard, or by DeepSpeed's stage 3; both of these over gloo

No rank ever has the whole model, if its library allows that. Rank 0 prints a line of JSON: the ms of each step, of the
slowest rank, the last loss, and the most memory of a rank. --pids DIR: each rank writes its process id there.
"""
import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from gpt_ddp import Gpt
from torch.nn import functional as F


def peak_mib():
    with open('/proc/self/status', encoding='ascii') as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith('VmHWM'))


def value(number, shape):
    """The first value of a parameter, the same for all sides."""
    made = torch.Generator().manual_seed(number)
    return torch.randn(shape, generator=made) * 0.02 if len(shape) > 1 else torch.full(shape, 0.5)


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Cddp:
    def __init__(self, o):
        import cddp
        self.comm = cddp.init()
        self.rank = self.comm.rank
        with torch.device('meta'):
            model = Gpt(o)
        model.to_empty(device='cpu')
        number = {name: n for n, (name, _) in enumerate(model.named_parameters())}

        def fill(unit, params):
            for name, p in params.items():
                p.copy_(value(number[name], p.shape))

        self.model, self.fsdp = model, cddp.FSDP(self.comm, model, units=model.h, fill=fill)
        self.optim = cddp.Optim(self.fsdp, 'adamw', lr=o.lr, weight_decay=0.01)

    def step(self, tokens):
        loss = loss_of(self.model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        self.optim.step()
        return loss

    def over_ranks(self, values, op):
        return self.comm.all_reduce(values, op)

    def end(self):
        self.comm.finalize()


class FullyShard:
    """Made without memory, divided, and then filled: as PyTorch's documentation of fully_shard has it."""

    def __init__(self, o):
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group('gloo')
        self.rank = dist.get_rank()
        mesh = dist.init_device_mesh('cpu', (dist.get_world_size(),))
        with torch.device('meta'):
            self.model = Gpt(o)
        for part in (*self.model.h, self.model):
            fully_shard(part, mesh=mesh)
        self.model.to_empty(device='cpu')
        for n, p in enumerate(self.model.parameters()):
            part = p.to_local()
            parts = value(n, p.shape).chunk(dist.get_world_size())
            part.data.copy_(parts[self.rank] if self.rank < len(parts) else part)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=o.lr, fused=True)

    def step(self, tokens):
        loss = loss_of(self.model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        self.optim.step()
        self.optim.zero_grad()
        return loss

    def over_ranks(self, values, op):
        dist.all_reduce(values, {'max': dist.ReduceOp.MAX, 'sum': dist.ReduceOp.SUM}[op])
        return values

    def end(self):
        dist.destroy_process_group()


class DeepSpeed(FullyShard):
    """--tight: whole parameters of two blocks at most, where DeepSpeed's defaults keep as many as a small model has."""

    def __init__(self, o):
        os.environ.update({'DS_ACCELERATOR': 'cpu', 'TORCH_EXTENSIONS_DIR': f'{sys.prefix}/extensions', 'LOCAL_SIZE': os.environ['LOCAL_WORLD_SIZE'],
                           'PATH': f'{sys.prefix}/bin:{os.environ["PATH"]}'})  # where peers.py has built its parts
        import deepspeed
        deepspeed.init_distributed('gloo')
        self.rank = dist.get_rank()
        block = 12 * o.width * o.width + 13 * o.width
        tight = {'stage3_max_live_parameters': 2 * block, 'stage3_max_reuse_distance': block, 'stage3_prefetch_bucket_size': block,
                 'reduce_bucket_size': block} if o.tight else {}
        config = {'train_micro_batch_size_per_gpu': o.batch, 'optimizer': {'type': 'AdamW', 'params': {'lr': o.lr, 'weight_decay': 0.01}},
                  'zero_optimization': {'stage': 3, **tight}}
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = Gpt(o)
        for n, p in enumerate(model.parameters()):
            with deepspeed.zero.GatheredParameters([p], modifier_rank=0):
                if self.rank == 0:
                    p.data.copy_(value(n, p.shape))
        self.model, *_ = deepspeed.initialize(model=model, config=config)

    def step(self, tokens):
        loss = loss_of(self.model(tokens[:, :-1]), tokens[:, 1:])
        self.model.backward(loss)
        self.model.step()
        return loss


def main():
    words = argparse.ArgumentParser()
    words.add_argument('side', choices=('cddp', 'fully_shard', 'deepspeed'))
    for name, default in (('steps', 12), ('batch', 4), ('context', 64), ('width', 256), ('heads', 4), ('layers', 6)):
        words.add_argument('--' + name, type=int, default=default)
    words.add_argument('--lr', type=float, default=5e-4)
    words.add_argument('--tight', action='store_true')
    words.add_argument('--pids')
    o = words.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    side = {'cddp': Cddp, 'fully_shard': FullyShard, 'deepspeed': DeepSpeed}[o.side](o)
    if o.pids:
        with open(os.path.join(o.pids, str(side.rank)), 'w', encoding='ascii') as file:
            file.write(str(os.getpid()))
    made = torch.Generator().manual_seed(side.rank)
    ms = []
    for _ in range(o.steps):
        tokens = torch.randint(256, (o.batch, o.context + 1), generator=made)
        began = time.monotonic()
        loss = side.step(tokens)
        ms.append((time.monotonic() - began) * 1e3)
    ms, loss = side.over_ranks(torch.tensor(ms), 'max'), side.over_ranks(loss.detach().clone(), 'sum')
    peak = side.over_ranks(torch.tensor([peak_mib()]), 'max')
    if side.rank == 0:
        with torch.device('meta'):
            parameters = sum(p.numel() for p in Gpt(o).parameters())
        print(json.dumps({'ms': [round(x, 3) for x in ms.tolist()], 'loss': loss.item(), 'peak_mib': peak.item(), 'parameters': parameters}), flush=True)
    side.end()


if __name__ == '__main__':
    main()
