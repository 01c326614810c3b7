/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/state/arena.h"

#include <string.h>

bool cdi_arena_excludes(const cddp_ddp *d, size_t i)
{
    return d->in_place.any && d->in_place.home[i].chosen;
}

size_t cdi_arena_share_bytes(const cddp_ddp *d)
{
    return d->plan.held_bytes / d->plan.parts;
}

size_t cdi_arena_made_bytes(const cddp_ddp *d)
{
    return d->plan.made_bytes / d->plan.parts;
}

size_t cdi_arena_share_at(const cddp_ddp *d, size_t b)
{
    return d->plan.b[b].offset / d->plan.parts;
}

size_t cdi_arena_held_at(const cddp_ddp *d, size_t b)
{
    return d->plan.b[b].held_offset / d->plan.parts;
}

/* As numbers: the result may lie before the share, where a pointer must not point. */
static void *in_share(const cddp_ddp *d, const char *share, size_t in_bucket, size_t room)
{
    return (void *)((uintptr_t)share + in_bucket - room / d->plan.parts * (size_t)cdi_comm_world(d->comm)->rank);
}

void *cdi_arena_param(const cddp_ddp *d, size_t i)
{
    const struct cdi_grad *g = &d->plan.grads[i];
    const struct cdi_bucket *b = &d->plan.b[g->bucket];

    return in_share(d, d->shares.params + cdi_arena_held_at(d, g->bucket),
                    (g->offset - b->offset) / (b->room / b->held_room), b->held_room);
}

static void *arena_divided_grad(const cddp_ddp *d, size_t i)
{
    const struct cdi_grad *g = &d->plan.grads[i];
    const struct cdi_bucket *b = &d->plan.b[g->bucket];

    return in_share(d, d->shares.grads + cdi_arena_share_at(d, g->bucket), g->offset - b->offset, b->room);
}

void *cdi_arena_grad(const cddp_ddp *d, size_t i)
{
    if (cdi_ddp_is_divided(d))
        return arena_divided_grad(d, i);
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
