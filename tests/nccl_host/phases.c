/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phases PHASE VICTIM US: a rank of the NCCL backend that goes through the phases of a job; VICTIM is killed US after
 * it has begun PHASE, unless it has ended that. The others print the error that ends them, or that they have left:
 *
 *     KILLED RANK NS              NS: of the monotonic clock, just before the kill
 *     SURVIVOR RANK NS PHASE: the error's text
 *     LEFT RANK
 *
 * With a VICTIM that no rank has, each rank goes once through each phase, and prints "TOOK RANK PHASE US".
 */
#include "device.h"

#include <cddp/cddp.h>
#include <cddp/experimental/stream.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define STEPS 20000 /* until the kill, at most */
#define FEW 3       /* in phases before the wanted one; the buckets' order settles in as many */
#define N_PARAMS 3
#define COUNT 20000

struct job {
    cddp_comm *comm, *part;
    cddp_ddp *ddp;
    struct device device;
    CUstream compute;
    void *x, *data[N_PARAMS];
    CUdeviceptr made;
};

static const char *wanted, *now = "";
static int victim, after_us;
static int64_t began_ns;
static _Atomic bool *is_over; /* the wanted phase of the victim; shared with the process that kills it */

static int rank(void)
{
    const char *text = getenv("RANK");

    return text != NULL ? atoi(text) : 0;
}

static int64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* In the child of a process with threads: only what is safe in a signal handler, and a text of this stack. */
static void kill_later(pid_t who)
{
    char text[64];
    int n;

    (void)usleep((useconds_t)after_us);
    if (atomic_load(is_over))
        _exit(0);
    n = snprintf(text, sizeof text, "KILLED %d %lld\n", victim, (long long)now_ns());
    (void)!write(2, text, (size_t)n);
    (void)kill(who, SIGKILL);
    _exit(0);
}

static void begin(const char *phase)
{
    pid_t me = getpid();

    if (victim < 0 && *now != '\0')
        (void)fprintf(stderr, "TOOK %d %s %lld\n", rank(), now, (long long)(now_ns() - began_ns) / 1000);
    if (rank() == victim && strcmp(now, wanted) == 0)
        atomic_store(is_over, true);
    now = phase;
    if (rank() == victim && strcmp(phase, wanted) == 0 && fork() == 0)
        kill_later(me);
    began_ns = now_ns();
}

static void must(cddp_status st)
{
    int64_t at_ns = now_ns();

    if (st == CDDP_OK)
        return;
    (void)fprintf(stderr, "SURVIVOR %d %lld %s: %s\n", rank(), (long long)at_ns, now, cddp_last_error());
    exit(1);
}

/* The wanted phase goes on until the kill. */
static int rounds(const char *phase)
{
    return victim >= 0 && strcmp(wanted, phase) == 0 ? STEPS : FEW;
}

/* ---------------------------------------------------------------------------------------------------- the phases ----
 */

static void init(struct job *j)
{
    cddp_init_options o = {.size = sizeof o, .backend = "nccl"};

    must(cddp_init(&j->comm, &o));
    must(cddp_alloc(j->comm, COUNT * sizeof(float), 0, &j->x));
}

static void take_steps(struct job *j)
{
    for (int i = 0; i < rounds("step"); i++)
        must(cddp_all_reduce(i % 2 == 0 ? j->comm : j->part, j->x, j->x, COUNT, CDDP_FLOAT32, CDDP_SUM));
}

static void prepare(struct job *j)
{
    cddp_ddp_options opt = {.size = sizeof opt, .bucket_bytes = COUNT * sizeof(float)};
    cddp_param params[N_PARAMS];

    device_open(&j->device, getenv("CDDP_SHARE_GPU") != NULL ? 0 : cddp_local_rank(j->comm));
    j->compute = device_stream();
    j->made = device_floats(COUNT, 1);
    opt.stream = j->compute;
    for (int i = 0; i < N_PARAMS; i++) {
        must(cddp_alloc(j->comm, COUNT * sizeof(float), 0, &j->data[i]));
        CU(cuMemsetD32Async((CUdeviceptr)j->data[i], 0, COUNT, j->compute));
        params[i] = (cddp_param){.size = sizeof params[i],
                                 .name = (const char *[]){"a", "b", "c"}[i],
                                 .data = j->data[i],
                                 .count = COUNT,
                                 .dtype = CDDP_FLOAT32};
    }
    CU(cuStreamSynchronize(j->compute));
    must(cddp_ddp_create(&j->ddp, j->comm, params, N_PARAMS, &opt));
}

static void step(struct job *j)
{
    for (size_t i = N_PARAMS; i-- > 0;) {
        CU(cuMemcpyDtoDAsync((CUdeviceptr)cddp_ddp_grad(j->ddp, i), j->made, COUNT * sizeof(float), j->compute));
        must(cddp_ddp_grad_ready(j->ddp, i));
    }
    must(cddp_ddp_wait(j->ddp));
}

static CUgraphExec capture(struct job *j)
{
    CU(cuStreamBeginCapture(j->compute, CU_STREAM_CAPTURE_MODE_GLOBAL));
    step(j);
    return device_end_capture(j->compute);
}

/* A launch after each keeps the ranks together. */
static void make_captures(struct job *j)
{
    for (int i = 0; i < rounds("capture"); i++) {
        CUgraphExec graph = capture(j);

        CU(cuGraphLaunch(graph, j->compute));
        CU(cuStreamSynchronize(j->compute));
        must(cddp_ddp_replay_status(j->ddp));
        CU(cuGraphExecDestroy(graph));
    }
}

static void replay(struct job *j)
{
    CUgraphExec graph = capture(j);

    begin("replay");
    for (int i = 0; i < rounds("replay"); i++) {
        CU(cuGraphLaunch(graph, j->compute));
        CU(cuStreamSynchronize(j->compute));
        must(cddp_ddp_replay_status(j->ddp));
    }
    CU(cuGraphExecDestroy(graph));
}

static void leave(struct job *j)
{
    cddp_ddp_destroy(j->ddp);
    for (int i = 0; i < N_PARAMS; i++)
        cddp_free(j->comm, j->data[i]);
    cddp_free(j->comm, j->x);
    must(cddp_finalize(j->part));
    must(cddp_finalize(j->comm));
}

int main(int argc, char **argv)
{
    static struct job j;

    if (argc != 4)
        return 2;
    wanted = argv[1];
    victim = atoi(argv[2]);
    after_us = atoi(argv[3]);
    is_over = mmap(NULL, sizeof *is_over, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (is_over == MAP_FAILED)
        return 2;
    begin("init");
    init(&j);
    begin("split");
    must(cddp_comm_split(&j.part, j.comm, 0, cddp_rank(j.comm), NULL));
    begin("first");
    must(cddp_all_reduce(j.part, j.x, j.x, COUNT, CDDP_FLOAT32, CDDP_SUM));
    begin("step");
    take_steps(&j);
    begin("reducer");
    prepare(&j);
    for (int i = 0; i < FEW; i++)
        step(&j);
    CU(cuStreamSynchronize(j.compute));
    begin("capture");
    make_captures(&j);
    begin("graph");
    replay(&j);
    begin("leave");
    leave(&j);
    begin("");
    (void)fprintf(stderr, "LEFT %d\n", rank());
    return 0;
}
