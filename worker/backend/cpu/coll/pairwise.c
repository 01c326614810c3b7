/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/pairwise.h"

#include "worker/backend/cpu/coll/mesh.h"

#include <string.h>

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---------------------------------------------------------------------------------------- all nodes at one time ----
 */

struct swap {
    struct cdi_mesh mesh;
    struct cdi_pairwise_part (*part)(void *arg, int node);
    void *arg;
};

/* Does the limit (mesh.h) allow to send on link i? */
static bool may_send(const struct swap *g, int i)
{
    int before = cdi_mesh_before(&g->mesh, i);
    const struct cdi_progress *p = &g->mesh.tcp->progress[before < 0 ? 0 : before];

    return before < 0 || (p->met && p->got == g->part(g->arg, before).n_in);
}

/* The first frame is sent even without data, since it tells of the operation. */
static cddp_status swap_send(struct swap *g, int node, const struct cdi_pairwise_part *x, bool *moved,
                             struct cdi_error *err)
{
    struct cdi_progress *p = &g->mesh.tcp->progress[node];
    cddp_status st = CDDP_OK;

    while (st == CDDP_OK && (!p->opened || p->sent < x->n_out)) {
        size_t n = smaller(x->n_out - p->sent, CDI_TCP_PAYLOAD_MAX);

        st = cdi_mesh_send(&g->mesh, node, n > 0 ? x->out + p->sent : NULL, n, moved, err);
        p->sent += st == CDDP_OK ? n : 0;
    }
    return st;
}

static cddp_status swap_recv(struct swap *g, int node, const struct cdi_pairwise_part *x, bool *moved,
                             struct cdi_error *err)
{
    struct cdi_progress *p = &g->mesh.tcp->progress[node];
    cddp_status st = CDDP_OK;

    while (st == CDDP_OK && g->mesh.differs == NULL && (!p->met || p->got < x->n_in)) {
        size_t n = smaller(x->n_in - p->got, CDI_TCP_PAYLOAD_MAX);

        st = cdi_mesh_recv(&g->mesh, node, n > 0 ? x->in + p->got : NULL, n, moved, err);
        p->got += st == CDDP_OK ? n : 0;
    }
    return st;
}

static cddp_status swap_advance(void *arg, bool *moved, struct cdi_error *err)
{
    struct swap *g = arg;
    bool done = true;

    for (int i = 0; i < g->mesh.n; i++) {
        int node = cdi_mesh_node(&g->mesh, i);
        const struct cdi_pairwise_part x = g->part(g->arg, node);
        cddp_status st = may_send(g, i) ? swap_send(g, node, &x, moved, err) : CDDP_IN_PROGRESS;

        if (st < 0)
            return st;
        done = done && st == CDDP_OK;
        st = swap_recv(g, node, &x, moved, err);
        if (st < 0 || g->mesh.differs != NULL)
            return st < 0 ? st : CDDP_OK;
        done = done && st == CDDP_OK;
    }
    g->mesh.again = true;
    return done ? CDDP_OK : CDDP_IN_PROGRESS;
}

cddp_status cdi_pairwise_run(struct cdi_run *run, struct cdi_pairwise_part (*part)(void *arg, int node), void *arg,
                             struct cdi_error *err)
{
    struct swap g = {.part = part, .arg = arg};
    size_t most = 0;
    cddp_status st = cdi_mesh_begin(&g.mesh, run, err);

    if (st != CDDP_OK)
        return st;
    for (int i = 0; i < g.mesh.n; i++) {
        size_t n = part(arg, cdi_mesh_node(&g.mesh, i)).n_out;

        most = n > most ? n : most;
    }
    cdi_mesh_limit(&g.mesh, most);
    return cdi_mesh_run(&g.mesh, swap_advance, &g, err);
}

/* ---------------------------------------------------------------------- one node after another, through the slots ----
 */

/* A turn gives the node `distance` further on a piece for its ranks, and gets one from the node so far before. */
struct turns {
    struct cdi_run *run;
    struct cdi_tcp *tcp;
    const uint8_t *mine;
    size_t block, most; /* bytes of a rank for a rank; of a piece of a rank */
    int to, from;
    size_t at; /* in what each rank gives to `to`, and gives this node */
    struct cdi_mesh mesh;
    bool has_begun, sent, got;
    uint8_t *in;
};

/* Returns the bytes of a piece that a rank gives to a node. */
static size_t piece_for(const struct turns *g, int node)
{
    size_t all = g->block * (size_t)cdi_tcp_ranks_of(g->tcp, node);

    return g->at < all ? smaller(g->most, all - g->at) : 0;
}

static cddp_status turn_advance(void *arg, bool *moved, struct cdi_error *err)
{
    struct turns *g = arg;
    size_t n_out = piece_for(g, g->to) * (size_t)cdi_tcp_ranks_of(g->tcp, g->tcp->node);
    size_t n_in = piece_for(g, g->tcp->node) * (size_t)cdi_tcp_ranks_of(g->tcp, g->from);
    cddp_status st = CDDP_OK;

    g->sent = g->sent || n_out == 0;
    g->got = g->got || n_in == 0;
    if (!g->sent) {
        st = cdi_mesh_send(&g->mesh, g->to, g->tcp->ring, n_out, moved, err);
        g->sent = st == CDDP_OK;
    }
    if (st >= 0 && !g->got) {
        st = cdi_mesh_recv(&g->mesh, g->from, g->in, n_in, moved, err);
        g->got = st == CDDP_OK;
    }
    g->mesh.again = true;
    if (st < 0 || g->mesh.differs != NULL)
        return st < 0 ? st : CDDP_OK;
    return g->sent && g->got ? CDDP_OK : CDDP_IN_PROGRESS;
}

/*
 * A node tells of the operation in the turn of a link, so only the silence of the node before says that it has not
 * begun (bruck.c has the same).
 */
static cddp_status begin_turns(struct turns *g, struct cdi_error *err)
{
    cddp_status st = cdi_mesh_begin(&g->mesh, g->run, err);

    if (st != CDDP_OK)
        return st;
    for (int i = 0; i < g->mesh.n; i++)
        g->tcp->links[i]->begun = i != g->mesh.n - 1; /* the last one is that of the node before */
    g->mesh.to_meet = 1;
    g->has_begun = true;
    return CDDP_OK;
}

/* Local rank 0: moves the pieces of the last step, and receives into its next slot. */
static cddp_status turn_network(struct turns *g, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = g->run->t;
    size_t n = piece_for(g, g->to);

    if (!g->has_begun) {
        cddp_status st = begin_turns(g, err);

        if (st != CDDP_OK)
            return st;
    }
    for (int r = 0; r < t->shm->size && n > 0; r++)
        memcpy(g->tcp->ring + (size_t)r * n, cdi_room_of(t, r, g->most, 0, n), n);
    g->in = cdi_next_slot(t);
    g->sent = g->got = false;
    return cdi_mesh_run(&g->mesh, turn_advance, g, err);
}

/* Passes on what the ranks of node `from` gave this node: their pieces lie one after another at p. */
static void turn_take(const struct turns *g, const uint8_t *p, cdi_take_fn take, void *arg)
{
    size_t n = piece_for(g, g->tcp->node), at = g->block * (size_t)g->tcp->first[g->tcp->node] + g->at;

    for (int r = g->tcp->first[g->from]; r < g->tcp->first[g->from + 1] && n > 0; r++, p += n)
        take(arg, r, at, p, n);
}

/* One piece in each direction. In turn 0 the ranks of a node give to one another. */
static cddp_status take_turn(struct turns *g, cdi_take_fn take, void *arg, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = g->run->t;
    size_t n = piece_for(g, g->to);
    bool is_here = g->to == g->tcp->node;
    cddp_status st;

    if (n > 0)
        memcpy(cdi_next_room(t, g->most), g->mine + g->block * (size_t)g->tcp->first[g->to] + g->at, n);
    st = cdi_step(g->run, err);
    for (int r = 0; r < t->shm->size && is_here && st == CDDP_OK && n > 0; r++)
        take(arg, t->shm->first + r, g->block * (size_t)t->shm->first + g->at, cdi_room_of(t, r, g->most, 0, n), n);
    if (st != CDDP_OK || is_here)
        return st;
    if (t->shm->rank == 0)
        st = turn_network(g, err);
    if (st == CDDP_OK)
        st = cdi_step_after_network(g->run, err);
    if (st == CDDP_OK)
        turn_take(g, cdi_slot_of(t, 0, 0, piece_for(g, g->tcp->node) * (size_t)cdi_tcp_ranks_of(g->tcp, g->from)), take,
                  arg);
    return st;
}

/* The first step compares the operation within the node; no rank ends it before the nodes have compared it. */
cddp_status cdi_pairwise_all(struct cdi_run *run, const void *mine, size_t block, cdi_take_fn take, void *arg,
                             struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    struct cdi_tcp *tcp = t->tcp;
    struct turns g = {.run = run, .tcp = tcp, .mine = mine, .block = block};
    cddp_status st = CDDP_OK;

    g.most = CDI_SHM_PIECE_BYTES / (size_t)tcp->largest / 64 * 64;
    for (int d = 0; d < tcp->n_nodes && st == CDDP_OK; d++) {
        g.to = (tcp->node + d) % tcp->n_nodes;
        g.from = (tcp->node - d + tcp->n_nodes) % tcp->n_nodes;
        g.at = 0;
        do {
            st = take_turn(&g, take, arg, err);
            g.at += g.most;
        } while (st == CDDP_OK && (piece_for(&g, g.to) > 0 || piece_for(&g, tcp->node) > 0));
    }
    return st;
}
