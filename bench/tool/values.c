/* SPDX-License-Identifier: Apache-2.0 */
#include "values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct bench_type bench_types[] = {
    {"int8", CDDP_INT8, 0, 0},         {"uint8", CDDP_UINT8, 0, 0},        {"int32", CDDP_INT32, 0, 0},
    {"uint32", CDDP_UINT32, 0, 0},     {"int64", CDDP_INT64, 0, 0},        {"uint64", CDDP_UINT64, 0, 0},
    {"half", CDDP_FLOAT16, 5, 10},     {"float", CDDP_FLOAT32, 8, 23},     {"double", CDDP_FLOAT64, 11, 52},
    {"bfloat16", CDDP_BFLOAT16, 8, 7}, {"f8e4m3", CDDP_FLOAT8_E4M3, 4, 3}, {"f8e5m2", CDDP_FLOAT8_E5M2, 5, 2},
    {"int16", CDDP_INT16, 0, 0},       {"uint16", CDDP_UINT16, 0, 0},
};
const struct bench_op bench_ops[] = {
    {"sum", CDDP_SUM, true, true},  {"prod", CDDP_PROD, true, true},  {"min", CDDP_MIN, true, true},
    {"max", CDDP_MAX, true, true},  {"avg", CDDP_AVG, true, false},   {"band", CDDP_BAND, false, true},
    {"bor", CDDP_BOR, false, true}, {"bxor", CDDP_BXOR, false, true},
};
const int bench_n_types = sizeof bench_types / sizeof bench_types[0];
const int bench_n_ops = sizeof bench_ops / sizeof bench_ops[0];

/* 1 or 2. */
static unsigned value_of(int rank, size_t i, unsigned round)
{
    uint64_t h = (i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xc2b2ae3d27d4eb4fu + round * 0x165667b19e3779f9u;

    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return 1 + (unsigned)(h >> 62 & 1);
}

/* The bits of x >= 0, rounded to nearest, ties to even; no subnormal numbers come here. */
static uint64_t encode(double x, const struct bench_type *type)
{
    int bias = (1 << (type->exponent_bits - 1)) - 1, exponent;
    double fraction = frexp(x, &exponent), scaled;

    if (!(x > 0))
        return 0;
    scaled = nearbyint(ldexp(fraction, type->fraction_bits + 1)); /* from 2^bits to 2^(bits+1), whole */
    if (isinf(x) || exponent - 1 + bias >= (1 << type->exponent_bits) - (type->dtype != CDDP_FLOAT8_E4M3))
        return type->dtype == CDDP_FLOAT8_E4M3 ? 0x7e /* 448, the largest: there is no infinity */
                                               : (((uint64_t)1 << type->exponent_bits) - 1) << type->fraction_bits;
    /* The leading one is added to the exponent, and so is a carry of the rounding. */
    return ((uint64_t)(exponent - 2 + bias) << type->fraction_bits) + (uint64_t)scaled;
}

static double decode(uint64_t bits, const struct bench_type *type)
{
    int bias = (1 << (type->exponent_bits - 1)) - 1;
    uint64_t top = ((uint64_t)1 << type->exponent_bits) - 1,
             fraction = bits & (((uint64_t)1 << type->fraction_bits) - 1);
    uint64_t exponent = bits >> type->fraction_bits & top;
    double size;

    if (exponent == top && type->dtype != CDDP_FLOAT8_E4M3)
        return fraction != 0 ? NAN : bits >> (type->exponent_bits + type->fraction_bits) != 0 ? -INFINITY : INFINITY;
    size = exponent == 0 ? ldexp((double)fraction, 1 - bias - type->fraction_bits)
                         : ldexp(1.0 + ldexp((double)fraction, -type->fraction_bits), (int)exponent - bias);
    return bits >> (type->exponent_bits + type->fraction_bits) != 0 ? -size : size;
}

static inline uint64_t load(const void *from, size_t i, size_t size)
{
    uint64_t bits = 0;

    memcpy(&bits, (const char *)from + i * size, size); /* little-endian, as every machine that this runs on */
    return bits;
}

/* The bits of 1 and of 2. */
static void bits_of(const struct bench_type *type, uint64_t bits[2])
{
    for (unsigned v = 1; v <= 2; v++)
        bits[v - 1] = type->exponent_bits != 0 ? encode(v, type) : v;
}

/* One of these for each size of an element: a GiB is filled and checked at the speed of the hash. */
#define CASE_OF_SIZE(size, call) \
    switch (size) {              \
    case 1:                      \
        call(1);                 \
        break;                   \
    case 2:                      \
        call(2);                 \
        break;                   \
    case 4:                      \
        call(4);                 \
        break;                   \
    default:                     \
        call(8);                 \
        break;                   \
    }

static inline __attribute__((always_inline)) void fill_sized(char *to, size_t count, const uint64_t bits[2], int rank,
                                                             size_t first, unsigned round, size_t size)
{
    for (size_t i = 0; i < count; i++)
        memcpy(to + i * size, &bits[value_of(rank, first + i, round) - 1], size);
}

static inline __attribute__((always_inline)) size_t wrong_sized(const char *got, size_t count, const uint64_t bits[2],
                                                                int rank, size_t first, unsigned round, size_t size)
{
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++)
        wrong += load(got, i, size) != bits[value_of(rank, first + i, round) - 1];
    return wrong;
}

void bench_fill(void *to, size_t count, const struct bench_type *type, int rank, size_t first, unsigned round)
{
    uint64_t bits[2];

    bits_of(type, bits);
#define FILL(size) fill_sized(to, count, bits, rank, first, round, size)
    CASE_OF_SIZE(cddp_dtype_size(type->dtype), FILL)
}

size_t bench_wrong(const void *got, size_t count, const struct bench_type *type, int rank, size_t first, unsigned round)
{
    size_t wrong = 0;
    uint64_t bits[2];

    bits_of(type, bits);
#define WRONG(size) wrong = wrong_sized(got, count, bits, rank, first, round, size)
    CASE_OF_SIZE(cddp_dtype_size(type->dtype), WRONG)
    return wrong;
}

/* The reduction of `twos` times 2 and the rest of n times 1, in whole numbers, which wrap as the types do. */
static uint64_t reduce(const struct bench_op *op, int n, int twos)
{
    uint64_t a = twos > 0 ? 2 : 1;

    for (int r = 1; r < n; r++) {
        uint64_t b = r < twos ? 2 : 1;

        switch ((int)op->op) {
        case CDDP_PROD:
            a *= b;
            break;
        case CDDP_MIN:
            a = a < b ? a : b;
            break;
        case CDDP_MAX:
            a = a > b ? a : b;
            break;
        case CDDP_BAND:
            a &= b;
            break;
        case CDDP_BOR:
            a |= b;
            break;
        case CDDP_BXOR:
            a ^= b;
            break;
        default:
            a += b;
            break; /* also of the mean */
        }
    }
    return a;
}

/* The same, which may be larger than 64 bits hold. */
static double reduce_real(const struct bench_op *op, int n, int twos)
{
    return op->op == CDDP_PROD ? ldexp(1, twos) : (double)reduce(op, n, twos) / (op->op == CDDP_AVG ? n : 1);
}

/* The bits of the result by how many of the n ranks have a 2: order does not matter to any operation. */
static uint64_t *results_of(const struct bench_type *type, const struct bench_op *op, int n)
{
    size_t size = cddp_dtype_size(type->dtype);
    uint64_t mask = size < 8 ? ((uint64_t)1 << 8 * size) - 1 : UINT64_MAX, *bits = calloc((size_t)n + 1, sizeof *bits);

    for (int twos = 0; twos <= n && bits != NULL; twos++)
        bits[twos] = type->exponent_bits == 0 ? reduce(op, n, twos) & mask : encode(reduce_real(op, n, twos), type);
    return bits;
}

static double largest(const struct bench_type *type)
{
    return type->dtype == CDDP_FLOAT8_E4M3
               ? 448
               : ldexp(2 - ldexp(1, -type->fraction_bits), (1 << (type->exponent_bits - 1)) - 1);
}

/* Between which values a reduction over floats of few bits may lie. */
struct range {
    double least, most;
};

/*
 * Sums of ones and twos are exact up to `whole`, in any order. Above it each addition rounds: a sum may stay at
 * `whole`, where the next term is too small to count, and a term counts twice at most. The terms of a mean may each
 * have been divided and rounded before. However many ranks there are, neither nothing nor a sum for a mean lies in the
 * range.
 */
static struct range range_of(const struct bench_type *type, const struct bench_op *op, int n, double result)
{
    double u = ldexp(1, -type->fraction_bits - 1), whole = ldexp(1, type->fraction_bits + 1);
    /* As differences: of double, 1 + u is 1. */
    double least = result + result * expm1((n + 2) * log1p(-u));
    double most = result + result * fmin(expm1((n + 2) * log1p(u)), 1 + 2 * u);

    if (op->op == CDDP_PROD &&
        result > largest(type)) /* infinite; or, where conversions saturate, the largest number */
        return (struct range){largest(type), INFINITY};
    if (op->op == CDDP_AVG)
        return (struct range){fmax(least, fmin(result, whole / n) / 2), most};
    if (op->op != CDDP_SUM || result <= whole)
        return (struct range){result, result};
    return (struct range){fmax(least, whole), most};
}

static bool is_near(uint64_t bits, const struct bench_type *type, const struct bench_op *op, int n, double result)
{
    struct range range = range_of(type, op, n, result);
    double got = decode(bits, type);

    return got >= range.least && got <= range.most;
}

size_t bench_wrong_reduced(const void *got, size_t count, const struct bench_type *type, const struct bench_op *op,
                           int n, size_t first, unsigned round)
{
    size_t size = cddp_dtype_size(type->dtype), wrong = 0;
    uint64_t *want = results_of(type, op, n);

    if (want == NULL)
        return count; /* nothing could be checked */
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = load(got, i, size);
        int twos = 0;

        for (int r = 0; r < n; r++)
            twos += (int)value_of(r, first + i, round) - 1;
        if (bits != want[twos])
            wrong += type->exponent_bits == 0 || !is_near(bits, type, op, n, reduce_real(op, n, twos));
    }
    free(want);
    return wrong;
}
