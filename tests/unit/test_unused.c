/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that do not come in a step. */
#include "ddp_ranks.h"
#include "hygiene.h"

CDI_SUITE(unused, .timeout = 60);

static int some_and_none(int rank, bool own)
{
    struct ddp_rank r = {0};

    CHECK(ddp_open(&r, CDDP_DDP_FIND_UNUSED, CDDP_DTYPE_NONE, own) == 0);
    /* All come. */
    for (size_t i = DDP_PARAMS; i-- > 0;)
        CHECK(ddp_give(&r, i, (float)(rank + 10 * (int)i)) == 0);
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
    for (size_t i = 0; i < DDP_PARAMS; i++)
        CHECK(ddp_is(&r, i, 1.5f + 10.0f * (float)i) == 0);
    for (int step = 0; step < 3; step++) {
        /* The third everywhere, the second on ranks 1 and 3, the first nowhere. */
        CHECK(ddp_give(&r, 2, 4.0f) == 0);
        if (rank % 2 == 1)
            CHECK(ddp_give(&r, 1, (float)(8 * rank)) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        CHECK(ddp_is(&r, 2, 4.0f) == 0);
        CHECK(ddp_is(&r, 1, 8.0f) == 0); /* (8 + 24) / 4: the others gave zeros */
        CHECK(ddp_is(&r, 0, 1.5f) == 0); /* as it was */
    }
    /* Nothing at all comes. */
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
    CHECK(ddp_is(&r, 2, 4.0f) == 0 && ddp_is(&r, 1, 8.0f) == 0 && ddp_is(&r, 0, 1.5f) == 0);
    return ddp_close(&r, CDDP_OK);
}

static int in_arena(int rank)
{
    return some_and_none(rank, false);
}

static int in_own_memory(int rank)
{
    return some_and_none(rank, true);
}

Test(unused, what_no_rank_used_stays_and_what_some_used_is_the_mean_with_zeros)
{
    cr_assert_eq(ddp_world(in_arena), 0);
}

Test(unused, so_it_is_with_gradients_in_the_users_memory)
{
    cr_assert_eq(ddp_world(in_own_memory), 0);
}

static int without_the_flag(int rank)
{
    struct ddp_rank r = {0};
    cddp_status st;

    CHECK(ddp_open(&r, 0, CDDP_DTYPE_NONE, false) == 0);
    /* A peer may be told of rank 1 in any of these, and is in the last. */
    (void)cddp_ddp_grad_ready(r.ddp, 2);
    (void)cddp_ddp_grad_ready(r.ddp, 0);
    if (rank != 1)
        (void)cddp_ddp_grad_ready(r.ddp, 1);
    st = cddp_ddp_wait(r.ddp);
    CHECK(st == (rank == 1 ? CDDP_E_STATE : CDDP_E_ABORTED));
    CHECK(strstr(cddp_last_error(), "'second'") != NULL);
    return ddp_close(&r, CDDP_E_ABORTED);
}

Test(unused, without_the_flag_it_is_an_error_that_names_the_parameter_on_every_rank)
{
    cr_assert_eq(ddp_world(without_the_flag), 0);
}

/* The third comes twice, the second on even ranks, the first nowhere. */
static int one_static_step(struct ddp_rank *r, int rank, float x)
{
    CHECK(ddp_give(r, 2, -1.0f) == 0); /* not complete yet */
    CHECK(ddp_give(r, 2, x) == 0);
    if (rank % 2 == 0)
        CHECK(ddp_give(r, 1, 2 * x) == 0);
    return 0;
}

static int static_graph(int rank)
{
    struct ddp_rank r = {0};

    CHECK(ddp_open(&r, CDDP_DDP_STATIC_GRAPH, CDDP_DTYPE_NONE, true) == 0);
    for (int k = 0; k < DDP_COUNT; k++)
        ((float *)cddp_ddp_grad(r.ddp, 0))[k] = 7;
    for (int step = 1; step <= 4; step++) {
        CHECK(one_static_step(&r, rank, (float)step) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        CHECK(ddp_is(&r, 2, (float)step) == 0 && ddp_is(&r, 1, (float)step) == 0 && ddp_is(&r, 0, 7) == 0);
    }
    return ddp_close(&r, CDDP_OK);
}

Test(unused, a_static_graph_learns_from_its_first_step_what_comes_and_how_often)
{
    cr_assert_eq(ddp_world(static_graph), 0);
}

static int changed(int rank, const char *how)
{
    struct ddp_rank r = {0};
    cddp_status st = CDDP_OK;

    CHECK(ddp_open(&r, CDDP_DDP_STATIC_GRAPH, CDDP_DTYPE_NONE, false) == 0);
    CHECK(one_static_step(&r, rank, 1) == 0);
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
    /* A peer may be told of rank 0 in any of these, and is in the last. */
    for (int k = 0; k < (strstr(how, "less") == NULL ? 2 : 1); k++)
        (void)cddp_ddp_grad_ready(r.ddp, 2);
    if (rank % 2 == 0)
        (void)cddp_ddp_grad_ready(r.ddp, 1);
    if (rank == 0 && strstr(how, "which it did not") != NULL)
        st = cddp_ddp_grad_ready(r.ddp, 0);
    if (rank == 0 && strstr(how, "came more often") != NULL)
        st = cddp_ddp_grad_ready(r.ddp, 2);
    CHECK(cddp_ddp_wait(r.ddp) != CDDP_OK);
    if (rank == 0) {
        CHECK(st == (strstr(how, "less") == NULL ? CDDP_E_STATE : CDDP_OK));
        CHECK(strstr(cddp_last_error(), "the graph has changed: in step 1 the gradient of parameter") != NULL);
        CHECK(strstr(cddp_last_error(), how) != NULL);
    }
    return ddp_close(&r, CDDP_E_ABORTED);
}

static int more(int rank)
{
    return changed(rank, "0 'first' came, which it did not in the first");
}

static int oftener(int rank)
{
    return changed(rank, "2 'third' came more often");
}

static int less(int rank)
{
    return changed(rank, "2 'third' came less often");
}

Test(unused, a_graph_that_changes_is_an_error_that_says_how)
{
    cr_assert_eq(ddp_world(more), 0);
    cr_assert_eq(ddp_world(oftener), 0);
    cr_assert_eq(ddp_world(less), 0);
}
