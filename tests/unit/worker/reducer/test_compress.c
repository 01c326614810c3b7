/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are sent in another type. */
#include "ddp_ranks.h"
#include "hygiene.h"
#include "worker/math/float16.h"

#include <math.h>

CDI_SUITE(compress);

/* A rank's contribution: values that 16 bits do not represent exactly. */
static float brought(int rank, int k)
{
    return (float)(rank + 1) * 0.37f + (float)k * 0.0137f;
}

static float rounded(float x, cddp_dtype to)
{
    return to == CDDP_FLOAT16 ? cdi_float_of_f16(cdi_f16_of_float(x)) : cdi_float_of_bf16(cdi_bf16_of_float(x));
}

/* Rounds every rank's value, sums in float32 in rank order, multiplies, rounds once. */
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

Test(compress, mean_of_16_bits_sums_in_float32)
{
    cr_assert_eq(ddp_world(as_f16), 0);
    cr_assert_eq(ddp_world(as_bf16), 0);
}

/* ---------------------------------------------------------------------------- 16 bits that are sent as 32 ---- */

#define WIDE_COUNT 500

static double value_of(uint16_t x, cddp_dtype dtype)
{
    return (double)(dtype == CDDP_FLOAT16 ? cdi_float_of_f16(x) : cdi_float_of_bf16(x));
}

static uint16_t of_value(float x, cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT16 ? cdi_f16_of_float(x) : cdi_bf16_of_float(x);
}

/* Large and small values, which sums in 16 bits would lose. */
static uint16_t short_of(int rank, int k, cddp_dtype dtype)
{
    return of_value((rank % 2 == 0 ? 100.0f : -99.0f) + 0.173f * (float)(rank + 1) * (float)(k % 37), dtype);
}

/*
 * Compares with the mean (or sum) in float64, rounded once: half a unit in the last place, plus the error of float32
 * sums.
 */
static int check_against_float64(const uint16_t *got, cddp_dtype dtype, double factor)
{
    double unit = dtype == CDDP_FLOAT16 ? 0x1p-11 : 0x1p-8;

    for (int k = 0; k < WIDE_COUNT; k++) {
        double sum = 0, most = 0, off;

        for (int q = 0; q < DDP_RANKS; q++) {
            double x = value_of(short_of(q, k, dtype), dtype);

            sum += x;
            most += x < 0 ? -x : x;
        }
        sum *= factor;
        off = value_of(got[k], dtype) - sum;
        CHECK((off < 0 ? -off : off) <= (sum < 0 ? -sum : sum) * unit + most * factor * 0x1p-23);
    }
    return 0;
}

static int widened(int rank, cddp_dtype dtype, uint32_t flags)
{
    static uint16_t w[2][WIDE_COUNT], own[WIDE_COUNT];
    const cddp_param p[2] = {
        {.size = sizeof(cddp_param), .name = "arena", .data = w[0], .count = WIDE_COUNT, .dtype = dtype},
        {.size = sizeof(cddp_param), .name = "own", .data = w[1], .count = WIDE_COUNT, .dtype = dtype, .grad = own}};
    const cddp_ddp_options opt = {.size = sizeof opt, .flags = flags, .comm_dtype = CDDP_FLOAT32};
    struct ddp_rank r = {0};

    CHECK(cddp_init(&r.comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&r.ddp, r.comm, p, 2, &opt) == CDDP_OK);
    for (int step = 0; step < 3; step++) {
        for (size_t i = 2; i-- > 0;) {
            uint16_t *g = cddp_ddp_grad(r.ddp, i);

            for (int k = 0; k < WIDE_COUNT; k++)
                g[k] = short_of(rank, k, dtype);
            CHECK(cddp_ddp_grad_ready(r.ddp, i) == CDDP_OK);
        }
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        for (size_t i = 0; i < 2; i++)
            CHECK(check_against_float64(cddp_ddp_grad(r.ddp, i), dtype,
                                        (flags & CDDP_DDP_SUM) != 0 ? 1 : 1.0 / DDP_RANKS) == 0);
    }
    return ddp_close(&r, CDDP_OK);
}

static int wide_f16(int rank)
{
    return widened(rank, CDDP_FLOAT16, 0);
}

static int wide_bf16(int rank)
{
    return widened(rank, CDDP_BFLOAT16, 0);
}

static int wide_sum(int rank)
{
    return widened(rank, CDDP_BFLOAT16, CDDP_DDP_SUM);
}

Test(compress, sends_16_bit_gradients_as_float32)
{
    cr_assert_eq(ddp_world(wide_f16), 0);
    cr_assert_eq(ddp_world(wide_bf16), 0);
    cr_assert_eq(ddp_world(wide_sum), 0);
}

/* 16-bit parameters with 32-bit gradients, in the arena and in the user's own memory. */
static int long_gradients(int rank, cddp_dtype dtype, cddp_dtype comm_dtype)
{
    static uint16_t w[2][WIDE_COUNT];
    static float own[WIDE_COUNT];
    const cddp_param p[2] = {{.size = sizeof(cddp_param),
                              .name = "arena",
                              .data = w[0],
                              .count = WIDE_COUNT,
                              .dtype = dtype,
                              .grad_dtype = CDDP_FLOAT32},
                             {.size = sizeof(cddp_param),
                              .name = "own",
                              .data = w[1],
                              .count = WIDE_COUNT,
                              .dtype = dtype,
                              .grad_dtype = CDDP_FLOAT32,
                              .grad = own}};
    const cddp_ddp_options opt = {.size = sizeof opt, .comm_dtype = comm_dtype};
    struct ddp_rank r = {0};
    double norm;

    CHECK(cddp_init(&r.comm, NULL) == CDDP_OK);
    for (int k = 0; k < WIDE_COUNT; k++)
        w[0][k] = w[1][k] = (uint16_t)(rank == 0 ? k : 0);
    CHECK(cddp_ddp_create(&r.ddp, r.comm, p, 2, &opt) == CDDP_OK);
    CHECK(w[0][WIDE_COUNT - 1] == WIDE_COUNT - 1 && w[1][1] == 1); /* rank 0's, of 16 bits */
    for (int step = 0; step < 3; step++) {
        for (size_t i = 2; i-- > 0;) {
            float *g = cddp_ddp_grad(r.ddp, i);

            for (int k = 0; k < WIDE_COUNT; k++)
                g[k] = (float)(rank * 16 + k % 8);
            CHECK(cddp_ddp_grad_ready(r.ddp, i) == CDDP_OK);
        }
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        for (size_t i = 0; i < 2; i++)
            for (int k = 0; k < WIDE_COUNT; k++)
                CHECK(((float *)cddp_ddp_grad(r.ddp, i))[k] == (float)(24 + k % 8));
        CHECK(cddp_ddp_grad_norm(r.ddp, INFINITY, &norm) == CDDP_OK && norm == 31);
    }
    return ddp_close(&r, CDDP_OK);
}

static int long_of_bf16(int rank)
{
    return long_gradients(rank, CDDP_BFLOAT16, CDDP_DTYPE_NONE);
}

static int long_of_f16(int rank)
{
    return long_gradients(rank, CDDP_FLOAT16, CDDP_DTYPE_NONE);
}

static int long_sent_short(int rank)
{
    return long_gradients(rank, CDDP_BFLOAT16, CDDP_FLOAT16);
}

static int long_on_one_rank_only(int rank)
{
    uint16_t w[4] = {0};
    const cddp_param p = {.size = sizeof(cddp_param),
                          .name = "w",
                          .data = w,
                          .count = 4,
                          .dtype = CDDP_BFLOAT16,
                          .grad_dtype = rank == 1 ? CDDP_FLOAT32 : CDDP_DTYPE_NONE};
    struct ddp_rank r = {0};

    CHECK(cddp_init(&r.comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&r.ddp, r.comm, &p, 1, NULL) == CDDP_E_MISMATCH);
    CHECK(strcmp(cddp_last_error(), "parameter 0 'w' is bfloat16 [4] on rank 0 but bfloat16 [4] with gradients of "
                                    "float32 on rank 1") == 0);
    return ddp_close(&r, CDDP_OK);
}

Test(compress, parameters_of_16_bits_with_float32_gradients)
{
    cr_assert_eq(ddp_world(long_of_bf16), 0);
    cr_assert_eq(ddp_world(long_of_f16), 0);
    cr_assert_eq(ddp_world(long_sent_short), 0);
    cr_assert_eq(ddp_world(long_on_one_rank_only), 0);
}

static int differ(int rank)
{
    struct ddp_rank r = {0};
    cddp_ddp_options opt = {.size = sizeof opt, .comm_dtype = rank == 2 ? CDDP_FLOAT16 : CDDP_DTYPE_NONE};
    cddp_param p = {.size = sizeof(cddp_param), .name = "w", .data = r.w, .count = 3, .dtype = CDDP_FLOAT32};

    CHECK(cddp_init(&r.comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&r.ddp, r.comm, &p, 1, &opt) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "comm_dtype is 0 on rank 0 but float16 on rank 2") != NULL);
    CHECK(cddp_finalize(r.comm) == CDDP_OK);
    return 0;
}

Test(compress, rejects_different_comm_dtypes)
{
    cr_assert_eq(ddp_world(differ), 0);
}

Test(compress, rejects_integer_comm_dtype)
{
    float w[2];
    cddp_param p = {.size = sizeof(cddp_param), .name = "w", .data = w, .count = 2, .dtype = CDDP_FLOAT32};
    cddp_ddp_options opt = {.size = sizeof opt, .comm_dtype = CDDP_INT8};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, &opt), CDDP_E_INVALID);
    cr_assert_str_eq(
        cddp_last_error(),
        "cddp_ddp_options.comm_dtype is int8 (1): use CDDP_FLOAT16, CDDP_BFLOAT16 or CDDP_FLOAT32, or 0 for none");
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}
