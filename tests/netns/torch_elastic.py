# SPDX-License-Identifier: Apache-2.0
"""What elastic.py trains under torchrun: all-reduces in a loop, a line of metrics and a checkpoint by rank 0."""
import os
import sys
import time

import torch
import torch.distributed as dist

metrics, checkpoint = sys.argv[1:]
dist.init_process_group('gloo')
epoch = 0
if os.path.exists(checkpoint):
    with open(checkpoint, encoding='ascii') as f:
        epoch = int(f.read())
while True:
    dist.all_reduce(torch.ones(1091))
    if dist.get_rank() == 0:
        epoch += 1
        with open(metrics, 'a', encoding='ascii') as f:
            f.write(f'{epoch}\n')
        if epoch % 50 == 0:
            with open(checkpoint + '.new', 'w', encoding='ascii') as f:
                f.write(str(epoch))
            os.replace(checkpoint + '.new', checkpoint)
    time.sleep(0.005)
