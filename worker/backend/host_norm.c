/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The norm of elements in host memory, and scaling by it. Lines are collected by their exponents, each in a 64-bit
 * word, before the exact sum gets them (Neal's large accumulator, see exact_sum.h): that takes half the time.
 */
#include "worker/backend/host_elementwise.h"
#include "worker/math/float16.h"

#include <math.h>
#include <string.h>

#define BLOCK ((size_t)512) /* elements that are converted to float64 at once */
#define BINS 2047           /* exponents of numbers that are finite */
#define BIN_LINES 2047      /* numbers of 53 bits that a word holds */

/* Compares the bits of magnitudes: larger bits are a larger number, and a NaN is above infinity. */
static uint64_t magnitude(double v)
{
    return cdi_bits_of_double(v) & INT64_MAX;
}

struct tally {
    bool largest; /* the infinity norm; otherwise the Euclidean norm */
    uint64_t most;
    size_t n_lines; /* in the bins */
    uint64_t bin[BINS];
    uint64_t words[CDI_EXACT_WORDS];
};

static void norm_load(double *to, const void *from, cddp_dtype dtype, size_t n)
{
    if (dtype == CDDP_FLOAT64)
        memcpy(to, from, n * sizeof *to);
    else if (dtype == CDDP_FLOAT32)
        for (size_t k = 0; k < n; k++)
            to[k] = (double)((const float *)from)[k];
    else if (dtype == CDDP_FLOAT16)
        for (size_t k = 0; k < n; k++)
            to[k] = (double)cdi_float_of_f16(((const uint16_t *)from)[k]);
    else
        for (size_t k = 0; k < n; k++)
            to[k] = (double)cdi_float_of_bf16(((const uint16_t *)from)[k]);
}

static void norm_empty_bins(struct tally *t)
{
    for (uint32_t e = 1; e < BINS; e++)
        if (t->bin[e] != 0)
            cdi_exact_add_at(t->words, 1, t->bin[e], e - 1);
    memset(t->bin, 0, sizeof t->bin);
    t->n_lines = 0;
    cdi_exact_carry(t->words);
}

static void norm_add_line(struct tally *t, double sum)
{
    uint64_t bits = cdi_bits_of_double(sum), exponent = bits >> 52;

    if (exponent - 1 >= BINS - 1) /* 0, of fewer digits, or not finite */
        cdi_exact_add(t->words, 1, sum);
    else
        t->bin[exponent] += (bits & (CDI_EXACT_ONE - 1)) | CDI_EXACT_ONE;
}

typedef double pair __attribute__((vector_size(16)));

static inline pair norm_square(const double *v)
{
    pair p;

    memcpy(&p, v, sizeof p);
    return p * p;
}

/* Adds both numbers of each of two pairs. */
static inline pair pair_fold(pair a, pair b)
{
    return (pair){a[0], b[0]} + (pair){a[1], b[1]};
}

/* Adds up lines, in the order of norm (backend.h); unit: elements of 16 bytes. */
static inline __attribute__((always_inline)) void norm_add_lines(struct tally *t, const double *v, size_t n,
                                                                 size_t unit)
{
    for (const double *end = v + n; v < end; v += 4 * unit) {
        pair p[4], q;

        for (size_t u = 0; u < 4; u++) {
            const double *x = v + u * unit;

            p[u] = norm_square(x);
            if (unit == 4)
                p[u] += norm_square(x + 2);
            if (unit == 8)
                p[u] = (p[u] + norm_square(x + 4)) + (norm_square(x + 2) + norm_square(x + 6));
        }
        q = pair_fold(p[0], p[1]) + pair_fold(p[2], p[3]);
        norm_add_line(t, q[0] + q[1]);
    }
}

static void norm_add_block(struct tally *t, const double *v, size_t n, size_t line)
{
    if (t->n_lines + n / line > BIN_LINES)
        norm_empty_bins(t);
    t->n_lines += n / line;
    if (line == 8)
        norm_add_lines(t, v, n, 2);
    else if (line == 16)
        norm_add_lines(t, v, n, 4);
    else
        norm_add_lines(t, v, n, 8);
}

static void norm_add(struct tally *t, const void *x, cddp_dtype dtype, size_t count)
{
    const size_t size = cddp_dtype_size(dtype), line = CDI_NORM_LINE / size;
    double v[BLOCK];

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;

        if (!t->largest && dtype == CDDP_FLOAT64 && n == BLOCK) { /* as it is */
            norm_add_block(t, (const double *)x + at, n, line);
            continue;
        }
        norm_load(v, (const char *)x + at * size, dtype, n);
        if (t->largest) {
            for (size_t k = 0; k < n; k++)
                t->most = magnitude(v[k]) > t->most ? magnitude(v[k]) : t->most;
            continue;
        }
        for (; n % line != 0; n++)
            v[n] = 0;
        norm_add_block(t, v, n, line);
    }
}

cddp_status cdi_element_norm_round(struct cdi_backend *b, double *out, struct cdi_error *err)
{
    uint64_t words[CDI_EXACT_WORDS];

    (void)b, (void)err;
    memcpy(words, out + 1, sizeof words);
    cdi_exact_carry(words);
    *out = cdi_exact_round(words);
    return CDDP_OK;
}

cddp_status cdi_element_norm(struct cdi_backend *b, const struct cdi_span *x, size_t n, bool largest, double *out,
                             struct cdi_error *err)
{
    struct tally t = {.largest = largest};

    for (size_t i = 0; i < n; i++)
        norm_add(&t, x[i].x, x[i].dtype, x[i].count);
    if (largest) {
        *out = cdi_double_of_bits(t.most);
        return CDDP_OK;
    }
    norm_empty_bins(&t);
    memcpy(out + 1, t.words, sizeof t.words);
    return cdi_element_norm_round(b, out, err);
}

cddp_status cdi_element_clip(struct cdi_backend *b, const struct cdi_span *x, size_t n, const struct cdi_clip *how,
                             const double *sum, struct cdi_error *err)
{
    double norm = (how->largest ? *sum : sqrt(*sum)) * how->factor, factor = how->max_norm / (norm + 1e-6);
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n && !(factor >= 1) && st == CDDP_OK; i++)
        st = cdi_element_scale(b, x[i].x, x[i].count, x[i].dtype, factor, err); /* a NaN makes all of them NaN */
    return st;
}
