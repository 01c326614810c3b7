/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the GPU backend waits, on the stand-in: it ends no graph capture of the program, rejects work that would be
 * captured, notices a death while another thread is in a driver call that does not return, and distinguishes a fault of
 * the GPU from pending work.
 */
#include "common/clock.h"
#include "gpu_ranks.h"
#include "worker/backend/nccl/device/ticket.h"

#include <math.h>

/* ------------------------------------------------------------------------------------------------------- captures --
 */

/* All that may query, wait or allocate: collectives over memory of the host and of the device, an arena, a copy. */
static int work(struct rank *r)
{
    static float x[COUNT];
    const struct cdi_coll op = all_reduce(x);
    struct cdi_region *region;
    void *there;

    for (int i = 0; i < 8; i++) {
        for (size_t k = 0; k < COUNT; k++)
            x[k] = (float)r->rank + 1;
        RANK_CHECK(rank_do(r, &op) == CDDP_OK);
        RANK_CHECK(x[0] == 3 && x[COUNT - 1] == 3, "%f", (double)x[0]);
    }
    x[1] = NAN;
    there = rank_lend(r, x, sizeof x);
    rank_return(r, x, there, sizeof x);
    RANK_CHECK(isnan(x[1]));
    RANK_CHECK(r->ops->region_create(r->b, 100000, &region, &r->err) == CDDP_OK);
    r->ops->region_destroy(r->b, region);
    return 0;
}

static void *work_in_a_thread(void *arg)
{
    struct rank *r = arg;

    return use_device(r) != 0 || work(r) != 0 ? arg : NULL;
}

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                            CU_STREAM_CAPTURE_MODE_RELAXED};

static int stay_out_of_captures(struct rank *r)
{
    CUstreamCaptureMode mode;
    pthread_t thread;
    CUgraph graph;
    CUstream s;
    void *bad;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (use_stream(r, &s) != 0)
        return 1;
    for (int i = 0; i < 6; i++) {
        RANK_CHECK(cuStreamBeginCapture(s, modes[i % 3]) == CUDA_SUCCESS);
        if (i < 3) {
            RANK_CHECK(pthread_create(&thread, NULL, work_in_a_thread, r) == 0);
            RANK_CHECK(pthread_join(thread, &bad) == 0 && bad == NULL);
        } else {
            RANK_CHECK(work(r) == 0);
        }
        RANK_CHECK(cuStreamEndCapture(s, &graph) == CUDA_SUCCESS, "a capture in mode %d", (int)modes[i % 3]);
        RANK_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    }
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    RANK_CHECK(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
    RANK_CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL, "the thread's own mode is as it was");
    RANK_CHECK(cuStreamDestroy(s) == CUDA_SUCCESS);
    return 0;
}

static int refuse_to_be_captured(struct rank *r)
{
    CUstream s, blocking;
    CUgraph graph;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (use_stream(r, &s) != 0)
        return 1;
    RANK_CHECK(cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0) == CUDA_SUCCESS);
    RANK_CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    RANK_CHECK(r->ops->wait_stream(r->b, s, true, &r->err) == CDDP_E_UNSUPPORTED);
    RANK_CHECK(strstr(r->err.msg, "captures a graph") != NULL);
    RANK_CHECK(r->ops->stream_wait(r->b, 0, s, &r->err) == CDDP_E_UNSUPPORTED);
    RANK_CHECK(cuStreamEndCapture(s, &graph) == CUDA_SUCCESS, "the capture goes on");
    RANK_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    RANK_CHECK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    RANK_CHECK(r->ops->wait_stream(r->b, NULL, true, &r->err) == CDDP_E_UNSUPPORTED);
    RANK_CHECK(strstr(r->err.msg, "legacy stream") != NULL);
    RANK_CHECK(cuStreamEndCapture(blocking, &graph) == CUDA_SUCCESS);
    RANK_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    RANK_CHECK(r->ops->wait_stream(r->b, s, true, &r->err) == CDDP_OK && work(r) == 0, "nothing is broken");
    RANK_CHECK(r->ops->stream_wait(r->b, 0, s, &r->err) == CDDP_OK);
    RANK_CHECK(cuStreamDestroy(s) == CUDA_SUCCESS && cuStreamDestroy(blocking) == CUDA_SUCCESS);
    return 0;
}

/* -------------------------------------------------------------------------------- a driver call that does not return
 */

/* board->flag: [0] rank 0 is in the driver, [1] when rank 1 died. */
static void *tell_when_held(void *arg)
{
    struct rank *r = arg;

    while (!standin_context_held())
        rank_nap();
    atomic_store(&r->board->flag[0], 1);
    return NULL;
}

/* With the communicator's lock, this one is soon in the driver, too. */
static void *enqueue_meanwhile(void *arg)
{
    struct rank *r = arg;
    static float x[COUNT];
    struct cdi_coll op = all_reduce(x);
    struct cdi_error err;
    uint64_t ticket;

    while (!standin_context_held())
        rank_nap();
    while (r->ops->enqueue(r->b, &op, &ticket, &err) == CDDP_OK)
        rank_nap();
    return NULL;
}

static int die_while_it_frees(struct rank *r)
{
    static float x[COUNT];
    pthread_t tells, enqueues;
    struct cdi_coll op;
    CUdeviceptr mine;
    uint64_t ticket;
    void *there;

    configure("CDDP_STANDIN_CONTEXT_LOCK", "1");
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1) {
        rank_await(r, 0);
        rank_dies(r);
    }
    if (use_device(r) != 0)
        return 1;
    RANK_CHECK(cuMemAlloc(&mine, 4096) == CUDA_SUCCESS);
    there = rank_lend(r, x, sizeof x);
    op = all_reduce(there);
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->stream_wait(r->b, ticket, NULL, &r->err) == CDDP_OK, "now it is on the stream");
    RANK_CHECK(pthread_create(&tells, NULL, tell_when_held, r) == 0);
    RANK_CHECK(pthread_create(&enqueues, NULL, enqueue_meanwhile, r) == 0);
    /* It waits for the collective, which waits for rank 1; and nobody else comes into the driver. */
    RANK_CHECK(cuMemFree(mine) == CUDA_SUCCESS);
    RANK_CHECK(atomic_load(&r->board->flag[1]) != 0, "it came back by itself");
    RANK_CHECK(pthread_join(tells, NULL) == 0 && pthread_join(enqueues, NULL) == 0);
    if (is_named(r, r->ops->health(r->b, &r->err)) != 0)
        return 1;
    rank_return(r, NULL, there, 0);
    return 0;
}

/* ----------------------------------------------------------------- NCCL notices a death before the agent reports it
 */

#define LATER_MS 300 /* NCCL's error comes this much before the death that explains it */

/* Rank 0's call fails as it does when a peer's socket closes; rank 1 dies when that has happened. */
static int notice_before_the_agent(struct rank *r)
{
    static float x[COUNT];
    const struct cdi_coll op = all_reduce(x);
    const struct timespec later = {.tv_nsec = LATER_MS * 1000000};
    cddp_status st;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1) {
        rank_await(r, 0);
        (void)nanosleep(&later, NULL);
        (void)raise(SIGKILL);
    }
    configure("CDDP_STANDIN_FAIL", "ncclAllReduce:1:6");
    atomic_store(&r->board->flag[0], 1);
    st = rank_do(r, &op);
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 1 (") != NULL, "%s", r->err.msg);
    return 0;
}

/* ------------------------------------------------------------------------------- a call that fails, beside a
 * collective
 */

static cddp_status fail_to_enqueue(struct rank *r, size_t count, const char *plant)
{
    static float x[40 * COUNT];
    struct cdi_coll op = all_reduce(x);
    uint64_t ticket;
    cddp_status st;

    op.count = count;
    configure("CDDP_STANDIN_FAIL", plant);
    st = r->ops->enqueue(r->b, &op, &ticket, &r->err);
    configure("CDDP_STANDIN_FAIL", "");
    return st;
}

/* Rank 1 comes to the collective only when rank 0 is back from calls that fail: they free nothing meanwhile. */
static int fail_beside_a_collective(struct rank *r)
{
    const size_t large = (size_t)20 * COUNT; /* no block from the start is */
    static float x[COUNT], y[COUNT];
    const struct cdi_coll over_host = all_reduce(y);
    struct cdi_coll op;
    uint64_t ticket;
    void *there;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    there = rank_lend(r, x, sizeof x);
    op = all_reduce(there);
    while (r->rank == 1 && atomic_load(&r->board->flag[0]) == 0)
        rank_nap();
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    if (r->rank == 0) {
        RANK_CHECK(r->ops->stream_wait(r->b, ticket, NULL, &r->err) == CDDP_OK, "now it is on the stream");
        RANK_CHECK(fail_to_enqueue(r, large, "cuEventCreate:1:2") == CDDP_E_NOMEM, "with a block");
        RANK_CHECK(fail_to_enqueue(r, 2 * large, "cuMemAlloc:1:2") == CDDP_E_NOMEM, "with half a block");
        atomic_store(&r->board->flag[0], 1);
    }
    RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
    for (size_t k = 0; k < COUNT; k++)
        y[k] = 1;
    RANK_CHECK(rank_do(r, &over_host) == CDDP_OK && y[0] == 2 && y[COUNT - 1] == 2);
    rank_return(r, NULL, there, 0);
    return 0;
}

/* ----------------------------------------------------------------------------------------------------- a replay hangs
 */

/* Rank 1 does not replay. On rank 0 an operation waits after the replay, whose time is over. */
static int hang_in_a_replay(struct rank *r)
{
    static float x[COUNT];
    struct cdi_coll op;
    CUgraphExec exec;
    CUgraph graph;
    CUstream s;
    uint64_t ticket;
    cddp_status st;
    void *there;

    r->world.timeout_ms = 2000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (use_stream(r, &s) != 0)
        return 1;
    there = rank_lend(r, x, sizeof x);
    op = all_reduce(there);
    RANK_CHECK(capture(r, s, there, true, &graph) == CDDP_OK);
    RANK_CHECK(cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS);
    if (r->rank == 0) {
        RANK_CHECK(cuGraphLaunch(exec, s) == CUDA_SUCCESS && r->ops->wait_stream(r->b, s, true, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
        st = r->ops->join(r->b, ticket, &r->err);
        RANK_CHECK(st == CDDP_E_TIMEOUT && strstr(r->err.msg, ", replay 1 of its graph: rank 1 did not ") != NULL);
        atomic_store(&r->board->flag[0], 1);
    }
    rank_await(r, 0);
    (void)cuGraphExecDestroy(exec);
    (void)cuGraphDestroy(graph);
    rank_close(r);
    _exit(0); /* borrowed memory is left */
}

/* ---------------------------------------------------------------------------------- a region is destroyed beside
 * others
 */

static struct cdi_region *old_region;

static void *destroy_it(void *arg)
{
    struct rank *r = arg;

    r->ops->region_destroy(r->b, old_region);
    return NULL;
}

/*
 * A thread destroys a window, which the next creation frees. Only time is between the two, so that ThreadSanitizer
 * sees what the thread still does with the window after it has let go of the lock.
 */
static int free_beside_a_destroy(struct rank *r)
{
    struct cdi_region *next;
    pthread_t thread;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(r->ops->region_create(r->b, 100000, &old_region, &r->err) == CDDP_OK);
    RANK_CHECK(pthread_create(&thread, NULL, destroy_it, r) == 0);
    rank_sleep(300);
    RANK_CHECK(r->ops->region_create(r->b, 100000, &next, &r->err) == CDDP_OK);
    RANK_CHECK(pthread_join(thread, NULL) == 0);
    r->ops->region_destroy(r->b, next);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- a store that is slow
 */

struct joiner {
    struct rank *r;
    uint64_t ticket;
    cddp_status st;
    struct cdi_error err;
    _Atomic bool back;
};

static void *join_it(void *arg)
{
    struct joiner *j = arg;

    j->st = j->r->ops->join(j->r->b, j->ticket, &j->err);
    atomic_store(&j->back, true);
    return NULL;
}

/*
 * Rank 1 is missing. Rank 0 would learn from the store which rank failed or is late, but the store does not answer.
 * arg "1": the collective is not on the stream yet; a thread of NCCL or a separate one waits for that.
 */
static int time_out_beside_a_slow_store(struct rank *r)
{
    static float x[COUNT];
    struct joiner first = {.r = r}, second = {.r = r};
    pthread_t a, b;
    struct cdi_coll op;
    void *there;

    configure("CDDP_STANDIN_CONNECT", r->arg);
    r->world.timeout_ms = 300;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    there = rank_lend(r, x, sizeof x);
    op = all_reduce(there);
    if (r->rank == 0) {
        (void)pthread_mutex_lock(&r->board->lock);
        RANK_CHECK(r->ops->enqueue(r->b, &op, &first.ticket, &r->err) == CDDP_OK);
        second.ticket = first.ticket;
        RANK_CHECK(pthread_create(&a, NULL, join_it, &first) == 0 && pthread_create(&b, NULL, join_it, &second) == 0);
        while (!atomic_load(&first.back) || !atomic_load(&second.back))
            rank_nap();
        (void)pthread_mutex_unlock(&r->board->lock);
        RANK_CHECK(pthread_join(a, NULL) == 0 && pthread_join(b, NULL) == 0);
        RANK_CHECK(first.st == CDDP_E_TIMEOUT && second.st == CDDP_E_TIMEOUT, "%s", first.err.msg);
        RANK_CHECK(strstr(first.err.msg, "all_reduce") != NULL && strstr(first.err.msg, "within 0.3 s") != NULL, "%s",
                   first.err.msg);
        atomic_store(&r->board->flag[0], 1);
    }
    rank_await(r, 0);
    rank_close(r);
    _exit(0); /* what a call that could not be ended may still use is left */
}

/* A rank whose part of all collectives is done waits in none. Its peers soon know that it came to the last one. */
static int tell_where_it_is(struct rank *r)
{
    static float x[COUNT];
    const struct cdi_coll op = all_reduce(x);
    struct cdi_oob board = rank_oob(r);
    char key[32];
    int64_t n = 0;

    (void)snprintf(key, sizeof key, "nccl/at/%d", 1 - r->rank);
    (void)setenv("CDDP_TIMING", "off", 1); /* times give its threads work */
    RANK_CHECK(cdi_flight_attach(&r->world.record, NULL, &r->err) == CDDP_OK);
    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (int i = 0; i < 3; i++)
        RANK_CHECK(rank_do(r, &op) == CDDP_OK);
    for (int i = 0; i < 10000 && n != 3; i++) {
        RANK_CHECK(board.add(board.arg, key, 0, &n, &r->err) == CDDP_OK);
        rank_nap();
    }
    RANK_CHECK(n == 3, "rank %d is at %d", 1 - r->rank, (int)n);
    atomic_fetch_add(&r->board->flag[0], 1);
    while (atomic_load(&r->board->flag[0]) < 2)
        rank_nap();
    rank_close(r);
    cdi_flight_release(r->world.record);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- a suspended job ----
 */

/* Rank 0 is stopped for longer than its time limit, and rank 1 comes only after it runs again. */
static int be_suspended(struct rank *r)
{
    static float x[COUNT];
    struct cdi_coll op;
    uint64_t ticket;
    void *there;

    r->world.timeout_ms = 3000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    there = rank_lend(r, x, sizeof x);
    op = all_reduce(there);
    if (r->rank == 0) {
        RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
        rank_sleep(300); /* it has been seen to have started */
        atomic_store(&r->board->flag[0], getpid());
        RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK, "%s", r->err.msg);
        atomic_store(&r->board->flag[1], 1);
        return 0;
    }
    rank_await(r, 0);
    RANK_CHECK(kill(atomic_load(&r->board->flag[0]), SIGSTOP) == 0);
    rank_sleep(4500);
    RANK_CHECK(kill(atomic_load(&r->board->flag[0]), SIGCONT) == 0);
    rank_sleep(300); /* it has looked */
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK, "%s", r->err.msg);
    RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK, "%s", r->err.msg);
    return 0;
}

static _Atomic bool confirmed;

static void *confirm_later(void *arg)
{
    struct rank *r = arg;

    rank_sleep(300);
    atomic_store(&confirmed, true);
    cdi_flight_tell_alone_until(r->world.flight, CDI_NEVER_MS);
    return NULL;
}

/* This process was stopped for longer than its job's lease: a test that succeeds waits, as a join does, until the agent
 * says that the job still runs. */
static int ask_after_a_stop(struct rank *r)
{
    static float x[COUNT];
    struct cdi_coll op;
    pthread_t thread;
    uint64_t ticket;
    cddp_status st;
    void *there;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    there = rank_lend(r, x, sizeof x);
    op = all_reduce(there);
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    cdi_flight_tell_alone_until(r->world.flight, cdi_now_ms() - 1);
    RANK_CHECK(pthread_create(&thread, NULL, confirm_later, r) == 0);
    while ((st = r->ops->test(r->b, ticket, &r->err)) == CDDP_IN_PROGRESS)
        rank_nap();
    RANK_CHECK(st == CDDP_OK && atomic_load(&confirmed), "status %d", (int)st);
    RANK_CHECK(pthread_join(thread, NULL) == 0);
    rank_return(r, NULL, there, 0);
    return 0;
}

/* ------------------------------------------------------------------------------- more launches than a stream holds --
 */

#define QUEUE "64"
#define MORE 400 /* than any of its streams takes */

/* Rank 0 puts ever more on a stream, whose first collective waits for rank 1: soon it is in a driver call that waits.
 */
static cddp_status fill_streams(struct rank *r, bool compute)
{
    static float x[COUNT];
    cddp_status st = CDDP_OK;
    struct cdi_coll op;
    uint64_t ticket;
    void *there;
    CUstream s;

    RANK_CHECK(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    there = rank_lend(r, x, sizeof x);
    op = all_reduce(there);
    for (int i = 0; i < MORE && st == CDDP_OK; i++) {
        if (i == 0 || !compute)
            st = r->ops->enqueue(r->b, &op, &ticket, &r->err);
        if (i == 0 && st == CDDP_OK)
            st = r->ops->stream_wait(r->b, ticket, s, &r->err);
        if (compute && st == CDDP_OK) /* which waits for the collective */
            st = r->ops->wait_stream(r->b, s, true, &r->err);
        if (i == 3)
            atomic_store(&r->board->flag[0], 1);
    }
    return st != CDDP_OK ? r->ops->health(r->b, &r->err) : st;
}

/* arg: for the compute stream */
static int time_out(struct rank *r)
{
    cddp_status st;

    r->world.timeout_ms = 2000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 0) {
        if (use_device(r) != 0)
            return 1;
        configure("CDDP_STANDIN_QUEUE", QUEUE);
        st = fill_streams(r, r->arg != NULL);
        RANK_CHECK(st == CDDP_E_TIMEOUT, "status %d", (int)st);
        RANK_CHECK(strstr(r->err.msg, "all_reduce") != NULL && strstr(r->err.msg, "rank 1 did not ") != NULL &&
                   strstr(r->err.msg, "within 2 s") != NULL);
        atomic_store(&r->board->flag[1], 1);
    }
    rank_await(r, 1);
    rank_close(r);
    _exit(0); /* borrowed memory is not freed */
}

static int die_beside_a_full_stream(struct rank *r)
{
    cddp_status st;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1) {
        rank_await(r, 0);
        (void)raise(SIGKILL);
    }
    if (use_device(r) != 0)
        return 1;
    configure("CDDP_STANDIN_QUEUE", QUEUE);
    st = fill_streams(r, false);
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 1 (") != NULL, "status %d", (int)st);
    RANK_CHECK(strstr(r->err.msg, "this rank was in all_reduce") != NULL);
    rank_close(r);
    _exit(0);
}

/* --------------------------------------------------------------------------------------------------------- faults --
 */

/* Rank 0's GPU fails in a kernel before a collective. That rank makes no call of CUDA from then on. */
static int fail_in_a_kernel(struct rank *r)
{
    static float x[COUNT];
    struct cdi_coll op;
    uint64_t ticket;
    cddp_status st;
    void *there;

    if (r->rank == 0)
        configure("CDDP_STANDIN_FAIL", "kernel:1:700");
    RANK_CHECK(rank_open(r) == CDDP_OK);
    there = rank_lend(r, x, sizeof x);
    op = all_reduce(there);
    if (r->rank == 0) {
        RANK_CHECK(r->ops->scale(r->b, there, COUNT, CDDP_FLOAT32, 2, &r->err) == CDDP_OK);
        st = r->ops->enqueue(r->b, &op, &ticket, &r->err); /* the driver may know it by now */
        while (st == CDDP_OK) {
            rank_nap();
            st = r->ops->peek(r->b, &r->err);
        }
        RANK_CHECK(st == CDDP_E_SYSTEM && r->err.device_error == 700 && r->err.blamed == 0);
        RANK_CHECK(r->ops->health(r->b, &r->err) == CDDP_E_SYSTEM && strstr(r->err.msg, "all_reduce") != NULL);
        RANK_CHECK(strstr(r->err.msg, "CUDA_ERROR_ILLEGAL_ADDRESS") != NULL);
        rank_close(r);
        _exit(0); /* after a fault the driver frees nothing, so remaining memory is not a leak of the backend */
    } else {
        st = r->ops->enqueue(r->b, &op, &ticket, &r->err); /* rank 0 may have given up by now */
        if (st == CDDP_OK)
            st = r->ops->join(r->b, ticket, &r->err);
        RANK_CHECK(st != CDDP_OK && strstr(r->err.msg, "rank 0 gave up") != NULL);
        rank_return(r, NULL, there, 0);
    }
    RANK_CHECK(strstr(r->err.msg, "CUDA_ERROR_ILLEGAL_ADDRESS") != NULL);
    return 0;
}

/*
 * The context is gone, as after cudaDeviceReset, while the program works in one of another GPU: no call takes that one
 * for its own, nor from the program.
 */
static int lose_the_context(struct rank *r)
{
    static float x[COUNT];
    const struct cdi_coll op = all_reduce(x);
    CUcontext theirs, now_current = NULL;
    size_t room, room_after, total;
    uint64_t ticket;
    cddp_status st;
    void *p = NULL;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(cuDevicePrimaryCtxRetain(&theirs, 2) == CUDA_SUCCESS && cuCtxSetCurrent(theirs) == CUDA_SUCCESS);
    RANK_CHECK(cuMemGetInfo(&room, &total) == CUDA_SUCCESS);
    configure("CDDP_STANDIN_FAIL", "cuCtxPushCurrent:1+:709");
    RANK_CHECK(r->ops->alloc(r->b, 4096, &p, &r->err) == CDDP_E_SYSTEM && p == NULL);
    RANK_CHECK(strstr(r->err.msg, "context current: the CUDA driver reports CUDA_ERROR_CONTEXT_IS_DESTROYED") != NULL);
    RANK_CHECK(cuMemGetInfo(&room_after, &total) == CUDA_SUCCESS && room_after == room, "no memory of another GPU");
    st = r->ops->enqueue(r->b, &op, &ticket, &r->err);
    RANK_CHECK(st != CDDP_OK && strstr(r->err.msg, "CUDA_ERROR_CONTEXT_IS_DESTROYED") != NULL);
    RANK_CHECK(r->ops->health(r->b, &r->err) != CDDP_OK, "the communicator must be of no more use");
    configure("CDDP_STANDIN_FAIL", "");
    rank_close(r);
    RANK_CHECK(cuCtxGetCurrent(&now_current) == CUDA_SUCCESS && now_current == theirs, "the program's is current");
    return 0;
}

/* Peers get the reason before the abort, which frees memory that theirs may read: here it never returns. */
static int tell_before_the_abort(struct rank *r)
{
    static float x[COUNT];
    struct cdi_coll op;
    uint64_t ticket;
    cddp_status st;
    void *there;

    if (r->rank == 0)
        configure("CDDP_STANDIN_STUCK_ABORT", "1");
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 0) {
        r->ops->abort(r->b, &(struct cdi_error){.status = CDDP_E_ABORTED, .msg = "rank 0 has had enough"});
    } else {
        there = rank_lend(r, x, sizeof x);
        op = all_reduce(there);
        st = r->ops->enqueue(r->b, &op, &ticket, &r->err);
        if (st == CDDP_OK) /* it may have been noticed by then */
            st = r->ops->join(r->b, ticket, &r->err);
        RANK_CHECK(st == CDDP_E_ABORTED && strstr(r->err.msg, "rank 0 has had enough") != NULL);
        atomic_store(&r->board->flag[0], 1);
    }
    rank_await(r, 0);
    rank_close(r);
    _exit(0); /* memory of the abort that does not return stays */
}

/* arg: CDDP_NCCL_BLOCKING, which has its own error. Rank 1 cannot register: all communicators end, and say what does
 * without windows. */
static int fail_to_register(struct rank *r)
{
    struct cdi_region *region;

    if (nccl_version() < 22703) /* it has no windows */
        return rank_open(r) != CDDP_OK;
    (void)setenv("CDDP_NCCL_BLOCKING", r->arg, 1);
    if (r->rank == 1)
        configure("CDDP_STANDIN_FAIL",
                  strcmp(r->arg, "1") == 0 ? "ncclCommWindowRegister:1:5" : "ncclCommWindowRegister:1:1");
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(r->ops->region_create(r->b, 100000, &region, &r->err) != CDDP_OK);
    RANK_CHECK(strstr(r->err.msg, "registering gradients as a window: NCCL reports") != NULL);
    RANK_CHECK(strstr(r->err.msg, "CDDP_NCCL_WINDOWS=0") != NULL);
    RANK_CHECK(r->rank != 1 || strstr(r->err.msg, "(\\x1b[31mno text)") != NULL);
    rank_close(r);
    _exit(0); /* rank 0 waits in a call of NCCL's, and leaves what that may use */
}

/* A variable of rank 1, or of all; and whether each rank has registered its region then, as a window or not. */
struct region_setting {
    const char *name, *value;
    bool all, registered, no_window;
};

/* A window stays until the next region is made; other memory goes with its region. */
static int have_the_same_kind_of_region(struct rank *r)
{
    const struct region_setting *t = r->arg;
    bool want = t->registered && (t->no_window || nccl_version() >= 22703), stays = want && !t->no_window;
    struct standin_live live, after;
    struct cdi_region *region;
    struct cdi_coll op;
    uint64_t ticket;

    (void)setenv("CDDP_NCCL_WINDOWS", t->no_window ? "0" : "1", 1);
    (void)setenv("CDDP_NCCL_REGISTER", t->no_window ? "1" : "0", 1);
    if (t->all || r->rank == 1)
        configure(t->name, t->value);
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(r->ops->region_create(r->b, COUNT * sizeof(float), &region, &r->err) == CDDP_OK);
    standin_live(&live);
    RANK_CHECK(live.registered == want, "%u registered", live.registered);
    op = all_reduce(region->base);
    op.region = region;
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
    r->ops->region_destroy(r->b, region);
    standin_live(&after);
    RANK_CHECK(after.registered == stays && after.device_memory == live.device_memory - !stays);
    return 0;
}

/* Rank 1 has another NCCL, which all hear. */
static int have_another_nccl(struct rank *r)
{
    const char *other = nccl_version() == 22809 ? "22907" : "22809";

    if (r->rank == 1)
        (void)setenv("CDDP_STANDIN_NCCL_VERSION", other, 1);
    RANK_CHECK(rank_open(r) == CDDP_E_VERSION);
    RANK_CHECK(strstr(r->err.msg, "rank 1 has NCCL 2.2") != NULL && strstr(r->err.msg, "but rank 0 has 2.") != NULL);
    return 0;
}

/* Rank 0 is in no part, and has no communicator of it. */
static int configure_communicators(struct rank *r)
{
    const struct cdi_split how = {.color = r->rank - 1, .n = 1};
    bool reads_all = nccl_version() >= 22700;
    struct cdi_backend *part = NULL;
    struct standin_config config;
    struct standin_live live;

    (void)setenv("CDDP_NCCL_MAX_CTAS", "3", 1);
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_split(r, &how, &part) == CDDP_OK && (part == NULL) == (r->rank == 0));
    standin_live(&live);
    RANK_CHECK(live.communicators == 1 + (unsigned)r->rank);
    standin_config(&config);
    RANK_CHECK(strcmp(config.name, !reads_all ? "" : r->rank == 0 ? "nccl" : "nccl/0.0") == 0, "%s", config.name);
    RANK_CHECK(config.max_ctas == 3 && config.cta_policy == (reads_all ? NCCL_CTA_POLICY_EFFICIENCY : 0));
    r->ops->destroy(part);
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------ rest --
 */

/* Collectives that are given up: the words that the stream was to write are not freed before it has. */
static int leave_in_the_middle(struct rank *r)
{
    static float x[COUNT];
    struct cdi_coll op = all_reduce(x);
    uint64_t ticket;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    atomic_store(&r->board->flag[r->rank], 1);
    while (atomic_load(&r->board->flag[1 - r->rank]) == 0)
        rank_nap();
    for (int i = 0; i < 2 + r->rank; i++) /* the other one may be gone */
        (void)r->ops->enqueue(r->b, &op, &ticket, &r->err);
    rank_close(r);
    return 0;
}

/*
 * An operation without a separate event is waited for with all others: no rank continues before its mean is complete.
 */
static int wait_without_a_mark(struct rank *r)
{
    static float x[COUNT];
    struct cdi_coll op = all_reduce(x);
    uint64_t first, second;
    void *one, *two, *copy;
    CUstream s;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (use_stream(r, &s) != 0)
        return 1;
    for (size_t k = 0; k < COUNT; k++)
        x[k] = (float)r->rank * 2;
    one = rank_lend(r, x, sizeof x);
    two = rank_lend(r, x, sizeof x);
    copy = rank_lend(r, x, sizeof x);
    op.op = CDDP_AVG;
    op.unmarked = true;
    for (int i = 0; i < 20; i++) {
        op.in = op.out = one;
        RANK_CHECK(r->ops->enqueue(r->b, &op, &first, &r->err) == CDDP_OK);
        op.in = op.out = two;
        op.unmarked = i % 2 == 0;
        RANK_CHECK(r->ops->enqueue(r->b, &op, &second, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->stream_wait(r->b, i % 3 == 0 ? second : first, s, &r->err) == CDDP_OK);
        RANK_CHECK(cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)copy, (CUdeviceptr)(uintptr_t)one, sizeof x, s) ==
                   CUDA_SUCCESS);
        RANK_CHECK(r->ops->wait_stream(r->b, s, true, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->join(r->b, i % 4 < 2 ? second : first, &r->err) == CDDP_OK);
        op.unmarked = true;
    }
    rank_return(r, NULL, two, 0);
    RANK_CHECK(cuStreamSynchronize(s) == CUDA_SUCCESS);
    rank_return(r, x, one, sizeof x);
    RANK_CHECK(x[0] == 1 && x[COUNT - 1] == 1, "%f", (double)x[0]);
    rank_return(r, x, copy, sizeof x);
    RANK_CHECK(x[0] == 1 && x[COUNT - 1] == 1, "%f", (double)x[0]);
    RANK_CHECK(cuStreamDestroy(s) == CUDA_SUCCESS);
    return 0;
}

static bool words_and_tickets(void)
{
    uint64_t far = UINT64_C(0x100000002);

    return !cdi_ticket_reached(0, 1) && cdi_ticket_reached(1, 1) && cdi_ticket_reached(2, 1) &&
           !cdi_ticket_reached(0xfffffffe, far) && cdi_ticket_reached(2, far) && cdi_ticket_reached(3, far) &&
           !cdi_ticket_reached(1, far);
}

/* Fails the communicator: by an abort, or (arg) on rank 0 by a timeout, before rank 1 comes. */
static int fail_it(struct rank *r)
{
    static float x[COUNT];
    const struct cdi_coll op = all_reduce(x);

    if (r->arg != NULL && r->rank == 0) {
        r->n_done = 1; /* on host memory */
        RANK_CHECK(rank_do(r, &op) == CDDP_E_TIMEOUT);
        atomic_store(&r->board->flag[0], 1);
        return 0;
    }
    if (r->arg != NULL)
        rank_await(r, 0);
    r->ops->abort(r->b, &(struct cdi_error){.status = CDDP_E_ABORTED, .msg = "a test"});
    return 0;
}

/* The page that the agent of a rank reads names nothing that the rank does not wait for. */
static int show_no_wait(struct rank *r)
{
    struct cdi_flight_part parts[CDI_FLIGHT_PARTS];
    struct cdi_flight *agent, *page;
    struct cdi_flight_view v;
    struct cdi_region *region;
    char env[128];
    int fd;

    RANK_CHECK(cdi_flight_create(&agent, 0, &fd, &r->err) == CDDP_OK);
    cdi_flight_env(agent, fd, fd, env, sizeof env);
    RANK_CHECK(cdi_flight_attach(&page, env, &r->err) == CDDP_OK);
    RANK_CHECK(cdi_flight_attach(&r->world.record, NULL, &r->err) == CDDP_OK);
    r->world.timeout_ms = r->arg != NULL ? 3000 : r->world.timeout_ms;
    cdi_flight_mirror(r->world.record, page, "'tp' (ranks 0, 1)");
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(work(r) == 0);
    RANK_CHECK(r->ops->region_create(r->b, (size_t)1 << 40, &region, &r->err) == CDDP_E_NOMEM, "%s", r->err.msg);
    RANK_CHECK(work(r) == 0);
    cdi_flight_read(r->world.record, &v);
    RANK_CHECK(v.oldest_unfinished.seq == 0, "operation %llu", (unsigned long long)v.oldest_unfinished.seq);
    RANK_CHECK(cdi_flight_parts(agent, parts) == 1);
    if (fail_it(r) != 0)
        return 1;
    RANK_CHECK(cdi_flight_parts(agent, parts) == 0, "nobody waits in a part that has failed");
    rank_close(r);
    cdi_flight_release(r->world.record);
    cdi_flight_release(page);
    cdi_flight_release(agent);
    (void)close(fd);
    return 0;
}

#define SETTING(...)               \
    &(const struct region_setting) \
    {                              \
        __VA_ARGS__                \
    }

int main(int argc, char **argv)
{
    const struct ranks_test tests[] = {
        {"a graph is captured while the backend works", stay_out_of_captures, -1, NULL},
        {"a captured stream is rejected without harm", refuse_to_be_captured, -1, NULL},
        {"a death is noticed while a driver call does not return", die_while_it_frees, 1, NULL},
        {"a death that NCCL notices before the agent is named", notice_before_the_agent, 1, NULL},
        {"a call that fails waits for no collective", fail_beside_a_collective, -1, NULL},
        {"a timeout in a launch, beside a store that does not answer", time_out_beside_a_slow_store, -1, "1"},
        {"a timeout on the stream, beside a store that does not answer", time_out_beside_a_slow_store, -1, "0"},
        {"peers know how far a rank has come that waits for nothing", tell_where_it_is, -1, NULL},
        {"a fault of the GPU fails all ranks, by its name", fail_in_a_kernel, -1, NULL},
        {"calls do not go on in another context", lose_the_context, -1, NULL},
        {"peers get the reason before the abort", tell_before_the_abort, -1, NULL},
        {"a window that fails ends the job with a remedy", fail_to_register, -1, "1"},
        {"a window that fails without blocking ends the job, too", fail_to_register, -1, "0"},
        {"a region is a window", have_the_same_kind_of_region, -1, SETTING("CDDP_NCCL_WINDOWS", "1", true, true)},
        {"no rank makes a window that one does not want", have_the_same_kind_of_region, -1,
         SETTING("CDDP_NCCL_WINDOWS", "0")},
        {"no rank keeps a window that one did not get", have_the_same_kind_of_region, -1,
         SETTING("CDDP_STANDIN_WINDOWS", "lost")},
        {"success without a window is none", have_the_same_kind_of_region, -1,
         SETTING("CDDP_STANDIN_WINDOWS", "0", true)},
        {"a region is registered", have_the_same_kind_of_region, -1,
         SETTING("CDDP_NCCL_REGISTER", "1", true, true, true)},
        {"no rank registers what one does not want to", have_the_same_kind_of_region, -1,
         SETTING("CDDP_NCCL_REGISTER", "0", .no_window = true)},
        {"no rank stays registered where one cannot be", have_the_same_kind_of_region, -1,
         SETTING("CDDP_STANDIN_FAIL", "ncclCommRegister:1:1", .no_window = true)},
        {"ranks with different versions of NCCL do not join", have_another_nccl, -1, NULL},
        {"communicators are configured, on the ranks of a part alone", configure_communicators, -1, NULL},
        {"pending collectives are abandoned", leave_in_the_middle, -1, NULL},
        {"operations without an event are waited for", wait_without_a_mark, -1, NULL},
        {"time in which the process was stopped is not counted", be_suspended, -1, NULL},
        {"a timeout while a launch waits for room", time_out, -1, NULL},
        {"a timeout while an event waits for room in the compute stream", time_out, -1, "compute"},
        {"the agent is shown no wait that is over", show_no_wait, -1, NULL},
        {"the agent is shown no wait that has timed out", show_no_wait, -1, "timeout"},
        {"a replay that hangs is seen before an operation that waits for it", hang_in_a_replay, -1, NULL},
        {"a test that succeeds after a stop asks whether the job runs", ask_after_a_stop, -1, NULL},
        {"a window is freed beside the thread that destroys it", free_beside_a_destroy, -1, NULL},
        {"a death while a launch waits for room", die_beside_a_full_stream, 1, NULL},
    };

    ranks_result(words_and_tickets(), "a word says of a ticket whether it came");
    return ranks_main(&pair, CHILD_S, tests, sizeof tests / sizeof tests[0], argc, argv);
}
