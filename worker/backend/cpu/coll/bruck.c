/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/bruck.h"

#include "common/clock.h"

#include <poll.h>
#include <string.h>
#include <sys/uio.h>

struct rounds {
    struct cdi_run *run;
    struct cdi_tcp *tcp;
    uint8_t *block;
    int distance;             /* of this round: 1, 2, 4, ... */
    bool sent, received;      /* in this round */
    bool again;               /* this is not the first attempt of the round */
    struct cdi_link *differs; /* its peer is in another operation */
    struct cdi_link *late;    /* for whose peer this rank has waited longest */
    int64_t since_ns, longest_ns;
    uint8_t out[CDI_TCP_OP], in[CDI_TCP_OP], late_in[CDI_TCP_OP];
};

static int node_before(const struct cdi_tcp *tcp, int distance)
{
    return (tcp->node - distance + tcp->n_nodes) % tcp->n_nodes;
}

static int node_after(const struct cdi_tcp *tcp, int distance)
{
    return (tcp->node + distance) % tcp->n_nodes;
}

/*
 * Sets part[] to the operation and to the blocks that pass in this round: those of `last` and of the nodes before it,
 * which go on at the highest node where they end at the lowest. Returns the number of parts.
 */
static int round_parts(const struct rounds *g, uint8_t *op, int last, struct iovec part[3])
{
    const struct cdi_tcp *tcp = g->tcp;
    int left = tcp->n_nodes - g->distance, n = left < g->distance ? left : g->distance, used = 1;
    int first = last - n + 1;

    part[0] = (struct iovec){.iov_base = op, .iov_len = CDI_TCP_OP};
    if (g->block == NULL)
        return used;
    if (first < 0) {
        size_t from = tcp->node_at[first + tcp->n_nodes];

        part[used++] = (struct iovec){.iov_base = g->block + from, .iov_len = tcp->node_at[tcp->n_nodes] - from};
        first = 0;
    }
    part[used++] = (struct iovec){.iov_base = g->block + tcp->node_at[first],
                                  .iov_len = tcp->node_at[last + 1] - tcp->node_at[first]};
    return used;
}

static cddp_status send_round(struct rounds *g, bool *moved, struct cdi_error *err)
{
    struct iovec part[3];
    int n = round_parts(g, g->out, g->tcp->node, part);

    return cdi_link_send_parts(g->tcp->mesh[node_after(g->tcp, g->distance)], CDI_TCP_IS_ROUND, part, n, moved, err);
}

/* The rank that arrives last makes all others wait in one of the rounds, and nobody waits longer for any other one. */
static void note_wait(struct rounds *g, struct cdi_link *from)
{
    int64_t waited_ns = cdi_now_ns() - g->since_ns;

    if (!g->again || waited_ns <= g->longest_ns)
        return;
    g->longest_ns = waited_ns;
    g->late = from;
    memcpy(g->late_in, g->in, sizeof g->in);
    cdi_run_note_late(g->run, from, g->in);
}

static cddp_status recv_round(struct rounds *g, bool *moved, struct cdi_error *err)
{
    int node = node_before(g->tcp, g->distance);
    struct cdi_link *from = g->tcp->mesh[node];
    struct iovec part[3];
    int n = round_parts(g, g->in, node, part);
    cddp_status st = cdi_link_recv_first(from, CDI_TCP_IS_ROUND, part, n, &g->run->desc, moved, err);

    if (st == CDDP_E_MISMATCH) {
        g->differs = from;
        return CDDP_OK;
    }
    if (st == CDDP_OK) {
        from->begun = true;
        note_wait(g, from);
    }
    return st;
}

static void begin_round(struct rounds *g, int distance)
{
    g->distance = distance;
    g->sent = g->received = g->again = false;
    g->since_ns = cdi_now_ns();
    cdi_tcp_put_op(g->out, &g->run->desc, g->run->late);
}

static cddp_status rounds_advance(void *arg, bool *moved, struct cdi_error *err)
{
    struct rounds *g = arg;

    while (g->distance < g->tcp->n_nodes) {
        cddp_status st = g->sent ? CDDP_OK : send_round(g, moved, err);

        if (st < 0)
            return st;
        g->sent = st == CDDP_OK;
        st = g->received ? CDDP_OK : recv_round(g, moved, err);
        if (st < 0 || g->differs != NULL)
            return st;
        g->received = st == CDDP_OK;
        g->again = true;
        if (!g->sent || !g->received)
            return CDDP_IN_PROGRESS;
        begin_round(g, 2 * g->distance);
    }
    return CDDP_OK;
}

/* Makes the links of all rounds, at the first call. Returns their number; each link is in the list once. */
static cddp_status round_links(struct cdi_tcp *tcp, int *n, struct cdi_error *err)
{
    int nodes[2 * 31] = {0}, n_nodes = 0;
    cddp_status st;

    *n = 0;
    for (int d = 1; d < tcp->n_nodes; d *= 2) {
        nodes[n_nodes++] = node_after(tcp, d);
        nodes[n_nodes++] = node_before(tcp, d);
    }
    st = cdi_tcp_mesh(tcp, nodes, n_nodes, err);
    for (int i = 0; i < n_nodes && st == CDDP_OK; i++) {
        struct cdi_link *l = tcp->mesh[nodes[i]];
        bool known = false;

        for (int k = 0; k < *n; k++)
            known = known || tcp->links[k] == l;
        if (!known)
            tcp->links[(*n)++] = l;
    }
    return st;
}

/*
 * Has a node already given up an operation that this rank only begins? All data for it may be here, and an abort has to
 * be seen first: this rank would be the only one whose operation succeeds. One call tells whether this
 * rank is late at all.
 */
static cddp_status look_before(struct cdi_tcp *tcp, int n, struct cdi_error *err)
{
    struct pollfd first = {.fd = tcp->mesh[node_before(tcp, 1)]->data, .events = POLLIN};
    cddp_status st = CDDP_IN_PROGRESS;

    if (poll(&first, 1, 0) <= 0)
        return CDDP_OK;
    for (int i = 0; i < n; i++)
        tcp->polled[i] = (struct pollfd){.fd = tcp->links[i]->control, .events = POLLIN};
    if (poll(tcp->polled, (nfds_t)n, 0) <= 0)
        return CDDP_OK;
    for (int i = 0; i < n && st == CDDP_IN_PROGRESS; i++)
        if (tcp->polled[i].revents != 0)
            st = cdi_link_read_control(tcp, tcp->links[i], err);
    return st == CDDP_IN_PROGRESS ? CDDP_OK : st;
}

cddp_status cdi_bruck_run(struct cdi_run *run, uint8_t *block, struct cdi_error *err)
{
    struct cdi_tcp *tcp = run->t->tcp;
    struct rounds g = {.run = run, .tcp = tcp, .block = block};
    cddp_status st;
    int n;

    run->compared_nodes = true;
    st = round_links(tcp, &n, err);
    if (st == CDDP_OK)
        st = look_before(tcp, n, err);
    if (st != CDDP_OK)
        return st;
    /*
     * A node sends nothing in a later round while it waits in an earlier one itself. So only the silence of the node
     * before says that it has not begun, and its neighbour reports it before all others do.
     */
    for (int i = 0; i < n; i++)
        tcp->links[i]->begun = true;
    tcp->mesh[node_before(tcp, 1)]->begun = false;
    begin_round(&g, 1);
    st = cdi_run_pump(run, tcp->links, n, rounds_advance, &g, err);
    if (st == CDDP_OK && g.differs != NULL)
        return cdi_run_differs(run, g.differs, g.in, err);
    if (st == CDDP_OK && g.late == NULL)
        cdi_run_note_late(run, NULL, g.in);
    return st;
}

/* ------------------------------------------------------------------------------------------ from rank to rank ---- */

static size_t longest_here(const struct cdi_cpu_comm *t)
{
    size_t longest = 0;

    for (int r = 0; r < t->shm->size; r++) {
        size_t n = t->len[t->shm->first + r];

        longest = n > longest ? n : longest;
    }
    return longest;
}

/* Collects the data of the node where they are among those of all nodes. Returns where all begin. */
static uint8_t *collect(const struct cdi_cpu_comm *t)
{
    struct cdi_tcp *tcp = t->tcp;
    size_t longest = longest_here(t), at = 0;
    uint8_t *block = cdi_next_slot(t);

    for (int node = 0; node < tcp->n_nodes; node++) {
        tcp->node_at[node] = at;
        for (int r = tcp->first[node]; r < tcp->first[node + 1]; r++) {
            if (node == tcp->node && t->len[r] > 0)
                memcpy(block + at, cdi_room_of(t, r - t->shm->first, longest, 0, t->len[r]), t->len[r]);
            at += t->len[r];
        }
    }
    tcp->node_at[tcp->n_nodes] = at;
    return at > 0 ? block : NULL;
}

/* The slot of local rank 0 has what all nodes gave. */
cddp_status cdi_bruck_gather(struct cdi_run *run, const void *mine, const uint8_t **all, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    size_t n = t->len[t->rank], total = 0;
    cddp_status st;

    for (int r = 0; r < t->size; r++)
        total += t->len[r];
    if (n > 0)
        memcpy(cdi_next_room(t, longest_here(t)), mine, n);
    st = cdi_step(run, err);
    if (st == CDDP_OK && t->shm->rank == 0)
        st = cdi_bruck_run(run, collect(t), err);
    if (st == CDDP_OK)
        st = cdi_step_after_network(run, err);
    *all = cdi_slot_of(t, 0, 0, total);
    return st;
}
