/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices of few columns beside a large one, for PowerSGD. M is rows x cols, row by row; P is rows x rank and Q is
 * cols x rank, both column by column. Of float32 or float64; sums are made in an order that depends on the sizes alone.
 * Pure; any thread. The matrices of one call do not overlap.
 */
#ifndef CDI_MATH_LOWRANK_H
#define CDI_MATH_LOWRANK_H

#include <cddp/cddp.h>
#include <stddef.h>

struct cdi_lowrank {
    cddp_dtype dtype; /* CDDP_FLOAT32, CDDP_FLOAT64 */
    size_t rows, cols, rank;
};

/* One matrix and what is made of it. */
struct cdi_lowrank_matrix {
    struct cdi_lowrank of;
    void *m, *p, *q;
    void *error;       /* as large as m: what was not sent; NULL: not kept */
    const void *fresh; /* as q, orthonormal: what q becomes where it has lost a direction */
};

/* What PowerSGD does with a matrix, in this order. */
enum cdi_lowrank_step {
    CDI_LOWRANK_BASIS_Q, /* Q's columns orthonormal, or Q = fresh */
    CDI_LOWRANK_FEED,    /* with an error only: cdi_lowrank_feed */
    CDI_LOWRANK_LEFT,
    CDI_LOWRANK_BASIS_P, /* P's columns orthonormal, with epsilon */
    CDI_LOWRANK_RIGHT,
    CDI_LOWRANK_PRODUCT, /* and with an error cdi_lowrank_keep */
};

/* P = M Q */
void cdi_lowrank_left(const struct cdi_lowrank *of, const void *m, const void *q, void *p);
/* Q = M^T P */
void cdi_lowrank_right(const struct cdi_lowrank *of, const void *m, const void *p, void *q);
/* M = P Q^T */
void cdi_lowrank_product(const struct cdi_lowrank *of, const void *p, const void *q, void *m);

/*
 * Make n x rank matrix a's columns orthogonal and of length 1 (of length l / (l + epsilon)), by Gram and Schmidt's
 * modified method, each column twice if it loses half of its length (with epsilon: all but a thousandth). A column that
 * depends on those before it becomes zeros rather than what rounding left of it; NaNs and infinities become NaNs.
 * Returns how many columns are not of length 1 for one of these reasons.
 */
size_t cdi_lowrank_orthogonalize(cddp_dtype dtype, void *a, size_t n, size_t rank, double epsilon);

/* sum = x + e, and e becomes that sum, too: what is to be sent, and a copy of it. */
void cdi_lowrank_feed(cddp_dtype dtype, void *x, void *e, size_t n);
/* e -= x: what was not sent. Where that is not finite, e is 0. */
void cdi_lowrank_keep(cddp_dtype dtype, const void *x, void *e, size_t n);

/* One step for n matrices. */
void cdi_lowrank_do(enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m, size_t n, double epsilon);

#endif
