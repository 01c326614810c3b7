/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers: the part of a model's state beside its parameters. */
#include "ddp_ranks.h"
#include "hygiene.h"

CDI_SUITE(buffers);

#define LARGE ((size_t)300000) /* elements: more than are sent together with others */

struct model {
    struct ddp_rank r;
    float mean[7], var[DDP_COUNT], *large;
    int64_t steps;
};

/* Writes rank and step into every buffer. */
static void mark(struct model *m, int rank, int step)
{
    for (int i = 0; i < 7; i++)
        m->mean[i] = (float)(100 * step + rank);
    for (int i = 0; i < DDP_COUNT; i++)
        m->var[i] = (float)(100 * step + rank) / 4;
    for (size_t i = 0; i < LARGE; i++)
        m->large[i] = (float)(100 * step + rank) * 2;
    m->steps = (int64_t)100 * step + rank;
}

static bool marked(const struct model *m, int rank, int step)
{
    float want = (float)(100 * step + rank);

    for (size_t i = 0; i < LARGE; i++)
        if (m->large[i] != want * 2)
            return false;
    for (int i = 0; i < DDP_COUNT; i++)
        if (m->var[i] != want / 4)
            return false;
    return m->mean[0] == want && m->mean[6] == want && m->steps == (int64_t)100 * step + rank;
}

static int open_model(struct model *m, uint32_t flags, int rank)
{
    const cddp_param buffers[] = {
        {.size = sizeof(cddp_param), .name = "mean", .data = m->mean, .count = 7, .dtype = CDDP_FLOAT32},
        {.size = sizeof(cddp_param), .name = "var", .data = m->var, .count = DDP_COUNT, .dtype = CDDP_FLOAT32},
        {.size = sizeof(cddp_param),
         .name = "large",
         .data = m->large = malloc(LARGE * sizeof(float)),
         .count = LARGE,
         .dtype = CDDP_FLOAT32},
        {.size = sizeof(cddp_param), .name = "steps", .data = &m->steps, .count = 1, .dtype = CDDP_INT64},
    };
    cddp_ddp_options opt = {.size = sizeof opt, .flags = flags, .buffers = buffers, .n_buffers = 4};

    mark(m, rank, 9);
    return ddp_open_with(&m->r, &opt, false);
}

static int step(struct model *m)
{
    for (size_t i = DDP_PARAMS; i-- > 0;)
        CHECK(ddp_give(&m->r, i, 1) == 0);
    CHECK(cddp_ddp_wait(m->r.ddp) == CDDP_OK);
    return 0;
}

static int follow_rank_0(int rank)
{
    struct model m = {0};

    CHECK(open_model(&m, 0, rank) == 0);
    CHECK(marked(&m, 0, 9)); /* at creation, with the parameters */
    for (int k = 0; k < 4; k++) {
        mark(&m, rank, k);
        if (k == 2) {
            CHECK(step(&m) == 0 && marked(&m, rank, 2)); /* not in this step */
            continue;
        }
        CHECK(cddp_ddp_sync_buffers(m.r.ddp) == CDDP_OK && marked(&m, 0, k));
        CHECK(step(&m) == 0 && marked(&m, 0, k));
    }
    free(m.large);
    return ddp_close(&m.r, CDDP_OK);
}

Test(buffers, copied_from_rank_0_at_creation_and_per_step)
{
    cr_assert_eq(ddp_world(follow_rank_0), 0);
}

/* Rank r trains 4 - r steps, or r + 1 in the second epoch. Returns the highest rank that trains. */
static int uneven(int rank)
{
    struct model m = {0};

    CHECK(open_model(&m, CDDP_DDP_JOIN, rank) == 0);
    for (int epoch = 0; epoch < 2; epoch++) {
        int steps = epoch == 0 ? DDP_RANKS - rank : rank + 1;

        for (int k = 0; k < steps; k++) {
            int highest = epoch == 0 ? DDP_RANKS - 1 - k : DDP_RANKS - 1;

            mark(&m, rank, k);
            CHECK(cddp_ddp_sync_buffers(m.r.ddp) == CDDP_OK && marked(&m, highest, k));
            CHECK(step(&m) == 0);
            mark(&m, rank, 50 + k); /* like the forward pass */
        }
        CHECK(cddp_ddp_join(m.r.ddp) == CDDP_OK);
        CHECK(marked(&m, epoch == 0 ? 0 : 3, 53)); /* they are sent with the parameters */
    }
    /* All trained equally long: the parameters are equal, but the buffers differ. */
    CHECK(cddp_ddp_sync_buffers(m.r.ddp) == CDDP_OK && step(&m) == 0);
    mark(&m, rank, 60);
    CHECK(cddp_ddp_join(m.r.ddp) == CDDP_OK && marked(&m, 3, 60));
    free(m.large);
    return ddp_close(&m.r, CDDP_OK);
}

Test(buffers, uneven_ranks_use_highest_training_rank)
{
    cr_assert_eq(ddp_world(uneven), 0);
}

static int forget(int rank)
{
    struct model m = {0};

    CHECK(open_model(&m, CDDP_DDP_JOIN, rank) == 0);
    (void)cddp_ddp_grad_ready(m.r.ddp, 2);
    CHECK(cddp_ddp_wait(m.r.ddp) == CDDP_E_STATE);
    CHECK(strstr(cddp_last_error(), "step 0 began without cddp_ddp_sync_buffers") != NULL);
    free(m.large);
    return ddp_close(&m.r, CDDP_E_ABORTED);
}

Test(buffers, uneven_ranks_require_sync)
{
    cr_assert_eq(ddp_world(forget), 0);
}

Test(buffers, rejects_invalid_calls)
{
    static int64_t n[2];
    static float x[2];
    static const struct {
        cddp_param b;
        const char *text;
    } bad[] = {
        {{.size = sizeof(cddp_param), .name = "n", .data = n, .count = 2, .dtype = CDDP_INT64, .grad = x},
         "buffer 0 'n' has a gradient"},
        {{.name = "n", .data = n, .count = 2, .dtype = CDDP_INT64}, "buffers: cddp_param.size is 0"},
        {{.size = sizeof(cddp_param), .data = n, .count = 2, .dtype = CDDP_INT64}, "buffer 0 has no name"},
        {{.size = sizeof(cddp_param), .name = "n", .count = 2, .dtype = CDDP_INT64}, "buffer 0 'n' has no data"},
    };
    cddp_param p = {.size = sizeof(cddp_param), .name = "w", .data = x, .count = 2, .dtype = CDDP_FLOAT32};
    cddp_param good = {.size = sizeof(cddp_param), .name = "n", .data = n, .count = 2, .dtype = CDDP_INT64};
    cddp_ddp_options opt = {.size = sizeof opt, .n_buffers = 1};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, &opt), CDDP_E_INVALID);
    cr_assert(strstr(cddp_last_error(), "n_buffers is 1, but buffers is NULL") != NULL, "%s", cddp_last_error());
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        opt.buffers = &bad[i].b;
        cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, &opt), CDDP_E_INVALID);
        cr_assert(strstr(cddp_last_error(), bad[i].text) != NULL, "%s", cddp_last_error());
    }
    cr_assert_eq(cddp_ddp_sync_buffers(NULL), CDDP_E_INVALID);
    opt.buffers = &good;
    cr_assert_eq(cddp_ddp_create(&ddp, comm, &p, 1, &opt), CDDP_OK);
    cr_assert_eq(cddp_ddp_sync_buffers(ddp), CDDP_OK, "alone it is nothing");
    cddp_ddp_destroy(ddp);
    opt.bucket_bytes = opt.first_bucket_bytes = 4;
    p.count = 1;
    cr_assert_eq(cddp_ddp_create(&ddp, comm, (cddp_param[]){p, p}, 2, &opt), CDDP_OK);
    cr_assert_eq(cddp_ddp_grad_ready(ddp, 1), CDDP_OK);
    cr_assert_eq(cddp_ddp_sync_buffers(ddp), CDDP_E_STATE, "in the middle of a step");
    cr_assert_eq(cddp_ddp_wait(ddp), CDDP_E_STATE, "it is sticky");
    cddp_ddp_destroy(ddp);
    (void)cddp_finalize(comm);
}
