/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/state/arena.h"

#include <string.h>

bool cdi_arena_excludes(const cddp_ddp *d, size_t i)
{
    return d->in_place.any && d->in_place.home[i].chosen;
}

void *cdi_arena_grad(const cddp_ddp *d, size_t i)
{
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
