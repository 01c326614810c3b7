/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of the host for operations, and of streams for one another. */
#include "worker/backend/nccl/wait.h"

#include "common/clock.h"
#include "worker/backend/nccl/graph_capture.h"
#include "worker/backend/nccl/issue.h"
#include "worker/backend/nccl/operation.h"
#include "worker/backend/nccl/stage.h"
#include "worker/backend/nccl/state/completion.h"
#include "worker/backend/nccl/state/failure.h"
#include "worker/backend/nccl/state/gpu_timestamps.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/state/ring.h"

#include <sched.h>
#include <time.h>

#define SPIN_NS 50000   /* a join polls without a pause, */
#define YIELD_NS 500000 /* then yields between two polls, */
#define NAP_NS 50000    /* then sleeps for this long */

static void pause_between(int64_t t0)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    int64_t waited = cdi_now_ns() - t0;

    if (waited > YIELD_NS)
        (void)nanosleep(&nap, NULL);
    else if (waited > SPIN_NS)
        (void)sched_yield();
}

/* The GPU has gone on while this process was stopped. */
static cddp_status health_after(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_health(b, err);

    return st == CDDP_OK ? cdi_host->flight_confirm(b->world.flight, err) : st;
}

cddp_status cdi_gpu_await_event(struct cdi_backend *b, CUevent event, struct cdi_error *err)
{
    int64_t t0 = cdi_now_ns();
    CUresult r;

    while ((r = cdi_cuda.event_query(event)) == CUDA_ERROR_NOT_READY) {
        if (atomic_load(&b->failed))
            return cdi_gpu_health(b, err);
        pause_between(t0);
    }
    if (r != CUDA_SUCCESS) {
        struct cdi_error why;

        (void)cdi_cuda_check(r, "waiting for the GPU", &why);
        (void)cdi_gpu_fail(b, &why);
    }
    return health_after(b, err);
}

/* Waits until the stream has written the ticket, or the communicator has failed. */
static cddp_status await_ticket(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    int64_t t0 = cdi_now_ns();

    while (!cdi_ticket_reached(atomic_load_explicit(&b->words->done, memory_order_acquire), ticket) &&
           !atomic_load(&b->failed))
        pause_between(t0);
    return health_after(b, err);
}

/*
 * Puts the ticket on the stream (0: all that may begin). A group that another thread has not completed stays pending:
 * when a wait comes depends on the rank, and NCCL wants the same groups on all. With `lock`.
 */
static cddp_status wait_issue(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    if (ticket > b->enqueued)
        return cdi_fail(err, CDDP_E_INVALID, "no such ticket");
    if (ticket > b->ready)
        cdi_issue_close(b);
    return ticket == 0 || ticket > b->issued ? cdi_issue_flush(b, err) : CDDP_OK;
}

/*
 * Returns the event after the operation; NULL: it was reached long ago. For ticket 0, and for a ticket without a mark,
 * the event is recorded now, after everything. With `lock`; the ticket is issued.
 */
static cddp_status wait_event(struct cdi_backend *b, uint64_t ticket, CUevent *out, struct cdi_error *err)
{
    const struct cdi_slot *last;

    *out = NULL;
    if (ticket != 0 && ticket + b->ring_size <= b->enqueued)
        return CDDP_OK;
    last = ticket != 0 ? cdi_slot_of(b, cdi_slot_of(b, ticket)->last) : NULL;
    *out = last != NULL && last->marked ? last->done : b->tail;
    if (*out != b->tail)
        return CDDP_OK;
    return cdi_cuda_check(cdi_cuda.event_record(b->tail, b->device.stream), "recording an event", err);
}

cddp_status cdi_gpu_join(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    struct cdi_staging *large = NULL;
    CUevent event = NULL;
    cddp_status st = CDDP_OK;

    st = cdi_device_enter(&b->device, err);
    (void)pthread_mutex_lock(&b->lock);
    if (st == CDDP_OK && ticket > 0)
        st = wait_issue(b, ticket, err);
    if (st == CDDP_OK && ticket > 0)
        st = wait_event(b, ticket, &event, err);
    (void)pthread_mutex_unlock(&b->lock);
    if (st == CDDP_OK)
        st = event != NULL ? await_ticket(b, ticket, err) : cdi_gpu_health(b, err);
    if (st == CDDP_OK && event == b->tail) /* this event may be after later tickets, too */
        st = cdi_gpu_await_event(b, event, err);
    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&b->lock);
        (void)cdi_ring_poll(b);
        large = cdi_stage_finish(b, ticket);
        (void)pthread_mutex_unlock(&b->lock);
        if (event != NULL &&
            event != b->tail) /* reached; this makes earlier work done for CUDA, to which the word means nothing */
            (void)cdi_cuda.event_query(event);
    }
    cdi_stage_free(large);
    cdi_device_leave(&b->device);
    return cdi_gpu_call_status(b, st, NULL, err);
}

/*
 * Delivers the results of a ticket that the stream has written. As in join, the query makes work before the event done
 * for CUDA; for a ticket without a mark there is only the word. With `lock`.
 */
static void wait_finish(struct cdi_backend *b, uint64_t ticket)
{
    bool recent = ticket + b->ring_size > b->enqueued;
    const struct cdi_slot *last = recent ? cdi_slot_of(b, cdi_slot_of(b, ticket)->last) : NULL;

    if (last != NULL && last->marked)
        (void)cdi_cuda.event_query(last->done);
    (void)cdi_ring_poll(b);
    cdi_stage_deliver(b, ticket);
}

/* Returns whether the stream has written the ticket. False: it is not begun, or under way. */
static bool stream_is_past(const struct cdi_backend *b, uint64_t ticket)
{
    return ticket <= b->issued &&
           cdi_ticket_reached(atomic_load_explicit(&b->words->done, memory_order_acquire), ticket);
}

/* Does the part of test that needs `lock`, if that is free: its holder may be in a call of the driver that waits. */
static cddp_status test_locked(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    cddp_status st = cdi_device_enter(&b->device, err);

    if (st == CDDP_OK && pthread_mutex_trylock(&b->lock) == 0) {
        bool done;

        if (ticket > b->begun)
            cdi_issue_try_start(b);
        done = cdi_ring_is_done(b, ticket) || stream_is_past(b, ticket);
        if (done)
            wait_finish(b, ticket);
        (void)pthread_mutex_unlock(&b->lock);
        st = done ? CDDP_OK : CDDP_IN_PROGRESS;
    } else if (st == CDDP_OK) {
        st = CDDP_IN_PROGRESS;
    }
    cdi_device_leave(&b->device);
    return st;
}

/* Reads words, and calls CUDA only once they are written, so that a loop of tests disturbs no capture. */
cddp_status cdi_gpu_test(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_health_now(b, err);
    bool known, waits;

    if (st != CDDP_OK || ticket <= atomic_load(&b->delivered)) /* 0, and tickets whose results were delivered */
        return st;
    (void)pthread_mutex_lock(&b->ring_lock);
    known = ticket <= b->enqueued;
    waits = ticket > b->done && ticket <= b->begun && !stream_is_past(b, ticket);
    (void)pthread_mutex_unlock(&b->ring_lock);
    if (!known)
        return cdi_fail(err, CDDP_E_INVALID, "no such ticket");
    st = waits ? CDDP_IN_PROGRESS : test_locked(b, ticket, err);
    return st == CDDP_OK ? health_after(b, err) : st;
}

cddp_status cdi_gpu_refuse_capture(CUstream stream, struct cdi_error *err)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = cdi_cuda.stream_capturing(stream, &status);

    if (r == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE)
        return CDDP_OK;
    if (r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return cdi_fail(
            err, CDDP_E_UNSUPPORTED,
            "CUDA's legacy stream waits for a stream that captures a graph: pass a separate stream, created "
            "with cudaStreamNonBlocking, or make this call before or after the capture");
    if (r == CUDA_SUCCESS)
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "the stream captures a graph, and this call cannot be captured: make it before "
                        "cudaStreamBeginCapture or after cudaStreamEndCapture");
    return cdi_cuda_check(r, "querying whether a stream captures a graph", err);
}

cddp_status cdi_gpu_wait_stream(struct cdi_backend *b, void *stream, bool timed, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (cdi_gpu_captures(b))
        return cdi_capture_wait_stream(b, stream, err);
    st = cdi_gpu_health(b, err);
    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter_briefly(&b->device, err);
    if (st == CDDP_OK)
        st = cdi_gpu_refuse_capture(stream, err);
    (void)pthread_mutex_lock(&b->lock);
    if (st == CDDP_OK)
        st = cdi_nccl_poll_async(b, ncclInProgress,
                                 err); /* otherwise operations that were begun would wait for this stream, too */
    if (st == CDDP_OK)
        st = cdi_gpu_timestamps_follow(b, stream, timed, err);
    (void)pthread_mutex_unlock(&b->lock);
    cdi_device_leave_briefly(&b->device);
    return cdi_gpu_call_status(b, st, NULL, err);
}

cddp_status cdi_gpu_stream_wait(struct cdi_backend *b, uint64_t ticket, void *stream, struct cdi_error *err)
{
    CUevent event = NULL;
    cddp_status st = CDDP_OK;

    if (cdi_gpu_captures(b))
        return cdi_capture_stream_wait(b, ticket, stream, err);
    st = cdi_gpu_health(b, err);
    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter_briefly(&b->device, err);
    if (st == CDDP_OK)
        st = cdi_gpu_refuse_capture(stream, err);
    (void)pthread_mutex_lock(&b->lock);
    if (st == CDDP_OK)
        st = wait_issue(b, ticket, err);
    if (st == CDDP_OK)
        st = wait_event(b, ticket, &event, err);
    if (st == CDDP_OK && event != NULL)
        st = cdi_cuda_check(cdi_cuda.stream_wait(stream, event, 0), "making a stream wait", err);
    (void)pthread_mutex_unlock(&b->lock);
    cdi_device_leave_briefly(&b->device);
    return cdi_gpu_call_status(b, st, NULL, err);
}

cddp_status cdi_gpu_agree(struct cdi_backend *b, int32_t *value, cddp_redop how, struct cdi_error *err)
{
    const struct cdi_coll op = {
        .kind = CDI_ALL_REDUCE, .in = value, .out = value, .count = 1, .dtype = CDDP_INT32, .op = how, .bucket = -1};
    uint64_t ticket;
    cddp_status st;

    if (b->world.size == 1)
        return cdi_gpu_health(b, err);
    st = cdi_gpu_enqueue(b, &op, &ticket, err);

    return st == CDDP_OK ? cdi_gpu_join(b, ticket, err) : st;
}
