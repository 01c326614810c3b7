/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of float32 that are sent as float16 or bfloat16: each full bucket is cast into a region of its own, reduced
 * there (the sum is accumulated in float32), and cast back when it has landed.
 */
#include "worker/reducer.h"

void cdi_wire_place(cddp_ddp *d)
{
    size_t at = 0;

    for (size_t b = 0; b < d->plan.n && d->wire_dtype != CDDP_DTYPE_NONE; b++) {
        struct cdi_ddp_flight *f = &d->flight[b];
        size_t count = d->plan.b[b].bytes / sizeof(float);

        f->compressed = d->plan.b[b].dtype == CDDP_FLOAT32;
        f->wire_offset = at;
        if (f->compressed)
            at += (count * cddp_dtype_size(d->wire_dtype) + CDI_GRAD_ALIGN - 1) / CDI_GRAD_ALIGN * CDI_GRAD_ALIGN;
    }
    d->wire_bytes = at > d->wire_bytes ? at : d->wire_bytes;
}

cddp_status cdi_wire_init(cddp_ddp *d, struct cdi_error *err)
{
    return d->wire_bytes == 0 ? CDDP_OK : d->ops->region_create(d->b, d->wire_bytes, &d->wire, err);
}

cddp_status cdi_wire_pack(cddp_ddp *d, size_t bucket, struct cdi_op *op, struct cdi_error *err)
{
    const struct cdi_ddp_flight *f = &d->flight[bucket];
    cddp_status st;
    void *at;

    if (!f->compressed)
        return CDDP_OK;
    at = (char *)d->wire->base + f->wire_offset;
    op->dtype = d->wire_dtype;
    op->region = d->wire;
    op->out = at;
    st = d->ops->cast(d->b, at, d->wire_dtype, op->in, CDDP_FLOAT32, op->count, err);
    op->in = at;
    return st;
}

cddp_status cdi_wire_unpack(cddp_ddp *d, size_t bucket, struct cdi_error *err)
{
    struct cdi_ddp_flight *f = &d->flight[bucket];
    const struct cdi_bucket *b = &d->plan.b[bucket];

    if (!f->compressed || f->unpacked)
        return CDDP_OK;
    f->unpacked = true;
    return d->ops->cast(d->b, (char *)d->region->base + b->offset, CDDP_FLOAT32,
                        (const char *)d->wire->base + f->wire_offset, d->wire_dtype, b->bytes / sizeof(float), err);
}
