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

/* The sums of `count` elements in rank order. Each chain of the node passes its share of them along (cdi_share). */
struct cdi_chain_op {
    size_t count;
    const void *const *in; /* of the local ranks, the whole; NULL: this rank's is op.in, and others are in the stages */
    void *const *out;      /* n_out results, the whole; NULL: this rank's stages get them */
    int n_out;
    size_t stage; /* with stages: elements of a piece there, of which each chain has its share */
};

/* The pipeline: partial sums go forward from node to node, results return; both in pieces, at the same time. */
struct cdi_pipeline {
    struct cdi_run *run;
    struct cdi_chain_op a;
    struct cdi_tcp *tcp;
    bool has_prev, has_next;
    size_t size, acc_size, most /* elements of a piece */, per /* pieces of a stage */, n_pieces;
    size_t offered;                     /* pieces whose inputs are complete */
    size_t until;                       /* so many must be finished now */
    size_t arrived, reduced, forwarded; /* pieces received from prev, reduced, sent to next */
    size_t returned, passed;            /* results received from next, sent to prev */
    const void **in;                    /* scratch */
    void **out;
};

/* Initialises *p. The arrays of *a stay the caller's. Only ranks with links call this and the function below. */
void cdi_pipeline_init(struct cdi_pipeline *p, struct cdi_run *run, const struct cdi_chain_op *a);
/*
 * Runs until the first `until` stages are finished: reduced, and their results received and passed on. The inputs of
 * the first `offered` stages are complete; as much of them as fits is then in transit. Both numbers only grow. Without
 * stages the whole is one. All neighbours call it.
 */
cddp_status cdi_pipeline_run(struct cdi_pipeline *p, size_t offered, size_t until, struct cdi_error *err);

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
