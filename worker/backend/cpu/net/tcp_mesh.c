/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links between local rank j of any two nodes, made when an operation first needs them. Those of neighbours are the
 * links of the chain, so that whatever operation a node begins, its next node reads about it on one and the same link.
 */
#include "common/clock.h"
#include "worker/backend/cpu/net/tcp_listener.h"

/*
 * Higher nodes first: their ranks accept while they connect themselves (tcp_wait_fd), so all of them make progress. The
 * highest rank that still has to connect waits only for ranks that accept.
 */
static cddp_status make_link(struct cdi_tcp *tcp, int node, int64_t deadline_ms, struct cdi_error *err)
{
    struct cdi_link *l = tcp->mesh[node] != NULL ? tcp->mesh[node] : cdi_tcp_new_mesh(tcp, node);
    cddp_status st;

    if (l == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a connection");
    if (l->made)
        return CDDP_OK;
    cdi_wait_note_peer(tcp->wait, l->rank);
    st = node > tcp->node ? cdi_tcp_connect(tcp, l, false, deadline_ms, err)
                          : cdi_tcp_await_connection(tcp, l, deadline_ms, err);
    cdi_wait_note_peer(tcp->wait, -1);
    if (st == CDDP_OK)
        cdi_control_add(tcp, l);
    return st;
}

static bool is_missing(const struct cdi_tcp *tcp, int node)
{
    return node != tcp->node && (tcp->mesh[node] == NULL || !tcp->mesh[node]->made);
}

cddp_status cdi_tcp_mesh(struct cdi_tcp *tcp, const int *nodes, int n, struct cdi_error *err)
{
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), tcp->wait->timeout_ms + CDI_TCP_SLACK_OP_MS);
    cddp_status st = CDDP_OK;

    tcp->making_mesh = true;
    for (int i = 0; i < n && st == CDDP_OK; i++)
        if (is_missing(tcp, nodes[i]) && nodes[i] > tcp->node)
            st = make_link(tcp, nodes[i], deadline_ms, err);
    for (int i = 0; i < n && st == CDDP_OK; i++)
        if (is_missing(tcp, nodes[i]))
            st = make_link(tcp, nodes[i], deadline_ms, err);
    tcp->making_mesh = false;
    return st;
}
