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

/* Returns the worst kind among this thread's part of elements [from, to), from being a multiple of 8. */
CDI_INLINE uint64_t cdi_find_range(const struct cdi_kernel_thread *t, const void *x, int32_t dtype, uint64_t from,
                                   uint64_t to, uint64_t limit)
{
    const uint64_t size = cdi_unit_of(dtype), begin = from / size, end = begin + cdi_units(x, to - from, dtype);
    const uint64_t inf = cdi_inf_bits(dtype);
    uint64_t worst = CDI_FINITE;

    for (uint64_t u = begin + t->thread; u < end; u += t->n_threads)
        worst = cdi_find_worse(worst, cdi_unit_largest(x, dtype, u), limit, inf);
    for (uint64_t i = from + (end - begin) * size + t->thread; i < to; i += t->n_threads)
        worst = cdi_find_worse(worst, cdi_magnitude(x, dtype, i), limit, inf);
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
        const uint64_t worst = cdi_find_range(t, s->x, s->dtype, at, end, a->limit);

        if (worst != CDI_FINITE && (a->word_of[k] | worst) > most)
            most = a->word_of[k] | worst;
    }
    return most;
}

#endif
