/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/lowrank.h"

#include <math.h>
#include <string.h>

#define LANES 8 /* sums side by side */

#define REAL float
#define NAME(x) x##_f32
#include "worker/lowrank_real.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(x) x##_f64
#include "worker/lowrank_real.h"

void cdi_lowrank_left(const struct cdi_lowrank *of, const void *m, const void *q, void *p)
{
    if (of->dtype == CDDP_FLOAT32)
        left_f32(of, m, q, p);
    else
        left_f64(of, m, q, p);
}

void cdi_lowrank_right(const struct cdi_lowrank *of, const void *m, const void *p, void *q)
{
    if (of->dtype == CDDP_FLOAT32)
        right_f32(of, m, p, q);
    else
        right_f64(of, m, p, q);
}

void cdi_lowrank_product(const struct cdi_lowrank *of, const void *p, const void *q, void *m)
{
    if (of->dtype == CDDP_FLOAT32)
        product_f32(of, p, q, m);
    else
        product_f64(of, p, q, m);
}

size_t cdi_lowrank_orthogonalize(cddp_dtype dtype, void *a, size_t n, size_t rank, double epsilon)
{
    return dtype == CDDP_FLOAT32 ? orthogonalize_f32(a, n, rank, epsilon) : orthogonalize_f64(a, n, rank, epsilon);
}

void cdi_lowrank_feed(cddp_dtype dtype, void *x, void *e, size_t n)
{
    if (dtype == CDDP_FLOAT32)
        feed_f32(x, e, n);
    else
        feed_f64(x, e, n);
}

void cdi_lowrank_keep(cddp_dtype dtype, const void *x, void *e, size_t n)
{
    if (dtype == CDDP_FLOAT32)
        keep_f32(x, e, n);
    else
        keep_f64(x, e, n);
}
