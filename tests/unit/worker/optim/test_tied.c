/* SPDX-License-Identifier: Apache-2.0 */
/* Tied parameters, several of one memory: the optimizer against plain arithmetic on each memory once, in float64. */
#include "hygiene.h"
#include "items.h"
#include "mean_hook.h"
#include "numbers.h"
#include "scratch.h"
#include "worker/math/optim_update.h"
#include "world.h"

#include <math.h>
#include <stdbool.h>
#include <sys/stat.h>

CDI_SUITE(tied);

#define N 9
#define BLOCKS 5
#define MOST 5003
#define STEPS 6

/* A parameter and the memory that it is. */
static const struct {
    const char *name;
    size_t block;
} params[N] = {{"embed", 0}, {"body", 1},  {"scale", 2}, {"head", 0},      {"scale_again", 2},
               {"bias", 3},  {"third", 0}, {"half", 4},  {"half_again", 4}};

static const struct {
    size_t count;
    cddp_dtype dtype;
    double tolerance;
} blocks[BLOCKS] = {{MOST, CDDP_FLOAT32, 1e-6},
                    {1009, CDDP_FLOAT32, 1e-6},
                    {33, CDDP_FLOAT64, 1e-6},
                    {7, CDDP_FLOAT32, 1e-6},
                    {129, CDDP_FLOAT16, 2e-3}};

static const cddp_optim_options rules[] = {
    {.size = sizeof rules[0], .kind = CDDP_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01},
    {.size = sizeof rules[0],
     .kind = CDDP_OPTIM_ADAMW,
     .lr = 0.01,
     .weight_decay = 0.1,
     .beta1 = 0.8,
     .beta2 = 0.95,
     .eps = 1e-3},
};

/* What the ranks of a test do; set before the fork. */
static struct {
    size_t rule, bucket_bytes;
    uint32_t flags;
    cddp_dtype comm_dtype;
    double max_norm; /* 0: none */
    bool clip_first; /* by cddp_ddp_clip_grad_norm */
    bool own, hook, groups;
    bool frozen; /* in some steps, block 0 is */
} now;

struct model {
    double w[BLOCKS][MOST]; /* of each block's type */
    void *own;
    cddp_ddp *ddp;
    cddp_optim *optim;
};

/* The reference: everything in float64, once. */
struct serial {
    double w[BLOCKS][MOST], g[BLOCKS][MOST], s[BLOCKS][CDI_OPTIM_STATES][MOST];
    uint64_t steps[BLOCKS];
};

static double start(size_t block, size_t k)
{
    return (double)((int)((k * 5 + block) % 23) - 11) / 8;
}

static bool is_frozen(size_t i, size_t step)
{
    return now.frozen && params[i].block == 0 && (step == 1 || step == 2);
}

/* Does a rank use parameter i? In some steps nobody uses the first of those that are tied, or any of them. */
static bool uses(int rank, size_t i, size_t step)
{
    if (is_frozen(i, step))
        return false;
    if ((now.flags & CDDP_DDP_FIND_UNUSED) == 0)
        return true;
    switch (i) {
    case 0:
        return step % 2 == 0;
    case 2:
        return step % 3 == 0 && rank == 0;
    case 3:
        return rank == 0;
    case 4:
        return step % 3 == 0;
    case 6:
        return false;
    default:
        return true;
    }
}

/* Exact in every type. */
static double gradient(int rank, size_t i, size_t k, size_t step)
{
    return (double)((int)((k * 7 + i * 3 + (size_t)rank * 5 + step * 11) % 17) - 8) / 4;
}

/* This rank's part of the mean. With weights they are exact, and their sum is 4. */
static double part(int rank, int ranks)
{
    return (now.flags & CDDP_DDP_WEIGHTED) == 0 ? 1.0 / ranks : rank + 1 < ranks ? 0.25 : 0.25 * (5 - ranks);
}

static double lr_factor(size_t block)
{
    return now.groups && block == 0 ? 0.5 : 1;
}

/* Adds up the means of all parameters of a block. */
static bool sum_means(double *g, size_t block, int ranks, size_t step)
{
    bool used = false;

    memset(g, 0, MOST * sizeof *g);
    for (size_t i = 0; i < N; i++)
        for (int r = 0; r < ranks && params[i].block == block; r++) {
            if (!uses(r, i, step))
                continue;
            used = true;
            for (size_t k = 0; k < blocks[block].count; k++)
                g[k] += gradient(r, i, k, step) * part(r, ranks);
        }
    return used;
}

static void serial_step(struct serial *s, int ranks, size_t step)
{
    const cddp_optim_options *o = &rules[now.rule];
    struct cdi_optim_rule rule = {.kind = o->kind,
                                  .weight_decay = o->weight_decay,
                                  .momentum = o->momentum,
                                  .beta1 = o->beta1,
                                  .beta2 = o->beta2,
                                  .eps = o->eps,
                                  .factor = 1};
    double sum = 0;
    bool used[BLOCKS];

    for (size_t b = 0; b < BLOCKS; b++) {
        used[b] = sum_means(s->g[b], b, ranks, step);
        for (size_t k = 0; k < blocks[b].count; k++)
            sum += s->g[b][k] * s->g[b][k];
    }
    if (now.max_norm > 0)
        rule.factor = fmin(1, now.max_norm / (sqrt(sum) + 1e-6));
    for (size_t b = 0; b < BLOCKS; b++) {
        rule.lr = o->lr * lr_factor(b);
        if (used[b])
            cdi_optim_update_f64(&rule, ++s->steps[b], s->w[b], s->g[b], (double *[]){s->s[b][0], s->s[b][1]},
                                 blocks[b].count);
    }
}

static void list(cddp_param p[N], struct model *m)
{
    for (size_t i = 0; i < N; i++) {
        size_t b = params[i].block;

        p[i] = (cddp_param){.size = sizeof p[0],
                            .name = params[i].name,
                            .data = m->w[b],
                            .count = blocks[b].count,
                            .dtype = blocks[b].dtype};
    }
    p[3].grad = now.own ? m->own : NULL;
}

static int model_optim(struct model *m)
{
    static const size_t tied[] = {6, 0, 3};
    static const cddp_optim_group group = {
        .size = sizeof group, .params = tied, .n_params = 3, .lr_factor = 0.5, .weight_decay = 0.1};
    cddp_optim_options o = rules[now.rule];

    o.groups = &group;
    o.n_groups = now.groups;
    CHECK(cddp_optim_create(&m->optim, m->ddp, &o) == CDDP_OK);
    return 0;
}

static int model_open(struct model *m, cddp_comm *comm)
{
    const cddp_ddp_options o = {.size = sizeof o,
                                .bucket_bytes = now.bucket_bytes,
                                .first_bucket_bytes = now.bucket_bytes,
                                .flags = now.flags,
                                .comm_dtype = now.comm_dtype};
    const cddp_hook hook = {.size = sizeof hook, .begin = mean_hook_begin};
    cddp_param p[N];

    for (size_t b = 0; b < BLOCKS; b++)
        for (size_t k = 0; k < blocks[b].count; k++)
            number_put(blocks[b].dtype, m->w[b], k, start(b, k));
    m->own = calloc(MOST, sizeof(float));
    list(p, m);
    CHECK(cddp_ddp_create(&m->ddp, comm, p, N, &o) == CDDP_OK);
    CHECK(!now.hook || cddp_ddp_set_hook(m->ddp, &hook) == CDDP_OK);
    return model_optim(m);
}

static void model_close(struct model *m)
{
    cddp_optim_destroy(m->optim);
    cddp_ddp_destroy(m->ddp);
    free(m->own);
    free(m);
}

static int backward(const struct model *m, int rank, size_t step)
{
    for (size_t i = N; i-- > 0;) {
        size_t b = params[i].block;

        if (!uses(rank, i, step))
            continue;
        for (size_t k = 0; k < blocks[b].count; k++)
            grad_put(m->ddp, blocks[b].dtype, i, k, gradient(rank, i, k, step));
        CHECK(cddp_ddp_grad_ready(m->ddp, i) == CDDP_OK);
    }
    return 0;
}

static int update(const struct model *m)
{
    const cddp_optim_step_args args = {.size = sizeof args, .max_norm = now.clip_first ? 0 : now.max_norm};
    double norm, again;

    if (now.clip_first) {
        CHECK(cddp_ddp_grad_norm(m->ddp, 2, &norm) == CDDP_OK);
        CHECK(cddp_ddp_clip_grad_norm(m->ddp, now.max_norm, 2, 1, &again) == CDDP_OK);
        CHECK(norm == again && norm > now.max_norm);
    }
    CHECK(cddp_optim_step(m->optim, &args) == CDDP_OK);
    return 0;
}

/* All ranks have the same bits, and the serial run's values. */
static int compare(cddp_comm *comm, const struct model *m, const struct serial *s)
{
    const size_t n = sizeof m->w / sizeof(uint64_t);
    uint64_t *low = calloc(n, sizeof *low), *high = calloc(n, sizeof *high);

    CHECK(cddp_all_reduce(comm, m->w, low, n, CDDP_UINT64, CDDP_MIN) == CDDP_OK);
    CHECK(cddp_all_reduce(comm, m->w, high, n, CDDP_UINT64, CDDP_MAX) == CDDP_OK);
    CHECK(memcmp(low, high, n * sizeof *low) == 0);
    free(low);
    free(high);
    for (size_t b = 0; b < BLOCKS; b++)
        for (size_t k = 0; k < blocks[b].count; k++)
            CHECK(fabs(number_get(blocks[b].dtype, m->w[b], k) - s->w[b][k]) <= blocks[b].tolerance);
    return 0;
}

static struct serial *serial_open(void)
{
    struct serial *s = calloc(1, sizeof *s);

    for (size_t b = 0; b < BLOCKS; b++)
        for (size_t k = 0; k < blocks[b].count; k++)
            s->w[b][k] = start(b, k);
    return s;
}

/* All tied parameters are frozen, or none. */
static int freeze(const struct model *m, size_t step)
{
    static const size_t tied[] = {6, 0, 3};
    int used = 7;

    if (step == 1) {
        CHECK(cddp_ddp_set_frozen(m->ddp, tied, 2, 1) == CDDP_E_INVALID);
        CHECK(strstr(cddp_last_error(), "0 'embed' and 3 'head' are tied") != NULL);
        CHECK(cddp_ddp_was_used(m->ddp, 0, &used) == CDDP_OK && used == 1);
        CHECK(cddp_ddp_set_frozen(m->ddp, tied, 3, 1) == CDDP_OK);
        CHECK(cddp_ddp_was_used(m->ddp, 0, &used) == CDDP_E_STATE);
    } else if (step == 2) {
        CHECK(cddp_ddp_was_used(m->ddp, 3, &used) == CDDP_OK && used == 0);
        CHECK(cddp_ddp_was_used(m->ddp, 1, &used) == CDDP_OK && used == 1);
    } else if (step == 3) {
        CHECK(cddp_ddp_set_frozen(m->ddp, tied, 1, 0) == CDDP_E_INVALID);
        CHECK(cddp_ddp_set_frozen(m->ddp, tied, 3, 0) == CDDP_OK);
    }
    return 0;
}

static int train(int rank)
{
    struct serial *s = serial_open();
    struct model *m = calloc(1, sizeof *m);
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && model_open(m, comm) == 0);
    for (size_t step = 0; step < STEPS; step++) {
        CHECK(!now.frozen || freeze(m, step) == 0);
        CHECK((now.flags & CDDP_DDP_WEIGHTED) == 0 ||
              cddp_ddp_set_weight(m->ddp, 4 * part(rank, cddp_world_size(comm))) == CDDP_OK);
        CHECK(backward(m, rank, step) == 0 && update(m) == 0);
        serial_step(s, cddp_world_size(comm), step);
        CHECK(compare(comm, m, s) == 0);
    }
    model_close(m);
    free(s);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

static void expect_serial(int ranks, const char *what)
{
    for (now.rule = 0; now.rule < 2; now.rule++)
        cr_assert_eq(run_world(ranks, train), 0, "%s, %d ranks, rule %zu", what, ranks, now.rule);
}

Test(tied, one_bucket_and_many_match_serial_run)
{
    for (int ranks = 1; ranks <= 4; ranks++) {
        now.bucket_bytes = 0;
        expect_serial(ranks, "one bucket");
        now.bucket_bytes = 64;
        expect_serial(ranks, "a bucket each");
    }
}

Test(tied, norms_count_the_sum_once)
{
    now.max_norm = 0.5;
    now.bucket_bytes = 4096;
    for (int ranks = 1; ranks <= 4; ranks++) {
        now.clip_first = ranks % 2 == 0;
        now.flags = ranks == 4 ? CDDP_DDP_SUM : 0;
        expect_serial(ranks, "clipped");
    }
}

Test(tied, one_that_is_used_is_enough)
{
    now.flags = CDDP_DDP_FIND_UNUSED;
    now.max_norm = 0.5;
    for (int ranks = 1; ranks <= 4; ranks++) {
        now.bucket_bytes = ranks % 2 == 0 ? 64 : 0;
        now.clip_first = ranks > 2;
        expect_serial(ranks, "unused ones");
    }
    now.flags |= CDDP_DDP_SKIP_UNUSED;
    now.bucket_bytes = 64;
    expect_serial(3, "unused buckets");
}

Test(tied, means_with_weights_match_serial_run)
{
    for (int ranks = 2; ranks <= 3; ranks++) {
        now.flags = CDDP_DDP_WEIGHTED;
        now.bucket_bytes = 0;
        now.max_norm = ranks == 3 ? 0.5 : 0;
        expect_serial(ranks, "weights");
        now.flags |= CDDP_DDP_FIND_UNUSED;
        now.bucket_bytes = 64;
        expect_serial(ranks, "weights, unused ones");
    }
}

Test(tied, are_frozen_together)
{
    now.frozen = true;
    for (int ranks = 1; ranks <= 3; ranks++) {
        now.bucket_bytes = ranks == 2 ? 0 : 64;
        now.max_norm = ranks == 3 ? 0.5 : 0;
        expect_serial(ranks, "frozen ones");
    }
}

Test(tied, other_ways_and_a_group_of_all_match_serial_run)
{
    now.hook = true;
    expect_serial(2, "a hook");
    now.hook = false;
    now.comm_dtype = CDDP_FLOAT16; /* the means of two are exact in it */
    expect_serial(2, "compressed");
    now.comm_dtype = CDDP_DTYPE_NONE;
    now.own = true;
    expect_serial(3, "own memory");
    now.groups = true;
    now.rule = 1;
    now.bucket_bytes = 4096;
    cr_assert_eq(run_world(4, train), 0, "a group");
}

/* The state is in the file once, and another world continues with it as one that was never stopped. */
static int ranks_before, ranks_after; /* that save, and that load */

static int save_half(int rank)
{
    struct model *m = calloc(1, sizeof *m);
    cddp_checkpoint_item item[1 + BLOCKS];
    char names[BLOCKS][4];
    uint64_t bytes, all, whole = 0;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && model_open(m, comm) == 0);
    for (size_t b = 0; b < BLOCKS; b++)
        whole += blocks[b].count * (blocks[b].dtype == CDDP_FLOAT64 ? 16 : blocks[b].dtype == CDDP_FLOAT32 ? 8 : 12);
    bytes = cddp_optim_state_bytes(m->optim);
    CHECK(cddp_all_reduce(comm, &bytes, &all, 1, CDDP_UINT64, CDDP_SUM) == CDDP_OK);
    CHECK(all >= whole && all <= whole + 4096);
    for (size_t step = 0; step < STEPS / 2; step++)
        CHECK(backward(m, rank, step) == 0 && update(m) == 0);
    item[0] = item_of(CDDP_ITEM_OPTIM, "optim", m->optim);
    for (size_t b = 0; b < BLOCKS; b++) {
        (void)snprintf(names[b], sizeof names[b], "w%zu", b);
        item[1 + b] = item_memory(names[b], m->w[b], sizeof m->w[b]);
    }
    CHECK(cddp_checkpoint_save(comm, scratch, 3, item, 1 + BLOCKS, NULL) == CDDP_OK);
    if (rank == 0) {
        char path[160];
        struct stat st;

        (void)snprintf(path, sizeof path, "%s/checkpoint-%020d.cddp", scratch, 3);
        CHECK(stat(path, &st) == 0 && (uint64_t)st.st_size < sizeof m->w + whole + 65536);
    }
    model_close(m);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

static int load_half(int rank)
{
    struct model *m = calloc(1, sizeof *m);
    struct serial *s = serial_open();
    cddp_checkpoint_item item[1 + BLOCKS];
    char names[BLOCKS][4];
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && model_open(m, comm) == 0);
    item[0] = item_of(CDDP_ITEM_OPTIM, "optim", m->optim);
    for (size_t b = 0; b < BLOCKS; b++) {
        (void)snprintf(names[b], sizeof names[b], "w%zu", b);
        item[1 + b] = item_memory(names[b], m->w[b], sizeof m->w[b]);
    }
    CHECK(cddp_checkpoint_load(comm, scratch, item, 1 + BLOCKS, NULL) == CDDP_OK);
    for (size_t step = 0; step < STEPS; step++) {
        bool loaded = step >= STEPS / 2;

        CHECK(!loaded || (backward(m, rank, step) == 0 && update(m) == 0));
        serial_step(s, loaded ? cddp_world_size(comm) : ranks_before, step);
        CHECK(!loaded || compare(comm, m, s) == 0);
    }
    model_close(m);
    free(s);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

/* The same parameters, each in its own memory: the saved state does not fit. */
static int load_untied(int rank)
{
    struct model *m = calloc(1, sizeof *m);
    static float apart[MOST];
    cddp_checkpoint_item item;
    cddp_param p[N];
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    list(p, m);
    p[6].data = apart;
    CHECK(cddp_ddp_create(&m->ddp, comm, p, N, NULL) == CDDP_OK && model_optim(m) == 0);
    item = item_of(CDDP_ITEM_OPTIM, "optim", m->optim);
    CHECK(cddp_checkpoint_load(comm, scratch, &item, 1, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "tied otherwise") != NULL);
    model_close(m);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    (void)rank;
    return 0;
}

Test(tied, checkpoint_has_the_state_once)
{
    now.rule = 1;
    now.bucket_bytes = 4096;
    for (ranks_before = 1; ranks_before <= 3; ranks_before++) {
        ranks_after = 4 - ranks_before;
        scratch_make();
        cr_assert_eq(run_world(ranks_before, save_half), 0, "%d ranks", ranks_before);
        cr_assert_eq(run_world(ranks_after, load_half), 0, "%d ranks", ranks_after);
        cr_assert_eq(run_world(1, load_untied), 0);
        scratch_remove();
    }
}

/* --------------------------------------------------------------------------------------------------- refusals ---- */

/* One update cannot have two learning rates. The reducer stays usable. */
static int refuses_groups(int rank)
{
    static const size_t one[] = {3}, other[] = {0, 6};
    const cddp_optim_group wrong[][2] = {
        {{.size = sizeof wrong[0][0], .params = one, .n_params = 1, .lr_factor = 0.5, .weight_decay = 0.01}},
        {{.size = sizeof wrong[0][0], .params = one, .n_params = 1, .lr_factor = 1, .weight_decay = 0}},
        {{.size = sizeof wrong[0][0],
          .params = one,
          .n_params = 1,
          .weight_decay = 0.01,
          .flags = CDDP_OPTIM_GROUP_FROZEN},
         {.size = sizeof wrong[0][0], .params = other, .n_params = 2, .lr_factor = 1, .weight_decay = 0.01}}};
    static const char *const texts[] = {"the same lr_factor", "the same weight_decay", "the same flags"};
    cddp_optim_options o = rules[0];
    struct model *m = calloc(1, sizeof *m);
    cddp_optim *optim;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && model_open(m, comm) == 0);
    cddp_optim_destroy(m->optim);
    for (size_t k = 0; k < 3; k++) {
        o.groups = wrong[k];
        o.n_groups = k == 2 ? 2 : 1;
        CHECK(cddp_optim_create(&optim, m->ddp, &o) == CDDP_E_INVALID);
        CHECK(strstr(cddp_last_error(), "parameters 0 'embed' and 3 'head' are tied") != NULL);
        CHECK(strstr(cddp_last_error(), texts[k]) != NULL);
    }
    CHECK(model_optim(m) == 0 && backward(m, rank, 0) == 0 && update(m) == 0);
    model_close(m);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

static int refuses_types(int rank)
{
    static uint16_t w[4];
    const cddp_param p[] = {
        {.size = sizeof p[0], .name = "a", .data = w, .count = 4, .dtype = CDDP_BFLOAT16},
        {.size = sizeof p[0], .name = "b", .data = w, .count = 4, .dtype = CDDP_BFLOAT16, .grad_dtype = CDDP_FLOAT32}};
    cddp_optim *optim;
    cddp_comm *comm;
    cddp_ddp *ddp;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_ddp_create(&ddp, comm, p, 2, NULL) == CDDP_OK);
    CHECK(cddp_optim_create(&optim, ddp, &rules[0]) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "parameters 0 'a' and 1 'b' are tied") != NULL);
    CHECK(strstr(cddp_last_error(), "grad_dtype") != NULL);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    (void)rank;
    return 0;
}

Test(tied, refuses_different_options_by_name)
{
    cr_assert_eq(run_world(2, refuses_groups), 0);
    cr_assert_eq(run_world(1, refuses_types), 0);
}

/* Rank 1 has a copy where the others have one memory. */
static int ranks_differ(int rank)
{
    static float copy[MOST];
    struct model *m = calloc(1, sizeof *m);
    cddp_param p[N];
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    list(p, m);
    p[3].data = rank == 1 ? (void *)copy : p[3].data;
    CHECK(cddp_ddp_create(&m->ddp, comm, p, N, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "parameter 3 'head' is float32 [5003] tied to parameter 0 on rank 0 but float32 "
                                    "[5003] on rank 1") != NULL);
    free(m);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

/* The plain reducer gives each of them its own mean. */
static int plain(int rank)
{
    struct model *m = calloc(1, sizeof *m);
    cddp_param p[N];
    double sum = 0, norm;
    cddp_comm *comm;
    int n;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    n = cddp_world_size(comm);
    list(p, m);
    CHECK(cddp_ddp_create(&m->ddp, comm, p, N, NULL) == CDDP_OK);
    CHECK(backward(m, rank, 0) == 0 && cddp_ddp_wait(m->ddp) == CDDP_OK);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < blocks[params[i].block].count; k++) {
            double mean = 0, got = grad_get(m->ddp, blocks[params[i].block].dtype, i, k);

            for (int r = 0; r < n; r++)
                mean += gradient(r, i, k, 0) / n;
            CHECK(fabs(got - mean) <= 1e-6);
            sum += mean * mean;
        }
    CHECK(cddp_ddp_grad_norm(m->ddp, 2, &norm) == CDDP_OK && fabs(norm - sqrt(sum)) <= 1e-6 * norm);
    cddp_ddp_destroy(m->ddp);
    free(m);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(tied, ranks_tie_the_same_and_without_an_optimizer_each_has_its_mean)
{
    cr_assert_eq(run_world(3, ranks_differ), 0);
    cr_assert_eq(run_world(2, plain), 0);
}
