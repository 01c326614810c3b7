/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of an operation that goes over the network, between two steps within the node. The first call in an
 * operation compares it with the neighbours'. Blocking; errors as from cdi_step, of which all nodes are told by who
 * runs the queue.
 */
#ifndef CDI_COLL_CHAIN_H
#define CDI_COLL_CHAIN_H

#include "worker/backend/cpu/coll/step.h"
#include "worker/backend/cpu/net/tcp.h"

/* What goes along the chain of this rank, in and out by local rank. */
struct cdi_chain_op {
    const void *const *in; /* inputs of the node, in rank order */
    int n_in;
    void *const *out; /* where the result goes: each of them gets it, on nodes that it comes to */
    int n_out;
    size_t count;
    int home;        /* the result comes back as far as this node; nodes before it do without */
    size_t at;       /* where the stretch begins in the whole of the operation */
    size_t per_rank; /* not 0: instead of `home`, each element as far as the node of its rank; so many are one rank's */
    /*
     * Not 0: count is that of the whole, of which the stages (shm.h) hold pieces of so many elements. This chain's
     * share of each goes along, from the inputs there to this rank's results there; in, out and at mean nothing.
     */
    size_t staged;
};

/* The pipeline: partial sums go forward, from node to node, results come back; both in pieces, at the same time. */
struct cdi_pipeline {
    struct cdi_run *run;
    const struct cdi_chain_op *a;
    struct cdi_tcp *tcp;
    bool has_prev, has_next;
    size_t size, acc_size, most /* elements of a piece */, n_pieces;
    size_t offered;                     /* pieces whose inputs are there */
    size_t until;                       /* so many are wanted by now */
    size_t arrived, reduced, forwarded; /* pieces that came from prev, were added to, went to next */
    size_t returned, passed;            /* results that came from next, went to prev */
    const void **in;                    /* scratch */
    void **out;
};

/* Ranks with links only, as all below. *a is not copied. */
void cdi_pipeline_init(struct cdi_pipeline *p, struct cdi_run *run, const struct cdi_chain_op *a);
/*
 * Go on until the first `until` pieces are through: reduced, and their results here and passed on. Of the first
 * `offered` the inputs are there; as many of them as there is room for are then under way. Both only grow.
 */
cddp_status cdi_pipeline_run(struct cdi_pipeline *p, size_t offered, size_t until, struct cdi_error *err);

/* A pipeline from its begin to its end; all neighbours call it too. Empty stretches are passed along as well: that is a
 * barrier. */
cddp_status cdi_chain_reduce(struct cdi_run *run, const struct cdi_chain_op *a, struct cdi_error *err);
/* Compare the operation with the neighbours', once. Ranks with links only. */
cddp_status cdi_chain_begin(struct cdi_run *run, struct cdi_error *err);
/* The nodes that want a block, and those between. */
struct cdi_reach {
    int first, last;
};
/* Does the block of node `from` come through `node`? */
static inline bool cdi_chain_passes(const struct cdi_reach *reach, int from, int node)
{
    return node == from || (node > from ? node <= reach->last : node >= reach->first);
}
/*
 * A block of `len` bytes of node `from` goes to the nodes of its reach: there it is sent, elsewhere it is received into
 * `block`. Local rank 0 only, of every node that it passes through.
 */
cddp_status cdi_chain_relay(struct cdi_run *run, int from, const struct cdi_reach *reach, uint8_t *block, size_t len,
                            struct cdi_error *err);
/* send and recv with a rank of another node. */
cddp_status cdi_chain_message(struct cdi_run *run, struct cdi_error *err);

#endif
