/* SPDX-License-Identifier: Apache-2.0 */
/* The number of ranks that take part, after reductions in types of few bits. */
#include "hygiene.h"
#include "worker/math/float16.h"
#include "worker/reducer/layout/active_ranks.h"

#include <stdint.h>
#include <string.h>

CDI_SUITE(active_ranks);

#define ELEMENTS_MAX 512
#define SIZE_MOST 4097

static float rounded(cddp_dtype sent, float x)
{
    if (sent == CDDP_FLOAT16)
        return cdi_float_of_f16(cdi_f16_of_float(x));
    return sent == CDDP_BFLOAT16 ? cdi_float_of_bf16(cdi_bf16_of_float(x)) : x;
}

static void store(cddp_dtype dtype, float x, char *to)
{
    const uint16_t half = dtype == CDDP_FLOAT16 ? cdi_f16_of_float(x) : cdi_bf16_of_float(x);
    const double wide = (double)x;

    if (dtype == CDDP_FLOAT64)
        memcpy(to, &wide, sizeof wide);
    else if (dtype == CDDP_FLOAT32)
        memcpy(to, &x, sizeof x);
    else
        memcpy(to, &half, sizeof half);
}

/* How a sum, or a mean, is computed. */
enum way {
    SUM,    /* in float32, rounded once */
    MEAN,   /* the same, multiplied by 1/size */
    IN_TURN /* a mean on a GPU: in float16, multiplied first and rounded at each addition, as NCCL's ring and tree do */
};

static int reduce_count(cddp_dtype dtype, cddp_dtype sent, int size, enum way way,
                        bool (*takes_part)(int rank, int size))
{
    static char mine[ELEMENTS_MAX * 8];
    static float sum[ELEMENTS_MAX];
    size_t n = cdi_active_ranks_elements(sent, size), bytes = cddp_dtype_size(dtype);
    bool in_turn = way == IN_TURN && sent == CDDP_FLOAT16;
    float one = in_turn ? rounded(sent, 1.0f / (float)size) : 1.0f;

    cr_assert_leq(n, ELEMENTS_MAX);
    memset(sum, 0, sizeof sum);
    for (int r = 0; r < size; r++) {
        static const char zero[8];

        if (!takes_part(r, size))
            continue;
        cdi_active_ranks_put(dtype, sent, size, r, mine);
        for (size_t k = 0; k < n; k++)
            if (memcmp(mine + k * bytes, zero, bytes) != 0)
                sum[k] = in_turn ? rounded(sent, sum[k] + one) : sum[k] + one;
    }
    for (size_t k = 0; k < n; k++)
        store(dtype, rounded(sent, way != SUM && !in_turn ? sum[k] * (1.0f / (float)size) : sum[k]), mine + k * bytes);
    return cdi_active_ranks_get(dtype, sent, size, way != SUM ? size : 1, mine);
}

static bool all(int rank, int size)
{
    (void)size;
    return rank >= 0;
}

static bool all_but_the_last(int rank, int size)
{
    return rank != size - 1;
}

static bool the_first(int rank, int size)
{
    (void)size;
    return rank == 0;
}

static bool none(int rank, int size)
{
    return rank > size;
}

static bool two_of_three(int rank, int size)
{
    (void)size;
    return rank % 3 != 1;
}

Test(active_ranks, exact_for_every_type_and_world_size)
{
    static bool (*const subset[])(int, int) = {all, all_but_the_last, the_first, none, two_of_three};
    static const struct {
        cddp_dtype dtype, sent;
    } ways[] = {{CDDP_FLOAT64, CDDP_FLOAT64},  {CDDP_FLOAT32, CDDP_FLOAT32}, {CDDP_FLOAT32, CDDP_FLOAT16},
                {CDDP_FLOAT32, CDDP_BFLOAT16}, {CDDP_FLOAT16, CDDP_FLOAT16}, {CDDP_BFLOAT16, CDDP_BFLOAT16}};

    for (int size = 1; size <= SIZE_MOST; size += size < 300 ? 1 : 379)
        for (size_t w = 0; w < sizeof subset / sizeof subset[0]; w++) {
            int n = 0;

            for (int r = 0; r < size; r++)
                n += subset[w](r, size);
            for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
                for (int way = SUM; way <= IN_TURN; way++)
                    cr_assert_eq(reduce_count(ways[i].dtype, ways[i].sent, size, (enum way)way, subset[w]), n,
                                 "%d ranks, way %zu, subset %zu, %d", size, i, w, way);
        }
}

Test(active_ranks, uses_one_element_if_enough)
{
    cr_assert_eq(cdi_active_ranks_elements(CDDP_BFLOAT16, 128), 1);
    cr_assert_eq(cdi_active_ranks_elements(CDDP_BFLOAT16, 129), 2);
    cr_assert_eq(cdi_active_ranks_elements(CDDP_FLOAT16, 16), 1);
    cr_assert_eq(cdi_active_ranks_elements(CDDP_FLOAT32, 100000), 1);
}
