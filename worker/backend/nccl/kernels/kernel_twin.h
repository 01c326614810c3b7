/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each kernel's twin on the host: the same body (element.h), one thread of the grid per call. For tests: the stand-in
 * of the CUDA driver launches them by name, and gpu-check compares a card's results with theirs, bit for bit.
 */
#ifndef CDI_KERNELS_KERNEL_TWIN_H
#define CDI_KERNELS_KERNEL_TWIN_H

#include "worker/backend/nccl/kernels/element_lowrank.h"
#include "worker/backend/nccl/kernels/element_norm.h"
#include "worker/backend/nccl/kernels/element_optim.h"

#include <stdbool.h>

/* Memory that a launch touches. */
struct cdi_kernel_range {
    const void *base;
    size_t bytes;
    bool written;
};

struct cdi_kernel_twin {
    const char *name;
    size_t args_size;
    /* What one thread does. args is the kernel's struct; threads of a launch may run in any order, one at a time or
     * several at once. */
    void (*run)(const struct cdi_kernel_thread *t, const void *args);
    /* In its place, where threads of a block meet: what all of them do. t->thread is 0. */
    void (*block)(const struct cdi_kernel_thread *t, const void *args);
    /* The memory that a launch reads and writes: the number of ranges, of which the first `cap` were written to out.
     * A slice of pack gives two, and its flags one more. Pure. */
    size_t (*ranges)(const void *args, struct cdi_kernel_range *out, size_t cap);
};

/* All of them, CDI_N_KERNELS in number, in the order of enum cdi_kernel. */
extern const struct cdi_kernel_twin cdi_kernel_twins[];

/* A whole launch on the host, thread by thread: what the kernel does to host memory. */
void cdi_launch_on_host(const struct cdi_launch *launch);

#endif
