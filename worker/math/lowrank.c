/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/math/lowrank.h"

#include "worker/math/float16.h"

#include <math.h>
#include <string.h>

#define LANES 8 /* sums computed in parallel */

#define REAL float
#define NAME(x) x##_f32
#include "worker/math/lowrank_real.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(x) x##_f64
#include "worker/math/lowrank_real.h"

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

/* The sum in float32, rounded once. */
static void feed_16(cddp_dtype dtype, uint16_t *restrict x, uint16_t *restrict e, size_t n)
{
    if (dtype == CDDP_FLOAT16)
        for (size_t k = 0; k < n; k++)
            x[k] = e[k] = cdi_f16_of_float(cdi_float_of_f16(x[k]) + cdi_float_of_f16(e[k]));
    else
        for (size_t k = 0; k < n; k++)
            x[k] = e[k] = cdi_bf16_of_float(cdi_float_of_bf16(x[k]) + cdi_float_of_bf16(e[k]));
}

void cdi_lowrank_feed(cddp_dtype dtype, void *x, void *e, size_t n)
{
    if (dtype == CDDP_FLOAT32)
        feed_f32(x, e, n);
    else if (dtype == CDDP_FLOAT64)
        feed_f64(x, e, n);
    else
        feed_16(dtype, x, e, n);
}

void cdi_lowrank_keep(cddp_dtype dtype, const void *x, void *e, size_t n)
{
    if (dtype == CDDP_FLOAT32)
        keep_f32(x, e, n);
    else
        keep_f64(x, e, n);
}

static void basis_of_q(const struct cdi_lowrank_matrix *m, double epsilon)
{
    const struct cdi_lowrank *of = &m->of;

    if (cdi_lowrank_orthogonalize(of->dtype, m->q, of->cols, of->rank, epsilon) > 0)
        memcpy(m->q, m->fresh, of->cols * of->rank * cddp_dtype_size(of->dtype));
}

static void do_one(enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m, double epsilon)
{
    const struct cdi_lowrank *of = &m->of;

    switch (step) {
    case CDI_LOWRANK_BASIS_Q:
        basis_of_q(m, epsilon);
        break;
    case CDI_LOWRANK_FEED:
        if (m->error != NULL)
            cdi_lowrank_feed(of->dtype, m->m, m->error, of->rows * of->cols);
        break;
    case CDI_LOWRANK_LEFT:
        cdi_lowrank_left(of, m->m, m->q, m->p);
        break;
    case CDI_LOWRANK_BASIS_P:
        (void)cdi_lowrank_orthogonalize(of->dtype, m->p, of->rows, of->rank, epsilon);
        break;
    case CDI_LOWRANK_RIGHT:
        cdi_lowrank_right(of, m->m, m->p, m->q);
        break;
    case CDI_LOWRANK_PRODUCT:
        cdi_lowrank_product(of, m->p, m->q, m->m);
        if (m->error != NULL)
            cdi_lowrank_keep(of->dtype, m->m, m->error, of->rows * of->cols);
        break;
    }
}

void cdi_lowrank_do(enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m, size_t n, double epsilon)
{
    for (size_t i = 0; i < n; i++)
        do_one(step, &m[i], epsilon);
}
