/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices of few columns and a large one, for PowerSGD. M is rows x cols, row by row; P is rows x rank and Q is cols x
 * rank, both column by column. In float32 or float64; the order of summation depends only on the sizes. Pure; any
 * thread. The matrices of one call do not overlap.
 */
#ifndef CDI_MATH_LOWRANK_H
#define CDI_MATH_LOWRANK_H

#include <cddp/cddp.h>
#include <stddef.h>

struct cdi_lowrank {
    cddp_dtype dtype; /* CDDP_FLOAT32, CDDP_FLOAT64; for CDI_LOWRANK_FEED alone also CDDP_FLOAT16, CDDP_BFLOAT16 */
    size_t rows, cols, rank;
};

/* One matrix and its factors. */
struct cdi_lowrank_matrix {
    struct cdi_lowrank of;
    void *m, *p, *q;
    void *error;       /* as large as m: the part that was not sent; NULL: not kept */
    const void *fresh; /* like q, orthonormal: the replacement of a degenerate q */
};

/* PowerSGD's operations on a matrix, in this order. */
enum cdi_lowrank_step {
    CDI_LOWRANK_BASIS_Q, /* Q's columns orthonormal, or Q = fresh */
    CDI_LOWRANK_FEED,    /* only if errors are kept: cdi_lowrank_feed */
    CDI_LOWRANK_LEFT,
    CDI_LOWRANK_BASIS_P, /* P's columns orthonormal, with epsilon */
    CDI_LOWRANK_RIGHT,
    CDI_LOWRANK_PRODUCT, /* and, if errors are kept, cdi_lowrank_keep */
};

/* P = M Q */
void cdi_lowrank_left(const struct cdi_lowrank *of, const void *m, const void *q, void *p);
/* Q = M^T P */
void cdi_lowrank_right(const struct cdi_lowrank *of, const void *m, const void *p, void *q);
/* M = P Q^T */
void cdi_lowrank_product(const struct cdi_lowrank *of, const void *p, const void *q, void *m);

/*
 * Makes the columns of n x rank matrix a orthogonal and of length 1 (of length l / (l + epsilon)), by the modified
 * Gram-Schmidt method. A column that loses half of its length (with epsilon: all but a thousandth) is processed twice.
 * A column that depends on the previous ones becomes zeros instead of rounding errors; NaNs and infinities become NaNs.
 * Returns the number of columns that are not of length 1 for one of these reasons.
 */
size_t cdi_lowrank_orthogonalize(cddp_dtype dtype, void *a, size_t n, size_t rank, double epsilon);

/* Stores x + e in sum and in e: the data to send, and a copy of it. */
void cdi_lowrank_feed(cddp_dtype dtype, void *x, void *e, size_t n);
/* Subtracts x from e, which leaves the part that was not sent. If that is not finite, e becomes 0. */
void cdi_lowrank_keep(cddp_dtype dtype, const void *x, void *e, size_t n);

/* Does one operation for n matrices. */
void cdi_lowrank_do(enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m, size_t n, double epsilon);

#endif
