/* SPDX-License-Identifier: Apache-2.0 */
/* CDDP_DDP_TUNE: the choice itself, and ranks that try bucket sizes, with simulated clocks. */
#include "comm_ranks.h"
#include "hygiene.h"
#include "rdzv_child.h"
#include "worker/reducer/state/state.h"

CDI_SUITE(tune);

Test(tune, smallest_median_wins)
{
    static const int64_t ms[3][CDI_TUNE_ROUNDS] = {
        {10, 10, 1, 10, 10, 1, 10}, {9, 9, 9, 900, 900, 9, 900}, {11, 2, 2, 11, 11, 11, 2}};
    struct cdi_tune t;

    cdi_tune_init(&t, 1);
    while (t.n > 3)
        cdi_tune_drop(&t, t.n - 1);
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < CDI_TUNE_ROUNDS; i++)
            cdi_tune_note(&t, k, ms[k][i]);
    cdi_tune_note(&t, 0, 0); /* one too many */
    cr_assert_eq(cdi_tune_best(&t), 1);
}

Test(tune, default_without_measurements)
{
    struct cdi_tune t;

    cdi_tune_init(&t, 1 << 20);
    cr_assert_eq(t.cap[cdi_tune_best(&t)], (size_t)25 << 20);
    cdi_tune_drop(&t, 3);
    cr_assert_eq(t.cap[cdi_tune_best(&t)], (size_t)10 << 20, "it cut as the smaller one does");
    cdi_tune_drop(&t, 0);
    cr_assert_eq(t.cap[cdi_tune_best(&t)], (size_t)10 << 20);
    cdi_tune_note(&t, 3, 5);
    cr_assert_eq(t.cap[cdi_tune_best(&t)], (size_t)100 << 20, "the only one that is known");
    cdi_tune_note(&t, 0, 5);
    cr_assert_eq(t.cap[cdi_tune_best(&t)], (size_t)100 << 20, "no reason for smaller ones");
    cdi_tune_init(&t, SIZE_MAX / 30);
    cr_assert(t.cap[3] == SIZE_MAX / 30 * 25 && t.cap[4] == SIZE_MAX && t.cap[5] == SIZE_MAX);
}

Test(tune, every_size_once_per_round)
{
    struct cdi_tune t;

    cdi_tune_init(&t, 1);
    for (uint64_t s = 0; s < cdi_tune_steps(&t); s += t.n) {
        unsigned seen = 0;

        for (uint64_t k = 0; k < t.n; k++)
            seen |= 1u << cdi_tune_turn(&t, s + k);
        cr_assert_eq(seen, (1u << t.n) - 1);
    }
    cr_assert_eq(cdi_tune_turn(&t, 0), 0);
    cr_assert_eq(cdi_tune_turn(&t, t.n), t.n - 1);
}

/* ----------------------------------------------------------------------------------------------------- ranks ---- */

#define RANKS 4
#define PARAMS 24
#define COUNT 100
#define SIZES 4 /* buckets of 400, 1600, 4000 and 10000 bytes differ; larger ones do not */
#define SETTLED (2 + SIZES * CDI_TUNE_ROUNDS + 1)

static const size_t sizes[SIZES] = {400, 1600, 4000, 10000};

/* What a world does; inherited by the ranks. */
static struct {
    uint32_t flags;
    cddp_dtype comm_dtype;
    size_t best; /* on rank 0, by its clock; the others' clocks differ */
} plan;

struct rank {
    cddp_comm *comm;
    cddp_ddp *ddp;
    float w[COUNT];
    int rank, step;
    int seen[PARAMS + 2]; /* steps with this number of buckets, before the choice */
};

static struct rank *self;

/* Makes each step take the planned time of the size in use. */
static int64_t planted_ns(void)
{
    static int64_t now = 1;
    size_t at = self->ddp->trial->current, best = (plan.best + (self->rank == 0 ? 0 : 1)) % SIZES;

    return now += at == best ? 1000 : 2000 + (int64_t)at;
}

static int open_rank(struct rank *r, int rank)
{
    cddp_ddp_options opt = {.size = sizeof opt,
                            .flags = CDDP_DDP_TUNE | plan.flags,
                            .first_bucket_bytes = sizes[0],
                            .comm_dtype = plan.comm_dtype};
    cddp_param p[PARAMS];

    for (int i = 0; i < PARAMS; i++)
        p[i] =
            (cddp_param){.size = sizeof(cddp_param), .name = "p", .data = r->w, .count = COUNT, .dtype = CDDP_FLOAT32};
    self = r;
    r->rank = rank;
    CHECK(cddp_init(&r->comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&r->ddp, r->comm, p, PARAMS, &opt) == CDDP_OK);
    CHECK(r->ddp->trial != NULL && r->ddp->trial->tune.n == SIZES);
    for (size_t k = 0; k < SIZES; k++)
        CHECK(r->ddp->trial->tune.cap[k] == sizes[k]);
    r->ddp->trial->clock = planted_ns;
    return 0;
}

/* Sevenths, so that sums are rounded; with comm_dtype, numbers that 16 bits hold. */
static float given(int rank, int step, int i)
{
    float x = (float)(rank * 4 + i + step % 8);

    return plan.comm_dtype == CDDP_DTYPE_NONE ? x / 7 : x;
}

static bool arrives(int rank, int step, int i)
{
    if ((plan.flags & CDDP_DDP_STATIC_GRAPH) != 0)
        step = 0;
    return (plan.flags & (CDDP_DDP_FIND_UNUSED | CDDP_DDP_STATIC_GRAPH)) == 0 || (rank + step + i) % 5 < 3;
}

/* Does one step; ranks below `first` have no samples left. */
static int train(struct rank *r, int first)
{
    void *before = cddp_ddp_grad(r->ddp, 3);

    if (cddp_ddp_bucket_cap(r->ddp) == 0 && r->step >= 2)
        r->seen[cddp_ddp_bucket_count(r->ddp)]++;
    for (int i = PARAMS; i-- > 0;) {
        float *g = cddp_ddp_grad(r->ddp, (size_t)i);

        if (!arrives(r->rank, r->step, i))
            continue;
        for (int k = 0; k < COUNT; k++)
            g[k] = given(r->rank, r->step, i);
        CHECK(cddp_ddp_grad_ready(r->ddp, (size_t)i) == CDDP_OK);
    }
    CHECK(cddp_ddp_wait(r->ddp) == CDDP_OK);
    for (int i = 0; i < PARAMS; i++) {
        const float *g = cddp_ddp_grad(r->ddp, (size_t)i);
        float want = 0;
        bool used = false;

        for (int rank = first; rank < RANKS; rank++) {
            want += arrives(rank, r->step, i) ? given(rank, r->step, i) : 0;
            used |= arrives(rank, r->step, i);
        }
        want *= 1.0f / RANKS;
        for (int k = 0; k < COUNT; k++)
            CHECK(!used || memcmp(&g[k], &want, sizeof want) == 0);
    }
    CHECK(cddp_ddp_grad(r->ddp, 3) == before);
    r->step++;
    return 0;
}

static int close_rank(struct rank *r)
{
    cddp_ddp_destroy(r->ddp);
    CHECK(cddp_finalize(r->comm) == CDDP_OK);
    return 0;
}

static cddp_status no_hook(void *arg, cddp_comm *comm, const cddp_bucket *bucket, uint64_t *ticket)
{
    (void)arg, (void)comm, (void)bucket, (void)ticket;
    return CDDP_E_STATE;
}

/* Unsupported features are rejected, at once or during the trial. */
static int refused(struct rank *r)
{
    cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 1};
    cddp_hook hook = {.size = sizeof hook, .begin = no_hook};
    cddp_optim *o = NULL;

    CHECK(cddp_optim_create(&o, r->ddp, &sgd) == CDDP_E_UNSUPPORTED);
    CHECK(strstr(cddp_last_error(), "(CDDP_DDP_TUNE)") != NULL);
    CHECK(cddp_ddp_set_hook(r->ddp, &hook) == CDDP_E_STATE && strstr(cddp_last_error(), "in step 0 of 31") != NULL);
    CHECK(cddp_ddp_set_powersgd(r->ddp, NULL) == CDDP_E_STATE && strstr(cddp_last_error(), "(CDDP_DDP_TUNE)") != NULL);
    return 0;
}

static int even(int rank)
{
    bool plain = plan.flags == 0 && plan.comm_dtype == CDDP_DTYPE_NONE;
    struct rank r = {0};
    int n_counts = 0;

    CHECK(open_rank(&r, rank) == 0);
    CHECK(!plain || refused(&r) == 0);
    for (int s = 0; s < SETTLED + 4; s++) {
        CHECK(train(&r, 0) == 0);
        CHECK(cddp_ddp_bucket_cap(r.ddp) == (s + 1 < SETTLED ? 0 : sizes[plan.best]));
    }
    for (int k = 0; k < PARAMS + 2; k++)
        n_counts += r.seen[k] > 0;
    CHECK(n_counts == SIZES);
    CHECK(!plain || (cddp_ddp_set_powersgd(r.ddp, NULL) == CDDP_OK && train(&r, 0) == 0));
    return close_rank(&r);
}

/* Rank 0 has the fewest samples of an epoch; in the second one, all sizes have been measured. */
static int uneven(int rank)
{
    struct rank r = {0};

    CHECK(open_rank(&r, rank) == 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        int begin = r.step;

        for (int s = 0; s < 14 + rank; s++)
            CHECK(train(&r, s < 14 ? 0 : s - 13) == 0);
        CHECK(cddp_ddp_join(r.ddp) == CDDP_OK);
        r.step = begin + 14 + RANKS; /* the longest, and one step in which no rank trains */
    }
    CHECK(cddp_ddp_bucket_cap(r.ddp) == sizes[plan.best]);
    CHECK(train(&r, 0) == 0);
    return close_rank(&r);
}

static int world(int (*body)(int rank))
{
    struct rdzv_child server;
    int bad;

    rdzv_child_start(&server);
    bad = run_ranks(server.port, RANKS, RANKS, body);
    rdzv_child_stop(&server);
    return bad;
}

Test(tune, rank_0_decides_without_changing_results)
{
    for (plan.best = 0; plan.best < SIZES; plan.best++)
        cr_assert_eq(world(even), 0, "size %zu", plan.best);
}

Test(tune, supports_comm_dtype)
{
    plan.comm_dtype = CDDP_BFLOAT16;
    plan.best = 2;
    cr_assert_eq(world(even), 0);
}

Test(tune, supports_missing_gradients)
{
    plan.flags = CDDP_DDP_FIND_UNUSED;
    plan.best = 1;
    cr_assert_eq(world(even), 0);
    plan.flags = CDDP_DDP_STATIC_GRAPH;
    cr_assert_eq(world(even), 0);
}

Test(tune, supports_uneven_ranks)
{
    plan.flags = CDDP_DDP_JOIN;
    plan.best = 3;
    cr_assert_eq(world(uneven), 0);
}

Test(tune, no_trial_for_one_rank_or_bucket)
{
    cddp_ddp_options opt = {.size = sizeof opt, .flags = CDDP_DDP_TUNE};
    static float w[4];
    cddp_param p = {.size = sizeof(cddp_param), .name = "p", .data = w, .count = 4, .dtype = CDDP_FLOAT32};
    cddp_comm *comm;
    cddp_ddp *d;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_ddp_create(&d, comm, &p, 1, &opt), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_ddp_bucket_cap(d), (size_t)1 << 20, "larger ones make no difference");
    cddp_ddp_destroy(d);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}
