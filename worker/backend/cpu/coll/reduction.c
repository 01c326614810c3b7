/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce, reduce and reduce_scatter: the same sums, of which a rank needs all, nothing, or its block. */
#include "worker/backend/cpu/coll/reduction.h"

#include "worker/backend/cpu/coll/bruck.h"
#include "worker/backend/cpu/coll/chain.h"
#include "worker/backend/cpu/coll/choose.h"
#include "worker/backend/cpu/coll/shards.h"
#include "worker/math/reduce.h"

#include <string.h>

/* `count` elements are summed; this rank needs those in [lo, hi), at out. */
struct want {
    size_t count, size /* bytes of an element */, lo, hi;
    uint8_t *out;
};

static struct want want_of(const struct cdi_run *run)
{
    const struct cdi_coll *op = &run->w->op;
    struct want w = {.count = op->count, .size = cddp_dtype_size(op->dtype), .hi = op->count, .out = op->out};

    if (op->kind == CDI_REDUCE && op->root != run->t->rank)
        w.hi = 0;
    if (op->kind == CDI_REDUCE_SCATTER) {
        w.count = op->count * (size_t)run->t->size;
        w.lo = op->count * (size_t)run->t->rank;
        w.hi = w.lo + op->count;
    }
    return w;
}

/* Copies what this rank needs of elements [at, at + n) of the result, which are at p. */
static void keep_wanted(const struct want *w, size_t at, size_t n, const void *p)
{
    size_t lo = at > w->lo ? at : w->lo, hi = at + n < w->hi ? at + n : w->hi;

    if (lo < hi)
        memcpy(w->out + (lo - w->lo) * w->size, (const uint8_t *)p + (lo - at) * w->size, (hi - lo) * w->size);
}

/* ------------------------------------------------------------------------------------------------ few bytes ---- */

/* Every rank gets the inputs of all ranks, and adds what it needs in their order. */
static cddp_status reduce_small(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;
    size_t bytes = w->count * w->size, skip = w->lo * w->size;
    const uint8_t *all = NULL;
    void *out = w->out;
    cddp_status st;

    if (t->tcp != NULL) {
        for (int r = 0; r < t->size; r++)
            t->len[r] = bytes;
        st = cdi_bruck_gather(run, op->in, &all, err);
    } else {
        if (bytes > 0)
            memcpy(cdi_next_room(t, bytes), op->in, bytes);
        st = cdi_step(run, err);
    }
    if (st != CDDP_OK || w->hi <= w->lo)
        return st;
    for (int r = 0; r < t->size; r++)
        t->in[r] = all != NULL ? all + (size_t)r * bytes + skip : cdi_room_of(t, r, bytes, 0, bytes) + skip;
    cdi_reduce(&out, 1, t->in, t->size, w->hi - w->lo, op->dtype, op->op);
    return CDDP_OK;
}

/* --------------------------------------------------------------------------------------------- the pipeline ---- */

/* How the sums of a piece are made from the inputs of the node. */
enum sums {
    IN_NODE,   /* there are no other nodes: each rank adds its share */
    BY_CHAIN,  /* each chain passes its share along the nodes */
    BY_SHARDS, /* local rank 0 exchanges all of it with the other nodes */
};

/*
 * A reduction in pieces. Private data pass through memory that the node shares: a rank writes its input of a piece
 * there, and the ranks that make its sums write those there. Memory that all can reach is one piece, used where it is.
 */
struct pipeline {
    struct cdi_run *run;
    struct want w;
    enum sums sums;
    bool in_place, alone; /* in memory that the ranks of the node share; of the only rank of each node */
    size_t most, n;       /* elements of a piece; pieces */
    size_t delay;         /* how many pieces later the sums of one are needed */
    struct cdi_pipeline chain;
};

/* Elements [at, at + n) of the operation. */
struct piece {
    size_t at, n;
};

static struct piece nth_piece(const struct pipeline *g, size_t k)
{
    size_t at = k * g->most, left = g->w.count - at;

    return (struct piece){.at = at, .n = left < g->most ? left : g->most};
}

/* How many ranks of this node, the first ones, make sums? */
static int summing(const struct pipeline *g)
{
    const struct cdi_cpu_comm *t = g->run->t;

    return g->sums == IN_NODE ? t->shm->size : g->sums == BY_CHAIN ? t->tcp->n_chains : 1;
}

/* Sets [*lo, *hi) to the elements of a piece whose sums a local rank makes. */
static void share_of(const struct pipeline *g, struct piece p, int rank, size_t *lo, size_t *hi)
{
    *lo = *hi = p.n;
    if (rank < summing(g))
        cdi_share(p.n, g->w.size, rank, summing(g), lo, hi);
}

/* Writes this rank's input, except what it adds itself. */
static void put_piece(const struct pipeline *g, size_t k)
{
    const struct cdi_cpu_comm *t = g->run->t;
    struct piece p = nth_piece(g, k);
    const uint8_t *in = (const uint8_t *)g->run->w->op.in + p.at * g->w.size;
    uint8_t *to = g->sums == IN_NODE ? cdi_next_slot(t) : cdi_shm_stage_in(t->shm, t->shm->rank, k);
    size_t lo, hi;

    share_of(g, p, t->shm->rank, &lo, &hi);
    memcpy(to, in, lo * g->w.size);
    memcpy(to + hi * g->w.size, in + hi * g->w.size, (p.n - hi) * g->w.size);
}

/* Reads the sums. */
static void get_piece(const struct pipeline *g, size_t k)
{
    const struct cdi_cpu_comm *t = g->run->t;
    struct piece p = nth_piece(g, k);
    size_t lo, hi;

    for (int r = 0; r < summing(g); r++) {
        share_of(g, p, r, &lo, &hi);
        if (g->sums == IN_NODE && r != t->shm->rank)
            keep_wanted(&g->w, p.at + lo, hi - lo, cdi_slot_of(t, r, CDI_SHM_PIECE_BYTES, (hi - lo) * g->w.size));
        if (g->sums != IN_NODE)
            keep_wanted(
                &g->w, p.at + lo, hi - lo,
                cdi_shm_to_read(t->shm, cdi_shm_stage_out(t->shm, r, k) + lo * g->w.size, (hi - lo) * g->w.size));
    }
}

/* Adds this rank's share of the inputs that were put; the others read the sums after the next step. */
static void sum_piece(const struct pipeline *g, size_t k)
{
    const struct cdi_cpu_comm *t = g->run->t;
    const struct cdi_coll *op = &g->run->w->op;
    struct piece p = nth_piece(g, k);
    size_t size = g->w.size, lo, hi;
    bool all_mine;
    void *to[2];

    share_of(g, p, t->shm->rank, &lo, &hi);
    for (int r = 0; r < t->shm->size; r++)
        t->in[r] = r == t->shm->rank ? (const uint8_t *)op->in + (p.at + lo) * size
                                     : cdi_slot_of(t, r, lo * size, (hi - lo) * size);
    all_mine = g->w.lo <= p.at + lo && p.at + hi <= g->w.hi;
    to[0] = cdi_next_slot(t) + CDI_SHM_PIECE_BYTES;
    to[1] = all_mine ? g->w.out + (p.at + lo - g->w.lo) * size : NULL;
    cdi_reduce(to, all_mine ? 2 : 1, t->in, t->shm->size, hi - lo, op->dtype, op->op);
    if (!all_mine)
        keep_wanted(&g->w, p.at + lo, hi - lo, to[0]);
}

/* Sets t->place to the beginning of all parts of the region. Only elements [lo, hi) may be touched there. */
static void point_at(const struct pipeline *g, size_t lo, size_t hi)
{
    const struct cdi_run *run = g->run;

    for (int r = 0; r < run->t->shm->size; r++)
        run->t->place[r] = cdi_cpu_region_at(run->region, r, run->desc.offset + lo * g->w.size, (hi - lo) * g->w.size) -
                           lo * g->w.size;
}

/* In shared memory: adds this rank's share of all parts into all of them, or its block into its own. */
static void sum_in_place(const struct pipeline *g)
{
    struct cdi_cpu_comm *t = g->run->t;
    const struct cdi_coll *op = &g->run->w->op;
    bool scatters = op->kind == CDI_REDUCE_SCATTER;
    size_t lo = g->w.lo, hi = g->w.hi;

    if (!scatters)
        share_of(g, nth_piece(g, 0), t->shm->rank, &lo, &hi);
    point_at(g, lo, hi);
    for (int r = 0; r < t->shm->size; r++)
        t->in[r] = t->out[r] = (uint8_t *)t->place[r] + lo * g->w.size;
    if (scatters)
        t->out[0] = g->w.out;
    cdi_reduce(t->out, scatters ? 1 : t->shm->size, t->in, t->shm->size, hi - lo, op->dtype, op->op);
}

static void begin_chain(struct pipeline *g)
{
    struct cdi_cpu_comm *t = g->run->t;
    struct cdi_chain_op a = {.count = g->w.count, .n_out = 1, .stage = g->most};
    size_t lo, hi;

    if (g->alone) {
        t->place[0] = g->w.out;
        a.in = &g->run->w->op.in;
        a.out = t->place;
    } else if (g->in_place) {
        share_of(g, nth_piece(g, 0), t->shm->rank, &lo, &hi);
        point_at(g, lo, hi);
        a.in = (const void *const *)t->place;
        a.out = t->place;
        a.n_out = t->shm->size;
    }
    cdi_pipeline_init(&g->chain, g->run, &a);
}

/* Between nodes with several ranks, shards have one piece. */
static cddp_status sum_shards(const struct pipeline *g, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = g->run->t;
    const struct cdi_shards_op a = {.in = (const void *const *)t->place,
                                    .out = g->alone ? g->w.out : cdi_shm_stage_out(t->shm, 0, 0),
                                    .count = g->w.count};

    for (int r = 0; r < t->shm->size; r++)
        t->place[r] = r == 0 ? (void *)(uintptr_t)g->run->w->op.in : cdi_shm_stage_in(t->shm, r, 0);
    return cdi_shards_reduce(g->run, &a, err);
}

/* After step k: makes the sums of as many pieces as were put, but waits only for those that are needed next. */
static cddp_status make_sums(struct pipeline *g, size_t k, struct cdi_error *err)
{
    if (g->run->t->shm->rank >= summing(g))
        return CDDP_OK;
    if (g->sums == BY_SHARDS)
        return sum_shards(g, err);
    if (g->sums == BY_CHAIN) {
        if (k == 0)
            begin_chain(g);
        return cdi_pipeline_run(&g->chain, k < g->n ? k + 1 : g->n, k < g->delay ? 0 : k - g->delay + 1, err);
    }
    if (g->in_place)
        sum_in_place(g);
    else
        sum_piece(g, k);
    return CDDP_OK;
}

static cddp_status meet(const struct pipeline *g, size_t k, struct cdi_error *err)
{
    if (g->alone || (k == 0 && g->in_place && g->run->compared_here))
        return CDDP_OK;
    return k == 0 || g->sums == IN_NODE ? cdi_step(g->run, err) : cdi_step_after_network(g->run, err);
}

/*
 * Piece k is put before step k, its sums are made before step k + delay + 1, and are read before step k + delay + 2.
 * So both of its places are free again for piece k + CDI_SHM_STAGES. In the node, without a delay, the slots of two
 * steps suffice.
 */
static cddp_status reduce_pieces(struct pipeline *g, struct cdi_error *err)
{
    bool through = !g->in_place && !g->alone;
    cddp_status st = CDDP_OK;

    for (size_t k = 0; k <= g->n + g->delay && st == CDDP_OK; k++) {
        if (through && k < g->n)
            put_piece(g, k);
        st = meet(g, k, err);
        if (st == CDDP_OK && through && k > g->delay)
            get_piece(g, k - g->delay - 1);
        if (st == CDDP_OK && k < g->n + g->delay)
            st = make_sums(g, k, err);
    }
    return st;
}

/* ---------------------------------------------------------------------------------------------- the choice ---- */

static enum cdi_algorithm choose(const struct cdi_run *run, const struct want *w, bool alone)
{
    const struct cdi_tcp *tcp = run->t->tcp;
    struct cdi_choice_of of = {.kind = run->w->op.kind,
                               .nodes = tcp->n_nodes,
                               .bytes = w->count * w->size,
                               .total = w->count * w->size * (size_t)tcp->size};

    if (cdi_shards_fit(run, w->count))
        of.shards_max = alone ? SIZE_MAX : CDI_SHM_PIECE_BYTES;
    return cdi_choose(&run->t->net, &of);
}

cddp_status cdi_run_reduction(struct cdi_run *run, struct cdi_error *err)
{
    struct pipeline g = {.run = run, .w = want_of(run), .sums = IN_NODE};
    const struct cdi_tcp *tcp = run->t->tcp;
    size_t size = g.w.size;

    if (tcp != NULL) {
        enum cdi_algorithm how;

        g.alone = tcp->largest == 1 && run->w->op.kind == CDI_ALL_REDUCE;
        how = choose(run, &g.w, g.alone);
        if (how == CDI_BY_ROUNDS)
            return reduce_small(run, &g.w, err);
        g.sums = how == CDI_BY_SHARDS ? BY_SHARDS : BY_CHAIN;
        g.in_place = g.sums == BY_CHAIN && run->region != NULL && run->w->op.kind == CDI_ALL_REDUCE;
        size = cdi_reduce_acc_size(run->w->op.dtype);
    } else if (g.w.count * size <= CDI_SMALL_BYTES) {
        return reduce_small(run, &g.w, err);
    } else {
        cddp_status st = run->anywhere ? cdi_step(run, err) : CDDP_OK;

        if (st != CDDP_OK)
            return st;
        g.in_place = run->region != NULL;
    }
    g.most = g.in_place || g.alone || g.sums == BY_SHARDS ? g.w.count : CDI_SHM_PIECE_BYTES / size;
    g.n = (g.w.count + g.most - 1) / g.most;
    if (g.sums == BY_CHAIN)
        g.delay = g.n - 1 < CDI_SHM_STAGES - 2 ? g.n - 1 : CDI_SHM_STAGES - 2;
    return reduce_pieces(&g, err);
}
