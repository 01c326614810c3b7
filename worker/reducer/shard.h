/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which elements of each parameter a rank's share of the optimizer covers. Pure. A bucket's room is cut into equal
 * parts, one for each rank, wherever the borders fall: a rank has one stretch of a parameter, or nothing.
 */
#ifndef CDI_REDUCER_SHARD_H
#define CDI_REDUCER_SHARD_H

#include "worker/reducer/bucket.h"

struct cdi_shard {
    size_t lo, count; /* elements of the parameter: [lo, lo + count) */
    size_t state_at;  /* bytes from the start of each of the rank's state arrays, a multiple of CDI_GRAD_ALIGN */
    size_t master_at; /* the same in its master copies; only for types of 16 bits */
};

/* Bytes of one array of a rank. */
struct cdi_shard_sizes {
    size_t state;  /* one number per element: float64 for float64, else float32 */
    size_t master; /* float32, for elements of 16 bits */
};

/* Bytes of one number of the state, and of the whole state of a parameter's `count` elements. */
size_t cdi_shard_state_size(cddp_dtype dtype);
bool cdi_shard_has_master(cddp_dtype dtype);

/* What `rank` has of gradient i, which lies in one bucket: lo and count, nothing else. */
struct cdi_shard cdi_shard_one(const struct cdi_bucket_plan *p, size_t i, int rank);
/*
 * The shards of `rank`, one for each of the plan's first n gradients; the plan was made for p->parts ranks. The order
 * in which buckets are launched does not matter to them. params: whose gradients may be of another type than theirs;
 * NULL: they are not.
 */
struct cdi_shard_sizes cdi_shard_all(struct cdi_shard *out, const struct cdi_bucket_plan *p, const cddp_param *params,
                                     size_t n, int rank);

#endif
