/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/call_thread.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

struct cdi_call_thread {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    CUcontext context;
    ncclResult_t (*fn)(void *arg); /* the call under way; NULL: none */
    void *arg;
    bool ending, abandoned; /* abandoned: the thread frees it */
    atomic_int state;
};

static void call_thread_free(struct cdi_call_thread *a)
{
    (void)pthread_cond_destroy(&a->changed);
    (void)pthread_mutex_destroy(&a->lock);
    cdi_host->release(a);
}

static void *call_thread_main(void *arg)
{
    struct cdi_call_thread *a = arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* no call here ends a capture of the program */
    CUcontext was;
    bool abandoned, entered;

    (void)cdi_cuda.capture_mode(&mode);
    entered = cdi_cuda.context_push(a->context) == CUDA_SUCCESS;
    (void)pthread_mutex_lock(&a->lock);
    while (a->fn != NULL || !a->ending) {
        ncclResult_t r;

        if (a->fn == NULL) {
            (void)pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&a->lock);
        r = entered ? a->fn(a->arg) : ncclUnhandledCudaError;
        (void)pthread_mutex_lock(&a->lock);
        a->fn = NULL;
        atomic_store(&a->state, (int)r);
        (void)pthread_cond_broadcast(&a->changed);
    }
    abandoned = a->abandoned;
    (void)pthread_mutex_unlock(&a->lock);
    if (entered)
        (void)cdi_cuda.context_pop(&was);
    if (abandoned)
        call_thread_free(a);
    return NULL;
}

cddp_status cdi_call_thread_create(struct cdi_call_thread **out, CUcontext context, struct cdi_error *err)
{
    struct cdi_call_thread *a = cdi_host->alloc(1, sizeof *a);
    int rc;

    if (a == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    a->context = context;
    (void)pthread_mutex_init(&a->lock, NULL); /* on Linux these cannot fail without attributes */
    cdi_cond_init_monotonic(&a->changed);
    rc = cdi_thread_create(&a->thread, 0, call_thread_main, a);
    if (rc != 0) {
        call_thread_free(a);
        return cdi_fail_errno(err, rc, "starting a thread for NCCL's calls");
    }
    *out = a;
    return CDDP_OK;
}

void cdi_call_thread_run(struct cdi_call_thread *a, ncclResult_t (*fn)(void *arg), void *arg)
{
    (void)pthread_mutex_lock(&a->lock);
    a->fn = fn;
    a->arg = arg;
    atomic_store(&a->state, (int)ncclInProgress);
    (void)pthread_cond_broadcast(&a->changed);
    (void)pthread_mutex_unlock(&a->lock);
}

ncclResult_t cdi_call_thread_state(const struct cdi_call_thread *a)
{
    return (ncclResult_t)atomic_load(&a->state);
}

/* Waits until no call is under way. With the lock. */
static bool call_await(struct cdi_call_thread *a, int64_t timeout_ms)
{
    int64_t ms = cdi_now_ms() + timeout_ms;
    const struct timespec until = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    while (a->fn != NULL)
        if (pthread_cond_timedwait(&a->changed, &a->lock, &until) == ETIMEDOUT)
            break;
    return a->fn == NULL;
}

bool cdi_call_thread_await(struct cdi_call_thread *a, int64_t timeout_ms)
{
    bool idle;

    (void)pthread_mutex_lock(&a->lock);
    idle = call_await(a, timeout_ms);
    (void)pthread_mutex_unlock(&a->lock);
    return idle;
}

bool cdi_call_thread_destroy(struct cdi_call_thread *a, int64_t timeout_ms)
{
    bool idle;

    if (a == NULL)
        return true;
    (void)pthread_mutex_lock(&a->lock);
    a->ending = true;
    (void)pthread_cond_broadcast(&a->changed);
    idle = call_await(a, timeout_ms);
    a->abandoned = !idle;
    if (!idle)
        (void)pthread_detach(a->thread);
    (void)pthread_mutex_unlock(&a->lock);
    if (!idle)
        return false;
    (void)pthread_join(a->thread, NULL);
    call_thread_free(a);
    return true;
}
