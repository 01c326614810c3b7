/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/state/health.h"

#include "common/clock.h"
#include "common/visible.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define END_MS 5000     /* for an abort */
#define REPLAY_MS 10    /* where only a graph may have begun a collective, or only stamps are left to read */
#define ANCHOR_MS 2000  /* while there is nothing to do: the clocks of the GPU and the host part (gpu_timestamps.h) */
#define SPIN_ROUNDS 200 /* that a wait for NCCL polls without a pause */
#define WORD_MS 1000    /* that the report of a death may arrive after NCCL's own error */
#define WORD_NAP_NS 5000000

cddp_status cdi_gpu_fail(struct cdi_backend *b, const struct cdi_error *err)
{
    cddp_status st;

    (void)pthread_mutex_lock(&b->error_lock);
    if (!atomic_load(&b->failed)) {
        b->error = *err;
        atomic_store(&b->failed, true);
        cdi_host->flight_hide(b->record);
    }
    st = b->error.status;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->error_lock);
    return st;
}

/* Copies the sticky error for the program; with `error_lock`. */
static void health_get_error(const struct cdi_backend *b, struct cdi_error *err)
{
    if (err == NULL)
        return;
    *err = b->error;
    if (*b->world.name != '\0' &&
        strncmp(err->msg, "communicator '", 14) != 0) /* an error of a peer may already have it */
        (void)cdi_error_wrap(err, "communicator '%s'", b->world.name);
}

cddp_status cdi_gpu_health_now(struct cdi_backend *b, struct cdi_error *err)
{
    struct cdi_error why;
    cddp_status st = CDDP_OK;

    if (!atomic_load(&b->failed) && cdi_host->flight_check(b->world.flight, &why) != CDDP_OK)
        (void)cdi_gpu_fail(b, &why);
    if (!atomic_load(&b->failed))
        return CDDP_OK;
    (void)pthread_mutex_lock(&b->error_lock);
    st = b->error.status;
    health_get_error(b, err);
    (void)pthread_mutex_unlock(&b->error_lock);
    return st;
}

static void health_await_end(struct cdi_backend *b)
{
    const struct timespec until = cdi_timespec_of(cdi_now_ms() + END_MS);

    (void)pthread_mutex_lock(&b->error_lock);
    while (b->watch_runs && !b->ended && !b->abandoned && !b->held_by_graphs)
        if (pthread_cond_timedwait(&b->changed, &b->error_lock, &until) == ETIMEDOUT)
            b->abandoned = true; /* later calls do not wait again */
    (void)pthread_mutex_unlock(&b->error_lock);
}

/* Waits for an abort that graphs of the program delay: the program may have destroyed them by now. */
static void health_await_graphs(struct cdi_backend *b)
{
    const struct timespec until = cdi_timespec_of(cdi_now_ms() + END_MS);

    (void)pthread_mutex_lock(&b->error_lock);
    while (b->held_by_graphs && !b->ended && !b->abandoned)
        if (pthread_cond_timedwait(&b->changed, &b->error_lock, &until) == ETIMEDOUT)
            b->abandoned = true;
    (void)pthread_mutex_unlock(&b->error_lock);
}

cddp_status cdi_gpu_health(struct cdi_backend *b, struct cdi_error *err)
{
    if (cdi_gpu_health_now(b, err) == CDDP_OK)
        return CDDP_OK;
    health_await_end(b); /* the error message is then complete, and the caller owns its memory again */
    return cdi_gpu_health_now(b, err);
}

bool cdi_gpu_is_idle(struct cdi_backend *b)
{
    bool idle;

    (void)cdi_gpu_health(b, NULL);
    health_await_graphs(b);
    (void)pthread_mutex_lock(&b->error_lock);
    idle = !atomic_load(&b->failed) || !b->watch_runs || b->ended;
    (void)pthread_mutex_unlock(&b->error_lock);
    return idle;
}

/* --------------------------------------------------------------- what the threads of the communicator wait for ---- */

void cdi_gpu_set_busy(struct cdi_backend *b)
{
    (void)pthread_mutex_lock(&b->error_lock);
    if (!b->busy) {
        b->busy = true;
        (void)pthread_cond_broadcast(&b->changed);
    }
    (void)pthread_mutex_unlock(&b->error_lock);
}

bool cdi_gpu_pause(struct cdi_backend *b, int64_t ms, int64_t *idle_until_ms)
{
    int64_t now_ms = cdi_now_ms();
    bool go_on, slept = false;

    (void)pthread_mutex_lock(&b->error_lock);
    while (!b->stopping && !atomic_load(&b->failed) && !slept) {
        bool untold = idle_until_ms == NULL && atomic_load(&b->reached) != b->place.told;
        bool idle = !b->busy && !untold && atomic_load(&b->captured.n_groups) == 0 &&
                    atomic_load(&b->n_stamps_read) == atomic_load(&b->n_stamped);
        bool anchors = idle && idle_until_ms == NULL && b->stamps != NULL;
        const struct timespec until = cdi_timespec_of(now_ms + (b->busy ? ms : anchors ? ANCHOR_MS : REPLAY_MS));

        if (idle && !anchors) {
            (void)pthread_cond_wait(&b->changed, &b->error_lock);
            if (idle_until_ms != NULL)
                *idle_until_ms = cdi_now_ms();
        } else
            slept = pthread_cond_timedwait(&b->changed, &b->error_lock, &until) == ETIMEDOUT;
    }
    go_on = !b->stopping && !atomic_load(&b->failed);
    (void)pthread_mutex_unlock(&b->error_lock);
    return go_on;
}

/* --------------------------------------------------------------------------------------------- calls into NCCL ---- */

bool cdi_nccl_enter(struct cdi_backend *b)
{
    (void)atomic_fetch_add(&b->n_inside, 1);
    if (!atomic_load(&b->failed))
        return true;
    cdi_nccl_leave(b);
    return false;
}

void cdi_nccl_leave(struct cdi_backend *b)
{
    (void)atomic_fetch_sub(&b->n_inside, 1);
}

cddp_status cdi_nccl_fail(struct cdi_backend *b, ncclResult_t r, const char *what, struct cdi_error *err)
{
    bool inside = cdi_nccl_enter(b); /* comm is not aborted meanwhile */
    const char *detail = cdi_nccl.last_error(inside ? b->comm : NULL), *more = "";
    cddp_status st = r == ncclRemoteError ? CDDP_E_PEER : (int)r == CDI_NCCL_TIMEOUT ? CDDP_E_TIMEOUT : CDDP_E_SYSTEM;
    char clean[300];
    size_t n = detail == NULL ? 0 : strlen(detail);

    while (n > 0 && (unsigned char)detail[n - 1] <= ' ')
        n--;
    (void)cdi_visible_line(clean, sizeof clean, n > 0 ? detail : "", n);
    if (inside)
        cdi_nccl_leave(b);
    if (st == CDDP_E_PEER)
        more = "; a peer is gone, but neither the agent nor a peer has reported which";
    else if (strstr(clean, "libnvidia-ml") != NULL) /* misc/nvmlwrap.cc */
        more = ": it is a part of the driver, which a container gets with NVIDIA_DRIVER_CAPABILITIES=compute,utility";
    (void)cdi_fail(err, st, "%s: NCCL reports \"%s\"%s%s%s%s", what, cdi_nccl.error_text(r), n > 0 ? " (" : "", clean,
                   n > 0 ? ")" : "", more);
    if (err != NULL)
        err->device_error = (int)r;
    return st;
}

bool cdi_nccl_await_word(struct cdi_backend *b, ncclResult_t r, void (*listen)(struct cdi_backend *b))
{
    const struct timespec nap = {.tv_nsec = WORD_NAP_NS};
    int64_t until_ms = cdi_now_ms() + WORD_MS;

    if (r == ncclInvalidArgument || r == ncclInvalidUsage) /* errors of this rank's own call */
        until_ms = 0;
    while (cdi_gpu_health_now(b, NULL) == CDDP_OK) {
        if (b->world.size == 1 || cdi_now_ms() >= until_ms)
            return false;
        listen(b);
        (void)nanosleep(&nap, NULL);
    }
    return true;
}

/* Asks the progress thread to look in the store: the caller may hold `lock`, and the store may take long. */
static void health_listen(struct cdi_backend *b)
{
    atomic_store(&b->check_store, true);
}

/*
 * On a non-blocking communicator several calls return "success" while a thread of NCCL is still executing them:
 * ncclCommSplit in every version (init.cc); ncclCommWindowRegister since 2.28 (dev_runtime.cc: the end of the group is
 * checked, its "in progress" is dropped); ncclSend and ncclRecv outside a group until 2.23 (collectives.cc). So the
 * returned value alone is not enough.
 */
ncclResult_t cdi_nccl_state(struct cdi_backend *b, ncclComm_t comm, ncclResult_t r)
{
    if (b->call_thread != NULL && r == ncclInProgress)
        r = cdi_call_thread_state(b->call_thread);
    if (b->call_thread != NULL && r == ncclInProgress)
        return r;
    if ((r != ncclSuccess && r != ncclInProgress) || comm == NULL)
        return r;
    if (!cdi_nccl_enter(b))
        return ncclInternalError;
    if (cdi_nccl.comm_error(comm, &r) != ncclSuccess)
        r = ncclInternalError;
    cdi_nccl_leave(b);
    return r;
}

ncclResult_t cdi_nccl_call(struct cdi_backend *b, ncclResult_t (*fn)(void *b))
{
    ncclResult_t r;

    if (b->call_thread != NULL) {
        cdi_call_thread_run(b->call_thread, fn, b);
        return ncclInProgress;
    }
    if (!cdi_nccl_enter(b))
        return ncclInternalError;
    r = fn(b);
    cdi_nccl_leave(b);
    return r;
}

cddp_status cdi_nccl_wait_ready(struct cdi_backend *b, ncclComm_t comm, ncclResult_t r, const char *what,
                                int64_t deadline_ms, struct cdi_error *err)
{
    r = cdi_nccl_state(b, comm, r);
    for (int round = 0; r == ncclInProgress; round++) {
        const struct timespec nap = {.tv_nsec = 100000};
        cddp_status st = cdi_gpu_health_now(b, err);

        if (st != CDDP_OK)
            return st;
        if (cdi_now_ms() > deadline_ms)
            return cdi_fail(err, CDDP_E_TIMEOUT, "%s: NCCL did not finish in time; a peer may be missing", what);
        r = cdi_nccl_state(b, comm, r);
        if (r == ncclInProgress && round > SPIN_ROUNDS)
            (void)nanosleep(&nap, NULL);
    }
    if (r == ncclSuccess)
        return CDDP_OK;
    return cdi_nccl_await_word(b, r, health_listen) ? cdi_gpu_health_now(b, err) : cdi_nccl_fail(b, r, what, err);
}
