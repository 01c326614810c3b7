/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a mean is computed on GPUs, and which part of it NCCL does. Pure, without NCCL's headers.
 *
 * As ncclAvg a mean costs no pass over memory, but for floating-point types it is a multiplication before the sum
 * (NCCL: enqueue.cc, hostToDevRedOp), which neither NVLS nor NVLSTree supports (include/device.h, ncclNvlsSupported).
 * Symmetric kernels reject it up to 2.29.7 (sym_kernels.cc). From 2.30.3 on they accept it
 * (scheduler/symmetric_sched.cc, symkRedOp), and windows exist only where they can be used (dev_runtime.cc). But only
 * reduce-scatter has kernels that divide, after their sum (device/symmetric/generate.py omits those of all-reduce). For
 * an all-reduce ncclSymkGetKernelIndex returns -1, and the launch uses whatever that index reads. NCCL finds memory in
 * a window by its address, regardless of the caller, and with NCCL_SYM_NOWIN_ENABLE=1 it needs no window; so no
 * all-reduce of these versions uses ncclAvg.
 *
 * For float16 a symmetric reduce-scatter does not use ncclAvg either: one of its kernels takes the sum from the NVLink
 * switch as a float16, and divides it then (device/symmetric/reduce_scatter.cuh, reduceMultimem), when it may be
 * infinite. Dividing before costs a pass over memory, like that of a whole bucket in an all-reduce.
 *
 * For float32 and bfloat16 NCCL never multiplies before the sum (ncclAvg without windows, ncclRedOpCreatePreMulSum),
 * not even by 1/2^k on GPUs without NVLS, where it would cost no pass: types.h states that their sum is multiplied.
 * Multiplying before it loses bits of numbers below the smallest normal one times 2^k, and hides a sum that is
 * infinite.
 */
#ifndef CDI_NCCL_MEAN_H
#define CDI_NCCL_MEAN_H

#include "worker/backend/backend.h"

#define CDI_NCCL_SYMMETRIC_MEAN 23003 /* the first version whose symmetric reduce-scatter takes ncclAvg */

enum cdi_mean {
    CDI_MEAN_NONE,    /* not a mean; or a mean of one rank, which is a sum */
    CDI_MEAN_BY_NCCL, /* ncclAvg */
    CDI_MEAN_BEFORE, /* ncclSum of input that a kernel has divided, in place; the program's input is first copied to the
                        output */
    CDI_MEAN_AFTER,  /* ncclSum, then a kernel divides the result of this rank */
};

struct cdi_mean_facts {
    int nccl_code, n_ranks, n_nodes;
    bool window; /* both buffers lie in a window that all ranks have registered */
};

/* Returns how the mean of any operation is made. Equal on all ranks where the facts are, as NCCL requires. */
enum cdi_mean cdi_mean_of(const struct cdi_coll *op, const struct cdi_mean_facts *facts);

#endif
