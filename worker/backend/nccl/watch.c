/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch thread of a communicator. While operations are under way, it checks every millisecond the words that the
 * stream writes (for the flight page), the state that the agent reports, and the timeout. From time to time it has the
 * progress thread check the store, where peers report failures. On the first failure it completes the flight page and
 * aborts the communicator, so that all enqueued operations end. Between its start and that it makes no call of CUDA and
 * takes no lock that is held during one. It waits for the store only if no other thread can ask it.
 */
#include "worker/backend/nccl/watch.h"

#include "common/clock.h"
#include "common/thread.h"
#include "worker/backend/nccl/graph_capture.h"
#include "worker/backend/nccl/peers.h"
#include "worker/backend/nccl/progress.h"
#include "worker/backend/nccl/state/completion.h"
#include "worker/backend/nccl/state/failure.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/state/ring.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOOK_MS 1
#define STORE_AFTER_MS 200 /* a longer operation may be waiting for a rank that has failed */
#define STORE_EVERY_MS 250
#define STOPPED_MS 1000 /* between two checks: the process was stopped, and perhaps that of another rank */
#define NAME_MS 2000    /* for the progress thread to find the ranks that are late */
#define TELL_MS 300     /* for the progress thread to notify peers, before the abort */
#define INSIDE_MS 200   /* for calls of NCCL under way; later the abort ends them */
#define STACK_BYTES ((size_t)512 << 10)

/* --------------------------------------------------------------------------------------------- what can happen ---- */

/* The communicator is idle only if `lock` can be taken: otherwise its holder may be about to wait for peers. */
static bool watch_current_op(struct cdi_backend *b, struct cdi_op_info *g)
{
    bool idle = cdi_capture_poll(b);
    bool locked = pthread_mutex_trylock(&b->lock) == 0;

    if (cdi_ring_poll(b) && locked) {
        (void)pthread_mutex_lock(&b->error_lock);
        b->busy = false;
        (void)pthread_mutex_unlock(&b->error_lock);
    }
    cdi_ring_current(b, g);
    if (!idle && g->since_ms == 0) /* nothing is enqueued, or a replay precedes it */
        cdi_capture_current(b, g);
    if (locked)
        (void)pthread_mutex_unlock(&b->lock);
    return locked;
}

/*
 * Has the progress thread ask the store, which may take long, while this thread checks timeouts and aborts. If the
 * progress thread has not taken up the last request, and is not executing it, it hangs in the driver.
 */
static void watch_check_store(struct cdi_backend *b)
{
    if (atomic_exchange(&b->check_store, true) && atomic_load(&b->n_in_store) == 0)
        cdi_peers_listen(b);
}

/* looked_ms: the last check, or the end of the last idle time. */
static void watch_check(struct cdi_backend *b, int64_t *looked_ms, int64_t *next_store_ms)
{
    int64_t now_ms = cdi_now_ms(), lost_ms = now_ms - *looked_ms - LOOK_MS;
    struct cdi_op_info g;
    bool locked;

    *looked_ms = now_ms;
    if (lost_ms > STOPPED_MS) {
        cdi_ring_add_time(b, lost_ms);
        cdi_capture_add_time(b, lost_ms);
    }

    if (cdi_gpu_health_now(b, NULL) != CDDP_OK)
        return;
    locked = watch_current_op(b, &g);
    if (g.since_ms > 0 && now_ms - g.since_ms > b->world.timeout_ms)
        cdi_gpu_timed_out(b, &g);
    else if (locked && (g.since_ms == 0 || now_ms - g.since_ms < STORE_AFTER_MS))
        return;
    if (now_ms >= *next_store_ms && cdi_gpu_health_now(b, NULL) == CDDP_OK) {
        watch_check_store(b);
        *next_store_ms = now_ms + STORE_EVERY_MS;
    }
}

/* ----------------------------------------------------------------------------------------------------- the end ---- */

/* Another thread looks for late ranks, for a limited time: the abort does not wait for a store that does not answer. */
static void watch_await_late_ranks(struct cdi_backend *b)
{
    const struct timespec until = cdi_timespec_of(cdi_now_ms() + NAME_MS);

    (void)pthread_mutex_lock(&b->error_lock);
    while (b->timed_out && b->progress_runs && !b->late_ranks_known)
        if (pthread_cond_timedwait(&b->changed, &b->error_lock, &until) == ETIMEDOUT)
            break;
    (void)pthread_mutex_unlock(&b->error_lock);
}

/* Adds the operation of this rank to the error message, which names the rank that died. */
static void watch_complete_message(struct cdi_backend *b)
{
    struct cdi_op_info g;
    const char *op = g.op;
    size_t len;

    (void)cdi_ring_poll(b);
    cdi_ring_current(b, &g);
    if (*op == '\0' && !cdi_capture_poll(b))
        cdi_capture_current(b, &g);
    (void)pthread_mutex_lock(&b->error_lock);
    len = strlen(b->error.msg);
    if (*op != '\0' && strstr(b->error.msg, op) == NULL && len + sizeof g.op + 32 < sizeof b->error.msg)
        (void)snprintf(b->error.msg + len, sizeof b->error.msg - len, "; this rank was in %s", op);
    b->complete = true;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->error_lock);
}

/* Waits, for a limited time, until peers are notified: they may be reading memory of this rank. */
static void watch_await_notified(struct cdi_backend *b)
{
    const struct timespec until = cdi_timespec_of(cdi_now_ms() + TELL_MS);

    (void)pthread_mutex_lock(&b->error_lock);
    while (b->progress_runs && !b->notified)
        if (pthread_cond_timedwait(&b->changed, &b->error_lock, &until) == ETIMEDOUT)
            break;
    (void)pthread_mutex_unlock(&b->error_lock);
}

/* Waits a moment until no call of NCCL is under way, in the call thread (*returned) or in others. */
static bool watch_await_calls(const struct cdi_backend *b, bool *returned)
{
    int64_t until_ms = cdi_now_ms() + INSIDE_MS;
    const struct timespec nap = {.tv_nsec = 100000};

    *returned = b->call_thread == NULL || cdi_call_thread_await(b->call_thread, INSIDE_MS);
    while (atomic_load(&b->n_inside) > 0 && cdi_now_ms() < until_ms)
        (void)nanosleep(&nap, NULL);
    return *returned && atomic_load(&b->n_inside) == 0;
}

/*
 * Ends the calls that are under way. Returns false if one in the call thread has not returned.
 *
 * ncclCommAbort would free the data of a call that waits for peers, or in the driver for room on a stream.
 * ncclCommRevoke sets the same abort flags, those of a child that a split makes included, closes the proxy's sockets,
 * and takes the flags back, before anything else is freed (init.cc, commRevokeAsync, in 2.28.9, 2.29.7, 2.30.7). Three
 * limits: it uses resources that a communicator has only once it is made, so it ends no join. A call that does not look
 * at the flags meanwhile goes on. And the abort after it does not wait for graphs (commReclaim leaves out
 * commDestroySync), which would then write to freed memory when the program destroys them.
 */
static bool watch_end_calls(const struct cdi_backend *b)
{
    bool returned;

    if (watch_await_calls(b, &returned) || b->call_thread == NULL || cdi_nccl.comm_revoke == NULL || b->comm == NULL ||
        atomic_load(&b->captured.n_groups) > 0)
        return returned;
    (void)cdi_nccl.comm_revoke(b->comm, 0);
    (void)watch_await_calls(b, &returned);
    return returned;
}

/*
 * Lets waiting callers return. The abort ends the waits of replays at once, but returns only when the graphs are gone:
 * commDestroySync in init.cc (v2.19.3 to v2.30.7) keeps on "until all graphs referencing us die".
 */
static void watch_release_callers(struct cdi_backend *b)
{
    if (atomic_load(&b->captured.n_groups) == 0)
        return;
    (void)pthread_mutex_lock(&b->error_lock);
    b->held_by_graphs = true;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->error_lock);
    cdi_peers_notify(b);
}

/*
 * Aborts the communicator. No lock is held during the abort, which joins threads of NCCL and may take long; callers see
 * the failure and return. It first sets the flags that end all waits for peers (ncclCommAbort in init.cc,
 * setCommAbortFlags), and so also calls of the driver that wait for these.
 */
static void watch_end(struct cdi_backend *b)
{
    watch_await_late_ranks(b);
    watch_complete_message(b);
    watch_await_notified(b);
    if (!watch_end_calls(b)) { /* it stays, with all that it uses */
        cdi_peers_notify(b);
        (void)pthread_mutex_lock(&b->error_lock);
        b->abandoned = true;
        (void)pthread_cond_broadcast(&b->changed);
        (void)pthread_mutex_unlock(&b->error_lock);
        return;
    }
    watch_release_callers(b);
    b->aborted = b->comm != NULL;
    if (b->aborted)
        (void)cdi_nccl.comm_abort(b->comm);
    (void)cdi_device_enter(&b->device, NULL); /* without a context nothing runs any more */
    (void)cdi_completion_drain(b);            /* copies and kernels after the aborted collectives run to their end */
    cdi_device_leave(&b->device);
    cdi_peers_notify(b);
    (void)pthread_mutex_lock(&b->error_lock);
    b->ended = true;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->error_lock);
}

static void *watch_main(void *arg)
{
    struct cdi_backend *b = arg;
    int64_t next_store_ms = 0, looked_ms = cdi_now_ms();
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    cdi_thread_name("cddp-nccl-watch");
    /* The abort waits for NCCL's streams (init.cc, commDestroySync). Beside a capture of the program that would end the
     * capture; and it would fail, so that NCCL would free memory which its kernels still use. */
    (void)cdi_cuda.capture_mode(&mode);
    (void)pthread_mutex_lock(&b->error_lock);
    b->watches = true;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->error_lock);
    while (cdi_gpu_pause(b, LOOK_MS, &looked_ms))
        watch_check(b, &looked_ms, &next_store_ms);
    if (atomic_load(&b->failed))
        watch_end(b);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- the threads ---- */

static cddp_status watch_start_thread(struct cdi_backend *b, pthread_t *out, void *(*run)(void *b),
                                      struct cdi_error *err)
{
    int rc = cdi_thread_create(out, STACK_BYTES, run, b);

    return rc == 0 ? CDDP_OK : cdi_fail_errno(err, rc, "starting a thread for a communicator");
}

cddp_status cdi_watch_start(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = watch_start_thread(b, &b->progress, cdi_progress_main, err);

    b->progress_runs = st == CDDP_OK;
    if (st == CDDP_OK)
        st = watch_start_thread(b, &b->watch, watch_main, err);
    b->watch_runs = st == CDDP_OK;
    /* A call of the program in the driver may wait for a peer, and the thread's first call for that one. */
    (void)pthread_mutex_lock(&b->error_lock);
    while (b->watch_runs && !b->watches)
        (void)pthread_cond_wait(&b->changed, &b->error_lock);
    (void)pthread_mutex_unlock(&b->error_lock);
    return st;
}

bool cdi_watch_stop(struct cdi_backend *b)
{
    if (b->watch_runs && !cdi_gpu_is_idle(b)) {
        (void)pthread_detach(b->watch);
        (void)pthread_detach(b->progress);
        return false;
    }
    (void)pthread_mutex_lock(&b->error_lock);
    b->stopping = true;
    b->complete = b->complete || !b->watch_runs; /* no other thread will set it */
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->error_lock);
    if (b->watch_runs)
        (void)pthread_join(b->watch, NULL);
    if (b->progress_runs)
        (void)pthread_join(b->progress, NULL);
    b->watch_runs = b->progress_runs = false;
    return true;
}
