/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A captured step on a GPU: in each mode of capture a graph is launched several times, in turn with steps that are not
 * captured, on gradients that change; every mean of every launch must be right. They are whole numbers, in any order of
 * a sum. Started by cddprun, on a GPU or on its stand-in.
 *
 * Exit status: 0 success, 3 a wrong result, 1 an error (with a message), 77 no GPU.
 */
#include "card_job.h"

#include <stdio.h>
#include <string.h>

#define SETTLED 3 /* steps before the first capture */
#define ROUNDS 4

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    struct card card;
    void *data[LAYERS];
    float *source; /* of all gradients */
    long checked;
};

static float gradient(int rank, int round, size_t i)
{
    return (float)(2 * rank * (round + 1) + (int)i);
}

static float mean(int n, int round, size_t i)
{
    return (float)((n - 1) * (round + 1) + (int)i);
}

/* Nothing that uses it is under way. */
static void set_source(struct job *j, int round)
{
    static float x[LAYERS_ALL];
    size_t at = 0;

    for (size_t i = 0; i < LAYERS; i++)
        for (size_t k = 0; k < layer_counts[i]; k++)
            x[at++] = gradient(cddp_rank(j->comm), round, i);
    CARD(&j->card, cuMemcpyHtoDAsync, (CUdeviceptr)(uintptr_t)j->source, x, sizeof x, j->card.stream);
    CARD(&j->card, cuStreamSynchronize, j->card.stream);
}

static void take_step(struct job *j)
{
    size_t at = LAYERS_ALL;

    for (size_t i = LAYERS; i-- > 0;) {
        at -= layer_counts[i];
        card_copy(&j->card, cddp_ddp_grad(j->ddp, i), j->source + at, layer_counts[i]);
        must(cddp_ddp_grad_ready(j->ddp, i));
    }
    must(cddp_ddp_wait(j->ddp));
}

static void check(struct job *j, const char *what, int round)
{
    static float x[70000];
    int n = cddp_world_size(j->comm);

    for (size_t i = 0; i < LAYERS; i++) {
        CARD(&j->card, cuMemcpyDtoHAsync, x, (CUdeviceptr)(uintptr_t)cddp_ddp_grad(j->ddp, i),
             layer_counts[i] * sizeof x[0], j->card.stream);
        CARD(&j->card, cuStreamSynchronize, j->card.stream);
        for (size_t k = 0; k < layer_counts[i]; k++) {
            if (x[k] == mean(n, round, i))
                continue;
            (void)fprintf(stderr, "rank %d: %s: round %d, parameter %zu, element %zu is %g, not %g\n",
                          cddp_rank(j->comm), what, round, i, k, (double)x[k], (double)mean(n, round, i));
            exit(WRONG);
        }
    }
    j->checked++;
}

static void run(struct job *j, CUstreamCaptureMode mode)
{
    CUgraphExec exec;

    CARD(&j->card, cuStreamBeginCapture, j->card.stream, mode);
    take_step(j);
    exec = card_end_capture(&j->card);
    for (int round = 0; round < ROUNDS; round++) {
        set_source(j, 2 * round);
        CARD(&j->card, cuGraphLaunch, exec, j->card.stream);
        check(j, "launched", 2 * round);
        set_source(j, 2 * round + 1);
        take_step(j);
        check(j, "not captured", 2 * round + 1);
    }
    CARD(&j->card, cuGraphExecDestroy, exec);
}

static void open_job(struct job *j)
{
    card_join(&j->comm, &j->card);
    j->source = memory(j->comm, LAYERS_ALL * sizeof(float));
    j->ddp = card_layers(j->comm, &j->card, j->data);
}

static void close_job(struct job *j)
{
    cddp_ddp_destroy(j->ddp);
    for (size_t i = 0; i < LAYERS; i++)
        cddp_free(j->comm, j->data[i]);
    cddp_free(j->comm, j->source);
    card_close(&j->card);
    must(cddp_finalize(j->comm));
}

int main(void)
{
    static struct job j;

    open_job(&j);
    set_source(&j, 0);
    for (int step = 0; step < SETTLED; step++)
        take_step(&j);
    check(&j, "before", 0);
    run(&j, CU_STREAM_CAPTURE_MODE_GLOBAL);
    run(&j, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    run(&j, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (cddp_rank(j.comm) == 0)
        printf("{\"captured\":3,\"launches\":%d,\"checked\":%ld,\"buckets\":%zu,\"ranks\":%d}\n", 3 * ROUNDS, j.checked,
               cddp_ddp_bucket_count(j.ddp), cddp_world_size(j.comm));
    close_job(&j);
    return 0;
}
