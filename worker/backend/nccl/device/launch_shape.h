/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes of launches that NCCL has seen. For equal launches (the same operations, counts and types, in one group) NCCL
 * chooses the same algorithm and channels, and connects these at the first launch only. Pure.
 */
#ifndef CDI_NCCL_LAUNCH_SHAPE_H
#define CDI_NCCL_LAUNCH_SHAPE_H

#include "worker/backend/backend.h"

#define CDI_LAUNCH_SHAPES 4096 /* a power of two; at most half of them are used */

struct cdi_launch_shapes {
    uint64_t seen[CDI_LAUNCH_SHAPES]; /* 0: free */
    size_t n;
};

/*
 * Returns the shape of the operations so far and op. before: the shape of the former; 0: none. n_ranks: for the counts
 * of all_gatherv.
 */
uint64_t cdi_launch_shape(uint64_t before, const struct cdi_coll *op, int n_ranks);
/*
 * Returns whether the shape was seen before, and records it as long as there is room. A shape without room is new each
 * time.
 */
bool cdi_launch_shape_seen(struct cdi_launch_shapes *s, uint64_t shape);

#endif
