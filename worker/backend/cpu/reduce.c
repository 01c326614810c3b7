/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The typed loops. One block of accumulators at a time stays in the first-level cache, so that every input is read once
 * and every output written once, from one pass. Plain loops that compilers vectorise; built once for the baseline and,
 * on x86-64, once for AVX2 (same operations in the same order, so the same bits).
 */
#include "worker/backend/cpu/reduce.h"

#include "worker/backend/cpu/float16.h"

#define BLOCK_BYTES 4096

#define INLINE static inline __attribute__((always_inline))

/* How elements of type T become accumulators of type A, and back. */
#define SAME(x) (x)
#define F16_IN(x) cdi_float_of_f16(x)
#define F16_OUT(x) cdi_f16_of_float(x)
#define BF16_IN(x) cdi_float_of_bf16(x)
#define BF16_OUT(x) cdi_bf16_of_float(x)

/* Not "acc > x ? acc : x": a NaN must win on either side. x != x is false for integers. */
#define LARGER(a, x) ((x) > (a) || (x) != (x) ? (x) : (a))
#define SMALLER(a, x) ((x) < (a) || (x) != (x) ? (x) : (a))

/*
 * One reduction for type T with accumulators A; W is the type in which A's sums and products are made (unsigned where A
 * is an integer: no undefined overflow). SCALE is what a mean multiplies with.
 */
/* NOLINTBEGIN(bugprone-macro-parentheses): a type in parentheses is no type. */
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
    INLINE void name##_body(const struct cdi_partial *p, void *const *out, int n_out, const void *const *in, int n_in, \
                            size_t count, cddp_op op)                                                                  \
    {                                                                                                                  \
        enum { BLOCK = BLOCK_BYTES / sizeof(A) };                                                                      \
        A acc[BLOCK];                                                                                                  \
        T done[BLOCK];                                                                                                 \
        const A scale = SCALE(A, p->n_total);                                                                          \
                                                                                                                       \
        for (size_t at = 0; at < count; at += BLOCK) {                                                                 \
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
                case CDDP_MEAN:                                                                                        \
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
                }                                                                                                      \
            }                                                                                                          \
            if (p->to != NULL) {                                                                                       \
                memcpy((A *)p->to + at, acc, n * sizeof(A));                                                           \
                continue;                                                                                              \
            }                                                                                                          \
            if (op == CDDP_MEAN)                                                                                       \
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
#define NO_SCALE(A, n) ((A)((void)(n), 1)) /* a mean of integers is refused by the caller */

DEFINE(i8, int8_t, int8_t, uint8_t, SAME, SAME, NO_SCALE)
DEFINE(u8, uint8_t, uint8_t, uint8_t, SAME, SAME, NO_SCALE)
DEFINE(i32, int32_t, int32_t, uint32_t, SAME, SAME, NO_SCALE)
DEFINE(u32, uint32_t, uint32_t, uint32_t, SAME, SAME, NO_SCALE)
DEFINE(i64, int64_t, int64_t, uint64_t, SAME, SAME, NO_SCALE)
DEFINE(u64, uint64_t, uint64_t, uint64_t, SAME, SAME, NO_SCALE)
DEFINE(f32, float, float, float, SAME, SAME, MEAN_SCALE)
DEFINE(f64, double, double, double, SAME, SAME, MEAN_SCALE)
DEFINE(f16, uint16_t, float, float, F16_IN, F16_OUT, MEAN_SCALE)
DEFINE(bf16, uint16_t, float, float, BF16_IN, BF16_OUT, MEAN_SCALE)

typedef void (*reduce_fn)(const struct cdi_partial *p, void *const *out, int n_out, const void *const *in, int n_in,
                          size_t count, cddp_op op);

/* A set of all types, compiled for one kind of processor. */
#define VARIANT_FN(name, variant, attr)                                                                                \
    attr static void name##_##variant(const struct cdi_partial *p, void *const *out, int n_out, const void *const *in, \
                                      int n_in, size_t count, cddp_op op)                                              \
    {                                                                                                                  \
        name##_body(p, out, n_out, in, n_in, count, op);                                                               \
    }
#define VARIANT(variant, attr)                                                                           \
    VARIANT_FN(i8, variant, attr)                                                                        \
    VARIANT_FN(u8, variant, attr)                                                                        \
    VARIANT_FN(i32, variant, attr)                                                                       \
    VARIANT_FN(u32, variant, attr)                                                                       \
    VARIANT_FN(i64, variant, attr)                                                                       \
    VARIANT_FN(u64, variant, attr)                                                                       \
    VARIANT_FN(f32, variant, attr)                                                                       \
    VARIANT_FN(f64, variant, attr)                                                                       \
    VARIANT_FN(f16, variant, attr)                                                                       \
    VARIANT_FN(bf16, variant, attr)                                                                      \
    static const reduce_fn fns_##variant[] = {                                                           \
        [CDDP_INT8] = i8_##variant,      [CDDP_UINT8] = u8_##variant,    [CDDP_INT32] = i32_##variant,   \
        [CDDP_UINT32] = u32_##variant,   [CDDP_INT64] = i64_##variant,   [CDDP_UINT64] = u64_##variant,  \
        [CDDP_FLOAT16] = f16_##variant,  [CDDP_FLOAT32] = f32_##variant, [CDDP_FLOAT64] = f64_##variant, \
        [CDDP_BFLOAT16] = bf16_##variant};

VARIANT(base, )
#if defined(__x86_64__)
VARIANT(avx2, __attribute__((target("avx2"))))
#endif

size_t cdi_reduce_acc_size(cddp_dtype dtype)
{
    switch (dtype) {
    case CDDP_DTYPE_NONE:
        break;
    case CDDP_INT8:
    case CDDP_UINT8:
        return 1;
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
    }
    return 0;
}

void cdi_reduce_partial(const struct cdi_partial *p, void *const *out, int n_out, const void *const *in, int n_in,
                        size_t count, cddp_dtype dtype, cddp_op op)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        fns_avx2[dtype](p, out, n_out, in, n_in, count, op);
        return;
    }
#endif
    fns_base[dtype](p, out, n_out, in, n_in, count, op);
}

void cdi_reduce(void *const *out, int n_out, const void *const *in, int n_in, size_t count, cddp_dtype dtype,
                cddp_op op)
{
    const struct cdi_partial whole = {.n_total = n_in};

    cdi_reduce_partial(&whole, out, n_out, in, n_in, count, dtype, op);
}
