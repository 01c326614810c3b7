/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a mean is made on GPUs: which part is NCCL's. Pure; it knows nothing of NCCL's headers.
 *
 * As ncclAvg a mean costs no pass over memory, but for floating-point types that is a multiplication before the sum
 * (NCCL: enqueue.cc, hostToDevRedOp), which neither NVLS nor NVLSTree takes (include/device.h, ncclNvlsSupported).
 * Symmetric kernels refuse it up to 2.29.7 (sym_kernels.cc). From 2.30.3 on they take it (scheduler/symmetric_sched.cc,
 * symkRedOp), and a window is given only where they can be had (dev_runtime.cc); but only reduce-scatter has kernels
 * that divide, after their sum (device/symmetric/generate.py leaves those of all-reduce out). An all-reduce finds none:
 * ncclSymkGetKernelIndex says -1, and the launch takes what lies there. NCCL finds memory in a window by its address,
 * whoever gives it, and with NCCL_SYM_NOWIN_ENABLE=1 it needs none; so no all-reduce of these versions is ncclAvg.
 *
 * Of float16 a symmetric reduce-scatter is not asked for the mean either: one of its kernels takes the sum from the
 * NVLink switch as a float16, and divides it then (device/symmetric/reduce_scatter.cuh, reduceMultimem), when it may be
 * infinite. The pass over memory that dividing before costs is what a whole bucket costs in an all-reduce.
 */
#ifndef CDI_NCCL_MEAN_H
#define CDI_NCCL_MEAN_H

#include "worker/backend/backend.h"

#define CDI_NCCL_SYMMETRIC_MEAN 23003 /* the first version whose symmetric reduce-scatter takes ncclAvg */

enum cdi_mean {
    CDI_MEAN_NONE,    /* no mean; or a mean of one rank, which is a sum */
    CDI_MEAN_BY_NCCL, /* ncclAvg */
    CDI_MEAN_BEFORE,  /* ncclSum of what a factor of ours has made smaller: all that this rank gives, in place; the
                         program's  is first copied to where the result will be */
    CDI_MEAN_AFTER,   /* ncclSum, then a factor of ours on what this rank gets */
};

struct cdi_mean_facts {
    int nccl_code, n_ranks, n_nodes;
    bool window; /* both buffers lie in a window that all ranks have registered */
};

/* For any operation. Equal on all ranks where the facts are, as NCCL needs it. */
enum cdi_mean cdi_mean_of(const struct cdi_coll *op, const struct cdi_mean_facts *facts);

#endif
