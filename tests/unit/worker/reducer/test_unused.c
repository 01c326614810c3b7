/* SPDX-License-Identifier: Apache-2.0 */
/* Missing gradients. */
#include "ddp_ranks.h"
#include "hygiene.h"

#include <jansson.h>

CDI_SUITE(unused);

/* A world's flags in addition to CDDP_DDP_FIND_UNUSED; inherited by the ranks. */
static struct {
    uint32_t flags;
    cddp_dtype comm_dtype;
} with;

static int some_and_none(int rank, bool own)
{
    struct ddp_rank r = {0};

    CHECK(ddp_open(&r, CDDP_DDP_FIND_UNUSED | with.flags, with.comm_dtype, own) == 0);
    /* All become ready. */
    for (size_t i = DDP_PARAMS; i-- > 0;)
        CHECK(ddp_give(&r, i, (float)(rank + 10 * (int)i)) == 0);
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
    for (size_t i = 0; i < DDP_PARAMS; i++)
        CHECK(ddp_is(&r, i, 1.5f + 10.0f * (float)i) == 0);
    for (int step = 0; step < 3; step++) {
        /* The third on all ranks, the second on ranks 1 and 3, the first on none. */
        CHECK(ddp_give(&r, 2, 4.0f) == 0);
        if (rank % 2 == 1)
            CHECK(ddp_give(&r, 1, (float)(8 * rank)) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        CHECK(ddp_is(&r, 2, 4.0f) == 0);
        CHECK(ddp_is(&r, 1, 8.0f) == 0); /* (8 + 24) / 4: the others contributed zeros */
        CHECK(ddp_is(&r, 0, 1.5f) == 0); /* unchanged */
    }
    /* No gradient becomes ready. */
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

Test(unused, unused_keeps_value_and_partly_used_is_mean)
{
    cr_assert_eq(ddp_world(in_arena), 0);
}

Test(unused, same_with_user_gradients)
{
    cr_assert_eq(ddp_world(in_own_memory), 0);
}

Test(unused, same_with_skipped_buckets)
{
    with.flags = CDDP_DDP_SKIP_UNUSED;
    cr_assert_eq(ddp_world(in_arena), 0);
    cr_assert_eq(ddp_world(in_own_memory), 0);
    with.comm_dtype = CDDP_BFLOAT16;
    cr_assert_eq(ddp_world(in_arena), 0);
    with.flags |= CDDP_DDP_SPLIT;
    cr_assert_eq(ddp_world(in_own_memory), 0);
}

/* Rank 0 trains longest; only rank 0 uses the second one, only at its end. */
static int skip_and_join(int rank)
{
    struct ddp_rank r = {0};
    int steps = 4 - rank;

    CHECK(ddp_open(&r, CDDP_DDP_FIND_UNUSED | CDDP_DDP_SKIP_UNUSED | CDDP_DDP_JOIN | CDDP_DDP_JOIN_ACTIVE,
                   CDDP_DTYPE_NONE, false) == 0);
    for (int k = 0; k < DDP_COUNT; k++)
        ((float *)cddp_ddp_grad(r.ddp, 1))[k] = 7;
    for (int step = 0; step < steps; step++) {
        CHECK(ddp_give(&r, 2, 3) == 0);
        if (step == 3)
            CHECK(ddp_give(&r, 1, 5) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        CHECK(ddp_is(&r, 2, 3) == 0 && ddp_is(&r, 1, step == 3 ? 5 : 7) == 0 && ddp_is(&r, 0, 0) == 0);
    }
    CHECK(cddp_ddp_join(r.ddp) == CDDP_OK);
    return ddp_close(&r, CDDP_OK);
}

Test(unused, skips_and_reuses_buckets_with_join)
{
    cr_assert_eq(ddp_world(skip_and_join), 0);
}

/* ------------------------------------------------------------------------------------------------ was_used ---- */

static int used_is(struct ddp_rank *r, int first, int second, int third)
{
    const int want[DDP_PARAMS] = {first, second, third};

    for (size_t i = 0; i < DDP_PARAMS; i++) {
        int used = -1;

        CHECK(cddp_ddp_was_used(r->ddp, i, &used) == CDDP_OK);
        if (used != want[i]) {
            fprintf(stderr, "parameter %zu has been used: %d, not %d\n", i, used, want[i]);
            return 1;
        }
    }
    return 0;
}

/* The question is refused, with these words, and breaks nothing. */
static int cannot_ask(struct ddp_rank *r, cddp_status st, const char *words)
{
    int used = 7;

    CHECK(cddp_ddp_was_used(r->ddp, 0, &used) == st && used == 7);
    CHECK(strstr(cddp_last_error(), words) != NULL);
    return 0;
}

/* Rank 2 alone uses the second one, in every second step, and nobody the first. */
static int ask(int rank)
{
    struct ddp_rank r = {0};
    int used = 7;

    CHECK(ddp_open(&r, CDDP_DDP_FIND_UNUSED | with.flags, CDDP_DTYPE_NONE, true) == 0);
    CHECK(cannot_ask(&r, CDDP_E_STATE, "before a step has ended") == 0);
    for (int step = 0; step < 4; step++) {
        CHECK(ddp_give(&r, 2, 1) == 0);
        CHECK(cannot_ask(&r, CDDP_E_STATE, "in the middle of step") == 0);
        if (rank == 2 && step % 2 == 0)
            CHECK(ddp_give(&r, 1, 1) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        CHECK(used_is(&r, 0, step % 2 == 0, 1) == 0);
        CHECK(used_is(&r, 0, step % 2 == 0, 1) == 0); /* and again */
    }
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK && used_is(&r, 0, 0, 0) == 0);
    CHECK(cddp_ddp_was_used(r.ddp, DDP_PARAMS, &used) == CDDP_E_INVALID && used == 7);
    CHECK(cddp_ddp_was_used(r.ddp, 0, NULL) == CDDP_E_INVALID && cddp_ddp_was_used(NULL, 0, &used) == CDDP_E_INVALID);
    return ddp_close(&r, CDDP_OK);
}

Test(unused, ranks_hear_what_any_rank_used)
{
    cr_assert_eq(ddp_world(ask), 0);
    with.flags = CDDP_DDP_SKIP_UNUSED;
    cr_assert_eq(ddp_world(ask), 0);
    with.flags = CDDP_DDP_JOIN;
    cr_assert_eq(ddp_world(ask), 0);
}

static int ask_without(int rank)
{
    struct ddp_rank r = {0};

    CHECK(ddp_open(&r, with.flags, CDDP_DTYPE_NONE, false) == 0);
    CHECK(cannot_ask(&r, CDDP_E_STATE, "before a step has ended") == 0);
    for (size_t i = DDP_PARAMS; i-- > 0;)
        CHECK(ddp_give(&r, i, (float)rank) == 0);
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK && used_is(&r, 1, 1, 1) == 0);
    return ddp_close(&r, CDDP_OK);
}

Test(unused, all_are_used_without_the_flag)
{
    cr_assert_eq(ddp_world(ask_without), 0);
}

/* Rank r trains r + 1 steps; only the last rank uses the second one, in its last step. */
static int ask_uneven(int rank)
{
    struct ddp_rank r = {0};

    CHECK(ddp_open(&r, CDDP_DDP_FIND_UNUSED | CDDP_DDP_JOIN, CDDP_DTYPE_NONE, false) == 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int step = 0; step <= rank; step++) {
            CHECK(ddp_give(&r, 2, 1) == 0);
            if (step == DDP_RANKS - 1)
                CHECK(ddp_give(&r, 1, 1) == 0);
            CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK && used_is(&r, 0, step == DDP_RANKS - 1, 1) == 0);
        }
        CHECK(cddp_ddp_join(r.ddp) == CDDP_OK);
        CHECK(cannot_ask(&r, CDDP_E_STATE, "since cddp_ddp_join") == 0);
    }
    return ddp_close(&r, CDDP_OK);
}

Test(unused, ranks_with_fewer_samples_do_not_count)
{
    cr_assert_eq(ddp_world(ask_uneven), 0);
}

/* Even ranks alone use the second one; in later steps nothing is sent, and the answer is that of the first. */
static int ask_static(int rank)
{
    struct ddp_rank r = {0};

    CHECK(ddp_open(&r, CDDP_DDP_STATIC_GRAPH | with.flags, CDDP_DTYPE_NONE, false) == 0);
    for (int step = 0; step < 3; step++) {
        CHECK(ddp_give(&r, 2, 1) == 0);
        if (rank % 2 == 0)
            CHECK(ddp_give(&r, 1, 1) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK && used_is(&r, 0, 1, 1) == 0);
    }
    return ddp_close(&r, CDDP_OK);
}

Test(unused, static_graph_knows_what_was_used)
{
    cr_assert_eq(ddp_world(ask_static), 0);
    with.flags = CDDP_DDP_SKIP_UNUSED;
    cr_assert_eq(ddp_world(ask_static), 0);
}

/* ------------------------------------------------------------------------------------------------- PyTorch ---- */

#define TORCH_PARAMS 6
#define TORCH_COUNT 8

static const json_t *recorded;

static int as_torch(int rank)
{
    const json_t *counts = json_object_get(recorded, "sizes"), *one, *cases = json_object_get(recorded, "cases");
    double w[TORCH_PARAMS][TORCH_COUNT] = {{0}};
    cddp_comm *comm;
    size_t c, s;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && json_array_size(cases) == 2);
    json_array_foreach((json_t *)(uintptr_t)cases, c, one)
    {
        size_t cap = (size_t)json_integer_value(json_object_get(one, "cap"));
        cddp_ddp_options opt = {.size = sizeof opt,
                                .bucket_bytes = cap,
                                .first_bucket_bytes = cap,
                                .flags = CDDP_DDP_FIND_UNUSED | CDDP_DDP_SKIP_UNUSED};
        cddp_param p[TORCH_PARAMS];
        const json_t *step;
        cddp_ddp *ddp;

        for (size_t i = 0; i < TORCH_PARAMS; i++)
            p[i] = (cddp_param){.size = sizeof(cddp_param),
                                .name = "w",
                                .data = w[i],
                                .count = (size_t)json_integer_value(json_array_get(counts, i)),
                                .dtype = CDDP_FLOAT64};
        CHECK(cddp_ddp_create(&ddp, comm, p, TORCH_PARAMS, &opt) == CDDP_OK);
        json_array_foreach(json_object_get(one, "steps"), s, step)
        {
            const json_t *used = json_object_get(step, "used"), *grads = json_object_get(step, "grads");

            for (size_t at = json_array_size(used); at-- > 0;) {
                size_t i = (size_t)json_integer_value(json_array_get(used, at));
                double *g = cddp_ddp_grad(ddp, i);

                for (size_t k = 0; k < p[i].count; k++)
                    g[k] = (double)(((size_t)rank * 31 + s * 17 + i * 5 + k) % 23) / 7;
                CHECK(cddp_ddp_grad_ready(ddp, i) == CDDP_OK);
            }
            CHECK(cddp_ddp_wait(ddp) == CDDP_OK);
            for (size_t i = 0; i < TORCH_PARAMS; i++)
                for (size_t k = 0; k < p[i].count; k++) {
                    const char *want = json_string_value(json_array_get(json_array_get(grads, i), k));

                    CHECK(want != NULL && ((double *)cddp_ddp_grad(ddp, i))[k] == strtod(want, NULL));
                }
        }
        cddp_ddp_destroy(ddp);
    }
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(unused, skipping_matches_torch)
{
    json_t *all = json_load_file(CDI_TEST_DATA "/unused_vectors.json", 0, NULL);
    struct rdzv_child server;

    cr_assert_not_null(all);
    recorded = all;
    rdzv_child_start(&server);
    cr_assert_eq(run_ranks(server.port, 2, 2, as_torch), 0);
    rdzv_child_stop(&server);
    json_decref(all);
}

/* ------------------------------------------------------------------------------------------- two reducers ---- */

/*
 * Parameters that a reducer leaves out have no reducer, or another one. The program reports the other one's gradients:
 * here all of them when the first reducer's parameter 1 is ready.
 */
static int delayed(int rank)
{
    struct ddp_rank r = {0};
    float w[2][DDP_COUNT] = {{0}};
    cddp_ddp_options opt = {.size = sizeof opt, .first_bucket_bytes = 64, .bucket_bytes = 64};
    const cddp_param p[2] = {
        {.size = sizeof(cddp_param), .name = "late", .data = w[0], .count = DDP_COUNT, .dtype = CDDP_FLOAT32},
        {.size = sizeof(cddp_param), .name = "later", .data = w[1], .count = DDP_COUNT, .dtype = CDDP_FLOAT32}};
    struct ddp_rank late = {0};

    CHECK(ddp_open(&r, 0, CDDP_DTYPE_NONE, false) == 0);
    CHECK(cddp_ddp_create(&late.ddp, r.comm, p, 2, &opt) == CDDP_OK);
    for (int step = 0; step < 4; step++) {
        for (size_t i = DDP_PARAMS; i-- > 0;) {
            CHECK(ddp_give(&r, i, (float)(rank + step)) == 0);
            for (size_t k = 2; i == 1 && k-- > 0;)
                CHECK(ddp_give(&late, k, (float)(2 * rank + step)) == 0);
        }
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK && cddp_ddp_wait(late.ddp) == CDDP_OK);
        for (size_t i = 0; i < DDP_PARAMS; i++)
            CHECK(ddp_is(&r, i, 1.5f + (float)step) == 0);
        CHECK(ddp_is(&late, 0, 3.0f + (float)step) == 0 && ddp_is(&late, 1, 3.0f + (float)step) == 0);
    }
    cddp_ddp_destroy(late.ddp);
    return ddp_close(&r, CDDP_OK);
}

Test(unused, second_reducer_with_later_gradients)
{
    cr_assert_eq(ddp_world(delayed), 0);
}

/* ------------------------------------------------------------------------------------------------- misuse ---- */

static int without_the_flag(int rank)
{
    struct ddp_rank r = {0};
    cddp_status st;

    CHECK(ddp_open(&r, 0, CDDP_DTYPE_NONE, false) == 0);
    /* A peer may get the abort in any of these calls, and gets it in the last. */
    (void)cddp_ddp_grad_ready(r.ddp, 2);
    (void)cddp_ddp_grad_ready(r.ddp, 0);
    if (rank != 1)
        (void)cddp_ddp_grad_ready(r.ddp, 1);
    st = cddp_ddp_wait(r.ddp);
    CHECK(st == (rank == 1 ? CDDP_E_STATE : CDDP_E_ABORTED));
    CHECK(strstr(cddp_last_error(), "'second'") != NULL);
    return ddp_close(&r, CDDP_E_ABORTED);
}

Test(unused, missing_without_flag_is_error_everywhere)
{
    cr_assert_eq(ddp_world(without_the_flag), 0);
}

/* The third is reported twice, the second on even ranks, the first not at all. */
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

    CHECK(ddp_open(&r, CDDP_DDP_STATIC_GRAPH | with.flags, CDDP_DTYPE_NONE, true) == 0);
    for (int k = 0; k < DDP_COUNT; k++)
        ((float *)cddp_ddp_grad(r.ddp, 0))[k] = 7;
    for (int step = 1; step <= 4; step++) {
        CHECK(one_static_step(&r, rank, (float)step) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        CHECK(ddp_is(&r, 2, (float)step) == 0 && ddp_is(&r, 1, (float)step) == 0 && ddp_is(&r, 0, 7) == 0);
    }
    return ddp_close(&r, CDDP_OK);
}

Test(unused, static_graph_learns_from_first_step)
{
    cr_assert_eq(ddp_world(static_graph), 0);
    with.flags = CDDP_DDP_SKIP_UNUSED;
    cr_assert_eq(ddp_world(static_graph), 0);
}

static int changed(int rank, const char *how)
{
    struct ddp_rank r = {0};
    cddp_status st = CDDP_OK;

    CHECK(ddp_open(&r, CDDP_DDP_STATIC_GRAPH, CDDP_DTYPE_NONE, false) == 0);
    CHECK(one_static_step(&r, rank, 1) == 0);
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
    /* A peer may get rank 0's abort in any of these calls, and gets it in the last. */
    for (int k = 0; k < (strstr(how, "less") == NULL ? 2 : 1); k++)
        (void)cddp_ddp_grad_ready(r.ddp, 2);
    if (rank % 2 == 0)
        (void)cddp_ddp_grad_ready(r.ddp, 1);
    if (rank == 0 && strstr(how, "which it did not") != NULL)
        st = cddp_ddp_grad_ready(r.ddp, 0);
    if (rank == 0 && strstr(how, "became ready more often") != NULL)
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
    return changed(rank, "0 'first' became ready, which it did not in the first");
}

static int oftener(int rank)
{
    return changed(rank, "2 'third' became ready more often");
}

static int less(int rank)
{
    return changed(rank, "2 'third' became ready less often");
}

Test(unused, reports_how_graph_changed)
{
    cr_assert_eq(ddp_world(more), 0);
    cr_assert_eq(ddp_world(oftener), 0);
    cr_assert_eq(ddp_world(less), 0);
}
