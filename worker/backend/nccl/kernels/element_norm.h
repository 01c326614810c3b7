/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for norms and clipping, in the style of element.h: once for nvcc and for C. A sum of squares has the bits of
 * the CPU's backend (norm in backend.h), and does not depend on the size of the GPU or the order of blocks: a thread
 * adds lines exactly, in registers, and a block adds its threads' sums to the words of all blocks.
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

/*
 * A thread's own sum: part[0] + 2^64 part[1] + 2^128 part[2], in units of limb `limb` of an exact sum. It spares the
 * words of the block: lines of about one size add to it alone.
 */
struct cdi_tally_own {
    uint64_t part[3];
    uint32_t limb;
};

/* Shared by the block. */
struct cdi_tally_room {
    double of_unit[CDI_TALLY_UNITS * CDI_KERNEL_THREADS];
    struct cdi_tally_own of_thread[CDI_KERNEL_THREADS];
    uint64_t word[CDI_EXACT_WORDS];
};

/* What a thread keeps all the time, in registers of the GPU: of the host's threads, which take turns, each has one. */
#ifdef __CUDACC__
#define CDI_TALLY_KEPT 1
#define CDI_TALLY_KEEPS(k) 0
#else
#define CDI_TALLY_KEPT CDI_KERNEL_THREADS
#define CDI_TALLY_KEEPS(k) (k)
#endif

/* --- Reading: blocks have neighbouring chunks, and threads CDI_TALLY_UNITS units of 16 bytes at once. ------------- */

/* A chunk, or what a span has of it. */
struct cdi_tally_chunk {
    const uint8_t *x;
    uint32_t bytes, whole; /* whole: units that can be read at once */
    int32_t dtype;
};

/* Returns chunk c, of span *i or a later one; *i becomes its number. */
CDI_INLINE struct cdi_tally_chunk cdi_tally_find(const struct cdi_tally_args *a, uint32_t c, uint32_t *i)
{
    while (*i + 1 < a->n && a->span[*i + 1].first_chunk <= c)
        ++*i;
    const struct cdi_kernel_span *s = &a->span[*i];
    const uint32_t size = s->dtype == CDDP_FLOAT64 ? 8 : s->dtype == CDDP_FLOAT32 ? 4 : 2;
    const uint64_t at = (uint64_t)(c - s->first_chunk) * CDI_SPAN_CHUNK, rest = s->count - at;
    const uint32_t bytes = (uint32_t)(rest < CDI_SPAN_CHUNK ? rest : CDI_SPAN_CHUNK) * size;
    const struct cdi_tally_chunk chunk = {(const uint8_t *)s->x + at * size, bytes,
                                          cdi_is_aligned(s->x, sizeof(cdi_wide)) ? bytes / 16 : 0, s->dtype};

    return chunk;
}

typedef uint16_t __attribute__((may_alias)) cdi_two_bytes;

/* Reads unit u of a chunk, which may have no alignment; zeros follow the last element. */
CDI_INLINE cdi_wide cdi_tally_read(const struct cdi_tally_chunk *c, uint32_t u)
{
    const int words = (u + 1) * 16 <= c->bytes && cdi_is_aligned(c->x, sizeof(cdi_four_bytes));
    cdi_wide x;

    if (u < c->whole)
        return ((const cdi_wide *)(const void *)c->x)[u];
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t at = u * 16 + k * 4;

        x.part[k] = 0;
        if (words)
            x.part[k] = *(const cdi_four_bytes *)(const void *)(c->x + at);
        else if (at < c->bytes)
            x.part[k] = *(const cdi_two_bytes *)(const void *)(c->x + at);
        if (!words && at + 2 < c->bytes)
            x.part[k] |= (uint32_t) * (const cdi_two_bytes *)(const void *)(c->x + at + 2) << 16;
    }
    return x;
}

/* Reads units u, u + 32, ..., so that neighbouring threads read neighbouring bytes. Most chunks are read unchecked. */
CDI_INLINE void cdi_tally_read_units(cdi_wide x[CDI_TALLY_UNITS], const struct cdi_tally_chunk *c, uint32_t u,
                                     int unchecked)
{
    if (unchecked)
        for (uint32_t j = 0; j < CDI_TALLY_UNITS; j++)
            x[j] = ((const cdi_wide *)(const void *)c->x)[u + 32 * j];
    else
        for (uint32_t j = 0; j < CDI_TALLY_UNITS; j++)
            x[j] = cdi_tally_read(c, u + 32 * j);
}

/* Returns the first of a thread's units, of those that the block reads at once. */
CDI_INLINE uint32_t cdi_tally_first(uint32_t thread)
{
    return thread / 32 * (32 * CDI_TALLY_UNITS) + thread % 32;
}

/* Returns the first chunk of a block, in the order of spans. */
CDI_INLINE uint32_t cdi_tally_begin(const struct cdi_tally_args *a, uint32_t block, uint32_t n_blocks)
{
    return (uint32_t)((uint64_t)a->n_chunks * block / n_blocks);
}

/* --- The sum of squares. ------------------------------------------------------------------------------------------ */

CDI_INLINE double cdi_square(double x)
{
    return x * x;
}

/* Returns one of two elements of 16 bits, without its sign: its bits, as those of a float64, times a power of 2. */
CDI_INLINE double cdi_tally_narrow(uint32_t two, uint32_t second, int32_t dtype)
{
    const uint32_t up = dtype == CDDP_FLOAT16 ? 10 : 13, high = second ? two >> (16 - up) : two << up;

    return cdi_double_of_bits((uint64_t)(high & 0x7fffu << up) << 32) *
           cdi_double_of_bits(dtype == CDDP_FLOAT16 ? 0x7ef0000000000000u : 0x77f0000000000000u);
}

/* Adds up the squares of a unit, in the order of norm. */
CDI_INLINE double cdi_tally_unit(cdi_wide x, int32_t dtype)
{
    const uint64_t beyond = dtype == CDDP_FLOAT16 ? 0x41f0000000000000u : 0x4ff0000000000000u;
    double v[4], sum;

    if (dtype == CDDP_FLOAT64)
        return cdi_square(cdi_double_of_bits((uint64_t)x.part[1] << 32 | x.part[0])) +
               cdi_square(cdi_double_of_bits((uint64_t)x.part[3] << 32 | x.part[2]));
    for (uint32_t k = 0; k < 4; k++)
        v[k] = dtype == CDDP_FLOAT32 ? cdi_square((double)cdi_float_of_bits(x.part[k]))
                                     : cdi_square(cdi_tally_narrow(x.part[k / 2], k % 2, dtype)) +
                                           cdi_square(cdi_tally_narrow(x.part[2 + k / 2], k % 2, dtype));
    sum = (v[0] + v[2]) + (v[1] + v[3]);
    if (dtype != CDDP_FLOAT32 && cdi_bits_of_double(sum) >= beyond) { /* the square of what is not finite, or so */
        const uint32_t most = cdi_unit_largest(&x, dtype, 0), inf = (uint32_t)cdi_inf_bits(dtype);

        sum = most < inf ? sum : cdi_double_of_bits(most == inf ? 0x7ff0000000000000u : 0x7ff8000000000000u);
    }
    return sum;
}

CDI_INLINE void cdi_tally_units(double *to, const cdi_wide x[CDI_TALLY_UNITS], int32_t dtype)
{
    for (uint32_t j = 0; j < CDI_TALLY_UNITS; j++)
        to[32 * j] = cdi_tally_unit(x[j], dtype);
}

/* Adds to a word of the block. A GPU has no such operation for 64 bits of shared memory; most sums have no carry. */
CDI_INLINE void cdi_tally_add_digit(uint64_t *to, uint32_t mine)
{
#ifdef __CUDA_ARCH__
    uint32_t *half = (uint32_t *)to;

    if (atomicAdd(half, mine) > ~mine)
        atomicAdd(half + 1, 1u);
#else
    *to += mine;
#endif
}

/* Moves a thread's sum to the words of the block. */
CDI_INLINE void cdi_tally_empty(struct cdi_tally_own *own, uint64_t *word)
{
    for (uint32_t k = 0; k < 6; k++) {
        const uint32_t digit = (uint32_t)(own->part[k / 2] >> k % 2 * 32);

        if (digit != 0)
            cdi_tally_add_digit(&word[own->limb + k], digit);
    }
    own->part[0] = own->part[1] = own->part[2] = 0;
}

CDI_INLINE void cdi_tally_add(struct cdi_tally_own *own, uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t sum = own->part[1] + b;

    own->part[0] += a;
    own->part[1] = sum + (own->part[0] < a);
    own->part[2] += c + (sum < b || own->part[1] < sum);
}

/* Adds the sum of a line to the thread's, which is moved where its limbs lie elsewhere or its last bit is used. */
CDI_INLINE void cdi_tally_line(struct cdi_tally_own *own, double line, uint64_t *word)
{
    const uint64_t bits = cdi_bits_of_double(line) & 0x7fffffffffffffffu;
    const uint32_t exponent = (uint32_t)(bits >> 52), at = exponent - (exponent != 0);
    const uint64_t whole = (bits & (CDI_EXACT_ONE - 1)) | (exponent != 0 ? CDI_EXACT_ONE : 0);
    uint32_t shift = at - 32 * own->limb;
    uint64_t low, high;

    if (shift >= 128 || exponent == 2047 || own->part[2] >> 63 != 0) {
        if (bits == 0)
            return;
        if (exponent == 2047) {
            cdi_tally_add_digit(&word[bits == 0x7ff0000000000000u ? CDI_EXACT_INF : CDI_EXACT_NAN], 1);
            return;
        }
        cdi_tally_empty(own, word);
        own->limb = at < 48 ? 0 : (at + 16) / 32 - 2; /* 48 or more digits above and below it can be added, too */
        shift = at - 32 * own->limb;
    }
    low = whole << shift % 64;
    high = whole >> 1 >> (63 - shift % 64);
    cdi_tally_add(own, shift < 64 ? low : 0, shift < 64 ? high : low, shift < 64 ? 0 : high);
}

/* Adds sum b of one thread to that of another, or moves it. */
CDI_INLINE void cdi_tally_join(struct cdi_tally_own *a, struct cdi_tally_own *b, uint64_t *word)
{
    if ((a->part[0] | a->part[1] | a->part[2]) == 0)
        *a = *b;
    else if (a->limb == b->limb && (a->part[2] | b->part[2]) >> 62 == 0)
        cdi_tally_add(a, b->part[0], b->part[1], b->part[2]);
    else
        cdi_tally_empty(b, word);
}

CDI_INLINE void cdi_tally_squares_of(const struct cdi_kernel_thread *t, const struct cdi_tally_chunk *c,
                                     struct cdi_tally_own own[CDI_TALLY_KEPT], struct cdi_tally_room *room)
{
    const uint32_t step = CDI_TALLY_UNITS * t->n_threads;

    for (uint32_t at = 0; at * 16 < c->bytes; at += step) {
        CDI_EACH_THREAD(t, k)
        {
            const uint32_t first = cdi_tally_first(k);
            double *to = &room->of_unit[first];
            cdi_wide x[CDI_TALLY_UNITS];

            cdi_tally_read_units(x, c, at + first, at + step <= c->whole);
            if (c->dtype == CDDP_FLOAT32) /* once for each type, which is known to the compiler then */
                cdi_tally_units(to, x, CDDP_FLOAT32);
            else if (c->dtype == CDDP_BFLOAT16)
                cdi_tally_units(to, x, CDDP_BFLOAT16);
            else if (c->dtype == CDDP_FLOAT16)
                cdi_tally_units(to, x, CDDP_FLOAT16);
            else
                cdi_tally_units(to, x, CDDP_FLOAT64);
        }
        CDI_SYNC_WARP();
        CDI_EACH_THREAD(t, k)
        {
            const double *q = &room->of_unit[4 * k]; /* of this warp */

            cdi_tally_line(&own[CDI_TALLY_KEEPS(k)], (q[0] + q[2]) + (q[1] + q[3]), room->word);
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
    const uint32_t begin = cdi_tally_begin(a, t->block, t->n_blocks),
                   end = cdi_tally_begin(a, t->block + 1, t->n_blocks);
    uint32_t i = cdi_span_of_chunk(a->span, a->n, begin);
    struct cdi_tally_own own[CDI_TALLY_KEPT];

    for (uint32_t k = 0; k < CDI_TALLY_KEPT; k++)
        own[k].part[0] = own[k].part[1] = own[k].part[2] = own[k].limb = 0;
    CDI_EACH_THREAD(t, k)
    if (k < CDI_EXACT_WORDS)
        room->word[k] = 0;
    CDI_SYNC();
    for (uint32_t c = begin; c < end; c++) {
        const struct cdi_tally_chunk chunk = cdi_tally_find(a, c, &i);

        cdi_tally_squares_of(t, &chunk, own, room);
    }
    CDI_EACH_THREAD(t, k)
    room->of_thread[k] = own[CDI_TALLY_KEEPS(k)];
    for (uint32_t half = CDI_KERNEL_THREADS / 2; half > 0; half /= 2) {
        CDI_SYNC();
        CDI_EACH_THREAD(t, k)
        if (k < half)
            cdi_tally_join(&room->of_thread[k], &room->of_thread[k + half], room->word);
    }
    if (t->thread == 0)
        cdi_tally_empty(&room->of_thread[0], room->word);
    CDI_SYNC();
    CDI_EACH_THREAD(t, k)
    if (k < CDI_EXACT_WORDS && room->word[k] != 0)
        cdi_tally_add_word(&a->words[k], room->word[k]);
}

/* --- The largest magnitude, as bits: larger bits are a larger number, and a NaN is above infinity. ---------------- */

CDI_INLINE uint64_t cdi_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Returns the bits of a magnitude in float64, and one pattern for all NaNs, since each processor makes its own. */
CDI_INLINE uint64_t cdi_tally_wide_bits(uint64_t bits, int32_t dtype)
{
    if (bits > cdi_inf_bits(dtype))
        return 0x7ff8000000000000u;
    if (dtype == CDDP_FLOAT64)
        return bits;
    return cdi_bits_of_double(dtype == CDDP_FLOAT32 ? (double)cdi_float_of_bits((uint32_t)bits)
                                                    : (double)cdi_widen((uint16_t)bits, dtype));
}

/* Returns the bits of the largest magnitude that one thread sees. */
CDI_INLINE uint64_t cdi_tally_largest_of(uint32_t thread, const struct cdi_kernel_thread *t,
                                         const struct cdi_tally_args *a)
{
    const uint32_t begin = cdi_tally_begin(a, t->block, t->n_blocks),
                   end = cdi_tally_begin(a, t->block + 1, t->n_blocks);
    const uint32_t step = CDI_TALLY_UNITS * t->n_threads;
    uint32_t i = cdi_span_of_chunk(a->span, a->n, begin);
    uint64_t most = 0;

    for (uint32_t c = begin; c < end; c++) {
        const struct cdi_tally_chunk chunk = cdi_tally_find(a, c, &i);
        uint64_t here = 0;

        for (uint32_t at = 0; at * 16 < chunk.bytes; at += step) {
            cdi_wide x[CDI_TALLY_UNITS];

            cdi_tally_read_units(x, &chunk, at + cdi_tally_first(thread), at + step <= chunk.whole);
            for (uint32_t j = 0; j < CDI_TALLY_UNITS; j++)
                here = cdi_larger(here, chunk.dtype == CDDP_FLOAT64 ? cdi_larger(cdi_magnitude(&x[j], CDDP_FLOAT64, 0),
                                                                                 cdi_magnitude(&x[j], CDDP_FLOAT64, 1))
                                                                    : cdi_unit_largest(&x[j], chunk.dtype, 0));
        }
        most = cdi_larger(most, cdi_tally_wide_bits(here, chunk.dtype));
    }
    return most;
}

CDI_INLINE void cdi_tally_largest(const struct cdi_kernel_thread *t, const struct cdi_tally_args *a,
                                  struct cdi_tally_room *room)
{
    CDI_EACH_THREAD(t, k)
    room->of_thread[k].part[0] = cdi_tally_largest_of(k, t, a);
    for (uint32_t half = CDI_KERNEL_THREADS / 2; half > 0; half /= 2) {
        CDI_SYNC();
        CDI_EACH_THREAD(t, k)
        if (k < half)
            room->of_thread[k].part[0] = cdi_larger(room->of_thread[k].part[0], room->of_thread[k + half].part[0]);
    }
    if (t->thread == 0)
        cdi_find_tell(&a->words[0], room->of_thread[0].part[0]);
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
