/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce, reduce and reduce_scatter: the same sums, of which a rank needs all, nothing, or its block. */
#include "worker/backend/cpu/coll/reduction.h"

#include "worker/backend/cpu/coll/chain.h"
#include "worker/backend/cpu/coll/choose.h"
#include "worker/backend/cpu/coll/rounds.h"
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

/* A piece of private data that fits a slot; in elements. */
struct piece {
    size_t at, n;
};

static size_t pieces_of(const struct want *w)
{
    size_t most = CDI_SHM_PIECE_BYTES / w->size;

    return (w->count + most - 1) / most;
}

static struct piece want_piece(const struct want *w, size_t k)
{
    size_t most = CDI_SHM_PIECE_BYTES / w->size, at = k * most;

    return (struct piece){.at = at, .n = w->count - at < most ? w->count - at : most};
}

static cddp_status reduce_small(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;
    size_t bytes = w->count * w->size;
    void *out = w->out;
    cddp_status st;

    if (bytes > 0)
        memcpy(cdi_next_room(t, bytes), op->in, bytes);
    st = cdi_step(run, err);
    if (st != CDDP_OK || w->hi <= w->lo)
        return st;
    for (int r = 0; r < t->shm->size; r++)
        t->in[r] = cdi_room_of(t, r, bytes, 0, bytes) + w->lo * w->size;
    cdi_reduce(&out, 1, t->in, t->shm->size, w->hi - w->lo, op->dtype, op->op);
    return CDDP_OK;
}

/* Writes the input of this rank to its slot, except the share that it reduces itself. */
static void offer_piece(const struct cdi_cpu_comm *t, const struct cdi_coll *op, const struct want *w, struct piece p)
{
    size_t lo, hi;
    const uint8_t *in = (const uint8_t *)op->in + p.at * w->size;

    cdi_share(p.n, w->size, t->shm->rank, t->shm->size, &lo, &hi);
    memcpy(cdi_next_slot(t), in, lo * w->size);
    memcpy(cdi_next_slot(t) + hi * w->size, in + hi * w->size, (p.n - hi) * w->size);
}

/* Reduces this rank's share of the inputs of this step; the others read it in the next step. */
static void reduce_share(const struct cdi_cpu_comm *t, const struct cdi_coll *op, const struct want *w, struct piece p)
{
    size_t size = w->size, lo, hi;
    bool all_mine;
    void *to[2];

    cdi_share(p.n, size, t->shm->rank, t->shm->size, &lo, &hi);
    for (int r = 0; r < t->shm->size; r++)
        t->in[r] = r == t->shm->rank ? (const uint8_t *)op->in + (p.at + lo) * size
                                     : cdi_slot_of(t, r, lo * size, (hi - lo) * size);
    all_mine = w->lo <= p.at + lo && p.at + hi <= w->hi;
    to[0] = cdi_next_slot(t) + CDI_SHM_PIECE_BYTES;
    to[1] = all_mine ? w->out + (p.at + lo - w->lo) * size : NULL;
    cdi_reduce(to, all_mine ? 2 : 1, t->in, t->shm->size, hi - lo, op->dtype, op->op);
    if (!all_mine)
        keep_wanted(w, p.at + lo, hi - lo, to[0]);
}

static void collect_shares(const struct cdi_cpu_comm *t, const struct want *w, struct piece p)
{
    size_t lo, hi;

    for (int r = 0; r < t->shm->size; r++) {
        cdi_share(p.n, w->size, r, t->shm->size, &lo, &hi);
        if (r != t->shm->rank)
            keep_wanted(w, p.at + lo, hi - lo, cdi_slot_of(t, r, CDI_SHM_PIECE_BYTES, (hi - lo) * w->size));
    }
}

/* A pipeline: one step carries the inputs of one piece and the results of the piece before it. */
static cddp_status reduce_staged(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;
    size_t n_pieces = pieces_of(w);

    for (size_t k = 0; k <= n_pieces; k++) {
        cddp_status st;

        if (k < n_pieces)
            offer_piece(t, op, w, want_piece(w, k));
        st = cdi_step(run, err);
        if (st != CDDP_OK)
            return st;
        if (k > 0)
            collect_shares(t, w, want_piece(w, k - 1));
        if (k < n_pieces)
            reduce_share(t, op, w, want_piece(w, k));
    }
    return CDDP_OK;
}

/* Sets inputs and outputs to elements [lo, hi) in the parts of a region. */
static void point_at(const struct cdi_run *run, const struct want *w, size_t lo, size_t hi)
{
    struct cdi_cpu_comm *t = run->t;

    for (int r = 0; r < t->shm->size; r++) {
        t->out[r] = cdi_cpu_region_at(run->region, r, run->desc.offset + lo * w->size, (hi - lo) * w->size);
        t->in[r] = t->out[r];
    }
}

/* In shared memory: each rank reduces its share of all arenas and writes it into all arenas. */
static cddp_status reduce_direct(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;
    size_t lo, hi;
    cddp_status st = run->compared_here ? CDDP_OK : cdi_step(run, err);

    if (st != CDDP_OK)
        return st;
    cdi_share(w->count, w->size, t->shm->rank, t->shm->size, &lo, &hi);
    point_at(run, w, lo, hi);
    cdi_reduce(t->out, t->shm->size, t->in, t->shm->size, hi - lo, op->dtype, op->op);
    return cdi_step(run, err);
}

/* In shared memory: each rank reduces its block of all arenas, into its own arena only. */
static cddp_status scatter_direct(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;
    void *out = w->out;
    cddp_status st = run->compared_here ? CDDP_OK : cdi_step(run, err);

    if (st != CDDP_OK)
        return st;
    point_at(run, w, w->lo, w->hi);
    cdi_reduce(&out, 1, t->in, t->shm->size, w->hi - w->lo, op->dtype, op->op);
    return cdi_step(run, err);
}

/* --------------------------------------------------------------------------------------------- several nodes ---- */

/* Does this rank have a chain? If so, sets [*lo, *hi) to its share of n elements. */
static bool chain_share(const struct cdi_cpu_comm *t, size_t n, size_t size, size_t *lo, size_t *hi)
{
    if (t->shm->rank >= t->tcp->n_chains)
        return false;
    cdi_share(n, size, t->shm->rank, t->tcp->n_chains, lo, hi);
    return true;
}

/* Each chain passes its share of all arenas along the nodes, and writes the result into all arenas of the node. */
static cddp_status reduce_direct_multinode(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    size_t lo, hi;
    cddp_status st = cdi_step(run, err);

    if (st == CDDP_OK && chain_share(t, w->count, w->size, &lo, &hi)) {
        struct cdi_chain_op a = {.n_in = t->shm->size, .n_out = t->shm->size, .count = hi - lo};

        for (int r = 0; r < t->shm->size; r++)
            t->place[r] = cdi_cpu_region_at(run->region, r, run->desc.offset + lo * w->size, (hi - lo) * w->size);
        a.in = (const void *const *)t->place;
        a.out = t->place;
        st = cdi_chain_reduce(run, &a, err);
    }
    return st == CDDP_OK ? cdi_step_after_network(run, err) : st;
}

/* One rank on each node: there are no other ranks to share with, so all elements pass along the chain at once. */
static cddp_status reduce_alone_multinode(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    const void *in = run->w->op.in;
    void *out = w->out;
    const struct cdi_chain_op a = {.in = &in, .n_in = 1, .out = &out, .n_out = 1, .count = w->count};

    return cdi_chain_reduce(run, &a, err);
}

/* Private data that fits a slot: inputs pass through the slots of one step, results through those of the next. */
static cddp_status reduce_slot_multinode(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    size_t lo, hi;
    cddp_status st;

    if (w->count > 0)
        memcpy(cdi_next_slot(t), run->w->op.in, w->count * w->size);
    st = cdi_step(run, err);
    if (st == CDDP_OK && chain_share(t, w->count, w->size, &lo, &hi)) {
        struct cdi_chain_op a = {.n_in = t->shm->size, .n_out = 1, .count = hi - lo, .at = lo};
        const struct cdi_coll *op = &run->w->op;
        void *out = cdi_next_slot(t) + lo * w->size;

        if (op->kind == CDI_REDUCE)
            a.home = cdi_tcp_node_of(t->tcp, op->root);
        if (op->kind == CDI_REDUCE_SCATTER)
            a.per_rank = op->count;
        for (int r = 0; r < t->shm->size; r++)
            t->place[r] = (void *)(uintptr_t)cdi_slot_of(t, r, lo * w->size, (hi - lo) * w->size);
        a.in = (const void *const *)t->place;
        a.out = &out;
        st = cdi_chain_reduce(run, &a, err);
    }
    if (st == CDDP_OK)
        st = cdi_step_after_network(run, err);
    for (int c = 0; c < t->tcp->n_chains && st == CDDP_OK; c++) {
        cdi_share(w->count, w->size, c, t->tcp->n_chains, &lo, &hi);
        keep_wanted(w, lo, hi - lo, cdi_slot_of(t, c, lo * w->size, (hi - lo) * w->size));
    }
    return st;
}

/* Writes piece k of private data to the stage, for all chains of the node. */
static void stage_in(const struct cdi_cpu_comm *t, const struct cdi_coll *op, const struct want *w, size_t most,
                     size_t k)
{
    size_t at = k * most, n = w->count - at < most ? w->count - at : most;

    memcpy(cdi_shm_stage_in(t->shm, t->shm->rank, k), (const uint8_t *)op->in + at * w->size, n * w->size);
}

/* Copies piece k of the result from the stages of all of them. */
static void stage_out(const struct cdi_cpu_comm *t, const struct want *w, size_t most, size_t k)
{
    size_t at = k * most, n = w->count - at < most ? w->count - at : most, lo, hi;

    for (int c = 0; c < t->tcp->n_chains; c++) {
        cdi_share(n, w->size, c, t->tcp->n_chains, &lo, &hi);
        keep_wanted(w, at + lo, hi - lo, cdi_shm_stage_out(t->shm, c, k) + lo * w->size);
    }
}

/*
 * Private data, as a stream: between two steps of the node each chain continues with all pieces that were staged so
 * far, but waits only for the one that was staged `delay` steps earlier. Why the stages suffice: piece k is staged
 * before step k, and all chains have reduced it before step k + delay + 1. Its result is complete by then, and is read
 * before step k + delay + 2. So both places are free again for piece k + CDI_SHM_STAGES.
 */
static cddp_status reduce_stream_multinode(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;
    const size_t most = CDI_SHM_PIECE_BYTES / cdi_reduce_acc_size(op->dtype), n = (w->count + most - 1) / most;
    const size_t delay = n - 1 < CDI_SHM_STAGES - 2 ? n - 1 : CDI_SHM_STAGES - 2;
    struct cdi_chain_op a = {.n_in = t->shm->size, .n_out = 1, .count = w->count, .staged = most};
    bool has_chain = t->shm->rank < t->tcp->n_chains;
    struct cdi_pipeline p;
    cddp_status st = CDDP_OK;

    if (op->kind == CDI_REDUCE)
        a.home = cdi_tcp_node_of(t->tcp, op->root);
    if (op->kind == CDI_REDUCE_SCATTER)
        a.per_rank = op->count;
    cdi_pipeline_init(&p, run, &a);
    for (size_t k = 0; k <= n + delay && st == CDDP_OK; k++) {
        if (k < n)
            stage_in(t, op, w, most, k);
        st = k == 0 ? cdi_step(run, err) : cdi_step_after_network(run, err);
        if (st == CDDP_OK && k > delay)
            stage_out(t, w, most, k - delay - 1);
        if (st == CDDP_OK && has_chain && k < n + delay)
            st = cdi_pipeline_run(&p, k < n ? k + 1 : n, k < delay ? 0 : k - delay + 1, err);
    }
    return st;
}

/* Every rank gets the inputs of all ranks, and adds what it needs in their order. */
static cddp_status reduce_small_multinode(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    const struct cdi_coll *op = &run->w->op;
    size_t bytes = w->count * w->size;
    void *out = w->out;
    const uint8_t *all;
    cddp_status st;

    for (int r = 0; r < t->size; r++)
        t->len[r] = bytes;
    st = cdi_rounds_gather(run, op->in, &all, err);
    if (st != CDDP_OK || w->hi <= w->lo)
        return st;
    for (int r = 0; r < t->size; r++)
        t->in[r] = all + (size_t)r * bytes + w->lo * w->size;
    cdi_reduce(&out, 1, t->in, t->size, w->hi - w->lo, op->dtype, op->op);
    return CDDP_OK;
}

/* By shards, which local rank 0 exchanges. The inputs are in the slots, and the result goes to its next slot. */
static cddp_status reduce_shards_slot(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    struct cdi_cpu_comm *t = run->t;
    cddp_status st;

    memcpy(cdi_next_slot(t), run->w->op.in, w->count * w->size);
    st = cdi_step(run, err);
    if (st == CDDP_OK && t->shm->rank == 0) {
        const struct cdi_shards_op a = {
            .in = (const void *const *)t->place, .out = cdi_next_slot(t), .count = w->count};

        for (int r = 0; r < t->shm->size; r++)
            t->place[r] = cdi_shm_slot(t->shm, r, t->step);
        st = cdi_shards_reduce(run, &a, err);
    }
    if (st == CDDP_OK)
        st = cdi_step_after_network(run, err);
    if (st == CDDP_OK)
        keep_wanted(w, 0, w->count, cdi_slot_of(t, 0, 0, w->count * w->size));
    return st;
}

static cddp_status reduce_shards(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    const void *in = run->w->op.in;
    const struct cdi_shards_op a = {.in = &in, .out = w->out, .count = w->count};

    if (run->t->tcp->largest > 1 || run->w->op.kind != CDI_ALL_REDUCE)
        return reduce_shards_slot(run, w, err);
    return cdi_shards_reduce(run, &a, err);
}

/* Unless all nodes have one rank, and keep the whole result, data pass through one slot. */
static size_t shards_max(const struct cdi_run *run, const struct want *w)
{
    bool is_direct = run->t->tcp->largest == 1 && run->w->op.kind == CDI_ALL_REDUCE;

    if (!cdi_shards_fit(run, w->count))
        return 0;
    return is_direct ? SIZE_MAX : CDI_SHM_PIECE_BYTES;
}

static enum cdi_algorithm choose(const struct cdi_run *run, const struct want *w)
{
    const struct cdi_tcp *tcp = run->t->tcp;
    const struct cdi_choice_of of = {.kind = run->w->op.kind,
                                     .nodes = tcp->n_nodes,
                                     .bytes = w->count * w->size,
                                     .total = w->count * w->size * (size_t)tcp->size,
                                     .shards_max = shards_max(run, w)};

    return cdi_choose(&run->t->net, &of);
}

static cddp_status reduce_multinode(struct cdi_run *run, const struct want *w, struct cdi_error *err)
{
    enum cdi_algorithm how = choose(run, w);

    if (how == CDI_BY_ROUNDS)
        return reduce_small_multinode(run, w, err);
    if (how == CDI_BY_SHARDS)
        return reduce_shards(run, w, err);
    if (run->region != NULL && run->w->op.kind == CDI_ALL_REDUCE)
        return reduce_direct_multinode(run, w, err);
    if (run->t->tcp->largest == 1 && run->w->op.kind == CDI_ALL_REDUCE)
        return reduce_alone_multinode(run, w, err);
    return w->count * w->size > CDI_SHM_PIECE_BYTES ? reduce_stream_multinode(run, w, err)
                                                    : reduce_slot_multinode(run, w, err);
}

cddp_status cdi_run_reduction(struct cdi_run *run, struct cdi_error *err)
{
    const struct want w = want_of(run);

    if (run->t->tcp != NULL)
        return reduce_multinode(run, &w, err);
    if (w.count * w.size <= CDI_SMALL_BYTES)
        return reduce_small(run, &w, err);
    if (run->anywhere) {
        cddp_status st = cdi_step(run, err);

        if (st != CDDP_OK)
            return st;
    }
    if (run->region == NULL)
        return reduce_staged(run, &w, err);
    return run->w->op.kind == CDI_ALL_REDUCE ? reduce_direct(run, &w, err) : scatter_direct(run, &w, err);
}
