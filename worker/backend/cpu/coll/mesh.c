/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/mesh.h"

#include "worker/backend/cpu/coll/bruck.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

static bool is_complete(const struct cdi_tcp *tcp)
{
    for (int k = 0; k < tcp->n_nodes; k++)
        if (k != tcp->node && (tcp->mesh[k] == NULL || !tcp->mesh[k]->made))
            return false;
    return true;
}

/*
 * Making links is a collective: a node that is in another operation would never answer. So the nodes first compare
 * their operations, over the links that all have had since they joined. Either all nodes lack links or none does, since
 * they make all links at once.
 */
static cddp_status complete(struct cdi_mesh *m, struct cdi_error *err)
{
    int *nodes = calloc((size_t)m->tcp->n_nodes, sizeof *nodes);
    cddp_status st;

    if (nodes == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d nodes", m->tcp->n_nodes);
    st = cdi_bruck_run(m->run, NULL, err);
    for (int i = 0; i < m->n; i++)
        nodes[i] = cdi_mesh_node(m, i);
    if (st == CDDP_OK)
        st = cdi_tcp_mesh(m->tcp, nodes, m->n, err);
    free(nodes);
    return st;
}

cddp_status cdi_mesh_begin(struct cdi_mesh *m, struct cdi_run *run, struct cdi_error *err)
{
    struct cdi_tcp *tcp = run->t->tcp;
    cddp_status st = CDDP_OK;

    *m = (struct cdi_mesh){
        .run = run, .tcp = tcp, .n = tcp->n_nodes - 1, .to_meet = tcp->n_nodes - 1, .at_once = tcp->n_nodes - 1};
    if (!is_complete(tcp))
        st = complete(m, err);
    if (st != CDDP_OK)
        return st;
    run->compared_nodes = true;
    memset(tcp->progress, 0, (size_t)tcp->n_nodes * sizeof *tcp->progress);
    for (int i = 0; i < m->n; i++) {
        tcp->links[i] = tcp->mesh[cdi_mesh_node(m, i)];
        tcp->links[i]->begun = false;
    }
    cdi_tcp_put_op(m->out, &run->desc, run->late);
    return CDDP_OK;
}

void cdi_mesh_limit(struct cdi_mesh *m, size_t bytes)
{
    size_t most = bytes > 0 && CDI_IN_FLIGHT_BYTES / bytes < (size_t)m->n ? CDI_IN_FLIGHT_BYTES / bytes : (size_t)m->n;

    m->at_once = most > 0 ? (int)most : 1;
    if (m->at_once == m->n)
        return;
    /* Data arrive from one node after another: the silence of the others does not mean that they have not begun. */
    for (int i = 0; i + 1 < m->n; i++)
        m->tcp->links[i]->begun = true;
}

cddp_status cdi_mesh_run(struct cdi_mesh *m, cdi_pump_fn fn, void *arg, struct cdi_error *err)
{
    cddp_status st = cdi_run_pump(m->run, m->tcp->links, m->n, fn, arg, err);

    return st == CDDP_OK && m->differs != NULL ? cdi_run_differs(m->run, m->differs, m->in, err) : st;
}

cddp_status cdi_mesh_send(struct cdi_mesh *m, int node, const void *body, size_t len, bool *moved,
                          struct cdi_error *err)
{
    struct cdi_progress *p = &m->tcp->progress[node];
    const struct iovec part[] = {{.iov_base = m->out, .iov_len = CDI_TCP_OP},
                                 {.iov_base = (void *)(uintptr_t)body, .iov_len = len}};
    cddp_status st;

    if (p->opened)
        return cdi_link_send(m->tcp->mesh[node], CDI_TCP_IS_DATA, body, len, moved, err);
    st = cdi_link_send_parts(m->tcp->mesh[node], CDI_TCP_IS_ROUND, part, 2, moved, err);
    p->opened = st == CDDP_OK;
    return st;
}

cddp_status cdi_mesh_recv(struct cdi_mesh *m, int node, void *body, size_t len, bool *moved, struct cdi_error *err)
{
    struct cdi_progress *p = &m->tcp->progress[node];
    struct cdi_link *l = m->tcp->mesh[node];
    uint8_t *op = p->op;
    const struct iovec part[] = {{.iov_base = op, .iov_len = CDI_TCP_OP}, {.iov_base = body, .iov_len = len}};
    cddp_status st;

    if (p->met)
        return cdi_link_recv(l, CDI_TCP_IS_DATA, body, len, moved, err);
    st = cdi_link_recv_first(l, CDI_TCP_IS_ROUND, part, 2, &m->run->desc, moved, err);
    if (st == CDDP_E_MISMATCH) {
        m->differs = l;
        memcpy(m->in, op, CDI_TCP_OP);
        return CDDP_OK;
    }
    if (st != CDDP_OK)
        return st;
    p->met = l->begun = true;
    if (--m->to_meet == 0)
        cdi_run_note_late(m->run, m->again ? l : NULL, op);
    return CDDP_OK;
}
