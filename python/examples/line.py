#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same job as examples/line/together.c, with the module cddp: each rank takes every n-th point.

    pip install numpy cddprun-*.whl
    cddprun --nproc_per_node=2 line.py
"""
import numpy as np

import cddp

N, D = 4096, 8  # points, their dimensions


def main():
    x = np.random.default_rng(1).random((N, D), np.float32) - 0.5  # the same points on every rank
    y = x @ np.arange(1, D + 1, dtype=np.float32)
    w = np.zeros(D, np.float32)
    with cddp.init() as comm, cddp.DDP(comm, {'w': w}) as ddp:
        mine = slice(comm.rank, N, comm.size)
        grad = ddp.grad('w')
        for _ in range(500):
            err = x[mine] @ w - y[mine]
            grad[:] = err @ x[mine] * (comm.size / N)
            ddp.ready('w')
            ddp.wait()  # the gradient is now the mean over all ranks
            w -= 2 * grad
        if comm.rank == 0:
            for d in range(D):
                print(f'w[{d}] = {w[d]:.2f}')


if __name__ == '__main__':
    main()
