/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients in the user's own memory: which of them each bucket holds, and how they are copied into the arena and back.
 * Both are one call of the backend per bucket, which is one launch on a device. On the host each gradient is copied as
 * soon as it is ready, while others are being computed (step.c).
 *
 * A device scales them on the way in for the mean, if that is exact (by a power of two), if their weights differ, or in
 * float16, whose sum must not overflow. Then the network only adds, and no further kernel touches the bucket.
 */
#include "worker/reducer/grads/user_grads.h"

#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/used.h"

#include <stdlib.h>

cddp_status cdi_user_grads_init(cddp_ddp *d, struct cdi_error *err)
{
    size_t n = d->n_params;

    for (size_t i = 0; i < n; i++)
        d->has_own |= d->params[i].grad != NULL;
    if (!d->has_own || n == 0)
        return CDDP_OK;
    d->own.list = calloc(n, sizeof *d->own.list);
    d->own.slices = calloc(2 * n, sizeof *d->own.slices); /* each gradient, and the gap before it */
    if (d->own.list == NULL || d->own.slices == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the list of %zu gradients", n);
    return CDDP_OK;
}

void cdi_user_grads_release(cddp_ddp *d)
{
    free(d->own.list);
    free(d->own.slices);
}

void cdi_user_grads_list(cddp_ddp *d)
{
    d->has_own = false;
    for (size_t i = 0; i < d->n_params; i++)
        d->has_own |= d->params[i].grad != NULL;
    for (size_t b = 0; b < d->plan.n; b++)
        d->flight[b].own = d->flight[b].n_own = 0;
    cdi_user_grads_place(d);
}

void cdi_user_grads_place(cddp_ddp *d)
{
    size_t at = 0;

    if (!d->has_own)
        return;
    for (size_t i = 0; i < d->n_params; i++)
        d->flight[d->plan.grads[i].bucket].n_own += d->params[i].grad != NULL;
    for (size_t b = 0; b < d->plan.n; b++) {
        d->flight[b].own = at;
        at += d->flight[b].n_own;
        d->flight[b].n_own = 0;
    }
    for (size_t i = d->n_params; i-- > 0;) { /* in the order of the arena */
        struct cdi_ddp_flight *f = &d->flight[d->plan.grads[i].bucket];

        if (d->params[i].grad != NULL)
            d->own.list[f->own + f->n_own++] = i;
    }
}

bool cdi_user_grads_is_all(const cddp_ddp *d)
{
    bool all = true;

    for (size_t i = 0; i < d->n_params; i++)
        all &= d->params[i].grad != NULL;
    return all;
}

bool cdi_user_grads_scales(const cddp_ddp *d, size_t b)
{
    int size = cdi_comm_world(d->comm)->size;
    bool exact = (size & (size - 1)) == 0;

    if (!d->ops->on_device || !d->own.everywhere || size == 1 || (d->flags & CDDP_DDP_SUM) != 0)
        return false;
    if (d->hook.begin != NULL || d->powersgd != NULL || d->flight[b].compressed)
        return false;
    /* The element that counts the ranks that train is in the first bucket, and in the arena. */
    if (d->plan.n_grads > d->n_params && d->plan.grads[d->n_params].bucket == b)
        return false;
    return exact || d->weight.differ || d->plan.b[b].dtype == CDDP_FLOAT16;
}

/* Appends gradient i to the slices, after a gap if it does not start at `end` in the arena. */
static size_t own_add_slice(cddp_ddp *d, size_t n, size_t i, size_t end)
{
    const struct cdi_grad *g = &d->plan.grads[i];
    size_t offset = cdi_arena_offset(d, i);

    if (n > 0 && offset > end)
        d->own.slices[n++] = (struct cdi_slice){.bytes = offset - end};
    d->own.slices[n++] = (struct cdi_slice){.data = d->params[i].grad, .bytes = g->bytes};
    return n;
}

cddp_status cdi_user_grads_gather(cddp_ddp *d, size_t bucket, struct cdi_error *err)
{
    const double mean = d->weight.differ ? d->weight.share : 1.0 / cdi_comm_world(d->comm)->size;
    const double factor = cdi_user_grads_scales(d, bucket) ? mean : 1.0;
    const struct cdi_ddp_flight *f = &d->flight[bucket];
    size_t n = 0, first = 0, end = 0;

    for (size_t k = 0; k < f->n_own && !d->shadow; k++) {
        size_t i = d->own.list[f->own + k];

        if ((d->unused.missing != NULL && d->unused.missing[i]) || cdi_ddp_is_frozen(d, i))
            continue; /* zeros are in its place */
        first = n == 0 ? i : first;
        n = own_add_slice(d, n, i, end);
        end = cdi_arena_offset(d, i) + d->plan.grads[i].bytes;
    }
    if (n == 0)
        return CDDP_OK;
    if (cdi_user_grads_scales(d, bucket))
        return d->ops->pack_scaled(d->b, cdi_arena_grad(d, first), d->own.slices, n, d->plan.b[bucket].dtype, factor,
                                   err);
    return d->ops->pack(d->b, cdi_arena_grad(d, first), d->own.slices, n, err);
}

cddp_status cdi_user_grads_scatter(cddp_ddp *d, size_t bucket, struct cdi_error *err)
{
    const struct cdi_ddp_flight *f = &d->flight[bucket];
    size_t n = 0, first = 0, end = 0;

    for (size_t k = 0; k < f->n_own && !d->shadow; k++) {
        size_t i = d->own.list[f->own + k];

        if (d->plan.grads[i].copied_out || cdi_used_nowhere(d, i))
            continue;
        d->plan.grads[i].copied_out = true;
        first = n == 0 ? i : first;
        n = own_add_slice(d, n, i, end);
        end = cdi_arena_offset(d, i) + d->plan.grads[i].bytes;
    }
    return n == 0 ? CDDP_OK : d->ops->unpack(d->b, d->own.slices, n, cdi_arena_grad(d, first), err);
}
