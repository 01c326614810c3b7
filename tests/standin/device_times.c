/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The times of steps on a GPU. Each gradient takes 1 ms of the compute stream, and each bucket as long as
 * CDDP_STANDIN_COLLECTIVE_US says. Prints the sums that cddp_ddp_get_stats gives as one line of JSON per rank; times.py
 * judges them.
 *
 *     device_times exposed|hidden|params|optim|captured|ahead
 *
 * exposed: the compute stream waits for all of it at once; hidden: it works for 60 ms before; params: it waits for each
 * parameter; optim: the divided optimizer; captured: half of the steps are replays of a CUDA graph; ahead: the
 * host is so far ahead of the GPU that a step's first gradient has no time, and its others have one.
 */
#include "device.h"
#include "gate_kernel.h"
#include "must.h"

#include <cddp/experimental/ddp.h>
#include <cddp/experimental/optim.h>
#include <string.h>
#include <time.h>

#define N_PARAMS 3
#define COUNT 40000 /* 156 KiB: a separate bucket */
#define STEPS 12
#define SAMPLED 12 /* of 3 * STEPS: 1 to 9, 16, 24, and 32; step 0 has no beginning */
#define GRAD_US 1000
#define FORWARD_US 3000
#define HIDE_US 60000
#define STAMPS 2048    /* that the host may be ahead of the GPU (architecture-gpu.md) */
#define KNOWN_MS 10000 /* for the times of the last step to be known; much less */

static void busy_thread(const struct standin_thread *t, void *const *args)
{
    const uint64_t *us = args[0];
    const struct timespec nap = {.tv_sec = (time_t)(*us / 1000000), .tv_nsec = (long)(*us % 1000000) * 1000};

    (void)t;
    (void)nanosleep(&nap, NULL);
}

static void busy_ranges(const struct standin_thread *grid, void *const *args, struct standin_ranges *r)
{
    (void)grid, (void)args, (void)r;
}

static const struct standin_kernel busy_kernel = {
    .name = "busy", .n_args = 1, .arg_size = {sizeof(uint64_t)}, .thread = busy_thread, .ranges = busy_ranges};

struct job {
    const char *what;
    struct device device;
    CUkernel busy, gate;
    CUstream compute;
    CUdeviceptr data[N_PARAMS];
    cddp_ddp *ddp;
    cddp_optim *optim;
};

static void work(struct job *j, uint64_t us)
{
    void *args[] = {&us};

    device_run(j->busy, j->compute, args);
}

static void open_job(struct job *j, cddp_comm *comm)
{
    static const char *const names[N_PARAMS] = {"a", "b", "c"};
    cddp_ddp_options opt = {
        .size = sizeof opt, .bucket_bytes = COUNT * sizeof(float), .first_bucket_bytes = COUNT * sizeof(float)};
    cddp_param params[N_PARAMS];

    device_open(&j->device, cddp_local_rank(comm));
    j->busy = device_kernel(&j->device, &busy_kernel);
    j->gate = device_kernel(&j->device, &gate_kernel);
    if (strcmp(j->what, "ahead") == 0) /* one bucket, which starts after the last gradient */
        opt.bucket_bytes = opt.first_bucket_bytes = 2 * N_PARAMS * COUNT * sizeof(float);
    opt.stream = j->compute = device_stream();
    for (size_t i = 0; i < N_PARAMS; i++) {
        j->data[i] = device_floats(COUNT, 1);
        params[i] = (cddp_param){.size = sizeof params[i],
                                 .name = names[i],
                                 .data = (void *)j->data[i],
                                 .count = COUNT,
                                 .dtype = CDDP_FLOAT32};
    }
    DO(cddp_ddp_create(&j->ddp, comm, params, N_PARAMS, &opt));
    if (strcmp(j->what, "optim") == 0) {
        const cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 0.125};

        DO(cddp_optim_create(&j->optim, j->ddp, &sgd));
    }
}

static void backward(struct job *j)
{
    work(j, FORWARD_US);
    for (size_t i = N_PARAMS; i-- > 0;) {
        work(j, GRAD_US);
        CU(cuMemsetD32Async((CUdeviceptr)cddp_ddp_grad(j->ddp, i), 0, COUNT, j->compute));
        DO(cddp_ddp_grad_ready(j->ddp, i));
    }
}

static void step(struct job *j)
{
    backward(j);
    if (strcmp(j->what, "hidden") == 0)
        work(j, HIDE_US);
    for (size_t i = 0; strcmp(j->what, "params") == 0 && i < N_PARAMS; i++)
        DO(cddp_ddp_wait_param(j->ddp, N_PARAMS - 1 - i));
    DO(j->optim != NULL ? cddp_optim_step(j->optim, NULL) : cddp_ddp_wait(j->ddp));
}

/* Waits for the GPU, and until the times of its steps are read. The latter has no sign: too short a wait tests less. */
static void settle(struct job *j)
{
    const struct timespec moment = {.tv_nsec = 400000000};
    cddp_ddp_stats s = {.size = sizeof s};

    CU(cuStreamSynchronize(j->compute));
    (void)nanosleep(&moment, NULL);
    DO(cddp_ddp_get_stats(j->ddp, &s));
}

/* Steps without work, until stamps are used up; in the middle of one step the GPU catches up. */
static void run_ahead(struct job *j)
{
    atomic_store(&gate_is_open, false);
    device_run(j->gate, j->compute, NULL);
    /* Of five stamps a step, the last two of the last step find no room: those of its wait, after the bucket's. */
    for (int i = 0; i < STAMPS / 5 + 1; i++) {
        for (size_t k = N_PARAMS; k-- > 0;)
            DO(cddp_ddp_grad_ready(j->ddp, k));
        DO(cddp_ddp_wait(j->ddp));
    }
    DO(cddp_ddp_grad_ready(j->ddp, N_PARAMS - 1));
    atomic_store(&gate_is_open, true);
    settle(j);
    for (size_t k = N_PARAMS - 1; k-- > 0;)
        DO(cddp_ddp_grad_ready(j->ddp, k));
    DO(cddp_ddp_wait(j->ddp));
    settle(j);
}

/* Makes a graph of a step, and launches it n times. */
static void replay(struct job *j, int n)
{
    CUgraphExec runs;

    CU(cuStreamBeginCapture(j->compute, CU_STREAM_CAPTURE_MODE_GLOBAL));
    step(j);
    runs = device_end_capture(j->compute);
    for (int i = 0; i < n; i++)
        CU(cuGraphLaunch(runs, j->compute));
    CU(cuStreamSynchronize(j->compute));
    CU(cuGraphExecDestroy(runs));
}

/* Reads the sums when all steps are in them; n: how many. */
static cddp_ddp_stats await_stats(cddp_ddp *ddp, uint64_t n)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    cddp_ddp_stats s = {.size = sizeof s};

    for (int ms = 0; ms < KNOWN_MS; ms++) {
        DO(cddp_ddp_get_stats(ddp, &s));
        if (s.steps >= n)
            break;
        (void)nanosleep(&nap, NULL);
    }
    return s;
}

int main(int argc, char **argv)
{
    cddp_init_options init = {.size = sizeof init, .backend = "nccl"};
    const char *timing = getenv("CDDP_TIMING");
    bool timed = timing == NULL || strcmp(timing, "all") == 0;
    struct job j = {.what = argc == 2 ? argv[1] : ""};
    cddp_comm *comm;
    cddp_ddp_stats s;

    DO(cddp_init(&comm, &init));
    open_job(&j, comm);
    for (int i = 0; i < STEPS; i++)
        step(&j);
    CU(cuStreamSynchronize(j.compute));
    if (strcmp(j.what, "sampled") == 0) {
        for (int i = 0; i < 2 * STEPS; i++)
            step(&j);
        CU(cuStreamSynchronize(j.compute));
        s = await_stats(j.ddp, SAMPLED);
    } else {
        s = await_stats(j.ddp, timed ? STEPS - 1 : 0);
    }
    if (strcmp(j.what, "ahead") == 0) {
        uint64_t known;

        run_ahead(&j);
        known = await_stats(j.ddp, 0).steps;
        for (int i = 0; i < STEPS; i++) /* all but the first one have a beginning */
            step(&j);
        settle(&j);
        s = await_stats(j.ddp, known + STEPS - 1);
        s.steps -= known;
    }
    if (strcmp(j.what, "captured") == 0) {
        replay(&j, STEPS);
        for (int i = 0; i < STEPS; i++)
            step(&j);
        CU(cuStreamSynchronize(j.compute));
        s = await_stats(j.ddp, 2 * STEPS - 1);
    }
    printf("{\"rank\": %d, \"steps\": %llu, \"step_ns\": %lld, \"forward_ns\": %lld, \"backward_ns\": %lld, "
           "\"comm_ns\": %lld, "
           "\"exposed_ns\": %lld, \"hidden_ns\": %lld, \"late_ns\": %lld, \"slowest_rank\": %d}\n",
           cddp_rank(comm), (unsigned long long)s.steps, (long long)s.step_ns, (long long)s.forward_ns,
           (long long)s.backward_ns, (long long)s.comm_ns, (long long)s.exposed_ns, (long long)s.hidden_ns,
           (long long)s.late_ns, (int)s.slowest_rank);
    cddp_optim_destroy(j.optim);
    cddp_ddp_destroy(j.ddp);
    for (size_t i = 0; i < N_PARAMS; i++)
        CU(cuMemFree(j.data[i]));
    CU(cuStreamDestroy(j.compute));
    CU(cuLibraryUnload(j.device.library));
    DO(cddp_finalize(comm));
    return 0;
}
