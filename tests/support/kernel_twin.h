/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The twin of each kernel on the host: the same body (element.h), one thread of the grid per call. For tests: the
 * stand-in of the CUDA driver launches them by name, and gpu-check compares the results of a GPU with theirs, bit for
 * bit.
 */
#ifndef KERNEL_TWIN_H
#define KERNEL_TWIN_H

#include "worker/backend/nccl/kernels/element_find.h"
#include "worker/backend/nccl/kernels/element_hash.h"
#include "worker/backend/nccl/kernels/element_lowrank.h"
#include "worker/backend/nccl/kernels/element_norm.h"
#include "worker/backend/nccl/kernels/element_optim.h"

#include <stdbool.h>

/* A range of memory that a launch reads or writes. */
struct cdi_kernel_range {
    const void *base;
    size_t bytes;
    bool written;
};

struct cdi_kernel_twin {
    const char *name;
    size_t args_size;
    /* Executes one thread. args is the struct of the kernel; threads of a launch may run in any order, one at a time or
     * several at once. */
    void (*run)(const struct cdi_kernel_thread *t, const void *args);
    /* Replaces it if the threads of a block synchronise: executes the whole block. t->thread is 0. */
    void (*block)(const struct cdi_kernel_thread *t, const void *args);
    /* Returns the number of ranges of memory that a launch reads and writes, and writes the first `cap` of them to out.
     * A slice of pack has two, and its flags one more. Pure. */
    size_t (*ranges)(const void *args, struct cdi_kernel_range *out, size_t cap);
};

/* All CDI_N_KERNELS twins, in the order of enum cdi_kernel. */
extern const struct cdi_kernel_twin cdi_kernel_twins[];

/* Executes a whole launch on the host, thread by thread, as the kernel would on host memory. */
void cdi_launch_on_host(const struct cdi_launch *launch);

#endif
