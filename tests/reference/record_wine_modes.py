#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record what PyTorch's DDP makes of the Wine training with no_sync, 16-bit hooks and uneven ranks (torch 2.13.0, gloo).

    record_wine_modes.py TORCHRUN DATA [RUN...]     writes DATA/<run>_<type>.epochs.csv and .final_w.csv for each run of
                                                    check_wine.py that has a mode, or those named; DATA is tests/data/wine

Started by torchrun it is the program itself: record_wine_modes.py --rank RUN TYPE DATA.
"""
import os
import pathlib
import struct
import subprocess
import sys

import check_wine

BATCH = 32


def model_of(torch, dtype, init):
    model = torch.nn.Sequential(torch.nn.Linear(13, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)).to(dtype)
    at = 0
    for parameter in model.parameters():
        parameter.data.copy_(torch.tensor(init[at:at + parameter.numel()], dtype=dtype).view_as(parameter))
        at += parameter.numel()
    return model


def batches(indices):
    return [indices[at:at + BATCH] for at in range(0, len(indices), BATCH)]


def train(run, kind, data):
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data.distributed import DistributedSampler

    name, _, flags = run
    flag = dict(zip(flags[::2], flags[1::2]))
    every, less = int(flag.get('--accumulate', 1)), int(flag.get('--uneven', 0))
    dtype = {'f32': torch.float32, 'f64': torch.float64}[kind]
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    rank, world = dist.get_rank(), dist.get_world_size()
    examples = pathlib.Path(check_wine.__file__).resolve().parents[2] / 'examples' / 'wine' / 'data'
    raw = (data / f'Xtrain.{kind}').read_bytes()
    x = torch.tensor(struct.unpack(f'<{len(raw) // (4 if kind == "f32" else 8)}{"f" if kind == "f32" else "d"}', raw),
                     dtype=dtype).view(-1, 13)
    rows = [int(word) for word in (examples / 'split_train_idx.csv').read_text().split() if word.isdigit()]
    labels = [int(line.rsplit(',', 1)[1]) for line in (examples / 'wine.csv').read_text().split('\n')[1:] if line]
    y = torch.tensor([labels[row] for row in rows])
    assert len(y) == len(x) == 142
    init = struct.unpack('<1091f', (examples / 'init.f32').read_bytes())
    ddp = DistributedDataParallel(model_of(torch, dtype, init))
    hook = flag.get('--compress')
    if hook == 'powersgd':
        ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=10), powerSGD_hook.powerSGD_hook)
    elif hook:
        # PyTorch refuses bf16_compress_hook over gloo; this is what it calls.
        def bf16(group: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            return default_hooks._compress_hook(torch.bfloat16, group, bucket)
        ddp.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook if hook == 'fp16' else bf16)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    loss_of = torch.nn.CrossEntropyLoss()
    sampler = DistributedSampler(range(len(x)), world, rank, seed=0)

    def epoch(mine):
        total, slices = 0.0, batches(mine)
        for k, rows_of in enumerate(slices):
            last = (k + 1) % every == 0 or k + 1 == len(slices)
            if k % every == 0:
                optimizer.zero_grad()
            ddp.require_backward_grad_sync = last
            loss = loss_of(ddp(x[rows_of]), y[rows_of])
            loss.backward()
            if last and '--clip' in flag:
                torch.nn.utils.clip_grad_norm_(ddp.parameters(), float(flag['--clip']), error_if_nonfinite=True)
            if last:
                optimizer.step()
            total += loss.item() * len(rows_of)
        return total

    lines = []
    for e in range(check_wine.MODE_EPOCHS):
        sampler.set_epoch(e)
        mine = list(sampler)
        mine = mine[:len(mine) - rank * less]
        if less:
            with ddp.join():
                total = epoch(mine)
        else:
            total = epoch(mine)
        both = [torch.zeros(2, dtype=torch.float64) for _ in range(world)]
        dist.all_gather(both, torch.tensor([total, len(mine)], dtype=torch.float64))
        means = [(one[0] / one[1]).item() for one in both]
        lines.append([e, *means, (sum(one[0] for one in both) / sum(one[1] for one in both)).item()])
    if rank == 0:
        columns = ['epoch', *(f'rank{r}_mean_loss' for r in range(world)), 'global_mean_loss']
        with open(data / f'{name}_{kind}.epochs.csv', 'w', encoding='ascii') as out:
            out.write(','.join(columns) + '\n')
            out.writelines(','.join('%.17g' % value if k else str(value) for k, value in enumerate(line)) + '\n'
                           for line in lines)
        with open(data / f'{name}_{kind}.final_w.csv', 'w', encoding='ascii') as out:
            out.writelines('%.17g\n' % value for parameter in ddp.parameters() for value in parameter.detach().flatten().tolist())
    dist.barrier()
    dist.destroy_process_group()


def main():
    if sys.argv[1] == '--rank':
        run = next(one for one in check_wine.MODE_RUNS if one[0] == sys.argv[2])
        train(run, sys.argv[3], pathlib.Path(sys.argv[4]))
        return
    torchrun, data = sys.argv[1:3]
    for name, ranks, flags in check_wine.MODE_RUNS:
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        for kind in check_wine.kinds_of(flags):
            print(name, kind, flush=True)
            subprocess.run([torchrun, '--standalone', f'--nproc_per_node={ranks}', __file__, '--rank', name, kind,
                            os.path.abspath(data)], check=True, stderr=subprocess.DEVNULL, timeout=300)


if __name__ == '__main__':
    main()
