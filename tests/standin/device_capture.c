/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captured steps on the stand-in, as a program that cddprun starts: device_capture WHAT. Gradients are copied from
 * memory that changes between steps; the means of a replay must have the bits of a step that is not captured.
 *
 *     global, thread_local, relaxed   a capture in this mode, of one step; steps of both kinds take turns
 *     forked      the capture begins on another stream than the reducer's, which joins it, like those of gradients
 *     beside      a thread captures in global mode while another one works with the communicator
 *     meanwhile   a step that is not captured, of bfloat16, while this thread captures another stream
 *     bfloat16    gradients are sent as bfloat16
 *     twice       two steps in one graph
 *     in_place    two gradients are reduced where they lie
 *     refused     calls that cannot be captured are rejected, and neither the capture nor the reducer is broken
 *     join        a stream is captured while its rank waits in cddp_ddp_join, which cannot be captured itself
 *     param       a wait for a parameter of a step that was begun before the capture
 *     dies        rank 1 ends itself where it should launch the graph once more
 *     stops       rank 1 stops there, until cddprun ends it
 *     outlives    rank 1 ends itself while rank 0 captures without it, and that capture ends well
 *
 * Exit status: 0 all was right, 3 a wrong result, 4 libcddp gave an error.
 */
#include "device.h"
#include "device_death.h"

#include <cddp/cddp.h>
#include <pthread.h>
#include <stdbool.h>

#define N_PARAMS 5
#define ROUNDS 4
#define LARGEST 300000
#define ALL (3000 + 2999 + LARGEST + 3001 + 70000)

static const size_t counts[N_PARAMS] = {3000, 2999, LARGEST, 3001, 70000};

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    struct device device;
    CUstream compute, other;
    CUdeviceptr source[N_PARAMS], data[N_PARAMS], own[N_PARAMS];
    CUevent fork, join;
};

static float *means_of(bool captured)
{
    static float means[2][ALL];

    return means[captured];
}

/* Numbers whose sums are rounded. */
static void set_sources(struct job *j, int round)
{
    static float x[LARGEST];
    uint32_t state = (uint32_t)(1000 * round + cddp_rank(j->comm) + 1);

    for (size_t i = 0; i < N_PARAMS; i++) {
        for (size_t k = 0; k < counts[i]; k++) {
            state = state * 1664525u + 1013904223u;
            x[k] = (float)(int32_t)state / 3e9f;
        }
        CU(cuMemcpyHtoDAsync(j->source[i], x, counts[i] * sizeof x[0], j->compute));
        CU(cuStreamSynchronize(j->compute));
    }
}

static void make_gradient(struct job *j, size_t i, CUstream s)
{
    CUdeviceptr to = (CUdeviceptr)cddp_ddp_grad(j->ddp, i);

    CU(cuMemsetD32Async(to, 0, counts[i], s));
    device_axpy(&j->device, 1, j->source[i], to, counts[i], s);
}

/* The last gradients are made on another stream, which is forked and joined. */
static void take_step(struct job *j, bool forked)
{
    if (forked) {
        CU(cuEventRecord(j->fork, j->compute));
        CU(cuStreamWaitEvent(j->other, j->fork, 0));
    }
    for (size_t i = N_PARAMS; i-- > 0;) {
        CUstream s = forked && i < 2 ? j->other : j->compute;

        make_gradient(j, i, s);
        DO(cddp_ddp_grad_ready_on(j->ddp, i, s));
        if (i == 2)
            DO(cddp_ddp_wait_param(j->ddp, N_PARAMS - 1));
    }
    if (forked) {
        CU(cuEventRecord(j->join, j->other));
        CU(cuStreamWaitEvent(j->compute, j->join, 0));
    }
    DO(cddp_ddp_wait(j->ddp));
    for (size_t i = 0; i < N_PARAMS; i++)
        device_axpy(&j->device, -0.5f, (CUdeviceptr)cddp_ddp_grad(j->ddp, i), j->data[i], counts[i], j->compute);
}

static void fetch(struct job *j, bool captured)
{
    float *to = means_of(captured);

    for (size_t i = 0; i < N_PARAMS; to += counts[i++])
        CU(cuMemcpyDtoHAsync(to, (CUdeviceptr)cddp_ddp_grad(j->ddp, i), counts[i] * sizeof *to, j->compute));
    CU(cuStreamSynchronize(j->compute));
}

static _Thread_local bool others_communicate; /* in other threads, at the same time */

/* The question to stop is never part of the graph, and breaks no capture. */
static void ask_to_stop(struct job *j)
{
    int stop = 1;

    if (others_communicate)
        return;
    DO(cddp_should_stop(j->comm, &stop));
    if (stop != 0)
        exit(WRONG);
}

static CUgraphExec capture(struct job *j, CUstreamCaptureMode mode, bool forked, int steps)
{
    CUstream origin = forked ? device_stream() : j->compute;
    CUevent in = device_event(), out = device_event();
    CUgraphExec exec;

    CU(cuStreamBeginCapture(origin, mode));
    if (forked) {
        CU(cuEventRecord(in, origin));
        CU(cuStreamWaitEvent(j->compute, in, 0));
    }
    for (int i = 0; i < steps; i++)
        take_step(j, forked);
    ask_to_stop(j);
    if (forked) {
        CU(cuEventRecord(out, j->compute));
        CU(cuStreamWaitEvent(origin, out, 0));
    }
    exec = device_end_capture(origin);
    if (forked)
        CU(cuStreamDestroy(origin));
    CU(cuEventDestroy(in));
    CU(cuEventDestroy(out));
    return exec;
}

static void compare(struct job *j, int round)
{
    const float *plain = means_of(false), *captured = means_of(true);
    size_t zeros = 0;

    for (size_t k = 0; k < ALL; k++) {
        zeros += plain[k] == 0;
        if (memcmp(&plain[k], &captured[k], sizeof plain[k]) == 0 && zeros < ALL / 10)
            continue;
        fprintf(stderr, "rank %d: wrong result: round %d: element %zu is %.9g in the replay, not %.9g\n",
                cddp_rank(j->comm), round, k, (double)captured[k], (double)plain[k]);
        exit(WRONG);
    }
}

static void replay(struct job *j, CUgraphExec exec)
{
    CU(cuGraphLaunch(exec, j->compute));
}

/* Steps of both kinds take turns, and then replays follow one another. */
static void compare_rounds(struct job *j, CUgraphExec exec)
{
    for (int round = 0; round < ROUNDS; round++) {
        set_sources(j, round);
        if (round % 2 == 0)
            replay(j, exec);
        if (round % 2 == 0)
            fetch(j, true);
        take_step(j, false);
        fetch(j, false);
        ask_to_stop(j);
        if (round % 2 != 0) {
            replay(j, exec);
            replay(j, exec);
            fetch(j, true);
        }
        compare(j, round);
    }
}

static void settle(struct job *j)
{
    set_sources(j, 0);
    for (int step = 0; step < 3; step++)
        take_step(j, false);
    CU(cuStreamSynchronize(j->compute));
}

/* ------------------------------------------------------------------------------------------- beside other threads --
 */

struct beside {
    struct job *job;
    CUgraphExec exec;
    _Atomic int captured;
};

static void *capture_there(void *arg)
{
    struct beside *b = arg;

    CU(cuCtxSetCurrent(b->job->device.ctx));
    others_communicate = true;
    b->exec = capture(b->job, CU_STREAM_CAPTURE_MODE_GLOBAL, false, 1);
    b->captured = 1;
    return NULL;
}

/* Blocking collectives of host memory, which wait and query, in this thread and in others. */
static CUgraphExec capture_beside(struct job *j)
{
    struct beside b = {.job = j};
    int32_t x[3] = {0}, over = 0;
    pthread_t thread;

    if (pthread_create(&thread, NULL, capture_there, &b) != 0)
        exit(FAILED);
    while (over == 0) {
        over = b.captured;
        DO(cddp_all_reduce(j->comm, x, x, 3, CDDP_INT32, CDDP_SUM));
        DO(cddp_all_reduce(j->comm, &over, &over, 1, CDDP_INT32, CDDP_MIN));
    }
    (void)pthread_join(thread, NULL);
    return b.exec;
}

/* ----------------------------------------------------------------------------------------------------- refusals ----
 */

static void end_well(struct job *j)
{
    CUgraph graph;

    CU(cuStreamEndCapture(j->compute, &graph));
    CU(cuGraphDestroy(graph));
}

static void end_badly(struct job *j, CUresult how)
{
    CUgraph graph;

    if (cuStreamEndCapture(j->compute, &graph) != how) {
        fprintf(stderr, "rank %d: the capture does not end with error %d\n", cddp_rank(j->comm), (int)how);
        exit(WRONG);
    }
}

static void begin(struct job *j)
{
    CU(cuStreamBeginCapture(j->compute, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static void refuse_flag(struct job *j, const cddp_param *params, uint32_t flag, const char *name)
{
    cddp_ddp_options opt = {.size = sizeof opt, .flags = flag, .stream = j->compute};
    cddp_ddp *ddp;
    int used = 7;

    DO(cddp_ddp_create(&ddp, j->comm, params, N_PARAMS, &opt));
    if (flag == CDDP_DDP_FIND_UNUSED)
        DO(cddp_ddp_wait(ddp)); /* a step in which nobody uses anything */
    begin(j);
    if (flag == CDDP_DDP_FIND_UNUSED)
        REFUSED(cddp_ddp_was_used(ddp, 0, &used), CDDP_E_UNSUPPORTED, "cddp_ddp_was_used");
    REFUSED(cddp_ddp_grad_ready(ddp, 0), CDDP_E_UNSUPPORTED, name);
    end_well(j);
    if (flag == CDDP_DDP_FIND_UNUSED)
        DO(cddp_ddp_was_used(ddp, 0, &used));
    if (flag == CDDP_DDP_FIND_UNUSED && used != 0) {
        fprintf(stderr, "rank %d: parameter 0 counts as used\n", cddp_rank(j->comm));
        exit(WRONG);
    }
    cddp_ddp_destroy(ddp);
}

static void refuse(struct job *j, const cddp_param *params)
{
    const size_t first = 0;
    double norm;
    int used;

    set_sources(j, 0);
    begin(j); /* before the buckets are settled */
    REFUSED(cddp_ddp_grad_ready(j->ddp, 0), CDDP_E_STATE, "two steps");
    REFUSED(cddp_ddp_wait(j->ddp), CDDP_E_STATE, "two steps");
    end_well(j);
    settle(j);
    make_gradient(j, N_PARAMS - 1, j->compute); /* in the middle of a step */
    DO(cddp_ddp_grad_ready(j->ddp, N_PARAMS - 1));
    begin(j);
    REFUSED(cddp_ddp_wait(j->ddp), CDDP_E_STATE, "middle of step 3");
    end_well(j);
    for (size_t i = N_PARAMS - 1; i-- > 0;) {
        make_gradient(j, i, j->compute);
        DO(cddp_ddp_grad_ready(j->ddp, i));
    }
    DO(cddp_ddp_wait(j->ddp));
    begin(j);
    DO(cddp_ddp_was_used(j->ddp, 0, &used)); /* needs no device: all are */
    REFUSED(cddp_ddp_sync_buffers(j->ddp), CDDP_E_UNSUPPORTED, "cddp_ddp_sync_buffers");
    REFUSED(cddp_ddp_grad_norm(j->ddp, 2, &norm), CDDP_E_UNSUPPORTED, "captures a graph");
    REFUSED(cddp_ddp_wait(j->ddp), CDDP_E_STATE, "5 of 5 gradients are missing"); /* and misuse */
    end_well(j);
    begin(j);
    for (size_t i = N_PARAMS; i-- > 0;) {
        REFUSED(cddp_ddp_grad_ready(j->ddp, N_PARAMS), CDDP_E_INVALID, "no parameter 5");
        make_gradient(j, i, j->compute);
        DO(cddp_ddp_grad_ready(j->ddp, i));
        REFUSED(cddp_ddp_grad_ready(j->ddp, i), CDDP_E_STATE, "ready already");
        REFUSED(cddp_ddp_grad_ready_on(j->ddp, 0, j->other), CDDP_E_STATE, "not part");
        if (i > 0)
            REFUSED(cddp_ddp_wait(j->ddp), CDDP_E_STATE, "missing");
    }
    DO(cddp_ddp_wait(j->ddp));
    end_well(j); /* all the same */
    DO(cddp_ddp_set_frozen(j->ddp, &first, 1, 1));
    begin(j);
    REFUSED(cddp_ddp_grad_ready(j->ddp, 1), CDDP_E_UNSUPPORTED, "frozen");
    REFUSED(cddp_ddp_set_frozen(j->ddp, &first, 1, 0), CDDP_E_UNSUPPORTED, "cddp_ddp_set_frozen");
    end_well(j);
    DO(cddp_ddp_set_frozen(j->ddp, &first, 1, 0));
    begin(j); /* given up */
    make_gradient(j, N_PARAMS - 1, j->compute);
    DO(cddp_ddp_grad_ready(j->ddp, N_PARAMS - 1));
    end_badly(j, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    take_step(j, false);
    begin(j); /* ended by a forbidden call */
    make_gradient(j, N_PARAMS - 1, j->compute);
    DO(cddp_ddp_grad_ready(j->ddp, N_PARAMS - 1));
    if (cuStreamQuery(j->compute) == CUDA_SUCCESS)
        exit(WRONG);
    REFUSED(cddp_ddp_grad_ready(j->ddp, 0), CDDP_E_UNSUPPORTED, "INVALIDATED");
    end_badly(j, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    refuse_flag(j, params, CDDP_DDP_FIND_UNUSED, "FIND_UNUSED");
    refuse_flag(j, params, CDDP_DDP_WEIGHTED, "_WEIGHTED");
}

/* A wait for a parameter of a step that was begun before the capture is refused, and does not end it. */
static void refuse_param(struct job *j)
{
    const struct timespec moment = {.tv_nsec = 100000000};

    settle(j);
    for (size_t i = N_PARAMS; i-- > 0;) {
        make_gradient(j, i, j->compute);
        DO(cddp_ddp_grad_ready(j->ddp, i));
    }
    begin(j);
    REFUSED(cddp_ddp_wait_param(j->ddp, N_PARAMS - 1), CDDP_E_STATE, "middle of step");
    (void)nanosleep(&moment, NULL);
    end_well(j);
    DO(cddp_ddp_wait(j->ddp));
    for (int i = 0; i < ROUNDS; i++)
        take_step(j, false);
}

/* Steps beside a capture, of a communicator that a graph holds: NCCL queries an event at each of their launches. */
static void step_meanwhile(struct job *j)
{
    CUgraph graph;

    CU(cuStreamBeginCapture(j->other, CU_STREAM_CAPTURE_MODE_GLOBAL));
    make_gradient(j, 0, j->other);
    for (int i = 0; i < ROUNDS; i++)
        take_step(j, false);
    CU(cuStreamEndCapture(j->other, &graph));
    CU(cuGraphDestroy(graph));
}

/* ------------------------------------------------------------------------------------------------ cddp_ddp_join ----
 */

#define JOINED 6 /* steps of rank 0; rank 1 takes part in them */

struct meeting {
    struct job *job;
    cddp_ddp *ddp;
    cddp_store *store;
};

static void tell(const struct meeting *m, const char *key)
{
    DO(cddp_store_set(m->store, key, "1", 1));
}

static void await(const struct meeting *m, const char *key)
{
    DO(cddp_store_wait(m->store, &key, 1, 60000));
}

/* Captures a kernel on the compute stream of rank 1 while its main thread takes part in the steps of rank 0. */
static void *capture_meanwhile(void *arg)
{
    const struct meeting *m = arg;

    CU(cuCtxSetCurrent(m->job->device.ctx));
    await(m, "joined");
    begin(m->job);
    make_gradient(m->job, 0, m->job->compute);
    tell(m, "captured");
    await(m, "over");
    end_well(m->job);
    tell(m, "ended");
    return NULL;
}

static void step_of_joined(const struct meeting *m)
{
    for (size_t i = N_PARAMS; i-- > 0;) {
        CU(cuMemsetD32Async((CUdeviceptr)cddp_ddp_grad(m->ddp, i), 0, counts[i], m->job->compute));
        DO(cddp_ddp_grad_ready(m->ddp, i));
    }
    DO(cddp_ddp_wait(m->ddp));
    CU(cuStreamSynchronize(m->job->compute));
}

static void join_captured(struct job *j, const cddp_param *params)
{
    const cddp_ddp_options opt = {.size = sizeof opt, .flags = CDDP_DDP_JOIN, .stream = j->compute};
    struct meeting m = {.job = j};
    pthread_t thread;

    DO(cddp_ddp_create(&m.ddp, j->comm, params, N_PARAMS, &opt));
    DO(cddp_store_open(&m.store, NULL));
    begin(j);
    REFUSED(cddp_ddp_join(m.ddp), CDDP_E_UNSUPPORTED, "cddp_ddp_join");
    end_well(j);
    step_of_joined(&m);
    if (cddp_rank(j->comm) == 1 && pthread_create(&thread, NULL, capture_meanwhile, &m) != 0)
        exit(FAILED);
    for (int s = 0; s < JOINED && cddp_rank(j->comm) == 0; s++) {
        step_of_joined(&m);
        if (s == 0)
            tell(&m, "joined");
        if (s == 0)
            await(&m, "captured");
    }
    if (cddp_rank(j->comm) == 0) {
        tell(&m, "over");
        await(&m, "ended");
    }
    DO(cddp_ddp_join(m.ddp));
    if (cddp_rank(j->comm) == 1)
        (void)pthread_join(thread, NULL);
    cddp_store_close(m.store);
    cddp_ddp_destroy(m.ddp);
}

/* ----------------------------------------------------------------------------------------------------- the rest ----
 */

/* The replay of rank 0 waits for rank 1; the next call reports the death. */
static int lose_a_peer(struct job *j, CUgraphExec exec, bool dies)
{
    cddp_status st;
    float x = 0;

    for (int i = 0; i < ROUNDS; i++)
        replay(j, exec);
    CU(cuStreamSynchronize(j->compute));
    lose_rank_1(j->comm, dies);
    replay(j, exec);
    CU(cuStreamSynchronize(j->compute));
    st = cddp_all_reduce(j->comm, &x, &x, 1, CDDP_FLOAT32, CDDP_SUM);
    print_end(st);
    CU(cuGraphExecDestroy(exec));
    return st == CDDP_OK ? WRONG : FAILED;
}

/* The abort of the communicator does not end a capture that has nothing to do with it. */
static int outlive_a_peer(struct job *j)
{
    const struct timespec moment = {.tv_nsec = 100000000};
    cddp_status st;

    DO(cddp_barrier(j->comm));
    if (cddp_rank(j->comm) == 1) {
        (void)nanosleep(&moment, NULL);
        (void)raise(SIGKILL);
    }
    begin(j);
    make_gradient(j, 0, j->compute);
    while ((st = cddp_comm_error(j->comm, NULL)) == CDDP_OK)
        (void)nanosleep(&moment, NULL);
    fprintf(stderr, "rank 0: the peer is gone: %s: %s\n", cddp_status_name(st), cddp_last_error());
    end_well(j);
    fprintf(stderr, "rank 0: the capture has ended well\n");
    return FAILED;
}

static void open_job(struct job *j, cddp_param *params, bool narrow, bool in_place)
{
    static const char *const names[N_PARAMS] = {"a", "b", "c", "d", "e"};
    cddp_init_options init = {.size = sizeof init, .backend = "nccl"};
    cddp_ddp_options opt = {.size = sizeof opt, .bucket_bytes = 8000, .first_bucket_bytes = 8000};

    DO(cddp_init(&j->comm, &init));
    device_open(&j->device, cddp_local_rank(j->comm));
    j->compute = device_stream();
    j->other = device_stream();
    j->fork = device_event();
    j->join = device_event();
    for (size_t i = 0; i < N_PARAMS; i++) {
        j->data[i] = device_floats(counts[i], 0);
        j->source[i] = device_floats(counts[i], 0);
        if (i % 2 == 0)
            j->own[i] = device_floats(counts[i], 0);
        if (j->own[i] != 0 && in_place) /* the large ones are reduced there */
            DO(cddp_register(j->comm, (void *)j->own[i], counts[i] * sizeof(float), CDDP_MEM_COLLECTIVE));
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = names[i],
                                 .data = (void *)j->data[i],
                                 .grad = (void *)j->own[i],
                                 .count = counts[i],
                                 .dtype = CDDP_FLOAT32};
    }
    opt.stream = j->compute;
    opt.comm_dtype = narrow ? CDDP_BFLOAT16 : CDDP_DTYPE_NONE;
    DO(cddp_ddp_create(&j->ddp, j->comm, params, N_PARAMS, &opt));
}

static void close_job(struct job *j)
{
    cddp_ddp_destroy(j->ddp);
    for (size_t i = 0; i < N_PARAMS; i++) {
        CU(cuMemFree(j->data[i]));
        CU(cuMemFree(j->source[i]));
        if (j->own[i] != 0)
            CU(cuMemFree(j->own[i]));
    }
    CU(cuStreamDestroy(j->compute));
    CU(cuStreamDestroy(j->other));
    CU(cuEventDestroy(j->fork));
    CU(cuEventDestroy(j->join));
    CU(cuLibraryUnload(j->device.library));
    DO(cddp_finalize(j->comm));
}

int main(int argc, char **argv)
{
    static struct job job;
    const char *what = argc > 1 ? argv[1] : "global";
    cddp_param params[N_PARAMS];
    CUstreamCaptureMode mode = strcmp(what, "thread_local") == 0 ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                               : strcmp(what, "relaxed") == 0    ? CU_STREAM_CAPTURE_MODE_RELAXED
                                                                 : CU_STREAM_CAPTURE_MODE_GLOBAL;
    struct job *j = &job;
    CUgraphExec exec;

    open_job(j, params, strcmp(what, "bfloat16") == 0 || strcmp(what, "meanwhile") == 0, strcmp(what, "in_place") == 0);
    if (strcmp(what, "refused") == 0)
        refuse(j, params);
    if (strcmp(what, "join") == 0) {
        join_captured(j, params);
        close_job(j);
        return 0;
    }
    if (strcmp(what, "param") == 0) {
        refuse_param(j);
        close_job(j);
        return 0;
    }
    if (strcmp(what, "outlives") == 0)
        return outlive_a_peer(j);
    settle(j);
    if (strcmp(what, "beside") == 0)
        exec = capture_beside(j);
    else
        exec = capture(j, mode, strcmp(what, "forked") == 0, strcmp(what, "twice") == 0 ? 2 : 1);
    if (strcmp(what, "dies") == 0 || strcmp(what, "stops") == 0)
        return lose_a_peer(j, exec, strcmp(what, "dies") == 0);
    if (strcmp(what, "meanwhile") == 0)
        step_meanwhile(j);
    compare_rounds(j, exec);
    CU(cuGraphExecDestroy(exec));
    close_job(j);
    return 0;
}
