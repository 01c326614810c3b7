/* SPDX-License-Identifier: Apache-2.0 */
#include "mix_value.h"

#include <math.h>
#include <string.h>

uint64_t mix_hash(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t h = a * UINT64_C(0x9e3779b97f4a7c15) ^ b * UINT64_C(0xd1342543de82ef95) ^ c * UINT64_C(0xaf251af3b0f025b5);

    h = (h ^ h >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 31;
}

/* The largest product of four is 16, the largest sum 60: every reduced type holds them. */
static double given(const struct mix_source *s, uint64_t base, size_t i)
{
    uint64_t h = (base + i) * UINT64_C(0x9e3779b97f4a7c15) >> 40;

    return s->op == CDDP_PROD ? (double)(1 + h % 2) : (double)(h % (s->dtype == CDDP_FLOAT8_E5M2 ? 8 : 16));
}

static uint64_t base_of(const struct mix_source *s, int rank)
{
    return mix_hash(s->seed, s->nr, (uint64_t)rank + 1);
}

/* 0 to 2048 only. */
static uint16_t to_half(double v)
{
    int exponent;
    double fraction = frexp(v, &exponent);

    return v == 0 ? 0 : (uint16_t)((unsigned)(exponent + 14) << 10 | ((unsigned)(fraction * 2048) & 0x3ff));
}

static double from_half(uint16_t h)
{
    double m = h & 0x3ff;
    int e = h >> 10 & 0x1f;
    double v = e == 0 ? ldexp(m, -24) : e == 31 ? NAN : ldexp(m + 1024, e - 25);

    return (h & 0x8000) != 0 ? -v : v;
}

/* 8-bit floats: an exponent with a bias, then the other bits. Whole numbers up to 15 only. */
static int rest_bits(cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT8_E4M3 ? 3 : 2;
}

static int bias(cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT8_E4M3 ? 7 : 15;
}

static uint8_t to_small(cddp_dtype dtype, double v)
{
    int exponent, n = rest_bits(dtype);
    double fraction = frexp(v, &exponent);

    return v == 0 ? 0 : (uint8_t)((exponent - 1 + bias(dtype)) << n | ((int)ldexp(fraction, n + 1) & ((1 << n) - 1)));
}

static double from_small(cddp_dtype dtype, uint8_t b)
{
    int n = rest_bits(dtype), e = b >> n;

    return b == 0 ? 0 : e == 0 || b >= 128 ? NAN : ldexp((b & ((1 << n) - 1)) + (1 << n), e - bias(dtype) - n);
}

static void put(cddp_dtype dtype, void *p, size_t i, double v)
{
    float f = (float)v;
    uint32_t bits;

    switch (dtype) {
    case CDDP_INT8:
        ((int8_t *)p)[i] = (int8_t)v;
        break;
    case CDDP_UINT8:
        ((uint8_t *)p)[i] = (uint8_t)v;
        break;
    case CDDP_INT16:
        ((int16_t *)p)[i] = (int16_t)v;
        break;
    case CDDP_UINT16:
        ((uint16_t *)p)[i] = (uint16_t)v;
        break;
    case CDDP_FLOAT8_E4M3:
    case CDDP_FLOAT8_E5M2:
        ((uint8_t *)p)[i] = to_small(dtype, v);
        break;
    case CDDP_INT32:
        ((int32_t *)p)[i] = (int32_t)v;
        break;
    case CDDP_UINT32:
        ((uint32_t *)p)[i] = (uint32_t)v;
        break;
    case CDDP_INT64:
        ((int64_t *)p)[i] = (int64_t)v;
        break;
    case CDDP_UINT64:
        ((uint64_t *)p)[i] = (uint64_t)v;
        break;
    case CDDP_FLOAT16:
        ((uint16_t *)p)[i] = to_half(v);
        break;
    case CDDP_FLOAT32:
        ((float *)p)[i] = f;
        break;
    case CDDP_FLOAT64:
        ((double *)p)[i] = v;
        break;
    case CDDP_BFLOAT16:
        memcpy(&bits, &f, sizeof bits);
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
        break;
    case CDDP_DTYPE_NONE:
    case CDDP_DTYPE_FORCE_INT_:
        break;
    }
}

double mix_get(cddp_dtype dtype, const void *p, size_t i)
{
    uint32_t bits;
    float f;

    switch (dtype) {
    case CDDP_INT8:
        return ((const int8_t *)p)[i];
    case CDDP_UINT8:
        return ((const uint8_t *)p)[i];
    case CDDP_INT16:
        return ((const int16_t *)p)[i];
    case CDDP_UINT16:
        return ((const uint16_t *)p)[i];
    case CDDP_FLOAT8_E4M3:
    case CDDP_FLOAT8_E5M2:
        return from_small(dtype, ((const uint8_t *)p)[i]);
    case CDDP_INT32:
        return ((const int32_t *)p)[i];
    case CDDP_UINT32:
        return ((const uint32_t *)p)[i];
    case CDDP_INT64:
        return (double)((const int64_t *)p)[i];
    case CDDP_UINT64:
        return (double)((const uint64_t *)p)[i];
    case CDDP_FLOAT16:
        return from_half(((const uint16_t *)p)[i]);
    case CDDP_FLOAT32:
        return (double)((const float *)p)[i];
    case CDDP_FLOAT64:
        return ((const double *)p)[i];
    case CDDP_BFLOAT16:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    case CDDP_DTYPE_NONE:
    case CDDP_DTYPE_FORCE_INT_:
        break;
    }
    return NAN;
}

void mix_fill(const struct mix_source *s, int rank, size_t first, void *to, size_t n)
{
    uint64_t base = base_of(s, rank);

    for (size_t i = 0; i < n; i++)
        put(s->dtype, to, i, given(s, base, first + i));
}

static double reduced(const struct mix_source *s, const uint64_t *base, int ranks, size_t i)
{
    double all = given(s, base[0], i);

    for (int r = 1; r < ranks; r++) {
        double v = given(s, base[r], i);

        if (s->op == CDDP_PROD)
            all *= v;
        else if (s->op == CDDP_MAX)
            all = v > all ? v : all;
        else if (s->op == CDDP_MIN)
            all = v < all ? v : all;
        else if (s->op == CDDP_BAND)
            all = (double)((unsigned)all & (unsigned)v);
        else if (s->op == CDDP_BOR)
            all = (double)((unsigned)all | (unsigned)v);
        else if (s->op == CDDP_BXOR)
            all = (double)((unsigned)all ^ (unsigned)v);
        else
            all += v;
    }
    return s->op == CDDP_AVG ? all / ranks : all;
}

/* Only a mean is rounded: once, after 1/ranks was. */
static bool is_near(const struct mix_source *s, double got, double want)
{
    double slack = s->op != CDDP_AVG           ? 0
                   : s->dtype == CDDP_BFLOAT16 ? 0x1p-8
                   : s->dtype == CDDP_FLOAT16  ? 0x1p-10
                   : s->dtype == CDDP_FLOAT32  ? 0x1p-22
                                               : 0x1p-50;

    return fabs(got - want) <= slack * want;
}

bool mix_is(const struct mix_source *s, int rank, int ranks, size_t first, const void *p, size_t n, size_t *at)
{
    struct mix_source exact = *s;
    uint64_t base[16], own = base_of(s, rank);

    for (int r = 0; r < ranks; r++)
        base[r] = base_of(s, r);
    if (rank >= 0 && exact.op == CDDP_AVG)
        exact.op = CDDP_SUM; /* nothing is rounded, nor does it change what was given */
    for (size_t i = 0; i < n; i++) {
        double want = rank >= 0 ? given(s, own, first + i) : reduced(s, base, ranks, first + i);

        if (is_near(&exact, mix_get(s->dtype, p, i), want))
            continue;
        *at = i;
        return false;
    }
    return true;
}
