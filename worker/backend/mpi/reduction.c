/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions with the same bits on every rank and in every run. Each rank owns a shard: it receives that shard from
 * every other rank, sums them in rank order (cdi_reduce), and sends the result to the ranks that need it. A shard is
 * sent in pieces, so that one is summed while the next is in transit. As many bytes move as in the best algorithms: 2
 * (n-1)/n of the buffer for an all-reduce, in 2 (n-1) messages per piece and rank. Small inputs go to all ranks, which
 * all sum them.
 */
#include "worker/backend/mpi/state.h"
#include "worker/math/reduce.h"

#include <stdlib.h>
#include <string.h>

struct reduction {
    struct cdi_mpi_run *run;
    const struct cdi_coll *op;
    size_t size;  /* bytes of an element */
    size_t piece; /* elements */
    size_t n_rounds;
    const void **in; /* by rank, for cdi_reduce */
};

static size_t all_elements(const struct reduction *d)
{
    return d->op->kind == CDI_REDUCE_SCATTER ? d->op->count * (size_t)d->run->b->world.size : d->op->count;
}

/* Returns where shard r begins; for r == size, the end. */
static size_t shard(const struct reduction *d, int r)
{
    size_t n = (size_t)d->run->b->world.size, k = (size_t)r;

    if (d->op->kind == CDI_REDUCE_SCATTER)
        return k * d->op->count;
    return d->op->count / n * k + (d->op->count % n < k ? d->op->count % n : k);
}

/* Sets *at to the begin of piece k of shard r. Returns its number of elements. */
static size_t piece_of(const struct reduction *d, int r, size_t k, size_t *at)
{
    size_t lo = shard(d, r), hi = shard(d, r + 1), from = lo + k * d->piece;

    *at = from;
    return from >= hi ? 0 : hi - from < d->piece ? hi - from : d->piece;
}

static const uint8_t *in_at(const struct reduction *d, size_t element)
{
    return (const uint8_t *)d->op->in + element * d->size;
}

static uint8_t *out_at(const struct reduction *d, size_t element)
{
    return (uint8_t *)d->op->out + element * d->size;
}

static uint8_t *slot(const struct reduction *d, size_t k, int r)
{
    const struct cdi_backend *b = d->run->b;

    return b->scratch + (k % CDI_SETS * (size_t)b->world.size + (size_t)r) * b->piece;
}

/* Returns where the sum of this rank's piece k goes: to scratch memory if only another rank needs it. */
static uint8_t *sum_at(const struct reduction *d, size_t k, size_t at)
{
    const struct cdi_backend *b = d->run->b;

    if (d->op->kind == CDI_REDUCE && d->op->root != b->world.rank)
        return b->scratch + (CDI_SETS * (size_t)b->world.size + k % CDI_SETS) * b->piece;
    return d->op->kind == CDI_REDUCE_SCATTER ? out_at(d, at - shard(d, b->world.rank)) : out_at(d, at);
}

/* Sends piece k of every shard to its owner. */
static cddp_status send_parts(struct reduction *d, size_t k, struct cdi_error *err)
{
    struct cdi_backend *b = d->run->b;
    struct cdi_requests *q = &b->parts[k % CDI_SETS];
    int size = b->world.size, rank = b->world.rank;
    cddp_status st = CDDP_OK;
    size_t at, n = piece_of(d, rank, k, &at);

    for (int r = 0; r < size && st == CDDP_OK; r++)
        if (r != rank)
            st = cdi_mpi_receive(b, q, slot(d, k, r), n * d->size, r, CDI_TAG_PART, err);
    for (int i = 1; i < size && st == CDDP_OK; i++) {
        int to = (rank + i) % size;

        n = piece_of(d, to, k, &at);
        st = cdi_mpi_send(b, q, in_at(d, at), n * d->size, to, CDI_TAG_PART, err);
    }
    return st;
}

static void sum_piece(struct reduction *d, size_t k)
{
    struct cdi_backend *b = d->run->b;
    size_t at, n = piece_of(d, b->world.rank, k, &at);
    void *to = sum_at(d, k, at);

    for (int r = 0; r < b->world.size; r++)
        d->in[r] = r == b->world.rank ? in_at(d, at) : slot(d, k, r);
    if (n > 0)
        cdi_reduce(&to, 1, d->in, b->world.size, n, d->op->dtype, d->op->op);
}

static bool wants(const struct reduction *d, int r)
{
    return d->op->kind == CDI_ALL_REDUCE || (d->op->kind == CDI_REDUCE && d->op->root == r);
}

/*
 * Sends the sum of this rank's piece k to the ranks that need it, and receives theirs. Overwritten input was sent
 * before.
 */
static cddp_status send_results(struct reduction *d, size_t k, struct cdi_error *err)
{
    struct cdi_backend *b = d->run->b;
    struct cdi_requests *q = &b->results[k % CDI_SETS];
    int size = b->world.size, rank = b->world.rank;
    cddp_status st = CDDP_OK;
    size_t at, n;

    for (int r = 0; r < size && st == CDDP_OK && wants(d, rank); r++)
        if (r != rank) {
            n = piece_of(d, r, k, &at);
            st = cdi_mpi_receive(b, q, out_at(d, at), n * d->size, r, CDI_TAG_MOVE, err);
        }
    n = piece_of(d, rank, k, &at);
    for (int i = 1; i < size && st == CDDP_OK; i++) {
        int to = (rank + i) % size;

        if (wants(d, to))
            st = cdi_mpi_send(b, q, sum_at(d, k, at), n * d->size, to, CDI_TAG_MOVE, err);
    }
    return st;
}

static cddp_status in_pieces(struct reduction *d, struct cdi_error *err)
{
    struct cdi_backend *b = d->run->b;
    cddp_status st = send_parts(d, 0, err);

    for (size_t k = 0; k < d->n_rounds && st == CDDP_OK; k++) {
        if (k + 1 < d->n_rounds)
            st = send_parts(d, k + 1, err);
        if (st == CDDP_OK)
            st = cdi_mpi_await(d->run, &b->parts[k % CDI_SETS], err);
        if (st == CDDP_OK)
            st = cdi_mpi_await(d->run, &b->results[k % CDI_SETS], err);
        if (st == CDDP_OK) {
            sum_piece(d, k);
            st = send_results(d, k, err);
        }
    }
    for (int i = 0; i < CDI_SETS && st == CDDP_OK; i++)
        st = cdi_mpi_await(d->run, &b->results[i], err);
    return st;
}

/* This rank has received all inputs; it sums what it needs of them. */
static void of_small(struct reduction *d, size_t bytes)
{
    struct cdi_backend *b = d->run->b;
    size_t lo = d->op->kind == CDI_REDUCE_SCATTER ? shard(d, b->world.rank) : 0;
    void *out = d->op->out;

    for (int r = 0; r < b->world.size; r++)
        d->in[r] = cdi_mpi_data_of(b, r, bytes) + lo * d->size;
    if (d->op->kind != CDI_REDUCE || d->op->root == b->world.rank)
        cdi_reduce(&out, 1, d->in, b->world.size, d->op->count, d->op->dtype, d->op->op);
}

cddp_status cdi_mpi_reduction(struct cdi_mpi_run *run, struct cdi_error *err)
{
    struct cdi_backend *b = run->b;
    struct reduction d = {.run = run, .op = run->op, .size = cddp_dtype_size(run->op->dtype)};
    size_t bytes = all_elements(&d) * d.size;
    bool small = bytes <= CDI_MPI_SMALL;
    cddp_status st = cdi_mpi_open(run, run->op->in, small ? bytes : 0, err);

    if (st != CDDP_OK || bytes == 0)
        return st;
    d.in = malloc((size_t)b->world.size * sizeof *d.in);
    if (d.in == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a collective");
    d.piece = b->piece / d.size;
    d.n_rounds = (shard(&d, 1) + d.piece - 1) / d.piece; /* the first shard is the largest */
    if (small)
        of_small(&d, bytes);
    else
        st = in_pieces(&d, err);
    free(d.in);
    return st;
}
