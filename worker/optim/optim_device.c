/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's part on a device, which holds its state. A step is enqueued after the gradients, the compute stream
 * waits for the step, and the host does not wait. A rank's share, and the destinations of the others' values, are the
 * same in every step, so both lists are made once. With the reducer's lock held, except for creation and checkpoints.
 */
#include "worker/optim/optim.h"

#include "worker/reducer/grads/tied.h"
#include "worker/reducer/nan_check.h"
#include "worker/reducer/norm.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/step.h"

#include <stdlib.h>
#include <string.h>

/* Offsets in the reducer's single block of device memory for its optimizer. */
struct layout {
    size_t skipped, numbers, state[CDI_OPTIM_STATES], master, end;
};

static struct layout layout_of(const cddp_optim *o)
{
    size_t at = o->ddp->n_params * sizeof *o->rows;
    struct layout l;

    l.skipped = at;
    l.numbers = at + sizeof *o->device_skipped;
    at += CDI_GRAD_ALIGN;
    for (int k = 0; k < CDI_OPTIM_STATES; k++) {
        l.state[k] = at;
        at += k < cdi_optim_n_states(&o->rule) ? o->sizes.state : 0;
    }
    l.master = at;
    l.end = at + o->sizes.master;
    return l;
}

static struct cdi_optim_piece optim_range_of(const cddp_optim *o, size_t i, size_t at, size_t count)
{
    const cddp_param *p = &o->ddp->params[i];

    return (struct cdi_optim_piece){.w = (char *)p->data + at * cddp_dtype_size(p->dtype),
                                    .g = (char *)cdi_arena_grad(o->ddp, i) + at * cddp_dtype_size(p->grad_dtype),
                                    .count = count,
                                    .dtype = p->dtype,
                                    .long_g = cdi_optim_has_wide_grad(p),
                                    .row = i};
}

static struct cdi_optim_piece optim_piece_of(const cddp_optim *o, size_t i)
{
    const cddp_param *p = &o->ddp->params[i];
    const struct cdi_shard *s = &o->shards[i];
    struct cdi_optim_piece piece = optim_range_of(o, i, s->lo, s->count);

    for (int k = 0; k < cdi_optim_n_states(&o->rule); k++)
        piece.state[k] = (char *)o->state[k] + s->state_at;
    if (cdi_shard_has_master(p->dtype))
        piece.master = o->master + s->master_at / sizeof(float);
    return piece;
}

static void optim_add_slice(cddp_optim *o, void *data, size_t bytes)
{
    if (bytes > 0)
        o->others[o->n_others++] = (struct cdi_slice){data, bytes};
}

/*
 * Lists the arena in order: other ranks' parts, each with its destination, and gaps. Parts that need a type conversion
 * become pieces instead, which a kernel converts.
 */
static void list_others(cddp_optim *o)
{
    const cddp_ddp *d = o->ddp;
    size_t end = 0;

    for (size_t k = 0; k < d->n_params; k++) {
        size_t i = d->plan.place[k], size = cddp_dtype_size(d->params[i].dtype), bytes = d->plan.grads[i].bytes;
        size_t lo = o->shards[i].lo * size, own = o->shards[i].count * size;
        char *w = d->params[i].data;

        if (cdi_optim_has_wide_grad(&d->params[i]) && !cdi_ddp_is_tied(d, i)) {
            size_t hi = o->shards[i].lo + o->shards[i].count;

            o->pieces[o->n_pieces++] = optim_range_of(o, i, 0, o->shards[i].lo);
            o->pieces[o->n_pieces++] = optim_range_of(o, i, hi, d->params[i].count - hi);
        }
        if (cdi_optim_has_wide_grad(&d->params[i]) || cdi_ddp_is_tied(d, i))
            continue; /* it becomes part of the next gap */
        optim_add_slice(o, NULL, d->plan.grads[i].offset - end);
        optim_add_slice(o, w, lo);
        optim_add_slice(o, NULL, own);
        optim_add_slice(o, w + lo + own, bytes - lo - own);
        end = d->plan.grads[i].offset + bytes;
    }
}

cddp_status cdi_optim_device_copy(cddp_optim *o, struct cdi_error *err)
{
    cddp_ddp *d = o->ddp;
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        const struct cdi_optim_piece *p = &o->pieces[i];

        if (p->master != NULL && p->count > 0)
            st = d->ops->cast(d->b, p->master, CDDP_FLOAT32, p->w, p->dtype, p->count, 1, err);
    }
    return st;
}

/* Fills in zeros, the groups, and the float32 copies of this rank's 16-bit parameters. */
static cddp_status optim_fill(cddp_optim *o, size_t bytes, struct cdi_error *err)
{
    cddp_ddp *d = o->ddp;
    cddp_status st = cdi_ddp_follow(d, d->stream, err);

    if (st == CDDP_OK)
        st = d->ops->clear(d->b, d->optim_memory, bytes, err);
    for (size_t i = 0; i < d->n_params; i++)
        o->rows[i] = (struct cdi_optim_row){.lr_factor = o->own[i].lr_factor, .weight_decay = o->own[i].weight_decay};
    if (st == CDDP_OK)
        st = cdi_optim_device_copy(o, err);
    if (st == CDDP_OK)
        st = cdi_optim_device_push(o, err);
    return st == CDDP_OK ? cdi_optim_device_store(o, o->rule.lr, o->grad_scale, err) : st;
}

cddp_status cdi_optim_device_init(cddp_optim *o, struct cdi_error *err)
{
    cddp_ddp *d = o->ddp;
    struct layout l = layout_of(o);
    bool ok;
    cddp_status st;

    o->rows = calloc(d->n_params, sizeof *o->rows);
    o->pieces = calloc(3 * d->n_params, sizeof *o->pieces);
    o->others = calloc(4 * d->n_params, sizeof *o->others);
    o->idle = calloc(d->n_params, sizeof *o->idle);
    ok = o->rows != NULL && o->pieces != NULL && o->others != NULL && o->idle != NULL;
    st = ok ? d->ops->alloc(d->b, l.end, &d->optim_memory, err)
            : cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu parameters", d->n_params);
    if (st == CDDP_OK) {
        char *at = d->optim_memory;

        o->device_rows = (struct cdi_optim_row *)(void *)at;
        o->device_skipped = (uint64_t *)(void *)(at + l.skipped);
        o->device_numbers = (double *)(void *)(at + l.numbers);
        for (int k = 0; k < cdi_optim_n_states(&o->rule); k++)
            o->state[k] = at + l.state[k];
        o->master = (float *)(void *)(at + l.master);
        for (size_t i = 0; i < d->n_params; i++)
            o->pieces[i] = optim_piece_of(o, i);
        o->n_pieces = d->n_params;
        list_others(o);
        st = optim_fill(o, l.end, err);
    }
    return st;
}

void cdi_optim_device_release(cddp_optim *o)
{
    free(o->rows);
    free(o->pieces);
    free(o->others);
    free(o->idle);
    if (o->ddp == NULL) /* the reducer has freed it */
        return;
    o->ddp->ops->release(o->ddp->b, o->ddp->optim_memory);
    o->ddp->optim_memory = NULL;
}

cddp_status cdi_optim_device_pull(cddp_optim *o, struct cdi_error *err)
{
    cddp_ddp *d = o->ddp;
    cddp_status st = cdi_ddp_follow(d, d->stream, err); /* CUDA graphs count steps on this stream */

    if (st == CDDP_OK)
        st = d->ops->copy(d->b, o->rows, o->device_rows, d->n_params * sizeof *o->rows, err);
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++)
        o->steps[i] = o->rows[i].steps;
    return st;
}

cddp_status cdi_optim_device_push(cddp_optim *o, struct cdi_error *err)
{
    cddp_ddp *d = o->ddp;
    cddp_status st = cdi_ddp_follow(d, d->stream, err);

    if (st != CDDP_OK)
        return st;
    for (size_t i = 0; i < d->n_params; i++)
        o->rows[i].steps = o->steps[i];
    return d->ops->copy(d->b, o->device_rows, o->rows, d->n_params * sizeof *o->rows, err);
}

cddp_status cdi_optim_device_store(cddp_optim *o, double lr, double grad_scale, struct cdi_error *err)
{
    const double numbers[] = {lr, o->rule.factor * grad_scale};

    return o->ddp->ops->store(o->ddp->b, o->device_numbers, numbers, 2, o->ddp->stream, err);
}

/* Updates this rank's part of all parameters. In a graph, numbers that may change later are read on the device. */
static cddp_status update(cddp_ddp *d, cddp_optim *o, struct cdi_error *err)
{
    const bool captured = d->captured.id != 0;
    const double *scale_at = captured && !o->own_scale ? &o->device_numbers[1] : NULL;
    const struct cdi_optim_step step = {.rule = &o->now,
                                        .rows = o->device_rows,
                                        .n_rows = d->n_params,
                                        .idle = o->idle,
                                        .largest = o->skip_nonfinite ? d->norm : NULL,
                                        .skipped = o->device_skipped,
                                        .bad = captured ? cdi_nan_bad(d) : NULL,
                                        .lr_at = captured && !o->own_lr ? &o->device_numbers[0] : NULL,
                                        .factor_at = scale_at,
                                        .publish = cdi_optim_exchanges(o)};
    cddp_status st = cdi_ddp_follow(d, d->stream, err);

    if (st == CDDP_OK)
        st = cdi_tied_fold(d, err);
    for (size_t i = 0; i < d->n_params; i++)
        o->idle[i] = cdi_optim_is_idle(o, i);
    /* With skip_nonfinite, a norm that is not finite skips the step, as such a largest magnitude does. */
    if (st == CDDP_OK && o->max_norm > 0)
        st = cdi_norm_measure(d, err);
    else if (st == CDDP_OK && o->skip_nonfinite)
        st = cdi_norm_largest(d, err);
    if (st == CDDP_OK && o->max_norm > 0)
        st = cdi_norm_clip(d, o->max_norm, o->now.factor, scale_at, err);
    if (st == CDDP_OK)
        st = d->ops->optim_count(d->b, &step, err);
    return st == CDDP_OK ? d->ops->optim_update(d->b, &step, o->pieces, d->n_params, err) : st;
}

cddp_status cdi_optim_device_complete(cddp_ddp *d, void *arg)
{
    cddp_optim *o = arg;
    const struct cdi_optim_step collect = {
        .rule = &o->now, .rows = o->device_rows, .n_rows = d->n_params, .collect = true};
    bool exchanges = cdi_optim_exchanges(o);
    cddp_status st = cdi_step_complete_share(d);
    struct cdi_error err;

    if (st == CDDP_OK && update(d, o, &err) != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    for (size_t b = 0; b < d->plan.n && st == CDDP_OK && exchanges; b++)
        if (cdi_optim_bucket_has_untied(o, b))
            st = cdi_optim_exchange(o, b);
    if (st != CDDP_OK)
        return st;
    if (exchanges)
        st = d->ops->unpack(d->b, o->others, o->n_others, d->region->base, &err);
    if (st == CDDP_OK && exchanges)
        st = d->ops->optim_update(d->b, &collect, o->pieces + d->n_params, o->n_pieces - d->n_params, &err);
    if (st == CDDP_OK)
        st = cdi_ddp_stream_wait(d, 0, &err);
    return st == CDDP_OK ? st : cdi_ddp_set_error(d, &err);
}

cddp_status cdi_optim_device_pass_over(cddp_ddp *d, void *arg)
{
    cddp_status st = cdi_step_complete_share(d);
    struct cdi_error err;

    (void)arg;
    if (st != CDDP_OK)
        return st;
    return cdi_ddp_stream_wait(d, 0, &err) == CDDP_OK ? CDDP_OK : cdi_ddp_set_error(d, &err);
}
