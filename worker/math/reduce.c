/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The typed loops of reductions. Simple ones, which compilers vectorise, cover every type and operation. Sums and means
 * of float32, float64 and float16, which are nearly all of the work, are written by hand. Built for the baseline and,
 * on x86-64, for AVX2 and AVX-512: the same operations in the same order, so the same bits.
 */
#include "worker/math/reduce.h"

#include "worker/math/float16.h"

#include <stdatomic.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define BLOCK_BYTES 4096 /* size of the accumulators, so that they stay in the first-level cache */

#define INLINE static inline __attribute__((always_inline))

/* Conversions of elements of type T to accumulators of type A, and back. */
#define SAME(x) (x)
#define F16_IN(x) cdi_float_of_f16(x)
#define F16_OUT(x) cdi_f16_of_float(x)
#define BF16_IN(x) cdi_float_of_bf16(x)
#define BF16_OUT(x) cdi_bf16_of_float(x)

/* Not "acc > x ? acc : x": a NaN must win on either side. x != x is false for integers. */
#define LARGER(a, x) ((x) > (a) || (x) != (x) ? (x) : (a))
#define SMALLER(a, x) ((x) < (a) || (x) != (x) ? (x) : (a))

/*
 * One reduction for type T with accumulators A. W is the type of A's sums and products (unsigned if A is an integer: no
 * undefined overflow). SCALE is the factor of a mean.
 */
/* NOLINTBEGIN(bugprone-macro-parentheses): a type in parentheses is not a type. */
#define DEFINE(name, T, A, W, IN, OUT, SCALE)                                                                          \
    INLINE void name##_add(A *acc, const T *x, size_t n)                                                               \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                 \
            acc[i] = (A)((W)acc[i] + (W)IN(x[i]));                                                                     \
    }                                                                                                                  \
    INLINE void name##_mul(A *acc, const T *x, size_t n)                                                               \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                 \
            acc[i] = (A)((W)acc[i] * (W)IN(x[i]));                                                                     \
    }                                                                                                                  \
    INLINE void name##_max(A *acc, const T *x, size_t n)                                                               \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                               \
            A v = IN(x[i]);                                                                                            \
            acc[i] = LARGER(acc[i], v);                                                                                \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE void name##_min(A *acc, const T *x, size_t n)                                                               \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                               \
            A v = IN(x[i]);                                                                                            \
            acc[i] = SMALLER(acc[i], v);                                                                               \
        }                                                                                                              \
    }                                                                                                                  \
    /* Elements [begin, count). */                                                                                     \
    INLINE void name##_body(const struct cdi_partial *p, void *const *out, int n_out, const void *const *in, int n_in, \
                            size_t begin, size_t count, cddp_redop op)                                                 \
    {                                                                                                                  \
        enum { BLOCK = BLOCK_BYTES / sizeof(A) };                                                                      \
        A acc[BLOCK];                                                                                                  \
        T done[BLOCK];                                                                                                 \
        const A scale = SCALE(A, p->n_total);                                                                          \
                                                                                                                       \
        for (size_t at = begin; at < count; at += BLOCK) {                                                             \
            size_t n = count - at < BLOCK ? count - at : BLOCK;                                                        \
                                                                                                                       \
            if (p->from != NULL) {                                                                                     \
                memcpy(acc, (const A *)p->from + at, n * sizeof(A));                                                   \
            } else {                                                                                                   \
                const T *first = (const T *)in[0] + at;                                                                \
                                                                                                                       \
                for (size_t i = 0; i < n; i++)                                                                         \
                    acc[i] = IN(first[i]);                                                                             \
            }                                                                                                          \
            for (int r = p->from == NULL; r < n_in; r++) {                                                             \
                const T *x = (const T *)in[r] + at;                                                                    \
                                                                                                                       \
                switch (op) {                                                                                          \
                case CDDP_SUM:                                                                                         \
                case CDDP_AVG:                                                                                         \
                    name##_add(acc, x, n);                                                                             \
                    break;                                                                                             \
                case CDDP_PROD:                                                                                        \
                    name##_mul(acc, x, n);                                                                             \
                    break;                                                                                             \
                case CDDP_MAX:                                                                                         \
                    name##_max(acc, x, n);                                                                             \
                    break;                                                                                             \
                case CDDP_MIN:                                                                                         \
                    name##_min(acc, x, n);                                                                             \
                    break;                                                                                             \
                case CDDP_BAND: /* below, for all types at once */                                                     \
                case CDDP_BOR:                                                                                         \
                case CDDP_BXOR:                                                                                        \
                case CDDP_REDOP_FORCE_INT_:                                                                            \
                    break;                                                                                             \
                }                                                                                                      \
            }                                                                                                          \
            if (p->to != NULL) {                                                                                       \
                memcpy((A *)p->to + at, acc, n * sizeof(A));                                                           \
                continue;                                                                                              \
            }                                                                                                          \
            if (op == CDDP_AVG)                                                                                        \
                for (size_t i = 0; i < n; i++)                                                                         \
                    done[i] = (T)OUT((A)(acc[i] * scale));                                                             \
            else                                                                                                       \
                for (size_t i = 0; i < n; i++)                                                                         \
                    done[i] = (T)OUT(acc[i]);                                                                          \
            for (int k = 0; k < n_out; k++)                                                                            \
                memcpy((T *)out[k] + at, done, n * sizeof(T));                                                         \
        }                                                                                                              \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

#define MEAN_SCALE(A, n) ((A)1 / (A)(n))
#define NO_SCALE(A, n) ((A)((void)(n), 1)) /* the caller rejects a mean of integers */

DEFINE(i8, int8_t, int8_t, uint8_t, SAME, SAME, NO_SCALE)
DEFINE(u8, uint8_t, uint8_t, uint8_t, SAME, SAME, NO_SCALE)
/* Not in uint16_t, whose products are computed in int, and overflow there. */
DEFINE(i16, int16_t, int16_t, uint32_t, SAME, SAME, NO_SCALE)
DEFINE(u16, uint16_t, uint16_t, uint32_t, SAME, SAME, NO_SCALE)
DEFINE(i32, int32_t, int32_t, uint32_t, SAME, SAME, NO_SCALE)
DEFINE(u32, uint32_t, uint32_t, uint32_t, SAME, SAME, NO_SCALE)
DEFINE(i64, int64_t, int64_t, uint64_t, SAME, SAME, NO_SCALE)
DEFINE(u64, uint64_t, uint64_t, uint64_t, SAME, SAME, NO_SCALE)
DEFINE(f32, float, float, float, SAME, SAME, MEAN_SCALE)
DEFINE(f64, double, double, double, SAME, SAME, MEAN_SCALE)
DEFINE(f16, uint16_t, float, float, F16_IN, F16_OUT, MEAN_SCALE)
DEFINE(bf16, uint16_t, float, float, BF16_IN, BF16_OUT, MEAN_SCALE)

/*
 * Computes sums and means in registers, reading each input once and writing each output once: four vectors of V (LANES
 * elements each) at a time. A remainder shorter than a vector is done one by one, which costs little. Returns the
 * number of elements done; the loops above do the rest. `first` is added to each sum; scale NULL: none.
 */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
#define DEFINE_SUM(name, attr, T, A, V, LANES, LOAD, STORE, IN, OUT)                                      \
    attr static size_t name(const T *first, const void *const *in, int n_in, void *const *out, int n_out, \
                            size_t count, const A *scale)                                                 \
    {                                                                                                     \
        size_t at = 0;                                                                                    \
                                                                                                          \
        for (; count - at >= 4 * (LANES); at += 4 * (LANES)) {                                            \
            const T *x = first + at;                                                                      \
            V a = LOAD(x), b = LOAD(x + (LANES)), c = LOAD(x + 2 * (LANES)), d = LOAD(x + 3 * (LANES));   \
                                                                                                          \
            for (int r = 0; r < n_in; r++) {                                                              \
                x = (const T *)in[r] + at;                                                                \
                a += LOAD(x);                                                                             \
                b += LOAD(x + (LANES));                                                                   \
                c += LOAD(x + 2 * (LANES));                                                               \
                d += LOAD(x + 3 * (LANES));                                                               \
            }                                                                                             \
            if (scale != NULL) {                                                                          \
                a *= *scale;                                                                              \
                b *= *scale;                                                                              \
                c *= *scale;                                                                              \
                d *= *scale;                                                                              \
            }                                                                                             \
            for (int k = 0; k < n_out; k++) {                                                             \
                T *o = (T *)out[k] + at;                                                                  \
                                                                                                          \
                STORE(o, a);                                                                              \
                STORE(o + (LANES), b);                                                                    \
                STORE(o + 2 * (LANES), c);                                                                \
                STORE(o + 3 * (LANES), d);                                                                \
            }                                                                                             \
        }                                                                                                 \
        for (; at < count && count - at < (LANES); at++) {                                                \
            A a = IN(first[at]);                                                                          \
                                                                                                          \
            for (int r = 0; r < n_in; r++)                                                                \
                a += IN(((const T *)in[r])[at]);                                                          \
            if (scale != NULL)                                                                            \
                a *= *scale;                                                                              \
            for (int k = 0; k < n_out; k++)                                                               \
                ((T *)out[k])[at] = OUT(a);                                                               \
        }                                                                                                 \
        return at;                                                                                        \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

/* Vectors that may begin at any element and alias any type. */
#define VECTOR(T, bytes) T __attribute__((vector_size(bytes), aligned(sizeof(T)), may_alias))
#define GET(V) *(const V *)
#define PUT(V, p, x) (*(V *)(p) = (x))

typedef VECTOR(float, 16) f32x4;
typedef VECTOR(double, 16) f64x2;
#define GET_F32X4(p) (GET(f32x4)(p))
#define PUT_F32X4(p, x) PUT(f32x4, p, x)
#define GET_F64X2(p) (GET(f64x2)(p))
#define PUT_F64X2(p, x) PUT(f64x2, p, x)
DEFINE_SUM(f32_sum_plain, , float, float, f32x4, 4, GET_F32X4, PUT_F32X4, SAME, SAME)
DEFINE_SUM(f64_sum_plain, , double, double, f64x2, 2, GET_F64X2, PUT_F64X2, SAME, SAME)
#if defined(__aarch64__)
/* All of these processors convert in hardware; the bits of a NaN and the rounding are those of float16.h. */
#define GET_F16X4(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))
#define PUT_F16X4(p, x) vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)))
DEFINE_SUM(f16_sum_plain, , uint16_t, float, float32x4_t, 4, GET_F16X4, PUT_F16X4, F16_IN, F16_OUT)
#else
#define f16_sum_plain NULL
#endif

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,f16c")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))

typedef VECTOR(float, 32) f32x8;
typedef VECTOR(double, 32) f64x4;
#define GET_F32X8(p) (GET(f32x8)(p))
#define PUT_F32X8(p, x) PUT(f32x8, p, x)
#define GET_F64X4(p) (GET(f64x4)(p))
#define PUT_F64X4(p, x) PUT(f64x4, p, x)
#define GET_F16X8(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define PUT_F16X8(p, x) _mm_storeu_si128((__m128i *)(void *)(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT))
DEFINE_SUM(f32_sum_avx2, AVX2, float, float, f32x8, 8, GET_F32X8, PUT_F32X8, SAME, SAME)
DEFINE_SUM(f64_sum_avx2, AVX2, double, double, f64x4, 4, GET_F64X4, PUT_F64X4, SAME, SAME)
DEFINE_SUM(f16_sum_avx2, AVX2, uint16_t, float, __m256, 8, GET_F16X8, PUT_F16X8, F16_IN, F16_OUT)

typedef VECTOR(float, 64) f32x16;
typedef VECTOR(double, 64) f64x8;
#define GET_F32X16(p) (GET(f32x16)(p))
#define PUT_F32X16(p, x) PUT(f32x16, p, x)
#define GET_F64X8(p) (GET(f64x8)(p))
#define PUT_F64X8(p, x) PUT(f64x8, p, x)
#define GET_F16X16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define PUT_F16X16(p, x) _mm256_storeu_si256((__m256i *)(void *)(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT))
DEFINE_SUM(f32_sum_avx512, AVX512, float, float, f32x16, 16, GET_F32X16, PUT_F32X16, SAME, SAME)
DEFINE_SUM(f64_sum_avx512, AVX512, double, double, f64x8, 8, GET_F64X8, PUT_F64X8, SAME, SAME)
DEFINE_SUM(f16_sum_avx512, AVX512, uint16_t, float, __m512, 16, GET_F16X16, PUT_F16X16, F16_IN, F16_OUT)
#endif

/*
 * Returns how much of a sum of type T the function above does; a sum that is continued elsewhere needs accumulators of
 * type T.
 */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
#define DEFINE_HEAD(name, T, A)                                                                                   \
    typedef size_t (*name##_sum_fn)(const T *first, const void *const *in, int n_in, void *const *out, int n_out, \
                                    size_t count, const A *scale);                                                \
    INLINE size_t name##_head(name##_sum_fn sum, const struct cdi_partial *p, void *const *out, int n_out,        \
                              const void *const *in, int n_in, size_t count, cddp_redop op)                       \
    {                                                                                                             \
        const A scale = (A)1 / (A)p->n_total;                                                                     \
        void *to[] = {p->to};                                                                                     \
        bool begins = p->from == NULL;                                                                            \
                                                                                                                  \
        if (sum == NULL || (op != CDDP_SUM && op != CDDP_AVG) ||                                                  \
            (sizeof(T) != sizeof(A) && (p->from != NULL || p->to != NULL)))                                       \
            return 0;                                                                                             \
        return sum(begins ? in[0] : p->from, in + begins, n_in - begins, p->to != NULL ? to : out,                \
                   p->to != NULL ? 1 : n_out, count, op == CDDP_AVG && p->to == NULL ? &scale : NULL);            \
    }
/* NOLINTEND(bugprone-macro-parentheses) */
DEFINE_HEAD(f32, float, float)
DEFINE_HEAD(f64, double, double)
DEFINE_HEAD(f16, uint16_t, float)

typedef void (*reduce_fn)(const struct cdi_partial *p, void *const *out, int n_out, const void *const *in, int n_in,
                          size_t count, cddp_redop op);

/* The functions for all types, compiled for one kind of processor. */
#define VARIANT_FN(name, variant, attr, head)                                                                          \
    attr static void name##_##variant(const struct cdi_partial *p, void *const *out, int n_out, const void *const *in, \
                                      int n_in, size_t count, cddp_redop op)                                           \
    {                                                                                                                  \
        size_t done = head;                                                                                            \
                                                                                                                       \
        name##_body(p, out, n_out, in, n_in, done, count, op);                                                         \
    }
#define HEAD(name, variant) name##_head(name##_sum_##variant, p, out, n_out, in, n_in, count, op)
#define VARIANT(variant, attr)                                                                            \
    VARIANT_FN(i8, variant, attr, 0)                                                                      \
    VARIANT_FN(u8, variant, attr, 0)                                                                      \
    VARIANT_FN(i16, variant, attr, 0)                                                                     \
    VARIANT_FN(u16, variant, attr, 0)                                                                     \
    VARIANT_FN(i32, variant, attr, 0)                                                                     \
    VARIANT_FN(u32, variant, attr, 0)                                                                     \
    VARIANT_FN(i64, variant, attr, 0)                                                                     \
    VARIANT_FN(u64, variant, attr, 0)                                                                     \
    VARIANT_FN(f32, variant, attr, HEAD(f32, variant))                                                    \
    VARIANT_FN(f64, variant, attr, HEAD(f64, variant))                                                    \
    VARIANT_FN(f16, variant, attr, HEAD(f16, variant))                                                    \
    VARIANT_FN(bf16, variant, attr, 0)                                                                    \
    static const reduce_fn fns_##variant[] = {                                                            \
        [CDDP_INT8] = i8_##variant,       [CDDP_UINT8] = u8_##variant,    [CDDP_INT32] = i32_##variant,   \
        [CDDP_UINT32] = u32_##variant,    [CDDP_INT64] = i64_##variant,   [CDDP_UINT64] = u64_##variant,  \
        [CDDP_FLOAT16] = f16_##variant,   [CDDP_FLOAT32] = f32_##variant, [CDDP_FLOAT64] = f64_##variant, \
        [CDDP_BFLOAT16] = bf16_##variant, [CDDP_INT16] = i16_##variant,   [CDDP_UINT16] = u16_##variant};

VARIANT(plain, )
#if defined(__x86_64__)
VARIANT(avx2, AVX2)
VARIANT(avx512, AVX512)
#endif

/* Bitwise operations ignore the type: n bytes, and accumulators like the elements themselves. */
static void combine(uint8_t *to, const uint8_t *x, size_t n, cddp_redop op)
{
    if (op == CDDP_BAND)
        for (size_t i = 0; i < n; i++)
            to[i] &= x[i];
    else if (op == CDDP_BOR)
        for (size_t i = 0; i < n; i++)
            to[i] |= x[i];
    else
        for (size_t i = 0; i < n; i++)
            to[i] ^= x[i];
}

static void reduce_bits(const struct cdi_partial *p, void *const *out, int n_out, const void *const *in, int n_in,
                        size_t bytes, cddp_redop op)
{
    uint8_t acc[BLOCK_BYTES];

    for (size_t at = 0; at < bytes; at += BLOCK_BYTES) {
        size_t n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;

        memcpy(acc, (const uint8_t *)(p->from != NULL ? p->from : in[0]) + at, n);
        for (int r = p->from == NULL; r < n_in; r++)
            combine(acc, (const uint8_t *)in[r] + at, n, op);
        if (p->to != NULL) {
            memcpy((uint8_t *)p->to + at, acc, n);
            continue;
        }
        for (int k = 0; k < n_out; k++)
            memcpy((uint8_t *)out[k] + at, acc, n);
    }
}

#if defined(__x86_64__)
static bool has_f16c(void) /* not every compiler has a name for it */
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/* NULL: not on this machine. */
static const reduce_fn *functions(enum cdi_reduce_kind kind)
{
    switch (kind) {
    case CDI_REDUCE_AVX512:
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && has_f16c())
            return fns_avx512;
#endif
        return NULL;
    case CDI_REDUCE_AVX2:
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2") && has_f16c())
            return fns_avx2;
#endif
        return NULL;
    case CDI_REDUCE_PLAIN:
        break;
    }
    return fns_plain;
}

size_t cdi_reduce_acc_size(cddp_dtype dtype)
{
    switch (dtype) {
    case CDDP_INT8:
    case CDDP_UINT8:
        return 1;
    case CDDP_INT16:
    case CDDP_UINT16:
        return 2;
    case CDDP_INT32:
    case CDDP_UINT32:
    case CDDP_FLOAT16:
    case CDDP_BFLOAT16:
    case CDDP_FLOAT32:
        return 4;
    case CDDP_INT64:
    case CDDP_UINT64:
    case CDDP_FLOAT64:
        return 8;
    case CDDP_FLOAT8_E4M3:
    case CDDP_FLOAT8_E5M2:
    case CDDP_DTYPE_NONE:
    case CDDP_DTYPE_FORCE_INT_:
        break;
    }
    return 0;
}

bool cdi_reduce_has(enum cdi_reduce_kind kind)
{
    return functions(kind) != NULL;
}

static void reduce_by(const reduce_fn *fns, const struct cdi_partial *p, void *const *out, int n_out,
                      const void *const *in, int n_in, size_t count, cddp_dtype dtype, cddp_redop op)
{
    if (op == CDDP_BAND || op == CDDP_BOR || op == CDDP_BXOR)
        reduce_bits(p, out, n_out, in, n_in, count * cdi_reduce_acc_size(dtype), op);
    else
        fns[dtype](p, out, n_out, in, n_in, count, op);
}

void cdi_reduce_partial_by(enum cdi_reduce_kind kind, const struct cdi_partial *p, void *const *out, int n_out,
                           const void *const *in, int n_in, size_t count, cddp_dtype dtype, cddp_redop op)
{
    reduce_by(functions(kind), p, out, n_out, in, n_in, count, dtype, op);
}

/* Detected once, since cpuid is slow on a virtual machine; concurrent callers get the same answer. */
static const reduce_fn *best(void)
{
    static const reduce_fn *_Atomic known = NULL;
    const reduce_fn *fns = atomic_load_explicit(&known, memory_order_relaxed);

    for (int kind = CDI_REDUCE_AVX512; fns == NULL; kind--) {
        fns = functions((enum cdi_reduce_kind)kind);
        atomic_store_explicit(&known, fns, memory_order_relaxed);
    }
    return fns;
}

void cdi_reduce_partial(const struct cdi_partial *p, void *const *out, int n_out, const void *const *in, int n_in,
                        size_t count, cddp_dtype dtype, cddp_redop op)
{
    reduce_by(best(), p, out, n_out, in, n_in, count, dtype, op);
}

void cdi_reduce(void *const *out, int n_out, const void *const *in, int n_in, size_t count, cddp_dtype dtype,
                cddp_redop op)
{
    const struct cdi_partial whole = {.n_total = n_in};

    cdi_reduce_partial(&whole, out, n_out, in, n_in, count, dtype, op);
}
