# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training with libcddp: collectives and bucketed gradient averaging for numpy and PyTorch CPU arrays.

    import cddp

    with cddp.init() as comm:                  # the job as cddprun, torchrun, mpirun or srun describe it
        comm.all_reduce(gradient, 'avg')       # a numpy array, in place
        print(comm.rank, comm.size)

    $ cddprun --nproc_per_node=2 script.py

init() returns a Comm, whose methods are the collectives. DDP averages gradients in buckets while the backward pass
still runs; Optim divides an optimizer among the ranks, and FSDP parameters and gradients, too. Errors are exceptions:
Error carries status, message and the rank that caused it. Neither numpy nor PyTorch is needed: any contiguous object with the buffer protocol or DLPack will do.
"""
from cddp._abi import Error, Status, lib as _lib
from cddp._comm import Comm, init, unique_id
from cddp._ddp import DDP
from cddp._fsdp import FSDP
from cddp._optim import Optim

__all__ = ['Comm', 'DDP', 'Error', 'FSDP', 'Optim', 'Status', 'init', 'unique_id', 'version']

for _public in (Comm, DDP, Error, FSDP, Optim, Status, init, unique_id):  # as tracebacks and help() show them
    _public.__module__ = __name__


def version():
    """The version of libcddp, such as '0.1.0'."""
    return _lib().cddp_version().decode()


def __getattr__(name):
    if name == '__version__':
        return version()
    raise AttributeError(f"module 'cddp' has no attribute '{name}'")
