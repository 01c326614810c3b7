/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/issue.h"

#include "common/clock.h"
#include "worker/backend/nccl/stage.h"
#include "worker/backend/nccl/state/completion.h"
#include "worker/backend/nccl/state/failure.h"
#include "worker/backend/nccl/state/gpu_timestamps.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/state/nccl_call.h"
#include "worker/backend/nccl/state/ring.h"

#include <time.h>

#define DEVICES 64 /* devices whose numbers are equal modulo this share a turn */

/*
 * The communicators of a process on one GPU take turns: NCCL gets one launch at a time, and the next one when that is
 * on its stream. Launches so come on the GPU in the order in which they were begun, whichever thread makes them.
 * Otherwise one that connects, in the call thread or in a thread of NCCL, would be overtaken, on some ranks only. NCCL
 * wants one order on all ranks ("Using multiple NCCL communicators concurrently" in its user guide): a call of the
 * driver in one launch may wait for the kernels of another one, which wait for peers.
 *
 * NCCL_LAUNCH_ORDER_IMPLICIT (2.26) is left to the user. It makes also the kernels begin in this order, and costs each
 * launch two waits of streams and two events, in a single communicator, too (enqueue.cc, ncclLaunchPrepare and
 * ncclLaunchFinish). It needs these turns: NCCL takes its stream of the order without a lock.
 */
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct cdi_backend *turn_of[DEVICES];

/* A communicator that has failed loses its turn: no call can be relied on to return. */
static bool try_turn(const struct cdi_backend *b)
{
    const struct cdi_backend **at = &turn_of[(unsigned)b->device.info.device % DEVICES];
    bool mine;

    (void)pthread_mutex_lock(&turn_lock);
    mine = *at == NULL || *at == b || atomic_load(&(*at)->failed);
    if (mine)
        *at = b;
    (void)pthread_mutex_unlock(&turn_lock);
    return mine;
}

cddp_status cdi_issue_take_turn(struct cdi_backend *b, struct cdi_error *err)
{
    const struct timespec nap = {.tv_nsec = 50000};
    cddp_status st = CDDP_OK;

    while (!try_turn(b) && (st = cdi_gpu_health_now(b, err)) == CDDP_OK)
        (void)nanosleep(&nap, NULL);
    return st;
}

void cdi_issue_give_turn(const struct cdi_backend *b)
{
    const struct cdi_backend **at = &turn_of[(unsigned)b->device.info.device % DEVICES];

    (void)pthread_mutex_lock(&turn_lock);
    if (*at == b)
        *at = NULL;
    (void)pthread_mutex_unlock(&turn_lock);
}

static cddp_status issue_record(struct cdi_backend *b, CUevent e, struct cdi_error *err)
{
    return cdi_cuda_check(cdi_cuda.event_record(e, b->device.stream), "recording an event", err);
}

/*
 * Returns whether the last kernel writes the ticket, which saves a call of the driver. Only where neither a copy to the
 * host nor an event follows the kernel.
 */
static bool kernel_writes_done(const struct cdi_backend *b, const struct cdi_slot *last)
{
    return last->group == NULL && cdi_nccl_divides_after(b, &last->one.op) && !last->marked && last->one.staged == NULL;
}

/* Enqueues the work before NCCL's part of tickets first to last, and the write that they have started. */
static cddp_status issue_before(struct cdi_backend *b, uint64_t first, uint64_t last, struct cdi_error *err)
{
    const struct cdi_slot *end = cdi_slot_of(b, last);
    bool by_kernel = end->group == NULL && cdi_nccl_divides_before(b, &end->one.op);
    struct cdi_ring_op *p;
    cddp_status st = CDDP_OK;

    for (uint64_t t = first; t <= last; t++)
        for (size_t i = 0; (p = cdi_slot_op(cdi_slot_of(b, t), i)) != NULL && st == CDDP_OK; i++) {
            st = cdi_stage_in(b, p, err);
            if (st == CDDP_OK)
                st = cdi_nccl_divide_before(b, &p->op, by_kernel && t == last ? cdi_completion_started_by_kernel : NULL,
                                            last, err);
        }
    return st == CDDP_OK && !by_kernel ? cdi_completion_write_started(b, last, err) : st;
}

/* Enqueues the work after NCCL's part, and the write that they are done. */
static cddp_status issue_after(struct cdi_backend *b, uint64_t first, uint64_t last, struct cdi_error *err)
{
    const struct cdi_slot *end = cdi_slot_of(b, last);
    bool by_kernel = kernel_writes_done(b, end);
    const struct cdi_ring_op *p;
    cddp_status st = CDDP_OK;

    for (uint64_t t = first; t <= last; t++)
        for (size_t i = 0; (p = cdi_slot_op(cdi_slot_of(b, t), i)) != NULL && st == CDDP_OK; i++) {
            st = cdi_nccl_divide_after(b, &p->op, by_kernel && t == last ? cdi_completion_done_by_kernel : NULL, last,
                                       err);
            if (st == CDDP_OK)
                st = cdi_stage_out(b, p, err);
        }
    /* The event first: it is reached when the host sees the word. A reducer's bucket has no event: a wait for it is a
     * wait for everything. */
    if (st == CDDP_OK && end->marked)
        st = issue_record(b, end->done, err);
    if (st == CDDP_OK && !by_kernel)
        st = cdi_completion_write_done(b, last, err);
    /* After the word: when the host sees the time, the operations are done. */
    return st == CDDP_OK ? cdi_gpu_timestamps_end(b, first, last, err) : st;
}

/*
 * Makes the calls in this thread. If a graph uses the communicator, NCCL queries an event at each launch (enqueue.cc,
 * cudaEventQuery, since 2.27), which would end a capture of another stream.
 */
static ncclResult_t issue_here(struct cdi_backend *b)
{
    bool relaxed = atomic_load(&b->captured.n_groups) > 0;
    ncclResult_t r;

    if (relaxed)
        (void)cdi_device_enter(&b->device, NULL); /* the context is current already */
    r = cdi_nccl_calls(b);
    if (relaxed)
        cdi_device_leave(&b->device);
    return r;
}

/*
 * Makes the calls for tickets first to last. On a blocking communicator an operation with a known shape is connected
 * and waits for no peer. A new shape goes to the call thread, as a copy, since the ring may grow meanwhile.
 */
static ncclResult_t issue_calls(struct cdi_backend *b, uint64_t first, uint64_t last)
{
    const struct cdi_op_group *several = cdi_slot_of(b, last)->group;
    struct cdi_call *c = &b->call;
    uint64_t shape = 0;

    c->comm = b->comm;
    c->stream = b->device.stream;
    c->n_ops = several != NULL ? several->n : 0;
    c->ops = several != NULL ? several->ops : c->list;
    for (uint64_t t = first; t <= last && several == NULL; t++)
        c->list[c->n_ops++] = &cdi_slot_of(b, t)->one.op;
    for (size_t i = 0; i < c->n_ops; i++)
        shape = cdi_launch_shape(shape, c->ops[i], b->world.size);
    if (b->call_thread == NULL || c->n_ops == 0 || cdi_launch_shape_seen(&b->shapes, shape))
        return issue_here(b);
    for (size_t i = 0; i < c->n_ops && several == NULL; i++) {
        c->op[i] = *c->list[i];
        c->list[i] = &c->op[i];
    }
    return cdi_nccl_call(b, cdi_nccl_calls);
}

cddp_status cdi_nccl_poll_async(struct cdi_backend *b, ncclResult_t r, struct cdi_error *err)
{
    uint64_t first = b->issued + 1;
    struct cdi_error why;
    cddp_status st;

    if (b->issued == b->begun)
        return CDDP_OK;
    st = cdi_nccl_wait_ready(b, b->comm, r, "starting it", cdi_deadline_ms(b->begun_ms, b->world.timeout_ms), &why);
    cdi_issue_give_turn(b);
    /* Our own timeout, not one that NCCL or a peer has reported: NCCL waits for a rank; find out which. */
    if (st == CDDP_E_TIMEOUT && !atomic_load(&b->failed) &&
        cdi_now_ms() >= cdi_deadline_ms(b->begun_ms, b->world.timeout_ms)) {
        struct cdi_op_info g = {.ticket = 0};

        cdi_slot_describe(cdi_slot_of(b, first), first, &g);
        cdi_gpu_timed_out(b, &g);
        return cdi_gpu_health_now(b, err);
    }
    if (st == CDDP_OK)
        st = issue_after(b, first, b->begun, &why);
    (void)pthread_mutex_lock(&b->ring_lock);
    b->issued = st == CDDP_OK ? b->begun : b->issued;
    (void)pthread_mutex_unlock(&b->ring_lock);
    if (st != CDDP_OK)
        st = cdi_gpu_fail_in(b, &cdi_slot_of(b, first)->one.op, &why);
    if (st != CDDP_OK && err != NULL)
        *err = why;
    return st;
}

void cdi_issue_close(struct cdi_backend *b)
{
    b->ready = b->enqueued;
    b->pending_bytes = 0;
}

/*
 * Begins all operations that may. NCCL may put them on the stream in another thread, and returns "in
 * progress" meanwhile. This caller, in the middle of a backward pass, does not wait for that; the next one does.
 */
static cddp_status issue_begin(struct cdi_backend *b, struct cdi_error *err)
{
    uint64_t first = b->begun + 1, last = b->ready;
    cddp_status st = cdi_nccl_poll_async(b, ncclInProgress, err);
    bool marked = false;
    ncclResult_t r;

    if (st != CDDP_OK || first > last)
        return st;
    for (uint64_t t = first; t <= last; t++) {
        cdi_slot_of(b, t)->last = last;
        marked |= !cdi_slot_of(b, t)->one.op.unmarked;
    }
    cdi_slot_of(b, last)->marked = marked;
    cdi_gpu_timestamps_begin(b);
    st = issue_before(b, first, last, err);
    if (st != CDDP_OK)
        return cdi_gpu_fail_in(b, &cdi_slot_of(b, first)->one.op, err);
    st = cdi_issue_take_turn(b, err);
    if (st != CDDP_OK)
        return st;
    if (!cdi_nccl_enter(b))
        return cdi_gpu_health_now(b, err);
    r = issue_calls(b, first, last);
    cdi_nccl_leave(b);
    (void)pthread_mutex_lock(&b->ring_lock);
    b->begun = last;
    b->begun_ms = cdi_now_ms();
    (void)pthread_mutex_unlock(&b->ring_lock);
    r = cdi_nccl_state(b, b->comm, r);
    return r == ncclInProgress ? CDDP_OK : cdi_nccl_poll_async(b, r, err);
}

cddp_status cdi_issue_start(struct cdi_backend *b, struct cdi_error *err)
{
    struct cdi_error why;
    cddp_status st = cdi_gpu_health_now(b, &why);

    if (st == CDDP_OK)
        st = issue_begin(b, &why);
    if (st != CDDP_OK && err != NULL)
        *err = why;
    return st;
}

cddp_status cdi_issue_flush(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = cdi_issue_start(b, err);

    return st == CDDP_OK ? cdi_nccl_poll_async(b, ncclInProgress, err) : st;
}

void cdi_issue_try_start(struct cdi_backend *b)
{
    if (b->begun < b->ready && cdi_nccl_state(b, b->comm, ncclInProgress) == ncclSuccess && try_turn(b))
        (void)cdi_issue_start(b, NULL); /* this sets the sticky error */
}
