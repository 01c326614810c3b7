/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix product of cuBLAS: the call (blas.c), and its arithmetic, which is instrumented (touch_blas.c). */
#ifndef SI_BLAS_H
#define SI_BLAS_H

#include <stdbool.h>

enum { SI_BLAS_32F = 0, SI_BLAS_16BF = 14 }; /* cudaDataType */

/* Column-major; element (i, j) of what the product takes is at[i + j * ld], or turned at[j + i * ld]. */
struct si_matrix {
    const void *at;
    int ld, type;
    bool turned;
    long long stride; /* from one of a batch to the next */
};

/* c[m][n] = alpha * a[m][k] * b[k][n] + beta * c, for each of a batch. */
struct si_product {
    int m, n, k, batch;
    float alpha, beta;
    struct si_matrix a, b, c;
};

/* Sums in float32, in the order of k. A beta of 0 does not read c. */
void si_touch_product(const struct si_product *p);

#endif
