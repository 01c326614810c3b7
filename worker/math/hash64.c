/* SPDX-License-Identifier: Apache-2.0 */
/* One loop that compilers vectorise, built for the baseline and, on x86-64, for AVX2 and AVX-512. */
#include "worker/math/hash64.h"

#include "worker/math/reduce.h"

#include <stdatomic.h>

#define INLINE static inline __attribute__((always_inline))

INLINE uint64_t sum_of(const uint8_t *p, size_t words, uint64_t at)
{
    uint64_t sum = 0;

    for (size_t k = 0; k < words; k++, at += CDI_HASH64_PLACE) {
        uint64_t word;

        memcpy(&word, p + 8 * k, sizeof word);
        sum += cdi_hash64_mix(word + at);
    }
    return sum;
}

static uint64_t sum_plain(const uint8_t *p, size_t words, uint64_t at)
{
    return sum_of(p, words, at);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t sum_avx2(const uint8_t *p, size_t words, uint64_t at)
{
    return sum_of(p, words, at);
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) static uint64_t sum_avx512(const uint8_t *p, size_t words,
                                                                                         uint64_t at)
{
    return sum_of(p, words, at);
}

/* Checked once, since CPUID is slow on a virtual machine. */
static int best_kind(void)
{
    static _Atomic int known = -1;
    int kind = atomic_load_explicit(&known, memory_order_relaxed);

    if (kind < 0) {
        kind = CDI_REDUCE_AVX512;
        while (kind > CDI_REDUCE_PLAIN && !cdi_reduce_has((enum cdi_reduce_kind)kind))
            kind--;
        atomic_store_explicit(&known, kind, memory_order_relaxed);
    }
    return kind;
}
#endif

static uint64_t sum_words(const uint8_t *p, size_t words, uint64_t at)
{
#if defined(__x86_64__)
    int kind = best_kind();

    if (kind == CDI_REDUCE_AVX512)
        return sum_avx512(p, words, at);
    if (kind == CDI_REDUCE_AVX2)
        return sum_avx2(p, words, at);
#endif
    return sum_plain(p, words, at);
}

uint64_t cdi_hash64_sum(const void *bytes, size_t n, uint64_t place)
{
    const uint8_t *p = bytes;
    const size_t words = n / 8;
    uint64_t sum = sum_words(p, words, (place + 1) * CDI_HASH64_PLACE), last = 0;

    if (n % 8 == 0)
        return sum;
    memcpy(&last, p + 8 * words, n % 8);
    return sum + cdi_hash64_word(last, place + words);
}

uint64_t cdi_hash64(uint64_t seed, size_t n, uint64_t sum)
{
    return cdi_hash64_mix(sum ^ cdi_hash64_mix(seed + cdi_hash64_mix((uint64_t)n)));
}
