/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are sent in fewer bits. */
#include "ddp_ranks.h"
#include "hygiene.h"
#include "worker/backend/cpu/float16.h"

CDI_SUITE(wire, .timeout = 60);

/* What a rank brings: nothing that 16 bits hold exactly. */
static float brought(int rank, int k)
{
    return (float)(rank + 1) * 0.37f + (float)k * 0.0137f;
}

static float rounded(float x, cddp_dtype to)
{
    return to == CDDP_FLOAT16 ? cdi_float_of_f16(cdi_f16_of_float(x)) : cdi_float_of_bf16(cdi_bf16_of_float(x));
}

/* Every rank's value rounded, summed in float32 in rank order, multiplied, rounded once. */
static float expected(int k, cddp_dtype to)
{
    float sum = 0;

    for (int q = 0; q < DDP_RANKS; q++)
        sum += rounded(brought(q, k), to);
    return rounded(sum * (1.0f / DDP_RANKS), to);
}

static int compressed(int rank, cddp_dtype to)
{
    struct ddp_rank r = {0};
    float before = 0;

    CHECK(ddp_open(&r, 0, to, true) == 0);
    for (int step = 0; step < 4; step++) {
        for (size_t i = DDP_PARAMS; i-- > 0;) {
            float *g = cddp_ddp_grad(r.ddp, i);

            for (int k = 0; k < DDP_COUNT; k++)
                g[k] = brought(rank, k);
            CHECK(cddp_ddp_grad_ready(r.ddp, i) == CDDP_OK);
        }
        CHECK(cddp_ddp_wait_param(r.ddp, 2) == CDDP_OK);
        before = ((const float *)cddp_ddp_grad(r.ddp, 2))[5];
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        for (size_t i = 0; i < DDP_PARAMS; i++)
            for (int k = 0; k < DDP_COUNT; k++)
                CHECK(((const float *)cddp_ddp_grad(r.ddp, i))[k] == expected(k, to));
        CHECK(before == expected(5, to));
    }
    return ddp_close(&r, CDDP_OK);
}

static int as_f16(int rank)
{
    return compressed(rank, CDDP_FLOAT16);
}

static int as_bf16(int rank)
{
    return compressed(rank, CDDP_BFLOAT16);
}

Test(wire, a_mean_in_16_bits_is_summed_in_32_and_rounded_once)
{
    cr_assert_eq(ddp_world(as_f16), 0);
    cr_assert_eq(ddp_world(as_bf16), 0);
}

static int differ(int rank)
{
    struct ddp_rank r = {0};
    cddp_ddp_options opt = {.size = sizeof opt, .compress = rank == 2 ? CDDP_FLOAT16 : CDDP_DTYPE_NONE};
    cddp_param p = {.name = "w", .data = r.w, .count = 3, .dtype = CDDP_FLOAT32};

    CHECK(cddp_init(&r.comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&r.ddp, r.comm, &p, 1, &opt) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "compress is 0 on rank 0 but 7 on rank 2") != NULL);
    CHECK(cddp_finalize(r.comm) == CDDP_OK);
    return 0;
}

Test(wire, ranks_that_compress_differently_are_told)
{
    cr_assert_eq(ddp_world(differ), 0);
}

Test(wire, only_16_bit_types_are_taken)
{
    float w[2];
    cddp_param p = {.name = "w", .data = w, .count = 2, .dtype = CDDP_FLOAT32};
    cddp_ddp_options opt = {.size = sizeof opt, .compress = CDDP_INT8};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, &opt), CDDP_E_INVALID);
    cr_assert_str_eq(cddp_last_error(),
                     "cddp_ddp_options.compress is 1: use CDDP_FLOAT16 or CDDP_BFLOAT16, or 0 for none");
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}
