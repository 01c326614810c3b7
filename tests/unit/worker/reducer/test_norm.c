/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of all gradients and clipping by it, through the public functions, compared with PyTorch's records. */
#include "hygiene.h"
#include "numbers.h"
#include "worker/math/exact_sum.h"
#include "world.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>

CDI_SUITE(norm);

#define PARAMS 4
#define MOST 64 /* elements of a recorded gradient */

struct model {
    cddp_ddp *ddp;
    double w[PARAMS][MOST];
    size_t count[PARAMS];
    cddp_dtype dtype;
};

static double number(const json_t *v)
{
    return strtod(json_string_value(v), NULL);
}

static bool same_bits(double a, double b)
{
    uint64_t x, y;

    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y;
}

static int ranks_of_world;

static int world(int n, int (*body)(int rank))
{
    ranks_of_world = n;
    return run_world(n, body);
}

static int make(struct model *m, cddp_comm *comm, uint32_t flags)
{
    cddp_ddp_options opt = {.size = sizeof opt, .flags = flags, .bucket_bytes = 64, .first_bucket_bytes = 64};
    cddp_param p[PARAMS];

    for (size_t i = 0; i < PARAMS; i++)
        p[i] = (cddp_param){
            .size = sizeof(cddp_param), .name = "p", .data = m->w[i], .count = m->count[i], .dtype = m->dtype};
    CHECK(cddp_ddp_create(&m->ddp, comm, p, PARAMS, &opt) == CDDP_OK);
    return 0;
}

/* Sets the recorded gradients, on each rank. */
static int give(struct model *m, const json_t *before)
{
    for (size_t i = PARAMS; i-- > 0;) {
        for (size_t k = 0; k < m->count[i]; k++)
            grad_put(m->ddp, m->dtype, i, k, number(json_array_get(json_array_get(before, i), k)));
        CHECK(cddp_ddp_grad_ready(m->ddp, i) == CDDP_OK);
    }
    return 0;
}

static bool close_to(double got, double want, double tolerance)
{
    return (isnan(got) && isnan(want)) || got == want || fabs(got - want) <= tolerance * fmax(1, fabs(want));
}

static int same_bits_everywhere(cddp_comm *comm, double v)
{
    double all[8];

    CHECK(cddp_all_gather(comm, &v, all, 1, CDDP_FLOAT64) == CDDP_OK);
    for (int r = 0; r < cddp_world_size(comm); r++)
        CHECK(same_bits(all[r], all[0]));
    return 0;
}

/*
 * With an optimizer the parameters, which begin with zeros, become the negated gradients: by two calls, or by a step
 * that clips (where 0 means no limit, and a step with a nonfinite value continues).
 */
static int meet_case(cddp_comm *comm, json_t *c, bool divided, bool in_step)
{
    static const cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 1};
    bool f64 = strcmp(json_string_value(json_object_get(c, "type")), "f64") == 0;
    const json_t *before = json_object_get(c, "before"), *after = json_object_get(c, "after");
    bool refused = json_is_null(json_object_get(c, "norm"));
    struct model m = {.dtype = f64 ? CDDP_FLOAT64 : CDDP_FLOAT32};
    double type = number(json_object_get(c, "norm_type")), norm = -1, clipped = -1;
    double tolerance = f64 ? 1e-12 : 1e-6;
    const cddp_optim_step_args args = {.size = sizeof args, .max_norm = number(json_object_get(c, "max_norm"))};
    cddp_optim *optim = NULL;

    if (in_step && (type != 2 || args.max_norm == 0 || refused))
        return 0;

    for (size_t i = 0; i < PARAMS; i++)
        m.count[i] = json_array_size(json_array_get(before, i));
    CHECK(make(&m, comm, 0) == 0);
    CHECK(!divided || cddp_optim_create(&optim, m.ddp, &sgd) == CDDP_OK);
    CHECK(give(&m, before) == 0 && (divided || cddp_ddp_wait(m.ddp) == CDDP_OK));
    CHECK(cddp_ddp_grad_norm(m.ddp, type, &norm) == CDDP_OK && same_bits_everywhere(comm, norm) == 0);
    if (!in_step) {
        CHECK(cddp_ddp_clip_grad_norm(m.ddp, args.max_norm, type, json_is_true(json_object_get(c, "refuse")),
                                      &clipped) == (refused ? CDDP_E_NONFINITE : CDDP_OK));
        CHECK(same_bits(norm, clipped));
    }
    CHECK(refused ? !isfinite(norm) : close_to(norm, number(json_object_get(c, "norm")), tolerance));
    CHECK(!divided || (refused ? cddp_optim_skip(optim) : cddp_optim_step(optim, in_step ? &args : NULL)) == CDDP_OK);
    for (size_t i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < m.count[i]; k++) {
            double want = number(json_array_get(json_array_get(after, i), k));
            double got = divided ? -number_get(m.dtype, m.w[i], k) : grad_get(m.ddp, m.dtype, i, k);

            if (!close_to(got, divided && refused ? 0 : want, tolerance)) {
                fprintf(stderr, "%s: gradient %zu, element %zu is %.17g\n",
                        json_string_value(json_object_get(c, "name")), i, k, got);
                return 1;
            }
        }
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(m.ddp);
    return 0;
}

static int meet_the_record(int rank)
{
    json_t *all = json_load_file(CDI_TEST_DATA "/clip_vectors.json", 0, NULL), *one;
    cddp_comm *comm = NULL;
    size_t i;

    (void)rank;
    CHECK(json_array_size(all) == 16);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_world_size(comm) == ranks_of_world);
    json_array_foreach(all, i, one)
        CHECK(meet_case(comm, one, false, false) == 0 && meet_case(comm, one, true, false) == 0 &&
              meet_case(comm, one, true, true) == 0);
    json_decref(all);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(norm, norm_and_clipping_match_torch)
{
    cr_assert_eq(world(1, meet_the_record), 0);
    cr_assert_eq(world(3, meet_the_record), 0);
    cr_assert_eq(world(4, meet_the_record), 0);
}

/* Gradient k of parameter i is ((i * 7 + k) % 11) - 5, times rank + 1; the mean of two ranks is 1.5 times that. */
static int whole_numbers(struct model *m, int rank)
{
    for (size_t i = PARAMS; i-- > 0;) {
        for (size_t k = 0; k < m->count[i]; k++)
            grad_put(m->ddp, m->dtype, i, k, ((double)((i * 7 + k) % 11) - 5) * (rank + 1));
        CHECK(cddp_ddp_grad_ready(m->ddp, i) == CDDP_OK);
    }
    CHECK(cddp_ddp_wait(m->ddp) == CDDP_OK);
    return 0;
}

static int make_sum_and_join(int rank)
{
    static const uint32_t flags[] = {0, CDDP_DDP_SUM, CDDP_DDP_JOIN};
    double norm[3], largest[3];
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (int f = 0; f < 3; f++) {
        struct model m = {.dtype = CDDP_FLOAT32, .count = {3, 50, 17, 64}};

        CHECK(make(&m, comm, flags[f]) == 0 && whole_numbers(&m, rank) == 0);
        CHECK(cddp_ddp_grad_norm(m.ddp, INFINITY, &largest[f]) == CDDP_OK);
        if (f < 2 || rank == 0) { /* with CDDP_DDP_JOIN it needs no other rank */
            CHECK(cddp_ddp_clip_grad_norm(m.ddp, 1, 2, 1, &norm[f]) == CDDP_OK && norm[f] > 10);
            CHECK(same_bits(norm[f], norm[0]) && largest[f] == 7.5);
            CHECK(fabs(grad_get(m.ddp, m.dtype, 1, 1) * cddp_ddp_grad_scale(m.ddp) - 4.5 / norm[0]) <
                  1e-6); /* 8 % 11 - 5 is 3 */
        }
        cddp_ddp_destroy(m.ddp);
    }
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(norm, sum_has_norm_of_mean_and_join_needs_no_peers)
{
    cr_assert_eq(world(2, make_sum_and_join), 0);
}

/* --- The bits of a norm depend on the gradients alone. ------------------------------------------------------------ */

#define WIDE 5
#define WIDEST 20011

/* Few lines, so that one that is cut shows in the result; and many. */
static const size_t few_counts[WIDE] = {1, 1, 13, 3, 1}, many_counts[WIDE] = {WIDEST, 1, 4099, 777, 65};
static const size_t *wide_counts = many_counts;
static size_t wide_seed;
static const cddp_dtype wide_types[WIDE] = {CDDP_FLOAT32, CDDP_FLOAT64, CDDP_FLOAT64, CDDP_BFLOAT16, CDDP_FLOAT16};

/*
 * Few bits, so that the mean of three equal numbers is exact. Many are near 1, so that each order of their sum has
 * other roundings; others are as small as the type allows.
 */
static double wide_number(size_t i, size_t k)
{
    uint64_t dice = ((wide_seed * WIDE + i) * WIDEST + k + 1) * 0x9e3779b97f4a7c15u;
    int reach = wide_types[i] == CDDP_FLOAT64 ? 1000 : wide_types[i] == CDDP_FLOAT16 ? 7 : 100;
    int digits = wide_types[i] == CDDP_FLOAT64 ? 40 : wide_types[i] == CDDP_FLOAT32 ? 16 : 6;

    dice ^= dice >> 29;
    dice *= 0xbf58476d1ce4e5b9u;
    return ldexp((double)(dice >> (64 - digits)) + 1, -digits - (int)(dice % (k % 3 == 0 ? (unsigned)reach : 3u)));
}

/* The definition: lines of 64 bytes in units of 16, each folded in halves, and one rounding of the sum of lines. */
static double norm_by_definition(void)
{
    uint64_t words[CDI_EXACT_WORDS] = {0};

    for (size_t i = 0; i < WIDE; i++) {
        size_t line = 64 / cddp_dtype_size(wide_types[i]), unit = line / 4;

        for (size_t at = 0; at < wide_counts[i]; at += line) {
            double square[32] = {0};

            for (size_t k = 0; k < line && at + k < wide_counts[i]; k++)
                square[k] = wide_number(i, at + k) * wide_number(i, at + k);
            for (size_t half = unit / 2; half > 0; half /= 2)
                for (size_t u = 0; u < line; u += unit)
                    for (size_t k = 0; k < half; k++)
                        square[u + k] += square[u + k + half];
            cdi_exact_add(words, 1, (square[0] + square[2 * unit]) + (square[unit] + square[3 * unit]));
        }
    }
    cdi_exact_carry(words);
    return sqrt(cdi_exact_round(words));
}

static int measure_wide(cddp_comm *comm, uint32_t flags, size_t bucket_bytes, bool divided)
{
    static const cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 1};
    static double w[WIDE][WIDEST];
    cddp_ddp_options opt = {
        .size = sizeof opt, .flags = flags, .bucket_bytes = bucket_bytes, .first_bucket_bytes = bucket_bytes};
    double want = norm_by_definition(), norm = -1, clipped = -1;
    cddp_param p[WIDE];
    cddp_optim *optim = NULL;
    cddp_ddp *ddp;

    for (size_t i = 0; i < WIDE; i++)
        p[i] = (cddp_param){
            .size = sizeof p[i], .name = "p", .data = w[i], .count = wide_counts[i], .dtype = wide_types[i]};
    CHECK(cddp_ddp_create(&ddp, comm, p, WIDE, &opt) == CDDP_OK);
    CHECK(!divided || cddp_optim_create(&optim, ddp, &sgd) == CDDP_OK);
    for (size_t i = WIDE; i-- > 0;) {
        for (size_t k = 0; k < wide_counts[i]; k++)
            grad_put(ddp, wide_types[i], i, k, wide_number(i, k));
        CHECK(cddp_ddp_grad_ready(ddp, i) == CDDP_OK);
    }
    CHECK(divided || cddp_ddp_wait(ddp) == CDDP_OK);
    for (size_t i = 0; i < WIDE && !divided; i++)
        for (size_t k = 0; k < wide_counts[i]; k++)
            CHECK(grad_get(ddp, wide_types[i], i, k) == wide_number(i, k));
    CHECK(cddp_ddp_grad_norm(ddp, 2, &norm) == CDDP_OK);
    CHECK(cddp_ddp_clip_grad_norm(ddp, 1e300, 2, 1, &clipped) == CDDP_OK && same_bits(norm, clipped));
    if (!same_bits(norm, want)) {
        fprintf(stderr, "flags %x, buckets of %zu, divided %d: %a, not %a\n", flags, bucket_bytes, divided, norm, want);
        return 1;
    }
    CHECK(!divided || cddp_optim_skip(optim) == CDDP_OK);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
    return 0;
}

static int measure_in_all_ways(int rank)
{
    cddp_comm *comm = NULL;

    (void)rank;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    wide_counts = few_counts;
    for (wide_seed = 0; wide_seed < 20; wide_seed++)
        CHECK(measure_wide(comm, 0, 0, false) == 0 && measure_wide(comm, 0, 64, true) == 0);
    wide_counts = many_counts;
    CHECK(measure_wide(comm, 0, 0, false) == 0 && measure_wide(comm, 0, 4096, false) == 0);
    CHECK(measure_wide(comm, CDDP_DDP_JOIN, 4096, false) == 0);
    CHECK(measure_wide(comm, 0, 0, true) == 0 && measure_wide(comm, 0, 1000, true) == 0);
    CHECK(measure_wide(comm, 0, 20000, true) == 0);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(norm, bits_depend_neither_on_ranks_nor_buckets_nor_optimizer)
{
    cr_assert_eq(world(1, measure_in_all_ways), 0);
    cr_assert_eq(world(2, measure_in_all_ways), 0);
    cr_assert_eq(world(3, measure_in_all_ways), 0);
}

Test(norm, counts_wide_narrow_and_user_gradients)
{
    static double own[10007];
    static const uint16_t two[] = {[CDDP_FLOAT16] = 0x4000, [CDDP_BFLOAT16] = 0x4000};
    static double w[4][100003];
    cddp_param p[] = {
        {.size = sizeof(cddp_param), .name = "f64", .data = w[0], .count = 10007, .dtype = CDDP_FLOAT64, .grad = own},
        {.size = sizeof(cddp_param), .name = "f32", .data = w[1], .count = 100003, .dtype = CDDP_FLOAT32},
        {.size = sizeof(cddp_param), .name = "f16", .data = w[2], .count = 517, .dtype = CDDP_FLOAT16},
        {.size = sizeof(cddp_param), .name = "bf16", .data = w[3], .count = 9, .dtype = CDDP_BFLOAT16}};
    cddp_ddp_options opt = {.size = sizeof opt, .flags = CDDP_DDP_NO_BROADCAST};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;
    double norm, all = 10007 + 100003 * 4.0 + 517 * 4.0 + 9 * 4.0;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_create(&ddp, comm, p, 4, &opt), CDDP_OK);
    for (size_t i = 4; i-- > 0;) {
        for (size_t k = 0; k < p[i].count; k++)
            if (i == 0)
                own[k] = -1;
            else if (i == 1)
                ((float *)cddp_ddp_grad(ddp, i))[k] = 2;
            else
                ((uint16_t *)cddp_ddp_grad(ddp, i))[k] = two[p[i].dtype];
        cr_assert_eq(cddp_ddp_grad_ready(ddp, i), CDDP_OK);
    }
    cr_assert_eq(cddp_ddp_wait(ddp), CDDP_OK);
    cr_assert_eq(cddp_ddp_grad_norm(ddp, INFINITY, &norm), CDDP_OK);
    cr_assert_eq(norm, 2);
    cr_assert_eq(cddp_ddp_clip_grad_norm(ddp, sqrt(all) / 2, 2, 0, &norm), CDDP_OK);
    cr_assert_eq(norm, sqrt(all));
    cr_assert(fabs(own[10006] + 0.5) < 1e-8 && fabsf(((float *)cddp_ddp_grad(ddp, 1))[100002] - 1) < 1e-6f);
    cr_assert(((uint16_t *)cddp_ddp_grad(ddp, 2))[516] == 0x3c00 && ((uint16_t *)cddp_ddp_grad(ddp, 3))[8] == 0x3f80);
    cddp_ddp_destroy(ddp);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}

Test(norm, rejects_invalid_calls_and_continues)
{
    struct model m = {.dtype = CDDP_FLOAT64, .count = {1, 1, 1, 1}};
    cddp_comm *comm = NULL;
    double norm = 7;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(make(&m, comm, 0), 0);
    cr_assert_eq(cddp_ddp_grad_norm(m.ddp, 3, &norm), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_grad_norm(m.ddp, -INFINITY, &norm), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_grad_norm(m.ddp, 2, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_grad_norm(NULL, 2, &norm), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_clip_grad_norm(NULL, 1, 2, 0, &norm), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_clip_grad_norm(m.ddp, -1, 2, 0, &norm), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_clip_grad_norm(m.ddp, NAN, 2, 0, &norm), CDDP_E_INVALID);
    grad_put(m.ddp, m.dtype, 3, 0, 2);
    cr_assert_eq(cddp_ddp_grad_ready(m.ddp, 3), CDDP_OK);
    cr_assert_eq(cddp_ddp_clip_grad_norm(m.ddp, 1, 2, 0, &norm), CDDP_E_STATE);
    cr_assert(strstr(cddp_last_error(), "in the middle of step 0") != NULL);
    cr_assert_eq(norm, 7);
    for (size_t i = 3; i-- > 0;)
        cr_assert_eq(cddp_ddp_grad_ready(m.ddp, i), CDDP_OK);
    cr_assert_eq(cddp_ddp_wait(m.ddp), CDDP_OK);
    cr_assert_eq(cddp_ddp_clip_grad_norm(m.ddp, 1, 2, 0, NULL), CDDP_OK);
    cr_assert(fabs(grad_get(m.ddp, m.dtype, 3, 0) - 1) < 1e-6);
    cddp_ddp_destroy(m.ddp);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}

static int alone(int rank)
{
    float w[4] = {0};
    cddp_param p = {.size = sizeof p, .name = "w", .data = w, .count = 4, .dtype = CDDP_FLOAT32};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;
    double norm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&ddp, comm, &p, 1, NULL) == CDDP_OK);
    CHECK((rank == 1 ? cddp_ddp_grad_norm(ddp, 2, &norm) : cddp_barrier(comm)) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "rank 1 called norm of the gradients (all_reduce(sum) of 70 uint64)") != NULL);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) == CDDP_E_MISMATCH);
    return 0;
}

/* Rank 1 measures two equal models in the other order. */
static int other_order(int rank)
{
    float w[2][4] = {{0}};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp[2] = {NULL};
    double norm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (int k = 0; k < 2; k++) {
        cddp_param p = {.size = sizeof p, .name = "w", .data = w[k], .count = 4, .dtype = CDDP_FLOAT32};

        CHECK(cddp_ddp_create(&ddp[k], comm, &p, 1, NULL) == CDDP_OK);
    }
    CHECK(cddp_ddp_grad_norm(ddp[rank], 2, &norm) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "rank 0's is of model 1, rank 1's of model 2") != NULL);
    cddp_ddp_destroy(ddp[0]);
    cddp_ddp_destroy(ddp[1]);
    CHECK(cddp_finalize(comm) == CDDP_E_MISMATCH);
    return 0;
}

/* The ranks of a divided model clip by different norms: each would scale its own share. */
static int other_clip(int rank)
{
    static const cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 1};
    float w[4] = {0};
    cddp_param p = {.size = sizeof p, .name = "w", .data = w, .count = 4, .dtype = CDDP_FLOAT32};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;
    cddp_optim *optim = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_ddp_create(&ddp, comm, &p, 1, NULL) == CDDP_OK);
    CHECK(cddp_optim_create(&optim, ddp, &sgd) == CDDP_OK);
    CHECK(cddp_ddp_grad_ready(ddp, 0) == CDDP_OK);
    CHECK(cddp_ddp_clip_grad_norm(ddp, 1 + rank, 2, 0, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "the steps of the model's optimizer differ") != NULL);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) == CDDP_E_MISMATCH);
    return 0;
}

Test(norm, reports_rank_that_measures_alone)
{
    cr_assert_eq(world(2, alone), 0);
    cr_assert_eq(world(2, other_order), 0);
    cr_assert_eq(world(2, other_clip), 0);
}

static int misuse(int rank)
{
    cddp_optim_options opt;
    float w[4] = {0};
    cddp_param p = {.size = sizeof p, .name = "w", .data = w, .count = 4, .dtype = CDDP_FLOAT32};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;
    cddp_optim *optim = NULL;

    (void)rank;
    cddp_optim_defaults(&opt, sizeof opt, CDDP_OPTIM_SGD);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&ddp, comm, &p, 1, NULL) == CDDP_OK);
    CHECK(cddp_optim_create(&optim, ddp, &opt) == CDDP_OK);
    CHECK(cddp_optim_step(optim, NULL) == CDDP_E_STATE);
    CHECK(strstr(cddp_last_error(), "for every parameter before cddp_optim_step") != NULL);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) != CDDP_OK);
    return 0;
}

Test(norm, optimizer_reports_missing_gradients)
{
    cr_assert_eq(world(1, misuse), 0);
}
