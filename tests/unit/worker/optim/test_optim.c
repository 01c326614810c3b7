/* SPDX-License-Identifier: Apache-2.0 */
/* The sharded optimizer, compared with ranks that average whole gradients and update everything themselves. */
#include "hygiene.h"
#include "items.h"
#include "mean_hook.h"
#include "numbers.h"
#include "plain_rule.h"
#include "scratch.h"
#include "worker/comm/comm.h"
#include "worker/reducer/layout/stats.h"
#include "world.h"

#include <cddp/experimental/ddp.h>
#include <math.h>
#include <stdbool.h>

CDI_SUITE(optim);

#define N 5
#define STEPS 5

static const size_t counts[N] = {3, 1000, 1, 70001, 513};
static const char *const names[N] = {"a", "b", "c", "d", "e"};

/* What the ranks of a test do; set before the fork. */
static struct {
    cddp_optim_options opt;
    cddp_dtype dtypes[N];
    size_t bucket_bytes;
    uint32_t flags;
    bool own;  /* gradient 1 is in the user's memory */
    bool wide; /* 16-bit parameters have float32 gradients */
    /* How gradients are sent. */
    cddp_dtype comm_dtype;
    bool powersgd, hook;
} now;

static cddp_dtype grad_type(size_t i)
{
    return now.wide && cddp_dtype_size(now.dtypes[i]) == 2 ? CDDP_FLOAT32 : now.dtypes[i];
}

/* ---------------------------------------------------------------------------------------------- the reference ---- */

struct model {
    void *w[N], *own;
    /* The whole state of the reference. */
    void *s[N][CDI_OPTIM_STATES];
    float *master[N];
    cddp_ddp *ddp;
};

static double scatter(size_t i, size_t k, size_t salt)
{
    uint32_t h = (uint32_t)(i * 1000003 + k * 7919 + salt * 104729) * 2654435761u;

    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (double)h / 4294967296.0 - 0.5;
}

/* Halves the result, so that a missing call of the hook's end is seen. */
static cddp_status end_half(void *arg, cddp_comm *comm, const cddp_bucket *b)
{
    (void)arg, (void)comm;
    for (size_t k = 0; k < b->count; k++)
        number_put(b->dtype, b->data, k, number_get(b->dtype, b->data, k) / 2);
    return CDDP_OK;
}

static int communicate(cddp_ddp *ddp)
{
    const cddp_powersgd_options psgd = {
        .size = sizeof psgd, .matrix_rank = 2, .start_step = 1, .min_compression_rate = 0.1};
    const cddp_hook hook = {.size = sizeof hook, .begin = mean_hook_begin, .end = end_half};

    CHECK(!now.powersgd || cddp_ddp_set_powersgd(ddp, &psgd) == CDDP_OK);
    CHECK(!now.hook || cddp_ddp_set_hook(ddp, &hook) == CDDP_OK);
    return 0;
}

static int model_open(struct model *m, cddp_comm *comm)
{
    static const size_t shapes[N][2] = {{3, 1}, {25, 40}, {1, 1}, {7, 10000}, {27, 19}};
    cddp_ddp_options o = {.size = sizeof o,
                          .bucket_bytes = now.bucket_bytes,
                          .first_bucket_bytes = now.bucket_bytes,
                          .flags = now.flags,
                          .comm_dtype = now.comm_dtype};
    cddp_param p[N];

    for (size_t i = 0; i < N; i++) {
        size_t size = cddp_dtype_size(now.dtypes[i]);

        m->w[i] = calloc(counts[i], size);
        m->master[i] = calloc(counts[i], sizeof(float));
        for (int k = 0; k < CDI_OPTIM_STATES; k++)
            m->s[i][k] = calloc(counts[i], 8);
        for (size_t k = 0; k < counts[i]; k++) {
            number_put(now.dtypes[i], m->w[i], k, scatter(i, k, 99));
            if (size == 2)
                m->master[i][k] = (float)number_get(now.dtypes[i], m->w[i], k);
        }
        p[i] = (cddp_param){.size = sizeof(cddp_param),
                            .name = names[i],
                            .data = m->w[i],
                            .count = counts[i],
                            .dtype = now.dtypes[i],
                            .grad_dtype =
                                now.wide && cddp_dtype_size(now.dtypes[i]) == 2 ? CDDP_FLOAT32 : CDDP_DTYPE_NONE};
        if (shapes[i][0] * shapes[i][1] == counts[i])
            p[i].shape = shapes[i], p[i].n_dims = 2;
    }
    m->own = calloc(counts[1], 8);
    p[1].grad = now.own ? m->own : NULL;
    CHECK(cddp_ddp_create(&m->ddp, comm, p, N, &o) == CDDP_OK);
    return 0;
}

static void model_close(struct model *m)
{
    cddp_ddp_destroy(m->ddp);
    for (size_t i = 0; i < N; i++) {
        free(m->w[i]);
        free(m->master[i]);
        for (int k = 0; k < CDI_OPTIM_STATES; k++)
            free(m->s[i][k]);
    }
    free(m->own);
}

/* Two backward passes are accumulated, the second one ends the step. Parameter `without` (N: none) is not used. */
static int backward(struct model *m, int rank, size_t step, size_t without)
{
    for (size_t i = N; i-- > 0;) {
        void *g = cddp_ddp_grad(m->ddp, i);
        size_t salt = step * 17 + (size_t)rank;

        if (i == without)
            continue;
        for (size_t k = 0; k < counts[i]; k++)
            number_put(grad_type(i), g, k, scatter(i, k, salt));
        for (size_t k = 0; k < counts[i]; k++)
            if (grad_type(i) == CDDP_FLOAT64)
                ((double *)g)[k] += scatter(i, k, salt + 5);
            else if (grad_type(i) == CDDP_FLOAT32)
                ((float *)g)[k] += (float)scatter(i, k, salt + 5);
        CHECK(cddp_ddp_grad_ready(m->ddp, i) == CDDP_OK);
    }
    return 0;
}

/* Every element, on every rank. */
static void plain_step(struct model *m, uint64_t step, size_t without)
{
    struct cdi_optim_rule rule = plain_rule(&now.opt, cddp_ddp_grad_scale(m->ddp));

    for (size_t i = 0; i < N; i++) {
        void *g = cddp_ddp_grad(m->ddp, i);

        if (i == without)
            continue;
        if (now.dtypes[i] == CDDP_FLOAT64) {
            cdi_optim_update_f64(&rule, step, m->w[i], g, (double *[]){m->s[i][0], m->s[i][1]}, counts[i]);
        } else if (now.dtypes[i] == CDDP_FLOAT32) {
            cdi_optim_update_f32(&rule, step, m->w[i], g, (float *[]){m->s[i][0], m->s[i][1]}, counts[i]);
        } else {
            float *wide = malloc(counts[i] * sizeof *wide);

            for (size_t k = 0; k < counts[i]; k++)
                wide[k] = (float)number_get(grad_type(i), g, k);
            cdi_optim_update_f32(&rule, step, m->master[i], wide, (float *[]){m->s[i][0], m->s[i][1]}, counts[i]);
            for (size_t k = 0; k < counts[i]; k++)
                number_put(now.dtypes[i], m->w[i], k, m->master[i][k]);
            free(wide);
        }
    }
}

/* ----------------------------------------------------------------------------------------- checkpoints of one ---- */

/* A program's items (at most N), its optimizer, and its reducer if it has PowerSGD. */
static size_t with_optim(cddp_checkpoint_item all[N + 2], const cddp_checkpoint_item *items, size_t n,
                         cddp_optim *optim, cddp_ddp *ddp)
{
    if (n > 0)
        memcpy(all, items, n * sizeof *all);
    all[n++] = item_of(CDDP_ITEM_OPTIM, "optim", optim);
    if (ddp != NULL)
        all[n++] = item_of(CDDP_ITEM_DDP, "ddp", ddp);
    return n;
}

static cddp_status save(cddp_comm *comm, uint64_t step, cddp_optim *optim, cddp_ddp *ddp,
                        const cddp_checkpoint_item *items, size_t n)
{
    cddp_checkpoint_item all[N + 2];

    return cddp_checkpoint_save(comm, scratch, step, all, with_optim(all, items, n, optim, ddp), NULL);
}

static cddp_status load(cddp_comm *comm, cddp_optim *optim, cddp_ddp *ddp, const cddp_checkpoint_item *items, size_t n,
                        cddp_checkpoint_info *info)
{
    cddp_checkpoint_item all[N + 2];

    return cddp_checkpoint_load(comm, scratch, all, with_optim(all, items, n, optim, ddp), info);
}

/* ------------------------------------------------------------------------------------------------------ equality */

static int ways_first; /* odd: the way of sending is chosen after the optimizer was created */

static int same(int rank)
{
    struct model plain = {0}, divided = {0};
    cddp_optim *optim;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&plain, comm) == 0 && model_open(&divided, comm) == 0);
    CHECK(communicate(plain.ddp) == 0 && (ways_first % 2 != 0 || communicate(divided.ddp) == 0));
    CHECK(cddp_optim_create(&optim, divided.ddp, &now.opt) == CDDP_OK);
    CHECK(ways_first % 2 == 0 || communicate(divided.ddp) == 0);
    for (size_t step = 0; step < STEPS; step++) {
        if (step == 3) {
            now.opt.lr *= 0.5;
            CHECK(cddp_optim_set_lr(optim, now.opt.lr) == CDDP_OK);
        }
        CHECK(backward(&plain, rank, step, N) == 0 && cddp_ddp_wait(plain.ddp) == CDDP_OK);
        plain_step(&plain, step + 1, N);
        CHECK(backward(&divided, rank, step, N) == 0 && cddp_optim_step(optim, NULL) == CDDP_OK);
        for (size_t i = 0; i < N; i++)
            CHECK(memcmp(plain.w[i], divided.w[i], counts[i] * cddp_dtype_size(now.dtypes[i])) == 0);
    }
    cddp_optim_destroy(optim);
    model_close(&divided);
    model_close(&plain);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

#define ALL(t)                                           \
    {                                                    \
        CDDP_##t, CDDP_##t, CDDP_##t, CDDP_##t, CDDP_##t \
    }
static const cddp_dtype kinds_of_types[][N] = {
    ALL(FLOAT32), ALL(FLOAT64), {CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT32, CDDP_BFLOAT16, CDDP_FLOAT64}};
static const cddp_optim_options rules[] = {
    {.size = sizeof rules[0], .kind = CDDP_OPTIM_SGD, .lr = 0.1, .weight_decay = 0.01},
    {.size = sizeof rules[0], .kind = CDDP_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .flags = CDDP_OPTIM_NESTEROV},
    {.size = sizeof rules[0],
     .kind = CDDP_OPTIM_ADAM,
     .lr = 0.01,
     .weight_decay = 0.01,
     .beta2 = 0.99, /* beta1 is 0, as for a GAN */
     .eps = 1e-8},
    {.size = sizeof rules[0],
     .kind = CDDP_OPTIM_ADAMW,
     .lr = 0.01,
     .weight_decay = 0.1,
     .beta1 = 0.8,
     .beta2 = 0.999,
     .eps = 1e-8},
};

static void expect_same(int ranks)
{
    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++)
        for (size_t t = 0; t < sizeof kinds_of_types / sizeof kinds_of_types[0]; t++) {
            now.opt = rules[r];
            memcpy(now.dtypes, kinds_of_types[t], sizeof now.dtypes);
            now.bucket_bytes = (r + t) % 2 == 0 ? 64 : 0;
            now.flags = r == 1 ? CDDP_DDP_SUM : 0;
            now.own = r == 2;
            cr_assert_eq(run_world(ranks, same), 0, "%d ranks, rule %zu, types %zu", ranks, r, t);
        }
}

Test(optim, matches_plain_optimizer)
{
    expect_same(1);
    expect_same(4);
}

/* Gradients that are compressed, or sent by PowerSGD or a hook. */
static void expect_same_ways(int ranks)
{
    for (int way = 0; way < 4; way++)
        for (size_t t = 0; t < sizeof kinds_of_types / sizeof kinds_of_types[0]; t++) {
            now.opt = rules[(t + (size_t)way) % (sizeof rules / sizeof rules[0])];
            memcpy(now.dtypes, kinds_of_types[t], sizeof now.dtypes);
            now.bucket_bytes = t == 0 ? 4096 : 0;
            now.own = t == 1;
            now.comm_dtype = way == 0 ? CDDP_BFLOAT16 : way == 1 ? CDDP_FLOAT32 : CDDP_DTYPE_NONE;
            now.powersgd = way == 2;
            now.hook = way == 3;
            ways_first = (int)t;
            cr_assert_eq(run_world(ranks, same), 0, "%d ranks, way %d, types %zu", ranks, way, t);
        }
}

Test(optim, with_compression_and_hooks_matches_plain)
{
    expect_same_ways(1);
    expect_same_ways(3);
}

/* Float32 gradients of 16-bit parameters, alone and with others, sent in every way, clipped and scaled. */
Test(optim, float32_gradients_of_16_bit_parameters_match_plain)
{
    now.wide = true;
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int way = 0; way < 4; way++) {
            now.opt = rules[way];
            memcpy(now.dtypes, kinds_of_types[2], sizeof now.dtypes);
            now.bucket_bytes = (ranks + way) % 2 == 0 ? 4096 : 0;
            now.comm_dtype = way == 1 ? CDDP_BFLOAT16 : CDDP_DTYPE_NONE;
            now.powersgd = way == 2;
            now.own = now.hook = way == 3;
            cr_assert_eq(run_world(ranks, same), 0, "%d ranks, way %d", ranks, way);
        }
}

/* --------------------------------------------------------------------------------------------------- clipping ---- */

static int close_to(const struct model *a, const struct model *b)
{
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < counts[i]; k++) {
            cddp_dtype t = now.dtypes[i];
            double tolerance = t == CDDP_FLOAT64 ? 1e-12 : t == CDDP_FLOAT32 ? 1e-6 : 1e-2;

            CHECK(fabs(number_get(t, a->w[i], k) - number_get(t, b->w[i], k)) <= tolerance);
        }
    return 0;
}

/* No rank uses parameter `without`: the content of its gradient's place does not count. Step 2 makes no update. */
static int clipped_without(int rank, size_t without)
{
    struct model plain = {0}, divided = {0};
    cddp_checkpoint_item item;
    double norms[2], again;
    cddp_optim *optim;
    cddp_comm *comm;
    uint64_t taken = 0;
    int used;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&plain, comm) == 0 && model_open(&divided, comm) == 0);
    CHECK(communicate(plain.ddp) == 0 && communicate(divided.ddp) == 0);
    CHECK(cddp_optim_create(&optim, divided.ddp, &now.opt) == CDDP_OK);
    item = item_of(CDDP_ITEM_OPTIM, "optim", optim);
    for (size_t step = 0; step < STEPS; step++) {
        CHECK(backward(&plain, rank, step, without) == 0 && cddp_ddp_wait(plain.ddp) == CDDP_OK);
        CHECK(cddp_ddp_clip_grad_norm(plain.ddp, 0.5, 2, 1, &norms[0]) == CDDP_OK);
        CHECK(backward(&divided, rank, step, without) == 0);
        CHECK(cddp_ddp_clip_grad_norm(divided.ddp, 0.5, 2, 1, &norms[1]) == CDDP_OK);
        CHECK(norms[0] > 0.6 && norms[1] == norms[0]);
        CHECK(cddp_ddp_grad_norm(divided.ddp, 2, &again) == CDDP_OK && fabs(again - 0.5) < 1e-3);
        CHECK(cddp_checkpoint_save(comm, "nowhere", 1, &item, 1, NULL) == CDDP_E_STATE);
        if (step == 2) {
            CHECK(cddp_optim_skip(optim) == CDDP_OK);
        } else {
            CHECK(cddp_optim_step(optim, NULL) == CDDP_OK);
            plain_step(&plain, ++taken, without);
        }
        for (size_t i = 0; i < N; i++)
            CHECK(cddp_ddp_was_used(divided.ddp, i, &used) == CDDP_OK && used == (i != without));
        CHECK(close_to(&plain, &divided) == 0);
    }
    cddp_optim_destroy(optim);
    model_close(&divided);
    model_close(&plain);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

static int clipped(int rank)
{
    return clipped_without(rank, N);
}

static int clipped_without_3(int rank)
{
    return clipped_without(rank, 3);
}

Test(optim, clips_whole_gradients_and_skips)
{
    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++) {
        now.opt = rules[r];
        memcpy(now.dtypes, kinds_of_types[r % 3], sizeof now.dtypes);
        now.bucket_bytes = r == 0 ? 4096 : 0;
        now.flags = r == 1 ? CDDP_DDP_SUM : 0;
        now.own = r == 2;
        cr_assert_eq(run_world(1 + (int)r, clipped), 0, "rule %zu", r);
    }
    now.flags = CDDP_DDP_FIND_UNUSED;
    cr_assert_eq(run_world(3, clipped_without_3), 0);
    now.flags = CDDP_DDP_STATIC_GRAPH;
    cr_assert_eq(run_world(2, clipped_without_3), 0);
}

/* Every other step has a nonfinite number, on one rank. */
static int skips_nonfinite(int rank)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    struct model plain = {0}, divided = {0};
    const cddp_optim_step_args skip = {.size = sizeof skip, .flags = CDDP_OPTIM_SKIP_NONFINITE};
    uint64_t skipped = 9;
    cddp_optim *optim;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&plain, comm) == 0 && model_open(&divided, comm) == 0);
    CHECK(communicate(plain.ddp) == 0 && communicate(divided.ddp) == 0);
    CHECK(cddp_optim_create(&optim, divided.ddp, &now.opt) == CDDP_OK);
    for (size_t step = 0; step < STEPS; step++) {
        CHECK(backward(&plain, rank, step, N) == 0 && cddp_ddp_wait(plain.ddp) == CDDP_OK);
        plain_step(&plain, step + 1, N);
        for (size_t i = N; i-- > 0;) {
            memset(cddp_ddp_grad(divided.ddp, i), 0, counts[i] * cddp_dtype_size(now.dtypes[i]));
            if (rank == 0 && i == step % N)
                grad_put(divided.ddp, now.dtypes[i], i, counts[i] - 1, bad[step % 3]);
            CHECK(cddp_ddp_grad_ready(divided.ddp, i) == CDDP_OK);
        }
        CHECK(cddp_optim_step(optim, &skip) == CDDP_E_NONFINITE);
        CHECK(strstr(cddp_last_error(), "cddp_optim_step: a gradient is not finite, so the step was skipped") != NULL);
        CHECK(backward(&divided, rank, step, N) == 0 && cddp_optim_step(optim, &skip) == CDDP_OK);
        CHECK(close_to(&plain, &divided) == 0);
    }
    CHECK(cddp_optim_skipped(optim, NULL) == CDDP_E_INVALID && cddp_optim_skipped(NULL, &skipped) == CDDP_E_INVALID);
    CHECK(cddp_optim_skipped(optim, &skipped) == CDDP_OK && skipped == STEPS);
    cddp_optim_destroy(optim);
    model_close(&divided);
    model_close(&plain);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, nonfinite_step_changes_nothing)
{
    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++) {
        now.opt = rules[r];
        memcpy(now.dtypes, kinds_of_types[r % 3], sizeof now.dtypes);
        now.bucket_bytes = 4096;
        cr_assert_eq(run_world(r % 2 == 0 ? 2 : 1, skips_nonfinite), 0);
    }
}

Test(optim, clipping_and_skipping_with_each_way_of_sending)
{
    now.opt = rules[2];
    memcpy(now.dtypes, kinds_of_types[1], sizeof now.dtypes);
    now.powersgd = true;
    cr_assert_eq(run_world(1, clipped), 0);
    cr_assert_eq(run_world(3, clipped), 0);
    now.flags = CDDP_DDP_FIND_UNUSED;
    cr_assert_eq(run_world(2, clipped_without_3), 0);
    now.flags = 0;
    now.powersgd = false;
    now.hook = true;
    cr_assert_eq(run_world(2, clipped), 0);
    now.hook = false;
    memcpy(now.dtypes, kinds_of_types[0], sizeof now.dtypes);
    now.comm_dtype = CDDP_FLOAT16;
    cr_assert_eq(run_world(2, clipped), 0);
    cr_assert_eq(run_world(2, skips_nonfinite), 0);
}

/* ------------------------------------------------------------------------------------------ all in one call ---- */

/* Like backward(), with scaled gradients. */
static int scaled_backward(struct model *m, int rank, size_t step, double scale)
{
    for (size_t i = N; i-- > 0;) {
        for (size_t k = 0; k < counts[i]; k++)
            grad_put(m->ddp, grad_type(i), i, k, scatter(i, k, step * 17 + (size_t)rank) * scale);
        CHECK(cddp_ddp_grad_ready(m->ddp, i) == CDDP_OK);
    }
    return 0;
}

/* Clipping and a step in one call equal two calls; so do gradients scaled by a power of 2. */
static int one_call(int rank)
{
    enum { TWO_CALLS, ONE, SCALED, KINDS };
    cddp_optim_step_args args[KINDS] = {
        [ONE] = {.size = sizeof args[0], .max_norm = 0.5},
        [SCALED] = {
            .size = sizeof args[0], .max_norm = 0.5, .grad_scale = 1.0 / 1024, .flags = CDDP_OPTIM_SKIP_NONFINITE}};
    struct model m[KINDS] = {{{0}}};
    cddp_optim *optim[KINDS];
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (size_t w = 0; w < KINDS; w++) {
        CHECK(model_open(&m[w], comm) == 0 && communicate(m[w].ddp) == 0);
        CHECK(cddp_optim_create(&optim[w], m[w].ddp, &now.opt) == CDDP_OK);
    }
    for (size_t step = 0; step < STEPS; step++) {
        double lr = step == 3 ? now.opt.lr * 0.5 : 0; /* of this step alone */

        CHECK(scaled_backward(&m[TWO_CALLS], rank, step, 1) == 0);
        CHECK(cddp_ddp_clip_grad_norm(m[TWO_CALLS].ddp, 0.5, 2, 1, NULL) == CDDP_OK);
        CHECK(lr == 0 || cddp_optim_set_lr(optim[TWO_CALLS], lr) == CDDP_OK);
        CHECK(cddp_optim_step(optim[TWO_CALLS], NULL) == CDDP_OK);
        CHECK(cddp_optim_set_lr(optim[TWO_CALLS], now.opt.lr) == CDDP_OK);
        for (size_t w = ONE; w < KINDS; w++) {
            CHECK(scaled_backward(&m[w], rank, step, w == SCALED ? 1024 : 1) == 0);
            args[w].lr = lr;
            CHECK(cddp_optim_step(optim[w], &args[w]) == CDDP_OK);
            for (size_t i = 0; i < N; i++)
                CHECK((w == SCALED && cddp_dtype_size(grad_type(i)) == 2) ||
                      memcmp(m[w].w[i], m[TWO_CALLS].w[i], counts[i] * cddp_dtype_size(now.dtypes[i])) == 0);
        }
        CHECK(close_to(&m[SCALED], &m[TWO_CALLS]) == 0);
    }
    for (size_t w = 0; w < KINDS; w++) {
        cddp_optim_destroy(optim[w]);
        model_close(&m[w]);
    }
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, clip_and_scale_match_separate_calls)
{
    for (int ranks = 1; ranks <= 4; ranks++)
        for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++) {
            now.opt = rules[r];
            /* 16-bit values have a separate norm: in one test with the others it would hide their bits. */
            memcpy(now.dtypes, kinds_of_types[((size_t)ranks + r) % 2], sizeof now.dtypes);
            now.bucket_bytes = r % 2 == 0 ? 4096 : 0;
            now.flags = r == 3 ? CDDP_DDP_SUM : 0;
            now.hook = r == 2;
            cr_assert_eq(run_world(ranks, one_call), 0, "%d ranks, rule %zu", ranks, r);
        }
    now.hook = false;
    now.flags = 0;
    for (size_t i = 0; i < N; i++)
        now.dtypes[i] = CDDP_FLOAT16;
    cr_assert_eq(run_world(2, one_call), 0);
    now.wide = true;
    memcpy(now.dtypes, kinds_of_types[2], sizeof now.dtypes);
    cr_assert_eq(run_world(3, one_call), 0);
}

/*
 * Mixed precision: the loss scale is so large that float16 gradients overflow on one rank; all ranks lower it together,
 * like GradScaler. Small gradients, which would be 0 in 16 bits, are not lost.
 */
static int mixed_precision(int rank)
{
    const double max_norm = 1, small = 1e-9;
    cddp_optim_step_args args = {.size = sizeof args, .flags = CDDP_OPTIM_SKIP_NONFINITE, .max_norm = max_norm};
    cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 1e6};
    uint16_t w[2] = {0}, before[2];
    cddp_param p[] = {
        {.size = sizeof p[0], .name = "w", .data = w, .count = 2, .dtype = CDDP_FLOAT16},
    };
    uint64_t skipped, n_skipped = 0;
    double scale = 67108864; /* 2^26 */
    cddp_optim *optim;
    cddp_comm *comm;
    cddp_ddp *ddp;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_ddp_create(&ddp, comm, p, 1, NULL) == CDDP_OK);
    CHECK(cddp_optim_create(&optim, ddp, &sgd) == CDDP_OK);
    for (int step = 0; step < 12; step++) {
        /* Rank 1 has a gradient of 1/256, which overflows at a scale of 2^24 or more. */
        const double want = rank == 1 && step < 4 ? 1.0 / 256 : small;
        cddp_status st;

        memcpy(before, w, sizeof w);
        grad_put(ddp, CDDP_FLOAT16, 0, 0, small * scale);
        grad_put(ddp, CDDP_FLOAT16, 0, 1, want * scale);
        CHECK(cddp_ddp_grad_ready(ddp, 0) == CDDP_OK);
        args.grad_scale = step % 2 == 0 ? 1 / scale : 0; /* of this step, or as set */
        CHECK(cddp_optim_set_grad_scale(optim, step % 2 == 0 ? 3 : 1 / scale) == CDDP_OK);
        st = cddp_optim_step(optim, &args);
        CHECK(st == (step < 3 ? CDDP_E_NONFINITE : CDDP_OK));
        if (st == CDDP_E_NONFINITE) {
            CHECK(memcmp(before, w, sizeof w) == 0);
            scale /= 2;
            n_skipped++;
        }
    }
    CHECK(scale == 8388608 && cddp_optim_skipped(optim, &skipped) == CDDP_OK && skipped == n_skipped && skipped == 3);
    /* Nine steps of 1e-9 * 1e6 less; in float16, 1e-9 is 0. */
    CHECK(fabs(number_get(CDDP_FLOAT16, w, 0) + 9e-3) < 1e-4);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, mixed_precision_skips_same_steps_on_all_ranks)
{
    for (int ranks = 2; ranks <= 4; ranks++)
        cr_assert_eq(run_world(ranks, mixed_precision), 0, "%d ranks", ranks);
}

/* Wrong arguments do not disturb the step. */
static int wrong_args(int rank)
{
    const struct {
        cddp_optim_step_args args;
        cddp_status status;
        const char *text;
    } wrong[] = {
        {{.size = 0}, CDDP_E_INVALID, "cddp_optim_step_args.size is 0, so it is not set"},
        {{.size = sizeof(cddp_optim_step_args), .flags = 2}, CDDP_E_INVALID, "flags has unknown bits: 0x2"},
        {{.size = sizeof(cddp_optim_step_args), .lr = -1}, CDDP_E_INVALID, "cddp_optim_step_args.lr is -1"},
        {{.size = sizeof(cddp_optim_step_args), .lr = NAN}, CDDP_E_INVALID, "cddp_optim_step_args.lr is "},
        {{.size = sizeof(cddp_optim_step_args), .grad_scale = INFINITY}, CDDP_E_INVALID, "grad_scale is inf"},
        {{.size = sizeof(cddp_optim_step_args), .grad_scale = -1}, CDDP_E_INVALID, "grad_scale is -1"},
        {{.size = sizeof(cddp_optim_step_args), .max_norm = -1}, CDDP_E_INVALID, "max_norm is -1"},
        {{.size = sizeof(cddp_optim_step_args), .max_norm = NAN}, CDDP_E_INVALID, "max_norm is "},
    };
    const struct {
        cddp_optim_step_args args;
        uint64_t newer;
    } later = {.args = {.size = sizeof later}, .newer = 1};
    struct model m = {0};
    cddp_optim *optim;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && model_open(&m, comm) == 0);
    CHECK(cddp_optim_create(&optim, m.ddp, &now.opt) == CDDP_OK && backward(&m, rank, 0, N) == 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK(cddp_optim_step(optim, &wrong[i].args) == wrong[i].status);
        CHECK(strstr(cddp_last_error(), wrong[i].text) != NULL);
    }
    CHECK(cddp_optim_set_grad_scale(optim, 0) == CDDP_E_INVALID &&
          cddp_optim_set_grad_scale(optim, NAN) == CDDP_E_INVALID);
    CHECK(cddp_optim_set_grad_scale(NULL, 1) == CDDP_E_INVALID);
    CHECK(cddp_optim_step(optim, &later.args) == CDDP_E_UNSUPPORTED);
    CHECK(strstr(cddp_last_error(), "cddp_optim_step_args is not zero at offset 40") != NULL);
    CHECK(cddp_optim_step(optim, NULL) == CDDP_OK && backward(&m, rank, 1, N) == 0);
    CHECK(cddp_optim_step(optim, NULL) == CDDP_OK);
    cddp_optim_destroy(optim);
    model_close(&m);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, rejects_step_arguments_and_continues)
{
    now.opt = rules[0];
    memcpy(now.dtypes, kinds_of_types[0], sizeof now.dtypes);
    cr_assert_eq(run_world(2, wrong_args), 0);
}

/*
 * ---------------------------------------------------------------------------------------- defaults, frozen ones ----
 */

Test(optim, defaults_match_torch)
{
    const cddp_optim_kind kinds[] = {CDDP_OPTIM_SGD, CDDP_OPTIM_ADAM, CDDP_OPTIM_ADAMW};
    struct {
        cddp_optim_options o;
        uint64_t newer, behind;
    } large;

    for (size_t k = 0; k < 3; k++) {
        double beta1 = k == 0 ? 0 : 0.9, beta2 = k == 0 ? 0 : 0.999, eps = k == 0 ? 0 : 1e-8;

        memset(&large, 255, sizeof large);
        cddp_optim_defaults(&large.o, sizeof large.o + 8, kinds[k]); /* of a newer header */
        cr_assert(large.o.size == sizeof large.o + 8 && large.newer == 0 && large.behind == UINT64_MAX);
        cr_assert(large.o.kind == kinds[k] && large.o.flags == 0 && large.o.lr == 1e-3);
        cr_assert(large.o.weight_decay == (k == 2 ? 1e-2 : 0) && large.o.momentum == 0 && large.o.dampening == 0);
        cr_assert(large.o.beta1 == beta1 && large.o.beta2 == beta2 && large.o.eps == eps);
        cr_assert(large.o.groups == NULL && large.o.n_groups == 0);
    }
    memset(&large, 255, sizeof large);
    cddp_optim_defaults(&large.o, 40, CDDP_OPTIM_ADAM); /* of an older one */
    cr_assert(large.o.size == 40 && large.o.lr == 1e-3);
    memset(&large.o.size, 0, 40);
    for (size_t k = 0; k < sizeof large; k++)
        cr_assert(((uint8_t *)&large)[k] == (k < 40 ? 0 : 255));
    cddp_optim_defaults(NULL, sizeof large.o, CDDP_OPTIM_ADAM);
}

/*
 * Frozen parameters and their state do not change: an optimizer that moves them after loading a checkpoint starts anew.
 */
static int frozen(int rank)
{
    static const size_t which[] = {1, 3};
    const cddp_optim_group group = {
        .size = sizeof group, .params = which, .n_params = 2, .flags = CDDP_OPTIM_GROUP_FROZEN};
    cddp_optim_options opt = now.opt;
    struct model plain = {0}, divided = {0};
    void *before[N];
    cddp_optim *optim;
    cddp_comm *comm;

    opt.groups = &group;
    opt.n_groups = 1;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&plain, comm) == 0 && model_open(&divided, comm) == 0);
    CHECK(cddp_optim_create(&optim, divided.ddp, &opt) == CDDP_OK);
    for (size_t i = 0; i < N; i++) {
        before[i] = malloc(counts[i] * 8);
        memcpy(before[i], divided.w[i], counts[i] * cddp_dtype_size(now.dtypes[i]));
    }
    for (size_t step = 0; step < STEPS; step++) {
        CHECK(backward(&plain, rank, step, N) == 0 && cddp_ddp_wait(plain.ddp) == CDDP_OK);
        plain_step(&plain, step + 1, N);
        CHECK(backward(&divided, rank, step, N) == 0 && cddp_optim_step(optim, NULL) == CDDP_OK);
        for (size_t i = 0; i < N; i++)
            CHECK(memcmp(divided.w[i], i == 1 || i == 3 ? before[i] : plain.w[i],
                         counts[i] * cddp_dtype_size(now.dtypes[i])) == 0);
    }
    CHECK(save(comm, STEPS, optim, NULL, NULL, 0) == CDDP_OK);
    cddp_optim_destroy(optim);
    model_close(&plain);
    /* Only the frozen ones take the first step of a new optimizer. */
    memset(&plain, 0, sizeof plain);
    CHECK(model_open(&plain, comm) == 0 && cddp_optim_create(&optim, divided.ddp, &now.opt) == CDDP_OK);
    CHECK(load(comm, optim, NULL, NULL, 0, NULL) == CDDP_OK);
    CHECK(backward(&plain, rank, 7, N) == 0 && cddp_ddp_wait(plain.ddp) == CDDP_OK);
    plain_step(&plain, 1, N);
    CHECK(backward(&divided, rank, 7, N) == 0 && cddp_optim_step(optim, NULL) == CDDP_OK);
    for (size_t i = 1; i < N; i += 2)
        CHECK(memcmp(divided.w[i], plain.w[i], counts[i] * cddp_dtype_size(now.dtypes[i])) == 0);
    for (size_t i = 0; i < N; i++)
        free(before[i]);
    cddp_optim_destroy(optim);
    model_close(&divided);
    model_close(&plain);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, frozen_parameters_keep_values_and_state)
{
    for (size_t r = 1; r < sizeof rules / sizeof rules[0]; r++) {
        now.opt = rules[r];
        memcpy(now.dtypes, kinds_of_types[r - 1], sizeof now.dtypes);
        scratch_make();
        cr_assert_eq(run_world((int)r, frozen), 0, "rule %zu", r);
        scratch_remove();
    }
}

/* ------------------------------------------------------------------------------------------------ memory, worlds */

static int memory(int rank)
{
    struct model m = {0};
    cddp_optim *optim;
    cddp_comm *comm;
    uint64_t mine, all, whole = 0;
    size_t n;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    n = (size_t)cddp_world_size(comm);
    CHECK(model_open(&m, comm) == 0);
    CHECK(cddp_optim_create(&optim, m.ddp, &now.opt) == CDDP_OK);
    mine = cddp_optim_state_bytes(optim);
    for (size_t i = 0; i < N; i++)
        whole += counts[i] * 2 * sizeof(float);
    /* Shares are equal except for borders: 64 bytes per parameter, array and rank. */
    CHECK(mine <= whole / n + 2 * 64 * (N + n));
    CHECK(cddp_all_reduce(comm, &mine, &all, 1, CDDP_UINT64, CDDP_SUM) == CDDP_OK);
    CHECK(all >= whole && all <= whole + 2 * 64 * (N + n) * n);
    cddp_optim_destroy(optim);
    CHECK(cddp_optim_create(
              &optim, m.ddp,
              &(cddp_optim_options){.size = sizeof(cddp_optim_options), .kind = CDDP_OPTIM_SGD, .lr = 1}) == CDDP_OK);
    CHECK(cddp_optim_state_bytes(optim) == 0);
    cddp_optim_destroy(optim);
    model_close(&m);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    (void)rank;
    return 0;
}

Test(optim, rank_holds_only_its_share)
{
    now.opt = rules[2];
    memcpy(now.dtypes, kinds_of_types[0], sizeof now.dtypes);
    for (int ranks = 1; ranks <= 4; ranks++)
        cr_assert_eq(run_world(ranks, memory), 0, "%d ranks", ranks);
}

/* The time in which collectives of buckets ran since `after`, as the flight page has it. Sets *last to the last one. */
static int64_t recorded_ns(const cddp_comm *comm, uint64_t after, bool with_exchange, uint64_t *last)
{
    struct cdi_flight_entry e[CDI_FLIGHT_RING];
    struct cdi_interval ran[CDI_FLIGHT_RING];
    size_t n = cdi_flight_records(cdi_comm_world(comm)->flight, after, e, CDI_FLIGHT_RING), k = 0;

    for (size_t i = 0; i < n; i++)
        if (e[i].bucket >= 0 && (with_exchange || e[i].op != CDI_FLIGHT_ALL_GATHER))
            ran[k++] = (struct cdi_interval){.begin = e[i].started_ns, .end = e[i].done_ns};
    *last = n > 0 ? e[n - 1].seq : after;
    return cdi_intervals_length(ran, cdi_intervals_join(ran, k));
}

static int exchange_is_timed(int rank)
{
    cddp_ddp_stats s = {.size = sizeof s};
    struct model m = {0};
    uint64_t seen = 0;
    cddp_optim *optim;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&m, comm) == 0);
    CHECK(cddp_optim_create(&optim, m.ddp, &now.opt) == CDDP_OK);
    for (int step = 0; step < 4; step++) {
        int64_t scattered, all;

        (void)recorded_ns(comm, seen, true, &seen);
        for (size_t i = N; i-- > 0;)
            CHECK(cddp_ddp_grad_ready(m.ddp, i) == CDDP_OK);
        CHECK(cddp_optim_step(optim, NULL) == CDDP_OK);
        scattered = recorded_ns(comm, seen, false, &(uint64_t){0});
        all = recorded_ns(comm, seen, true, &(uint64_t){0});
        CHECK(cddp_ddp_get_stats(m.ddp, &s) == CDDP_OK);
        CHECK(scattered > 0 && all > scattered);
        /* The first step does not count. */
        CHECK(step == 0 || s.last_comm_ns > (scattered + all) / 2);
    }
    cddp_optim_destroy(optim);
    model_close(&m);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    (void)rank;
    return 0;
}

Test(optim, exchange_of_parameters_is_communication)
{
    now.opt = rules[2];
    memcpy(now.dtypes, kinds_of_types[0], sizeof now.dtypes);
    for (int ranks = 2; ranks <= 3; ranks++)
        cr_assert_eq(run_world(ranks, exchange_is_timed), 0, "%d ranks", ranks);
}

/* Three elements in a world of eight. */
static int few(int rank)
{
    float w[3] = {1, 2, 3}, *g;
    cddp_param p = {.size = sizeof(cddp_param), .name = "w", .data = w, .count = 3, .dtype = CDDP_FLOAT32};
    cddp_optim *optim;
    cddp_comm *comm;
    cddp_ddp *ddp;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&ddp, comm, &p, 1, NULL) == CDDP_OK);
    CHECK(cddp_optim_create(&optim, ddp, &now.opt) == CDDP_OK);
    CHECK(cddp_optim_state_bytes(optim) == (rank == 0 ? 64 : 0));
    for (int step = 0; step < 3; step++) {
        g = cddp_ddp_grad(ddp, 0);
        for (int k = 0; k < 3; k++)
            g[k] = (float)(rank * 2 - 7 + 8 * k); /* the mean is 8 k */
        CHECK(cddp_ddp_grad_ready(ddp, 0) == CDDP_OK && cddp_optim_step(optim, NULL) == CDDP_OK);
    }
    CHECK(w[0] == 1 && w[1] == 2 - 3 * 0.125f * 8 && w[2] == 3 - 3 * 0.125f * 16);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, world_larger_than_model)
{
    now.opt = (cddp_optim_options){.size = sizeof now.opt, .kind = CDDP_OPTIM_SGD, .lr = 0.125, .momentum = 1e-30};
    cr_assert_eq(run_world(8, few), 0);
}

/* ------------------------------------------------------------------------------------------- unused parameters ---- */

/* Some ranks use parameter 3 in step 1, no rank does in step 2. */
static int unused(int rank)
{
    struct model plain = {0}, divided = {0};
    cddp_optim *optim;
    cddp_comm *comm;
    uint64_t steps_of_3 = 0;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&plain, comm) == 0 && model_open(&divided, comm) == 0);
    CHECK(communicate(plain.ddp) == 0 && communicate(divided.ddp) == 0);
    CHECK(cddp_optim_create(&optim, divided.ddp, &now.opt) == CDDP_OK);
    for (size_t step = 0; step < 4; step++) {
        size_t mine = step == 2 || (step == 1 && rank != 0) ? 3 : N, all = step == 2 ? 3 : N;

        steps_of_3 += all == N;
        CHECK(backward(&plain, rank, step, mine) == 0 && cddp_ddp_wait(plain.ddp) == CDDP_OK);
        plain_step(&plain, step + 1, 3);
        if (all == N) { /* this parameter alone, with separate steps */
            struct cdi_optim_rule rule = plain_rule(&now.opt, 1);

            cdi_optim_update_f32(&rule, steps_of_3, plain.w[3], cddp_ddp_grad(plain.ddp, 3),
                                 (float *[]){plain.s[3][0], plain.s[3][1]}, counts[3]);
        }
        CHECK(backward(&divided, rank, step, mine) == 0 && cddp_optim_step(optim, NULL) == CDDP_OK);
        for (size_t i = 0; i < N; i++)
            CHECK(memcmp(plain.w[i], divided.w[i], counts[i] * sizeof(float)) == 0);
    }
    cddp_optim_destroy(optim);
    model_close(&divided);
    model_close(&plain);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, unused_parameters_keep_values_and_state)
{
    now.opt = rules[2];
    memcpy(now.dtypes, kinds_of_types[0], sizeof now.dtypes);
    now.flags = CDDP_DDP_FIND_UNUSED;
    now.bucket_bytes = 4096;
    cr_assert_eq(run_world(4, unused), 0);
    now.powersgd = true;
    cr_assert_eq(run_world(3, unused), 0);
    now.powersgd = false;
    now.flags |= CDDP_DDP_SKIP_UNUSED;
    now.bucket_bytes = 1;
    cr_assert_eq(run_world(4, unused), 0);
    now.comm_dtype = CDDP_BFLOAT16;
    cr_assert_eq(run_world(3, unused), 0);
}

/* ------------------------------------------------------------------------------------------------ checkpoints */

static size_t first_step, last_step; /* what the next world does */

/*
 * One rank has the gradient, multiplied by the number of ranks, and the others have none: the mean is the same in every
 * world.
 */
static int give_alike(struct model *m, int rank, int size, size_t step)
{
    for (size_t i = N; i-- > 0;) {
        for (size_t k = 0; k < counts[i]; k++)
            number_put(grad_type(i), cddp_ddp_grad(m->ddp, i), k,
                       rank == size - 1 ? (double)size * ((double)((k + step * 3 + i) % 17) - 8) / 16 : 0);
        CHECK(cddp_ddp_grad_ready(m->ddp, i) == CDDP_OK);
    }
    return 0;
}

/* Continues where the previous world stopped, beside a reference that started from the beginning. */
static int go_on(int rank)
{
    struct model plain = {0}, divided = {0};
    cddp_checkpoint_item items[N];
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_optim *optim;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&plain, comm) == 0 && model_open(&divided, comm) == 0);
    CHECK(cddp_optim_create(&optim, divided.ddp, &now.opt) == CDDP_OK);
    for (size_t i = 0; i < N; i++)
        items[i] = (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item),
                                          .name = names[i],
                                          .data = divided.w[i],
                                          .bytes = counts[i] * cddp_dtype_size(now.dtypes[i])};
    if (first_step == 0)
        CHECK(load(comm, optim, NULL, items, N, &info) == CDDP_E_NOT_FOUND);
    else
        CHECK(load(comm, optim, NULL, items, N, &info) == CDDP_OK && info.step == first_step);
    for (size_t step = 0; step < last_step; step++) {
        CHECK(give_alike(&plain, rank, cddp_world_size(comm), step) == 0 && cddp_ddp_wait(plain.ddp) == CDDP_OK);
        plain_step(&plain, step + 1, N);
        if (step < first_step)
            continue;
        CHECK(give_alike(&divided, rank, cddp_world_size(comm), step) == 0 && cddp_optim_step(optim, NULL) == CDDP_OK);
        for (size_t i = 0; i < N; i++)
            CHECK(memcmp(plain.w[i], divided.w[i], items[i].bytes) == 0);
    }
    CHECK(save(comm, last_step, optim, NULL, items, N) == CDDP_OK);
    cddp_optim_destroy(optim);
    model_close(&divided);
    model_close(&plain);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, loads_checkpoint_in_other_world)
{
    static const int worlds[] = {4, 2, 8, 1, 4};

    for (size_t t = 0; t < 3; t++) {
        scratch_make();
        now.opt = rules[1 + t % 2];
        memcpy(now.dtypes, kinds_of_types[t], sizeof now.dtypes);
        now.bucket_bytes = t == 0 ? 4096 : 0;
        for (size_t k = 0; k < sizeof worlds / sizeof worlds[0]; k++) {
            first_step = 2 * k;
            last_step = 2 * k + 2;
            now.wide = k % 2 != 0; /* the state does not depend on it */
            cr_assert_eq(run_world(worlds[k], go_on), 0, "types %zu, world %zu", t, k);
        }
        scratch_remove();
    }
}

/* With PowerSGD's state: a resumed run has the bits of an uninterrupted one. */
static int go_on_with_powersgd(int rank)
{
    struct model whole = {0}, rest = {0};
    cddp_checkpoint_item items[N], again[N];
    cddp_optim *optim[2];
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&whole, comm) == 0 && communicate(whole.ddp) == 0);
    CHECK(model_open(&rest, comm) == 0 && communicate(rest.ddp) == 0);
    for (size_t i = 0; i < N; i++) {
        items[i] = (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item),
                                          .name = names[i],
                                          .data = whole.w[i],
                                          .bytes = counts[i] * cddp_dtype_size(now.dtypes[i])};
        again[i] = items[i];
        again[i].data = rest.w[i];
    }
    CHECK(cddp_optim_create(&optim[0], whole.ddp, &now.opt) == CDDP_OK);
    CHECK(cddp_optim_create(&optim[1], rest.ddp, &now.opt) == CDDP_OK);
    for (size_t step = 0; step < STEPS; step++) {
        CHECK(backward(&whole, rank, step, N) == 0 && cddp_optim_step(optim[0], NULL) == CDDP_OK);
        if (step == 2) {
            CHECK(save(comm, step, optim[0], whole.ddp, items, N) == CDDP_OK);
            CHECK(load(comm, optim[1], rest.ddp, again, N, NULL) == CDDP_OK);
        }
        if (step > 2)
            CHECK(backward(&rest, rank, step, N) == 0 && cddp_optim_step(optim[1], NULL) == CDDP_OK);
        for (size_t i = 0; i < N && step > 2; i++)
            CHECK(memcmp(whole.w[i], rest.w[i], items[i].bytes) == 0);
    }
    /* A state without PowerSGD's does not fit a reducer that has it, nor the other way round. */
    CHECK(cddp_ddp_set_hook(whole.ddp, NULL) == CDDP_OK);
    CHECK(load(comm, optim[0], whole.ddp, items, N, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "item 'ddp': it contains PowerSGD errors, and this reducer has no") != NULL);
    CHECK(load(comm, optim[0], NULL, items, N, NULL) == CDDP_OK);
    CHECK(save(comm, 9, optim[0], whole.ddp, items, N) == CDDP_OK);
    CHECK(load(comm, optim[1], rest.ddp, again, N, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "item 'ddp': it was saved from a reducer without PowerSGD") != NULL);
    CHECK(load(comm, optim[0], whole.ddp, items, N, NULL) == CDDP_OK);
    cddp_optim_destroy(optim[0]);
    cddp_optim_destroy(optim[1]);
    model_close(&whole);
    model_close(&rest);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, checkpoint_includes_powersgd)
{
    now.opt = rules[3];
    memcpy(now.dtypes, kinds_of_types[0], sizeof now.dtypes);
    now.bucket_bytes = 4096;
    now.powersgd = true;
    for (int ranks = 1; ranks <= 3; ranks++) {
        scratch_make();
        cr_assert_eq(run_world(ranks, go_on_with_powersgd), 0, "%d ranks", ranks);
        scratch_remove();
    }
}

/* As many elements in another order: nothing changes, including the user's items. */
static int load_swapped(cddp_comm *comm)
{
    float w[2] = {1, 2};
    cddp_param p[2] =
        {{.size = sizeof(cddp_param), .name = "first", .data = &w[0], .count = 1, .dtype = CDDP_FLOAT32},
         {.size = sizeof(cddp_param), .name = "second", .data = &w[1], .count = 1, .dtype = CDDP_FLOAT32}},
               swapped[2] = {p[1], p[0]};
    const cddp_checkpoint_item item = {.size = sizeof(cddp_checkpoint_item), .name = "w", .data = w, .bytes = sizeof w};
    cddp_optim *optim;
    cddp_ddp *ddp;

    CHECK(cddp_ddp_create(&ddp, comm, p, 2, NULL) == CDDP_OK && cddp_optim_create(&optim, ddp, &now.opt) == CDDP_OK);
    CHECK(save(comm, 5, optim, NULL, &item, 1) == CDDP_OK);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
    w[0] = 7;
    CHECK(cddp_ddp_create(&ddp, comm, swapped, 2, NULL) == CDDP_OK);
    CHECK(cddp_optim_create(&optim, ddp, &now.opt) == CDDP_OK);
    CHECK(load(comm, optim, NULL, &item, 1, NULL) == CDDP_E_MISMATCH && w[0] == 7);
    CHECK(strstr(cddp_last_error(), "item 'optim': its state belongs to other parameters than this model's: the first "
                                    "that differs is parameter 0, now '") != NULL);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
    return 0;
}

/*
 * The reducer is destroyed first: every function that needs it reports that, and destroying the optimizer frees the
 * rest.
 */
static int outlived(int rank)
{
    struct model m = {0};
    cddp_optim *optim;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&m, comm) == 0);
    CHECK(cddp_optim_create(&optim, m.ddp, &now.opt) == CDDP_OK);
    CHECK(backward(&m, rank, 0, N) == 0 && cddp_optim_step(optim, NULL) == CDDP_OK);
    model_close(&m);
    CHECK(cddp_optim_step(optim, NULL) == CDDP_E_STATE);
    CHECK(strcmp(cddp_last_error(), "cddp_optim_step: this optimizer's model was destroyed: only "
                                    "cddp_optim_destroy may be called now") == 0);
    CHECK(cddp_optim_skip(optim) == CDDP_E_STATE && cddp_optim_set_lr(optim, 0.5) == CDDP_E_STATE);
    CHECK(save(comm, 1, optim, NULL, NULL, 0) == CDDP_E_STATE);
    CHECK(strcmp(cddp_last_error(),
                 "checkpoint: item 'optim': cddp_checkpoint_save: this optimizer's model was destroyed: "
                 "only cddp_optim_destroy may be called now") == 0);
    CHECK(load(comm, optim, NULL, NULL, 0, NULL) == CDDP_E_STATE);
    cddp_optim_destroy(optim);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, reports_destroyed_reducer)
{
    now.opt = rules[2];
    memcpy(now.dtypes, kinds_of_types[0], sizeof now.dtypes);
    scratch_make();
    cr_assert_eq(run_world(2, outlived), 0);
    scratch_remove();
}

static int load_other(int rank)
{
    cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 1, .momentum = 0.5};
    struct model m = {0};
    cddp_optim *optim;
    cddp_comm *comm;
    float w = -1;
    cddp_checkpoint_item item = item_memory("more", &w, sizeof w), one;
    cddp_comm *part;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&part, comm, 0, 0, NULL) == CDDP_OK);
    CHECK(model_open(&m, comm) == 0);
    CHECK(cddp_optim_create(&optim, m.ddp, &now.opt) == CDDP_OK);
    CHECK(save(comm, 1, optim, NULL, NULL, 0) == CDDP_OK);
    CHECK(load(comm, optim, NULL, NULL, 0, NULL) == CDDP_OK);
    CHECK(load(comm, optim, NULL, &item, 1, NULL) == CDDP_E_MISMATCH && strstr(cddp_last_error(), "'more'") != NULL);
    CHECK(load(part, optim, NULL, NULL, 0, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "item 'optim': this optimizer's reducer belongs to another communicator") != NULL);
    CHECK(load(part, optim, m.ddp, NULL, 0, NULL) == CDDP_E_INVALID);
    cddp_optim_destroy(optim);
    CHECK(cddp_optim_create(&optim, m.ddp, &sgd) == CDDP_OK);
    CHECK(load(comm, optim, NULL, NULL, 0, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "item 'optim': its state was made by Adam or AdamW, and this optimizer is SGD") !=
          NULL);
    CHECK(save(comm, 2, optim, NULL, NULL, 0) == CDDP_OK);
    cddp_optim_destroy(optim);
    sgd.momentum = 0;
    CHECK(cddp_optim_create(&optim, m.ddp, &sgd) == CDDP_OK);
    CHECK(load(comm, optim, NULL, NULL, 0, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "made with momentum, and this optimizer works without") != NULL);
    cddp_optim_destroy(optim);
    CHECK(load_swapped(comm) == 0);
    CHECK(cddp_optim_create(&optim, m.ddp, &sgd) == CDDP_OK);
    /* If rank 0 cannot write, all ranks get the error. */
    one = item_of(CDDP_ITEM_OPTIM, "optim", optim);
    CHECK(cddp_checkpoint_save(comm, "/proc/nowhere/at/all", 2, &one, 1, NULL) == CDDP_E_SYSTEM);
    CHECK(cddp_ddp_grad_ready(m.ddp, 4) == CDDP_OK);
    CHECK(save(comm, 2, optim, NULL, NULL, 0) == CDDP_E_STATE && strstr(cddp_last_error(), "middle") != NULL);
    CHECK(cddp_finalize(part) == CDDP_OK);
    cddp_optim_destroy(optim);
    model_close(&m);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    (void)rank;
    return 0;
}

Test(optim, rejects_checkpoint_of_other_optimizer)
{
    scratch_make();
    now.opt = rules[2];
    memcpy(now.dtypes, kinds_of_types[0], sizeof now.dtypes);
    cr_assert_eq(run_world(2, load_other), 0);
    scratch_remove();
}

/* A failed load changes nothing, on rank 0 either: both models continue alike. */
static int go_on_after_a_failed_load(int rank)
{
    struct model plain = {0}, divided = {0};
    float w = -1;
    cddp_checkpoint_item missing = {
        .size = sizeof(cddp_checkpoint_item), .name = "missing", .data = &w, .bytes = sizeof w};
    cddp_optim *optim;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&plain, comm) == 0 && model_open(&divided, comm) == 0);
    CHECK(cddp_optim_create(&optim, divided.ddp, &now.opt) == CDDP_OK);
    CHECK(save(comm, 1, optim, NULL, NULL, 0) == CDDP_OK);
    for (size_t step = 0; step < 3; step++) {
        CHECK(give_alike(&plain, rank, cddp_world_size(comm), step) == 0 && cddp_ddp_wait(plain.ddp) == CDDP_OK);
        plain_step(&plain, step + 1, N);
        CHECK(give_alike(&divided, rank, cddp_world_size(comm), step) == 0 && cddp_optim_step(optim, NULL) == CDDP_OK);
        for (size_t i = 0; i < N; i++)
            CHECK(memcmp(plain.w[i], divided.w[i], counts[i] * cddp_dtype_size(now.dtypes[i])) == 0);
        CHECK(load(comm, optim, NULL, &missing, 1, NULL) == CDDP_E_MISMATCH && w == -1);
    }
    cddp_optim_destroy(optim);
    model_close(&divided);
    model_close(&plain);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, failed_load_changes_nothing)
{
    scratch_make();
    now.opt = rules[2];
    now.bucket_bytes = 4096;
    memcpy(now.dtypes, kinds_of_types[0], sizeof now.dtypes);
    cr_assert_eq(run_world(2, go_on_after_a_failed_load), 0);
    scratch_remove();
}

/* ------------------------------------------------------------------------------------------------ rejections ---- */

#define REFUSED(options, status, text)                                   \
    do {                                                                 \
        CHECK(cddp_optim_create(&optim, m.ddp, &(options)) == (status)); \
        CHECK(strstr(cddp_last_error(), text) != NULL);                  \
    } while (0)

static int refused_groups(cddp_ddp *ddp, int rank)
{
    static const size_t one[] = {1}, twice[] = {2, 0, 2}, none[] = {N};
    const struct {
        cddp_optim_group g;
        const char *text;
    } bad[] = {{{.params = one, .n_params = 1}, "cddp_optim_group: size is 0 in element 1, but 48 in element 0"},
               {{.size = sizeof(cddp_optim_group), .n_params = 1}, "groups[1]: n_params is 1, but params is NULL"},
               {{.size = sizeof(cddp_optim_group), .params = one, .n_params = 1, .lr_factor = 1},
                "groups[1]: parameter 1 'b' is in a group already"},
               {{.size = sizeof(cddp_optim_group), .params = one, .n_params = 1, .flags = CDDP_OPTIM_GROUP_FROZEN},
                "groups[1]: parameter 1 'b' is in a group already"},
               {{.size = sizeof(cddp_optim_group), .params = twice, .n_params = 3, .lr_factor = 1},
                "groups[1]: parameter 2 'c' is in a group already"},
               {{.size = sizeof(cddp_optim_group), .lr_factor = 0},
                "groups[1].lr_factor is 0: it must be above 0; 1 is the optimizer's learning rate, and "
                "CDDP_OPTIM_GROUP_FROZEN keeps"},
               {{.size = sizeof(cddp_optim_group), .lr_factor = 1, .flags = 2}, "groups[1].flags has unknown bits"},
               {{.size = sizeof(cddp_optim_group), .params = none, .n_params = 1, .lr_factor = 1},
                "groups[1]: there is no parameter 5, only 0 to 4"},
               {{.size = sizeof(cddp_optim_group), .params = one, .n_params = SIZE_MAX},
                "groups[1]: n_params is 18446744073709551615, but the reducer has 5"},
               {{.size = sizeof(cddp_optim_group), .lr_factor = -1}, "groups[1].lr_factor is -1"},
               {{.size = sizeof(cddp_optim_group), .lr_factor = 1, .weight_decay = NAN}, "groups[1].weight_decay is "}};
    cddp_optim_group groups[2] = {{.size = sizeof(cddp_optim_group), .params = one, .n_params = 1, .lr_factor = 1}};
    cddp_optim_options o = {.size = sizeof o, .kind = CDDP_OPTIM_SGD, .lr = 1, .n_groups = 2};
    cddp_optim *optim = NULL;

    CHECK(cddp_optim_create(&optim, ddp, &o) == CDDP_E_INVALID && strstr(cddp_last_error(), "groups is NULL") != NULL);
    o.groups = groups;
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        groups[1] = bad[k].g;
        CHECK(cddp_optim_create(&optim, ddp, &o) == CDDP_E_INVALID);
        CHECK(strstr(cddp_last_error(), bad[k].text) != NULL);
    }
    groups[1] = (cddp_optim_group){.size = sizeof(cddp_optim_group), .params = none, .n_params = 0, .lr_factor = 2};
    groups[0].weight_decay = rank == 0 ? 0 : 0.5;
    CHECK(cddp_optim_create(&optim, ddp, &o) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "groups differ: a parameter has other values on rank 0 than on rank 1") != NULL);
    return 0;
}

static int refused(int rank)
{
    cddp_optim_options o = now.opt;
    struct model m = {0};
    cddp_optim *optim = NULL;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(model_open(&m, comm) == 0);
    CHECK(cddp_optim_create(&optim, m.ddp, NULL) == CDDP_E_INVALID);
    o.size = 8;
    REFUSED(o, CDDP_E_INVALID, "sizeof(cddp_optim_options)");
    o = (cddp_optim_options){.size = sizeof o, .lr = 1};
    REFUSED(o, CDDP_E_INVALID, "kind is 0");
    o = (cddp_optim_options){.size = sizeof o, .kind = CDDP_OPTIM_ADAM};
    REFUSED(o, CDDP_E_INVALID, "lr is 0: it must be above 0");
    o = (cddp_optim_options){.size = sizeof o, .kind = CDDP_OPTIM_ADAM, .lr = 1};
    REFUSED(o, CDDP_E_INVALID, "beta2 is 0: it must be above 0 and below 1; cddp_optim_defaults() fills in");
    o.beta2 = 0.9;
    REFUSED(o, CDDP_E_INVALID, "eps is 0: it must be above 0; cddp_optim_defaults() fills in PyTorch's");
    cddp_optim_defaults(&o, sizeof o, CDDP_OPTIM_ADAM);
    o.beta1 = -0.1;
    REFUSED(o, CDDP_E_INVALID, "beta1 is -0.1: it must be 0 or more, and below 1");
    cddp_optim_defaults(&o, sizeof o, (cddp_optim_kind)9);
    REFUSED(o, CDDP_E_INVALID, "kind is 9");
    cddp_optim_defaults(&o, sizeof o, CDDP_OPTIM_SGD);
    o.flags = 2;
    REFUSED(o, CDDP_E_INVALID, "flags has unknown bits: 0x2");
    o = (cddp_optim_options){.size = sizeof o, .kind = CDDP_OPTIM_ADAM, .lr = 1, .momentum = 0.9};
    REFUSED(o, CDDP_E_INVALID, "only CDDP_OPTIM_SGD has it");
    o = (cddp_optim_options){.size = sizeof o, .kind = CDDP_OPTIM_SGD, .lr = 1, .flags = CDDP_OPTIM_NESTEROV};
    REFUSED(o, CDDP_E_INVALID, "CDDP_OPTIM_NESTEROV, which is for SGD with momentum");
    o = (cddp_optim_options){.size = sizeof o, .kind = CDDP_OPTIM_ADAM, .lr = 1, .beta2 = 1};
    REFUSED(o, CDDP_E_INVALID, "beta2 is 1: it must be above 0 and below 1");
    /* Ranks that disagree, and one that fails alone. */
    o = now.opt;
    o.weight_decay = rank == 1 ? 0.5 : 0;
    REFUSED(o, CDDP_E_MISMATCH, "cddp_optim_options.weight_decay is 0 on rank 0 but 0.5 on rank 1");
    o = now.opt;
    if (rank == 0)
        cddp_optim_defaults(&o, sizeof o, CDDP_OPTIM_ADAM);
    REFUSED(o, CDDP_E_MISMATCH, "kind is 2 on rank 0 but 1 on rank 1");
    o = now.opt;
    o.lr = rank == 1 ? -1 : 1;
    REFUSED(o, CDDP_E_INVALID, rank == 1 ? "lr is -1" : "rank 1 could not create its optimizer: ");
    CHECK(refused_groups(m.ddp, rank) == 0);
    /* With an optimizer, waiting for whole means, a second optimizer and a hook are rejected. */
    CHECK(cddp_optim_create(&optim, m.ddp, &now.opt) == CDDP_OK);
    CHECK(cddp_ddp_wait(m.ddp) == CDDP_E_STATE && strstr(cddp_last_error(), "cddp_optim_step") != NULL);
    CHECK(cddp_ddp_wait_param(m.ddp, 0) == CDDP_E_STATE);
    CHECK(cddp_optim_create(&optim, m.ddp, &now.opt) == CDDP_E_STATE);
    CHECK(cddp_optim_set_lr(optim, -1) == CDDP_E_INVALID && cddp_optim_set_lr(optim, 0) == CDDP_OK);
    CHECK(cddp_optim_skip(NULL) == CDDP_E_INVALID && cddp_optim_step(NULL, NULL) == CDDP_E_INVALID);
    /* The missing parameters are named, whichever function is called first; and the error is sticky. */
    CHECK(cddp_ddp_clip_grad_norm(m.ddp, 1, 2, 0, NULL) == CDDP_E_STATE);
    CHECK(strstr(cddp_last_error(), "'a', 'b'") != NULL);
    CHECK(cddp_optim_step(optim, NULL) == CDDP_E_STATE && strstr(cddp_last_error(), "'a', 'b'") != NULL);
    cddp_optim_destroy(optim);
    cddp_optim_destroy(NULL);
    model_close(&m);
    CHECK(cddp_finalize(comm) != CDDP_OK);
    return 0;
}

Test(optim, rejects_bad_options_and_disagreement)
{
    now.opt = (cddp_optim_options){.size = sizeof now.opt, .kind = CDDP_OPTIM_SGD, .lr = 1};
    memcpy(now.dtypes, kinds_of_types[0], sizeof now.dtypes);
    cr_assert_eq(run_world(2, refused), 0);
}

static int unsupported(int rank)
{
    float w[4] = {0};
    cddp_param p = {.size = sizeof(cddp_param), .name = "w", .data = w, .count = 4, .dtype = CDDP_FLOAT32};
    cddp_ddp_options join = {.size = sizeof join, .flags = CDDP_DDP_JOIN};
    cddp_ddp_options cut = {.size = sizeof cut, .flags = CDDP_DDP_SPLIT};
    cddp_optim *optim;
    cddp_comm *comm;
    cddp_ddp *ddp;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&ddp, comm, &p, 1, &join) == CDDP_OK);
    CHECK(cddp_optim_create(&optim, ddp, &now.opt) == CDDP_E_UNSUPPORTED);
    CHECK(strstr(cddp_last_error(), "(CDDP_DDP_JOIN): one that waits in cddp_ddp_join cannot know") != NULL);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_ddp_create(&ddp, comm, &p, 1, &cut) == CDDP_OK);
    CHECK(cddp_optim_create(&optim, ddp, &now.opt) == CDDP_E_UNSUPPORTED);
    CHECK(strstr(cddp_last_error(), "CDDP_DDP_SPLIT") != NULL);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_ddp_create(&ddp, comm, &p, 1, NULL) == CDDP_OK);
    CHECK(cddp_optim_create(&optim, ddp, &now.opt) == CDDP_OK);
    cddp_optim_destroy(optim);
    /* Without an optimizer again: whole means. */
    *(float *)cddp_ddp_grad(ddp, 0) = (float)rank;
    CHECK(cddp_ddp_grad_ready(ddp, 0) == CDDP_OK);
    CHECK(cddp_optim_create(&optim, ddp, &now.opt) == CDDP_E_STATE && strstr(cddp_last_error(), "middle") != NULL);
    CHECK(cddp_ddp_wait(ddp) == CDDP_OK && *(float *)cddp_ddp_grad(ddp, 0) == 0.5f);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(optim, rejects_unsupported_reducers)
{
    now.opt = (cddp_optim_options){.size = sizeof now.opt, .kind = CDDP_OPTIM_SGD, .lr = 1};
    cr_assert_eq(run_world(2, unsupported), 0);
}
