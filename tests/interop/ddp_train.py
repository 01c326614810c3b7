# SPDX-License-Identifier: Apache-2.0
"""An ordinary PyTorch DDP program (gloo), as a user would have it: it knows torchrun's variables and nothing of cddprun.

    ddp_train.py [STEPS]            train, print "rank R done loss L restart K"
    CRASH_ONCE=1                    rank 1 dies in the middle of the first life of the job
    RAISE=1                         rank 1 raises an exception, which @record notes
"""
import os
import sys
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        x = torch.randn(32, 8, generator=generator)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if os.environ.get("CRASH_ONCE") and restart == 0 and rank == 1 and step == steps // 2:
            os._exit(7)
        if os.environ.get("RAISE") and rank == 1 and step == steps // 2:
            raise ValueError("a bad batch")

    total = torch.tensor([loss.item()])
    dist.all_reduce(total)
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    everyone = [torch.zeros_like(weights) for _ in range(world)]
    dist.all_gather(everyone, weights)
    assert all(torch.equal(weights, other) for other in everyone), "ranks hold different weights"
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank} done loss {total.item() / world:.6f} restart {restart} port {os.environ['MASTER_PORT']}", flush=True)


try:
    main()
except Exception:
    # An interpreter that ends while gloo's threads run may crash ("terminate called without an active exception").
    traceback.print_exc()
    os._exit(1)
