/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one thread of a kernel does, written once for nvcc and for C: the kernels of kernels.cu and their twins on the
 * host (kernel_twin.c) call these bodies, so that both give the same bits. Everything here is exact or rounded once,
 * and nothing may be contracted (nvcc --fmad=false, -ffp-contract=off).
 *
 * A thread with index `at` of `step` threads handles the units at, at + step, ... of its work. Pointers may have any
 * alignment that their element has (pack: any at all); where it is good, 16 bytes move at once.
 */
#ifndef CDI_NCCL_ELEMENT_H
#define CDI_NCCL_ELEMENT_H

#include "worker/backend/cpu/float16.h"
#include "worker/backend/nccl/kernel.h"

/* Which thread of how many. */
struct cdi_kernel_thread {
    uint32_t block, n_blocks;
    uint32_t thread, n_threads;
};

/* 16 bytes that move at once; they may be part of anything. */
typedef struct __attribute__((aligned(16), may_alias)) cdi_wide {
    uint32_t part[4];
} cdi_wide;

CDI_INLINE uint64_t cdi_first_unit(const struct cdi_kernel_thread *t)
{
    return (uint64_t)t->block * t->n_threads + t->thread;
}

CDI_INLINE uint64_t cdi_unit_step(const struct cdi_kernel_thread *t)
{
    return (uint64_t)t->n_blocks * t->n_threads;
}

CDI_INLINE uint64_t cdi_bits_of_double(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

CDI_INLINE double cdi_double_of_bits(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* --- Scaling: a factor of 1 changes no bit; NaNs are told by rule, since each processor makes its own. ------------ */

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

/* Element i of x. */
CDI_INLINE void cdi_scale_at(void *x, uint64_t i, int32_t dtype, double factor)
{
    uint16_t *narrow = (uint16_t *)x + i;

    if (dtype == CDDP_FLOAT32)
        ((float *)x)[i] = cdi_scale_float(((float *)x)[i], (float)factor);
    else if (dtype == CDDP_FLOAT64)
        ((double *)x)[i] = cdi_scale_double(((double *)x)[i], factor);
    else if (factor == 1.0)
        return;
    else if (dtype == CDDP_FLOAT16)
        *narrow = cdi_f16_of_float(cdi_scale_float(cdi_float_of_f16(*narrow), (float)factor));
    else if (dtype == CDDP_BFLOAT16)
        *narrow = cdi_bf16_of_float(cdi_scale_float(cdi_float_of_bf16(*narrow), (float)factor));
}

CDI_INLINE void cdi_scale_body(const struct cdi_kernel_thread *t, const struct cdi_scale_args *a)
{
    for (uint64_t i = cdi_first_unit(t); i < a->count; i += cdi_unit_step(t))
        cdi_scale_at(a->x, i, a->dtype, a->factor);
}

/* --- Casts: scaled in float32, then rounded once. ----------------------------------------------------------------- */

CDI_INLINE void cdi_cast_at(const struct cdi_cast_args *a, uint64_t i)
{
    const float *wide = (const float *)a->from;
    const uint16_t *narrow = (const uint16_t *)a->from;

    if (a->to_type == CDDP_FLOAT16)
        ((uint16_t *)a->to)[i] = cdi_f16_of_float(cdi_scale_float(wide[i], a->factor));
    else if (a->to_type == CDDP_BFLOAT16)
        ((uint16_t *)a->to)[i] = cdi_bf16_of_float(cdi_scale_float(wide[i], a->factor));
    else if (a->from_type == CDDP_FLOAT16)
        ((float *)a->to)[i] = cdi_scale_float(cdi_float_of_f16(narrow[i]), a->factor);
    else
        ((float *)a->to)[i] = cdi_scale_float(cdi_float_of_bf16(narrow[i]), a->factor);
}

CDI_INLINE void cdi_cast_body(const struct cdi_kernel_thread *t, const struct cdi_cast_args *a)
{
    for (uint64_t i = cdi_first_unit(t); i < a->count; i += cdi_unit_step(t))
        cdi_cast_at(a, i);
}

/* --- Scan: the bits of a magnitude say it; above those of infinity is NaN. ---------------------------------------- */

/* What a thread found among its elements; the kernel adds it to *a->found. */
CDI_INLINE struct cdi_scan_found cdi_scan_body(const struct cdi_kernel_thread *t, const struct cdi_scan_args *a)
{
    struct cdi_scan_found found = {0, 0};

    for (uint64_t i = cdi_first_unit(t); i < a->count; i += cdi_unit_step(t)) {
        uint64_t mag, inf;

        if (a->dtype == CDDP_FLOAT64) {
            mag = cdi_bits_of_double(((const double *)a->x)[i]) & 0x7fffffffffffffffu;
            inf = 0x7ff0000000000000u;
        } else if (a->dtype == CDDP_FLOAT32) {
            mag = cdi_bits_of_float(((const float *)a->x)[i]) & 0x7fffffffu;
            inf = 0x7f800000u;
        } else {
            mag = ((const uint16_t *)a->x)[i] & 0x7fffu;
            inf = a->dtype == CDDP_FLOAT16 ? 0x7c00u : 0x7f80u;
        }
        found.n_nan += mag > inf;
        found.n_inf += mag == inf;
    }
    return found;
}

/* --- Pack and unpack: blocks take chunks of the slices in turn, threads the bytes of a chunk. --------------------- */

/* The slice that holds chunk c: the last one that begins at c or before. */
CDI_INLINE uint32_t cdi_slice_of_chunk(const struct cdi_pack_args *a, uint32_t c)
{
    uint32_t low = 0, high = a->n;

    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;

        if (a->slice[mid].first_chunk <= c)
            low = mid;
        else
            high = mid;
    }
    return low;
}

CDI_INLINE void cdi_copy_bytes(const struct cdi_kernel_thread *t, uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    for (uint64_t i = t->thread; i < bytes; i += t->n_threads)
        to[i] = from[i];
}

/* One block copies one chunk: single bytes up to where both are 16-byte aligned, if they ever are, and at the end. */
CDI_INLINE void cdi_copy_chunk(const struct cdi_kernel_thread *t, uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    uint64_t head = (16u - ((uintptr_t)to & 15u)) & 15u, n_wide;

    if ((((uintptr_t)to ^ (uintptr_t)from) & 15u) != 0) {
        cdi_copy_bytes(t, to, from, bytes);
        return;
    }
    head = head < bytes ? head : bytes;
    n_wide = (bytes - head) / sizeof(cdi_wide);
    cdi_copy_bytes(t, to, from, head);
    for (uint64_t i = t->thread; i < n_wide; i += t->n_threads)
        ((cdi_wide *)(void *)(to + head))[i] = ((const cdi_wide *)(const void *)(from + head))[i];
    head += n_wide * sizeof(cdi_wide);
    cdi_copy_bytes(t, to + head, from + head, bytes - head);
}

CDI_INLINE void cdi_pack_body(const struct cdi_kernel_thread *t, const struct cdi_pack_args *a, int unpack)
{
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_pack_slice *s = &a->slice[cdi_slice_of_chunk(a, c)];
        uint64_t at = (uint64_t)(c - s->first_chunk) * CDI_KERNEL_CHUNK, rest = s->bytes - at;
        uint8_t *flat = (uint8_t *)a->flat + s->at + at, *data = (uint8_t *)s->data + at;

        rest = rest < CDI_KERNEL_CHUNK ? rest : CDI_KERNEL_CHUNK;
        if (unpack)
            cdi_copy_chunk(t, data, flat, rest);
        else
            cdi_copy_chunk(t, flat, data, rest);
    }
}

#endif
