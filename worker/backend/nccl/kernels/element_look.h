/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that look for numbers that are not finite in what they copy, cast or scale anyway, in the style of element.h:
 * once for nvcc and for C. A healthy element costs a comparison. Only for a bad one the thread searches the part that
 * the element belongs to.
 */
#ifndef CDI_KERNELS_ELEMENT_LOOK_H
#define CDI_KERNELS_ELEMENT_LOOK_H

#include "worker/backend/nccl/kernels/element_find.h"

/* Looks at element i, with these bits of its magnitude. */
CDI_INLINE void cdi_look_at(const struct cdi_kernel_look *l, uint64_t i, uint64_t bits, uint64_t inf)
{
    const uint64_t kind = cdi_find_worse(CDI_FINITE, bits, l->limit, inf);
    uint32_t low = 0, high = l->n;

    if (kind == CDI_FINITE)
        return;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;

        if (l->begin[mid] <= i)
            low = mid;
        else
            high = mid;
    }
    if (l->begin[low] <= i && i < l->end[low]) /* otherwise it is between the parts */
        cdi_find_tell(l->word, (uint64_t)l->key[low] << 32 | l->low | kind);
}

/* Looks at the elements of unit u. */
CDI_INLINE void cdi_look_unit(const struct cdi_kernel_look *l, const void *x, int32_t dtype, uint64_t u)
{
    const uint64_t size = cdi_unit_of(dtype);

    if (cdi_unit_largest(x, dtype, u) >= l->limit)
        for (uint64_t i = u * size; i < (u + 1) * size; i++)
            cdi_look_at(l, i, cdi_magnitude(x, dtype, i), cdi_inf_bits(dtype));
}

/* Returns the largest magnitude of four elements. */
CDI_INLINE uint32_t cdi_four_largest(const void *x, int32_t dtype, uint64_t u)
{
    uint32_t most = 0;

    if (dtype == CDDP_FLOAT32)
        return cdi_unit_largest(x, dtype, u);
    for (int k = 0; k < 4; k++) {
        const uint32_t bits = ((const cdi_half *)x)[u].part[k] & 0x7fffu;

        most = bits > most ? bits : most;
    }
    return most;
}

CDI_INLINE void cdi_cast_look_at(const struct cdi_cast_look_args *a, uint64_t i)
{
    const struct cdi_cast_args *c = &a->cast;

    cdi_look_at(&a->look, i, cdi_magnitude(c->from, c->from_type, i), cdi_inf_bits(c->from_type));
}

CDI_INLINE void cdi_cast_look_body(const struct cdi_kernel_thread *t, const struct cdi_cast_look_args *a)
{
    const struct cdi_cast_args *c = &a->cast;
    const uint64_t fours = cdi_cast_fours(c);

    for (uint64_t u = cdi_first_unit(t); u < fours; u += cdi_unit_step(t)) {
        for (uint64_t k = 0; k < 4 && cdi_four_largest(c->from, c->from_type, u) >= a->look.limit; k++)
            cdi_cast_look_at(a, u * 4 + k);
        cdi_cast_four(c, u);
    }
    for (uint64_t i = fours * 4 + cdi_first_unit(t); i < c->count; i += cdi_unit_step(t)) {
        cdi_cast_look_at(a, i);
        cdi_cast_at(c, i);
    }
}

CDI_INLINE void cdi_scale_look_body(const struct cdi_kernel_thread *t, const struct cdi_scale_look_args *a)
{
    const struct cdi_scale_args *s = &a->scale;
    const uint64_t units = cdi_units(s->x, s->count, s->dtype);

    for (uint64_t u = cdi_first_unit(t); u < units; u += cdi_unit_step(t)) {
        cdi_look_unit(&a->look, s->x, s->dtype, u);
        cdi_scale_unit(s->x, s->x, s->dtype, (float)s->factor, u);
    }
    for (uint64_t i = units * cdi_unit_of(s->dtype) + cdi_first_unit(t); i < s->count; i += cdi_unit_step(t)) {
        cdi_look_at(&a->look, i, cdi_magnitude(s->x, s->dtype, i), cdi_inf_bits(s->dtype));
        cdi_scale_at(s->x, s->x, s->dtype, s->factor, i);
    }
}

/* Returns the bits of the magnitude of an element at any address, as pack copies it. */
CDI_INLINE uint64_t cdi_look_bits(const uint8_t *x, uint64_t size)
{
    uint64_t bits = 0;

    for (uint64_t k = 0; k < size; k++)
        bits |= (uint64_t)x[k] << 8 * k;
    return bits & ~((uint64_t)1 << (8 * size - 1));
}

/* Returns the worst kind among this thread's elements of a chunk. */
CDI_INLINE uint64_t cdi_look_chunk(const struct cdi_kernel_thread *t, const struct cdi_kernel_span *s, uint64_t size,
                                   uint64_t limit)
{
    const uint64_t inf = cdi_inf_bits(s->dtype);
    uint64_t worst = CDI_FINITE;

    if (cdi_is_aligned(s->x, size))
        return cdi_find_range(t, s->x, s->dtype, 0, s->count, limit);
    for (uint64_t i = t->thread; i < s->count; i += t->n_threads)
        worst = cdi_find_worse(worst, cdi_look_bits((const uint8_t *)s->x + i * size, size), limit, inf);
    return worst;
}

/* A chunk is read twice, but the second time it is in the multiprocessor's cache. */
CDI_INLINE void cdi_pack_look_body(const struct cdi_kernel_thread *t, const struct cdi_pack_args *a)
{
    const uint64_t size = a->dtype == CDDP_FLOAT64 ? 8 : a->dtype == CDDP_FLOAT32 ? 4 : 2;

    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_pack_slice *s = &a->slice[cdi_slice_of_chunk(a, c)];
        const uint64_t at = (uint64_t)(c - s->first_chunk) * CDI_KERNEL_CHUNK, rest = s->bytes - at;
        const struct cdi_kernel_span span = {(uint8_t *)s->data + at,
                                             (rest < CDI_KERNEL_CHUNK ? rest : CDI_KERNEL_CHUNK) / size, 0, a->dtype};
        const uint64_t worst = cdi_look_chunk(t, &span, size, a->limit);

        if (worst != CDI_FINITE)
            cdi_find_tell(a->word, (uint64_t)s->flag << 32 | a->low | worst);
        cdi_pack_chunk(t, a, c, 0);
    }
}

#endif
