/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of a matrix product: it touches the program's memory, and is instrumented like the program. */
#include "blas.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static float get(const struct si_matrix *x, size_t at)
{
    uint32_t bits;
    float value;

    if (x->type == SI_BLAS_32F)
        return ((const float *)x->at)[at];
    bits = (uint32_t)((const uint16_t *)x->at)[at] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void put(const struct si_matrix *x, size_t at, float value)
{
    uint32_t bits;

    if (x->type == SI_BLAS_32F) {
        ((float *)(uintptr_t)x->at)[at] = value;
        return;
    }
    memcpy(&bits, &value, sizeof bits);
    bits = value != value ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
    ((uint16_t *)(uintptr_t)x->at)[at] = (uint16_t)(bits >> 16);
}

static size_t place(const struct si_matrix *x, int batch, int i, int j)
{
    const int row = x->turned ? j : i, column = x->turned ? i : j;

    return (size_t)x->stride * (size_t)batch + (size_t)column * (size_t)x->ld + (size_t)row;
}

/* One column of c: a sum of columns of a, so that the inner loop runs along memory. */
static void column(const struct si_product *p, int batch, int j, float *sum)
{
    memset(sum, 0, (size_t)p->m * sizeof *sum);
    for (int l = 0; l < p->k; l++) {
        const float b = get(&p->b, place(&p->b, batch, l, j));

        for (int i = 0; i < p->m; i++)
            sum[i] += get(&p->a, place(&p->a, batch, i, l)) * b;
    }
    for (int i = 0; i < p->m; i++) {
        const size_t at = place(&p->c, batch, i, j);

        put(&p->c, at, p->alpha * sum[i] + (p->beta != 0 ? p->beta * get(&p->c, at) : 0));
    }
}

void si_touch_product(const struct si_product *p)
{
    float *sum = malloc((size_t)p->m * sizeof *sum);

    if (sum == NULL)
        abort();
    for (int batch = 0; batch < p->batch; batch++)
        for (int j = 0; j < p->n; j++)
            column(p, batch, j, sum);
    free(sum);
}
