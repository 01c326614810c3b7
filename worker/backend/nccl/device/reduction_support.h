/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which reductions the NCCL backend supports. Pure, without NCCL's headers.
 *
 * NCCL has floats of 8 bits since 2.24 (nccl.h.in of v2.24.3-1; v2.23.4-1 does not, and rejects the number). It rejects
 * every collective of that type, also those that only move data, on a communicator with a GPU below compute capability
 * 9.0 (enqueue.cc, taskAppend: comm->minCompCap, v2.24.3-1 to v2.30.7-1); so they are moved as bytes. Its mean of them
 * multiplies by 1/n in that type (hostToDevRedOp), which is 4 % off for three ranks: it is not supported. No version
 * has integer types of 16 bits, or bitwise operations.
 */
#ifndef CDI_NCCL_REDUCTION_SUPPORT_H
#define CDI_NCCL_REDUCTION_SUPPORT_H

#include "common/error.h"

#include <cddp/cddp.h>
#include <stdbool.h>

#define CDI_NCCL_FLOAT8 22400    /* the first version that has floats of 8 bits */
#define CDI_FLOAT8_CAPABILITY 90 /* 9.0 */

struct cdi_reduction_facts {
    int nccl_code;
    bool old_gpu; /* the GPU of some rank of the job is below CDI_FLOAT8_CAPABILITY */
};

/*
 * Returns CDDP_OK or CDDP_E_UNSUPPORTED. Equal on all ranks where the facts are. The type is valid for the operation.
 */
cddp_status cdi_reduction_support_check(const struct cdi_reduction_facts *facts, cddp_dtype dtype, cddp_redop op,
                                        struct cdi_error *err);

/*
 * The type and count with which NCCL moves `count` elements of this type: as bytes, if NCCL does not support the type
 * on every GPU.
 */
struct cdi_wire {
    cddp_dtype dtype;
    size_t count;
};
struct cdi_wire cdi_wire_of(cddp_dtype dtype, size_t count);

#endif
