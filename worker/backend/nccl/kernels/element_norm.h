/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for norms and clipping, in the style of element.h: once for nvcc and for C. A sum of squares has the bits of
 * the CPU's backend (norm in backend.h), and does not depend on the size of the GPU or the order of blocks: a block
 * adds its lines exactly, in words that it adds to those of all blocks, by atomic operations.
 */
#ifndef CDI_KERNELS_ELEMENT_NORM_H
#define CDI_KERNELS_ELEMENT_NORM_H

#include "worker/backend/nccl/kernels/element_find.h"

#include <math.h>

/* Returns the span with chunk c: the last one that begins at c or before. */
CDI_INLINE uint32_t cdi_span_of_chunk(const struct cdi_kernel_span *span, uint32_t n, uint32_t c)
{
    return cdi_entry_of_chunk(&span[0].first_chunk, sizeof span[0], n, c);
}

/* Shared by the block. */
struct cdi_tally_room {
    double of_thread[CDI_KERNEL_THREADS];
    uint64_t word[CDI_EXACT_WORDS][CDI_TALLY_SLOTS]; /* a sum of each slot's threads; rows are free of bank conflicts */
};

/* --- The sum of squares. ------------------------------------------------------------------------------------------ */

CDI_INLINE double cdi_tally_load(const void *x, int32_t dtype, uint64_t i)
{
    return dtype == CDDP_FLOAT64   ? ((const double *)x)[i]
           : dtype == CDDP_FLOAT32 ? (double)((const float *)x)[i]
                                   : (double)cdi_widen(((const uint16_t *)x)[i], dtype);
}

/* Adds up the squares of 16 bytes: `unit` elements from i on, in the order of norm. Zeros follow the last element. */
CDI_INLINE double cdi_tally_unit(const struct cdi_kernel_span *s, uint64_t i, uint32_t unit)
{
    const int whole = s->count - i >= unit && cdi_is_aligned(s->x, sizeof(cdi_wide));
    double v[8];

    if (whole && s->dtype == CDDP_FLOAT32) {
        const cdi_wide x = ((const cdi_wide *)s->x)[i / 4];

        for (int k = 0; k < 8; k++)
            v[k] = k < 4 ? (double)cdi_float_of_bits(x.part[k & 3]) : 0;
    } else if (whole && s->dtype != CDDP_FLOAT64) {
        const cdi_narrow x = ((const cdi_narrow *)s->x)[i / 8];

        for (int k = 0; k < 8; k++)
            v[k] = (double)cdi_widen(x.part[k], s->dtype);
    } else {
        for (uint32_t k = 0; k < 8; k++)
            v[k] = k < unit && i + k < s->count ? cdi_tally_load(s->x, s->dtype, i + k) : 0;
    }
    for (int k = 0; k < 8; k++)
        v[k] *= v[k];
    for (int half = 4; half > 0; half /= 2) /* zeros change nothing */
        for (int k = 0; k < half; k++)
            v[k] += v[k + half];
    return v[0];
}

/* Adds a chunk of a span, CDI_SPAN_CHUNK elements from `at` on, to the room's words. For the whole block. */
CDI_INLINE void cdi_tally_chunk(const struct cdi_kernel_thread *t, const struct cdi_kernel_span *s, uint64_t at,
                                struct cdi_tally_room *room)
{
    const uint32_t unit = s->dtype == CDDP_FLOAT64 ? 2 : s->dtype == CDDP_FLOAT32 ? 4 : 8;
    const uint64_t end = s->count - at < CDI_SPAN_CHUNK ? s->count : at + CDI_SPAN_CHUNK;

    for (; at < end; at += (uint64_t)unit * t->n_threads) {
        CDI_EACH_THREAD(t, k)
        {
            const uint64_t i = at + (uint64_t)unit * k;

            room->of_thread[k] = i < end ? cdi_tally_unit(s, i, unit) : 0;
        }
        CDI_SYNC_WARP();
        CDI_EACH_THREAD(t, k)
        if (k % CDI_TALLY_TEAM == 0)
            for (uint32_t line = k; line < k + CDI_TALLY_TEAM; line += 4) {
                const double *q = room->of_thread + line;

                cdi_exact_add(&room->word[0][k / CDI_TALLY_TEAM], CDI_TALLY_SLOTS, (q[0] + q[2]) + (q[1] + q[3]));
            }
        CDI_SYNC_WARP();
    }
}

CDI_INLINE void cdi_tally_add_word(uint64_t *to, uint64_t mine)
{
#ifdef __CUDA_ARCH__
    atomicAdd((unsigned long long *)to, (unsigned long long)mine);
#else
    __atomic_fetch_add(to, mine, __ATOMIC_RELAXED);
#endif
}

CDI_INLINE void cdi_tally_squares(const struct cdi_kernel_thread *t, const struct cdi_tally_args *a,
                                  struct cdi_tally_room *room)
{
    CDI_EACH_THREAD(t, k)
    for (uint32_t i = k; i < CDI_EXACT_WORDS * CDI_TALLY_SLOTS; i += t->n_threads)
        (&room->word[0][0])[i] = 0;
    CDI_SYNC();
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_kernel_span *s = &a->span[cdi_span_of_chunk(a->span, a->n, c)];

        cdi_tally_chunk(t, s, (uint64_t)(c - s->first_chunk) * CDI_SPAN_CHUNK, room);
    }
    CDI_SYNC();
    CDI_EACH_THREAD(t, k)
    if (k < CDI_EXACT_WORDS) {
        uint64_t sum = 0;

        for (uint32_t i = 0; i < CDI_TALLY_SLOTS; i++)
            sum += room->word[k][(k + i) % CDI_TALLY_SLOTS];
        if (sum != 0)
            cdi_tally_add_word(&a->words[k], sum);
    }
}

/* --- The largest magnitude. A NaN has one pattern of bits here, since each processor makes its own. --------------- */

CDI_INLINE double cdi_quiet(double x)
{
    return x == x ? x : cdi_double_of_bits(0x7ff8000000000000u);
}

/* Compares magnitudes, with all NaNs made alike: larger bits are a larger number, and a NaN is above infinity. */
CDI_INLINE double cdi_larger(double a, double b)
{
    return cdi_bits_of_double(a) > cdi_bits_of_double(b) ? a : b;
}

CDI_INLINE double cdi_larger_element(double most, double x)
{
    return cdi_larger(most, cdi_double_of_bits(cdi_bits_of_double(cdi_quiet(x)) & 0x7fffffffffffffffu));
}

typedef struct __attribute__((aligned(8), may_alias)) cdi_four_narrow {
    uint16_t part[4];
} cdi_four_narrow;

/* Looks at elements i to i + 3, as far as they exist. */
CDI_INLINE double cdi_largest_unit(double most, const struct cdi_kernel_span *s, uint64_t i)
{
    if (s->count - i >= 4 && s->dtype == CDDP_FLOAT32 && cdi_is_aligned(s->x, sizeof(cdi_wide))) {
        const cdi_wide x = ((const cdi_wide *)s->x)[i / 4];

        for (int k = 0; k < 4; k++)
            most = cdi_larger_element(most, (double)cdi_float_of_bits(x.part[k]));
    } else if (s->count - i >= 4 && s->dtype != CDDP_FLOAT32 && s->dtype != CDDP_FLOAT64 &&
               cdi_is_aligned(s->x, sizeof(cdi_four_narrow))) {
        const cdi_four_narrow x = ((const cdi_four_narrow *)s->x)[i / 4];

        for (int k = 0; k < 4; k++)
            most = cdi_larger_element(most, (double)cdi_widen(x.part[k], s->dtype));
    } else {
        for (uint64_t k = i; k < i + 4 && k < s->count; k++)
            most = cdi_larger_element(most, cdi_tally_load(s->x, s->dtype, k));
    }
    return most;
}

/* Returns the largest magnitude that one thread sees. */
CDI_INLINE double cdi_largest_of_thread(uint32_t thread, const struct cdi_kernel_thread *t,
                                        const struct cdi_tally_args *a)
{
    double most = 0;

    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_kernel_span *s = &a->span[cdi_span_of_chunk(a->span, a->n, c)];
        uint64_t at = (uint64_t)(c - s->first_chunk) * CDI_SPAN_CHUNK, end = at + CDI_SPAN_CHUNK;

        end = end < s->count ? end : s->count;
        for (uint64_t i = at + (uint64_t)thread * 4; i < end; i += (uint64_t)t->n_threads * 4)
            most = cdi_largest_unit(most, s, i);
    }
    return most;
}

CDI_INLINE void cdi_tally_largest(const struct cdi_kernel_thread *t, const struct cdi_tally_args *a,
                                  struct cdi_tally_room *room)
{
    CDI_EACH_THREAD(t, k)
    room->of_thread[k] = cdi_largest_of_thread(k, t, a);
    for (uint32_t half = CDI_KERNEL_THREADS / 2; half > 0; half /= 2) {
        CDI_SYNC();
        CDI_EACH_THREAD(t, k)
        if (k < half)
            room->of_thread[k] = cdi_larger(room->of_thread[k], room->of_thread[k + half]);
    }
    if (t->thread == 0)
        cdi_find_tell(&a->words[0], cdi_bits_of_double(room->of_thread[0]));
}

/* --- The end of both. For the whole block. ------------------------------------------------------------------------ */

CDI_INLINE void cdi_tally_body(const struct cdi_kernel_thread *t, const struct cdi_tally_args *a,
                               struct cdi_tally_room *room)
{
    if (a->largest)
        cdi_tally_largest(t, a, room);
    else
        cdi_tally_squares(t, a, room);
}

/* Moves carries up, which are added by one thread, and rounds. The words that blocks add to become zeros. */
CDI_INLINE void cdi_fold_body(const struct cdi_kernel_thread *t, const struct cdi_fold_args *a,
                              uint64_t room[CDI_EXACT_WORDS])
{
    CDI_EACH_THREAD(t, k)
    if (k < CDI_EXACT_WORDS) {
        room[k] = a->from[k];
        if (a->from != a->words)
            a->from[k] = 0;
    }
    CDI_SYNC();
    if (t->thread == 0 && !a->largest)
        cdi_exact_carry(room);
    CDI_SYNC();
    if (t->thread == 0)
        *a->out = a->largest ? cdi_double_of_bits(room[0]) : cdi_exact_round(room);
    CDI_EACH_THREAD(t, k)
    if (k < CDI_EXACT_WORDS && !a->largest)
        a->words[k] = room[k];
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
