/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of one thread of a kernel, written once for nvcc and for C: the kernels of kernels.cu and their twins on the
 * host (tests/support/kernel_twin.c) call these bodies, so that both give the same bits. Everything here is exact or
 * rounded once, and must not be contracted (nvcc --fmad=false, -ffp-contract=off).
 *
 * A thread with index `at` of `step` threads handles the units at, at + step, ... of its work. Pointers may have any
 * alignment that their element has (pack: any at all); where it is good, 16 bytes move at once.
 */
#ifndef CDI_KERNELS_ELEMENT_H
#define CDI_KERNELS_ELEMENT_H

#include "worker/backend/nccl/kernels/kernel.h"
#include "worker/math/exact_sum.h"
#include "worker/math/float16.h"

/*
 * If the threads of a block synchronise, a body is written for the whole block: every thread executes the code after
 * CDI_EACH_THREAD, and on the host they do so one after the other; CDI_SYNC ends it, or CDI_SYNC_WARP where threads
 * need only those of their warp. A thread's own variables live no longer than that: other data is the same in all
 * threads, or in a struct, called the room, which the block shares.
 */
#ifdef __CUDACC__
#define CDI_EACH_THREAD(t, k) for (uint32_t k = (t)->thread, k##_once = 1; k##_once != 0; k##_once = 0)
#define CDI_SYNC() __syncthreads()
#define CDI_SYNC_WARP() __syncwarp()
#else
/* NOLINTNEXTLINE(bugprone-macro-parentheses): k is the name that it declares */
#define CDI_EACH_THREAD(t, k) for (uint32_t k = 0; k < (t)->n_threads; k++)
#define CDI_SYNC() ((void)0)
#define CDI_SYNC_WARP() ((void)0)
#endif

/* The index of a thread, and the number of threads. */
struct cdi_kernel_thread {
    uint32_t block, n_blocks;
    uint32_t thread, n_threads;
};

/* What moves at once, 16 bytes: four elements of float32, or part of any data; eight of 16 bits. */
typedef struct __attribute__((aligned(16), may_alias)) cdi_wide {
    uint32_t part[4];
} cdi_wide;

typedef struct __attribute__((aligned(16), may_alias)) cdi_narrow {
    uint16_t part[8];
} cdi_narrow;

/* Four elements of 16 bits, beside four of float32. */
typedef struct __attribute__((aligned(8), may_alias)) cdi_half {
    uint16_t part[4];
} cdi_half;

CDI_INLINE int cdi_is_aligned(const void *p, size_t bytes)
{
    return ((uintptr_t)p & (bytes - 1)) == 0;
}

CDI_INLINE uint64_t cdi_first_unit(const struct cdi_kernel_thread *t)
{
    return (uint64_t)t->block * t->n_threads + t->thread;
}

CDI_INLINE uint64_t cdi_unit_step(const struct cdi_kernel_thread *t)
{
    return (uint64_t)t->n_blocks * t->n_threads;
}

/* --- Scaling: a factor of 1 changes no bit; NaNs follow a rule, since each processor makes its own. --------------- */

CDI_INLINE float cdi_scale_float(float x, float factor)
{
    uint32_t bits = cdi_bits_of_float(x);

    if (factor == 1.0f)
        return x;
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return cdi_float_of_bits(bits | 0x400000u);
    x *= factor;
    return x == x ? x : cdi_float_of_bits(0x7fc00000u);
}

CDI_INLINE double cdi_scale_double(double x, double factor)
{
    uint64_t bits = cdi_bits_of_double(x);

    if (factor == 1.0)
        return x;
    if ((bits & 0x7fffffffffffffffu) > 0x7ff0000000000000u)
        return cdi_double_of_bits(bits | 0x8000000000000u);
    x *= factor;
    return x == x ? x : cdi_double_of_bits(0x7ff8000000000000u);
}

/* --- The 16-bit types are worked on in float32, and rounded once. ------------------------------------------------- */

CDI_INLINE float cdi_widen(uint16_t x, int32_t dtype)
{
    return dtype == CDDP_FLOAT16 ? cdi_float_of_f16(x) : cdi_float_of_bf16(x);
}

CDI_INLINE uint16_t cdi_round(float x, int32_t dtype)
{
    return dtype == CDDP_FLOAT16 ? cdi_f16_of_float(x) : cdi_bf16_of_float(x);
}

CDI_INLINE uint16_t cdi_scale_narrow(uint16_t x, float factor, int32_t dtype)
{
    return factor == 1.0f ? x : cdi_round(cdi_scale_float(cdi_widen(x, dtype), factor), dtype);
}

/* Returns the elements of a unit, which moves at once. */
CDI_INLINE uint64_t cdi_unit_of(int32_t dtype)
{
    return dtype == CDDP_FLOAT32 ? 4 : 8;
}

/* Returns the number of units that an array of the type can be split into; the rest goes one by one. */
CDI_INLINE uint64_t cdi_units(const void *x, uint64_t count, int32_t dtype)
{
    return dtype != CDDP_FLOAT64 && cdi_is_aligned(x, sizeof(cdi_wide)) ? count / cdi_unit_of(dtype) : 0;
}

CDI_INLINE void cdi_scale_at(void *to, const void *from, int32_t dtype, double factor, uint64_t i)
{
    if (dtype == CDDP_FLOAT32)
        ((float *)to)[i] = cdi_scale_float(((const float *)from)[i], (float)factor);
    else if (dtype == CDDP_FLOAT64)
        ((double *)to)[i] = cdi_scale_double(((const double *)from)[i], factor);
    else
        ((uint16_t *)to)[i] = cdi_scale_narrow(((const uint16_t *)from)[i], (float)factor, dtype);
}

CDI_INLINE void cdi_scale_unit(void *to, const void *from, int32_t dtype, float factor, uint64_t u)
{
    if (dtype == CDDP_FLOAT32) {
        cdi_wide x = ((const cdi_wide *)from)[u];

        for (int k = 0; k < 4; k++)
            x.part[k] = cdi_bits_of_float(cdi_scale_float(cdi_float_of_bits(x.part[k]), factor));
        ((cdi_wide *)to)[u] = x;
    } else {
        cdi_narrow x = ((const cdi_narrow *)from)[u];

        for (int k = 0; k < 8; k++)
            x.part[k] = cdi_scale_narrow(x.part[k], factor, dtype);
        ((cdi_narrow *)to)[u] = x;
    }
}

/* to[i] = factor * from[i], by threads of numbers first, first + step, ... */
CDI_INLINE void cdi_scale_range(uint64_t first, uint64_t step, void *to, const void *from, uint64_t count,
                                int32_t dtype, double factor)
{
    const uint64_t a = cdi_units(to, count, dtype), b = cdi_units(from, count, dtype), units = a < b ? a : b;

    for (uint64_t u = first; u < units; u += step)
        cdi_scale_unit(to, from, dtype, (float)factor, u);
    for (uint64_t i = units * cdi_unit_of(dtype) + first; i < count; i += step)
        cdi_scale_at(to, from, dtype, factor, i);
}

CDI_INLINE void cdi_scale_body(const struct cdi_kernel_thread *t, const struct cdi_scale_args *a)
{
    cdi_scale_range(cdi_first_unit(t), cdi_unit_step(t), a->x, a->x, a->count, a->dtype, a->factor);
}

/*
 * --- Casts: scaled in float32, then rounded once. ---
 *
 * A thread takes four elements, so that the threads of a warp write neighbouring 16 bytes of float32. With eight it
 * was slower on an H200: 2.6 instead of 3.6 TB/s from float16 to float32.
 */

CDI_INLINE void cdi_cast_at(const struct cdi_cast_args *a, uint64_t i)
{
    const float *wide = (const float *)a->from;
    const uint16_t *narrow = (const uint16_t *)a->from;

    if (a->from_type == CDDP_FLOAT32)
        ((uint16_t *)a->to)[i] = cdi_round(cdi_scale_float(wide[i], a->factor), a->to_type);
    else
        ((float *)a->to)[i] = cdi_scale_float(cdi_widen(narrow[i], a->from_type), a->factor);
}

CDI_INLINE void cdi_cast_four(const struct cdi_cast_args *a, uint64_t u)
{
    if (a->from_type == CDDP_FLOAT32) {
        const cdi_wide x = ((const cdi_wide *)a->from)[u];
        cdi_half y;

        for (int k = 0; k < 4; k++)
            y.part[k] = cdi_round(cdi_scale_float(cdi_float_of_bits(x.part[k]), a->factor), a->to_type);
        ((cdi_half *)a->to)[u] = y;
    } else {
        const cdi_half x = ((const cdi_half *)a->from)[u];
        cdi_wide y;

        for (int k = 0; k < 4; k++)
            y.part[k] = cdi_bits_of_float(cdi_scale_float(cdi_widen(x.part[k], a->from_type), a->factor));
        ((cdi_wide *)a->to)[u] = y;
    }
}

/* Returns the number of fours that the arrays can be split into; the rest goes one by one. */
CDI_INLINE uint64_t cdi_cast_fours(const struct cdi_cast_args *a)
{
    const int from_wide = a->from_type == CDDP_FLOAT32;
    const int aligned = cdi_is_aligned(a->from, from_wide ? sizeof(cdi_wide) : sizeof(cdi_half)) &&
                        cdi_is_aligned(a->to, from_wide ? sizeof(cdi_half) : sizeof(cdi_wide));

    return aligned ? a->count / 4 : 0;
}

CDI_INLINE void cdi_cast_body(const struct cdi_kernel_thread *t, const struct cdi_cast_args *a)
{
    const uint64_t fours = cdi_cast_fours(a);

    for (uint64_t u = cdi_first_unit(t); u < fours; u += cdi_unit_step(t))
        cdi_cast_four(a, u);
    for (uint64_t i = fours * 4 + cdi_first_unit(t); i < a->count; i += cdi_unit_step(t))
        cdi_cast_at(a, i);
}

/* --- Magnitudes: bits above those of infinity are a NaN. ---------------------------------------------------------- */

CDI_INLINE uint64_t cdi_inf_bits(int32_t dtype)
{
    return dtype == CDDP_FLOAT64   ? 0x7ff0000000000000u
           : dtype == CDDP_FLOAT32 ? 0x7f800000u
           : dtype == CDDP_FLOAT16 ? 0x7c00u
                                   : 0x7f80u;
}

/* Returns the bits of the magnitude of element i. */
CDI_INLINE uint64_t cdi_magnitude(const void *x, int32_t dtype, uint64_t i)
{
    return dtype == CDDP_FLOAT64   ? cdi_bits_of_double(((const double *)x)[i]) & 0x7fffffffffffffffu
           : dtype == CDDP_FLOAT32 ? cdi_bits_of_float(((const float *)x)[i]) & 0x7fffffffu
                                   : ((const uint16_t *)x)[i] & 0x7fffu;
}

/* Returns the largest magnitude of unit u. A healthy unit costs no more than this. */
CDI_INLINE uint32_t cdi_unit_largest(const void *x, int32_t dtype, uint64_t u)
{
    const cdi_wide y = ((const cdi_wide *)x)[u];
    uint32_t most = 0;

    for (int k = 0; k < 4 && dtype == CDDP_FLOAT32; k++) {
        const uint32_t bits = y.part[k] & 0x7fffffffu;

        most = bits > most ? bits : most;
    }
    for (int k = 0; k < 4 && dtype != CDDP_FLOAT32; k++) {
        const uint32_t low = y.part[k] & 0x7fffu, high = y.part[k] >> 16 & 0x7fffu, larger = low > high ? low : high;

        most = larger > most ? larger : most;
    }
    return most;
}

/* --- Pack and unpack: blocks take chunks of the slices in turn, threads the bytes of a chunk. --------------------- */

/*
 * Returns the entry, of n that are `stride` bytes apart, with chunk c: the last one whose first chunk is c or before.
 */
CDI_INLINE uint32_t cdi_entry_of_chunk(const uint32_t *first_chunk, uint64_t stride, uint32_t n, uint32_t c)
{
    uint32_t low = 0, high = n;

    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;

        if (*(const uint32_t *)(const void *)((const uint8_t *)first_chunk + mid * stride) <= c)
            low = mid;
        else
            high = mid;
    }
    return low;
}

CDI_INLINE uint32_t cdi_slice_of_chunk(const struct cdi_pack_args *a, uint32_t c)
{
    return cdi_entry_of_chunk(&a->slice[0].first_chunk, sizeof a->slice[0], a->n, c);
}

CDI_INLINE void cdi_copy_bytes(const struct cdi_kernel_thread *t, uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    for (uint64_t i = t->thread; i < bytes; i += t->n_threads)
        to[i] = from[i];
}

typedef uint32_t __attribute__((may_alias)) cdi_four_bytes;

/*
 * One block copies one chunk: 16 bytes at once where both sides can be aligned so, otherwise 4 (most parameters are
 * words), otherwise single bytes; single bytes also before the first such place and after the last.
 */
CDI_INLINE void cdi_copy_chunk(const struct cdi_kernel_thread *t, uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    const uint64_t apart = ((uintptr_t)to ^ (uintptr_t)from) & 15u, unit = apart == 0 ? 16 : (apart & 3u) == 0 ? 4 : 1;
    uint64_t head = (unit - ((uintptr_t)to & (unit - 1))) & (unit - 1), n;

    head = head < bytes ? head : bytes;
    n = (bytes - head) / unit;
    cdi_copy_bytes(t, to, from, head);
    for (uint64_t i = t->thread; i < n && unit == 16; i += t->n_threads)
        ((cdi_wide *)(void *)(to + head))[i] = ((const cdi_wide *)(const void *)(from + head))[i];
    for (uint64_t i = t->thread; i < n && unit == 4; i += t->n_threads)
        ((cdi_four_bytes *)(void *)(to + head))[i] = ((const cdi_four_bytes *)(const void *)(from + head))[i];
    head += unit > 1 ? n * unit : 0;
    cdi_copy_bytes(t, to + head, from + head, bytes - head);
}

CDI_INLINE void cdi_pack_chunk(const struct cdi_kernel_thread *t, const struct cdi_pack_args *a, uint32_t c, int unpack)
{
    const struct cdi_pack_slice *s = &a->slice[cdi_slice_of_chunk(a, c)];
    uint64_t at = (uint64_t)(c - s->first_chunk) * CDI_KERNEL_CHUNK, rest = s->bytes - at;
    const uint64_t size = a->dtype == CDDP_FLOAT64 ? 8 : a->dtype == CDDP_FLOAT32 ? 4 : 2;
    uint8_t *flat = (uint8_t *)a->flat + s->at + at, *data = (uint8_t *)s->data + at;

    if (a->flags != NULL && a->flags[s->flag] != 0)
        return;
    rest = rest < CDI_KERNEL_CHUNK ? rest : CDI_KERNEL_CHUNK;
    if (unpack)
        cdi_copy_chunk(t, data, flat, rest);
    else if (a->factor != 1.0)
        cdi_scale_range(t->thread, t->n_threads, flat, data, rest / size, a->dtype, a->factor);
    else
        cdi_copy_chunk(t, flat, data, rest);
}

CDI_INLINE void cdi_pack_body(const struct cdi_kernel_thread *t, const struct cdi_pack_args *a, int unpack)
{
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks)
        cdi_pack_chunk(t, a, c, unpack);
}

/* A reader of the word also sees all earlier writes; so it is written last, and whole. */
CDI_INLINE void cdi_signal_body(const struct cdi_kernel_thread *t, const struct cdi_signal_args *a)
{
    if (cdi_first_unit(t) != 0)
        return;
    *a->count += 1;
#ifdef __CUDA_ARCH__
    __threadfence_system();
    *(volatile uint32_t *)a->word = *a->count;
#else
    __atomic_store_n(a->word, *a->count, __ATOMIC_RELEASE);
#endif
}

CDI_INLINE void cdi_report_body(const struct cdi_kernel_thread *t, const struct cdi_report_args *a)
{
    uint64_t *const words = a->words;

    if (cdi_first_unit(t) != 0)
        return;
    words[2] += 1;
    if (words[1] != 0) {
#ifdef __CUDA_ARCH__
        volatile struct cdi_nan_report *report = a->report;

        report->number = 0;
        __threadfence_system();
        report->all = words[1];
        __threadfence_system();
        report->number = words[2];
#else
        __atomic_store_n(&a->report->number, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&a->report->all, words[1], __ATOMIC_SEQ_CST);
        __atomic_store_n(&a->report->number, words[2], __ATOMIC_SEQ_CST);
#endif
    }
    words[0] = 0;
}

CDI_INLINE void cdi_store_body(const struct cdi_kernel_thread *t, const struct cdi_store_args *a)
{
    for (uint64_t k = 0; cdi_first_unit(t) == 0 && k < a->n; k++)
        a->to[k] = a->value[k];
}

#endif
