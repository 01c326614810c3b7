/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of NCCL's operations; instrumented, since it reads and writes the program's memory. */
#include "comm.h"

#include "worker/math/float16.h"
#include "worker/math/reduce.h"

#include <math.h>

/* NCCL's types and operations have the same order as the project's. */
_Static_assert((int)ncclFloat32 + 1 == (int)CDDP_FLOAT32 && (int)ncclBfloat16 + 1 == (int)CDDP_BFLOAT16, "types");
_Static_assert((int)ncclSum == (int)CDDP_SUM && (int)ncclMin == (int)CDDP_MIN && (int)ncclAvg == (int)CDDP_AVG, "ops");

/* A float of 8 bits as its definition has it (OCP OFP8): E4M3 has no infinities, E5M2 is the upper half of a half. */
static float float_of_f8(uint8_t b, ncclDataType_t type)
{
    bool e4m3 = type == ncclFloat8e4m3;
    int n = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, e = (b & 0x7f) >> n, m = b & ((1 << n) - 1);
    double v = e == 0 ? ldexp(m, 1 - bias - n) : ldexp(m + (1 << n), e - bias - n);

    if (e4m3 ? (b & 0x7f) == 0x7f : e == 31)
        v = e4m3 || m != 0 ? (double)NAN : (double)INFINITY;
    return (float)(b >> 7 ? -v : v);
}

/* Rounds to nearest, ties to even; values that are too large become the largest number (__NV_SATFINITE). */
static uint8_t f8_of_float(float x, ncclDataType_t type)
{
    const uint8_t largest = type == ncclFloat8e4m3 ? 0x7e : 0x7b, sign = signbit(x) ? 0x80 : 0;
    uint8_t lo = 0, hi = largest;
    float v = fabsf(x), below, above;

    if (isnan(x))
        return 0x7f;
    while (hi - lo > 1) { /* float_of_f8(lo) <= v */
        uint8_t middle = (uint8_t)((lo + hi) / 2);

        if (float_of_f8(middle, type) <= v)
            lo = middle;
        else
            hi = middle;
    }
    below = v - float_of_f8(lo, type);
    above = float_of_f8(hi, type) - v;
    return sign | (above < below || (!(below < above) && lo % 2 == 1) ? hi : lo);
}

/* As reduce_kernel.h of v2.24.3 has it: each result is rounded. */
static void reduce_f8(uint8_t *to, const void *const *in, int n, size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    for (size_t i = 0; i < count; i++) {
        float acc = float_of_f8(((const uint8_t *)in[0])[i], type);

        for (int r = 1; r < n; r++) {
            float x = float_of_f8(((const uint8_t *)in[r])[i], type);

            acc = op == ncclProd ? acc * x : op == ncclMax ? fmaxf(acc, x) : op == ncclMin ? fminf(acc, x) : acc + x;
            acc = float_of_f8(f8_of_float(acc, type), type);
        }
        to[i] = f8_of_float(acc, type);
    }
}

void si_touch_reduce(void *out, const void *const *in, int n, size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    char sum[SEGMENT_CHUNK] __attribute__((aligned(64)));
    void *to = sum;

    /* Through a copy: ThreadSanitizer does not always see the code that the compiler makes of this memcpy. */
    if (si_is_float8(type))
        reduce_f8(to, in, n, count, type, op);
    else
        cdi_reduce(&to, 1, in, n, count, (cddp_dtype)(type + 1), (cddp_redop)op);
    si_touch_copy(out, sum, count * si_type_size(type));
}

#define EACH(T, expression)                \
    do {                                   \
        T *out = to;                       \
        const T *x = from;                 \
        for (size_t i = 0; i < count; i++) \
            out[i] = (T)(expression);      \
    } while (0)

/* The factor is rounded to the type first, as NCCL does. */
void si_touch_scale(void *to, const void *from, size_t count, ncclDataType_t type, double factor)
{
    const float f16 = cdi_float_of_f16(cdi_f16_of_float((float)factor));
    const float bf16 = cdi_float_of_bf16(cdi_bf16_of_float((float)factor));
    const float f8 = si_is_float8(type) ? float_of_f8(f8_of_float((float)factor, type), type) : 0;

    switch (type) {
    case ncclInt8:
        EACH(int8_t, x[i] * (int)factor);
        break;
    case ncclUint8:
        EACH(uint8_t, x[i] * (unsigned)factor);
        break;
    case ncclInt32:
        EACH(int32_t, (uint32_t)x[i] * (uint32_t)(int32_t)factor);
        break;
    case ncclUint32:
        EACH(uint32_t, x[i] * (uint32_t)factor);
        break;
    case ncclInt64:
        EACH(int64_t, (uint64_t)x[i] * (uint64_t)(int64_t)factor);
        break;
    case ncclUint64:
        EACH(uint64_t, x[i] * (uint64_t)factor);
        break;
    case ncclFloat16:
        EACH(uint16_t, cdi_f16_of_float(cdi_float_of_f16(x[i]) * f16));
        break;
    case ncclBfloat16:
        EACH(uint16_t, cdi_bf16_of_float(cdi_float_of_bf16(x[i]) * bf16));
        break;
    case ncclFloat32:
        EACH(float, x[i] * (float)factor);
        break;
    case ncclFloat64:
        EACH(double, x[i] * factor);
        break;
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
        EACH(uint8_t, f8_of_float(float_of_f8(x[i], type) * f8, type));
        break;
    case ncclNumTypes:
        break;
    }
}

void si_touch_divide(void *to, size_t count, ncclDataType_t type, int n)
{
    const void *from = to;

    if (type == ncclInt8)
        EACH(int8_t, x[i] / n);
    else if (type == ncclUint8)
        EACH(uint8_t, x[i] / (unsigned)n);
    else if (type == ncclInt32)
        EACH(int32_t, x[i] / n);
    else if (type == ncclUint32)
        EACH(uint32_t, x[i] / (unsigned)n);
    else if (type == ncclInt64)
        EACH(int64_t, x[i] / n);
    else if (type == ncclUint64)
        EACH(uint64_t, x[i] / (unsigned)n);
}
