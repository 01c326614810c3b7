/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/teardown.h"

#include "common/clock.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define EXIT_MS 2000

enum { RUNNING, ENDED, DETACHED }; /* DETACHED: the thread frees it, and no other thread waits */

static atomic_int under_way;
static struct cdi_teardown *_Atomic kept; /* communicators for which no thread could be started: never freed */
static _Atomic pid_t owner;               /* the process of these threads: a child of fork has none */

struct cdi_teardown *cdi_teardown_create(void)
{
    return cdi_host->alloc(1, sizeof(struct cdi_teardown));
}

static void teardown_nap(void)
{
    const struct timespec ts = {.tv_nsec = 200000};

    (void)nanosleep(&ts, NULL);
}

/* Waits at exit. CUDA and NCCL end after this, since they were opened before it was registered. */
static void teardown_await_all(void)
{
    int64_t until_ms = cdi_now_ms() + EXIT_MS;

    while (atomic_load(&under_way) > 0 && atomic_load(&owner) == getpid() && cdi_now_ms() < until_ms)
        teardown_nap();
}

static void register_exit(void)
{
    (void)atexit(teardown_await_all);
}

static void *teardown_main(void *arg)
{
    struct cdi_teardown *l = arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* no call here ends a capture of the program */
    CUcontext was;

    (void)cdi_cuda.capture_mode(&mode);
    if (cdi_cuda.context_push(l->context) == CUDA_SUCCESS) {
        (void)(l->aborts ? cdi_nccl.comm_abort : cdi_nccl.comm_destroy)(l->comm);
        (void)cdi_cuda.context_pop(&was);
    }
    (void)cdi_cuda.context_release(l->device);
    if (atomic_exchange(&l->state, ENDED) == DETACHED)
        cdi_host->release(l);
    (void)atomic_fetch_sub(&under_way, 1);
    return NULL;
}

static bool teardown_start_thread(struct cdi_teardown *l)
{
    pthread_t thread;
    bool ok = cdi_thread_create(&thread, 0, teardown_main, l) == 0;

    if (ok)
        (void)pthread_detach(thread);
    return ok;
}

static bool teardown_abandon(struct cdi_teardown *l)
{
    l->next = atomic_load(&kept);
    while (!atomic_compare_exchange_weak(&kept, &l->next, l))
        ;
    return false;
}

/* Starts the thread. Returns false if it cannot: comm and l are then never freed. */
static bool teardown_start(struct cdi_teardown *l, const struct cdi_device *d, ncclComm_t comm)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    l->comm = comm;
    l->device = d->id;
    if (cdi_cuda.context_retain(&l->context, l->device) != CUDA_SUCCESS)
        return teardown_abandon(l);
    (void)pthread_once(&once, register_exit);
    atomic_store(&owner, getpid());
    (void)atomic_fetch_add(&under_way, 1);
    if (teardown_start_thread(l))
        return true;
    (void)atomic_fetch_sub(&under_way, 1);
    (void)cdi_cuda.context_release(l->device);
    return teardown_abandon(l);
}

void cdi_teardown_destroy_comm(struct cdi_teardown *l, const struct cdi_device *d, ncclComm_t comm)
{
    atomic_store(&l->state, DETACHED);
    (void)teardown_start(l, d, comm);
}

bool cdi_teardown_abort_comm(struct cdi_teardown *l, const struct cdi_device *d, ncclComm_t comm, int64_t timeout_ms)
{
    int64_t until_ms = cdi_now_ms() + timeout_ms;

    l->aborts = true;
    atomic_store(&l->state, RUNNING);
    if (!teardown_start(l, d, comm))
        return false;
    while (atomic_load(&l->state) == RUNNING && cdi_now_ms() < until_ms)
        teardown_nap();
    if (atomic_exchange(&l->state, DETACHED) == RUNNING)
        return false;
    cdi_host->release(l);
    return true;
}
