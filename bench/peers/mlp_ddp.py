# SPDX-License-Identifier: Apache-2.0
"""The training of mlp_train.c as a PyTorch program: DistributedDataParallel over gloo, one thread per rank.

mlp_ddp.py ddp|alternate BATCH STEPS [compiled|shm]   the same parameters, samples, SGD, timing and line of JSON as mlp_train

compiled: by torch.compile. shm: each bucket is reduced by DeepSpeed's all-reduce in shared memory, and not by gloo.
"""
import json
import math
import os
import statistics
import sys
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTHS = [1024, 2048, 2048, 2048, 2048, 2048, 2048, 1000]
RATE = 0.01


def scatter(n):
    """mlp.c's scatter(), for an array."""
    h = (n.astype(np.uint64) & np.uint64(0xffffffff)).astype(np.uint32) * np.uint32(2654435761)
    h ^= h >> np.uint32(15)
    h *= np.uint32(2246822519)
    h ^= h >> np.uint32(13)
    return (h.astype(np.float64) / 4294967296.0 - 0.5).astype(np.float32)


def make_model():
    layers = []
    for i, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:])):
        layer = nn.Linear(inputs, outputs)
        values = scatter(np.arange(inputs * outputs) + 2 * i * 7919).astype(np.float64) * math.sqrt(24.0 / inputs)
        layer.weight.data = torch.from_numpy(values.astype(np.float32)).view(outputs, inputs)
        layer.bias.data.zero_()
        layers += [layer] if i == len(WIDTHS) - 2 else [layer, nn.ReLU()]
    return nn.Sequential(*layers)


def load(step, batch, rank, world):
    index = step * batch * world + np.arange(batch) * world + rank
    x = scatter(index[:, None] * WIDTHS[0] + np.arange(WIDTHS[0])[None, :] + 1000003)
    return torch.from_numpy(x), torch.from_numpy(index * 31 % WIDTHS[-1])


def in_shared_memory(_, bucket):
    """A hook of DDP; it may write into the bucket."""
    import deepspeed.comm
    mean = deepspeed.comm.inference_all_reduce(bucket.buffer()).div_(dist.get_world_size())
    done = torch.futures.Future()
    done.set_result(mean)
    return done


def main():
    mode, batch, steps, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), ''.join(sys.argv[4:])
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    rank, world = dist.get_rank(), dist.get_world_size()
    model = make_model()
    ddp = DistributedDataParallel(torch.compile(model) if how == 'compiled' else model, gradient_as_bucket_view=True)
    if how == 'shm':
        os.environ.update({'LOCAL_SIZE': os.environ['LOCAL_WORLD_SIZE'], 'DS_ACCELERATOR': 'cpu', 'TORCH_EXTENSIONS_DIR': f'{sys.prefix}/extensions',
                           'PATH': f'{sys.prefix}/bin:{os.environ["PATH"]}'})  # where peers.py has built it
        import deepspeed
        deepspeed.init_distributed('gloo')
        if not hasattr(torch.ops.deepspeed, 'inference_all_reduce_'):
            sys.exit("DeepSpeed's all-reduce in shared memory could not be built")
        ddp.register_comm_hook(None, in_shared_memory)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    loss_of = nn.CrossEntropyLoss()
    grads, whole = [], []
    for step in range(steps):
        sync = mode != 'alternate' or step % 2 == 0
        x, labels = load(step, batch, rank, world)
        optimizer.zero_grad(set_to_none=False)
        dist.barrier()
        began = time.monotonic()
        with nullcontext() if sync else ddp.no_sync():
            loss = loss_of(ddp(x), labels)
            loss.backward()
        done = time.monotonic()
        if sync:
            optimizer.step()
        times = torch.tensor([done - began, time.monotonic() - began], dtype=torch.float64) * 1e3
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        grads.append(times[0].item())
        whole.append(times[1].item())
    mean = loss.detach().double().view(1) / world
    dist.all_reduce(mean)
    stride = 2 if mode == 'alternate' else 1
    if rank == 0:
        line = {'mode': mode, 'ranks': world, 'batch': batch, 'steps': steps,
                'grads_ms': statistics.median(grads[2::stride]), 'step_ms': statistics.median(whole[2::stride]),
                'loss': mean.item()}
        if mode == 'alternate':
            line['alone_ms'] = statistics.median(grads[3::2])
        print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
