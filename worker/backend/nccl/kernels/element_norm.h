/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for norms and clipping, in the style of element.h: once for nvcc and for C. A norm takes two steps: each
 * block sums its part of the spans, along a fixed tree, into its place of CDI_TALLY_BLOCKS; one block sums those. So
 * the order of the sum depends on the counts alone, not on the size of the GPU or the order of blocks.
 */
#ifndef CDI_KERNELS_ELEMENT_NORM_H
#define CDI_KERNELS_ELEMENT_NORM_H

#include "worker/backend/nccl/kernels/element.h"

#include <math.h>

/* Returns the span with chunk c: the last one that begins at c or before. */
CDI_INLINE uint32_t cdi_span_of_chunk(const struct cdi_kernel_span *span, uint32_t n, uint32_t c)
{
    return cdi_entry_of_chunk(&span[0].first_chunk, sizeof span[0], n, c);
}

/* --- Sums and largest magnitudes. A NaN has one pattern of bits here, since each processor makes its own. --------- */

CDI_INLINE double cdi_quiet(double x)
{
    return x == x ? x : cdi_double_of_bits(0x7ff8000000000000u);
}

/* Compares magnitudes, with all NaNs made alike: larger bits are a larger number, and a NaN is above infinity. */
CDI_INLINE double cdi_larger(double a, double b)
{
    return cdi_bits_of_double(a) > cdi_bits_of_double(b) ? a : b;
}

CDI_INLINE double cdi_tally_join(double a, double b, int32_t largest)
{
    return largest ? cdi_larger(a, b) : cdi_quiet(a + b);
}

CDI_INLINE double cdi_tally_element(double sum, double x, int32_t largest)
{
    return largest ? cdi_larger(sum, cdi_double_of_bits(cdi_bits_of_double(cdi_quiet(x)) & 0x7fffffffffffffffu))
                   : sum + x * x;
}

CDI_INLINE double cdi_tally_load(const void *x, int32_t dtype, uint64_t i)
{
    return dtype == CDDP_FLOAT64   ? ((const double *)x)[i]
           : dtype == CDDP_FLOAT32 ? (double)((const float *)x)[i]
                                   : (double)cdi_widen(((const uint16_t *)x)[i], dtype);
}

typedef struct __attribute__((aligned(8), may_alias)) cdi_four_narrow {
    uint16_t part[4];
} cdi_four_narrow;

/* Adds elements i to i + 3, in this order, as far as they exist. Of 16 bits too, as the order of a sum is fixed. */
CDI_INLINE double cdi_tally_unit(double sum, const struct cdi_kernel_span *s, uint64_t i, int32_t largest)
{
    if (s->count - i >= 4 && s->dtype == CDDP_FLOAT32 && cdi_is_aligned(s->x, sizeof(cdi_wide))) {
        const cdi_wide x = ((const cdi_wide *)s->x)[i / 4];

        for (int k = 0; k < 4; k++)
            sum = cdi_tally_element(sum, (double)cdi_float_of_bits(x.part[k]), largest);
    } else if (s->count - i >= 4 && s->dtype != CDDP_FLOAT32 && s->dtype != CDDP_FLOAT64 &&
               cdi_is_aligned(s->x, sizeof(cdi_four_narrow))) {
        const cdi_four_narrow x = ((const cdi_four_narrow *)s->x)[i / 4];

        for (int k = 0; k < 4; k++)
            sum = cdi_tally_element(sum, (double)cdi_widen(x.part[k], s->dtype), largest);
    } else {
        for (uint64_t k = i; k < i + 4 && k < s->count; k++)
            sum = cdi_tally_element(sum, cdi_tally_load(s->x, s->dtype, k), largest);
    }
    return sum;
}

/* Returns the sum of one thread. */
CDI_INLINE double cdi_tally_body(const struct cdi_kernel_thread *t, const struct cdi_tally_args *a)
{
    double sum = 0;

    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_kernel_span *s = &a->span[cdi_span_of_chunk(a->span, a->n, c)];
        uint64_t at = (uint64_t)(c - s->first_chunk) * CDI_SPAN_CHUNK, end = at + CDI_SPAN_CHUNK;

        end = end < s->count ? end : s->count;
        for (uint64_t i = at + (uint64_t)t->thread * 4; i < end; i += (uint64_t)t->n_threads * 4)
            sum = cdi_tally_unit(sum, s, i, a->largest);
    }
    return cdi_quiet(sum);
}

/* Returns one thread's part of the blocks' sums in the only block, and clears them for the next launch. */
CDI_INLINE double cdi_fold_body(const struct cdi_kernel_thread *t, const struct cdi_fold_args *a)
{
    double sum = 0;

    for (uint32_t i = t->thread; i < CDI_TALLY_BLOCKS; i += t->n_threads) {
        sum = cdi_tally_join(sum, a->partial[i], a->largest);
        a->partial[i] = 0;
    }
    return sum;
}

/*
 * Does one level of the tree over a block's threads: half is 128, 64, ... 1, and all threads finish a level before the
 * next one.
 */
CDI_INLINE void cdi_tree_level(double *of_thread, uint32_t thread, uint32_t half, int32_t largest)
{
    if (thread < half)
        of_thread[thread] = cdi_tally_join(of_thread[thread], of_thread[thread + half], largest);
}

/* Stores a block's sum; called by its first thread. */
CDI_INLINE void cdi_tally_end(const struct cdi_kernel_thread *t, const struct cdi_tally_args *a, double sum)
{
    a->partial[t->block] = cdi_tally_join(a->partial[t->block], sum, a->largest);
}

CDI_INLINE void cdi_fold_end(const struct cdi_fold_args *a, double sum)
{
    *a->out = a->add ? cdi_tally_join(*a->out, sum, a->largest) : sum;
}

/* --- Clipping: each thread makes the factor of the sum, with the same operations as the CPU's backend. ------------ */

CDI_INLINE double cdi_clip_factor(const struct cdi_clip_args *a)
{
    const double factor = a->factor_at != NULL ? *a->factor_at : a->factor;
    const double norm = (a->largest ? *a->sum : sqrt(*a->sum)) * factor;

    return a->max_norm / (norm + 1e-6);
}

CDI_INLINE void cdi_clip_body(const struct cdi_kernel_thread *t, const struct cdi_clip_args *a)
{
    const double factor = cdi_clip_factor(a);

    if (factor >= 1)
        return; /* false for a NaN, which all elements are multiplied by */
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_kernel_span *s = &a->span[cdi_span_of_chunk(a->span, a->n, c)];
        uint64_t at = (uint64_t)(c - s->first_chunk) * CDI_SPAN_CHUNK, rest = s->count - at;
        uint64_t size = s->dtype == CDDP_FLOAT64 ? 8 : s->dtype == CDDP_FLOAT32 ? 4 : 2;
        void *x = (uint8_t *)s->x + at * size;

        cdi_scale_range(t->thread, t->n_threads, x, x, rest < CDI_SPAN_CHUNK ? rest : CDI_SPAN_CHUNK, s->dtype, factor);
    }
}

#endif
