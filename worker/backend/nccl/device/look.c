/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/look.h"

cddp_status cdi_look_find(const struct cdi_device *d, const void *x, cddp_dtype dtype, const struct cdi_look *look,
                          struct cdi_error *err)
{
    const size_t size = cddp_dtype_size(dtype);
    struct cdi_span span[CDI_KERNEL_FINDS];
    uint64_t word_of[CDI_KERNEL_FINDS];
    cddp_status st = CDDP_OK;
    struct cdi_launch l;

    for (size_t first = 0, taken; first < look->n && st == CDDP_OK; first += taken) {
        size_t n = look->n - first < CDI_KERNEL_FINDS ? look->n - first : CDI_KERNEL_FINDS;

        for (size_t k = 0; k < n; k++) {
            const struct cdi_look_part *p = &look->part[first + k];

            span[k] = (struct cdi_span){(uint8_t *)(uintptr_t)x + p->begin * size, p->end - p->begin, dtype};
            word_of[k] = (uint64_t)p->key << 32 | look->low;
        }
        taken = cdi_launch_find(&l, d->n_sm, span, word_of, n, look->limit, look->word);
        st = cdi_device_launch(d, &l, err);
    }
    return st;
}

cddp_status cdi_look_cast(const struct cdi_device *d, void *to, cddp_dtype to_type, const void *from,
                          cddp_dtype from_type, size_t count, float factor, const struct cdi_look *look,
                          struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    struct cdi_launch l;

    for (size_t at = 0, part = 0, n; at < count && st == CDDP_OK; at += n) {
        n = cdi_launch_reach(look, part, at, count);
        st = cdi_launch_cast(&l, d->n_sm, (uint8_t *)to + at * cddp_dtype_size(to_type), to_type,
                             (const uint8_t *)from + at * cddp_dtype_size(from_type), from_type, n, factor, err);
        if (st != CDDP_OK)
            return st;
        part += cdi_launch_looks(&l, look, part, at);
        st = cdi_device_launch(d, &l, err);
    }
    return st;
}
