/* SPDX-License-Identifier: Apache-2.0 */
/* How operations begin, and those that only move data. */
#include "common/crc64.h"
#include "worker/backend/describe.h"
#include "worker/backend/mpi/state.h"
#include "worker/backend/who.h"
#include "worker/base/dtype.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BROADCAST_PIECE ((size_t)1 << 20)

_Static_assert(sizeof(struct cdi_opening) == CDI_OPENING_BYTES, "the compared struct has no padding");

/* ------------------------------------------------------------------------------------------------- openings ---- */

static void opening_make(const struct cdi_mpi_run *run, const struct cdi_coll *op, struct cdi_opening *o)
{
    *o = (struct cdi_opening){.number = run->number, .count = op->count, .root = op->root};
    o->kind = run->work->is_region ? CDI_KIND_REGION : (uint8_t)op->kind;
    o->dtype = (uint8_t)op->dtype;
    o->op = (uint8_t)op->op;
    o->asked = cdi_api_call_is_coll(op->asked) ? (uint8_t)op->asked : 0;
    o->model = (uint16_t)op->of.model;
    o->steps = (uint16_t)op->of.steps;
    if (run->work->is_region)
        o->count = run->work->region_bytes;
    if (op->kind == CDI_ALL_GATHERV)
        o->parts = (uint32_t)cdi_crc64(0, op->counts, (size_t)run->b->world.size * sizeof *op->counts);
}

static void opening_text(const struct cdi_opening *o, char *buf, size_t cap)
{
    struct cdi_work work = {.is_region = o->kind == CDI_KIND_REGION, .region_bytes = (size_t)o->count};

    work.op = (struct cdi_coll){.kind = (enum cdi_coll_kind)o->kind,
                                .count = (size_t)o->count,
                                .dtype = (cddp_dtype)o->dtype,
                                .op = (cddp_redop)o->op,
                                .root = o->root,
                                .bucket = -1,
                                .asked = (enum cdi_api_call)o->asked};
    if (o->kind == CDI_ALL_GATHERV)
        (void)snprintf(buf, cap, "%s of %s in parts %08" PRIx32, cdi_coll_name(o->kind), cdi_dtype_name(work.op.dtype),
                       o->parts);
    else if (cdi_coll_name(o->kind) == NULL && o->kind != CDI_KIND_REGION) /* another process may send any number */
        (void)snprintf(buf, cap, "an unknown operation");
    else
        cdi_mpi_what(&work, buf, cap);
}

static cddp_status opening_mismatch(const struct cdi_backend *backend, const char *what, int a,
                                    const struct cdi_opening *first, int b, const struct cdi_opening *other,
                                    struct cdi_error *err)
{
    const struct cdi_origin of_first = {first->model, first->steps}, of_other = {other->model, other->steps};
    const struct cdi_who who_a = cdi_who(backend->world_rank, a), who_b = cdi_who(backend->world_rank, b);
    char first_text[160], other_text[160], of[300];

    opening_text(first, first_text, sizeof first_text);
    opening_text(other, other_text, sizeof other_text);
    cdi_origins_text(who_a.text, &of_first, who_b.text, &of_other, of, sizeof of);
    return cdi_fail_by(err, backend->world_rank[a > b ? a : b], CDDP_E_MISMATCH,
                       "ranks called different %s: %s called %s, %s called %s%s", what, who_a.text, first_text,
                       who_b.text, other_text, of);
}

/* Returns the index of the block of rank r in what is gathered. */
static size_t block_of(const struct cdi_backend *b, int r)
{
    return (size_t)((r - b->world.rank + b->world.size) % b->world.size);
}

const uint8_t *cdi_mpi_data_of(const struct cdi_backend *b, int r, size_t n)
{
    return n <= CDI_OPENING_DATA ? b->openings[block_of(b, r)].data : b->scratch + block_of(b, r) * n;
}

/*
 * Gathers small blocks of equal size from all ranks. In step s each rank sends its 2^s blocks to the rank that is so
 * many before it.
 */
static cddp_status gather(struct cdi_mpi_run *run, void *all, size_t block, struct cdi_error *err)
{
    struct cdi_backend *b = run->b;
    struct cdi_requests *q = &b->parts[0];
    int size = b->world.size, rank = b->world.rank;
    cddp_status st = CDDP_OK;

    for (int has = 1; has < size && st == CDDP_OK; has *= 2) {
        size_t n = (size_t)(size - has < has ? size - has : has) * block;

        st = cdi_mpi_receive(b, q, (uint8_t *)all + (size_t)has * block, n, (rank + has) % size, CDI_TAG_MOVE, err);
        if (st == CDDP_OK)
            st = cdi_mpi_send(b, q, all, n, (rank - has + size) % size, CDI_TAG_MOVE, err);
        if (st == CDDP_OK)
            st = cdi_mpi_await(run, q, err);
    }
    return st;
}

cddp_status cdi_mpi_open(struct cdi_mpi_run *run, const void *data, size_t n, struct cdi_error *err)
{
    struct cdi_backend *b = run->b;
    bool inside = n <= CDI_OPENING_DATA;
    const struct cdi_opening *first;
    cddp_status st;

    opening_make(run, run->op, &b->openings[0]);
    if (n > 0)
        memcpy(inside ? b->openings[0].data : b->scratch, data, n);
    st = gather(run, b->openings, sizeof *b->openings, err);
    first = &b->openings[block_of(b, 0)];
    for (int r = 1; r < b->world.size && st == CDDP_OK; r++) {
        const struct cdi_opening *other = &b->openings[block_of(b, r)];

        if (memcmp(first, other, offsetof(struct cdi_opening, data)) != 0)
            st = opening_mismatch(b, "collectives", 0, first, r, other, err);
    }
    return st == CDDP_OK && !inside ? gather(run, b->scratch, n, err) : st;
}

/* --------------------------------------------------------------------------------------------------- moving ---- */

/* One block to and one from every other rank, directly between the memory of the callers. */
struct moves {
    const uint8_t *in;
    uint8_t *out;
    bool same; /* all of in goes to every rank */
    size_t (*bytes)(const struct cdi_mpi_run *run, int r);
};

static size_t equal_blocks(const struct cdi_mpi_run *run, int r)
{
    (void)r;
    return run->op->count * cddp_dtype_size(run->op->dtype);
}

static size_t parts(const struct cdi_mpi_run *run, int r)
{
    return run->op->counts[r] * cddp_dtype_size(run->op->dtype);
}

static cddp_status move_blocks(struct cdi_mpi_run *run, const struct moves *m, struct cdi_error *err)
{
    struct cdi_backend *b = run->b;
    struct cdi_requests *q = &b->parts[0];
    int rank = b->world.rank;
    size_t own = m->bytes(run, rank), at_in = 0, at_out = 0;
    cddp_status st = CDDP_OK;

    for (int r = 0; r < b->world.size && st == CDDP_OK; r++) {
        size_t theirs = m->bytes(run, r);

        if (r != rank)
            st = cdi_mpi_receive(b, q, m->out + at_out, theirs, r, CDI_TAG_MOVE, err);
        else if (own > 0 && m->out + at_out != m->in + at_in)
            memcpy(m->out + at_out, m->in + at_in, own);
        at_out += theirs;
        at_in += m->same ? 0 : theirs;
    }
    for (int i = 1; i < b->world.size && st == CDDP_OK; i++) { /* each rank begins with a different one */
        int to = (rank + i) % b->world.size;

        st = cdi_mpi_send(b, q, m->in + (m->same ? 0 : (size_t)to * own), own, to, CDI_TAG_MOVE, err);
    }
    return st == CDDP_OK ? cdi_mpi_await(run, q, err) : st;
}

static cddp_status run_all_gather(struct cdi_mpi_run *run, struct cdi_error *err)
{
    struct cdi_backend *b = run->b;
    size_t bytes = equal_blocks(run, 0);
    const struct moves m = {.in = run->op->in, .out = run->op->out, .same = true, .bytes = equal_blocks};
    bool small = bytes <= CDI_MPI_SMALL;
    cddp_status st = cdi_mpi_open(run, run->op->in, small ? bytes : 0, err);

    if (st == CDDP_OK && !small)
        return move_blocks(run, &m, err);
    for (int r = 0; r < b->world.size && st == CDDP_OK && bytes > 0; r++) {
        uint8_t *to = m.out + (size_t)r * bytes;

        if (to != m.in)
            memcpy(to, cdi_mpi_data_of(b, r, bytes), bytes);
    }
    return st;
}

static cddp_status run_all_gatherv(struct cdi_mpi_run *run, struct cdi_error *err)
{
    const struct moves m = {.in = run->op->in, .out = run->op->out, .same = true, .bytes = parts};
    cddp_status st = cdi_mpi_open(run, NULL, 0, err);

    return st == CDDP_OK ? move_blocks(run, &m, err) : st;
}

static cddp_status run_all_to_all(struct cdi_mpi_run *run, struct cdi_error *err)
{
    const struct moves m = {.in = run->op->in, .out = run->op->out, .bytes = equal_blocks};
    cddp_status st = cdi_mpi_open(run, NULL, 0, err);

    return st == CDDP_OK ? move_blocks(run, &m, err) : st;
}

/* A broadcast down a binomial tree, piece by piece: a rank receives the next piece while it passes this one on. */
struct tree {
    int place;    /* of this rank: 0 is the root */
    int low;      /* its lowest bit; for the root: one beyond all places */
    size_t bytes; /* in all */
    uint8_t *data;
};

static int rank_at(const struct cdi_mpi_run *run, int place)
{
    return (place + run->op->root) % run->b->world.size;
}

static size_t tree_piece_bytes(const struct tree *t, size_t k)
{
    size_t at = k * BROADCAST_PIECE;

    return at >= t->bytes ? 0 : t->bytes - at < BROADCAST_PIECE ? t->bytes - at : BROADCAST_PIECE;
}

static cddp_status tree_receive(struct cdi_mpi_run *run, const struct tree *t, size_t k, struct cdi_error *err)
{
    if (t->place == 0)
        return CDDP_OK;
    return cdi_mpi_receive(run->b, &run->b->parts[k % CDI_SETS], t->data + k * BROADCAST_PIECE, tree_piece_bytes(t, k),
                           rank_at(run, t->place - t->low), CDI_TAG_MOVE, err);
}

static cddp_status tree_pass_on(struct cdi_mpi_run *run, const struct tree *t, size_t k, struct cdi_error *err)
{
    struct cdi_requests *q = &run->b->results[k % CDI_SETS];
    cddp_status st = cdi_mpi_await(run, q, err);

    for (int bit = t->low / 2; bit > 0 && st == CDDP_OK; bit /= 2)
        if (t->place + bit < run->b->world.size)
            st = cdi_mpi_send(run->b, q, t->data + k * BROADCAST_PIECE, tree_piece_bytes(t, k),
                              rank_at(run, t->place + bit), CDI_TAG_MOVE, err);
    return st;
}

static cddp_status tree_broadcast(struct cdi_mpi_run *run, const struct tree *t, struct cdi_error *err)
{
    cddp_status st = tree_receive(run, t, 0, err);

    for (size_t k = 0; k * BROADCAST_PIECE < t->bytes && st == CDDP_OK; k++) {
        st = tree_receive(run, t, k + 1, err);
        if (st == CDDP_OK)
            st = cdi_mpi_await(run, &run->b->parts[k % CDI_SETS], err);
        if (st == CDDP_OK)
            st = tree_pass_on(run, t, k, err);
    }
    for (int i = 0; i < CDI_SETS && st == CDDP_OK; i++)
        st = cdi_mpi_await(run, &run->b->results[i], err);
    return st;
}

static cddp_status run_broadcast(struct cdi_mpi_run *run, struct cdi_error *err)
{
    const struct cdi_coll *op = run->op;
    int size = run->b->world.size;
    struct tree t = {.place = (run->b->world.rank - op->root + size) % size,
                     .low = 1,
                     .bytes = equal_blocks(run, 0),
                     .data = op->out};
    bool inside = t.bytes <= CDI_OPENING_DATA;
    cddp_status st = cdi_mpi_open(run, op->in, inside && t.place == 0 ? t.bytes : 0, err);

    if (st == CDDP_OK && t.place == 0 && op->in != op->out && t.bytes > 0)
        memcpy(op->out, op->in, t.bytes);
    while (t.low < size && (t.place & t.low) == 0)
        t.low *= 2;
    if (st != CDDP_OK || !inside)
        return st == CDDP_OK ? tree_broadcast(run, &t, err) : st;
    if (t.place != 0 && t.bytes > 0)
        memcpy(op->out, cdi_mpi_data_of(run->b, op->root, t.bytes), t.bytes);
    return CDDP_OK;
}

/* ------------------------------------------------------------------------------------------------ two ranks ---- */

static bool is_pair(const struct cdi_opening *mine, const struct cdi_opening *theirs)
{
    return mine->kind + theirs->kind == CDI_SEND + CDI_RECV && mine->kind != theirs->kind &&
           mine->count == theirs->count && mine->dtype == theirs->dtype;
}

cddp_status cdi_mpi_open_pair(struct cdi_mpi_run *run, const struct cdi_coll *op, struct cdi_requests *q,
                              struct cdi_opening *mine, struct cdi_opening *theirs, struct cdi_error *err)
{
    cddp_status st;

    opening_make(run, op, mine);
    mine->number = 0;
    st = cdi_mpi_receive(run->b, q, theirs, sizeof *theirs, op->root, CDI_TAG_PAIR, err);
    return st == CDDP_OK ? cdi_mpi_send(run->b, q, mine, sizeof *mine, op->root, CDI_TAG_PAIR, err) : st;
}

cddp_status cdi_mpi_move_pair(struct cdi_mpi_run *run, const struct cdi_coll *op, struct cdi_requests *q,
                              const struct cdi_opening *mine, const struct cdi_opening *theirs, struct cdi_error *err)
{
    struct cdi_backend *b = run->b;
    size_t bytes = op->count * cddp_dtype_size(op->dtype);
    bool sends = op->kind == CDI_SEND;

    if (!is_pair(mine, theirs))
        return sends ? opening_mismatch(b, "operations", b->world.rank, mine, op->root, theirs, err)
                     : opening_mismatch(b, "operations", op->root, theirs, b->world.rank, mine, err);
    if (sends)
        return cdi_mpi_send(b, q, op->in, bytes, op->root, CDI_TAG_PAIR, err);
    return cdi_mpi_receive(b, q, op->out, bytes, op->root, CDI_TAG_PAIR, err);
}

static cddp_status run_message(struct cdi_mpi_run *run, struct cdi_error *err)
{
    struct cdi_requests *q = &run->b->parts[0];
    struct cdi_opening *mine = &run->b->openings[run->b->world.size], *theirs = mine + 1;
    cddp_status st = cdi_mpi_open_pair(run, run->op, q, mine, theirs, err);

    if (st == CDDP_OK)
        st = cdi_mpi_await(run, q, err);
    if (st == CDDP_OK)
        st = cdi_mpi_move_pair(run, run->op, q, mine, theirs, err);
    return st == CDDP_OK ? cdi_mpi_await(run, q, err) : st;
}

cddp_status cdi_mpi_exchange(struct cdi_mpi_run *run, struct cdi_error *err)
{
    switch (run->op->kind) {
    case CDI_BROADCAST:
        return run_broadcast(run, err);
    case CDI_ALL_GATHER:
        return run_all_gather(run, err);
    case CDI_ALL_GATHERV:
        return run_all_gatherv(run, err);
    case CDI_ALL_TO_ALL:
        return run_all_to_all(run, err);
    case CDI_SEND:
    case CDI_RECV:
        return run_message(run, err);
    case CDI_ALL_REDUCE:
    case CDI_BARRIER:
    case CDI_REDUCE:
    case CDI_REDUCE_SCATTER:
        break;
    }
    return cdi_fail(err, CDDP_E_INVALID, "no such operation");
}
