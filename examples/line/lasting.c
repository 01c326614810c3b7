/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same as a job that lasts: shuffled batches, a checkpoint every 50 steps, and one more when it is asked to
 * stop. Started again, it goes on where it was, to the same bits.
 *
 *     lasting DIR [STEP]    checkpoints are in DIR; rank 1 crashes at that step, in the first run
 */
#include <cddp/cddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N 4096   /* points */
#define D 8      /* their dimensions */
#define BATCH 64 /* points of each rank in a step */
#define STEPS 400

static float x[N][D], y[N], w[D];
static uint64_t step;
static int64_t epoch;

static void make_points(void)
{
    unsigned seed = 1;

    for (int i = 0; i < N; i++)
        for (int d = 0; d < D; d++) {
            x[i][d] = (float)rand_r(&seed) / (float)RAND_MAX - 0.5f;
            y[i] += (float)(d + 1) * x[i][d];
        }
}

/* The mean gradient of a batch. */
static void backward(float *grad, const int64_t *batch, size_t n)
{
    memset(grad, 0, sizeof w);
    for (size_t k = 0; k < n; k++) {
        const float *point = x[batch[k]];
        float err = -y[batch[k]];

        for (int d = 0; d < D; d++)
            err += w[d] * point[d];
        for (int d = 0; d < D; d++)
            grad[d] += err * point[d] / (float)n;
    }
}

static cddp_status train(cddp_comm *comm, cddp_ddp *ddp, cddp_sampler *sampler, const char *dir, uint64_t crash)
{
    const cddp_checkpoint_item items[] = {
        {.size = sizeof items[0], .name = "w", .data = w, .bytes = sizeof w},
        {.size = sizeof items[0], .name = "step", .data = &step, .bytes = sizeof step},
        {.size = sizeof items[0], .name = "epoch", .data = &epoch, .bytes = sizeof epoch},
        {.size = sizeof items[0], .name = "sampler", .data = sampler, .kind = CDDP_ITEM_SAMPLER},
    };
    const size_t n_items = sizeof items / sizeof items[0];
    cddp_status st = cddp_checkpoint_load(comm, dir, items, n_items, NULL);
    int stop = 0;

    if (st == CDDP_OK && cddp_rank(comm) == 0)
        printf("goes on from step %llu\n", (unsigned long long)step);
    else if (st == CDDP_E_NOT_FOUND) /* the first run */
        st = CDDP_OK;
    while (st == CDDP_OK && step < STEPS && !stop) {
        const int64_t *batch;
        size_t n = cddp_sampler_next(sampler, BATCH, &batch);

        if (n == 0) {
            st = cddp_sampler_set_epoch(sampler, ++epoch);
            continue;
        }
        backward(cddp_ddp_grad(ddp, 0), batch, n);
        if (step == crash && cddp_rank(comm) == 1 && cddp_restart_count(comm) == 0)
            abort();
        st = cddp_ddp_grad_ready(ddp, 0);
        if (st == CDDP_OK)
            st = cddp_ddp_wait(ddp);
        for (int d = 0; d < D; d++)
            w[d] -= 0.5f * ((float *)cddp_ddp_grad(ddp, 0))[d];
        step++;
        usleep(10000); /* a real step takes longer */
        if (st == CDDP_OK)
            st = cddp_should_stop(comm, &stop); /* the same answer on every rank */
        if (st == CDDP_OK && (stop || step % 50 == 0))
            st = cddp_checkpoint_save(comm, dir, step, items, n_items, NULL);
    }
    if (st == CDDP_OK && stop && cddp_rank(comm) == 0)
        printf("asked to stop: saved at step %llu\n", (unsigned long long)step);
    for (int d = 0; d < D && st == CDDP_OK && !stop && cddp_rank(comm) == 0; d++)
        printf("w[%d] = %.2f\n", d, w[d]);
    return st;
}

int main(int argc, char **argv)
{
    const cddp_param p = {.size = sizeof p, .name = "w", .data = w, .count = D, .dtype = CDDP_FLOAT32};
    cddp_sampler_options options = {.size = sizeof options, .n = N};
    cddp_sampler *sampler = NULL;
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;
    cddp_status st;

    if (argc < 2)
        return fprintf(stderr, "usage: lasting DIR [STEP]\n"), 2;
    make_points();
    st = cddp_init(&comm, NULL);
    if (st == CDDP_OK)
        st = cddp_ddp_create(&ddp, comm, &p, 1, NULL);
    options.world_size = cddp_world_size(comm);
    options.rank = cddp_rank(comm);
    if (st == CDDP_OK)
        st = cddp_sampler_create(&sampler, &options);
    if (st == CDDP_OK)
        st = train(comm, ddp, sampler, argv[1], argc > 2 ? strtoull(argv[2], NULL, 10) : UINT64_MAX);
    if (st != CDDP_OK)
        fprintf(stderr, "%s\n", cddp_last_error());
    cddp_sampler_destroy(sampler);
    cddp_ddp_destroy(ddp);
    (void)cddp_finalize(comm);
    return st != CDDP_OK;
}
