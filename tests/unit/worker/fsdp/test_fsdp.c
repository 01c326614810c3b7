/* SPDX-License-Identifier: Apache-2.0 */
/* What a sharded model refuses, in a world of one; tests/integration/sharded_ranks.c has what it computes. */
#include "hygiene.h"
#include "scratch.h"
#include "world.h"

#include <math.h>

CDI_SUITE(fsdp);

#define UNITS 4

static cddp_comm *comm;
static float values[UNITS][8];
static cddp_param params[UNITS];
static cddp_fsdp_unit units[UNITS];
static const char *const names[UNITS] = {"a", "b", "c", "d"};

static void describe_units(void)
{
    for (size_t u = 0; u < UNITS; u++) {
        for (size_t k = 0; k < 8; k++)
            values[u][k] = (float)(u * 8 + k);
        params[u] = (cddp_param){
            .size = sizeof params[u], .name = names[u], .data = values[u], .count = 8, .dtype = CDDP_FLOAT32};
        units[u] = (cddp_fsdp_unit){.size = sizeof units[u], .name = names[u], .params = &params[u], .n_params = 1};
    }
}

static void begin(void)
{
    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    describe_units();
}

static cddp_fsdp *make(const cddp_fsdp_options *opt)
{
    cddp_fsdp *f = NULL;

    begin();
    cr_assert_eq(cddp_fsdp_create(&f, comm, units, UNITS, opt), CDDP_OK, "%s", cddp_last_error());
    return f;
}

static void end(cddp_fsdp *f)
{
    cddp_fsdp_destroy(f);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}

static void says(cddp_status is, cddp_status expected, const char *text)
{
    cr_assert_eq(is, expected, "%s, not %s: %s", cddp_status_name(is), cddp_status_name(expected), cddp_last_error());
    cr_assert_not_null(strstr(cddp_last_error(), text), "'%s' is not in: %s", text, cddp_last_error());
}

static cddp_status create(const cddp_fsdp_options *opt)
{
    cddp_fsdp *f = NULL;
    cddp_status st = cddp_fsdp_create(&f, comm, units, UNITS, opt);

    cr_assert(st != CDDP_OK && f == NULL);
    return st;
}

static cddp_status failing_fill(void *arg, size_t u, void *const *data)
{
    (void)arg;
    (void)data;
    return u == 2 ? CDDP_E_IO : CDDP_OK;
}

static cddp_status strange_fill(void *arg, size_t u, void *const *data)
{
    (void)arg;
    (void)u;
    (void)data;
    return (cddp_status)1;
}

Test(fsdp, bad_arguments_are_named)
{
    cddp_fsdp_options opt = {.size = sizeof opt, .stage = 1};
    cddp_fsdp *f = NULL;

    begin();
    says(create(&opt), CDDP_E_INVALID, "stage is 1");
    opt.stage = 0;
    opt.flags = 4;
    says(create(&opt), CDDP_E_INVALID, "flags has unknown bits (0x4)");
    says(cddp_fsdp_create(&f, comm, units, 0, NULL), CDDP_E_INVALID, "at least one unit");
    says(cddp_fsdp_create(NULL, comm, units, 1, NULL), CDDP_E_INVALID, "must not be NULL");
    units[1].name = "";
    says(create(NULL), CDDP_E_INVALID, "unit 1 has no name");
    units[1].name = "b";
    units[1].n_params = 0;
    says(create(NULL), CDDP_E_INVALID, "unit 1 'b' has no parameters");
    units[1].n_params = 1;
    units[2].flags = 8;
    says(create(NULL), CDDP_E_INVALID, "unknown bits (0x8)");
    units[2].flags = 0;
    params[3].grad = values[0];
    says(create(NULL), CDDP_E_INVALID, "parameter 'd' has a `grad`");
    params[3].grad = NULL;
    params[3].count = 0;
    says(create(NULL), CDDP_E_INVALID, "'d' has no elements");
    params[3].count = 8;
    params[3].flags = 2;
    says(create(NULL), CDDP_E_INVALID, "'d' has unknown flags (0x2)");
    params[3].flags = 0;
    params[0].grad_dtype = CDDP_FLOAT64;
    says(create(NULL), CDDP_E_INVALID, "'a' is float32 and has grad_dtype float64");
    params[0].grad_dtype = CDDP_DTYPE_NONE;
    opt = (cddp_fsdp_options){.size = sizeof opt, .fill = failing_fill};
    says(create(&opt), CDDP_E_IO, "fill failed for unit 2 'c'");
    opt.fill = strange_fill;
    says(create(&opt), CDDP_E_INVALID, "fill failed for unit 0 'a'");
    end(NULL);
}

/* Each has its own shares, so there would be two copies, which training drives apart. */
Test(fsdp, parameters_that_share_memory_are_refused_with_both_names)
{
    begin();
    params[2].data = values[0];
    says(create(NULL), CDDP_E_INVALID, "unit 'a', parameter 'a' and unit 'c', parameter 'c' have the same data");
    params[2].data = values[0] + 4;
    says(create(NULL), CDDP_E_INVALID, "'a' and the data of parameter 2 'c' share 16 bytes");
    params[2].data = values[2];
    params[1].data = params[3].data = NULL;
    units[0].params = &params[2];
    says(create(NULL), CDDP_E_INVALID, "unit 'a', parameter 'c' and unit 'c', parameter 'c' have the same data");
    end(NULL);
}

Test(fsdp, more_units_than_fit_are_refused)
{
    const cddp_fsdp_options opt = {.size = sizeof opt, .max_live_units = 2, .max_live_gradients = 1};
    cddp_fsdp *f = make(&opt);

    cr_assert(cddp_fsdp_gather(f, 0) == CDDP_OK && cddp_fsdp_gather(f, 1) == CDDP_OK);
    says(cddp_fsdp_gather(f, 2), CDDP_E_STATE,
         "unit 2 'c' cannot be gathered: cddp_fsdp_options.max_live_units is 2, and 'a', 'b' are not released yet");
    cr_assert_null(cddp_fsdp_param(f, 2, 0));
    cr_assert_eq(cddp_fsdp_release(f, 0), CDDP_OK);
    cr_assert(cddp_fsdp_gather(f, 2) == CDDP_OK && cddp_fsdp_wait_unit(f, 2) == CDDP_OK);
    cr_assert_arr_eq(cddp_fsdp_param(f, 2, 0), values[2], sizeof values[2]);
    cr_assert_not_null(cddp_fsdp_grad(f, 2, 0));
    cr_assert_null(cddp_fsdp_grad(f, 1, 0));
    cr_assert_not_null(strstr(cddp_last_error(), "no memory for the gradients of unit 1 'b': cddp_fsdp_options."
                                                 "max_live_gradients is 1, and 'c' is not reported yet"));
    end(f);
}

Test(fsdp, calls_in_wrong_order_are_named_and_break_nothing)
{
    cddp_optim_options rule;
    cddp_optim *optim;
    cddp_fsdp *f = make(NULL);
    double norm;

    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_SGD);
    cr_assert_eq(cddp_optim_create_sharded(&optim, f, &rule), CDDP_OK);
    says(cddp_fsdp_wait_unit(f, 0), CDDP_E_STATE, "unit 0 'a' is not held");
    says(cddp_fsdp_release(f, 0), CDDP_E_STATE, "unit 0 'a' is not held");
    says(cddp_fsdp_gather(f, UNITS), CDDP_E_INVALID, "there is no unit 4, only 0 to 3");
    says(cddp_fsdp_grads_ready(f, 1), CDDP_E_STATE, "unit 1 'b' has no gradients in this step");
    says(cddp_fsdp_end_step(f), CDDP_E_STATE, "cddp_optim_step");
    cr_assert_null(cddp_fsdp_grad(f, 0, 1));
    for (size_t u = 0; u < UNITS; u++) {
        float *g = cddp_fsdp_grad(f, u, 0);

        for (size_t k = 0; k < 8; k++)
            g[k] = 1;
        cr_assert_eq(cddp_fsdp_grads_ready(f, u), CDDP_OK);
        says(cddp_fsdp_grads_ready(f, u), CDDP_E_STATE, "were ready already in this step");
        cr_assert_null(cddp_fsdp_grad(f, u, 0));
        cr_assert_not_null(strstr(cddp_last_error(), "were ready already in this step"));
    }
    cr_assert(cddp_fsdp_grad_norm(f, 2, &norm) == CDDP_OK && norm == sqrt(8 * UNITS));
    says(cddp_fsdp_grad_norm(f, 2, NULL), CDDP_E_INVALID, "norm must not be NULL");
    cr_assert_eq(cddp_fsdp_gather(f, 3), CDDP_OK);
    cr_assert_eq(cddp_optim_step(optim, NULL), CDDP_OK, "%s", cddp_last_error());
    says(cddp_fsdp_gather(f, 0), CDDP_E_STATE, "unit 3 'd' was gathered in step 0 and not released before its end");
    says(cddp_fsdp_wait_unit(f, 3), CDDP_E_STATE, "unit 3 'd' was gathered in step 0 and not released before its end");
    cr_assert_null(cddp_fsdp_param(f, 3, 0));
    cr_assert_eq(cddp_fsdp_release(f, 3), CDDP_OK);
    cr_assert_eq(cddp_fsdp_gather(f, 3), CDDP_OK);
    cr_assert_null(cddp_fsdp_param(f, 3, 0));
    cr_assert_not_null(strstr(cddp_last_error(), "unit 3 'd' is being gathered: call cddp_fsdp_wait_unit"));
    cr_assert_eq(cddp_fsdp_wait_unit(f, 3), CDDP_OK);
    cr_assert_float_eq(((const float *)cddp_fsdp_param(f, 3, 0))[7], 31 - 1e-3F, 1e-5);
    cddp_optim_destroy(optim);
    end(f);
}

Test(fsdp, unit_without_gradients_is_named_at_the_end_of_the_step)
{
    cddp_fsdp *f = make(NULL);

    for (size_t u = 0; u < UNITS; u++)
        if (u != 2) {
            cr_assert_not_null(cddp_fsdp_grad(f, u, 0));
            cr_assert_eq(cddp_fsdp_grads_ready(f, u), CDDP_OK);
        }
    says(cddp_fsdp_end_step(f), CDDP_E_STATE,
         "unit 2 'c' has not reported gradients in step 0: call cddp_fsdp_grads_ready for every unit before "
         "cddp_fsdp_end_step");
    cddp_fsdp_destroy(f);
    (void)cddp_finalize(comm);
}

Test(fsdp, frozen_parameters_have_no_gradients_and_no_memory_for_them)
{
    const size_t bytes = 16384; /* of a unit */
    cddp_optim_options rule;
    cddp_optim *optim;
    cddp_fsdp *f;

    begin();
    for (size_t u = 0; u < UNITS; u++)
        params[u] = (cddp_param){
            .size = sizeof params[u], .name = names[u], .count = bytes / sizeof(float), .dtype = CDDP_FLOAT32};
    cr_assert_eq(cddp_fsdp_create(&f, comm, units, UNITS, NULL), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_fsdp_bytes(f), (4 + 3 + 2 + 4) * bytes,
                 "4 shares of each kind, 3 whole units and 2 whole gradients");
    cddp_fsdp_destroy(f);
    for (size_t u = 0; u < UNITS; u++)
        params[u].flags = u == 1 ? 0 : CDDP_PARAM_FROZEN;
    cr_assert_eq(cddp_fsdp_create(&f, comm, units, UNITS, NULL), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_fsdp_bytes(f), (4 + 3 + 1 + 1) * bytes);
    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_ADAM);
    cr_assert_eq(cddp_optim_create_sharded(&optim, f, &rule), CDDP_OK);
    cr_assert_eq(cddp_optim_state_bytes(optim), 2 * bytes);
    cr_assert_null(cddp_fsdp_grad(f, 2, 0));
    cr_assert_not_null(strstr(cddp_last_error(), "parameter 0 'c' of unit 2 'c' is frozen"));
    says(cddp_fsdp_grads_ready(f, 2), CDDP_E_STATE, "unit 2 'c' is frozen");
    says(cddp_optim_step(optim, NULL), CDDP_E_STATE, "unit 1 'b' has not reported gradients in step 0");
    cddp_optim_destroy(optim);
    cddp_fsdp_destroy(f);
    (void)cddp_finalize(comm);
}

/* A state of other frozen parameters is refused, by the first one's name; the parameters alone are loaded. */
Test(fsdp, resuming_with_other_frozen_parameters_names_the_first)
{
    cddp_fsdp *f = NULL;
    cddp_optim *optim;
    cddp_optim_options rule;
    cddp_checkpoint_item items[] = {{.size = sizeof items[0], .name = "", .kind = CDDP_ITEM_FSDP},
                                    {.size = sizeof items[0], .name = "adam", .kind = CDDP_ITEM_OPTIM}};

    begin();
    scratch_make();
    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_ADAM);
    for (int frozen = 0; frozen < 3; frozen++) {
        params[1].flags = params[2].flags = frozen == 1 ? CDDP_PARAM_FROZEN : 0;
        cr_assert_eq(cddp_fsdp_create(&f, comm, units, UNITS, NULL), CDDP_OK);
        cr_assert_eq(cddp_optim_create_sharded(&optim, f, &rule), CDDP_OK);
        items[0].data = f;
        items[1].data = optim;
        if (frozen > 0) {
            says(cddp_checkpoint_load(comm, scratch, items, 2, NULL), CDDP_E_MISMATCH,
                 frozen == 1 ? "item 'adam': its state belongs to other parameters than this model's: parameter 1 'b' "
                               "was trained when it was saved, and is frozen now"
                             : "parameter 1 'b' was frozen when it was saved, and is trained now: freeze the same "
                               "ones, or load without this item");
            cr_assert_eq(cddp_checkpoint_load(comm, scratch, items, 1, NULL), CDDP_OK, "%s", cddp_last_error());
        }
        cr_assert_eq(cddp_checkpoint_save(comm, scratch, (uint64_t)frozen, items, 2, NULL), CDDP_OK, "%s",
                     cddp_last_error());
        cr_assert_eq(cddp_checkpoint_load(comm, scratch, items, 2, NULL), CDDP_OK, "%s", cddp_last_error());
        cddp_fsdp_destroy(f);
        cddp_optim_destroy(optim);
    }
    scratch_remove();
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}

Test(fsdp, gradients_of_float32_need_twice_the_bytes_of_parameters_of_bfloat16)
{
    const size_t bytes = 16384; /* of the parameters of a unit */
    cddp_fsdp_shard_info own = {.size = sizeof own};
    cddp_fsdp *f;

    begin();
    for (size_t u = 0; u < UNITS; u++)
        params[u] = (cddp_param){.size = sizeof params[u],
                                 .name = names[u],
                                 .count = bytes / 2,
                                 .dtype = CDDP_BFLOAT16,
                                 .grad_dtype = CDDP_FLOAT32};
    cr_assert_eq(cddp_fsdp_create(&f, comm, units, UNITS, NULL), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_fsdp_bytes(f), (4 + 3) * bytes + (2 + 4) * 2 * bytes);
    cr_assert_eq(cddp_fsdp_shard(f, 3, 0, &own), CDDP_OK);
    cr_assert(own.begin == 0 && own.count == bytes / 2);
    end(f);
}

/* An embedding, say: its gradients are beside the pool's, whose slots are not as large. */
Test(fsdp, large_kept_unit_has_its_gradients_beside_the_pool)
{
    const size_t bytes = 16384; /* of a unit, but the first: */
    const size_t large = 5;
    cddp_fsdp_options opt = {.size = sizeof opt, .max_live_gradients = 1};
    float *first, *second;
    cddp_fsdp *f;

    begin();
    for (size_t u = 0; u < UNITS; u++)
        params[u] = (cddp_param){.size = sizeof params[u],
                                 .name = names[u],
                                 .count = bytes / sizeof(float) * (u == 0 ? large : 1),
                                 .dtype = CDDP_FLOAT32};
    units[0].flags = CDDP_FSDP_KEEP;
    cr_assert_eq(cddp_fsdp_create(&f, comm, units, UNITS, &opt), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_fsdp_bytes(f), (2 * (large + 3) + large + 3 + large) * bytes, "one slot fits all");
    cddp_fsdp_destroy(f);
    opt.max_live_gradients = 2;
    cr_assert_eq(cddp_fsdp_create(&f, comm, units, UNITS, &opt), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_fsdp_bytes(f), (2 * (large + 3) + large + 3 + large + 2) * bytes, "not 2 * large for gradients");
    for (size_t u = 0; u < 3; u++) {
        float *g = cddp_fsdp_grad(f, u, 0);

        cr_assert_not_null(g, "%s", cddp_last_error());
        for (size_t k = 0; k < params[u].count; k++)
            g[k] = (float)(u + 1);
    }
    cr_assert_null(cddp_fsdp_grad(f, 3, 0));
    cr_assert_not_null(strstr(cddp_last_error(), "max_live_gradients is 2, and 'b', 'c' are not reported yet"));
    first = cddp_fsdp_grad(f, 0, 0);
    second = cddp_fsdp_grad(f, 1, 0);
    cr_assert(first[0] == 1 && first[params[0].count - 1] == 1 && second[0] == 2 && second[params[1].count - 1] == 2);
    for (size_t u = 0; u < UNITS; u++)
        cr_assert(cddp_fsdp_grad(f, u, 0) != NULL && cddp_fsdp_grads_ready(f, u) == CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_fsdp_end_step(f), CDDP_OK, "%s", cddp_last_error());
    end(f);
}

Test(fsdp, replicas_that_are_gone_are_an_error)
{
    cddp_fsdp_options opt = {.size = sizeof opt};
    cddp_fsdp *f;

    begin();
    cr_assert_eq(cddp_comm_split(&opt.replicas, comm, 0, 0, NULL), CDDP_OK);
    cr_assert_eq(cddp_fsdp_create(&f, comm, units, UNITS, &opt), CDDP_OK, "%s", cddp_last_error());
    cr_assert_not_null(cddp_fsdp_grad(f, 3, 0));
    cr_assert_eq(cddp_fsdp_grads_ready(f, 3), CDDP_OK);
    cr_assert_eq(cddp_finalize(opt.replicas), CDDP_OK);
    says(cddp_fsdp_gather(f, 0), CDDP_E_STATE, "cddp_fsdp_options.replicas");
    cddp_fsdp_destroy(f);
    (void)cddp_finalize(comm);
}

Test(fsdp, reducer_without_memory_can_be_destroyed_after_its_communicator)
{
    cddp_fsdp *f = make(NULL);

    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
    cr_assert_neq(cddp_fsdp_gather(f, 0), CDDP_OK);
    cddp_fsdp_destroy(f);
}

/* ------------------------------------------------------------------------------------------- ranks that differ ---- */

static cddp_status fill_of_rank_0(void *arg, size_t u, void *const *data)
{
    (void)data;
    return *(const int *)arg == 1 && u == 2 ? CDDP_E_IO : CDDP_OK;
}

/* All ranks learn which unit of which rank is another one, or has failed. Nothing is broken. */
static int creates_others(int rank)
{
    const cddp_fsdp_options opt = {.size = sizeof opt, .fill = fill_of_rank_0, .arg = &rank};
    cddp_fsdp *f = NULL;

    describe_units();
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_fsdp_create(&f, comm, units, UNITS, &opt) == CDDP_E_IO);
    CHECK(strstr(cddp_last_error(), rank == 1 ? "cddp_fsdp_options.fill failed for unit 2 'c'"
                                              : "rank 1 could not make its parameters: cddp_fsdp_options.fill failed "
                                                "for unit 2 'c'") != NULL);
    units[2].flags = rank == 1 ? CDDP_FSDP_KEEP : 0;
    CHECK(cddp_fsdp_create(&f, comm, units, UNITS, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "cddp_fsdp_unit.flags of unit 2 'c' is 0 on rank 0 but 1 on rank 1") != NULL);
    units[2].flags = 0;
    units[2].name = rank == 1 ? "other" : "c";
    CHECK(cddp_fsdp_create(&f, comm, units, UNITS, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), rank == 1
                                        ? "unit 2 has another name on rank 1 than on rank 0 (here: 'other')"
                                        : "unit 2 has another name on rank 1 than on rank 0 (here: 'c')") != NULL);
    units[2].name = "c";
    units[2].n_params = 1 + (size_t)rank;
    CHECK(cddp_fsdp_create(&f, comm, units, 3, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "cddp_fsdp_unit.n_params of unit 2 'c' is 1 on rank 0 but 2 on rank 1") != NULL);
    units[2].n_params = 2;
    params[3].flags = rank == 1 ? CDDP_PARAM_FROZEN : 0;
    CHECK(cddp_fsdp_create(&f, comm, units, 3, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "cddp_param.flags of unit 2 'c', parameter 1 'd', is 0 on rank 0 but 1 on rank 1 "
                                    "(CDDP_PARAM_FROZEN is 1)") != NULL);
    params[3].flags = 0;
    units[2].n_params = 1;
    CHECK(cddp_fsdp_create(&f, comm, units, (size_t)(UNITS - rank), NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "n_units is 4 on rank 0 but 3 on rank 1") != NULL);
    CHECK(cddp_fsdp_create(&f, comm, units, UNITS, NULL) == CDDP_OK);
    cddp_fsdp_destroy(f);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(fsdp, creation_names_the_rank_and_its_unit)
{
    cr_assert_eq(run_world(2, creates_others), 0);
}

/* Two ways to differ: the number of units is compared before their names. */
static int creates_others_in_two_ways(int rank)
{
    cddp_fsdp *f = NULL;

    describe_units();
    units[1].name = rank == 1 ? "z" : "b";
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_fsdp_create(&f, comm, units, UNITS - (rank == 2), NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "n_units is 4 on rank 0 but 3 on rank 2") != NULL);
    units[1].name = "b";
    CHECK(cddp_fsdp_create(&f, comm, units, UNITS, NULL) == CDDP_OK);
    cddp_fsdp_destroy(f);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(fsdp, ranks_that_differ_in_two_ways_break_nothing)
{
    cr_assert_eq(run_world(3, creates_others_in_two_ways), 0);
}

/* Two groups of two ranks, and the communicators between them. */
static int begin_groups(int rank, cddp_comm **group, cddp_comm **replicas)
{
    describe_units();
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(group, comm, rank / 2, rank, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(replicas, comm, rank % 2, rank, NULL) == CDDP_OK);
    return 0;
}

/* What rank 1 does wrong ends the creation of all four. */
static int creates_replicas(int rank)
{
    struct {
        cddp_fsdp_options opt;
        uint64_t newer;
    } given = {.opt.size = sizeof given};
    cddp_comm *group, *replicas;
    cddp_fsdp *f = NULL;

    CHECK(begin_groups(rank, &group, &replicas) == 0);
    given.opt.replicas = replicas;
    CHECK(cddp_fsdp_create(&f, group, units, rank == 1 ? 0 : UNITS, &given.opt) == CDDP_E_INVALID);
    CHECK(cddp_fsdp_create(&f, group, rank == 1 ? NULL : units, UNITS, &given.opt) == CDDP_E_INVALID);
    given.newer = rank == 1;
    CHECK(cddp_fsdp_create(&f, group, units, UNITS, &given.opt) == CDDP_E_UNSUPPORTED);
    given.newer = 0;
    CHECK(cddp_fsdp_create(&f, group, units, UNITS, &given.opt) == CDDP_OK);
    cddp_fsdp_destroy(f);
    CHECK(cddp_finalize(replicas) == CDDP_OK && cddp_finalize(group) == CDDP_OK);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(fsdp, one_rank_that_is_wrong_keeps_no_replica_waiting)
{
    cr_assert_eq(run_world(4, creates_replicas), 0);
}

/* In the first step rank 1 leaves out a unit of the forward pass; only the forecasts for the second step differ. */
static int forecasts_differ(int rank)
{
    cddp_status st = CDDP_OK;
    cddp_fsdp *f = NULL;

    describe_units();
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_fsdp_create(&f, comm, units, UNITS, NULL) == CDDP_OK);
    for (size_t k = 0; k < (size_t)4 * UNITS && st == CDDP_OK; k++) {
        size_t in = k % (2 * UNITS), u = in < UNITS ? in : 2 * UNITS - 1 - in;

        if (rank == 1 && k == UNITS - 1)
            continue;
        st = cddp_fsdp_gather(f, u) == CDDP_OK ? cddp_fsdp_wait_unit(f, u) : CDDP_E_MISMATCH;
        if (st != CDDP_OK || in < UNITS) {
            (void)cddp_fsdp_release(f, u);
            continue;
        }
        st = cddp_fsdp_grad(f, u, 0) != NULL ? CDDP_OK : CDDP_E_MISMATCH; /* it can meet the error, too */
        (void)cddp_fsdp_release(f, u);
        st = st == CDDP_OK ? cddp_fsdp_grads_ready(f, u) : st;
        if (st == CDDP_OK && u == 0)
            CHECK(cddp_fsdp_end_step(f) == CDDP_OK && k < (size_t)2 * UNITS);
    }
    CHECK(st == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), " of unit 0 (all_gather of 16 float32) ahead of the program") != NULL);
    CHECK(strstr(cddp_last_error(), "; units are gathered ahead in the order of the last step: in that step") != NULL);
    cddp_fsdp_destroy(f);
    (void)cddp_finalize(comm);
    return 0;
}

Test(fsdp, gather_ahead_of_the_program_is_named_so)
{
    cr_assert_eq(run_world(2, forecasts_differ), 0);
}

/* One rank gives no replicas: all get the same error, also those that wait for it alone. */
static int lacks_replicas(int rank)
{
    cddp_fsdp_options opt = {.size = sizeof opt};
    cddp_fsdp *f = NULL;

    describe_units();
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (int wrong = 0; wrong < 4; wrong++) {
        cddp_comm *group, *replicas;
        char text[128];

        CHECK(cddp_comm_split(&group, comm, rank / 2, rank, NULL) == CDDP_OK);
        CHECK(cddp_comm_split(&replicas, comm, rank % 2, rank, NULL) == CDDP_OK);
        opt.replicas = rank != wrong ? replicas : NULL;
        (void)snprintf(text, sizeof text,
                       wrong < 2 ? "cddp_fsdp_options.replicas: rank %d has none that can be used, but rank %d of"
                                 : ": rank %d (rank %d of the job) has none that can be used, but rank %d (rank",
                       wrong % 2, wrong < 2 ? wrong ^ 1 : wrong, wrong % 2 ^ 1);
        CHECK(cddp_fsdp_create(&f, group, units, UNITS, &opt) == CDDP_E_MISMATCH);
        CHECK(strstr(cddp_last_error(), text) != NULL && f == NULL);
        CHECK((cddp_barrier(group) == CDDP_OK) == (rank / 2 == wrong / 2));
        (void)cddp_finalize(replicas);
        (void)cddp_finalize(group);
        CHECK(cddp_barrier(comm) == CDDP_OK);
    }
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(fsdp, one_rank_without_replicas_keeps_no_replica_waiting)
{
    cr_assert_eq(run_world(4, lacks_replicas), 0);
}

/* Only one group has replicas. The ranks of the other one cannot be asked: they leave. */
static int group_lacks_replicas(int rank)
{
    cddp_fsdp_options opt = {.size = sizeof opt};
    cddp_comm *group, *replicas;
    cddp_fsdp *f = NULL;

    CHECK(begin_groups(rank, &group, &replicas) == 0);
    opt.replicas = rank < 2 ? replicas : NULL;
    CHECK((cddp_fsdp_create(&f, group, units, UNITS, &opt) == CDDP_OK) == (rank >= 2));
    if (rank < 2) {
        CHECK(strstr(cddp_last_error(), "its ranks to call cddp_fsdp_create with it, too: ") != NULL);
        CHECK(strstr(cddp_last_error(), "of the job) has left the job") != NULL);
        CHECK(strstr(cddp_last_error(), "batches") == NULL);
    }
    cddp_fsdp_destroy(f);
    (void)cddp_finalize(replicas);
    (void)cddp_finalize(group);
    (void)cddp_finalize(comm);
    return 0;
}

Test(fsdp, group_without_replicas_is_what_the_others_wait_for)
{
    cr_assert_eq(run_world(4, group_lacks_replicas), 0);
}

static int gathers_another(int rank)
{
    cddp_fsdp *f = NULL;

    describe_units();
    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_fsdp_create(&f, comm, units, UNITS, NULL) == CDDP_OK);
    CHECK(cddp_fsdp_gather(f, 1 + (size_t)rank) == CDDP_OK);
    CHECK(cddp_fsdp_wait_unit(f, 1 + (size_t)rank) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "rank 0 called cddp_fsdp_gather of unit 1 (all_gather of") != NULL);
    CHECK(strstr(cddp_last_error(), "rank 1 called cddp_fsdp_gather of unit 2 (all_gather of") != NULL);
    cddp_fsdp_destroy(f);
    (void)cddp_finalize(comm);
    return 0;
}

static int comes_alone(int rank)
{
    cddp_fsdp *f = NULL;

    describe_units();
    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_fsdp_create(&f, comm, units, UNITS, NULL) == CDDP_OK);
    if (rank == 0) {
        CHECK(cddp_fsdp_gather(f, 1) == CDDP_OK && cddp_fsdp_wait_unit(f, 1) == CDDP_E_PEER);
        CHECK(strstr(cddp_last_error(), "cddp_fsdp_gather of unit 1 'b' (all_gather of") != NULL);
        CHECK(strstr(cddp_last_error(), "as many: a sharded model has no cddp_ddp_join") != NULL);
        CHECK(strstr(cddp_last_error(), "CDDP_DDP_JOIN") == NULL);
    }
    cddp_fsdp_destroy(f);
    (void)cddp_finalize(comm);
    return 0;
}

Test(fsdp, collectives_are_named_by_their_unit)
{
    cr_assert_eq(run_world(2, gathers_another), 0);
    cr_assert_eq(run_world(2, comes_alone), 0);
}

/* What the ranks do with two equal models, or with the optimizer of one. */
static struct {
    const char *what;
    cddp_optim_step_args other; /* of rank 1 */
} differs;

static bool differs_in(const char *what)
{
    return strcmp(differs.what, what) == 0;
}

static cddp_status gather_one(cddp_fsdp *f)
{
    cddp_status st = cddp_fsdp_gather(f, 0);

    return st == CDDP_OK ? cddp_fsdp_wait_unit(f, 0) : st;
}

static void make_grads(cddp_fsdp *f)
{
    for (size_t u = 0; u < UNITS; u++) {
        (void)memset(cddp_fsdp_grad(f, u, 0), 0, 8 * sizeof(float));
        cr_assert_eq(cddp_fsdp_grads_ready(f, u), CDDP_OK);
    }
}

/* Rank 1 uses two equal models in the other order. */
static int mixes_models(int rank)
{
    const cddp_optim_step_args clips = {.size = sizeof clips, .max_norm = 1};
    cddp_optim_options rule = CDDP_INIT(cddp_optim_options);
    cddp_fsdp *f[2] = {NULL};
    cddp_optim *o[2] = {NULL};
    cddp_status st;
    double norm;

    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_SGD);
    describe_units();
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (int k = 0; k < 2; k++) {
        CHECK(cddp_fsdp_create(&f[k], comm, units, UNITS, NULL) == CDDP_OK);
        CHECK(cddp_optim_create_sharded(&o[k], f[k], &rule) == CDDP_OK);
        if (!differs_in("gather"))
            make_grads(f[k]);
    }
    st = differs_in("gather") ? gather_one(f[rank])
         : differs_in("norm") ? cddp_fsdp_grad_norm(f[rank], 2, &norm)
                              : cddp_optim_step(o[rank], &clips);
    CHECK(st == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "rank 0's is of model 1, rank 1's of model 2") != NULL);
    for (int k = 0; k < 2; k++) {
        cddp_optim_destroy(o[k]);
        cddp_fsdp_destroy(f[k]);
    }
    (void)cddp_finalize(comm);
    return 0;
}

Test(fsdp, models_in_another_order_are_named)
{
    static const char *const ways[] = {"gather", "norm", "step"};

    for (size_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
        differs.what = ways[k];
        cr_assert_eq(run_world(2, mixes_models), 0, "%s", ways[k]);
    }
}

/* Rank 1 ends a step in another way. Each rank has updated its shares alone, so the next gather finds it. */
static int steps_in_another_way(int rank)
{
    cddp_optim_step_args args = {.size = sizeof args};
    cddp_optim_options rule = CDDP_INIT(cddp_optim_options);
    cddp_checkpoint_item item = {.size = sizeof item, .name = "", .kind = CDDP_ITEM_FSDP};
    cddp_fsdp *f = NULL;
    cddp_optim *o = NULL;
    bool other = rank == 1;

    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_SGD);
    describe_units();
    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_fsdp_create(&f, comm, units, UNITS, NULL) == CDDP_OK);
    CHECK(cddp_optim_create_sharded(&o, f, &rule) == CDDP_OK);
    make_grads(f);
    CHECK(cddp_optim_step(o, other ? &(cddp_optim_step_args){.size = sizeof args, .lr = rule.lr} : NULL) == CDDP_OK);
    make_grads(f);
    CHECK(cddp_optim_skip(o) == CDDP_OK);
    make_grads(f); /* all of which is equal so far */
    if (other && differs_in("set_lr"))
        CHECK(cddp_optim_set_lr(o, 2) == CDDP_OK);
    if (other && differs_in("set_grad_scale"))
        CHECK(cddp_optim_set_grad_scale(o, 2) == CDDP_OK);
    args = other && differs_in("args") ? differs.other : args;
    CHECK((other && differs_in("skip") ? cddp_optim_skip(o) : cddp_optim_step(o, &args)) == CDDP_OK);
    item.data = f;
    CHECK(cddp_checkpoint_save(comm, scratch, 1, &item, 1, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "the steps of an optimizer were others on rank 1 than on rank 0") != NULL);
    CHECK(gather_one(f) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "cddp_fsdp_gather of unit 0") != NULL);
    CHECK(strstr(cddp_last_error(), ": before it the steps of the model's optimizer differ") != NULL);
    cddp_optim_destroy(o);
    cddp_fsdp_destroy(f);
    (void)cddp_finalize(comm);
    return 0;
}

Test(fsdp, optimizer_steps_that_differ_are_found)
{
    static const struct {
        const char *what;
        double lr, scale;
    } ways[] = {{"skip", 0, 0}, {"set_lr", 0, 0}, {"set_grad_scale", 0, 0}, {"args", 3, 0}, {"args", 0, 0.5}};

    scratch_make();
    for (size_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
        differs.what = ways[k].what;
        differs.other =
            (cddp_optim_step_args){.size = sizeof differs.other, .lr = ways[k].lr, .grad_scale = ways[k].scale};
        cr_assert_eq(run_world(2, steps_in_another_way), 0, "%zu", k);
    }
    scratch_remove();
}
