# SPDX-License-Identifier: Apache-2.0
"""One rank that trains the model of gpt_ddp.py on random tokens, divided among the ranks: one thread, AdamW, each block a unit.

fsdp_gpt.py cddp|fully_shard    by cddp.FSDP, or by PyTorch's fully_shard over gloo

Rank 0 prints a line of JSON: the ms of each step, of the slowest rank, the last loss, and the most memory of a rank.
"""
import argparse
import json
import time

import torch
import torch.distributed as dist
from gpt_ddp import Gpt
from torch.nn import functional as F


def peak_mib():
    with open('/proc/self/status', encoding='ascii') as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith('VmHWM'))


def by_cddp(model, comm, o):
    import cddp
    fsdp = cddp.FSDP(comm, model, units=model.h)
    return cddp.Optim(fsdp, 'adamw', lr=o.lr).step


def by_fully_shard(model, mesh, o):
    from torch.distributed.fsdp import fully_shard
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optim = torch.optim.AdamW(model.parameters(), lr=o.lr)

    def step():
        optim.step()
        optim.zero_grad()

    return step


def main():
    words = argparse.ArgumentParser()
    words.add_argument('side', choices=('cddp', 'fully_shard'))
    for name, value in (('steps', 12), ('batch', 4), ('context', 64), ('width', 256), ('heads', 4), ('layers', 6)):
        words.add_argument('--' + name, type=int, default=value)
    words.add_argument('--lr', type=float, default=5e-4)
    o = words.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt(o)
    if o.side == 'cddp':
        import cddp
        comm = cddp.init()
        rank, step = comm.rank, by_cddp(model, comm, o)

        def over_ranks(values, op):
            return comm.all_reduce(values, op)
    else:
        dist.init_process_group('gloo')
        mesh = dist.init_device_mesh('cpu', (dist.get_world_size(),))
        rank, step = dist.get_rank(), by_fully_shard(model, mesh, o)

        def over_ranks(values, op):
            dist.all_reduce(values, {'max': dist.ReduceOp.MAX, 'sum': dist.ReduceOp.SUM}[op])
            return values

    made = torch.Generator().manual_seed(rank)
    ms = []
    for _ in range(o.steps):
        tokens = torch.randint(256, (o.batch, o.context + 1), generator=made)
        began = time.monotonic()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        step()
        ms.append((time.monotonic() - began) * 1e3)
    ms, loss = over_ranks(torch.tensor(ms), 'max'), over_ranks(loss.detach().clone(), 'sum')
    peak = over_ranks(torch.tensor([peak_mib()]), 'max')
    if rank == 0:
        print(json.dumps({'ms': [round(x, 3) for x in ms.tolist()], 'loss': loss.item(), 'peak_mib': peak.item(),
                          'parameters': sum(p.numel() for p in Gpt(o).parameters())}), flush=True)
    if o.side == 'cddp':
        comm.finalize()
    else:
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
