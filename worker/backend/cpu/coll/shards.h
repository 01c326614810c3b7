/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of middle size, in two rounds: each node gets its shard of the inputs of all ranks and adds them in rank
 * order; then it sends the result to the nodes that need it.
 */
#ifndef CDI_COLL_SHARDS_H
#define CDI_COLL_SHARDS_H

#include "worker/backend/cpu/coll/chain.h"

struct cdi_shards_op {
    const void *const *in; /* of the local ranks */
    void *out;             /* of as many elements; gets what this node needs of the result, at its place */
    size_t count;
};

/* Can the operation be cut into shards? A reduce_scatter cannot be cut in several turns. */
bool cdi_shards_fit(const struct cdi_run *run, size_t count);
/* Runs run->w, a reduction. Only local rank 0 calls it, on all nodes. `in` may be `out` if the node has one rank. */
cddp_status cdi_shards_reduce(struct cdi_run *run, const struct cdi_shards_op *a, struct cdi_error *err);

#endif
