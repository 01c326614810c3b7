/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mean with weights over real ranks; started by cddprun. Rank r has BATCH[r] samples, whose gradients are known
 * numbers. The mean with the numbers of samples as weights must be that over all samples, as one rank alone computes
 * it, and have the same bits on all ranks. With equal weights it must have the bits of a reducer without weights, which
 * takes the same steps. Memory is where the backend has it, so the same program runs on a GPU. The argument selects
 * one kind of reducer.
 */
#include "mean_hook.h"
#include "numbers.h"
#include "rank_check.h"
#include "three_params.h"

#include <cddp/cddp.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 3

enum step { PLAIN, EQUAL, SAMPLES, SOME, EMPTY, NONE, AGAIN, N_STEPS };

static const size_t shape[] = {170, 100};
static const int batch[BATCHES] = {5, 11, 2};

static const struct kind {
    const char *name;
    uint32_t flags;
    cddp_dtype dtype, comm_dtype;
    enum place place;
    size_t bucket_bytes;
    double within; /* of the serial mean; 0: 1e-6 */
    bool hook, powersgd, optim, seldom;
} kinds[] = {
    {.name = "float32", .dtype = CDDP_FLOAT32},
    {.name = "one bucket", .dtype = CDDP_FLOAT32, .bucket_bytes = 1 << 20},
    {.name = "float64", .dtype = CDDP_FLOAT64, .within = 1e-14},
    {.name = "float16", .dtype = CDDP_FLOAT16, .within = 2e-3},
    {.name = "own memory", .dtype = CDDP_FLOAT32, .place = OWN},
    {.name = "own memory of float16", .dtype = CDDP_FLOAT16, .place = OWN, .within = 2e-3},
    {.name = "shared memory", .dtype = CDDP_FLOAT32, .place = SHARED},
    {.name = "pieces", .dtype = CDDP_FLOAT32, .place = SHARED, .flags = CDDP_DDP_SPLIT, .bucket_bytes = 30000},
    {.name = "sums", .dtype = CDDP_FLOAT32, .flags = CDDP_DDP_SUM},
    {.name = "sent as float16", .dtype = CDDP_FLOAT32, .comm_dtype = CDDP_FLOAT16, .within = 2e-3},
    {.name = "sent as bfloat16", .dtype = CDDP_FLOAT32, .comm_dtype = CDDP_BFLOAT16, .within = 2e-2},
    {.name = "sent as float32", .dtype = CDDP_FLOAT16, .comm_dtype = CDDP_FLOAT32, .within = 1e-3},
    {.name = "static graph", .dtype = CDDP_FLOAT32, .flags = CDDP_DDP_STATIC_GRAPH},
    {.name = "unused", .dtype = CDDP_FLOAT32, .flags = CDDP_DDP_FIND_UNUSED, .seldom = true},
    {.name = "skipped", .dtype = CDDP_FLOAT32, .flags = CDDP_DDP_FIND_UNUSED | CDDP_DDP_SKIP_UNUSED, .seldom = true},
    {.name = "hook", .dtype = CDDP_FLOAT32, .hook = true},
    {.name = "PowerSGD", .dtype = CDDP_FLOAT32, .powersgd = true, .within = 1e-3},
    {.name = "optimizer", .dtype = CDDP_FLOAT32, .optim = true},
};

/* ---------------------------------------------------------------------------------------------------- numbers ---- */

/*
 * Element j of gradient i of rank r: the mean over its samples. float16 has few bits, so that the number is exact
 * there.
 */
static double gradient(const struct kind *k, int r, int step, size_t i, size_t j)
{
    static double mean[BATCHES][977];

    for (size_t t = 0; mean[r][0] == 0 && t < 977; t++)
        for (int s = 0; s < batch[r]; s++)
            mean[r][t] += sin((double)(r * 100 + s + 1) * (double)(t + 1)) / batch[r];
    return k->dtype == CDDP_FLOAT16 ? (double)((int)(j * 7 + i + (size_t)(r * 31 + step * 5)) % 61 - 30) / 16
                                    : mean[r][(j + i * 101 + (size_t)step * 13) % 977];
}

/* ----------------------------------------------------------------------------------------------------- models ---- */

static void make_model(struct model *m, const struct kind *k, uint32_t flags)
{
    const cddp_hook hook = {.size = sizeof hook, .begin = mean_hook_begin};
    const cddp_powersgd_options low = {
        .size = sizeof low, .matrix_rank = 100, .start_step = 1, .min_compression_rate = 0.1, .seed = 5};
    const cddp_ddp_options opt = {.size = sizeof opt,
                                  .flags = k->flags | flags,
                                  .comm_dtype = k->comm_dtype,
                                  .bucket_bytes = k->bucket_bytes > 0 ? k->bucket_bytes : 64,
                                  .first_bucket_bytes = k->bucket_bytes > 0 ? k->bucket_bytes : 64};
    cddp_optim_options rule;
    cddp_param p[PARAMS];

    *m = (struct model){.kind = k};
    place_params(m, k->place, k->dtype, p);
    p[1].shape = shape;
    p[1].n_dims = 2;
    CHECK(cddp_ddp_create(&m->ddp, comm, p, PARAMS, &opt) == CDDP_OK, "%s", cddp_last_error());
    if (k->hook)
        CHECK(cddp_ddp_set_hook(m->ddp, &hook) == CDDP_OK, "%s", cddp_last_error());
    if (k->powersgd)
        CHECK(cddp_ddp_set_powersgd(m->ddp, &low) == CDDP_OK, "%s", cddp_last_error());
    if (!k->optim)
        return;
    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_SGD);
    rule.lr = 1;
    CHECK(cddp_optim_create(&m->optim, m->ddp, &rule) == CDDP_OK, "%s", cddp_last_error());
}

/* Does rank r make gradient i? The first one is made on rank 0 alone, where some may be missing. */
static bool makes(const struct kind *k, int r, size_t i)
{
    return !k->seldom || i != 0 || r == 0;
}

/* Writes and reports this rank's gradients. */
static void give(struct model *m, int step, bool nan)
{
    static double mine[LARGEST]; /* of any type */
    const struct kind *k = m->kind;

    for (size_t i = PARAMS; i-- > 0;) {
        if (!makes(k, rank, i))
            continue;
        for (size_t j = 0; j < counts[i]; j++)
            number_put(k->dtype, mine, j, nan ? (double)NAN : gradient(k, rank, step, i, j));
        CHECK(cddp_copy(comm, cddp_ddp_grad(m->ddp, i), mine, counts[i] * cddp_dtype_size(k->dtype)) == CDDP_OK, "%s",
              cddp_last_error());
        CHECK(cddp_ddp_grad_ready(m->ddp, i) == CDDP_OK, "%s", cddp_last_error());
    }
}

/* Ends the step. With an optimizer, its parameters are zeros before, so that they show the means. */
static cddp_status end(struct model *m)
{
    const struct kind *k = m->kind;
    static const double zeros[LARGEST];

    if (m->optim == NULL)
        return cddp_ddp_wait(m->ddp);
    for (size_t i = 0; i < PARAMS; i++)
        CHECK(cddp_copy(comm, m->data[i], zeros, counts[i] * cddp_dtype_size(k->dtype)) == CDDP_OK, "copy");
    return cddp_optim_step(m->optim, NULL);
}

static void read_means(struct model *m, size_t i, void *out)
{
    size_t bytes = counts[i] * cddp_dtype_size(m->kind->dtype);
    const void *at = m->optim != NULL ? m->data[i] : cddp_ddp_grad(m->ddp, i);

    CHECK(cddp_copy(comm, out, at, bytes) == CDDP_OK, "%s", cddp_last_error());
}

/* Element j of what the means are read as is the mean times this. */
static double sign_of(const struct model *m)
{
    return m->optim != NULL ? -1 : 1 / cddp_ddp_grad_scale(m->ddp);
}

/* ----------------------------------------------------------------------------------------------------- checks ---- */

static void check_equal_on_all(const void *p, size_t bytes, const char *what)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325), all[64];

    for (size_t k = 0; k < bytes; k++)
        h = (h ^ ((const uint8_t *)p)[k]) * UINT64_C(0x100000001b3);
    CHECK(cddp_all_gather(comm, &h, all, 1, CDDP_UINT64) == CDDP_OK, "%s", cddp_last_error());
    for (int r = 1; r < n_ranks; r++)
        CHECK(all[r] == all[0], "%s: the bits of ranks 0 and %d differ", what, r);
}

/* Compares the means with sum(w g) / sum(w), as one rank alone computes it. */
static void check_means(struct model *m, int step, const double *weight, const char *what)
{
    static double got[LARGEST];
    const struct kind *k = m->kind;
    double within = k->within > 0 ? k->within : 1e-6;

    for (size_t i = 0; i < PARAMS; i++) {
        read_means(m, i, got);
        for (size_t j = 0; j < counts[i]; j++) {
            double sum = 0, all = 0, mean, is = number_get(k->dtype, got, j) / sign_of(m);

            for (int r = 0; r < n_ranks; r++) {
                all += weight[r];
                sum += makes(k, r, i) ? weight[r] * gradient(k, r, step, i, j) : 0;
            }
            mean = sum / all;
            CHECK(fabs(is - mean) <= within, "%s, %s: element %zu of %zu is %.9g, not %.9g", k->name, what, j, i, is,
                  mean);
        }
        check_equal_on_all(got, counts[i] * cddp_dtype_size(k->dtype), k->name);
    }
}

/* The two must have equal means to the bit. */
static void check_bits(struct model *m, struct model *plain, const char *what)
{
    static double a[LARGEST], b[LARGEST];

    for (size_t i = 0; i < PARAMS; i++) {
        read_means(m, i, a);
        read_means(plain, i, b);
        CHECK(memcmp(a, b, counts[i] * cddp_dtype_size(m->kind->dtype)) == 0, "%s, %s: other bits than the plain mean",
              m->kind->name, what);
    }
}

static void set(struct model *m, double weight)
{
    CHECK(cddp_ddp_set_weight(m->ddp, weight) == CDDP_OK, "%s", cddp_last_error());
}

/* One step; weight < 0: this rank sets none. */
static void train(struct model *m, int step, double weight, bool nan, cddp_status expected)
{
    cddp_status st;

    if (weight >= 0) {
        set(m, 77); /* the last call counts */
        set(m, weight);
    }
    give(m, step, nan);
    if (weight >= 0)
        CHECK(cddp_ddp_set_weight(m->ddp, 1) == CDDP_E_STATE, "a weight in the middle of a step");
    st = end(m);
    CHECK(st == expected, "%s: step %d: %d, %s", m->kind->name, step, (int)st, cddp_last_error());
}

static void check_kind(const struct kind *k)
{
    const double ones[BATCHES] = {1, 1, 1}, samples[BATCHES] = {batch[0], batch[1], batch[2]},
                 some[BATCHES] = {4, 1, 1}, empty[BATCHES] = {batch[0], 0, batch[2]}, none[BATCHES] = {0};
    static double got[LARGEST];
    struct model m, plain;

    make_model(&m, k, CDDP_DDP_WEIGHTED);
    make_model(&plain, k, 0);
    for (int step = 0; step < N_STEPS; step++) {
        const double *by[] = {ones, ones, samples, some, empty, none, samples};
        double mine = step == PLAIN || (step == SOME && rank > 0) ? -1 : step == EQUAL ? 0.1 : by[step][rank];

        train(&m, step, mine, step == EMPTY && mine == 0, step == NONE ? CDDP_E_INVALID : CDDP_OK);
        if (step == NONE)
            CHECK(strstr(cddp_last_error(), "weight 0 in step 5") != NULL, "%s", cddp_last_error());
        else
            check_means(&m, step, by[step], "its weights");
        for (size_t i = 0; step == NONE && i < PARAMS && !k->powersgd && !k->seldom; i++) {
            read_means(&m, i, got);
            for (size_t j = 0; j < counts[i]; j++)
                CHECK(number_get(k->dtype, got, j) == 0, "%s: not zero", k->name);
        }
        if (step > EQUAL)
            continue;
        train(&plain, step, -1, false, CDDP_OK);
        check_bits(&m, &plain, step == PLAIN ? "no weights" : "equal weights");
    }
    free_model(&m);
    free_model(&plain);
}

#define LEFT (-2.0) /* the rank is in cddp_ddp_join */

/* Ranks leave one after the other: what each sets in the steps of an epoch; -1: nothing. */
static const double epoch[][BATCHES] = {{5, 11, 2}, {5, 11, LEFT}, {7, LEFT, LEFT}, {-1, LEFT, LEFT}, {0, LEFT, LEFT}};

/* Element j of gradient 1's mean in that step. */
static double mean_of_epoch(const struct kind *k, int step, size_t j)
{
    const double *w = epoch[step];
    double sum = 0, all = 0;

    for (int r = 0; r < n_ranks && w[r] != LEFT; r++) {
        sum += fabs(w[r]) * gradient(k, r, step, 1, j);
        all += fabs(w[r]);
    }
    if (w[0] < 0 && (k->flags & CDDP_DDP_JOIN_ACTIVE) == 0)
        all = n_ranks;
    return all > 0 ? sum / all : 0;
}

static void check_join(uint32_t flags)
{
    static float got[LARGEST], means[PARAMS][LARGEST];
    const struct kind k = {.name = "joined", .dtype = CDDP_FLOAT32, .flags = CDDP_DDP_JOIN | flags};
    struct model m, plain;

    make_model(&m, &k, CDDP_DDP_WEIGHTED);
    make_model(&plain, &k, 0);
    for (int step = 0; step < (int)(sizeof epoch / sizeof epoch[0]) && epoch[step][rank] != LEFT; step++) {
        train(&m, step, epoch[step][rank], false, epoch[step][0] == 0 ? CDDP_E_INVALID : CDDP_OK);
        read_means(&m, 1, got);
        for (size_t j = 0; j < LARGEST; j++) {
            double mean = mean_of_epoch(&k, step, j);

            CHECK(fabs((double)got[j] - mean) <= 1e-6, "joined, step %d: element %zu is %.9g, not %.9g", step, j,
                  (double)got[j], mean);
        }
    }
    CHECK(cddp_ddp_join(m.ddp) == CDDP_OK, "%s", cddp_last_error());
    /* Equal weights of those that train; without JOIN_ACTIVE no weights, since the mean is over other ranks then. */
    for (int step = 0; step < 2 && (step == 0 || rank == 0); step++)
        train(&m, step, (flags & CDDP_DDP_JOIN_ACTIVE) != 0 ? 0.3 : -1, false, CDDP_OK);
    for (size_t i = 0; i < PARAMS; i++) /* the end of an epoch overwrites them */
        read_means(&m, i, means[i]);
    CHECK(cddp_ddp_join(m.ddp) == CDDP_OK, "%s", cddp_last_error());
    for (int step = 0; step < 2 && (step == 0 || rank == 0); step++)
        train(&plain, step, -1, false, CDDP_OK);
    for (size_t i = 0; i < PARAMS && rank == 0; i++) {
        read_means(&plain, i, got);
        CHECK(memcmp(got, means[i], counts[i] * sizeof(float)) == 0, "joined: other bits than the plain mean");
    }
    CHECK(cddp_ddp_join(plain.ddp) == CDDP_OK, "%s", cddp_last_error());
    free_model(&m);
    free_model(&plain);
}

static void check_refusals(void)
{
    static const double bad[] = {-1, -1e-300, NAN, INFINITY, -INFINITY};
    const struct kind k = {.name = "refused", .dtype = CDDP_FLOAT32};
    const double samples[BATCHES] = {batch[0], batch[1], batch[2]};
    struct model m;

    make_model(&m, &k, 0);
    CHECK(cddp_ddp_set_weight(m.ddp, 1) == CDDP_E_STATE && strstr(cddp_last_error(), "CDDP_DDP_WEIGHTED") != NULL, "%s",
          cddp_last_error());
    free_model(&m);
    CHECK(cddp_ddp_set_weight(NULL, 1) == CDDP_E_INVALID, "NULL");
    make_model(&m, &k, CDDP_DDP_WEIGHTED);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK(cddp_ddp_set_weight(m.ddp, bad[i]) == CDDP_E_INVALID, "%g", bad[i]);
    train(&m, 0, samples[rank], false, CDDP_OK); /* nothing is broken */
    check_means(&m, 0, samples, "after bad ones");
    /* Large ones, whose sum overflows. */
    train(&m, 1, 1.5e308 / 11 * samples[rank], false, CDDP_OK);
    check_means(&m, 1, samples, "large ones");
    free_model(&m);
}

int main(int argc, char **argv)
{
    CHECK(cddp_init(&comm, NULL) == CDDP_OK, "%s", cddp_last_error());
    rank = cddp_rank(comm);
    n_ranks = cddp_world_size(comm);
    CHECK(n_ranks >= 2 && n_ranks <= BATCHES, "%d ranks", n_ranks);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (argc < 2 || strcmp(argv[1], kinds[i].name) == 0)
            check_kind(&kinds[i]);
    if (argc > 1 && strcmp(argv[1], "joined") != 0)
        return cddp_finalize(comm) != CDDP_OK;
    check_refusals();
    check_join(0);
    check_join(CDDP_DDP_JOIN_ACTIVE);
    CHECK(cddp_finalize(comm) == CDDP_OK, "%s", cddp_last_error());
    return 0;
}
