/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that sums the mixed words of parameters (worker/math/hash64.h), in the style of element.h: once for nvcc
 * and for C. The order of the sum does not matter, so threads add to it as they come.
 */
#ifndef CDI_KERNELS_ELEMENT_HASH_H
#define CDI_KERNELS_ELEMENT_HASH_H

#include "worker/backend/nccl/kernels/element.h"
#include "worker/math/hash64.h"

typedef uint32_t __attribute__((may_alias)) cdi_hash_half;

/* Returns bytes at to at + 7, as far as they exist, and zeros after them. */
CDI_INLINE uint64_t cdi_hash_load(const uint8_t *x, uint64_t at, uint64_t bytes)
{
    const uint64_t n = bytes - at < 8 ? bytes - at : 8;
    uint64_t word = 0;

    if (n == 8 && cdi_is_aligned(x, 4)) {
        const cdi_hash_half *part = (const cdi_hash_half *)(const void *)(x + at);

        return (uint64_t)part[0] | (uint64_t)part[1] << 32;
    }
    for (uint64_t k = 0; k < n; k++)
        word |= (uint64_t)x[at + k] << 8 * k;
    return word;
}

/* Returns what this thread adds for chunk c of a piece: pairs of words, 16 bytes at once where they are aligned. */
CDI_INLINE uint64_t cdi_hash_chunk(const struct cdi_kernel_thread *t, const struct cdi_hash_piece *p, uint32_t c)
{
    const uint8_t *x = (const uint8_t *)p->x;
    const uint64_t begin = (uint64_t)(c - p->first_chunk) * CDI_HASH_CHUNK, rest = p->bytes - begin;
    const uint64_t end = begin + (rest < CDI_HASH_CHUNK ? rest : CDI_HASH_CHUNK);
    const int wide = cdi_is_aligned(x, sizeof(cdi_wide));
    uint64_t sum = 0;

    for (uint64_t at = begin + (uint64_t)t->thread * 16; at < end; at += (uint64_t)t->n_threads * 16) {
        uint64_t low, high;

        if (wide && end - at >= 16) {
            const cdi_wide two = *(const cdi_wide *)(const void *)(x + at);

            low = (uint64_t)two.part[0] | (uint64_t)two.part[1] << 32;
            high = (uint64_t)two.part[2] | (uint64_t)two.part[3] << 32;
        } else {
            low = cdi_hash_load(x, at, end);
            high = at + 8 < end ? cdi_hash_load(x, at + 8, end) : 0;
        }
        sum += cdi_hash64_word(low, at / 8);
        if (at + 8 < end)
            sum += cdi_hash64_word(high, at / 8 + 1);
    }
    return sum;
}

/* Adds the sums of a warp's threads, which all call it, by one of them. */
CDI_INLINE void cdi_hash_add(uint64_t *to, uint64_t mine)
{
#ifdef __CUDA_ARCH__
    unsigned long long sum = mine;

    for (int apart = 16; apart > 0; apart /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, apart);
    if (threadIdx.x % 32 == 0)
        atomicAdd((unsigned long long *)to, sum);
#else
    __atomic_fetch_add(to, mine, __ATOMIC_RELAXED);
#endif
}

CDI_INLINE void cdi_hash_body(const struct cdi_kernel_thread *t, const struct cdi_hash_args *a)
{
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const uint32_t k = cdi_entry_of_chunk(&a->piece[0].first_chunk, sizeof a->piece[0], a->n, c);

        cdi_hash_add(&a->sum[a->piece[k].index], cdi_hash_chunk(t, &a->piece[k], c));
    }
}

#endif
