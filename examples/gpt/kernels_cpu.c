/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All loops but the matrix product, as the compiler vectorises them (-O3 -fopenmp-simd). As gemm.c this file is
 * compiled for several kinds of processors.
 */
#include "gemm.h"

#include <string.h>
#include <tgmath.h>

#define GPT_EPS ((real)1e-5) /* of the layer norm */

/*
 * e^x without a branch or a call, so that loops over it become vectors; to the last two bits of a float. x = n ln 2 +
 * r, the series of e^r, and n into the exponent.
 */
static inline float exp_float(float x)
{
    const float to_whole = 12582912.0f; /* 1.5 * 2^23: a sum with it is rounded to a whole number */
    union {
        float f;
        uint32_t i;
    } whole, power;
    float n, r, e;

    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    whole.f = x * 1.44269504f + to_whole;
    n = whole.f - to_whole;
    r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts, the first exact in n times it */
    e = 1 + r * (1 + r * (1 / 2.f + r * (1 / 6.f + r * (1 / 24.f + r * (1 / 120.f + r * (1 / 720.f + r / 5040.f))))));
    power.i = (whole.i - 0x4b400000 + 127) << 23;
    return e * power.f;
}

static inline double exp_double(double x)
{
    return exp(x);
}

#define EXP(x) _Generic((x), float : exp_float, default : exp_double)(x)

/* ------------------------------------------------------------------------------------------------ embedding ---- */

static void embed(real *out, const uint8_t *tokens, const real *wte, const real *wpe, size_t seqs, size_t time,
                  size_t width)
{
    for (size_t r = 0; r < seqs * time; r++)
        for (size_t i = 0; i < width; i++)
            out[r * width + i] = wte[tokens[r] * width + i] + wpe[r % time * width + i];
}

static void embed_back(real *dwte, real *dwpe, const real *d_out, const uint8_t *tokens, size_t seqs, size_t time,
                       size_t width, bool add)
{
    if (!add)
        memset(dwpe, 0, time * width * sizeof *dwpe);
    for (size_t r = 0; r < seqs * time; r++) {
        real *restrict to_token = dwte + tokens[r] * width, *restrict to_place = dwpe + r % time * width;

        for (size_t i = 0; i < width; i++) {
            to_token[i] += d_out[r * width + i];
            to_place[i] += d_out[r * width + i];
        }
    }
}

/* ----------------------------------------------------------------------------------------------- layer norm ---- */

static void norm(real *out, real *mean, real *rstd, const real *in, const real *w, const real *b, size_t rows,
                 size_t width)
{
    for (size_t r = 0; r < rows; r++) {
        const real *x = in + r * width;
        real *y = out + r * width, sum = 0, squares = 0;

#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < width; i++)
            sum += x[i];
        mean[r] = sum / (real)width;
#pragma omp simd reduction(+ : squares)
        for (size_t i = 0; i < width; i++)
            squares += (x[i] - mean[r]) * (x[i] - mean[r]);
        rstd[r] = 1 / sqrt(squares / (real)width + GPT_EPS);
        for (size_t i = 0; i < width; i++)
            y[i] = (x[i] - mean[r]) * rstd[r] * w[i] + b[i];
    }
}

static void norm_back(real *d_in, real *restrict dw, real *restrict db, const real *d_out, const real *in,
                      const real *w, const real *mean, const real *rstd, size_t rows, size_t width, bool add)
{
    if (!add) {
        memset(dw, 0, width * sizeof *dw);
        memset(db, 0, width * sizeof *db);
    }
    for (size_t r = 0; r < rows; r++) {
        const real *x = in + r * width, *dy = d_out + r * width, m = mean[r], s = rstd[r];
        real *restrict dx = d_in + r * width, sum = 0, along = 0;

#pragma omp simd reduction(+ : sum, along)
        for (size_t i = 0; i < width; i++) {
            const real d = dy[i] * w[i];

            sum += d;
            along += d * (x[i] - m) * s;
        }
        sum /= (real)width;
        along /= (real)width;
        for (size_t i = 0; i < width; i++) {
            const real normed = (x[i] - m) * s;

            dw[i] += dy[i] * normed;
            db[i] += dy[i];
            dx[i] += (dy[i] * w[i] - sum - normed * along) * s;
        }
    }
}

/* --------------------------------------------------------------------------------------- element by element ---- */

static void bias(real *out, const real *b, size_t rows, size_t width)
{
    for (size_t r = 0; r < rows; r++)
        memcpy(out + r * width, b, width * sizeof *b);
}

static void bias_back(real *restrict db, const real *restrict d_out, size_t rows, size_t width, bool add)
{
    if (!add)
        memset(db, 0, width * sizeof *db);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++)
            db[i] += d_out[r * width + i];
}

static void plus(real *restrict out, const real *restrict a, const real *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

/* x (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3); (1 + tanh(u)) / 2 is 1 / (1 + e^-2u). */
static inline real gate(real x)
{
    const real twice = (real)1.5957691216057307117597842397375;

    return 1 / (1 + EXP(-twice * (x + (real)0.044715 * x * x * x)));
}

static void gelu(real *restrict out, const real *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = in[i] * gate(in[i]);
}

static void gelu_back(real *restrict d, const real *restrict in, size_t n)
{
    const real twice = (real)1.5957691216057307117597842397375;

    for (size_t i = 0; i < n; i++) {
        const real x = in[i], g = gate(x);

        d[i] *= g + x * g * (1 - g) * twice * (1 + 3 * (real)0.044715 * x * x);
    }
}

/* --------------------------------------------------------------------------------------------------- softmax ---- */

static real largest(const real *x, size_t n)
{
    real max = x[0];

#pragma omp simd reduction(max : max)
    for (size_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* x = e^(x - max); the sum of it. */
static real raise(real *x, size_t n, real max)
{
    real sum = 0;

#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        x[i] = EXP(x[i] - max);
        sum += x[i];
    }
    return sum;
}

static void causal(real *att, size_t first, size_t rows, size_t width, size_t ld)
{
    for (size_t r = 0; r < rows; r++) {
        const size_t n = first + r + 1;
        real *x = att + r * ld;
        const real sum = raise(x, n, largest(x, n));

        for (size_t i = 0; i < n; i++)
            x[i] /= sum;
        memset(x + n, 0, (width - n) * sizeof *x);
    }
}

static void causal_back(real *restrict d, const real *restrict att, size_t rows, size_t width, size_t ld)
{
    for (size_t r = 0; r < rows; r++) {
        const real *p = att + r * ld;
        real *dp = d + r * ld, sum = 0;

#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < width; i++)
            sum += p[i] * dp[i];
        for (size_t i = 0; i < width; i++)
            dp[i] = p[i] * (dp[i] - sum);
    }
}

static double entropy(real *logits, const uint8_t *targets, size_t rows, size_t vocab, real scale)
{
    double loss = 0;

    for (size_t r = 0; r < rows; r++) {
        real *x = logits + r * vocab;
        const real max = largest(x, vocab), target = x[targets[r]] - max, sum = raise(x, vocab, max);

        loss += (double)(log(sum) - target);
        if (!(scale != 0))
            continue;
        for (size_t i = 0; i < vocab; i++)
            x[i] *= scale / sum;
        x[targets[r]] -= scale;
    }
    return loss;
}

const struct kernels GPT_JOIN(kernels_, GPT_KIND) = {
    .name = GPT_STRING(GPT_KIND),
    .gemm = GEMM_NAME,
    .embed = embed,
    .embed_back = embed_back,
    .norm = norm,
    .norm_back = norm_back,
    .bias = bias,
    .bias_back = bias_back,
    .plus = plus,
    .gelu = gelu,
    .gelu_back = gelu_back,
    .causal = causal,
    .causal_back = causal_back,
    .entropy = entropy,
};
