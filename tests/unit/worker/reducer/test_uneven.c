/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with different numbers of steps. */
#include "ddp_ranks.h"
#include "hygiene.h"

CDI_SUITE(uneven, .timeout = 60);

/*
 * Rank r trains r + 1 steps in the first epoch, 4 - r in the second. In a step each gives rank + 1; who is through, 0.
 * The model moves with every step that a rank trains.
 */
static int two_epochs(int rank, uint32_t flags, cddp_dtype comm_dtype, bool own)
{
    struct ddp_rank r = {0};

    CHECK(ddp_open(&r, CDDP_DDP_JOIN | flags, comm_dtype, own) == 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        int steps = epoch == 0 ? rank + 1 : DDP_RANKS - rank;

        for (int step = 0; step < steps; step++) {
            float sum = 0, active = 0;

            for (int q = 0; q < DDP_RANKS; q++) {
                bool trains = step < (epoch == 0 ? q + 1 : DDP_RANKS - q);

                sum += trains ? (float)(q + 1) : 0;
                active += trains ? 1 : 0;
            }
            for (size_t i = DDP_PARAMS; i-- > 0;)
                if ((flags & CDDP_DDP_FIND_UNUSED) == 0 || i > 0)
                    CHECK(ddp_give(&r, i, 12.0f * (float)(rank + 1)) == 0);
            CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
            for (size_t i = 1; i < DDP_PARAMS; i++)
                CHECK(ddp_is(&r, i, 12.0f * sum / ((flags & CDDP_DDP_JOIN_ACTIVE) != 0 ? active : DDP_RANKS)) == 0);
            for (int i = 0; i < DDP_PARAMS; i++)
                r.w[i][0] += 1 + (float)rank; /* of no use, but different on every rank */
        }
        CHECK(cddp_ddp_join(r.ddp) == CDDP_OK);
        CHECK(r.w[0][0] == (epoch == 0 ? 16 : 20)); /* rank 3's four steps of 4; then rank 0's four of 1 */
    }
    /* All together again: nobody trained longer, and each keeps what it has. */
    r.w[0][0] = (float)rank;
    for (size_t i = DDP_PARAMS; i-- > 0;)
        CHECK(ddp_give(&r, i, 1) == 0);
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK && ddp_is(&r, 1, 1) == 0);
    CHECK(cddp_ddp_join(r.ddp) == CDDP_OK && r.w[0][0] == (float)rank);
    return ddp_close(&r, CDDP_OK);
}

static int by_all(int rank)
{
    return two_epochs(rank, 0, CDDP_DTYPE_NONE, false);
}

static int by_active(int rank)
{
    return two_epochs(rank, CDDP_DDP_JOIN_ACTIVE, CDDP_DTYPE_NONE, true);
}

static int with_unused(int rank)
{
    return two_epochs(rank, CDDP_DDP_FIND_UNUSED, CDDP_DTYPE_NONE, true);
}

static int compressed(int rank)
{
    return two_epochs(rank, CDDP_DDP_JOIN_ACTIVE, CDDP_FLOAT16, false);
}

Test(uneven, who_is_through_gives_zeros_until_all_are_and_then_takes_the_longest_trained_model)
{
    cr_assert_eq(ddp_world(by_all), 0);
}

Test(uneven, the_mean_can_be_that_over_the_ranks_that_train)
{
    cr_assert_eq(ddp_world(by_active), 0);
}

Test(uneven, unused_parameters_and_compression_go_with_it)
{
    cr_assert_eq(ddp_world(with_unused), 0);
    cr_assert_eq(ddp_world(compressed), 0);
}

/* In the first epoch all train two steps; in the second ranks 1 and 2 end after one. */
static int strict(int rank)
{
    struct ddp_rank r = {0};
    int steps = rank == 1 || rank == 2 ? 1 : 3;
    cddp_status st = CDDP_OK;

    CHECK(ddp_open(&r, CDDP_DDP_JOIN | CDDP_DDP_JOIN_STRICT, CDDP_DTYPE_NONE, false) == 0);
    for (int step = 0; step < 2; step++) {
        for (size_t i = DDP_PARAMS; i-- > 0;)
            CHECK(ddp_give(&r, i, (float)rank) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK && ddp_is(&r, 0, 1.5f) == 0);
    }
    CHECK(cddp_ddp_join(r.ddp) == CDDP_OK);
    for (int step = 0; step < steps && st == CDDP_OK; step++) {
        for (size_t i = DDP_PARAMS; i-- > 0;)
            CHECK(ddp_give(&r, i, (float)rank) == 0);
        st = cddp_ddp_wait(r.ddp);
        CHECK(st == (step == 0 ? CDDP_OK : CDDP_E_STATE));
    }
    if (st == CDDP_OK)
        CHECK(cddp_ddp_join(r.ddp) == CDDP_E_STATE);
    /* Step 2, the last of the first epoch, was that in which nobody trained. */
    CHECK(strcmp(cddp_last_error(),
                 "rank 1 (and 1 more) had no samples left in step 4, in which 2 of 4 ranks trained: with "
                 "CDDP_DDP_JOIN_STRICT all ranks need the same number of steps") == 0);
    CHECK(cddp_ddp_grad_ready(r.ddp, 0) == CDDP_E_STATE); /* it stays */
    CHECK(cddp_barrier(r.comm) == CDDP_OK);
    return ddp_close(&r, CDDP_OK);
}

Test(uneven, a_rank_that_ends_early_can_be_an_error_that_names_it_everywhere)
{
    cr_assert_eq(ddp_world(strict), 0);
}

Test(uneven, what_does_not_go_together_is_refused)
{
    static const struct {
        uint32_t flags;
        const char *says;
    } cases[] = {
        {CDDP_DDP_JOIN_ACTIVE, "CDDP_DDP_JOIN_ACTIVE needs CDDP_DDP_JOIN"},
        {CDDP_DDP_JOIN_STRICT, "CDDP_DDP_JOIN_STRICT needs CDDP_DDP_JOIN"},
        {CDDP_DDP_JOIN | CDDP_DDP_STATIC_GRAPH, "CDDP_DDP_STATIC_GRAPH cannot be combined with"},
        {CDDP_DDP_JOIN | CDDP_DDP_JOIN_ACTIVE | CDDP_DDP_SUM, "a sum (CDDP_DDP_SUM) has no divisor to adjust"},
    };
    float w[2];
    cddp_param p = {.size = sizeof(cddp_param), .name = "w", .data = w, .count = 2, .dtype = CDDP_FLOAT32};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_ddp_options opt = {.size = sizeof opt, .flags = cases[i].flags};

        cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, &opt), CDDP_E_INVALID);
        cr_assert(strstr(cddp_last_error(), cases[i].says) != NULL, "%s", cddp_last_error());
    }
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_join(ddp), CDDP_E_STATE);
    cr_assert_eq(cddp_ddp_join(NULL), CDDP_E_INVALID);
    cddp_ddp_destroy(ddp);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}
