/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which elements of each parameter belong to a rank's share of the optimizer. Pure. A bucket's room is cut into equal
 * parts, one for each rank, regardless of parameter boundaries. So a rank has one range of a parameter, or nothing.
 */
#ifndef CDI_REDUCER_SHARD_H
#define CDI_REDUCER_SHARD_H

#include "worker/reducer/layout/bucket.h"

struct cdi_shard {
    size_t lo, count; /* elements of the parameter: [lo, lo + count) */
    size_t state_at;  /* bytes from the start of each of the rank's state arrays, a multiple of CDI_GRAD_ALIGN */
    size_t master_at; /* the same in its master copies; only for types of 16 bits */
};

/* Bytes of one array of a rank. */
struct cdi_shard_sizes {
    size_t state;  /* one number per element: float64 for float64, otherwise float32 */
    size_t master; /* float32, for elements of 16 bits */
};

/* Return the bytes of one number of the state, and of the whole state of a parameter's `count` elements. */
size_t cdi_shard_state_size(cddp_dtype dtype);
bool cdi_shard_has_master(cddp_dtype dtype);

/* Returns what `rank` has of gradient i, which is in one bucket. Sets only lo and count. */
struct cdi_shard cdi_shard_one(const struct cdi_bucket_plan *p, size_t i, int rank);
/*
 * Fills in the shards of `rank`, one for each of the plan's first n gradients. The plan was made for p->parts ranks;
 * the launch order does not matter. params: needed if gradients have another type than their parameters; otherwise it
 * may be NULL. first: by parameter, the first one of the same memory, which alone has shards; NULL: all have. Frozen
 * ones have none.
 */
struct cdi_shard_sizes cdi_shard_all(struct cdi_shard *out, const struct cdi_bucket_plan *p, const cddp_param *params,
                                     const size_t *first, size_t n, int rank);

#endif
