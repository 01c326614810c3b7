/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which reductions the NCCL backend offers. Pure; it knows nothing of NCCL's headers.
 *
 * NCCL knows floats of 8 bits since 2.24 (nccl.h.in of v2.24.3-1; v2.23.4-1 has none, and refuses the number). It
 * refuses every collective of that type, also those that only move, on a communicator with a GPU below compute
 * capability 9.0 (enqueue.cc, taskAppend: comm->minCompCap, v2.24.3-1 to v2.30.7-1); so they are moved as bytes. Its
 * mean of them multiplies by 1/n in that type (hostToDevRedOp), which is 4 % off for three ranks: it is not offered.
 * Types of 16 bits that are no floats, and bitwise operations, no version has.
 */
#ifndef CDI_NCCL_REDUCTION_SUPPORT_H
#define CDI_NCCL_REDUCTION_SUPPORT_H

#include "common/error.h"

#include <cddp/cddp.h>
#include <stdbool.h>

#define CDI_NCCL_FLOAT8 22400    /* the first version with floats of 8 bits */
#define CDI_FLOAT8_CAPABILITY 90 /* 9.0 */

struct cdi_reduction_facts {
    int nccl_code;
    bool old_gpu; /* that of some rank of the job is below CDI_FLOAT8_CAPABILITY */
};

/* CDDP_OK, CDDP_E_UNSUPPORTED. Equal on all ranks where the facts are. The type goes with the operation. */
cddp_status cdi_reduction_support_check(const struct cdi_reduction_facts *facts, cddp_dtype dtype, cddp_redop op,
                                        struct cdi_error *err);

/* As what NCCL moves `count` elements of this type: where it does not have it on every GPU as that many bytes. */
struct cdi_wire {
    cddp_dtype dtype;
    size_t count;
};
struct cdi_wire cdi_wire_of(cddp_dtype dtype, size_t count);

#endif
