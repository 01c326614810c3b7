/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges in which a node gives separate bytes to every other one, over a direct link. */
#ifndef CDI_COLL_PAIRWISE_H
#define CDI_COLL_PAIRWISE_H

#include "worker/backend/cpu/coll/chain.h"

/* Receives n bytes at p, at offset `at` of what rank `from` gives. */
typedef void (*cdi_take_fn)(void *arg, int from, size_t at, const uint8_t *p, size_t n);

/* What this node gives to a node and gets from it. */
struct cdi_pairwise_part {
    const uint8_t *out;
    uint8_t *in;
    size_t n_out, n_in;
};

/*
 * Exchanges part(arg, node) with all nodes at the same time. The parts of two nodes fit together on all ranks that are
 * in the same operation. Only local rank 0 calls it, on all nodes.
 */
cddp_status cdi_pairwise_run(struct cdi_run *run, struct cdi_pairwise_part (*part)(void *arg, int node), void *arg,
                             struct cdi_error *err);

/*
 * all_to_all between nodes of any number of ranks: the k-th `block` bytes of every rank are for rank k; those of this
 * rank begin at `mine`. Otherwise as cdi_exchange(). All ranks call it.
 */
cddp_status cdi_pairwise_all(struct cdi_run *run, const void *mine, size_t block, cdi_take_fn take, void *arg,
                             struct cdi_error *err);

#endif
