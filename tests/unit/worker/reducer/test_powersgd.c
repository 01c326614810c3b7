/* SPDX-License-Identifier: Apache-2.0 */
/* PowerSGD through the public functions, compared with PyTorch's records (tests/reference/record_powersgd.py). */
#include "hygiene.h"
#include "items.h"
#include "numbers.h"
#include "scratch.h"
#include "world.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>

CDI_SUITE(powersgd);

#define PARAMS 6
#define MOST 56
#define START 2
#define STEPS 6

static const size_t shapes[PARAMS][3] = {{6, 5}, {9}, {4, 3, 2}, {8, 7}, {5, 6}, {8, 7}};
static const size_t dims[PARAMS] = {2, 1, 3, 2, 2, 2};
static const size_t counts[PARAMS] = {30, 9, 24, 56, 30, 56};

struct model {
    cddp_ddp *ddp;
    double w[PARAMS][MOST];
    cddp_dtype dtype;
};

/* In two buckets: parameters 5, 4, 3 and 2, 1, 0. */
static int make(struct model *m, cddp_comm *comm, cddp_dtype dtype, uint32_t flags)
{
    size_t three = (56 + 30 + 56) * cddp_dtype_size(dtype);
    cddp_ddp_options opt = {.size = sizeof opt, .flags = flags, .bucket_bytes = three, .first_bucket_bytes = three};
    cddp_param p[PARAMS];

    m->dtype = dtype;
    for (size_t i = 0; i < PARAMS; i++)
        p[i] = (cddp_param){.size = sizeof(cddp_param),
                            .name = "p",
                            .data = m->w[i],
                            .count = counts[i],
                            .dtype = dtype,
                            .shape = shapes[i],
                            .n_dims = dims[i]};
    CHECK(cddp_ddp_create(&m->ddp, comm, p, PARAMS, &opt) == CDDP_OK);
    CHECK((flags & CDDP_DDP_JOIN) != 0 || cddp_ddp_bucket_count(m->ddp) == 2);
    return 0;
}

static double gradient(size_t rank, size_t step, size_t i, size_t k)
{
    size_t v = rank * 7919 + step * 104729 + i * 1299709 + k * k * 31 + k * 15485863;

    return (double)(v % 1009) / 1009 - 0.5;
}

static int give(struct model *m, size_t rank, size_t step)
{
    for (size_t i = PARAMS; i-- > 0;) {
        for (size_t k = 0; k < counts[i]; k++)
            grad_put(m->ddp, m->dtype, i, k, gradient(rank, step, i, k));
        CHECK(cddp_ddp_grad_ready(m->ddp, i) == CDDP_OK);
    }
    return 0;
}

/* Checks that every rank has the same bits. */
static int alike(struct model *m, cddp_comm *comm)
{
    for (size_t i = 0; i < PARAMS; i++) {
        unsigned char all[4 * MOST * sizeof(double)];
        size_t bytes = counts[i] * cddp_dtype_size(m->dtype);

        CHECK(cddp_all_gather(comm, cddp_ddp_grad(m->ddp, i), all, bytes, CDDP_UINT8) == CDDP_OK);
        for (int r = 1; r < cddp_world_size(comm); r++)
            CHECK(memcmp(all, all + (size_t)r * bytes, bytes) == 0);
    }
    return 0;
}

static cddp_powersgd_options options_of(const json_t *o)
{
    cddp_powersgd_options opt = {.size = sizeof opt, .start_step = START};

    opt.matrix_rank = (size_t)json_integer_value(json_object_get(o, "matrix_approximation_rank"));
    opt.min_compression_rate = json_number_value(json_object_get(o, "min_compression_rate"));
    opt.orthogonalization_epsilon = json_number_value(json_object_get(o, "orthogonalization_epsilon"));
    opt.seed = (uint32_t)json_integer_value(json_object_get(o, "random_seed"));
    opt.flags = (json_is_false(json_object_get(o, "warm_start")) ? CDDP_POWERSGD_NO_WARM_START : 0) |
                (json_is_false(json_object_get(o, "use_error_feedback")) ? CDDP_POWERSGD_NO_ERROR_FEEDBACK : 0);
    return opt;
}

static int meet_case(cddp_comm *comm, size_t rank, const json_t *c)
{
    bool f64 = strcmp(json_string_value(json_object_get(c, "type")), "f64") == 0;
    cddp_powersgd_options opt = options_of(json_object_get(c, "options"));
    double worst = 0, tolerance = f64 ? 1e-12 : 1e-5;
    struct model m;

    CHECK(make(&m, comm, f64 ? CDDP_FLOAT64 : CDDP_FLOAT32, 0) == 0);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &opt) == CDDP_OK);
    for (size_t step = 0; step < STEPS; step++) {
        const json_t *want = json_array_get(json_object_get(c, "steps"), step - START);

        CHECK(give(&m, rank, step) == 0 && cddp_ddp_wait(m.ddp) == CDDP_OK && alike(&m, comm) == 0);
        CHECK(step < START || json_array_size(want) == PARAMS);
        for (size_t i = 0; i < PARAMS; i++)
            for (size_t k = 0; k < counts[i]; k++) {
                double mean = (gradient(0, step, i, k) + gradient(1, step, i, k)) / 2;

                if (step >= START)
                    mean = strtod(json_string_value(json_array_get(json_array_get(want, i), k)), NULL);
                worst = fmax(worst, fabs(grad_get(m.ddp, m.dtype, i, k) - mean));
            }
    }
    if (worst > tolerance)
        fprintf(stderr, "%s: off by %g\n", json_string_value(json_object_get(c, "name")), worst);
    CHECK(worst <= tolerance);
    cddp_ddp_destroy(m.ddp);
    return 0;
}

static int meet_the_record(int rank)
{
    json_t *all = json_load_file(CDI_TEST_DATA "/powersgd_vectors.json", 0, NULL), *one;
    cddp_comm *comm = NULL;
    size_t i;
    int bad = 0;

    CHECK(json_array_size(json_object_get(all, "cases")) == 9);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    json_array_foreach(json_object_get(all, "cases"), i, one) bad += meet_case(comm, (size_t)rank, one);
    json_decref(all);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return bad;
}

Test(powersgd, matches_torch_on_all_ranks)
{
    cr_assert_eq(run_world(2, meet_the_record), 0);
}

/* Does one step with rank r's gradients g[r]. */
static int one_step(struct model *m, size_t rank, size_t step)
{
    CHECK(give(m, rank, step) == 0 && cddp_ddp_wait(m->ddp) == CDDP_OK);
    return 0;
}

/* With all columns there is no error, and the result is the mean. */
static int all_columns(int rank)
{
    cddp_powersgd_options opt = {.size = sizeof opt, .matrix_rank = 100, .start_step = 1, .min_compression_rate = 1e-3};
    cddp_comm *comm = NULL;
    struct model m;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && make(&m, comm, CDDP_FLOAT64, 0) == 0);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &opt) == CDDP_OK);
    for (size_t step = 0; step < STEPS; step++) {
        CHECK(one_step(&m, (size_t)rank, step) == 0 && alike(&m, comm) == 0);
        for (size_t i = 0; i < PARAMS; i++)
            for (size_t k = 0; k < counts[i]; k++) {
                double mean = 0;

                for (size_t r = 0; r < 3; r++)
                    mean += gradient(r, step, i, k) / 3;
                CHECK(fabs(grad_get(m.ddp, m.dtype, i, k) - mean) < 1e-13);
            }
    }
    cddp_ddp_destroy(m.ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(powersgd, full_rank_gives_plain_mean)
{
    cr_assert_eq(run_world(3, all_columns), 0);
}

/* The error is sent in later steps: for a constant gradient the mean of the results approaches it. */
static int nothing_is_lost(int rank)
{
    cddp_powersgd_options opt = {.size = sizeof opt, .start_step = 1, .min_compression_rate = 0.1};
    double sum[PARAMS][MOST] = {{0}};
    cddp_comm *comm = NULL;
    struct model m;
    int steps = 400;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && make(&m, comm, CDDP_FLOAT32, 0) == 0);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &opt) == CDDP_OK);
    CHECK(one_step(&m, (size_t)rank, 0) == 0);
    for (int step = 0; step < steps; step++) {
        CHECK(one_step(&m, (size_t)rank, 0) == 0);
        for (size_t i = 0; i < PARAMS; i++)
            for (size_t k = 0; k < counts[i]; k++)
                sum[i][k] += grad_get(m.ddp, m.dtype, i, k) / steps;
    }
    for (size_t i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++)
            CHECK(fabs(sum[i][k] - (gradient(0, 0, i, k) + gradient(1, 0, i, k)) / 2) < 0.02);
    cddp_ddp_destroy(m.ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(powersgd, sends_error_later)
{
    cr_assert_eq(run_world(2, nothing_is_lost), 0);
}

/* A step of zeros, one with NaN on one rank, and gradients of one column only: the next steps are right. */
static int hard_steps(int rank)
{
    cddp_powersgd_options opt = {.size = sizeof opt, .matrix_rank = 3, .start_step = 1, .min_compression_rate = 0.1};
    cddp_comm *comm = NULL;
    struct model m;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && make(&m, comm, CDDP_FLOAT32, 0) == 0);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &opt) == CDDP_OK);
    for (int step = 0; step < 8; step++) {
        for (size_t i = PARAMS; i-- > 0;) {
            for (size_t k = 0; k < counts[i]; k++)
                grad_put(m.ddp, m.dtype, i, k, step == 2 ? 0 : (double)(k % 7)); /* all rows equal, or nearly */
            if (step == 4 && rank == 1)
                grad_put(m.ddp, m.dtype, i, 3, NAN);
            CHECK(cddp_ddp_grad_ready(m.ddp, i) == CDDP_OK);
        }
        CHECK(cddp_ddp_wait(m.ddp) == CDDP_OK);
        for (size_t k = 0; k < counts[3]; k++)
            CHECK(step == 4 ? isnan(grad_get(m.ddp, m.dtype, 3, k)) || k != 3
                            : fabs(grad_get(m.ddp, m.dtype, 3, k) - (step == 2 ? 0 : (double)(k % 7))) < 1e-4);
        for (size_t i = 0; i < PARAMS; i++)
            for (size_t k = 0; k < counts[i] && step != 4; k++)
                CHECK(isfinite(grad_get(m.ddp, m.dtype, i, k)));
    }
    cddp_ddp_destroy(m.ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(powersgd, recovers_from_zeros_nans_and_dependent_columns)
{
    cr_assert_eq(run_world(2, hard_steps), 0);
}

/* With ranks that have no samples left, and gradients that no rank has. */
static int uneven_and_unused(int rank)
{
    cddp_powersgd_options opt = {.size = sizeof opt, .matrix_rank = 8, .start_step = 1, .min_compression_rate = 0.1};
    cddp_comm *comm = NULL;
    struct model m;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(make(&m, comm, CDDP_FLOAT64, CDDP_DDP_JOIN | CDDP_DDP_FIND_UNUSED) == 0);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &opt) == CDDP_OK);
    for (int step = 0; step < 3 + rank; step++) {
        for (size_t i = PARAMS; i-- > 0;) {
            for (size_t k = 0; k < counts[i] && i != 3; k++)
                grad_put(m.ddp, m.dtype, i, k, 2);
            if (i != 3)
                CHECK(cddp_ddp_grad_ready(m.ddp, i) == CDDP_OK);
            else
                grad_put(m.ddp, m.dtype, i, 1, 77); /* its old value */
        }
        CHECK(cddp_ddp_wait(m.ddp) == CDDP_OK && grad_get(m.ddp, m.dtype, 3, 1) == 77);
        CHECK(fabs(grad_get(m.ddp, m.dtype, 5, 9) - (step < 3 ? 2 : 1)) < 1e-12 &&
              fabs(grad_get(m.ddp, m.dtype, 1, 2) - (step < 3 ? 2 : 1)) < 1e-12);
    }
    CHECK(cddp_ddp_join(m.ddp) == CDDP_OK);
    cddp_ddp_destroy(m.ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(powersgd, supports_uneven_ranks_and_unused_gradients)
{
    cr_assert_eq(run_world(2, uneven_and_unused), 0);
}

/* ------------------------------------------------------------------------------------------------ checkpoints ---- */

/* First layer first, so that the launch order of buckets changes in the third step. */
static int one_step_forward(struct model *m, size_t rank, size_t step)
{
    for (size_t i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < counts[i]; k++)
            grad_put(m->ddp, m->dtype, i, k, gradient(rank, step, i, k));
        CHECK(cddp_ddp_grad_ready(m->ddp, i) == CDDP_OK);
    }
    CHECK(cddp_ddp_wait(m->ddp) == CDDP_OK);
    return 0;
}

/* Its reducer, and another item of the program (NULL: none). */
static cddp_status save(cddp_comm *comm, uint64_t step, struct model *m, const cddp_checkpoint_item *item)
{
    cddp_checkpoint_item items[2] = {item_of(CDDP_ITEM_DDP, "ddp", m->ddp)};

    if (item != NULL)
        items[1] = *item;
    return cddp_checkpoint_save(comm, scratch, step, items, item != NULL ? 2 : 1, NULL);
}

static cddp_status load(cddp_comm *comm, struct model *m, const cddp_checkpoint_item *item, cddp_checkpoint_info *info)
{
    cddp_checkpoint_item items[2] = {item_of(CDDP_ITEM_DDP, "ddp", m->ddp)};

    if (item != NULL)
        items[1] = *item;
    return cddp_checkpoint_load(comm, scratch, items, item != NULL ? 2 : 1, info);
}

static int same_gradients(struct model *a, struct model *b)
{
    for (size_t i = 0; i < PARAMS; i++)
        CHECK(memcmp(cddp_ddp_grad(a->ddp, i), cddp_ddp_grad(b->ddp, i), counts[i] * cddp_dtype_size(a->dtype)) == 0);
    return 0;
}

/* A reducer is saved after `stop` steps; another one loads the state and continues beside it. */
static int save_and_go_on(cddp_comm *comm, size_t rank, const cddp_powersgd_options *opt, cddp_dtype dtype, size_t stop)
{
    struct model all, rest;
    cddp_checkpoint_info info = {.size = sizeof info};
    uint64_t mine = 7 + rank, other = 0;
    const cddp_checkpoint_item
        saved = {.size = sizeof(cddp_checkpoint_item), .name = "x", .data = &mine, .bytes = sizeof mine},
        loaded = {.size = sizeof(cddp_checkpoint_item), .name = "x", .data = &other, .bytes = sizeof other};

    CHECK(make(&all, comm, dtype, 0) == 0 && cddp_ddp_set_powersgd(all.ddp, opt) == CDDP_OK);
    for (size_t step = 0; step < stop; step++)
        CHECK(one_step_forward(&all, rank, step) == 0);
    CHECK(save(comm, stop, &all, &saved) == CDDP_OK);
    CHECK(make(&rest, comm, dtype, 0) == 0 && cddp_ddp_set_powersgd(rest.ddp, opt) == CDDP_OK);
    CHECK(load(comm, &rest, &loaded, &info) == CDDP_OK && info.step == stop && other == 7);
    for (size_t step = stop; step < stop + 7; step++) {
        CHECK(one_step_forward(&all, rank, step) == 0 && one_step_forward(&rest, rank, step) == 0);
        CHECK(same_gradients(&all, &rest) == 0);
    }
    cddp_ddp_destroy(rest.ddp);
    cddp_ddp_destroy(all.ddp);
    return 0;
}

static int go_on(int rank)
{
    static const uint32_t flags[] = {0, CDDP_POWERSGD_NO_WARM_START, CDDP_POWERSGD_NO_ERROR_FEEDBACK};
    static const size_t stops[] = {1, 3, 8}; /* before PowerSGD begins, and after */
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (size_t f = 0; f < 3; f++)
        for (size_t s = 0; s < 3; s++) {
            cddp_powersgd_options opt = {.size = sizeof opt,
                                         .matrix_rank = 1 + s,
                                         .start_step = START,
                                         .min_compression_rate = 0.1,
                                         .seed = 5,
                                         .flags = flags[f]};

            CHECK(save_and_go_on(comm, (size_t)rank, &opt, s == 1 ? CDDP_FLOAT64 : CDDP_FLOAT32, stops[s]) == 0);
        }
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(powersgd, resumes_bit_for_bit)
{
    scratch_make();
    cr_assert_eq(run_world(1, go_on), 0);
    scratch_remove();
    scratch_make();
    cr_assert_eq(run_world(3, go_on), 0);
    scratch_remove();
}

static const cddp_powersgd_options two_columns = {
    .size = sizeof two_columns, .matrix_rank = 2, .start_step = 1, .min_compression_rate = 0.1};

/* Saves the errors of two ranks: the sum of their means less the sum of the results. */
static int owe(int rank)
{
    double owed[PARAMS][MOST] = {{0}};
    const cddp_checkpoint_item item = {
        .size = sizeof(cddp_checkpoint_item), .name = "owed", .data = owed, .bytes = sizeof owed};
    cddp_comm *comm = NULL;
    struct model m;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && make(&m, comm, CDDP_FLOAT64, 0) == 0);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &two_columns) == CDDP_OK);
    for (size_t step = 0; step < 9; step++) {
        CHECK(one_step(&m, (size_t)rank, step) == 0);
        for (size_t i = 0; i < PARAMS; i++)
            for (size_t k = 0; k < counts[i]; k++)
                owed[i][k] += (gradient(0, step, i, k) + gradient(1, step, i, k)) / 2 - grad_get(m.ddp, m.dtype, i, k);
    }
    CHECK(fabs(owed[3][5]) > 1e-3 && save(comm, 9, &m, &item) == CDDP_OK);
    cddp_ddp_destroy(m.ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

/* In a world of any size: with zero gradients all of the error is sent. */
static int pay(int rank)
{
    double owed[PARAMS][MOST] = {{0}};
    const cddp_checkpoint_item item = {
        .size = sizeof(cddp_checkpoint_item), .name = "owed", .data = owed, .bytes = sizeof owed};
    cddp_comm *comm = NULL;
    struct model m;

    (void)rank;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK && make(&m, comm, CDDP_FLOAT64, 0) == 0);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &two_columns) == CDDP_OK);
    CHECK(load(comm, &m, &item, NULL) == CDDP_OK && fabs(owed[3][5]) > 1e-3);
    for (size_t step = 0; step < 100; step++) {
        for (size_t i = PARAMS; i-- > 0;) {
            memset(cddp_ddp_grad(m.ddp, i), 0, counts[i] * sizeof(double));
            CHECK(cddp_ddp_grad_ready(m.ddp, i) == CDDP_OK);
        }
        CHECK(cddp_ddp_wait(m.ddp) == CDDP_OK && alike(&m, comm) == 0);
        for (size_t i = 0; i < PARAMS; i++)
            for (size_t k = 0; k < counts[i]; k++)
                owed[i][k] -= grad_get(m.ddp, m.dtype, i, k);
    }
    for (size_t i = 0; i < PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++)
            CHECK(fabs(owed[i][k]) < 1e-9);
    cddp_ddp_destroy(m.ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(powersgd, sends_error_later_in_other_world)
{
    scratch_make();
    cr_assert_eq(run_world(2, owe), 0);
    for (int ranks = 1; ranks <= 4; ranks++)
        cr_assert_eq(run_world(ranks, pay), 0, "%d ranks", ranks);
    scratch_remove();
}

static int refuse_others(int rank)
{
    cddp_powersgd_options other = two_columns, more_seed = two_columns;
    cddp_comm *comm = NULL;
    struct model m, f32;
    uint64_t x = 1;
    const cddp_checkpoint_item item = {
        .size = sizeof(cddp_checkpoint_item), .name = "x", .data = &x, .bytes = sizeof x};

    other.matrix_rank = 1;
    more_seed.seed = 9;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK && make(&m, comm, CDDP_FLOAT64, 0) == 0);
    CHECK(make(&f32, comm, CDDP_FLOAT32, 0) == 0);
    CHECK(load(comm, &m, NULL, NULL) == CDDP_E_NOT_FOUND);
    /* Without PowerSGD there is no state: such a checkpoint fits only itself. */
    CHECK(save(comm, 1, &m, NULL) == CDDP_OK && load(comm, &m, NULL, NULL) == CDDP_OK);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &two_columns) == CDDP_OK);
    CHECK(load(comm, &m, NULL, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "item 'ddp': it was saved from a reducer without PowerSGD") != NULL);
    CHECK(cddp_checkpoint_save(comm, scratch, 1, &item, 1, NULL) == CDDP_OK);
    CHECK(load(comm, &m, &item, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "holds no item 'ddp'") != NULL);
    CHECK(save(comm, 2, &m, NULL) == CDDP_OK);
    x = 5;
    CHECK(load(comm, &m, &item, NULL) == CDDP_E_MISMATCH && x == 5);
    CHECK(strstr(cddp_last_error(), "holds no item 'x'") != NULL);
    CHECK(load(comm, &f32, NULL, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "item 'ddp': it contains PowerSGD errors, and this reducer has no") != NULL);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &other) == CDDP_OK);
    CHECK(load(comm, &m, NULL, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "matrix_rank is 1 here, but was 2 where") != NULL);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &more_seed) == CDDP_OK);
    CHECK(load(comm, &m, NULL, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "seed is 9 here, but was 0 where") != NULL);
    CHECK(cddp_ddp_set_powersgd(f32.ddp, &two_columns) == CDDP_OK);
    CHECK(load(comm, &f32, NULL, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "of other parameters, shapes or types") != NULL);
    /* Nothing was broken. In the middle of a step the save is rejected. */
    CHECK(one_step(&f32, (size_t)rank, 0) == 0 && one_step(&f32, (size_t)rank, 1) == 0 && alike(&f32, comm) == 0);
    CHECK(cddp_ddp_grad_ready(f32.ddp, 5) == CDDP_OK);
    CHECK(save(comm, 3, &f32, NULL) == CDDP_E_STATE);
    CHECK(strstr(cddp_last_error(), "in the middle of step 2") != NULL);
    for (size_t i = 5; i-- > 0;)
        CHECK(cddp_ddp_grad_ready(f32.ddp, i) == CDDP_OK);
    CHECK(cddp_ddp_wait(f32.ddp) == CDDP_OK);
    cddp_ddp_destroy(f32.ddp);
    cddp_ddp_destroy(m.ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(powersgd, rejects_state_that_does_not_fit)
{
    scratch_make();
    cr_assert_eq(run_world(2, refuse_others), 0);
    scratch_remove();
}

static int differ(int rank)
{
    cddp_powersgd_options opt = {.size = sizeof opt, .seed = rank == 1}, good = {.size = sizeof good};
    cddp_comm *comm = NULL;
    struct model m;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && make(&m, comm, CDDP_FLOAT32, 0) == 0);
    CHECK(cddp_ddp_set_powersgd(m.ddp, &opt) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "rank 1 has other options than rank 0") != NULL);
    if (rank == 1)
        good.flags = 64;
    CHECK(cddp_ddp_set_powersgd(m.ddp, &good) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(),
                 rank == 1 ? "cddp_powersgd_options" : "rank 1 could not use PowerSGD: cddp_powersgd_options") != NULL);
    good.flags = 0;
    CHECK(cddp_ddp_set_powersgd(m.ddp, &good) == CDDP_OK && one_step(&m, (size_t)rank, 0) == 0);
    CHECK(cddp_ddp_wait_param(m.ddp, 0) == CDDP_E_STATE && strstr(cddp_last_error(), "PowerSGD") != NULL);
    CHECK(cddp_ddp_set_hook(m.ddp, NULL) == CDDP_OK && one_step(&m, (size_t)rank, 1) == 0);
    cddp_ddp_destroy(m.ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(powersgd, rejects_different_options)
{
    cr_assert_eq(run_world(2, differ), 0);
}

Test(powersgd, rejects_unsupported_combinations)
{
    float w[2];
    cddp_param p = {.size = sizeof(cddp_param), .name = "w", .data = w, .count = 2, .dtype = CDDP_FLOAT32};
    cddp_ddp_options sum = {.size = sizeof sum, .flags = CDDP_DDP_SUM},
                     cut = {.size = sizeof cut, .flags = CDDP_DDP_SPLIT},
                     narrow = {.size = sizeof narrow, .comm_dtype = CDDP_FLOAT16};
    cddp_powersgd_options old = {.size = 8}, rate = {.size = sizeof rate, .min_compression_rate = NAN};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, &sum), CDDP_OK);
    cr_assert_eq(cddp_ddp_set_powersgd(ddp, NULL), CDDP_E_INVALID);
    cddp_ddp_destroy(ddp);
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, &cut), CDDP_OK);
    cr_assert_eq(cddp_ddp_set_powersgd(ddp, NULL), CDDP_E_INVALID);
    cddp_ddp_destroy(ddp);
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, &narrow), CDDP_OK);
    cr_assert_eq(cddp_ddp_set_powersgd(ddp, NULL), CDDP_E_INVALID);
    cddp_ddp_destroy(ddp);
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_set_powersgd(NULL, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_set_powersgd(ddp, &old), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_set_powersgd(ddp, &rate), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_set_powersgd(ddp, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_set_powersgd(ddp, NULL), CDDP_OK, "it begins anew");
    cddp_ddp_destroy(ddp);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}
