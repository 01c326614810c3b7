/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/shards.h"

#include "worker/backend/cpu/coll/mesh.h"
#include "worker/math/reduce.h"

#include <string.h>

#define ROOM ((size_t)CDI_TCP_RING * CDI_SHM_PIECE_BYTES) /* for the shard of this node, of all ranks */

/* One turn: elements [at, at + n) of the operation. */
struct shards {
    struct cdi_mesh mesh;
    const struct cdi_shards_op *a;
    cddp_dtype dtype;
    size_t size, at, n;
    int missing; /* nodes whose inputs are not complete */
    bool summed;
};

/* Sets [*lo, *hi) to the shard of a node. That of a reduce_scatter is what its ranks need. */
static void shard_of(const struct shards *g, int node, size_t *lo, size_t *hi)
{
    const struct cdi_tcp *tcp = g->mesh.tcp;
    const struct cdi_coll *op = &g->mesh.run->w->op;

    if (op->kind == CDI_REDUCE_SCATTER) {
        *lo = op->count * (size_t)tcp->first[node];
        *hi = op->count * (size_t)tcp->first[node + 1];
        return;
    }
    cdi_share(g->n, g->size, node, tcp->n_nodes, lo, hi);
}

/* Does `node` need the whole result? */
static bool needs_all(const struct shards *g, int node)
{
    const struct cdi_coll *op = &g->mesh.run->w->op;

    return op->kind == CDI_ALL_REDUCE || (op->kind == CDI_REDUCE && cdi_tcp_node_of(g->mesh.tcp, op->root) == node);
}

/* Returns where the input of `rank` for the shard of this node lies, or arrives. */
static uint8_t *input_of(const struct shards *g, int rank)
{
    const struct cdi_tcp *tcp = g->mesh.tcp;
    size_t lo, hi;

    shard_of(g, tcp->node, &lo, &hi);
    if (rank >= tcp->first[tcp->node] && rank < tcp->first[tcp->node + 1])
        return (uint8_t *)(uintptr_t)g->a->in[rank - tcp->first[tcp->node]] + (g->at + lo) * g->size;
    return tcp->ring + (size_t)rank * (hi - lo) * g->size;
}

/* May this rank send on link i, after `more` frames beside the inputs have come from the node that is before? */
static bool may_send(const struct shards *g, int i, bool more)
{
    const struct cdi_tcp *tcp = g->mesh.tcp;
    int before = cdi_mesh_before(&g->mesh, i);

    return before < 0 || tcp->progress[before].got >= (size_t)cdi_tcp_ranks_of(tcp, before) + more;
}

/* Sends the inputs of this node on link i, a frame for each rank. */
static cddp_status give_inputs(struct shards *g, int i, bool *moved, struct cdi_error *err)
{
    struct cdi_tcp *tcp = g->mesh.tcp;
    int node = cdi_mesh_node(&g->mesh, i);
    struct cdi_progress *p = &tcp->progress[node];
    cddp_status st = CDDP_OK;
    size_t lo, hi;

    shard_of(g, node, &lo, &hi);
    while (st == CDDP_OK && p->sent < (size_t)cdi_tcp_ranks_of(tcp, tcp->node) && may_send(g, i, false)) {
        st = cdi_mesh_send(&g->mesh, node, (const uint8_t *)g->a->in[p->sent] + (g->at + lo) * g->size,
                           (hi - lo) * g->size, moved, err);
        p->sent += st == CDDP_OK;
    }
    return st;
}

static cddp_status take_inputs(struct shards *g, int node, bool *moved, struct cdi_error *err)
{
    struct cdi_tcp *tcp = g->mesh.tcp;
    struct cdi_progress *p = &tcp->progress[node];
    size_t ranks = (size_t)cdi_tcp_ranks_of(tcp, node), lo, hi;
    cddp_status st = CDDP_OK;

    shard_of(g, tcp->node, &lo, &hi);
    while (st == CDDP_OK && p->got < ranks && g->mesh.differs == NULL) {
        st =
            cdi_mesh_recv(&g->mesh, node, input_of(g, tcp->first[node] + (int)p->got), (hi - lo) * g->size, moved, err);
        p->got += st == CDDP_OK;
        g->missing -= st == CDDP_OK && p->got == ranks;
    }
    return st;
}

/* Adds the inputs of all ranks. */
static void sum(struct shards *g, bool *moved)
{
    struct cdi_cpu_comm *t = g->mesh.run->t;
    size_t lo, hi;
    void *out;

    shard_of(g, g->mesh.tcp->node, &lo, &hi);
    out = (uint8_t *)g->a->out + (g->at + lo) * g->size;
    for (int r = 0; r < t->size; r++)
        t->in[r] = input_of(g, r);
    if (hi > lo)
        cdi_reduce(&out, 1, t->in, t->size, hi - lo, g->dtype, g->mesh.run->w->op.op);
    g->summed = true;
    *moved = true;
}

/*
 * Sends the result to a node, and receives its one. Where input and output are the same memory, a node's result
 * overwrites only inputs that this very node has received completely.
 */
static cddp_status exchange_results(struct shards *g, int i, bool *done, bool *moved, struct cdi_error *err)
{
    struct cdi_tcp *tcp = g->mesh.tcp;
    int node = cdi_mesh_node(&g->mesh, i);
    struct cdi_progress *p = &tcp->progress[node];
    size_t to_send = (size_t)cdi_tcp_ranks_of(tcp, tcp->node) + needs_all(g, node);
    size_t to_get = (size_t)cdi_tcp_ranks_of(tcp, node) + needs_all(g, tcp->node), lo, hi;
    uint8_t *out = (uint8_t *)g->a->out + g->at * g->size;
    cddp_status st = CDDP_OK;

    if (g->summed && p->sent + 1 == to_send && p->sent == (size_t)cdi_tcp_ranks_of(tcp, tcp->node) &&
        may_send(g, i, needs_all(g, tcp->node))) {
        shard_of(g, tcp->node, &lo, &hi);
        st = cdi_mesh_send(&g->mesh, node, out + lo * g->size, (hi - lo) * g->size, moved, err);
        p->sent += st == CDDP_OK;
    }
    if (st >= 0 && p->got + 1 == to_get && p->got == (size_t)cdi_tcp_ranks_of(tcp, node)) {
        shard_of(g, node, &lo, &hi);
        st = cdi_mesh_recv(&g->mesh, node, out + lo * g->size, (hi - lo) * g->size, moved, err);
        p->got += st == CDDP_OK;
    }
    *done = *done && p->sent == to_send && p->got == to_get;
    return st;
}

static cddp_status shards_advance(void *arg, bool *moved, struct cdi_error *err)
{
    struct shards *g = arg;
    cddp_status st = CDDP_OK;
    bool done = true;

    for (int i = 0; i < g->mesh.n && st >= 0; i++)
        st = give_inputs(g, i, moved, err);
    for (int i = 0; i < g->mesh.n && st >= 0 && g->mesh.differs == NULL; i++)
        st = take_inputs(g, cdi_mesh_node(&g->mesh, i), moved, err);
    if (st < 0 || g->mesh.differs != NULL)
        return st < 0 ? st : CDDP_OK;
    g->mesh.again = true;
    if (g->missing == 0 && !g->summed)
        sum(g, moved);
    for (int i = 0; i < g->mesh.n && st >= 0; i++)
        st = exchange_results(g, i, &done, moved, err);
    return st < 0 ? st : done && g->summed ? CDDP_OK : CDDP_IN_PROGRESS;
}

/* Returns the elements of the largest shard of a turn. */
static size_t most_of(const struct cdi_run *run)
{
    size_t size = cddp_dtype_size(run->w->op.dtype), bytes = ROOM / (size_t)run->t->size;

    if (bytes > CDI_TCP_PAYLOAD_MAX)
        bytes = CDI_TCP_PAYLOAD_MAX;
    return bytes / 64 * 64 / size;
}

bool cdi_shards_fit(const struct cdi_run *run, size_t count)
{
    size_t most = most_of(run);

    if (run->w->op.kind != CDI_REDUCE_SCATTER)
        return most > 0;
    return count / (size_t)run->t->size * (size_t)run->t->tcp->largest <= most;
}

cddp_status cdi_shards_reduce(struct cdi_run *run, const struct cdi_shards_op *a, struct cdi_error *err)
{
    const struct cdi_coll *op = &run->w->op;
    struct shards g = {.a = a, .dtype = op->dtype, .size = cddp_dtype_size(op->dtype)};
    size_t turn = op->kind == CDI_REDUCE_SCATTER ? a->count : most_of(run) * (size_t)run->t->tcp->n_nodes;
    cddp_status st = cdi_mesh_begin(&g.mesh, run, err);

    while (st == CDDP_OK && g.at < a->count) {
        g.n = a->count - g.at < turn ? a->count - g.at : turn;
        g.missing = g.mesh.n;
        g.summed = false;
        cdi_mesh_limit(&g.mesh, (g.n * g.size / (size_t)run->t->tcp->n_nodes + 1) * (size_t)run->t->shm->size);
        for (int k = 0; k < run->t->tcp->n_nodes; k++)
            run->t->tcp->progress[k].sent = run->t->tcp->progress[k].got = 0;
        st = cdi_mesh_run(&g.mesh, shards_advance, &g, err);
        g.at += g.n;
    }
    return st;
}
