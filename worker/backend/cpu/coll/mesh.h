/* SPDX-License-Identifier: Apache-2.0 */
/* Operations in which each node exchanges data with every other one directly. Only ranks with links call these. */
#ifndef CDI_COLL_MESH_H
#define CDI_COLL_MESH_H

#include "worker/backend/cpu/coll/chain.h"

/* An operation over all links, tcp->links; n of them. Node k is how far tcp->progress[k] says. */
struct cdi_mesh {
    struct cdi_run *run;
    struct cdi_tcp *tcp;
    int n, to_meet;           /* nodes whose first frame is missing before the last arrival is noted */
    struct cdi_link *differs; /* its peer is in another operation */
    int at_once;              /* to so many nodes this rank sends at the same time */
    bool again;               /* this is not the first attempt: who arrives now has kept this rank waiting */
    uint8_t out[CDI_TCP_OP], in[CDI_TCP_OP];
};

/* Begins: at the first such operation, all nodes compare it and make their missing links. Blocks. */
cddp_status cdi_mesh_begin(struct cdi_mesh *m, struct cdi_run *run, struct cdi_error *err);
/* Runs fn(arg) until it is done. The operation ends early if an opening differs: m->differs. */
cddp_status cdi_mesh_run(struct cdi_mesh *m, cdi_pump_fn fn, void *arg, struct cdi_error *err);

/*
 * Lets this rank send to so many nodes at a time, if each gets `bytes`: where all nodes send much to one at the same
 * moment, a switch drops packets, and TCP then waits for long. To the node d further on it may send after it has got
 * everything from the node d - at_once before. So the nodes advance together, and none waits in a circle: what the
 * nearest nodes get depends on nothing.
 */
void cdi_mesh_limit(struct cdi_mesh *m, size_t bytes);
/* Returns the node whose data this rank needs before it sends on link i; -1: none. */
static inline int cdi_mesh_before(const struct cdi_mesh *m, int i)
{
    int distance = i + 1 - m->at_once;

    return distance <= 0 ? -1 : (m->tcp->node - distance + m->tcp->n_nodes) % m->tcp->n_nodes;
}

/* Returns the node of link i: the next node first. */
static inline int cdi_mesh_node(const struct cdi_mesh *m, int i)
{
    return (m->tcp->node + 1 + i) % m->tcp->n_nodes;
}

/*
 * Continue to send and to receive `len` bytes of data with a node. The first frame also has the operation. CDDP_OK: all
 * of them; also where m->differs was set.
 */
cddp_status cdi_mesh_send(struct cdi_mesh *m, int node, const void *body, size_t len, bool *moved,
                          struct cdi_error *err);
cddp_status cdi_mesh_recv(struct cdi_mesh *m, int node, void *body, size_t len, bool *moved, struct cdi_error *err);

#endif
