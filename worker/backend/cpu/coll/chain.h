/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of an operation that uses the network, between two steps within the node. The first call in an operation
 * compares it with that of the neighbours. Blocking; errors as from cdi_step(). The caller of the queue passes them on
 * to all nodes.
 */
#ifndef CDI_COLL_CHAIN_H
#define CDI_COLL_CHAIN_H

#include "worker/backend/cpu/coll/step.h"
#include "worker/backend/cpu/net/tcp.h"

/* Calls cdi_tcp_pump() for the operation. */
cddp_status cdi_run_pump(struct cdi_run *run, struct cdi_link *const *links, int n, cdi_pump_fn fn, void *arg,
                         struct cdi_error *err);
/* Fails with the operations of this rank and of the peer of a link, whose description is `theirs`. */
cddp_status cdi_run_differs(const struct cdi_run *run, const struct cdi_link *l, const uint8_t theirs[CDI_TCP_OP],
                            struct cdi_error *err);
/*
 * Records who arrived last: the rank that the peer of `waited_for` names in its description, where this rank has waited
 * for it. Otherwise (NULL) it is of this node, as the first step has found. Ranks without a link read it after the next
 * step of the node.
 */
void cdi_run_note_late(struct cdi_run *run, const struct cdi_link *waited_for, const uint8_t theirs[CDI_TCP_OP]);

/* The data that pass along the chain of this rank; in and out are indexed by local rank. */
struct cdi_chain_op {
    const void *const *in; /* inputs of the node, in rank order */
    int n_in;
    void *const *out; /* each of them gets the result, on the nodes that the result returns to */
    int n_out;
    size_t count;
    int home;        /* the result returns as far as this node; nodes before it do not get it */
    size_t at;       /* where these elements begin in the whole operation */
    size_t per_rank; /* not 0: in place of `home`, an element returns to the node of its rank, which has so many */
    /*
     * Not 0: count is that of the whole operation, and the stages (shm.h) hold pieces of so many elements. This chain's
     * share of each piece passes along, from the inputs there to this rank's results there; in, out, at are not used.
     */
    size_t staged;
};

/* The pipeline: partial sums go forward from node to node, results return; both in pieces, at the same time. */
struct cdi_pipeline {
    struct cdi_run *run;
    const struct cdi_chain_op *a;
    struct cdi_tcp *tcp;
    bool has_prev, has_next;
    size_t size, acc_size, most /* elements of a piece */, n_pieces;
    size_t offered;                     /* pieces whose inputs are complete */
    size_t until;                       /* so many must be finished now */
    size_t arrived, reduced, forwarded; /* pieces received from prev, reduced, sent to next */
    size_t returned, passed;            /* results received from next, sent to prev */
    const void **in;                    /* scratch */
    void **out;
};

/* Initialises *p. *a is not copied. Only ranks with links call this and the functions below. */
void cdi_pipeline_init(struct cdi_pipeline *p, struct cdi_run *run, const struct cdi_chain_op *a);
/*
 * Runs until the first `until` pieces are finished: reduced, and their results received and passed on. The inputs of
 * the first `offered` pieces are complete; as many of them as fit are then in transit. Both numbers only grow.
 */
cddp_status cdi_pipeline_run(struct cdi_pipeline *p, size_t offered, size_t until, struct cdi_error *err);

/* Runs a whole pipeline; all neighbours call it too. With a count of 0 it is a barrier. */
cddp_status cdi_chain_reduce(struct cdi_run *run, const struct cdi_chain_op *a, struct cdi_error *err);
/* Compares the operation with that of the neighbours, once. */
cddp_status cdi_chain_begin(struct cdi_run *run, struct cdi_error *err);
/* The nodes that need a block, and those between. */
struct cdi_reach {
    int first, last;
};
/* Does the block of node `from` pass through `node`? */
static inline bool cdi_chain_passes(const struct cdi_reach *reach, int from, int node)
{
    return node == from || (node > from ? node <= reach->last : node >= reach->first);
}
/*
 * Moves a block of `len` bytes from node `from` to the nodes of its reach. Node `from` sends `block`; other nodes
 * receive into it. Only local rank 0 calls it, on every node that the block passes through.
 */
cddp_status cdi_chain_relay(struct cdi_run *run, int from, const struct cdi_reach *reach, uint8_t *block, size_t len,
                            struct cdi_error *err);
/* Runs send or recv with a rank of another node. */
cddp_status cdi_chain_message(struct cdi_run *run, struct cdi_error *err);

#endif
