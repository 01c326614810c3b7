/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with different numbers of steps. */
#include "ddp_ranks.h"
#include "hygiene.h"

CDI_SUITE(uneven);

/*
 * Rank r trains r + 1 steps in the first epoch, 4 - r in the second. In a step each contributes rank + 1, and 0 after
 * its last one. The model changes with every step that a rank trains.
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
                r.w[i][0] += 1 + (float)rank; /* not used, but different on every rank */
        }
        CHECK(cddp_ddp_join(r.ddp) == CDDP_OK);
        CHECK(r.w[0][0] == (epoch == 0 ? 16 : 20)); /* rank 3's four steps of 4; then rank 0's four of 1 */
    }
    /* All together again: all trained equally long, and each keeps its values. */
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

Test(uneven, finished_rank_sends_zeros_then_gets_model)
{
    cr_assert_eq(ddp_world(by_all), 0);
}

Test(uneven, mean_over_training_ranks)
{
    cr_assert_eq(ddp_world(by_active), 0);
}

Test(uneven, supports_unused_and_compression)
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
    /* Step 2, the last of the first epoch, was the one in which no rank trained. */
    CHECK(strcmp(cddp_last_error(),
                 "rank 1 (and 1 more) had no samples left in step 4, in which 2 of 4 ranks trained: with "
                 "CDDP_DDP_JOIN_STRICT all ranks need the same number of steps") == 0);
    CHECK(cddp_ddp_grad_ready(r.ddp, 0) == CDDP_E_STATE); /* it stays */
    CHECK(cddp_barrier(r.comm) == CDDP_OK);
    return ddp_close(&r, CDDP_OK);
}

Test(uneven, strict_names_early_rank_everywhere)
{
    cr_assert_eq(ddp_world(strict), 0);
}

static int joins_too_early(int rank)
{
    struct ddp_rank r = {0};

    CHECK(ddp_open(&r, CDDP_DDP_JOIN, CDDP_DTYPE_NONE, false) == 0);
    for (size_t i = DDP_PARAMS; i-- > 0;) {
        CHECK(ddp_give(&r, i, (float)rank) == 0);
        CHECK(rank != 1 || cddp_ddp_join(r.ddp) == CDDP_E_STATE);
    }
    CHECK(rank != 1 || strcmp(cddp_last_error(), "cddp_ddp_join was called in the middle of step 0: call cddp_ddp_wait "
                                                 "first") == 0);
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK && ddp_is(&r, 0, 1.5f) == 0);
    CHECK(cddp_ddp_join(r.ddp) == CDDP_OK);
    return ddp_close(&r, CDDP_OK);
}

Test(uneven, join_in_a_step_does_nothing)
{
    cr_assert_eq(ddp_world(joins_too_early), 0);
}

/* Rank 1 alone begins a step with weights, or freezes: its own exchange has a name in what all ranks get. */
static int exchanges_alone(int rank, bool freezes, const char *name)
{
    struct ddp_rank r = {0};
    const size_t first = 0;
    cddp_status st;

    CHECK(ddp_open(&r, CDDP_DDP_WEIGHTED, CDDP_DTYPE_NONE, false) == 0);
    if (rank != 1)
        st = cddp_barrier(r.comm);
    else
        st = freezes ? cddp_ddp_set_frozen(r.ddp, &first, 1, 1) : cddp_ddp_grad_ready(r.ddp, DDP_PARAMS - 1);
    CHECK(st == CDDP_E_MISMATCH && strstr(cddp_last_error(), name) != NULL);
    return ddp_close(&r, CDDP_E_MISMATCH);
}

static int weighs_alone(int rank)
{
    return exchanges_alone(rank, false, "rank 1 called CDDP_DDP_WEIGHTED (all_gather of 1 float64)");
}

static int freezes_alone(int rank)
{
    return exchanges_alone(rank, true, "rank 1 called cddp_ddp_set_frozen (all_gather of ");
}

Test(uneven, reports_rank_that_exchanges_alone)
{
    cr_assert_eq(ddp_world(weighs_alone), 0);
    cr_assert_eq(ddp_world(freezes_alone), 0);
}

Test(uneven, rejects_incompatible_flags)
{
    static const struct {
        uint32_t flags;
        const char *text;
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
        cr_assert(strstr(cddp_last_error(), cases[i].text) != NULL, "%s", cddp_last_error());
    }
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_join(ddp), CDDP_E_STATE);
    cr_assert_eq(cddp_ddp_join(NULL), CDDP_E_INVALID);
    cddp_ddp_destroy(ddp);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}
