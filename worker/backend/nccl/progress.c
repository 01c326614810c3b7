/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress thread of a communicator. It enqueues the ends of operations, if NCCL was still busy when the caller
 * returned, checks NCCL, the driver and the store for errors, and reads the times of buckets. Calls of the driver may
 * hang, for example while another thread waits for a peer in one. So this thread does not detect deaths, and only the
 * end of the communicator waits for it.
 */
#include "worker/backend/nccl/progress.h"

#include "common/clock.h"
#include "common/thread.h"
#include "worker/backend/describe.h"
#include "worker/backend/nccl/issue.h"
#include "worker/backend/nccl/peers.h"
#include "worker/backend/nccl/state/failure.h"
#include "worker/backend/nccl/state/gpu_timestamps.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/state/ring.h"

#define ROUND_MS 1
#define TELL_MS 200      /* in one collective, or after it: peers may want to know who is late, soon */
#define ASK_GPU_ROUNDS 8 /* a fault of the GPU is rare, and each check is a call of the driver */

/* Handles an error that NCCL reports, if no better one follows it. */
static void progress_nccl_error(struct cdi_backend *b, ncclResult_t r, const char *op)
{
    struct cdi_error err;

    if (cdi_nccl_await_word(b, r, cdi_peers_listen))
        return;
    (void)cdi_nccl_fail(b, r, *op != '\0' ? op : "the communicator", &err);
    (void)cdi_gpu_fail(b, &err);
}

/* A thread that holds the lock for long polls NCCL and enqueues the ends itself. */
static void progress_check_nccl(struct cdi_backend *b)
{
    struct cdi_op_info g;
    ncclResult_t r;

    if (pthread_mutex_trylock(&b->lock) != 0)
        return;
    r = cdi_nccl_state(b, b->comm, ncclInProgress);
    if (b->comm != NULL && r == ncclSuccess)
        (void)cdi_nccl_poll_async(b, r, NULL); /* this sets the sticky error */
    cdi_ring_current(b, &g);
    (void)pthread_mutex_unlock(&b->lock);
    if (r != ncclSuccess && r != ncclInProgress)
        progress_nccl_error(b, r, g.op);
}

/* *at, *since_ms: where this rank was seen to be, and since when. */
static void progress_tell_place(struct cdi_backend *b, uint64_t *at, int64_t *since_ms)
{
    uint64_t now_at = cdi_peers_place(b);
    int64_t now_ms = cdi_now_ms();

    if (now_at == *at && now_ms - *since_ms >= TELL_MS)
        cdi_peers_tell_place(b);
    *since_ms = now_at == *at ? *since_ms : now_ms;
    *at = now_at;
}

void *cdi_progress_main(void *arg)
{
    struct cdi_backend *b = arg;
    unsigned round = 0;
    uint64_t at = 0;
    int64_t since_ms = 0;

    cdi_thread_name("cddp-progress");
    (void)cdi_device_enter(&b->device, NULL); /* functions that call the driver enter the device themselves */
    while (cdi_gpu_pause(b, ROUND_MS, NULL)) {
        progress_check_nccl(b);
        cdi_gpu_timestamps_read(b);
        progress_tell_place(b, &at, &since_ms);
        if (atomic_exchange(&b->check_store, false))
            cdi_peers_listen(b);
        if (++round % ASK_GPU_ROUNDS == 0 && cdi_gpu_health_now(b, NULL) == CDDP_OK)
            (void)cdi_gpu_check_device(b, NULL, NULL);
    }
    if (!atomic_load(&b->failed))
        cdi_gpu_timestamps_read(b);
    cdi_device_leave(&b->device);
    cdi_peers_name_late(b);
    cdi_peers_notify(b);
    return NULL;
}
