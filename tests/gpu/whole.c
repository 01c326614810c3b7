/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole steps on a GPU, captured in a graph and not: a backward pass that reads the parameters, the reductions of its
 * buckets, clipping, and AdamW divided among the ranks, with a learning rate that changes from step to step. Both must
 * make the same parameters, bit for bit. Prints how long a step of each takes, and how long the host is busy with it.
 * Started by cddprun, on a GPU or on its stand-in.
 *
 *     whole [STEPS [COUNT]]     STEPS: of each kind (default 50). COUNT: elements of a large parameter
 *
 * Exit status: 0 success, 3 a wrong result, 1 an error (with a message), 77 no GPU.
 */
#include "card_job.h"

#include <cddp/experimental/optim.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SETTLED 3    /* steps before a capture */
#define N_PARAMS 48  /* layers: a large one and a small one in turn */
#define LARGE 262144 /* elements: 1 MiB */
#define SMALL 1024

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    cddp_optim *optim;
    struct card card;
    CUevent begun, ended;
    int steps;
    size_t large;
    void *data[N_PARAMS];
    float *host[2]; /* the parameters after steps of each kind */
};

/* What one kind of step takes. */
struct taken {
    double step_ms, host_us;
};

static size_t count_of(const struct job *j, size_t i)
{
    return i % 2 == 0 ? j->large : SMALL;
}

static size_t count_all(const struct job *j)
{
    size_t n = 0;

    for (size_t i = 0; i < N_PARAMS; i++)
        n += count_of(j, i);
    return n;
}

static CUdeviceptr address(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

/* Each gradient is a multiple of its parameter, another one on each rank. */
static void backward(struct job *j)
{
    const double factor = 0.25 * (cddp_rank(j->comm) + 1);

    for (size_t i = N_PARAMS; i-- > 0;) {
        struct cdi_slice slice = {.data = j->data[i], .bytes = count_of(j, i) * sizeof(float)};
        struct cdi_launch l;
        struct cdi_error err;
        size_t bytes;

        (void)cdi_launch_pack(&l, CDI_KERNEL_PACK, j->card.n_sm, cddp_ddp_grad(j->ddp, i), &slice, 1, &bytes);
        (void)cdi_launch_pack_scaled(&l, CDDP_FLOAT32, factor, &err);
        card_launch(&j->card, j->card.stream, &l);
        must(cddp_ddp_grad_ready(j->ddp, i));
    }
}

static void take_step(struct job *j)
{
    const cddp_optim_step_args args = {.size = sizeof args, .flags = CDDP_OPTIM_SKIP_NONFINITE, .max_norm = 1};

    backward(j);
    must(cddp_optim_step(j->optim, &args));
}

static CUgraphExec capture(struct job *j)
{
    CARD(&j->card, cuStreamBeginCapture, j->card.stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    take_step(j);
    return card_end_capture(&j->card);
}

static void fill(struct job *j)
{
    float *x = j->host[1]; /* which the last run writes */

    for (size_t i = 0; i < N_PARAMS; i++) {
        for (size_t k = 0; k < count_of(j, i); k++)
            x[k] = (float)((int)((k * 7 + i) % 31) - 15) / 8;
        CARD(&j->card, cuMemcpyHtoDAsync, address(j->data[i]), x, count_of(j, i) * sizeof *x, j->card.stream);
        CARD(&j->card, cuStreamSynchronize, j->card.stream);
    }
}

static void fetch(struct job *j, float *to)
{
    for (size_t i = 0; i < N_PARAMS; to += count_of(j, i++))
        CARD(&j->card, cuMemcpyDtoHAsync, to, address(j->data[i]), count_of(j, i) * sizeof *to, j->card.stream);
    CARD(&j->card, cuStreamSynchronize, j->card.stream);
}

static double seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Runs all steps of one kind from the same beginning. */
static struct taken run(struct job *j, bool captured)
{
    cddp_optim_options adamw;
    CUgraphExec exec = NULL;
    struct taken t = {0};
    double busy = 0;
    float ms = 0;

    fill(j);
    cddp_optim_defaults(&adamw, sizeof adamw, CDDP_OPTIM_ADAMW);
    must(cddp_optim_create(&j->optim, j->ddp, &adamw));
    for (int s = 0; s < SETTLED; s++)
        take_step(j);
    if (captured)
        exec = capture(j);
    must(cddp_barrier(j->comm));
    CARD(&j->card, cuEventRecord, j->begun, j->card.stream);
    for (int s = 0; s < j->steps; s++) {
        double began = seconds();

        must(cddp_optim_set_lr(j->optim, 1e-3 * (s % 7 + 1)));
        if (captured)
            CARD(&j->card, cuGraphLaunch, exec, j->card.stream);
        else
            take_step(j);
        busy += seconds() - began;
        if (s % 8 == 7) /* so that a full queue does not count */
            CARD(&j->card, cuStreamSynchronize, j->card.stream);
    }
    CARD(&j->card, cuEventRecord, j->ended, j->card.stream);
    CARD(&j->card, cuEventSynchronize, j->ended);
    CARD(&j->card, cuEventElapsedTime, &ms, j->begun, j->ended);
    t.step_ms = (double)ms / j->steps;
    t.host_us = busy * 1e6 / j->steps;
    fetch(j, j->host[captured]);
    if (exec != NULL)
        CARD(&j->card, cuGraphExecDestroy, exec);
    cddp_optim_destroy(j->optim);
    return t;
}

static void compare(const struct job *j)
{
    size_t n = count_all(j), moved = 0;

    for (size_t k = 0; k < n; k++) {
        moved += j->host[0][k] != 0;
        if (memcmp(&j->host[0][k], &j->host[1][k], sizeof(float)) == 0)
            continue;
        (void)fprintf(stderr, "rank %d: element %zu is %.9g after captured steps, %.9g after others\n",
                      cddp_rank(j->comm), k, (double)j->host[1][k], (double)j->host[0][k]);
        exit(WRONG);
    }
    if (moved < n / 2) {
        (void)fprintf(stderr, "rank %d: most parameters are 0\n", cddp_rank(j->comm));
        exit(WRONG);
    }
}

static void open_job(struct job *j)
{
    cddp_ddp_options opt = {.size = sizeof opt};
    cddp_param params[N_PARAMS];
    char names[N_PARAMS][8];

    card_join(&j->comm, &j->card);
    CARD(&j->card, cuEventCreate, &j->begun, CU_EVENT_DEFAULT);
    CARD(&j->card, cuEventCreate, &j->ended, CU_EVENT_DEFAULT);
    opt.stream = j->card.stream;
    opt.bucket_bytes = opt.first_bucket_bytes = 4 * j->large * sizeof(float);
    for (size_t i = 0; i < N_PARAMS; i++) {
        (void)snprintf(names[i], sizeof names[i], "p%zu", i);
        j->data[i] = memory(j->comm, count_of(j, i) * sizeof(float));
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = names[i],
                                 .data = j->data[i],
                                 .count = count_of(j, i),
                                 .dtype = CDDP_FLOAT32};
    }
    for (int k = 0; k < 2; k++) {
        j->host[k] = calloc(count_all(j), sizeof(float));
        if (j->host[k] == NULL)
            card_die("whole: out of memory");
    }
    must(cddp_ddp_create(&j->ddp, j->comm, params, N_PARAMS, &opt));
}

static void close_job(struct job *j)
{
    cddp_ddp_destroy(j->ddp);
    for (size_t i = 0; i < N_PARAMS; i++)
        cddp_free(j->comm, j->data[i]);
    CARD(&j->card, cuEventDestroy, j->begun);
    CARD(&j->card, cuEventDestroy, j->ended);
    card_close(&j->card);
    for (int k = 0; k < 2; k++)
        free(j->host[k]);
    must(cddp_finalize(j->comm));
}

int main(int argc, char **argv)
{
    static struct job j;
    struct taken plain, captured;

    j.steps = argc > 1 ? atoi(argv[1]) : 50;
    j.large = argc > 2 ? (size_t)atol(argv[2]) : LARGE;
    if (j.steps < 1 || j.steps > 100000 || j.large < 1 || j.large > (size_t)1 << 28)
        card_die("whole: usage: whole [STEPS [COUNT]]");
    open_job(&j);
    plain = run(&j, false);
    captured = run(&j, true);
    compare(&j);
    if (cddp_rank(j.comm) == 0)
        printf("{\"whole\":%d,\"buckets\":%zu,\"ranks\":%d,\"step_ms\":[%.4f,%.4f],\"host_us\":[%.1f,%.1f]}\n", j.steps,
               cddp_ddp_bucket_count(j.ddp), cddp_world_size(j.comm), plain.step_ms, captured.step_ms, plain.host_us,
               captured.host_us);
    close_job(&j);
    return 0;
}
