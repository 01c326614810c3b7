/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/math/randn.h"

#include <math.h>

#define TWO_PI 6.283185307179586476925286766559
#define GROUP 16 /* fewer numbers are generated in pairs, one after the other */

void cdi_normal_seed(struct cdi_normal *g, uint64_t seed)
{
    cdi_mt19937_seed(&g->bits, seed);
    g->has_second = false;
}

/* Returns a number uniform in [0, 1), with as many bits as the type holds. */
static double uniform_f64(struct cdi_normal *g)
{
    uint64_t high = cdi_mt19937_u32(&g->bits), both = high << 32 | cdi_mt19937_u32(&g->bits);

    return (double)(both & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

static double uniform_f32(struct cdi_normal *g)
{
    return (double)(cdi_mt19937_u32(&g->bits) & ((UINT32_C(1) << 24) - 1)) * 0x1p-24;
}

static double randn_next(struct cdi_normal *g)
{
    double angle, radius;

    if (g->has_second) {
        g->has_second = false;
        return g->second;
    }
    angle = TWO_PI * uniform_f64(g);
    radius = sqrt(-2 * log1p(-uniform_f64(g)));
    g->has_second = true;
    g->second = radius * sin(angle);
    return radius * cos(angle);
}

/* Transforms 16 uniform numbers into normal ones: each of the first half with one of the second. */
static void transform_f64(double *x)
{
    for (int k = 0; k < GROUP / 2; k++) {
        double radius = sqrt(-2 * log(1 - x[k])), angle = TWO_PI * x[k + GROUP / 2];

        x[k] = radius * cos(angle);
        x[k + GROUP / 2] = radius * sin(angle);
    }
}

static void transform_f32(float *x)
{
    double wide[GROUP];

    for (int k = 0; k < GROUP; k++)
        wide[k] = (double)x[k];
    transform_f64(wide);
    for (int k = 0; k < GROUP; k++)
        x[k] = (float)wide[k];
}

void cdi_normal_f64(struct cdi_normal *g, double *to, size_t n)
{
    for (size_t k = 0; k < n; k++)
        to[k] = n < GROUP ? randn_next(g) : uniform_f64(g);
    for (size_t k = 0; k + GROUP <= n; k += GROUP)
        transform_f64(to + k);
    if (n < GROUP || n % GROUP == 0)
        return;
    for (size_t k = n - GROUP; k < n; k++) /* generates the last ones anew, which overlap the previous ones */
        to[k] = uniform_f64(g);
    transform_f64(to + n - GROUP);
}

void cdi_normal_f32(struct cdi_normal *g, float *to, size_t n)
{
    for (size_t k = 0; k < n; k++)
        to[k] = (float)(n < GROUP ? randn_next(g) : uniform_f32(g));
    for (size_t k = 0; k + GROUP <= n; k += GROUP)
        transform_f32(to + k);
    if (n < GROUP || n % GROUP == 0)
        return;
    for (size_t k = n - GROUP; k < n; k++)
        to[k] = (float)uniform_f32(g);
    transform_f32(to + n - GROUP);
}
