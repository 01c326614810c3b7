/* SPDX-License-Identifier: Apache-2.0 */
/* Communication hooks, as users write them. */
#include "ddp_ranks.h"
#include "float_words.h"
#include "hygiene.h"

CDI_SUITE(hook);

/* A hook that sends int8, for whole numbers only. */
struct quantizer {
    int8_t sent[DDP_PARAMS][256], received[DDP_PARAMS][256 * DDP_RANKS];
    int n_begun, n_ended, n_last;
    struct ddp_rank *rank;
};

static cddp_status begin_int8(void *arg, cddp_comm *comm, const cddp_bucket *b, uint64_t *ticket)
{
    struct quantizer *q = arg;
    const float *g = b->data;
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_ALL_GATHER,
                           .dtype = CDDP_INT8,
                           .in = q->sent[b->index],
                           .out = q->received[b->index],
                           .count = b->count};

    if (b->size != sizeof *b || b->dtype != CDDP_FLOAT32 || b->count > 256 || b->n_params != 1 ||
        b->params[0] != DDP_PARAMS - 1 - b->index || q->n_begun % DDP_PARAMS != (int)b->index ||
        cddp_ddp_user(q->rank->ddp, b->params[0]) != q->rank->w[b->params[0]])
        return CDDP_E_STATE;
    q->n_begun++;
    q->n_last += b->is_last;
    for (size_t k = 0; k < b->count; k++)
        q->sent[b->index][k] = (int8_t)g[k];
    return cddp_coll_start(comm, &work, 1, ticket);
}

static cddp_status end_int8(void *arg, cddp_comm *comm, const cddp_bucket *b)
{
    struct quantizer *q = arg;
    float *g = b->data, one = 1;

    q->n_ended++;
    for (size_t k = 0; k < b->count; k++) {
        g[k] = 0;
        for (size_t r = 0; r < DDP_RANKS; r++)
            g[k] += (float)q->received[b->index][r * b->count + k] / DDP_RANKS;
    }
    return cddp_all_reduce(comm, &one, &one, 1, CDDP_FLOAT32, CDDP_SUM); /* collectives may be used here */
}

static int use_hook(int rank)
{
    struct ddp_rank r = {0};
    struct quantizer q = {.rank = &r};
    cddp_hook hook = {.size = sizeof hook, .begin = begin_int8, .end = end_int8, .arg = &q};

    CHECK(ddp_open(&r, 0, CDDP_DTYPE_NONE, true) == 0);
    CHECK(cddp_ddp_set_hook(r.ddp, &hook) == CDDP_OK);
    for (int step = 0; step < 4; step++) {
        for (size_t i = DDP_PARAMS; i-- > 0;)
            CHECK(ddp_give(&r, i, (float)rank * 2 + (float)i + 0.25f) == 0); /* a quarter cannot be represented */
        CHECK(cddp_ddp_wait_param(r.ddp, 2) == CDDP_OK && ddp_is(&r, 2, 5) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        for (size_t i = 0; i < DDP_PARAMS; i++)
            CHECK(ddp_is(&r, i, 3 + (float)i) == 0);
    }
    CHECK(q.n_begun == 4 * DDP_PARAMS && q.n_ended == q.n_begun && q.n_last == 4);
    CHECK(cddp_ddp_user(r.ddp, DDP_PARAMS) == NULL && cddp_ddp_user(NULL, 0) == NULL);
    CHECK(cddp_ddp_set_hook(r.ddp, NULL) == CDDP_OK);
    for (size_t i = DDP_PARAMS; i-- > 0;)
        CHECK(ddp_give(&r, i, 0.25f) == 0);
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK && ddp_is(&r, 0, 0.25f) == 0);
    return ddp_close(&r, CDDP_OK);
}

Test(hook, called_per_bucket_in_order)
{
    cr_assert_eq(ddp_world(use_hook), 0);
}

/* A hook that sums, and calls functions that it must not call. */
struct meddler {
    cddp_ddp *ddp;
    int n_refused;
};

static int refused(cddp_status st)
{
    return st == CDDP_E_STATE &&
           strstr(cddp_last_error(), "hook has called a function of the reducer that runs it") != NULL;
}

static cddp_status meddle(void *arg, cddp_comm *comm, const cddp_bucket *b)
{
    struct meddler *m = arg;
    double norm;

    (void)comm;
    (void)b;
    m->n_refused += refused(cddp_ddp_wait(m->ddp));
    m->n_refused += refused(cddp_ddp_wait_param(m->ddp, 0));
    m->n_refused += refused(cddp_ddp_grad_ready(m->ddp, 0));
    m->n_refused += refused(cddp_ddp_grad_norm(m->ddp, 2, &norm));
    m->n_refused += refused(cddp_ddp_set_hook(m->ddp, NULL));
    m->n_refused += refused(cddp_ddp_sync_buffers(m->ddp));
    return CDDP_OK;
}

static cddp_status sum_and_meddle(void *arg, cddp_comm *comm, const cddp_bucket *b, uint64_t *ticket)
{
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_ALL_REDUCE,
                           .dtype = b->dtype,
                           .op = CDDP_SUM,
                           .in = b->data,
                           .out = b->data,
                           .count = b->count};

    (void)meddle(arg, comm, b);
    return cddp_coll_start(comm, &work, 1, ticket);
}

static int be_refused(int rank)
{
    struct ddp_rank r = {0};
    struct meddler m = {0};
    cddp_hook hook = {.size = sizeof hook, .begin = sum_and_meddle, .end = meddle, .arg = &m};

    CHECK(ddp_open(&r, 0, CDDP_DTYPE_NONE, false) == 0);
    m.ddp = r.ddp;
    CHECK(cddp_ddp_set_hook(r.ddp, &hook) == CDDP_OK);
    for (int step = 0; step < 2; step++) {
        for (size_t i = DDP_PARAMS; i-- > 0;)
            CHECK(ddp_give(&r, i, (float)rank) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK && ddp_is(&r, 1, 6) == 0);
    }
    CHECK(m.n_refused == 2 * 2 * 6 * DDP_PARAMS);
    return ddp_close(&r, CDDP_OK);
}

Test(hook, rejects_calls_of_its_reducer)
{
    cr_assert_eq(ddp_world(be_refused), 0);
}

/* Records the calls of a hook for a split gradient: 100 elements in pieces of 64 and 36. */
struct pieces {
    size_t n[DDP_PARAMS][2]; /* by parameter and piece: number of calls */
};

static cddp_status begin_pieces(void *arg, cddp_comm *comm, const cddp_bucket *b, uint64_t *ticket)
{
    struct pieces *p = arg;
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_ALL_REDUCE,
                           .dtype = b->dtype,
                           .op = CDDP_AVG,
                           .in = b->data,
                           .out = b->data,
                           .count = b->count};

    if (b->n_params != 1 || (b->offset != 0 && b->offset != 64) || b->count != (b->offset == 0 ? 64 : 36))
        return CDDP_E_STATE;
    p->n[b->params[0]][b->offset / 64]++;
    return cddp_coll_start(comm, &work, 1, ticket);
}

static int cut_gradients(int rank)
{
    struct ddp_rank r = {0};
    struct pieces seen = {0};
    cddp_hook hook = {.size = sizeof hook, .begin = begin_pieces, .arg = &seen};
    cddp_ddp_options opt = {
        .size = sizeof opt, .bucket_bytes = 256, .first_bucket_bytes = 256, .flags = CDDP_DDP_SPLIT};

    CHECK(ddp_open_with(&r, &opt, true) == 0);
    CHECK(cddp_ddp_bucket_count(r.ddp) == (size_t)2 * DDP_PARAMS);
    for (int step = 0; step < 5; step++) {
        CHECK(cddp_ddp_set_hook(r.ddp, step < 2 ? NULL : &hook) == CDDP_OK);
        for (size_t i = DDP_PARAMS; i-- > 0;) {
            CHECK(cddp_ddp_wait_param(r.ddp, i) == CDDP_E_STATE);
            CHECK(ddp_give(&r, i, (float)(rank + step) + (float)i) == 0);
        }
        for (size_t i = DDP_PARAMS; i-- > 0;)
            CHECK(cddp_ddp_wait_param(r.ddp, i) == CDDP_OK && ddp_is(&r, i, 1.5f + (float)step + (float)i) == 0);
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
    }
    for (int i = 0; i < DDP_PARAMS; i++)
        CHECK(seen.n[i][0] == 3 && seen.n[i][1] == 3);
    return ddp_close(&r, CDDP_OK);
}

Test(hook, split_gradient_is_seen_in_pieces)
{
    cr_assert_eq(ddp_world(cut_gradients), 0);
}

static cddp_status refuse(void *arg, cddp_comm *comm, const cddp_bucket *b, uint64_t *ticket)
{
    (void)arg, (void)comm, (void)b, (void)ticket;
    return CDDP_E_NOMEM;
}

static int fail_on_rank_1(int rank)
{
    struct ddp_rank r = {0};
    cddp_hook hook = {.size = sizeof hook, .begin = refuse};
    cddp_status st;

    CHECK(ddp_open(&r, 0, CDDP_DTYPE_NONE, false) == 0);
    if (rank == 1)
        CHECK(cddp_ddp_set_hook(r.ddp, &hook) == CDDP_OK);
    for (size_t i = DDP_PARAMS; i-- > 0;)
        (void)cddp_ddp_grad_ready(r.ddp, i);
    st = cddp_ddp_wait(r.ddp);
    CHECK(st == (rank == 1 ? CDDP_E_NOMEM : CDDP_E_ABORTED));
    CHECK(strstr(cddp_last_error(), "the communication hook's begin failed for bucket 0: out of memory") != NULL);
    return ddp_close(&r, CDDP_E_ABORTED);
}

Test(hook, failure_ends_step_on_every_rank)
{
    cr_assert_eq(ddp_world(fail_on_rank_1), 0);
}

static cddp_status begin_nothing(void *arg, cddp_comm *comm, const cddp_bucket *b, uint64_t *ticket)
{
    (void)arg, (void)comm, (void)b, (void)ticket;
    return CDDP_OK;
}

/* *arg: this rank's elements, or what it does instead. */
enum { NULL_POINTER = -1, OWN_STATUS = -2 };

static cddp_status end_differently(void *arg, cddp_comm *comm, const cddp_bucket *b)
{
    int n = *(int *)arg;

    if (n == OWN_STATUS)
        return CDDP_E_INVALID;
    return cddp_all_reduce(comm, n == NULL_POINTER ? NULL : b->data, b->data, n > 0 ? (size_t)n : 1, b->dtype,
                           CDDP_AVG);
}

static int fail_in_end(int rank, int n, cddp_status own, const char *cause, cddp_status of_peers)
{
    struct ddp_rank r = {0};
    cddp_hook hook = {.size = sizeof hook, .begin = begin_nothing, .end = end_differently, .arg = &n};
    cddp_error_info info = {.size = sizeof info};
    cddp_status st;

    CHECK(ddp_open(&r, 0, CDDP_DTYPE_NONE, false) == 0);
    CHECK(cddp_all_reduce(r.comm, NULL, NULL, 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_E_INVALID); /* not the cause */
    CHECK(cddp_ddp_set_hook(r.ddp, &hook) == CDDP_OK);
    for (size_t i = DDP_PARAMS; i-- > 0;)
        (void)cddp_ddp_grad_ready(r.ddp, i);
    st = cddp_ddp_wait(r.ddp);
    cddp_last_error_info(&info);
    CHECK(st == (rank == 1 ? own : of_peers));
    CHECK(strstr(info.message, "the communication hook's end failed for bucket 0: ") != NULL);
    CHECK(strstr(info.message, cause) != NULL);
    CHECK(rank == 1 || info.rank == 1);
    return ddp_close(&r, of_peers);
}

static int ends_mismatched(int rank)
{
    return fail_in_end(rank, rank == 1 ? 2 : 1, CDDP_E_MISMATCH, "all_reduce(mean) of 2 float32", CDDP_E_MISMATCH);
}

static int ends_invalid(int rank)
{
    return fail_in_end(rank, rank == 1 ? NULL_POINTER : 1, CDDP_E_INVALID, "cddp_all_reduce: in is NULL",
                       CDDP_E_ABORTED);
}

static int ends_with_own_status(int rank)
{
    return fail_in_end(rank, rank == 1 ? OWN_STATUS : 1, CDDP_E_INVALID, "bucket 0: invalid argument", CDDP_E_ABORTED);
}

Test(hook, failure_keeps_its_cause_and_rank)
{
    cr_assert_eq(ddp_world(ends_mismatched), 0);
    cr_assert_eq(ddp_world(ends_invalid), 0);
    cr_assert_eq(ddp_world(ends_with_own_status), 0);
}

/* The states that the two functions were called in. */
struct float_watcher {
    uint64_t begin, end;
};

static cddp_status begin_and_round_down(void *arg, cddp_comm *comm, const cddp_bucket *b, uint64_t *ticket)
{
    (void)comm, (void)b, (void)ticket;
    ((struct float_watcher *)arg)->begin = float_get();
    float_set(float_words[FLOAT_DOWN]);
    return CDDP_OK;
}

static cddp_status end_quietly(void *arg, cddp_comm *comm, const cddp_bucket *b)
{
    (void)comm, (void)b;
    ((struct float_watcher *)arg)->end = float_get();
    return CDDP_OK;
}

static int hook_rounds_down(int rank)
{
    struct float_watcher w = {0};
    const cddp_hook hook = {.size = sizeof hook, .begin = begin_and_round_down, .end = end_quietly, .arg = &w};
    struct ddp_rank r = {0};
    uint64_t after_begin, after_end;

    (void)rank;
    CHECK(ddp_open(&r, 0, CDDP_DTYPE_NONE, false) == 0);
    CHECK(cddp_ddp_set_hook(r.ddp, &hook) == CDDP_OK);
    for (size_t i = DDP_PARAMS; i-- > 0;) {
        float_set(float_words[FLOAT_UP]);
        CHECK(cddp_ddp_grad_ready(r.ddp, i) == CDDP_OK);
        after_begin = float_get();
        CHECK(w.begin == float_words[FLOAT_UP] && after_begin == float_words[FLOAT_DOWN]);
    }
    float_set(float_words[FLOAT_FLUSH]);
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
    after_end = float_get();
    CHECK(w.end == float_words[FLOAT_FLUSH] && after_end == float_words[FLOAT_FLUSH]);
    float_set(float_words[FLOAT_DEFAULT]);
    return ddp_close(&r, CDDP_OK);
}

Test(hook, has_callers_floating_point_state)
{
    cr_assert_eq(ddp_world(hook_rounds_down), 0);
}

Test(hook, rejects_unsupported_combinations)
{
    float w[2];
    cddp_param p = {.size = sizeof(cddp_param), .name = "w", .data = w, .count = 2, .dtype = CDDP_FLOAT32};
    cddp_ddp_options opt = {.size = sizeof opt, .comm_dtype = CDDP_FLOAT16};
    cddp_hook hook = {.size = sizeof hook, .begin = refuse}, bad = {.size = sizeof bad}, old = {.size = 8};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, &opt), CDDP_OK);
    cr_assert_eq(cddp_ddp_set_hook(ddp, &hook), CDDP_E_INVALID);
    cr_assert(strstr(cddp_last_error(), "compresses") != NULL);
    cddp_ddp_destroy(ddp);
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_set_hook(ddp, &bad), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_set_hook(ddp, &old), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_set_hook(NULL, &hook), CDDP_E_INVALID);
    cddp_ddp_destroy(ddp);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}
