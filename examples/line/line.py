#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libcddp from Python, by ctypes and nothing else: the same job as together.c.

    cddprun --nproc_per_node=2 python3 line.py        CDDP_LIBRARY names libcddp.so where the loader does not find it
"""
import ctypes
import os
import random
import sys
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint32, c_void_p

FLOAT32 = 8
N, D = 4096, 8


class Param(ctypes.Structure):
    """cddp_param of cddp.h, member by member."""
    _fields_ = [('size', c_size_t), ('name', c_char_p), ('data', c_void_p), ('count', c_size_t), ('dtype', c_int),
                ('grad_dtype', c_int), ('grad', c_void_p), ('shape', POINTER(c_size_t)), ('n_dims', c_size_t),
                ('flags', c_uint32), ('zero', c_uint32)]


lib = ctypes.CDLL(os.environ.get('CDDP_LIBRARY', 'libcddp.so.0'))
lib.cddp_last_error.restype = c_char_p
lib.cddp_ddp_grad.restype = c_void_p
for function, arguments in {
        'cddp_init': [POINTER(c_void_p), c_void_p],
        'cddp_rank': [c_void_p],
        'cddp_world_size': [c_void_p],
        'cddp_ddp_create': [POINTER(c_void_p), c_void_p, POINTER(Param), c_size_t, c_void_p],
        'cddp_ddp_grad': [c_void_p, c_size_t],
        'cddp_ddp_grad_ready': [c_void_p, c_size_t],
        'cddp_ddp_wait': [c_void_p],
        'cddp_ddp_destroy': [c_void_p],
        'cddp_finalize': [c_void_p]}.items():
    getattr(lib, function).argtypes = arguments
lib.cddp_ddp_destroy.restype = None


def check(status):
    if status != 0:
        sys.exit(lib.cddp_last_error().decode())


def main():
    rng = random.Random(1)
    x = [[rng.random() - 0.5 for _ in range(D)] for _ in range(N)]
    y = [sum((d + 1) * row[d] for d in range(D)) for row in x]
    w = (c_float * D)()
    param = Param(size=ctypes.sizeof(Param), name=b'w', data=ctypes.addressof(w), count=D, dtype=FLOAT32)
    comm, ddp = c_void_p(), c_void_p()
    check(lib.cddp_init(byref(comm), None))
    check(lib.cddp_ddp_create(byref(ddp), comm, byref(param), 1, None))
    rank, n = lib.cddp_rank(comm), lib.cddp_world_size(comm)
    grad = (c_float * D).from_address(lib.cddp_ddp_grad(ddp, 0))
    mine = range(rank, N, n)
    for _ in range(60):
        sums = [0.0] * D
        for i in mine:
            row = x[i]
            err = sum(w[d] * row[d] for d in range(D)) - y[i]
            for d in range(D):
                sums[d] += err * row[d]
        grad[:] = [s * n / N for s in sums]
        check(lib.cddp_ddp_grad_ready(ddp, 0))
        check(lib.cddp_ddp_wait(ddp))
        for d in range(D):
            w[d] -= 6.0 * grad[d]
    if rank == 0:
        for d in range(D):
            print(f'w[{d}] = {w[d]:.2f}')
    lib.cddp_ddp_destroy(ddp)
    check(lib.cddp_finalize(comm))


if __name__ == '__main__':
    main()
