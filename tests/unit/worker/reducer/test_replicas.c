/* SPDX-License-Identifier: Apache-2.0 */
/* CDDP_CHECK_REPLICAS, by four ranks as processes, on one node and on two. */
#include "ddp_ranks.h"
#include "hygiene.h"
#include "worker/reducer/replicas.h"

CDI_SUITE(replicas, .timeout = 120);

static void expect_name(const uint64_t *hash, const uint64_t *holds, int n, const char *want, int want_odd)
{
    struct cdi_replica of[64];
    char got[1000];
    int odd = -1;

    for (int r = 0; r < n; r++)
        of[r] = (struct cdi_replica){hash[r], holds != NULL ? holds[r] : 1};
    cr_assert_not(cdi_replicas_agree(of, n));
    cdi_replicas_name(of, n, NULL, got, sizeof got, &odd);
    cr_assert_str_eq(got, want);
    cr_assert_eq(odd, want_odd);
}

Test(replicas, names_ranks_that_differ_from_most)
{
    uint64_t many[64] = {0};

    expect_name((uint64_t[]){5, 5, 5, 6}, NULL, 4, "rank 3 has other values than ranks 0 to 2", 3);
    expect_name((uint64_t[]){6, 5, 5, 5}, NULL, 4, "rank 0 has other values than ranks 1 to 3", 0);
    expect_name((uint64_t[]){5, 6}, NULL, 2, "rank 1 has other values than rank 0", 1);
    expect_name((uint64_t[]){5, 6, 7, 5}, NULL, 4, "ranks 1, 2 have other values than ranks 0, 3", 1);
    expect_name((uint64_t[]){5, 6, 6, 5, 6}, NULL, 5, "ranks 0, 3 have other values than ranks 1, 2, 4", 0);
    expect_name((uint64_t[]){9, 5, 5, 6}, (uint64_t[]){0, 1, 1, 1}, 4, "rank 3 has other values than ranks 1, 2", 3);
    expect_name((uint64_t[]){5, 9, 6, 5}, (uint64_t[]){1, 0, 1, 1}, 4, "rank 2 has other values than ranks 0, 3", 2);
    for (int r = 0; r < 64; r++)
        many[r] = (uint64_t)r;
    expect_name(many, NULL, 64, "ranks 1 to 63 have other values than rank 0", 1);
}

Test(replicas, long_lists_end)
{
    static struct cdi_replica of[5000];
    char got[1000];
    int odd;

    for (int r = 0; r < 5000; r++)
        of[r] = (struct cdi_replica){(uint64_t)(r % 2), 1};
    cdi_replicas_name(of, 5000, NULL, got, sizeof got, &odd);
    cr_assert(strlen(got) < sizeof got - 1, "%s", got);
    cr_assert_eq(strncmp(got, "ranks 1, 3, 5, ", 15), 0, "%s", got);
    cr_assert_not_null(strstr(got, ", ... have other values than ranks 0, 2, "), "%s", got);
    cr_assert_str_eq(got + strlen(got) - 5, ", ...");
    cr_assert_eq(odd, 1);
}

Test(replicas, ranks_that_are_not_compared_agree)
{
    const struct cdi_replica none[2] = {{1, 0}, {2, 0}}, one[3] = {{1, 0}, {2, 1}, {3, 0}},
                             two[3] = {{1, 0}, {2, 1}, {2, 1}};

    cr_assert(cdi_replicas_agree(none, 2) && cdi_replicas_agree(one, 3) && cdi_replicas_agree(two, 3));
}

/* ------------------------------------------------------------------------------------------------ whole steps ---- */

static struct {
    const char *period;
    const char *want;
    int rank, param, at; /* whose bit is flipped after step `after` */
    unsigned bit;
    int after, found; /* found: the step whose end returns the error */
    uint32_t flags;
    bool two_nodes, optimizer, at_start;
} run;

static int train(int rank)
{
    const cddp_ddp_options opt = {.size = sizeof opt,
                                  .bucket_bytes = 64,
                                  .first_bucket_bytes = 64,
                                  .flags = run.flags | (run.at_start ? CDDP_DDP_NO_BROADCAST : 0)};
    const cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 0.5};
    struct ddp_rank r = {0};
    cddp_optim *optim = NULL;
    cddp_error_info info = {.size = sizeof info};
    uint32_t *word = (uint32_t *)(void *)&r.w[run.param][run.at];

    (void)setenv("CDDP_CHECK_REPLICAS", run.period, 1);
    if (run.two_nodes) {
        set_env("LOCAL_RANK", rank % 2);
        set_env("LOCAL_WORLD_SIZE", 2);
        set_env("GROUP_RANK", rank / 2);
        set_env("GROUP_WORLD_SIZE", 2);
    }
    if (run.at_start && rank == run.rank)
        *word ^= 1u << run.bit;
    CHECK(ddp_open_with(&r, &opt, false) == 0);
    if (run.optimizer)
        CHECK(cddp_optim_create(&optim, r.ddp, &sgd) == CDDP_OK);
    for (int step = 0; step <= run.found; step++) {
        cddp_status st;

        for (size_t i = DDP_PARAMS; i-- > 0;)
            CHECK(ddp_give(&r, i, (float)rank) == 0);
        st = run.optimizer ? cddp_optim_step(optim, NULL) : cddp_ddp_wait(r.ddp);
        CHECK(st == (run.want != NULL && step == run.found ? CDDP_E_MISMATCH : CDDP_OK));
        for (int k = 0; k < DDP_COUNT && !run.optimizer; k++)
            r.w[1][k] += 0.25f;
        if (step == run.after - 1 && rank == run.rank && !run.at_start)
            *word ^= 1u << run.bit;
    }
    if (run.want != NULL) {
        cddp_last_error_info(&info);
        CHECK(info.rank == run.rank);
        if (strcmp(info.message, run.want) != 0)
            fprintf(stderr, "rank %d: '%s'\n", rank, info.message);
        CHECK(strcmp(info.message, run.want) == 0);
    }
    CHECK(cddp_barrier(r.comm) == CDDP_OK); /* the communicator is usable */
    cddp_optim_destroy(optim);
    return ddp_close(&r, CDDP_OK);
}

static void expect(const char *want)
{
    run.want = want;
    if (run.period == NULL)
        run.period = "3";
    cr_assert_eq(ddp_world(train), 0, "%s", want != NULL ? want : "nothing");
}

Test(replicas, one_bit_is_named_at_next_check)
{
    run.rank = 3;
    run.param = 1;
    run.after = 4;
    run.found = 6;
    for (run.bit = 0; run.bit < 32; run.bit += 31)
        for (run.at = 0; run.at < DDP_COUNT; run.at += DDP_COUNT - 1)
            expect("after 6 steps: the parameter 'second' differs: rank 3 has other values than ranks 0 to 2; all were "
                   "equal after 3 steps");
}

Test(replicas, one_bit_is_named_on_two_nodes)
{
    run.rank = 0;
    run.param = 2;
    run.at = 50;
    run.after = 1;
    run.found = 3;
    run.two_nodes = true;
    expect("after 3 steps: the parameter 'third' differs: rank 0 has other values than ranks 1 to 3; all were equal "
           "after 0 steps");
}

Test(replicas, different_start_is_named_in_first_step)
{
    run.rank = 1;
    run.at_start = true;
    expect("after 0 steps: the parameter 'first' differs: rank 1 has other values than ranks 0, 2, 3");
}

Test(replicas, optimizer_keeps_replicas_equal)
{
    run.optimizer = true;
    run.found = 7;
    run.rank = -1;
    expect(NULL);
    run.rank = 2;
    run.param = 1;
    run.after = 6; /* earlier ones are overwritten by the exchange of new values */
    run.found = 6;
    expect("after 6 steps: the parameter 'second' differs: rank 2 has other values than ranks 0, 1, 3; all were equal "
           "after 3 steps");
}

Test(replicas, equal_parameters_pass)
{
    run.rank = -1;
    run.found = 7;
    for (int k = 0; k < 3; k++) {
        run.period = k == 0 ? "1" : k == 1 ? "2" : "0";
        expect(NULL);
    }
}

/* A rank that waits in cddp_ddp_join has old parameters, as it should. */
static int train_unevenly(int rank)
{
    struct ddp_rank r = {0};

    (void)setenv("CDDP_CHECK_REPLICAS", "1", 1);
    CHECK(ddp_open(&r, CDDP_DDP_JOIN, CDDP_DTYPE_NONE, false) == 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int step = 0; step < 4 + rank; step++) {
            for (size_t i = DDP_PARAMS; i-- > 0;)
                CHECK(ddp_give(&r, i, (float)rank) == 0);
            CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
            r.w[1][7] += 0.25f;
        }
        CHECK(cddp_ddp_join(r.ddp) == CDDP_OK);
    }
    return ddp_close(&r, CDDP_OK);
}

Test(replicas, ranks_without_samples_are_not_compared)
{
    cr_assert_eq(ddp_world(train_unevenly), 0);
}

static int differ(int rank)
{
    struct ddp_rank r = {0};
    cddp_param p = {.size = sizeof p, .name = "w", .data = r.w, .count = 4, .dtype = CDDP_FLOAT32};

    (void)setenv("CDDP_CHECK_REPLICAS", rank == 1 ? "10" : "20", 1);
    CHECK(cddp_init(&r.comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&r.ddp, r.comm, &p, 1, NULL) == CDDP_E_MISMATCH);
    CHECK(strcmp(cddp_last_error(),
                 "CDDP_CHECK_REPLICAS is 20 on rank 0 but 10 on rank 1: it must be the same on every rank") == 0);
    CHECK(cddp_finalize(r.comm) == CDDP_OK);
    return 0;
}

Test(replicas, ranks_must_have_the_same_period)
{
    cr_assert_eq(ddp_world(differ), 0);
}
