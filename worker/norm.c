/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The norm of all gradients together, and clipping by it. Gradients are the same on all ranks once they have landed, so
 * each rank takes a part of every one of them, and the ranks exchange one number. Sums are made in float64, in an order
 * that depends on the world's size alone. With an optimizer a rank has its share of the gradients only, in the arena:
 * that is the part it takes, and the order depends on the buckets too.
 */
#include "worker/backend/cpu/float16.h"
#include "worker/optim_shard.h"
#include "worker/reducer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK ((size_t)512) /* elements that are brought to float64 at once */
#define LANES 8             /* sums side by side */
#define COPY_BYTES ((size_t)1 << 20)

/* Of the magnitudes of numbers, so that a NaN is above infinity: larger bits are a larger number. */
static uint64_t magnitude(double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    return bits & INT64_MAX;
}

static double of_magnitude(uint64_t bits)
{
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

struct tally {
    bool largest; /* the norm of type infinity; else the Euclidean one */
    double squares[LANES];
    uint64_t most;
};

static void load(double *to, const void *from, cddp_dtype dtype, size_t n)
{
    if (dtype == CDDP_FLOAT64)
        memcpy(to, from, n * sizeof *to);
    else if (dtype == CDDP_FLOAT32)
        for (size_t k = 0; k < n; k++)
            to[k] = (double)((const float *)from)[k];
    else if (dtype == CDDP_FLOAT16)
        for (size_t k = 0; k < n; k++)
            to[k] = (double)cdi_float_of_f16(((const uint16_t *)from)[k]);
    else
        for (size_t k = 0; k < n; k++)
            to[k] = (double)cdi_float_of_bf16(((const uint16_t *)from)[k]);
}

/* Host memory. */
static void count_in(struct tally *t, const void *x, cddp_dtype dtype, size_t count)
{
    double v[BLOCK];

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK, k = 0;

        load(v, (const char *)x + at * cddp_dtype_size(dtype), dtype, n);
        for (; t->largest && k < n; k++)
            t->most = magnitude(v[k]) > t->most ? magnitude(v[k]) : t->most;
        for (; k + LANES <= n; k += LANES)
            for (size_t l = 0; l < LANES; l++)
                t->squares[l] += v[k + l] * v[k + l];
        for (; k < n; k++)
            t->squares[0] += v[k] * v[k];
    }
}

/* A device's memory comes in pieces. */
static cddp_status count_in_copies(cddp_ddp *d, struct tally *t, const char *x, cddp_dtype dtype, size_t count,
                                   void *copy, struct cdi_error *err)
{
    size_t size = cddp_dtype_size(dtype), piece = COPY_BYTES / size;
    cddp_status st = CDDP_OK;

    for (size_t at = 0; at < count && st == CDDP_OK; at += piece) {
        size_t n = count - at < piece ? count - at : piece;

        st = d->ops->copy(d->b, copy, x + at * size, n * size, err);
        if (st == CDDP_OK)
            count_in(t, copy, dtype, n);
    }
    return st;
}

/* Where rank's part of `count` elements begins; where rank is the world's size: count. */
static size_t part_begin(size_t count, size_t rank, size_t size)
{
    return count / size * rank + count % size * rank / size;
}

/* What rank takes of a gradient; x is where it lies. */
struct part {
    char *x;
    size_t n;
};

static struct part part_of(cddp_ddp *d, size_t i, size_t rank)
{
    size_t world = (size_t)cdi_comm_world(d->comm)->size, count = d->params[i].count;
    size_t size = cddp_dtype_size(d->params[i].dtype), begin = part_begin(count, rank, world);
    struct cdi_shard own;

    if (!d->sharded)
        return (struct part){(char *)cddp_ddp_grad(d, i) + begin * size, part_begin(count, rank + 1, world) - begin};
    own = cdi_shard_one(&d->plan, i, (int)rank);
    /* What the arena has of one that no rank used is no gradient. */
    return (struct part){(char *)cdi_ddp_arena_grad(d, i) + own.lo * size, cdi_unused_nowhere(d, i) ? 0 : own.count};
}

/* What rank's parts have in sum: of squares, or the largest magnitude. */
static cddp_status count_part(cddp_ddp *d, int rank, bool largest, double *out, struct cdi_error *err)
{
    void *copy = d->ops->on_device ? malloc(COPY_BYTES) : NULL;
    struct tally t = {.largest = largest};
    cddp_status st = CDDP_OK;

    if (d->ops->on_device && copy == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a copy of gradients");
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        struct part p = part_of(d, i, (size_t)rank);

        if (d->ops->on_device)
            st = count_in_copies(d, &t, p.x, d->params[i].dtype, p.n, copy, err);
        else
            count_in(&t, p.x, d->params[i].dtype, p.n);
    }
    free(copy);
    *out = of_magnitude(t.most);
    for (size_t l = 0; !largest && l < LANES; l++)
        *out += t.squares[l];
    return st;
}

/*
 * The same over all ranks. A rank without samples takes no part in what a program does beside the reducer's own
 * collectives: with CDDP_DDP_JOIN each rank counts all parts, in the same order.
 */
static cddp_status count_all(cddp_ddp *d, bool largest, double *out, struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(d->comm);
    bool alone = (d->flags & CDDP_DDP_JOIN) != 0;
    double mine = 0;
    cddp_status st = CDDP_OK;
    uint64_t most;

    *out = 0;
    for (int r = 0; alone && r < world->size && st == CDDP_OK; r++) {
        st = count_part(d, r, largest, &mine, err);
        if (!largest)
            *out += mine;
        else if (magnitude(mine) > magnitude(*out))
            *out = mine;
    }
    if (alone)
        return st;
    st = count_part(d, world->rank, largest, &mine, err);
    if (st != CDDP_OK)
        return st;
    if (!largest)
        return cdi_comm_all_reduce(d->comm, &mine, out, 1, CDDP_FLOAT64, CDDP_SUM, err);
    most = magnitude(mine);
    st = cdi_comm_all_reduce(d->comm, &most, &most, 1, CDDP_UINT64, CDDP_MAX, err);
    *out = of_magnitude(most);
    return st;
}

/* Locked. With an optimizer, in a step whose gradients have all come: this rank's share of the means is there. */
static cddp_status settle(cddp_ddp *d)
{
    cddp_status st = cdi_ddp_complete(d);

    if (st != CDDP_OK || d->settled)
        return st;
    st = cdi_ddp_join_ticket(d, d->enqueued);
    if (st == CDDP_OK)
        st = cdi_unused_restore(d);
    d->settled = d->begun = st == CDDP_OK;
    return st;
}

/* Locked: are there gradients to measure? */
static cddp_status prepare(cddp_ddp *d, struct cdi_error *err)
{
    if (d->sharded)
        (void)settle(d);
    if (d->sticky.status != CDDP_OK) {
        *err = d->sticky;
        return err->status;
    }
    if (d->begun && !d->sharded)
        return cdi_fail(err, CDDP_E_STATE,
                        "the gradient norm was asked for in the middle of step %llu: call cddp_ddp_wait before",
                        (unsigned long long)d->step);
    return CDDP_OK;
}

/* Where a step has ended, or with an optimizer is about to; without the lock: others may not begin one meanwhile. */
static cddp_status grad_norm(cddp_ddp *d, double norm_type, double *out, struct cdi_error *err)
{
    bool largest = isinf(norm_type) && norm_type > 0;
    double all = 0;
    cddp_status st;

    if (!largest && norm_type != 2)
        return cdi_fail(err, CDDP_E_INVALID, "a gradient norm of type %g: use 2 or INFINITY", norm_type);
    (void)pthread_mutex_lock(&d->lock);
    st = prepare(d, err);
    (void)pthread_mutex_unlock(&d->lock);
    if (st == CDDP_OK && d->ops->on_device)
        st = d->ops->follow(d->b, d->stream, err);
    if (st == CDDP_OK)
        st = count_all(d, largest, &all, err);
    if (st == CDDP_E_NOMEM) { /* here alone, and the others wait */
        (void)pthread_mutex_lock(&d->lock);
        st = cdi_ddp_misused(d, err);
        (void)pthread_mutex_unlock(&d->lock);
    }
    if (st != CDDP_OK)
        return st;
    *out = (largest ? all : sqrt(all)) * cddp_ddp_factor(d);
    return CDDP_OK;
}

static cddp_status scale_all(cddp_ddp *d, double factor, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        struct part p = {cddp_ddp_grad(d, i), d->params[i].count};

        if (d->sharded)
            p = part_of(d, i, (size_t)cdi_comm_world(d->comm)->rank);
        st = d->ops->scale(d->b, p.x, p.n, d->params[i].dtype, factor, err);
    }
    return st == CDDP_OK && d->ops->on_device ? d->ops->lead(d->b, 0, d->stream, err) : st;
}

static cddp_status clip(cddp_ddp *d, double max_norm, double norm_type, bool error_if_nonfinite, double *norm,
                        struct cdi_error *err)
{
    double factor;
    cddp_status st;

    if (!(max_norm >= 0))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_ddp_clip_grad_norm: max_norm is %g, not 0 or more", max_norm);
    st = grad_norm(d, norm_type, norm, err);
    if (st != CDDP_OK)
        return st;
    if (error_if_nonfinite && !isfinite(*norm))
        return cdi_fail(err, CDDP_E_STATE, "the norm of the gradients is %g, so they cannot be clipped", *norm);
    factor = max_norm / (*norm + 1e-6);
    return factor >= 1 ? CDDP_OK : scale_all(d, factor, err); /* a NaN goes into all of them */
}

cddp_status cddp_ddp_grad_norm(cddp_ddp *ddp, double norm_type, double *norm)
{
    struct cdi_error err;
    cddp_status st = ddp != NULL ? cdi_comm_own("cddp_ddp_grad_norm", ddp->comm, &err) : CDDP_OK;

    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    if (ddp == NULL || norm == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_ddp_grad_norm: ddp and norm must not be NULL");
    else
        st = grad_norm(ddp, norm_type, norm, &err);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

cddp_status cddp_ddp_clip_grad_norm(cddp_ddp *ddp, double max_norm, double norm_type, int error_if_nonfinite,
                                    double *norm)
{
    struct cdi_error err;
    double unasked;
    cddp_status st = cdi_ddp_check("cddp_ddp_clip_grad_norm", ddp, &err);

    if (st == CDDP_OK)
        st = clip(ddp, max_norm, norm_type, error_if_nonfinite != 0, norm != NULL ? norm : &unasked, &err);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
