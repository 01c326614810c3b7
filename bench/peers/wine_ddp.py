# SPDX-License-Identifier: Apache-2.0
"""The training of examples/wine as a PyTorch program, for torchrun: what cddprun's Wine job is measured against.

wine_ddp.py DTYPE(f32|f64) SEED   reads Xtrain, Xtest (.f32 or .f64), ytrain.i32, ytest.i32 and init.f32 from its own
folder, where wine_vs_torchrun.py puts them.
"""
import os
import sys
import time

BEGAN = time.time()

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH_TYPE = {'f32': torch.float32, 'f64': torch.float64}
NUMPY_TYPE = {'f32': '<f4', 'f64': '<f8', 'i32': '<i4'}


def load(name):
    return torch.from_numpy(np.fromfile(os.path.join(HERE, name), NUMPY_TYPE[name.rsplit('.', 1)[1]]))


def make_model(dtype):
    model = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 3)).to(TORCH_TYPE[dtype])
    weights, at = load('init.f32').to(TORCH_TYPE[dtype]), 0
    for parameter in model.parameters():
        parameter.data.copy_(weights[at:at + parameter.numel()].view_as(parameter))
        at += parameter.numel()
    return model


def train_epoch(ddp, loader, optimizer, loss_of):
    """Return the sum of the samples' losses, each before its step, and the number of samples."""
    total, count = 0.0, 0
    for features, classes in loader:
        optimizer.zero_grad()
        loss = loss_of(ddp(features), classes)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(classes)
        count += len(classes)
    return total, count


def mean_loss(total, count, world):
    """The mean over all ranks' samples; every rank's own mean is gathered too, as examples/wine does for --metrics."""
    both = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(both)
    own = torch.tensor([total / count], dtype=torch.float64)
    dist.all_gather([torch.zeros_like(own) for _ in range(world)], own)
    return (both[0] / both[1]).item()


def main():
    dtype, seed = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    rank, world = dist.get_rank(), dist.get_world_size()

    data = TensorDataset(load('Xtrain.' + dtype).view(-1, 13), load('ytrain.i32').long())
    sampler = DistributedSampler(data, shuffle=True, seed=seed)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = make_model(dtype)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()

    losses = []
    for epoch in range(100):
        sampler.set_epoch(epoch)
        losses.append(mean_loss(*train_epoch(ddp, loader, optimizer, loss_of), world))

    with torch.no_grad():
        logits, classes = model(load('Xtest.' + dtype).view(-1, 13)), load('ytest.i32').long()
        accuracy = (logits.argmax(1) == classes).double().mean().item()
    if rank == 0:
        print('world', world, 'accuracy', accuracy, 'loss first/last', losses[0], losses[-1],
              'in-script s %.2f' % (time.time() - BEGAN), flush=True)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
