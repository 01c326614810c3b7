# SPDX-License-Identifier: Apache-2.0
"""PyTorch's store server (libuv) alone: prints its port, serves until its standard input ends."""
import sys

import torch.distributed as dist

store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False, use_libuv=True)
print(store.port, flush=True)
sys.stdin.read()
