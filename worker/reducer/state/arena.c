/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/state/arena.h"

#include <string.h>

bool cdi_arena_excludes(const cddp_ddp *d, size_t i)
{
    return d->in_place.any && d->in_place.home[i].chosen;
}

size_t cdi_arena_share_bytes(const cddp_ddp *d)
{
    return d->plan.arena_bytes / d->plan.parts;
}

size_t cdi_arena_made_bytes(const cddp_ddp *d)
{
    return d->plan.made_bytes / d->plan.parts;
}

size_t cdi_arena_share_at(const cddp_ddp *d, size_t b)
{
    return d->plan.b[b].offset / d->plan.parts;
}

void *cdi_arena_in_shares(const cddp_ddp *d, char *shares, size_t i)
{
    size_t b = d->plan.grads[i].bucket, part = d->plan.b[b].room / d->plan.parts;
    size_t in_bucket = d->plan.grads[i].offset - d->plan.b[b].offset;
    uintptr_t at = (uintptr_t)shares + cdi_arena_share_at(d, b);

    /* As a number: it may lie before the memory, where a pointer must not point. */
    return (void *)(at + in_bucket - part * (size_t)cdi_comm_world(d->comm)->rank);
}

void *cdi_arena_grad(const cddp_ddp *d, size_t i)
{
    if (cdi_ddp_is_divided(d))
        return cdi_arena_in_shares(d, d->shares.grads, i);
    if (i < d->n_params && cdi_arena_excludes(d, i))
        return d->in_place.home[i].grad;
    return (char *)d->region->base + cdi_arena_offset(d, i);
}

size_t cdi_arena_offset(const cddp_ddp *d, size_t i)
{
    return d->in_place.any ? d->in_place.offset[i] : d->plan.grads[i].offset;
}

size_t cdi_arena_bytes(const cddp_ddp *d)
{
    return d->in_place.any ? d->in_place.arena_bytes : d->plan.arena_bytes;
}

size_t cdi_arena_n_stretches(const cddp_ddp *d, size_t b)
{
    return d->in_place.any ? d->flight[b].n_stretches : 1;
}

struct cdi_ddp_stretch cdi_arena_stretch(const cddp_ddp *d, size_t b, size_t k)
{
    struct cdi_ddp_stretch s = {.offset = d->plan.b[b].offset, .bytes = d->plan.b[b].bytes};

    if (d->in_place.any)
        s = d->in_place.stretch[d->flight[b].stretch + k];
    if (s.at == NULL) {
        s.at = (char *)d->region->base + s.offset;
        s.region = d->region;
    }
    return s;
}

static cddp_status scale_stretch(cddp_ddp *d, const struct cdi_ddp_stretch *s, cddp_dtype dtype, double factor,
                                 struct cdi_error *err)
{
    if (factor != 0)
        return d->ops->scale(d->b, s->at, s->bytes / cddp_dtype_size(dtype), dtype, factor, err);
    if (d->ops->on_device)
        return d->ops->clear(d->b, s->at, s->bytes, err);
    memset(s->at, 0, s->bytes);
    return CDDP_OK;
}

cddp_status cdi_arena_scale(cddp_ddp *d, size_t b, double factor, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (size_t k = 0; k < cdi_arena_n_stretches(d, b) && st == CDDP_OK; k++) {
        const struct cdi_ddp_stretch s = cdi_arena_stretch(d, b, k);

        st = scale_stretch(d, &s, d->plan.b[b].dtype, factor, err);
    }
    return st;
}
