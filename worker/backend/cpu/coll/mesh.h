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
    bool again;               /* this is not the first attempt: who arrives now has kept this rank waiting */
    uint8_t out[CDI_TCP_OP], in[CDI_TCP_OP];
};

/* Begins: at the first such operation, all nodes compare it and make their missing links. Blocks. */
cddp_status cdi_mesh_begin(struct cdi_mesh *m, struct cdi_run *run, struct cdi_error *err);
/* Runs fn(arg) until it is done. The operation ends early if an opening differs: m->differs. */
cddp_status cdi_mesh_run(struct cdi_mesh *m, cdi_pump_fn fn, void *arg, struct cdi_error *err);

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
