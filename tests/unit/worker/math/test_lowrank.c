/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/math/lowrank.h"

#include <math.h>
#include <string.h>

CDI_SUITE(lowrank);

Test(lowrank, products_are_matrix_products)
{
    const struct cdi_lowrank of = {.dtype = CDDP_FLOAT64, .rows = 2, .cols = 3, .rank = 2};
    const double m[] = {1, 2, 3, 4, 5, 6}, q[] = {1, 0, 1, 0, 2, 0}, p[] = {1, 2, 0, 1};
    double out[6];

    cdi_lowrank_left(&of, m, q, out); /* columns (1 0 1) and (0 2 0) */
    for (int k = 0; k < 4; k++)
        cr_assert_eq(out[k], ((const double[]){4, 10, 4, 10})[k]);
    cdi_lowrank_right(&of, m, p, out); /* columns (1 2) and (0 1) */
    for (int k = 0; k < 6; k++)
        cr_assert_eq(out[k], ((const double[]){9, 12, 15, 4, 5, 6})[k]);
    cdi_lowrank_product(&of, p, q, out);
    for (int k = 0; k < 6; k++)
        cr_assert_eq(out[k], ((const double[]){1, 0, 1, 2, 2, 2})[k]);
}

Test(lowrank, orthonormalizes_columns)
{
    double a[5 * 37];
    float b[5 * 37];

    for (int k = 0; k < 5 * 37; k++)
        b[k] = (float)(a[k] = (double)(k * k * 17 % 101) - 50);
    cr_assert_eq(cdi_lowrank_orthogonalize(CDDP_FLOAT64, a, 37, 5, 0), 0);
    cr_assert_eq(cdi_lowrank_orthogonalize(CDDP_FLOAT32, b, 37, 5, 0), 0);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            double in_a = 0, in_b = 0;

            for (int k = 0; k < 37; k++) {
                in_a += a[i * 37 + k] * a[j * 37 + k];
                in_b += (double)b[i * 37 + k] * (double)b[j * 37 + k];
            }
            cr_assert(fabs(in_a - (i == j)) < 1e-14 && fabs(in_b - (i == j)) < 1e-6);
        }
}

Test(lowrank, orthonormalizes_nearly_parallel_columns)
{
    double a[] = {1, 1e-9, 0, 1, 0, 1e-9}, in = 0;

    cr_assert_eq(cdi_lowrank_orthogonalize(CDDP_FLOAT64, a, 3, 2, 0), 0);
    for (int k = 0; k < 3; k++)
        in += a[k] * a[3 + k];
    cr_assert(fabs(in) < 1e-15, "%g", in);
}

Test(lowrank, counts_dependent_columns)
{
    double a[] = {1, 2, 3, 4, 2, 4, 6, 8, 0, 0, 0, 0, 4, 3, 2, 1};

    cr_assert_eq(cdi_lowrank_orthogonalize(CDDP_FLOAT64, a, 4, 4, 0), 2);
    for (int k = 4; k < 12; k++)
        cr_assert_eq(a[k], 0);
    cr_assert(fabs(a[12] * a[12] + a[13] * a[13] + a[14] * a[14] + a[15] * a[15] - 1) < 1e-15);
}

Test(lowrank, counts_nonfinite_columns)
{
    float a[] = {1, NAN, 1}, b[] = {1, INFINITY, 1};

    cr_assert_eq(cdi_lowrank_orthogonalize(CDDP_FLOAT32, a, 3, 1, 0), 1);
    cr_assert_eq(cdi_lowrank_orthogonalize(CDDP_FLOAT32, b, 3, 1, 0), 1);
    cr_assert(isnan(a[0]) && isnan(b[1]));
}

Test(lowrank, epsilon_shortens_columns)
{
    double a[] = {3, 4};

    cr_assert_eq(cdi_lowrank_orthogonalize(CDDP_FLOAT64, a, 2, 1, 5), 0);
    cr_assert(a[0] == 0.3 && a[1] == 0.4);
}

Test(lowrank, keeps_finite_errors)
{
    float x[] = {1, 2, 3}, e[] = {0.5f, 0, -1}, sent[] = {1, NAN, 2};

    cdi_lowrank_feed(CDDP_FLOAT32, x, e, 3);
    cr_assert(x[0] == 1.5f && x[1] == 2 && x[2] == 2);
    cr_assert(e[0] == 1.5f && e[1] == 2 && e[2] == 2);
    cdi_lowrank_keep(CDDP_FLOAT32, sent, e, 3);
    cr_assert(e[0] == 0.5f && e[1] == 0 && e[2] == 0);
}
