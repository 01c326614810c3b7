/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that finds numbers that are not finite, in the style of element.h: once for nvcc and for C. */
#ifndef CDI_KERNELS_ELEMENT_FIND_H
#define CDI_KERNELS_ELEMENT_FIND_H

#include "worker/backend/nccl/kernels/element.h"
#include "worker/math/nonfinite.h"

/* Returns the worse of `worst` and the kind of a magnitude; `inf` is the bits of infinity. */
CDI_INLINE uint64_t cdi_find_worse(uint64_t worst, uint64_t bits, uint64_t limit, uint64_t inf)
{
    uint64_t kind = bits < limit ? CDI_FINITE : bits > inf ? CDI_NAN : bits == inf ? CDI_INF : CDI_OVERFLOWS;

    return kind > worst ? kind : worst;
}

/* Returns the bits of infinity. */
CDI_INLINE uint64_t cdi_find_inf(int32_t dtype)
{
    return dtype == CDDP_FLOAT64   ? 0x7ff0000000000000u
           : dtype == CDDP_FLOAT32 ? 0x7f800000u
           : dtype == CDDP_FLOAT16 ? 0x7c00u
                                   : 0x7f80u;
}

/* Raises *word to `found`. It is read first, since a gradient with one bad number often has many. */
CDI_INLINE void cdi_find_tell(uint64_t *word, uint64_t found)
{
#ifdef __CUDA_ARCH__
    if (*(volatile unsigned long long *)word < found)
        atomicMax((unsigned long long *)word, (unsigned long long)found);
#else
    uint64_t before = __atomic_load_n(word, __ATOMIC_RELAXED);

    while (before < found && !__atomic_compare_exchange_n(word, &before, found, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
#endif
}

CDI_INLINE uint64_t cdi_find_bits(const void *x, int32_t dtype, uint64_t i)
{
    return dtype == CDDP_FLOAT64   ? cdi_bits_of_double(((const double *)x)[i]) & 0x7fffffffffffffffu
           : dtype == CDDP_FLOAT32 ? cdi_bits_of_float(((const float *)x)[i]) & 0x7fffffffu
                                   : ((const uint16_t *)x)[i] & 0x7fffu;
}

/* Looks at elements i to i + 3, as far as they exist. */
CDI_INLINE uint64_t cdi_find_unit(uint64_t worst, const struct cdi_kernel_span *s, uint64_t i, uint64_t limit,
                                  uint64_t inf)
{
    if (s->count - i >= 4 && s->dtype == CDDP_FLOAT32 && cdi_is_aligned(s->x, sizeof(cdi_wide))) {
        const cdi_wide x = ((const cdi_wide *)s->x)[i / 4];

        for (int k = 0; k < 4; k++)
            worst = cdi_find_worse(worst, x.part[k] & 0x7fffffffu, limit, inf);
    } else if (s->count - i >= 4 && s->dtype != CDDP_FLOAT32 && s->dtype != CDDP_FLOAT64 &&
               cdi_is_aligned(s->x, sizeof(cdi_narrow))) {
        const cdi_narrow x = ((const cdi_narrow *)s->x)[i / 4];

        for (int k = 0; k < 4; k++)
            worst = cdi_find_worse(worst, x.part[k] & 0x7fffu, limit, inf);
    } else {
        for (uint64_t k = i; k < i + 4 && k < s->count; k++)
            worst = cdi_find_worse(worst, cdi_find_bits(s->x, s->dtype, k), limit, inf);
    }
    return worst;
}

/* Returns the largest word of one thread; 0: it has found nothing. */
CDI_INLINE uint64_t cdi_find_body(const struct cdi_kernel_thread *t, const struct cdi_find_args *a)
{
    uint64_t most = 0;

    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const uint32_t k = cdi_entry_of_chunk(&a->span[0].first_chunk, sizeof a->span[0], a->n, c);
        const struct cdi_kernel_span *s = &a->span[k];
        const uint64_t at = (uint64_t)(c - s->first_chunk) * CDI_SPAN_CHUNK;
        const uint64_t rest = s->count - at, end = at + (rest < CDI_SPAN_CHUNK ? rest : CDI_SPAN_CHUNK);
        const uint64_t inf = cdi_find_inf(s->dtype);
        uint64_t worst = CDI_FINITE;

        for (uint64_t i = at + (uint64_t)t->thread * 4; i < end; i += (uint64_t)t->n_threads * 4)
            worst = cdi_find_unit(worst, s, i, a->limit, inf);
        if (worst != CDI_FINITE && (a->word_of[k] | worst) > most)
            most = a->word_of[k] | worst;
    }
    return most;
}

#endif
