/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block of elements is compared as a whole, with loops that compilers vectorise, and only a block that holds a bad
 * element is searched. Built for the baseline and, on x86-64, for AVX2.
 */
#include "worker/math/nonfinite.h"

#include "worker/math/float16.h"
#include "worker/math/reduce.h"

#include <stdatomic.h>

#define BLOCK 1024
#define INLINE static inline __attribute__((always_inline))

typedef int16_t __attribute__((may_alias)) bits16;
typedef int32_t __attribute__((may_alias)) bits32;
typedef int64_t __attribute__((may_alias)) bits64;

/* Signed, since vectors of AVX2 compare signed integers; a magnitude has no sign bit. */
/* NOLINTBEGIN(bugprone-macro-parentheses): a type in parentheses is not a type. */
#define DEFINE(name, T, MAX)                                     \
    INLINE size_t name(const T *x, size_t count, uint64_t limit) \
    {                                                            \
        const T least = (T)limit;                                \
        size_t at = 0, i;                                        \
                                                                 \
        for (; count - at >= BLOCK; at += BLOCK) {               \
            T any = 0;                                           \
                                                                 \
            for (i = 0; i < BLOCK; i++)                          \
                any |= (T) - ((T)(x[at + i] & MAX) >= least);    \
            if (any != 0)                                        \
                break;                                           \
        }                                                        \
        for (; at < count && (T)(x[at] & MAX) < least; at++)     \
            ;                                                    \
        return at;                                               \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

DEFINE(find16, bits16, INT16_MAX)
DEFINE(find32, bits32, INT32_MAX)
DEFINE(find64, bits64, INT64_MAX)

INLINE size_t find(const void *x, size_t count, size_t size, uint64_t limit)
{
    return size == 2 ? find16(x, count, limit) : size == 4 ? find32(x, count, limit) : find64(x, count, limit);
}

static size_t find_plain(const void *x, size_t count, size_t size, uint64_t limit)
{
    return find(x, count, size, limit);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static size_t find_avx2(const void *x, size_t count, size_t size, uint64_t limit)
{
    return find(x, count, size, limit);
}

/* Checked once, since CPUID is slow on a virtual machine. */
static bool has_avx2(void)
{
    static _Atomic int known = -1;
    int has = atomic_load_explicit(&known, memory_order_relaxed);

    if (has < 0) {
        has = cdi_reduce_has(CDI_REDUCE_AVX2);
        atomic_store_explicit(&known, has, memory_order_relaxed);
    }
    return has == 1;
}
#endif

uint64_t cdi_nonfinite_inf(cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT64   ? 0x7ff0000000000000u
           : dtype == CDDP_FLOAT32 ? 0x7f800000u
           : dtype == CDDP_FLOAT16 ? 0x7c00u
                                   : 0x7f80u;
}

/* Does the number with these bits stay finite on its way into the other type? */
static bool survives(uint32_t bits, cddp_dtype sent, float factor)
{
    const float x = cdi_float_of_bits(bits) * factor;
    const uint16_t to = sent == CDDP_FLOAT16 ? cdi_f16_of_float(x) : cdi_bf16_of_float(x);

    return (to & INT16_MAX) < cdi_nonfinite_inf(sent);
}

uint64_t cdi_nonfinite_limit(cddp_dtype dtype, cddp_dtype sent, double factor)
{
    uint32_t low = 0, high = 0x7f800000u; /* the first survives, the second does not */

    if (dtype != CDDP_FLOAT32 || (sent != CDDP_FLOAT16 && sent != CDDP_BFLOAT16))
        return cdi_nonfinite_inf(dtype);
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;

        if (survives(middle, sent, (float)factor))
            low = middle;
        else
            high = middle;
    }
    return high;
}

size_t cdi_nonfinite_find(const void *x, size_t count, cddp_dtype dtype, uint64_t limit)
{
    const size_t size = dtype == CDDP_FLOAT64 ? 8 : dtype == CDDP_FLOAT32 ? 4 : 2;

#if defined(__x86_64__)
    if (has_avx2())
        return find_avx2(x, count, size, limit);
#endif
    return find_plain(x, count, size, limit);
}

enum cdi_nonfinite cdi_nonfinite_worst(const void *x, size_t count, cddp_dtype dtype, uint64_t limit)
{
    const uint64_t inf = cdi_nonfinite_inf(dtype);
    size_t first = cdi_nonfinite_find(x, count, dtype, limit), rest = count - first;
    const char *from = (const char *)x + first * cddp_dtype_size(dtype);

    if (rest == 0)
        return CDI_FINITE;
    if (cdi_nonfinite_find(from, rest, dtype, inf + 1) < rest)
        return CDI_NAN;
    return cdi_nonfinite_find(from, rest, dtype, inf) < rest ? CDI_INF : CDI_OVERFLOWS;
}
