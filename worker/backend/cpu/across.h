/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of an operation that goes over the network, between two steps within the node. The first call in an
 * operation compares it with the neighbours'. Blocking; errors as from cdi_step, of which all nodes are told by who
 * runs the queue.
 */
#ifndef CDI_CPU_ACROSS_H
#define CDI_CPU_ACROSS_H

#include "worker/backend/cpu/run.h"
#include "worker/backend/cpu/tcp.h"

/* A stretch of a reduction that goes along the chain of this rank, in and out by local rank. */
struct cdi_along {
    const void *const *in; /* inputs of the node, in rank order */
    int n_in;
    void *const *out; /* where the result goes: each of them gets it, on nodes that it comes to */
    int n_out;
    size_t count;
    int home;        /* the result comes back as far as this node; nodes before it do without */
    size_t at;       /* where the stretch begins in the whole of the operation */
    size_t per_rank; /* not 0: instead of `home`, each element as far as the node of its rank; so many are one rank's */
};

/* Ranks with links only; all neighbours call it too. Empty stretches are passed along as well: that is a barrier. */
cddp_status cdi_across_reduce(struct cdi_run *run, const struct cdi_along *a, struct cdi_error *err);
/* Compare the operation with the neighbours', once. Ranks with links only. */
cddp_status cdi_across_begin(struct cdi_run *run, struct cdi_error *err);
/* The nodes that want a block, and those between. */
struct cdi_reach {
    int first, last;
};
/* Does the block of node `from` come through `node`? */
static inline bool cdi_across_passes(const struct cdi_reach *reach, int from, int node)
{
    return node == from || (node > from ? node <= reach->last : node >= reach->first);
}
/*
 * A block of `len` bytes of node `from` goes to the nodes of its reach: there it is sent, elsewhere it is received into
 * `block`. Local rank 0 only, of every node that it passes through.
 */
cddp_status cdi_across_relay(struct cdi_run *run, int from, const struct cdi_reach *reach, uint8_t *block, size_t len,
                             struct cdi_error *err);
/* send and recv with a rank of another node. */
cddp_status cdi_across_message(struct cdi_run *run, struct cdi_error *err);

/* A step behind which others of the node wait for what came over the network. */
cddp_status cdi_step_behind(struct cdi_run *run, struct cdi_error *err);

#endif
