/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of elements in host memory, and scaling by it. Sums are in float64. */
#include "worker/backend/host_elementwise.h"
#include "worker/math/float16.h"

#include <math.h>
#include <string.h>

#define BLOCK ((size_t)512) /* elements that are converted to float64 at once */
#define LANES 8             /* sums side by side */

/* Compares the bits of magnitudes: larger bits are a larger number, and a NaN is above infinity. */
static uint64_t magnitude(double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    return bits & INT64_MAX;
}

static double of_magnitude(uint64_t bits)
{
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

struct tally {
    bool largest; /* the infinity norm; otherwise the Euclidean norm */
    double squares[LANES];
    uint64_t most;
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

static void norm_add(struct tally *t, const void *x, cddp_dtype dtype, size_t count)
{
    double v[BLOCK];

    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK, k = 0;

        norm_load(v, (const char *)x + at * cddp_dtype_size(dtype), dtype, n);
        for (; t->largest && k < n; k++)
            t->most = magnitude(v[k]) > t->most ? magnitude(v[k]) : t->most;
        for (; k + LANES <= n; k += LANES)
            for (size_t l = 0; l < LANES; l++)
                t->squares[l] += v[k + l] * v[k + l];
        for (; k < n; k++)
            t->squares[0] += v[k] * v[k];
    }
}

cddp_status cdi_element_norm(struct cdi_backend *b, const struct cdi_span *x, size_t n, bool largest, bool add,
                             double *out, struct cdi_error *err)
{
    struct tally t = {.largest = largest};
    double sum = 0;

    (void)b, (void)err;
    for (size_t i = 0; i < n; i++)
        norm_add(&t, x[i].x, x[i].dtype, x[i].count);
    for (size_t l = 0; l < LANES; l++)
        sum += t.squares[l];
    if (largest)
        *out = of_magnitude(add && magnitude(*out) > t.most ? magnitude(*out) : t.most);
    else
        *out = add ? *out + sum : sum;
    return CDDP_OK;
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
