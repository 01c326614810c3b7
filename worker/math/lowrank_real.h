/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of lowrank.h in the type REAL; lowrank.c includes it for float and for double, so it has no guard. */

static double NAME(dot)(const REAL *x, const REAL *y, size_t n)
{
    double lane[LANES] = {0};
    size_t k = 0;

    for (; k + LANES <= n; k += LANES)
        for (size_t l = 0; l < LANES; l++)
            lane[l] += (double)x[k + l] * (double)y[k + l];
    for (; k < n; k++)
        lane[0] += (double)x[k] * (double)y[k];
    for (size_t l = 1; l < LANES; l++)
        lane[0] += lane[l];
    return lane[0];
}

/* y += a x */
static void NAME(add)(REAL *restrict y, REAL a, const REAL *restrict x, size_t n)
{
    for (size_t k = 0; k < n; k++)
        y[k] += a * x[k];
}

static void NAME(left)(const struct cdi_lowrank *of, const REAL *m, const REAL *q, REAL *p)
{
    for (size_t i = 0; i < of->rows; i++)
        for (size_t r = 0; r < of->rank; r++)
            p[r * of->rows + i] = (REAL)NAME(dot)(m + i * of->cols, q + r * of->cols, of->cols);
}

static void NAME(right)(const struct cdi_lowrank *of, const REAL *m, const REAL *p, REAL *q)
{
    memset(q, 0, of->rank * of->cols * sizeof *q);
    for (size_t i = 0; i < of->rows; i++)
        for (size_t r = 0; r < of->rank; r++)
            NAME(add)(q + r * of->cols, p[r * of->rows + i], m + i * of->cols, of->cols);
}

static void NAME(product)(const struct cdi_lowrank *of, const REAL *p, const REAL *q, REAL *m)
{
    memset(m, 0, of->rows * of->cols * sizeof *m);
    for (size_t i = 0; i < of->rows; i++)
        for (size_t r = 0; r < of->rank; r++)
            NAME(add)(m + i * of->cols, p[r * of->rows + i], q + r * of->cols, of->cols);
}

/* Removes from column k its projections on the previous columns. */
static void NAME(project)(REAL *a, size_t n, size_t k)
{
    for (size_t j = 0; j < k; j++)
        NAME(add)(a + k * n, (REAL)-NAME(dot)(a + j * n, a + k * n, n), a + j * n, n);
}

static size_t NAME(orthogonalize)(REAL *a, size_t n, size_t rank, double epsilon)
{
    const double little = epsilon > 0 ? 1e-3 : 0.5; /* a second pass also removes what epsilon left */
    size_t lost = 0;

    for (size_t k = 0; k < rank; k++) {
        REAL *column = a + k * n;
        double whole = sqrt(NAME(dot)(column, column, n)), length, again;

        NAME(project)(a, n, k);
        length = sqrt(NAME(dot)(column, column, n));
        if (length < whole * little) { /* much cancelled, and digits with it: do it once more */
            NAME(project)(a, n, k);
            again = sqrt(NAME(dot)(column, column, n));
            length = again < length / 2 ? 0 : again; /* the remainder is rounding error */
        }
        if (length == 0 || !isfinite(length))
            lost++;
        for (size_t i = 0; i < n; i++)
            column[i] = length == 0 ? 0 : (REAL)((double)column[i] / (length + epsilon));
    }
    return lost;
}

static void NAME(feed)(REAL *restrict x, REAL *restrict e, size_t n)
{
    for (size_t k = 0; k < n; k++)
        x[k] = e[k] = x[k] + e[k];
}

static void NAME(keep)(const REAL *restrict x, REAL *restrict e, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        REAL rest = e[k] - x[k];

        e[k] = isfinite(rest) ? rest : 0;
    }
}
