/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What trains the MLP of mlp.h and how it is timed, the same for every library: included by mlp_train.c and by
 * peers/mpi_mlp.c. libc only.
 */
#ifndef BENCH_MLP_TRAIN_H
#define BENCH_MLP_TRAIN_H

#include "mlp.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RATE 0.01f
#define MAX_STEPS 1000

static double now_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec * 1e-6;
}

static _Noreturn void die(const char *why)
{
    (void)fprintf(stderr, "%s\n", why);
    exit(1);
}

static void *memory(size_t count, size_t bytes)
{
    void *p = aligned_alloc(64, (count * bytes + 63) / 64 * 64);

    if (p == NULL)
        die("out of memory");
    memset(p, 0, count * bytes);
    return p;
}

/* One who trains: a rank, or a thread. */
struct trainer {
    struct mlp *mlp;
    float *params[MLP_PARAMS], *grads[MLP_PARAMS], *x;
    int *labels;
    size_t batch;
    void (*enter)(void *arg, size_t layer, bool back); /* NULL: parameters and gradients are always there */
};

static void trainer_init(struct trainer *t, size_t batch)
{
    t->mlp = mlp_create(batch);
    t->x = memory(batch * MLP_INPUTS, sizeof *t->x);
    t->labels = memory(batch, sizeof *t->labels);
    t->batch = batch;
    if (t->mlp == NULL)
        die("out of memory");
}

static void own_params(struct trainer *t)
{
    for (size_t i = 0; i < MLP_PARAMS; i++) {
        t->params[i] = memory(mlp_param_count(i), sizeof(float));
        mlp_init_param(t->params[i], i);
    }
}

/* The samples of this step: the n trainers take every n-th of the next n * batch. */
static void load(struct trainer *t, long step, int rank, int n)
{
    for (size_t s = 0; s < t->batch; s++)
        mlp_sample((size_t)step * t->batch * (size_t)n + s * (size_t)n + (size_t)rank, t->x + s * MLP_INPUTS,
                   &t->labels[s]);
}

static double pass(struct trainer *t, void (*done)(void *arg, size_t i), void *arg)
{
    return mlp_step(t->mlp, t->params, t->grads, t->x, t->labels, t->batch, t->enter, done, arg);
}

static void sgd(struct trainer *t, float rate)
{
    for (size_t i = 0; i < MLP_PARAMS; i++)
        for (size_t k = 0; k < mlp_param_count(i); k++)
            t->params[i][k] -= rate * t->grads[i][k];
}

/* --------------------------------------------------------------------------------------------------- results ---- */

/* By step, of the slowest: until gradients are there, and until parameters are. */
struct times {
    double grads[MAX_STEPS], step[MAX_STEPS];
    /* What cddp_ddp_get_stats() says of it, of the rank that it says least of: the others have waited for that one. */
    bool told;
    double comm[MAX_STEPS], exposed[MAX_STEPS], thread[MAX_STEPS];
    double called[MAX_STEPS]; /* in calls that communicate, of the rank with the least */
    long n;
    size_t bucket_bytes; /* 0: there are no buckets */
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median over every second step from `first` on, or over all (stride 1). The first two steps warm up. */
static double median(const double *of, long n, long first, long stride)
{
    double some[MAX_STEPS] = {0};
    size_t k = 0;

    for (long i = 2 + first; i < n; i += stride)
        some[k++] = of[i];
    qsort(some, k, sizeof some[0], ascending);
    return k > 0 ? some[k / 2] : 0;
}

static void print(const char *mode, int ranks, size_t batch, const struct times *t, double loss)
{
    bool alternate = strcmp(mode, "alternate") == 0;

    (void)printf(
        "{\"mode\": \"%s\", \"ranks\": %d, \"batch\": %zu, \"steps\": %ld, \"grads_ms\": %.3f, \"step_ms\": %.3f, ",
        mode, ranks, batch, t->n, median(t->grads, t->n, 0, alternate ? 2 : 1),
        median(t->step, t->n, 0, alternate ? 2 : 1));
    if (alternate)
        (void)printf("\"alone_ms\": %.3f, ", median(t->grads, t->n, 1, 2));
    if (t->called[0] > 0)
        (void)printf("\"called_ms\": %.3f, ", median(t->called, t->n, 0, alternate ? 2 : 1));
    if (t->told)
        (void)printf("\"library_comm_ms\": %.3f, \"library_exposed_ms\": %.3f, \"library_thread_ms\": %.3f, ",
                     median(t->comm, t->n, 0, alternate ? 2 : 1), median(t->exposed, t->n, 0, alternate ? 2 : 1),
                     median(t->thread, t->n, 0, alternate ? 2 : 1));
    if (t->bucket_bytes > 0)
        (void)printf("\"bucket_mib\": %zu, ", t->bucket_bytes >> 20);
    (void)printf("\"loss\": %.6f}\n", loss);
    (void)fflush(stdout);
}

#endif
