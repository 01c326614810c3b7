/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients that are sent in another type: float32 as float16 or bfloat16, which are smaller; 16-bit types as float32,
 * so that the sum is a float32 sum in any network. Each complete bucket is cast into a separate region, reduced there,
 * and cast back afterwards.
 *
 * On a device one of the two casts applies the factor of the mean, and the network only adds. For float16, whose range
 * ends at 65504, it is applied before the sum; for the other two, with float32's range, after it. On the host the
 * reduction multiplies before it rounds, at no cost. Where weights differ, the first cast applies this rank's.
 */
#include "worker/reducer/grads/compress.h"

#include "worker/reducer/state/arena.h"

static bool is_short(cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT16 || dtype == CDDP_BFLOAT16;
}

/* Returns true if buckets of this type are sent in another one. */
static bool is_cast(const cddp_ddp *d, cddp_dtype dtype)
{
    return (dtype == CDDP_FLOAT32 && is_short(d->comm_dtype)) || (is_short(dtype) && d->comm_dtype == CDDP_FLOAT32);
}

void cdi_compress_place(cddp_ddp *d)
{
    size_t at = 0;

    for (size_t b = 0; b < d->plan.n && d->comm_dtype != CDDP_DTYPE_NONE; b++) {
        struct cdi_ddp_flight *f = &d->flight[b];
        size_t count = d->plan.b[b].bytes / cddp_dtype_size(d->plan.b[b].dtype);

        f->compressed = is_cast(d, d->plan.b[b].dtype);
        f->comm_offset = at;
        if (f->compressed)
            at += (count * cddp_dtype_size(d->comm_dtype) + CDI_GRAD_ALIGN - 1) / CDI_GRAD_ALIGN * CDI_GRAD_ALIGN;
    }
    d->comm_bytes = at > d->comm_bytes ? at : d->comm_bytes;
}

cddp_status cdi_compress_init(cddp_ddp *d, struct cdi_error *err)
{
    return d->comm_bytes == 0 ? CDDP_OK : d->ops->region_create(d->b, d->comm_bytes, &d->comm_region, err);
}

/* Returns the factor that the cast before (or after) the reduction applies. */
static float factor_of(const cddp_ddp *d, bool out)
{
    bool ours = d->ops->on_device && (d->flags & CDDP_DDP_SUM) == 0;

    if (d->weight.differ)
        return out ? (float)d->weight.share : 1.0f;
    return ours && out == (d->comm_dtype == CDDP_FLOAT16) ? 1.0f / (float)cdi_comm_world(d->comm)->size : 1.0f;
}

cddp_status cdi_compress_pack(cddp_ddp *d, size_t bucket, struct cdi_coll *op, struct cdi_error *err)
{
    const struct cdi_ddp_flight *f = &d->flight[bucket];
    cddp_dtype dtype = op->dtype;
    cddp_status st;
    void *at;

    if (!f->compressed)
        return CDDP_OK;
    at = (char *)d->comm_region->base + f->comm_offset;
    op->dtype = d->comm_dtype;
    op->region = d->comm_region;
    op->out = at;
    if (d->ops->on_device)
        op->op = CDDP_SUM;
    st = d->ops->cast(d->b, at, d->comm_dtype, op->in, dtype, op->count, factor_of(d, true), err);
    op->in = at;
    return st;
}

cddp_status cdi_compress_unpack(cddp_ddp *d, size_t bucket, struct cdi_error *err)
{
    struct cdi_ddp_flight *f = &d->flight[bucket];
    const struct cdi_bucket *b = &d->plan.b[bucket];

    if (!f->compressed || f->unpacked)
        return CDDP_OK;
    f->unpacked = true;
    return d->ops->cast(d->b, cdi_arena_stretch(d, bucket, 0).at, b->dtype,
                        (const char *)d->comm_region->base + f->comm_offset, d->comm_dtype,
                        b->bytes / cddp_dtype_size(b->dtype), factor_of(d, false), err);
}

cddp_dtype cdi_compress_narrowest(const cddp_ddp *d, cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT32 && d->comm_dtype != CDDP_DTYPE_NONE && d->comm_dtype != CDDP_FLOAT32 ? d->comm_dtype
                                                                                                      : dtype;
}
