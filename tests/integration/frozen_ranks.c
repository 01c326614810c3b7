/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that are frozen and trained by turns, over real ranks; started by cddprun. A frozen parameter's gradient
 * keeps its value, and the others become means. Memory is where the backend has it, so the same program runs on a GPU.
 */
#include "mean_hook.h"
#include "rank_check.h"
#include "three_params.h"

#include <cddp/cddp.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 12

/* By step and parameter; from step 8 on nothing is left out for long, and once everything. */
static const int is_frozen[STEPS][PARAMS] = {{0, 1, 0}, {0, 1, 0}, {0, 1, 0}, {0, 1, 0}, {1, 0, 1}, {1, 0, 1},
                                             {1, 0, 0}, {0, 0, 0}, {1, 1, 1}, {0, 0, 1}, {0, 1, 1}, {0, 0, 0}};

static const struct kind {
    const char *name;
    uint32_t flags;
    cddp_dtype comm_dtype;
    enum place place;
    size_t bucket_bytes;
    bool optim;
} kinds[] = {
    {.name = "buckets"},
    {.name = "one bucket", .bucket_bytes = 1 << 20},
    {.name = "own memory", .place = OWN},
    {.name = "own memory, one bucket", .place = OWN, .bucket_bytes = 1 << 20},
    {.name = "shared memory", .place = SHARED, .bucket_bytes = 1 << 20},
    {.name = "pieces", .place = SHARED, .flags = CDDP_DDP_SPLIT, .bucket_bytes = 30000},
    {.name = "sums", .flags = CDDP_DDP_SUM},
    {.name = "compressed", .comm_dtype = CDDP_BFLOAT16},
    {.name = "compressed, one bucket", .comm_dtype = CDDP_FLOAT16, .bucket_bytes = 1 << 20},
    {.name = "joined", .flags = CDDP_DDP_JOIN | CDDP_DDP_JOIN_ACTIVE},
    {.name = "joined, one bucket", .flags = CDDP_DDP_JOIN, .bucket_bytes = 1 << 20},
    {.name = "weights", .flags = CDDP_DDP_WEIGHTED, .bucket_bytes = 1 << 20},
    {.name = "optimizer", .optim = true},
    {.name = "optimizer, one bucket", .optim = true, .bucket_bytes = 1 << 20},
};

static bool on_host;

static void make_model(struct model *m, const struct kind *k)
{
    const cddp_ddp_options opt = {.size = sizeof opt,
                                  .flags = k->flags,
                                  .comm_dtype = k->comm_dtype,
                                  .bucket_bytes = k->bucket_bytes > 0 ? k->bucket_bytes : 64,
                                  .first_bucket_bytes = k->bucket_bytes > 0 ? k->bucket_bytes : 64};
    cddp_optim_options rule;
    cddp_param p[PARAMS];

    *m = (struct model){.kind = k};
    place_params(m, k->place, CDDP_FLOAT32, p);
    CHECK(cddp_ddp_create(&m->ddp, comm, p, PARAMS, &opt) == CDDP_OK, "%s", k->name);
    if (!k->optim)
        return;
    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_SGD);
    rule.lr = 1;
    rule.momentum = 0.5;
    CHECK(cddp_optim_create(&m->optim, m->ddp, &rule) == CDDP_OK, "%s", k->name);
}

static void fill(void *at, size_t i, float value)
{
    static float x[LARGEST];

    for (size_t j = 0; j < counts[i]; j++)
        x[j] = value;
    CHECK(cddp_copy(comm, at, x, counts[i] * sizeof x[0]) == CDDP_OK, "copy");
}

/* All elements at `at` are `value`. */
static void check(const struct model *m, const void *at, size_t i, float value, int step)
{
    static float x[LARGEST];

    CHECK(cddp_copy(comm, x, at, counts[i] * sizeof x[0]) == CDDP_OK, "copy");
    for (size_t j = 0; j < counts[i]; j++)
        CHECK(x[j] == value, "%s, step %d: element %zu of %zu is %g, not %g", m->kind->name, step, j, i, (double)x[j],
              (double)value);
}

/* What a frozen gradient is: nobody looks at it, so it may be an infinity. */
static float untouched(int step)
{
    return step % 2 == 0 ? (float)(1000 + 10 * rank + step) : INFINITY;
}

/* Freezes and thaws what differs from the step before. */
static void change(struct model *m, int step)
{
    for (int to = 0; to < 2; to++) {
        size_t list[PARAMS], n = 0;

        for (size_t i = 0; i < PARAMS; i++)
            if (is_frozen[step][i] == to && (step > 0 ? is_frozen[step - 1][i] : 0) != to)
                list[n++] = i;
        if (n > 0)
            CHECK(cddp_ddp_set_frozen(m->ddp, list, n, to) == CDDP_OK, "%s, step %d", m->kind->name, step);
    }
}

/* Bytes of the last step on the host, where each gradient has its own bucket: only those that are trained. */
static void check_bytes(struct model *m, int step)
{
    cddp_ddp_stats s = {.size = sizeof s};
    uint64_t most = 0;

    CHECK(cddp_ddp_get_stats(m->ddp, &s) == CDDP_OK, "stats");
    for (size_t i = 0; i < PARAMS; i++)
        most += is_frozen[step][i] ? 0 : counts[i] * sizeof(float) + 1024;
    if (on_host && step > 0 && m->kind->bucket_bytes == 0)
        CHECK(s.last_bytes <= most, "%s, step %d: %llu bytes were sent", m->kind->name, step,
              (unsigned long long)s.last_bytes);
}

static void train(struct model *m, int step, float old[2 * PARAMS])
{
    bool all = is_frozen[step][0] && is_frozen[step][1] && is_frozen[step][2];

    change(m, step);
    for (size_t i = PARAMS; i-- > 0;)
        fill(cddp_ddp_grad(m->ddp, i), i, is_frozen[step][i] ? untouched(step) : (float)(2 * rank));
    for (size_t i = PARAMS; i-- > 0;)
        if (!is_frozen[step][i])
            CHECK(cddp_ddp_grad_ready(m->ddp, i) == CDDP_OK, "%s, step %d", m->kind->name, step);
    if (m->optim == NULL && !all)
        CHECK(cddp_ddp_wait_param(m->ddp, 1) ==
                  ((m->kind->flags & CDDP_DDP_JOIN_ACTIVE) != 0 && !is_frozen[step][1] ? CDDP_E_STATE : CDDP_OK),
              "%s, step %d", m->kind->name, step);
    CHECK((m->optim != NULL ? cddp_optim_step(m->optim, NULL) : cddp_ddp_wait(m->ddp)) == CDDP_OK, "%s, step %d",
          m->kind->name, step);
    for (size_t i = 0; i < PARAMS; i++) {
        float mean = (float)(n_ranks - 1) * ((m->kind->flags & CDDP_DDP_SUM) != 0 ? (float)n_ranks : 1);

        if (m->optim == NULL) {
            check(m, cddp_ddp_grad(m->ddp, i), i, is_frozen[step][i] ? untouched(step) : mean, step);
            continue;
        }
        if (is_frozen[step][i]) { /* neither the parameter nor its momentum */
            check(m, m->data[i], i, old[i], step);
            continue;
        }
        old[PARAMS + i] = 0.5f * old[PARAMS + i] + mean;
        old[i] -= old[PARAMS + i];
        check(m, m->data[i], i, old[i], step);
    }
    if (!all) /* a step without gradients has no times */
        check_bytes(m, step);
}

static void check_kind(const struct kind *k)
{
    float old[2 * PARAMS] = {0};
    struct model m;

    make_model(&m, k);
    for (int step = 0; step < STEPS; step++)
        train(&m, step, old);
    if ((k->flags & CDDP_DDP_JOIN) != 0) { /* rank 0 trains on alone, with some of it frozen */
        const size_t first[] = {0, 1};
        bool active = (k->flags & CDDP_DDP_JOIN_ACTIVE) != 0;

        CHECK(cddp_ddp_set_frozen(m.ddp, first, 2, 1) == CDDP_OK, "%s", k->name);
        if (rank == 0) {
            fill(cddp_ddp_grad(m.ddp, 0), 0, 5);
            fill(cddp_ddp_grad(m.ddp, 2), 2, (float)n_ranks);
            CHECK(cddp_ddp_grad_ready(m.ddp, 2) == CDDP_OK && cddp_ddp_wait(m.ddp) == CDDP_OK, "%s", k->name);
            check(&m, cddp_ddp_grad(m.ddp, 2), 2, active ? (float)n_ranks : 1, STEPS);
            check(&m, cddp_ddp_grad(m.ddp, 0), 0, 5, STEPS);
        }
        CHECK(cddp_ddp_join(m.ddp) == CDDP_OK, "%s", k->name);
    }
    free_model(&m);
}

static void check_refusals(void)
{
    const struct kind k = {.name = "refused"}, unused = {.name = "unused", .flags = CDDP_DDP_FIND_UNUSED};
    const cddp_hook hook = {.size = sizeof hook, .begin = mean_hook_begin};
    const size_t mine[] = {(size_t)(rank % 2)}, wrong[] = {0, PARAMS}, one[] = {1};
    float old[2 * PARAMS] = {0};
    struct model m;

    CHECK(cddp_ddp_set_frozen(NULL, one, 1, 1) == CDDP_E_INVALID, "NULL");
    make_model(&m, &unused);
    CHECK(cddp_ddp_set_frozen(m.ddp, one, 1, 1) == CDDP_E_UNSUPPORTED, "with FIND_UNUSED");
    free_model(&m);
    make_model(&m, &k);
    CHECK(cddp_ddp_set_frozen(m.ddp, mine, 1, 1) == CDDP_E_MISMATCH && strstr(cddp_last_error(), "rank 1") != NULL,
          "lists that differ");
    CHECK(cddp_ddp_set_frozen(m.ddp, rank == 0 ? wrong : one, rank == 0 ? 2 : 1, 1) == CDDP_E_INVALID, "no parameter");
    CHECK(cddp_ddp_set_frozen(m.ddp, NULL, 1, 1) == CDDP_E_INVALID, "no list");
    for (int step = 0; step < STEPS; step++) /* nothing is broken */
        train(&m, step, old);
    CHECK(cddp_ddp_set_hook(m.ddp, &hook) == CDDP_OK, "hook");
    CHECK(cddp_ddp_set_frozen(m.ddp, one, 1, 1) == CDDP_E_UNSUPPORTED, "with a hook");
    CHECK(cddp_ddp_set_hook(m.ddp, NULL) == CDDP_OK, "no hook");
    CHECK(cddp_ddp_set_frozen(m.ddp, one, 1, 1) == CDDP_OK, "frozen");
    CHECK(cddp_ddp_set_hook(m.ddp, &hook) == CDDP_E_UNSUPPORTED, "a hook");
    CHECK(cddp_ddp_set_powersgd(m.ddp, NULL) == CDDP_E_UNSUPPORTED, "PowerSGD");
    CHECK(cddp_ddp_grad_ready(m.ddp, 1) == CDDP_E_STATE && strstr(cddp_last_error(), "is frozen") != NULL, "frozen");
    free_model(&m);
}

int main(int argc, char **argv)
{
    CHECK(cddp_init(&comm, NULL) == CDDP_OK, "join");
    rank = cddp_rank(comm);
    n_ranks = cddp_world_size(comm);
    on_host = strcmp(cddp_backend_name(comm), "nccl") != 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (argc < 2 || strcmp(argv[1], kinds[i].name) == 0)
            check_kind(&kinds[i]);
    if (argc < 2)
        check_refusals(); /* the communicator is broken then */
    (void)cddp_finalize(comm);
    return 0;
}
