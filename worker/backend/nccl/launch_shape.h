/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which launches were there before. For equal launches (the same operations, counts and types, in one group) NCCL
 * chooses the same algorithm and channels, and connects what they need at the first of them only. Pure.
 */
#ifndef CDI_NCCL_LAUNCH_SHAPE_H
#define CDI_NCCL_LAUNCH_SHAPE_H

#include "worker/backend/backend.h"

#define CDI_LAUNCH_SHAPES 4096 /* a power of two; half of it is used */

struct cdi_launch_shapes {
    uint64_t seen[CDI_LAUNCH_SHAPES]; /* 0: free */
    size_t n;
};

/* Begins with 0; then the value for the operations before. n_ranks: for all_gatherv's counts. */
uint64_t cdi_launch_shape(uint64_t before, const struct cdi_coll *op, int n_ranks);
/* Was it there before? It is from now on, as long as there is room; what finds none is new each time. */
bool cdi_launch_shape_seen(struct cdi_launch_shapes *s, uint64_t shape);

#endif
