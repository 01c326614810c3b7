/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that tends what is under way: it puts the ends of operations behind them, where NCCL was still busy when
 * the caller left, and asks NCCL, the driver and the store whether all is well. Calls of the driver may hang (while
 * another thread is in one that waits for a peer, for instance); so this thread is not the one that hears of deaths,
 * and nothing waits for it but the communicator's end.
 */
#include "common/clock.h"
#include "worker/backend/describe.h"
#include "worker/backend/nccl/state.h"

#include <time.h>

#define ROUND_MS 1
#define ASK_GPU_ROUNDS 8      /* a fault of the GPU is rare, and a call of the driver each time */
#define WORD_OF_PEERS_MS 1000 /* NCCL notices that a peer is gone; who it was others know, a moment later */

/* NCCL says that something is wrong. Who is gone, the agent or a peer says in a moment; it is the better sentence. */
static void async_error(struct cdi_backend *b, ncclResult_t r, const char *op)
{
    int64_t until_ms = cdi_now_ms() + WORD_OF_PEERS_MS;
    struct cdi_error err;

    while (cdi_gpu_health_now(b, NULL) == CDDP_OK && cdi_now_ms() < until_ms) {
        const struct timespec nap = {.tv_nsec = 20000000};

        cdi_watch_listen(b);
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
static void ask_nccl(struct cdi_backend *b)
{
    struct cdi_glance g;
    ncclResult_t r;

    if (pthread_mutex_trylock(&b->lock) != 0)
        return;
    r = cdi_communicator_state(b, b->comm, ncclInProgress);
    if (b->comm != NULL && r == ncclSuccess)
        (void)cdi_nccl_poll_async(b, r, NULL); /* its error sticks */
    cdi_gpu_current(b, &g);
    (void)pthread_mutex_unlock(&b->lock);
    if (r != ncclSuccess && r != ncclInProgress)
        async_error(b, r, g.op);
}

cddp_status cdi_gpu_ask(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err)
{
    struct cdi_glance g;
    struct cdi_error why;
    cddp_status st;
    CUresult r;

    st = cdi_device_enter(&b->device, &why);
    r = st == CDDP_OK ? cdi_cuda.stream_query(b->device.stream) : CUDA_ERROR_INVALID_CONTEXT;
    cdi_device_leave(&b->device);
    if (r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY)
        return CDDP_OK;
    cdi_gpu_current(b, &g);
    if (op != NULL)
        cdi_coll_text(op, g.op, sizeof g.op);
    if (st == CDDP_OK)
        (void)cdi_cuda_check(r, *g.op != '\0' ? g.op : "the GPU has failed", &why);
    else if (*g.op != '\0')
        (void)cdi_error_wrap(&why, "%s", g.op);
    (void)cdi_gpu_fail(b, &why);
    return cdi_gpu_health_now(b, err);
}

static void *progress_main(void *arg)
{
    struct cdi_backend *b = arg;
    unsigned round = 0;

    (void)cdi_device_enter(&b->device, NULL); /* what asks the driver enters for itself */
    while (cdi_watch_pause(b, ROUND_MS, NULL)) {
        ask_nccl(b);
        if (atomic_exchange(&b->ask_store, false))
            cdi_watch_listen(b);
        if (++round % ASK_GPU_ROUNDS == 0 && cdi_gpu_health_now(b, NULL) == CDDP_OK)
            (void)cdi_gpu_ask(b, NULL, NULL);
    }
    cdi_device_leave(&b->device);
    cdi_watch_name_late(b);
    cdi_watch_tell(b);
    return NULL;
}

cddp_status cdi_progress_start(struct cdi_backend *b, struct cdi_error *err)
{
    return cdi_watch_thread(b, &b->tender, progress_main, err);
}
