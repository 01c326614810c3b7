/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The norm of all gradients together, and clipping by it. Gradients are the same on all ranks once they have landed, so
 * each rank takes a part of every one of them, and the ranks exchange one number. Sums are made in float64, in an order
 * that depends on the world's size alone. With an optimizer a rank has its share of the gradients only, in the arena:
 * that is the part it takes, and the order depends on the buckets too. On a device the number stays there: whoever only
 * clips does not wait for it.
 */
#include "worker/reducer/norm.h"

#include "worker/reducer/arena.h"
#include "worker/reducer/shard.h"
#include "worker/reducer/step.h"
#include "worker/reducer/used.h"

#include <math.h>
#include <stdlib.h>

cddp_status cdi_norm_init(cddp_ddp *d, struct cdi_error *err)
{
    void *sum;
    cddp_status st;

    d->spans = calloc(d->n_params, sizeof *d->spans);
    if (d->spans == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu parameters", d->n_params);
    st = d->ops->alloc(d->b, sizeof *d->norm, &sum, err);
    if (st == CDDP_OK)
        d->norm = sum;
    return st;
}

void cdi_norm_release(cddp_ddp *d)
{
    if (d->norm != NULL)
        d->ops->release(d->b, d->norm);
    free(d->spans);
}

/* Where rank's part of `count` elements begins; where rank is the world's size: count. */
static size_t part_begin(size_t count, size_t rank, size_t size)
{
    return count / size * rank + count % size * rank / size;
}

/* What rank takes of a gradient; x is where it lies. */
static struct cdi_span part_of(cddp_ddp *d, size_t i, size_t rank)
{
    size_t world = (size_t)cdi_comm_world(d->comm)->size, count = d->params[i].count;
    cddp_dtype dtype = d->params[i].grad_dtype;
    size_t size = cddp_dtype_size(dtype), begin = part_begin(count, rank, world);
    struct cdi_shard own;

    if (!d->sharded)
        return (struct cdi_span){(char *)cddp_ddp_grad(d, i) + begin * size, part_begin(count, rank + 1, world) - begin,
                                 dtype};
    own = cdi_shard_one(&d->plan, i, (int)rank);
    /* What the arena has of one that no rank used is no gradient. */
    return (struct cdi_span){(char *)cdi_arena_grad(d, i) + own.lo * size, cdi_used_nowhere(d, i) ? 0 : own.count,
                             dtype};
}

/* What rank's parts have in sum, into d->norm: of squares, or the largest magnitude. add: to what is there. */
static cddp_status count_part(cddp_ddp *d, int rank, bool largest, bool add, struct cdi_error *err)
{
    for (size_t i = 0; i < d->n_params; i++)
        d->spans[i] = part_of(d, i, (size_t)rank);
    return d->ops->tally(d->b, d->spans, d->n_params, largest, add, d->norm, err);
}

/* The ranks' numbers become one: on a device behind what is enqueued, else on return. */
static cddp_status reduce(cddp_ddp *d, bool largest, struct cdi_error *err)
{
    /* Of the bits of magnitudes, so that a NaN is above infinity: larger bits are a larger number. */
    const struct cdi_coll op = {.kind = CDI_ALL_REDUCE,
                                .in = d->norm,
                                .out = d->norm,
                                .count = 1,
                                .dtype = largest ? CDDP_UINT64 : CDDP_FLOAT64,
                                .op = largest ? CDDP_MAX : CDDP_SUM,
                                .bucket = -1,
                                .asked = CDI_ASKED_GRAD_NORM,
                                .lazy = true};
    uint64_t ticket;
    cddp_status st = d->ops->enqueue(d->b, &op, &ticket, err);

    return st == CDDP_OK && !d->ops->on_device ? d->ops->join(d->b, ticket, err) : st;
}

/*
 * The same over all ranks. A rank without samples takes no part in what a program does beside the reducer's own
 * collectives: with CDDP_DDP_JOIN each rank counts all parts, in the same order.
 */
static cddp_status count_all(cddp_ddp *d, bool largest, struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(d->comm);
    bool alone = (d->flags & CDDP_DDP_JOIN) != 0;
    cddp_status st = CDDP_OK;

    for (int r = 0; alone && r < world->size && st == CDDP_OK; r++)
        st = count_part(d, r, largest, r > 0, err);
    if (!alone)
        st = count_part(d, world->rank, largest, false, err);
    return st == CDDP_OK && !alone && world->size > 1 ? reduce(d, largest, err) : st;
}

cddp_status cdi_norm_largest(cddp_ddp *d, struct cdi_error *err)
{
    return count_all(d, true, err);
}

cddp_status cdi_norm_measure(cddp_ddp *d, struct cdi_error *err)
{
    return count_all(d, false, err);
}

/* Locked. With an optimizer, in a step whose gradients have all come: this rank's share of the means is there. */
static cddp_status settle(cddp_ddp *d)
{
    cddp_status st = cdi_step_close(d);

    if (st != CDDP_OK || d->settled)
        return st;
    if (!d->ops->on_device) /* there, what comes is behind it */
        st = cdi_ddp_join_ticket(d, d->enqueued);
    if (st == CDDP_OK)
        st = cdi_step_complete_share(d);
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

/*
 * Into d->norm: what the norm is made of. Where a step has ended, or with an optimizer is about to; without the lock:
 * others may not begin one meanwhile.
 */
static cddp_status measure(cddp_ddp *d, double norm_type, struct cdi_error *err)
{
    bool largest = isinf(norm_type) && norm_type > 0;
    cddp_status st;

    if (!largest && norm_type != 2)
        return cdi_fail(err, CDDP_E_INVALID, "a gradient norm of type %g: use 2 or INFINITY", norm_type);
    (void)pthread_mutex_lock(&d->lock);
    st = prepare(d, err);
    (void)pthread_mutex_unlock(&d->lock);
    if (st == CDDP_OK && d->ops->on_device)
        st = d->ops->wait_stream(d->b, d->stream, err);
    return st == CDDP_OK ? count_all(d, largest, err) : st;
}

/* The norm as a number: on a device the host waits for it. */
static cddp_status fetch(cddp_ddp *d, double norm_type, double *norm, struct cdi_error *err)
{
    double sum = 0;
    cddp_status st = d->ops->copy(d->b, &sum, d->norm, sizeof sum, err);

    if (st == CDDP_OK)
        *norm = (isinf(norm_type) ? sum : sqrt(sum)) * cddp_ddp_grad_scale(d);
    return st;
}

static cddp_status scale_all(cddp_ddp *d, const struct cdi_clip *how, struct cdi_error *err)
{
    for (size_t i = 0; i < d->n_params; i++)
        d->spans[i] = d->sharded ? part_of(d, i, (size_t)cdi_comm_world(d->comm)->rank)
                                 : (struct cdi_span){cddp_ddp_grad(d, i), d->params[i].count, d->params[i].grad_dtype};
    return d->ops->clip(d->b, d->spans, d->n_params, how, d->norm, err);
}

cddp_status cdi_norm_clip(cddp_ddp *d, double max_norm, double scale, struct cdi_error *err)
{
    const struct cdi_clip how = {max_norm, scale, false};

    return scale_all(d, &how, err);
}

static cddp_status clip(cddp_ddp *d, double max_norm, double norm_type, bool error_if_nonfinite, double *norm,
                        struct cdi_error *err)
{
    const struct cdi_clip how = {max_norm, cddp_ddp_grad_scale(d), isinf(norm_type)};
    double number = 0;
    cddp_status st;

    if (!(max_norm >= 0))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_ddp_clip_grad_norm: max_norm is %g, not 0 or more", max_norm);
    st = measure(d, norm_type, err);
    if (st == CDDP_OK && (norm != NULL || error_if_nonfinite))
        st = fetch(d, norm_type, &number, err);
    if (st == CDDP_OK && norm != NULL)
        *norm = number;
    if (st == CDDP_OK && error_if_nonfinite && !isfinite(number))
        return cdi_fail(err, CDDP_E_NONFINITE, "the norm of the gradients is %g, so they cannot be clipped", number);
    if (st == CDDP_OK)
        st = scale_all(d, &how, err);
    return st == CDDP_OK && d->ops->on_device ? d->ops->stream_wait(d->b, 0, d->stream, err) : st;
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
        st = measure(ddp, norm_type, &err);
    if (st == CDDP_OK)
        st = fetch(ddp, norm_type, norm, &err);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

cddp_status cddp_ddp_clip_grad_norm(cddp_ddp *ddp, double max_norm, double norm_type, int error_if_nonfinite,
                                    double *norm)
{
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_clip_grad_norm", ddp, &err);

    if (st == CDDP_OK)
        st = clip(ddp, max_norm, norm_type, error_if_nonfinite != 0, norm, &err);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
