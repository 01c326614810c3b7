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
    void *const *out; /* where the result goes: each of them gets it */
    int n_out;
    size_t count;
};

/* Ranks with links only; all neighbours call it too. Empty stretches are passed along as well: that is a barrier. */
cddp_status cdi_across_reduce(struct cdi_run *run, const struct cdi_along *a, struct cdi_error *err);
/* Compare the operation with the neighbours', once. Ranks with links only. */
cddp_status cdi_across_begin(struct cdi_run *run, struct cdi_error *err);
/*
 * A block of `len` bytes of node `from` goes to all nodes: there it is sent, elsewhere it is received into `block`.
 * Local rank 0 only.
 */
cddp_status cdi_across_relay(struct cdi_run *run, int from, uint8_t *block, size_t len, struct cdi_error *err);
/* send and recv with a rank of another node. */
cddp_status cdi_across_message(struct cdi_run *run, struct cdi_error *err);

/* A step behind which others of the node wait for what came over the network. */
cddp_status cdi_step_behind(struct cdi_run *run, struct cdi_error *err);

#endif
