/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A captured step on a GPU: in each mode of capture a graph is launched several times, in turn with steps that are not
 * captured, on gradients that change; every mean of every launch must be right. They are whole numbers, in any order of
 * a sum. Started by cddprun, on a GPU or on its stand-in.
 *
 * Exit status: 0 success, 3 a wrong result, 1 an error (with a message), 77 no GPU.
 */
#include "card.h"

#include <cddp/cddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTLED 3 /* steps before the first capture */
#define ROUNDS 4
#define N_PARAMS 4
#define ALL 93999
#define BUCKET_BYTES ((size_t)64 << 10)
#define WRONG 3

static const size_t counts[N_PARAMS] = {3000, 999, 70000, 20000}; /* ALL of them */

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    struct card card;
    CUstream compute;
    void *data[N_PARAMS];
    float *source; /* of all gradients */
    long checked;
};

static void must(cddp_status status)
{
    if (status != CDDP_OK)
        card_die("capture: %s", cddp_last_error());
}

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
    static float x[ALL];
    size_t at = 0;

    for (size_t i = 0; i < N_PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++)
            x[at++] = gradient(cddp_rank(j->comm), round, i);
    CARD(&j->card, cuMemcpyHtoDAsync, (CUdeviceptr)(uintptr_t)j->source, x, sizeof x, j->compute);
    CARD(&j->card, cuStreamSynchronize, j->compute);
}

static void take_step(struct job *j)
{
    size_t at = ALL;

    for (size_t i = N_PARAMS; i-- > 0;) {
        struct cdi_slice slice = {.bytes = counts[i] * sizeof(float)};
        struct cdi_launch l;
        size_t bytes;

        at -= counts[i];
        slice.data = j->source + at;
        (void)cdi_launch_pack(&l, CDI_KERNEL_PACK, j->card.n_sm, cddp_ddp_grad(j->ddp, i), &slice, 1, &bytes);
        card_launch(&j->card, j->compute, &l);
        must(cddp_ddp_grad_ready(j->ddp, i));
    }
    must(cddp_ddp_wait(j->ddp));
}

static void check(struct job *j, const char *what, int round)
{
    static float x[70000];
    int n = cddp_world_size(j->comm);

    for (size_t i = 0; i < N_PARAMS; i++) {
        CARD(&j->card, cuMemcpyDtoHAsync, x, (CUdeviceptr)(uintptr_t)cddp_ddp_grad(j->ddp, i), counts[i] * sizeof x[0],
             j->compute);
        CARD(&j->card, cuStreamSynchronize, j->compute);
        for (size_t k = 0; k < counts[i]; k++) {
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
    CUgraph graph;
    CUgraphExec exec;

    CARD(&j->card, cuStreamBeginCapture, j->compute, mode);
    take_step(j);
    CARD(&j->card, cuStreamEndCapture, j->compute, &graph);
    CARD(&j->card, cuGraphInstantiateWithFlags, &exec, graph, 0);
    CARD(&j->card, cuGraphDestroy, graph);
    for (int round = 0; round < ROUNDS; round++) {
        set_source(j, 2 * round);
        CARD(&j->card, cuGraphLaunch, exec, j->compute);
        check(j, "launched", 2 * round);
        set_source(j, 2 * round + 1);
        take_step(j);
        check(j, "not captured", 2 * round + 1);
    }
    CARD(&j->card, cuGraphExecDestroy, exec);
}

static void *memory(struct job *j, size_t bytes)
{
    void *p;

    must(cddp_alloc(j->comm, bytes, 0, &p));
    return p;
}

static void open_job(struct job *j)
{
    static const char *const names[N_PARAMS] = {"a", "b", "c", "d"};
    cddp_init_options init = {.size = sizeof init, .backend = "nccl"};
    cddp_device_info info = {.size = sizeof info};
    cddp_ddp_options opt = {.size = sizeof opt, .bucket_bytes = BUCKET_BYTES, .first_bucket_bytes = BUCKET_BYTES};
    cddp_param params[N_PARAMS];

    must(cddp_init(&j->comm, &init));
    must(cddp_get_device_info(j->comm, &info));
    card_open(&j->card, info.device);
    opt.stream = j->compute = j->card.stream;
    j->source = memory(j, ALL * sizeof(float));
    for (size_t i = 0; i < N_PARAMS; i++) {
        j->data[i] = memory(j, counts[i] * sizeof(float)); /* its values do not matter here */
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = names[i],
                                 .data = j->data[i],
                                 .count = counts[i],
                                 .dtype = CDDP_FLOAT32};
    }
    must(cddp_ddp_create(&j->ddp, j->comm, params, N_PARAMS, &opt));
}

static void close_job(struct job *j)
{
    cddp_ddp_destroy(j->ddp);
    for (size_t i = 0; i < N_PARAMS; i++)
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
