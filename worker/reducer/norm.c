/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The norm of all gradients together, and clipping by it. Reduced gradients are the same on all ranks. So each rank
 * takes a part of every gradient, and the ranks add up words of an exact sum (math/exact_sum.h). With an optimizer or
 * divided parameters a rank has only its share of the gradients, in the arena: that is its part. No part cuts a line of
 * a gradient (CDI_NORM_LINE), since arena offsets and shares are multiples of CDI_GRAD_ALIGN. So the bits depend on the
 * gradients alone, and not on the world size, the buckets, or who owns what. On a device the number stays there: a
 * program that only clips does not wait for it.
 */
#include "worker/reducer/norm.h"

#include "common/float_state.h"
#include "worker/reducer/grads/tied.h"
#include "worker/reducer/layout/shard.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/captured.h"
#include "worker/reducer/state/used.h"
#include "worker/reducer/step.h"

#include <math.h>
#include <stdlib.h>

cddp_status cdi_norm_init(cddp_ddp *d, struct cdi_error *err)
{
    void *sum = NULL;
    cddp_status st;

    d->spans = calloc(d->n_params, sizeof *d->spans);
    if (d->spans == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu parameters", d->n_params);
    st = cdi_backend_zeros(d->ops, d->b, CDI_NORM_ROOM * sizeof *d->norm, &sum, err);
    d->norm = sum;
    return st;
}

void cdi_norm_release(cddp_ddp *d)
{
    if (d->norm != NULL)
        d->ops->release(d->b, d->norm);
    free(d->spans);
}

_Static_assert(CDI_GRAD_ALIGN % CDI_NORM_LINE == 0, "no share cuts a line");

/* Returns true if a rank has shares of the means alone, which are measured before the step ends. */
static bool has_shares(const cddp_ddp *d)
{
    return d->sharded || cdi_ddp_is_divided(d);
}

/* Returns the first of `count` elements, `line` to a line, that belong to `rank`; count if rank is the world size. */
static size_t part_begin(size_t count, size_t line, size_t rank, size_t world)
{
    size_t lines = (count + line - 1) / line, begin = (lines / world * rank + lines % world * rank / world) * line;

    return begin < count ? begin : count;
}

/* Returns this rank's part of gradient i. A rank without samples (CDDP_DDP_JOIN) takes no part: each counts all. */
static struct cdi_span norm_part_of(cddp_ddp *d, size_t i)
{
    const struct cdi_world *w = cdi_comm_world(d->comm);
    bool alone = (d->flags & CDDP_DDP_JOIN) != 0;
    cddp_dtype dtype = d->params[i].grad_dtype;
    size_t size = cddp_dtype_size(dtype), line = CDI_NORM_LINE / size, count = d->params[i].count;
    size_t rank = alone ? 0 : (size_t)w->rank, world = alone ? 1 : (size_t)w->size;
    size_t begin = part_begin(count, line, rank, world);
    struct cdi_shard own;

    if (!has_shares(d))
        return (struct cdi_span){(char *)cddp_ddp_grad(d, i) + begin * size,
                                 part_begin(count, line, rank + 1, world) - begin, dtype};
    own = cdi_shard_one(&d->plan, i, w->rank);
    /* The arena's content for a gradient that no rank used is not a gradient. Tied ones are in the first one's sum. */
    return (struct cdi_span){(char *)cdi_arena_grad(d, i) + own.lo * size,
                             cdi_ddp_is_tied(d, i) || cdi_used_nowhere_tied(d, i) ? 0 : own.count, dtype};
}

/* Combines the ranks' numbers: on a device after everything enqueued, otherwise before it returns. */
static cddp_status norm_reduce(cddp_ddp *d, bool largest, struct cdi_error *err)
{
    /* Compares the bits of magnitudes, so that a NaN is above infinity: larger bits are a larger number. */
    double *number = largest ? d->norm : d->norm + 1;
    const struct cdi_coll op = {.kind = CDI_ALL_REDUCE,
                                .in = number,
                                .out = number,
                                .count = largest ? 1 : CDI_EXACT_WORDS,
                                .dtype = CDDP_UINT64,
                                .op = largest ? CDDP_MAX : CDDP_SUM,
                                .bucket = -1,
                                .asked = CDI_API_GRAD_NORM,
                                .lazy = true};
    uint64_t ticket;
    cddp_status st = cdi_ddp_begin(d, &op, &ticket, err);

    if (st == CDDP_OK && !d->ops->on_device)
        st = d->ops->join(d->b, ticket, err);
    return st == CDDP_OK && !largest ? d->ops->norm_round(d->b, d->norm, err) : st;
}

/* Stores in d->norm the sum of squares over all ranks' parts, or the largest magnitude. */
static cddp_status count_all(cddp_ddp *d, bool largest, struct cdi_error *err)
{
    bool alone = (d->flags & CDDP_DDP_JOIN) != 0 || cdi_comm_world(d->comm)->size == 1;
    cddp_status st = d->sharded ? cdi_tied_fold(d, err) : CDDP_OK;

    for (size_t i = 0; i < d->n_params; i++)
        d->spans[i] = norm_part_of(d, i);
    if (st == CDDP_OK)
        st = d->ops->norm(d->b, d->spans, d->n_params, largest, d->norm, err);
    return st == CDDP_OK && !alone ? norm_reduce(d, largest, err) : st;
}

cddp_status cdi_norm_largest(cddp_ddp *d, struct cdi_error *err)
{
    return count_all(d, true, err);
}

cddp_status cdi_norm_measure(cddp_ddp *d, struct cdi_error *err)
{
    return count_all(d, false, err);
}

/*
 * Waits, with the lock held, for this rank's share of the means. All gradients of the step have
 * arrived.
 */
static cddp_status norm_complete_step(cddp_ddp *d)
{
    cddp_status st = cdi_step_close(d);

    if (st != CDDP_OK || d->share_complete)
        return st;
    if (!d->ops->on_device) /* on a device later work follows it */
        st = cdi_ddp_join_ticket(d, d->enqueued);
    if (st == CDDP_OK)
        st = cdi_step_complete_share(d);
    d->share_complete = d->begun = st == CDDP_OK;
    return st;
}

/* Checks, with the lock held, that there are gradients to measure. */
static cddp_status norm_prepare(cddp_ddp *d, struct cdi_error *err)
{
    if (has_shares(d))
        (void)norm_complete_step(d);
    if (d->sticky.status != CDDP_OK) {
        *err = d->sticky;
        return err->status;
    }
    if (d->begun && !has_shares(d))
        return cdi_fail(err, CDDP_E_STATE,
                        "the gradient norm was requested in the middle of step %llu: call cddp_ddp_wait before",
                        (unsigned long long)d->step);
    return CDDP_OK;
}

static cddp_status check_type(double norm_type, struct cdi_error *err)
{
    if (norm_type == 2 || (isinf(norm_type) && norm_type > 0))
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID, "a gradient norm of type %g: use 2 or INFINITY", norm_type);
}

/*
 * Computes the number in d->norm after a step, or with shares before its end: for a clip, which each rank makes in its
 * share, so that all must have the same max_norm. how: NULL: no clip. Without the lock: no other thread may begin a
 * step meanwhile.
 */
static cddp_status norm_measure_spans(cddp_ddp *d, double norm_type, const struct cdi_clip *how, struct cdi_error *err)
{
    const float most = how != NULL ? (float)how->max_norm + 0.0f : 0; /* never -0 */
    bool largest = isinf(norm_type);
    cddp_status st;

    (void)pthread_mutex_lock(&d->lock);
    st = norm_prepare(d, err);
    if (st == CDDP_OK && how != NULL && has_shares(d) && !d->ops->on_device)
        cdi_ddp_note_step(d, &most, sizeof most);
    (void)pthread_mutex_unlock(&d->lock);
    if (st == CDDP_OK && d->ops->on_device)
        st = cdi_ddp_follow(d, d->stream, err);
    return st == CDDP_OK ? count_all(d, largest, err) : st;
}

/* Returns the norm as a number: on a device the host waits for it. */
static cddp_status norm_fetch(cddp_ddp *d, double norm_type, double *norm, struct cdi_error *err)
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
        d->spans[i] = has_shares(d)
                          ? norm_part_of(d, i)
                          : (struct cdi_span){cddp_ddp_grad(d, i), d->params[i].count, d->params[i].grad_dtype};
    return d->ops->clip(d->b, d->spans, d->n_params, how, d->norm, err);
}

cddp_status cdi_norm_clip(cddp_ddp *d, double max_norm, double scale, const double *scale_at, struct cdi_error *err)
{
    const struct cdi_clip how = {.max_norm = max_norm, .factor = scale, .factor_at = scale_at};

    return scale_all(d, &how, err);
}

/* Rejects a wrong max_norm or norm_type. */
static cddp_status check_clip(double max_norm, double norm_type, struct cdi_error *err)
{
    if (!(max_norm >= 0))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_ddp_clip_grad_norm: max_norm is %g, not 0 or more", max_norm);
    return check_type(norm_type, err);
}

/* Clips within a capture, with the lock held: nothing is left to the host. */
static cddp_status clip_captured(cddp_ddp *d, const struct cdi_clip *how, struct cdi_error *err)
{
    cddp_status st;

    if (d->begun && !d->sharded)
        return cdi_fail(err, CDDP_E_STATE,
                        "the captured step has not ended: call cddp_ddp_wait before "
                        "cddp_ddp_clip_grad_norm");
    if (d->sharded) {
        st = cdi_step_close_captured(d, err);
        if (st == CDDP_OK)
            st = cdi_step_complete_share(d); /* an error is sticky */
        if (st != CDDP_OK)
            return st;
        d->share_complete = true;
    }
    st = cdi_ddp_follow(d, d->stream, err);
    if (st == CDDP_OK)
        st = count_all(d, how->largest, err);
    if (st == CDDP_OK)
        st = scale_all(d, how, err);
    return st == CDDP_OK ? d->ops->stream_wait(d->b, 0, d->stream, err) : st;
}

/* Clips if the compute stream captures a graph. If *captured is set, or the call fails, nothing is left to do. */
static cddp_status clip_in_capture(cddp_ddp *d, const struct cdi_clip *how, bool wants_number, bool *captured,
                                   struct cdi_error *err)
{
    cddp_status st;

    *captured = false;
    if (d->ops->capture_of == NULL)
        return CDDP_OK;
    (void)pthread_mutex_lock(&d->lock);
    st = cdi_captured_enter(d, d->stream, true, captured, err);
    if (*captured && wants_number)
        st = cdi_fail(err, CDDP_E_UNSUPPORTED,
                      "the stream captures a graph, and the host cannot wait for a norm there: pass NULL for norm, and "
                      "0 for error_if_nonfinite");
    else if (*captured)
        st = clip_captured(d, how, err);
    if (*captured)
        st = cdi_captured_leave(d, d->stream, st, err);
    (void)pthread_mutex_unlock(&d->lock);
    return st;
}

static cddp_status clip(cddp_ddp *d, double max_norm, double norm_type, bool error_if_nonfinite, double *norm,
                        struct cdi_error *err)
{
    const struct cdi_clip how = {.max_norm = max_norm, .factor = cddp_ddp_grad_scale(d), .largest = isinf(norm_type)};
    double number = 0;
    bool captured = false;
    cddp_status st = check_clip(max_norm, norm_type, err);

    if (st == CDDP_OK)
        st = clip_in_capture(d, &how, norm != NULL || error_if_nonfinite, &captured, err);
    if (st != CDDP_OK || captured)
        return st;
    st = norm_measure_spans(d, norm_type, &how, err);
    if (st == CDDP_OK && (norm != NULL || error_if_nonfinite))
        st = norm_fetch(d, norm_type, &number, err);
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
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = ddp != NULL ? cdi_comm_own("cddp_ddp_grad_norm", ddp->comm, &err) : CDDP_OK;

    CDI_FLOAT_FENCE(norm_type);
    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    if (ddp == NULL || norm == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_ddp_grad_norm: ddp and norm must not be NULL");
    else
        st = check_type(norm_type, &err);
    if (st == CDDP_OK && ddp != NULL) {
        (void)pthread_mutex_lock(&ddp->lock);
        st = cdi_captured_refuse(ddp, "cddp_ddp_grad_norm", &err); /* the host waits for the number */
        (void)pthread_mutex_unlock(&ddp->lock);
    }
    if (st == CDDP_OK)
        st = norm_measure_spans(ddp, norm_type, NULL, &err);
    if (st == CDDP_OK)
        st = norm_fetch(ddp, norm_type, norm, &err);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

cddp_status cddp_ddp_clip_grad_norm(cddp_ddp *ddp, double max_norm, double norm_type, int error_if_nonfinite,
                                    double *norm)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_clip_grad_norm", ddp, &err);

    CDI_FLOAT_FENCE(max_norm);
    CDI_FLOAT_FENCE(norm_type);
    if (st == CDDP_OK)
        st = clip(ddp, max_norm, norm_type, error_if_nonfinite != 0, norm, &err);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
