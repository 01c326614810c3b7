# SPDX-License-Identifier: Apache-2.0
"""A PyTorch DDP program (gloo) in which one rank stops in a planted function: HOW is sleep, spin, or key. It creates a file there.

    ddp_hang.py HOW FILE

key: rank 2 sets no key that the others wait for.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def planted_function():
    how = sys.argv[1]
    open(sys.argv[2], 'w', encoding='ascii').close()
    x = 0
    while True:
        if how == 'spin':
            x = x + 1
        else:
            time.sleep(1000)


def train(model, rank):
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        if rank == 2 and step == 7:
            planted_function()
        opt.zero_grad()
        model(torch.randn(8, 32)).sum().backward()
        opt.step()


def main():
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    rank = dist.get_rank()
    if sys.argv[1] == 'key':
        store = dist.distributed_c10d._get_default_store()
        if rank == 2:
            planted_function()
        store.wait(['planted key'])
    train(DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 1))), rank)


if __name__ == '__main__':
    main()
