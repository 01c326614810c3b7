/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/layout/active_ranks.h"

#include "worker/math/float16.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/*
 * With this many ranks the error stays within a quarter. The mean k / size of k ranks is off by half a unit in its last
 * place; times size that is k * 2^-(bits of the significand). The same holds for bfloat16, whose sum a GPU divides. For
 * float16 a GPU divides before the sum, and rounds at each of k additions: k * (k + 1) * 2^-11.
 */
static size_t per_element(cddp_dtype sent)
{
    return sent == CDDP_BFLOAT16 ? 128 : sent == CDDP_FLOAT16 ? 16 : INT_MAX;
}

size_t cdi_active_ranks_elements(cddp_dtype sent, int size)
{
    return ((size_t)size - 1) / per_element(sent) + 1;
}

static void put_one(cddp_dtype dtype, char *to)
{
    const uint16_t half = dtype == CDDP_FLOAT16 ? 0x3c00 : 0x3f80;
    const float f = 1;
    const double g = 1;

    if (dtype == CDDP_FLOAT64)
        memcpy(to, &g, sizeof g);
    else if (dtype == CDDP_FLOAT32)
        memcpy(to, &f, sizeof f);
    else
        memcpy(to, &half, sizeof half);
}

void cdi_active_ranks_put(cddp_dtype dtype, cddp_dtype sent, int size, int rank, void *to)
{
    size_t bytes = cddp_dtype_size(dtype);

    memset(to, 0, cdi_active_ranks_elements(sent, size) * bytes);
    put_one(dtype, (char *)to + (size_t)rank / per_element(sent) * bytes);
}

static double active_ranks_number(cddp_dtype dtype, const char *from)
{
    uint16_t half;
    float f;
    double g;

    if (dtype == CDDP_FLOAT64)
        return memcpy(&g, from, sizeof g), g;
    if (dtype == CDDP_FLOAT32)
        return memcpy(&f, from, sizeof f), (double)f;
    memcpy(&half, from, sizeof half);
    return (double)(dtype == CDDP_FLOAT16 ? cdi_float_of_f16(half) : cdi_float_of_bf16(half));
}

int cdi_active_ranks_get(cddp_dtype dtype, cddp_dtype sent, int size, double factor, const void *from)
{
    size_t n = cdi_active_ranks_elements(sent, size);
    long sum = 0;

    for (size_t k = 0; k < n; k++)
        sum += lround(active_ranks_number(dtype, (const char *)from + k * cddp_dtype_size(dtype)) * factor);
    return (int)sum;
}
