/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that tends what is under way: it puts the ends of operations behind them, where NCCL was still busy when
 * the caller left, and asks NCCL, the driver and the store whether all is well. Calls of the driver may hang (while
 * another thread is in one that waits for a peer, for instance); so this thread is not the one that hears of deaths,
 * and nothing waits for it but the communicator's end.
 */
#include "worker/backend/nccl/progress.h"

#include "common/clock.h"
#include "worker/backend/describe.h"
#include "worker/backend/nccl/failure.h"
#include "worker/backend/nccl/health.h"
#include "worker/backend/nccl/issue.h"
#include "worker/backend/nccl/peers.h"
#include "worker/backend/nccl/ring.h"

#include <time.h>

#define ROUND_MS 1
#define ASK_GPU_ROUNDS 8      /* a fault of the GPU is rare, and a call of the driver each time */
#define WORD_OF_PEERS_MS 1000 /* NCCL notices that a peer is gone; who it was others know, a moment later */

/* NCCL says that something is wrong. Who is gone, the agent or a peer says in a moment; it is the better sentence. */
static void progress_nccl_error(struct cdi_backend *b, ncclResult_t r, const char *op)
{
    int64_t until_ms = cdi_now_ms() + WORD_OF_PEERS_MS;
    struct cdi_error err;

    while (cdi_gpu_health_now(b, NULL) == CDDP_OK && cdi_now_ms() < until_ms) {
        const struct timespec nap = {.tv_nsec = 20000000};

        cdi_peers_listen(b);
        (void)nanosleep(&nap, NULL);
    }
    (void)cdi_nccl_fail(b, r, *op != '\0' ? op : "the communicator", &err);
    if (err.status == CDDP_E_PEER) {
        const struct cdi_error why = err;

        (void)cdi_fail_since(&err, &why, "%.900s; a peer is gone, and nobody has said which", why.msg);
    }
    (void)cdi_gpu_fail(b, &err);
}

/* Who holds the lock for long polls NCCL, and puts the ends there himself. */
static void progress_check_nccl(struct cdi_backend *b)
{
    struct cdi_op_info g;
    ncclResult_t r;

    if (pthread_mutex_trylock(&b->lock) != 0)
        return;
    r = cdi_nccl_state(b, b->comm, ncclInProgress);
    if (b->comm != NULL && r == ncclSuccess)
        (void)cdi_nccl_poll_async(b, r, NULL); /* its error sticks */
    cdi_ring_current(b, &g);
    (void)pthread_mutex_unlock(&b->lock);
    if (r != ncclSuccess && r != ncclInProgress)
        progress_nccl_error(b, r, g.op);
}

void *cdi_progress_main(void *arg)
{
    struct cdi_backend *b = arg;
    unsigned round = 0;

    (void)cdi_device_enter(&b->device, NULL); /* what asks the driver enters for itself */
    while (cdi_gpu_pause(b, ROUND_MS, NULL)) {
        progress_check_nccl(b);
        if (atomic_exchange(&b->check_store, false))
            cdi_peers_listen(b);
        if (++round % ASK_GPU_ROUNDS == 0 && cdi_gpu_health_now(b, NULL) == CDDP_OK)
            (void)cdi_gpu_check_device(b, NULL, NULL);
    }
    cdi_device_leave(&b->device);
    cdi_peers_name_late(b);
    cdi_peers_notify(b);
    return NULL;
}
