/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/graph_capture.h"

#include "common/clock.h"
#include "worker/backend/describe.h"
#include "worker/backend/nccl/issue.h"
#include "worker/backend/nccl/stage.h"
#include "worker/backend/nccl/state/failure.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/state/nccl_call.h"
#include "worker/backend/nccl/state/ring.h"

#include <stdio.h>
#include <string.h>

#define COUNTS 256 /* groups in one block of memory */

/* How often a group has begun and ended: the host reads one pair, the device counts in another. */
struct words {
    _Atomic uint32_t begun, ended;
};

struct cdi_replay_counts {
    struct cdi_replay_counts *next;
    struct words *words; /* pinned */
    CUdeviceptr device;  /* as many pairs */
    size_t used;
};

struct cdi_captured_group {
    struct cdi_coll op;         /* the first of them */
    struct cdi_op_group *group; /* the operations, if they were enqueued as one; otherwise NULL */
    struct words *words;
    uint32_t *device;
    uint32_t begun, ended; /* as last seen */
    int64_t begun_ms;
};

/* ----------------------------------------------------------------------------------------------- which capture ---- */

static cddp_status capture_query(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, struct cdi_error *err)
{
    cuuint64_t number = 0;
    CUresult r = cdi_cuda.stream_capture(stream, status, &number);

    *id = number;
    if (r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return cdi_fail(
            err, CDDP_E_UNSUPPORTED,
            "CUDA's legacy stream waits for a stream that captures a graph: pass a separate stream, created "
            "with cudaStreamNonBlocking, or make this call before or after the capture");
    return cdi_cuda_check(r, "querying whether a stream captures a graph", err);
}

cddp_status cdi_gpu_capture_of(struct cdi_backend *b, void *stream, uint64_t *id, struct cdi_error *err)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cddp_status st = cdi_device_enter_briefly(&b->device, err);

    *id = 0;
    if (st == CDDP_OK)
        st = capture_query(stream, &status, id, err);
    cdi_device_leave_briefly(&b->device);
    if (st == CDDP_OK && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "the stream's capture has failed (CUDA_ERROR_STREAM_CAPTURE_INVALIDATED): end it with "
                        "cudaStreamEndCapture, and begin another one");
    if (st != CDDP_OK || status == CU_STREAM_CAPTURE_STATUS_NONE)
        *id = 0;
    return st;
}

bool cdi_gpu_capture_lives(struct cdi_backend *b)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    uint64_t id;

    if (cdi_device_enter_briefly(&b->device, NULL) == CDDP_OK)
        (void)capture_query(b->device.captured, &status, &id, NULL);
    cdi_device_leave_briefly(&b->device);
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool cdi_gpu_captures(const struct cdi_backend *b)
{
    return cdi_device_stream(&b->device) != b->device.stream;
}

static cddp_status fork_from(struct cdi_backend *b, CUstream stream, struct cdi_error *err)
{
    cddp_status st = cdi_cuda_check(cdi_cuda.event_record(b->captured.mark, stream), "capturing a step", err);

    return st == CDDP_OK
               ? cdi_cuda_check(cdi_cuda.stream_wait(b->device.captured, b->captured.mark, 0), "capturing a step", err)
               : st;
}

/* Makes the capture stream part of capture `id`, to which `stream` belongs. With `lock`. */
static cddp_status join_capture(struct cdi_backend *b, CUstream stream, uint64_t id, struct cdi_error *err)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    uint64_t now;
    cddp_status st = capture_query(b->device.captured, &status, &now, err);

    if (st != CDDP_OK || (status == CU_STREAM_CAPTURE_STATUS_ACTIVE && now == id))
        return st;
    if (status != CU_STREAM_CAPTURE_STATUS_NONE)
        return cdi_fail(err, CDDP_E_STATE,
                        "another graph is being captured with a step of this communicator in it: end that capture "
                        "first");
    b->captured.n_held = 0; /* of an earlier capture that has failed */
    return fork_from(b, stream, err);
}

cddp_status cdi_gpu_capture_enter(struct cdi_backend *b, void *stream, uint64_t id, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_health(b, err);

    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter(&b->device, err); /* no allocation here or in NCCL ends the capture */
    (void)pthread_mutex_lock(&b->lock);
    if (st == CDDP_OK)
        st = join_capture(b, stream, id, err);
    (void)pthread_mutex_unlock(&b->lock);
    if (st == CDDP_OK)
        cdi_device_capture(&b->device, true);
    else
        cdi_device_leave(&b->device);
    return st;
}

void cdi_gpu_capture_leave(struct cdi_backend *b)
{
    cdi_device_capture(&b->device, false);
    cdi_device_leave(&b->device);
}

/* ------------------------------------------------------------------------------------------ what graphs count in -- */

/*
 * Adds a block of counts, with the capture mode relaxed. The memory is not used yet, so that it is cleared beside all
 * other work.
 */
static cddp_status add_counts(struct cdi_backend *b, struct cdi_error *err)
{
    struct cdi_replay_counts *c = cdi_host->alloc(1, sizeof *c);
    size_t bytes = COUNTS * sizeof(struct words);
    void *pinned = NULL;
    cddp_status st;

    if (c == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a captured collective");
    st = cdi_cuda_check(cdi_cuda.pinned_alloc(&pinned, bytes, 0), "allocating pinned memory", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.memory_alloc(&c->device, bytes), "allocating GPU memory", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.set_bytes(c->device, 0, bytes, b->device.side), "clearing memory", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.stream_synchronize(b->device.side), "clearing memory", err);
    c->words = pinned;
    c->next = b->captured.counts;
    b->captured.counts = c; /* freed at the end, even if it is incomplete */
    if (st != CDDP_OK) {
        c->used = COUNTS;
        return st;
    }
    memset(pinned, 0, bytes);
    return CDDP_OK;
}

static cddp_status capture_grow(struct cdi_backend *b, struct cdi_error *err)
{
    struct cdi_capture *c = &b->captured;
    size_t n = atomic_load(&c->n_groups), room = c->room == 0 ? 64 : 2 * c->room;
    struct cdi_captured_group **group;

    if (n < c->room)
        return CDDP_OK;
    group = cdi_host->alloc(room, sizeof(struct cdi_captured_group *));
    if (group == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a captured collective");
    for (size_t i = 0; i < n; i++)
        group[i] = c->group[i];
    (void)pthread_mutex_lock(&b->ring_lock);
    cdi_host->release(c->group);
    c->group = group;
    (void)pthread_mutex_unlock(&b->ring_lock);
    c->room = room;
    return CDDP_OK;
}

/* Creates a group that begins with op. Only a complete group is listed. */
static cddp_status new_group(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_captured_group **out,
                             struct cdi_error *err)
{
    struct cdi_capture *c = &b->captured;
    cddp_status st = capture_grow(b, err);
    struct cdi_captured_group *g;

    if (st == CDDP_OK && (c->counts == NULL || c->counts->used == COUNTS))
        st = add_counts(b, err);
    if (st != CDDP_OK)
        return st;
    g = cdi_host->alloc(1, sizeof *g);
    if (g == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a captured collective");
    g->op = *op;
    g->words = &c->counts->words[c->counts->used];
    g->device = (uint32_t *)(uintptr_t)c->counts->device + 2 * c->counts->used;
    c->counts->used++;
    *out = g;
    return CDDP_OK;
}

cddp_status cdi_capture_open(struct cdi_backend *b, struct cdi_error *err)
{
    CUevent *const events[] = {&b->captured.mark, &b->captured.tail};
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < 2 && st == CDDP_OK; i++)
        st = cdi_cuda_check(cdi_cuda.event_create(events[i], CU_EVENT_DISABLE_TIMING), "creating an event", err);
    return st;
}

void cdi_capture_close(struct cdi_backend *b)
{
    struct cdi_capture *c = &b->captured;
    size_t n = atomic_load(&c->n_groups);

    for (size_t i = 0; i < n; i++) {
        cdi_host->release(c->group[i]->group);
        cdi_host->release(c->group[i]);
    }
    cdi_host->release(c->group);
    while (c->counts != NULL) {
        struct cdi_replay_counts *next = c->counts->next;

        if (c->counts->words != NULL)
            (void)cdi_cuda.pinned_free(c->counts->words);
        if (c->counts->device != 0)
            (void)cdi_cuda.memory_free(c->counts->device);
        cdi_host->release(c->counts);
        c->counts = next;
    }
    for (size_t i = 0; i < CDI_CAPTURE_MARKS; i++)
        if (c->after[i] != NULL)
            (void)cdi_cuda.event_destroy(c->after[i]);
    if (c->mark != NULL)
        (void)cdi_cuda.event_destroy(c->mark);
    if (c->tail != NULL)
        (void)cdi_cuda.event_destroy(c->tail);
    *c = (struct cdi_capture){0};
}

/* -------------------------------------------------------------------------------------------------- operations ---- */

static cddp_status capture_count(struct cdi_backend *b, struct cdi_captured_group *g, bool ends, struct cdi_error *err)
{
    struct cdi_launch l;

    cdi_launch_signal(&l, g->device + ends, (uint32_t *)(uintptr_t)(ends ? &g->words->ended : &g->words->begun));
    return cdi_device_launch(&b->device, &l, err);
}

/* Rejects a capture that has failed already: a call of NCCL would fail the communicator, too. */
static cddp_status check_capture(struct cdi_backend *b, struct cdi_error *err)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    uint64_t id;
    cddp_status st = capture_query(b->device.captured, &status, &id, err);

    if (st != CDDP_OK || status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return st;
    return cdi_fail(err, CDDP_E_UNSUPPORTED,
                    "the capture has failed (CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), or was ended before the step: end "
                    "it with cudaStreamEndCapture, and begin another one");
}

/*
 * Calls NCCL for the operations, which must stay until NCCL has taken them: see struct cdi_call.
 *
 * Unlike other operations these are waited for until NCCL has put them on the stream: for a graph it may exchange
 * addresses of memory with peers, which capture the same. As elsewhere, an error ends the communicator.
 */
static cddp_status call_nccl(struct cdi_backend *b, const struct cdi_coll *const *ops, size_t n,
                             const struct cdi_coll *name, struct cdi_error *err)
{
    struct cdi_call *call = &b->call;
    cddp_status st;
    ncclResult_t r;

    call->comm = b->comm;
    call->stream = b->device.captured;
    call->ops = ops;
    call->n_ops = n;
    st = cdi_issue_take_turn(b, err);
    if (st != CDDP_OK)
        return st;
    r = cdi_nccl_call(b, cdi_nccl_calls);
    st = cdi_nccl_wait_ready(b, b->comm, r, "capturing it", cdi_deadline_ms(cdi_now_ms(), b->world.timeout_ms), err);
    cdi_issue_give_turn(b);
    return st == CDDP_OK ? st : cdi_gpu_fail_in(b, name, err);
}

/* Puts all operations that are not captured on the communication stream, so that NCCL takes the next call. */
static cddp_status capture_flush_uncaptured(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st;

    cdi_device_capture(&b->device, false);
    st = cdi_issue_flush(b, err);
    cdi_device_capture(&b->device, true);
    return st;
}

/* Lists the group, even if its capture has failed: it will not run, but the captured part refers to its counts. */
static void keep_group(struct cdi_backend *b, struct cdi_captured_group *g)
{
    struct cdi_capture *c = &b->captured;

    (void)pthread_mutex_lock(&b->ring_lock);
    c->group[atomic_fetch_add(&c->n_groups, 1)] = g;
    (void)pthread_mutex_unlock(&b->ring_lock);
    (void)pthread_mutex_lock(&b->error_lock);
    (void)pthread_cond_broadcast(&b->changed); /* the watch thread has work from now on */
    (void)pthread_mutex_unlock(&b->error_lock);
}

/* Adds n operations to the graph, as one group. name: the first one. The caller lists *out. With `lock`. */
static cddp_status capture_add(struct cdi_backend *b, const struct cdi_coll *const *ops, size_t n,
                               const struct cdi_coll *name, struct cdi_captured_group **out, struct cdi_error *err)
{
    struct cdi_captured_group *g = NULL;
    cddp_status st = check_capture(b, err);

    if (st == CDDP_OK)
        st = new_group(b, name, &g, err);
    for (size_t i = 0; i < n && st == CDDP_OK; i++)
        st = cdi_nccl_divide_before(b, (struct cdi_coll *)(uintptr_t)ops[i], NULL, 0, err);
    if (st == CDDP_OK)
        st = capture_count(b, g, false, err);
    if (st == CDDP_OK)
        st = call_nccl(b, ops, n, name, err);
    for (size_t i = 0; i < n && st == CDDP_OK; i++)
        st = cdi_nccl_divide_after(b, ops[i], NULL, 0, err);
    if (st == CDDP_OK)
        st = capture_count(b, g, true, err);
    *out = g;
    return st;
}

/* Adds the pending operations to the graph. With `lock`. */
static cddp_status capture_issue(struct cdi_backend *b, struct cdi_error *err)
{
    struct cdi_capture *c = &b->captured;
    struct cdi_call *call = &b->call;
    struct cdi_captured_group *g = NULL;
    cddp_status st;
    size_t n = c->n_held;

    if (n == 0)
        return CDDP_OK;
    st = capture_flush_uncaptured(b, err); /* which also uses b->call */
    for (size_t i = 0; i < n; i++) {
        call->op[i] = c->held[i];
        call->list[i] = &call->op[i];
    }
    c->n_held = 0;
    if (st == CDDP_OK)
        st = capture_add(b, call->list, n, &c->held[0], &g, err);
    if (g != NULL)
        keep_group(b, g);
    return st;
}

static size_t capture_bytes(const struct cdi_coll *op)
{
    return op->count * cddp_dtype_size(op->dtype);
}

static size_t pending_bytes(const struct cdi_capture *c)
{
    size_t sum = 0;

    for (size_t i = 0; i < c->n_held; i++)
        sum += capture_bytes(&c->held[i]);
    return sum;
}

/* Gives what is in the graph now a ticket. With `lock`. */
static cddp_status capture_mark(struct cdi_backend *b, uint64_t *ticket, struct cdi_error *err)
{
    struct cdi_capture *c = &b->captured;
    CUevent *after = &c->after[(c->marks + 1) % CDI_CAPTURE_MARKS];
    cddp_status st = CDDP_OK;

    if (*after == NULL)
        st = cdi_cuda_check(cdi_cuda.event_create(after, CU_EVENT_DISABLE_TIMING), "creating an event", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.event_record(*after, b->device.captured), "capturing a step", err);
    if (st == CDDP_OK)
        *ticket = ++c->marks;
    return st;
}

cddp_status cdi_capture_enqueue(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket,
                                struct cdi_error *err)
{
    struct cdi_capture *c = &b->captured;
    size_t bytes = capture_bytes(op);
    cddp_status st = cdi_gpu_health(b, err);

    *ticket = 0;
    if (st != CDDP_OK)
        return st;
    if (op->region == NULL && !op->known)
        return cdi_capture_enqueue_group(b, op, 1, err);
    (void)pthread_mutex_lock(&b->lock);
    if (c->n_held > 0 && (pending_bytes(c) + bytes > CDI_GROUP_BYTES || c->n_held == CDI_GROUP_MAX))
        st = capture_issue(b, err);
    if (st == CDDP_OK) {
        c->held[c->n_held++] = *op;
        if (!op->more || bytes > CDI_GROUP_BYTES)
            st = capture_issue(b, err);
        if (st == CDDP_OK && op->captured_mark)
            st = capture_mark(b, ticket, err);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return st;
}

static cddp_status refuse_host_memory(struct cdi_backend *b, const struct cdi_op_group *s, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    bool on_host = false;

    for (size_t i = 0; i < s->n && st == CDDP_OK && !on_host; i++)
        st = cdi_stage_is_needed(b, &s->op[i].op, &on_host, err);
    return st == CDDP_OK && on_host ? cdi_stage_reject(err) : st;
}

cddp_status cdi_capture_enqueue_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n,
                                      struct cdi_error *err)
{
    struct cdi_op_group *s = NULL;
    struct cdi_captured_group *g = NULL;
    cddp_status st = cdi_gpu_health(b, err);

    if (st == CDDP_OK)
        st = cdi_op_group_create(&s, ops, n, b->world.size, err);
    if (st == CDDP_OK)
        st = refuse_host_memory(b, s, err);
    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&b->lock);
        st = capture_issue(b, err);
        if (st == CDDP_OK)
            st = capture_flush_uncaptured(b, err);
        if (st == CDDP_OK)
            st = capture_add(b, s->ops, s->n, &ops[0], &g, err);
        if (g != NULL) {
            g->group = s; /* a call that has not returned may still read it */
            g->op.counts = NULL;
            keep_group(b, g);
        }
        (void)pthread_mutex_unlock(&b->lock);
    }
    if (g == NULL)
        cdi_host->release(s);
    return st;
}

cddp_status cdi_capture_wait_stream(struct cdi_backend *b, CUstream stream, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_health(b, err);

    if (st != CDDP_OK)
        return st;
    (void)pthread_mutex_lock(&b->lock);
    st = fork_from(b, stream, err);
    (void)pthread_mutex_unlock(&b->lock);
    return st;
}

cddp_status cdi_capture_stream_wait(struct cdi_backend *b, uint64_t ticket, CUstream stream, struct cdi_error *err)
{
    const struct cdi_capture *c = &b->captured;
    CUevent after = NULL; /* NULL: the end, which is later than a mark that another one has replaced */
    cddp_status st = cdi_gpu_health(b, err);

    if (st != CDDP_OK)
        return st;
    (void)pthread_mutex_lock(&b->lock);
    if (ticket > 0 && ticket <= c->marks && ticket + CDI_CAPTURE_MARKS > c->marks)
        after = c->after[ticket % CDI_CAPTURE_MARKS];
    if (after == NULL) {
        after = c->tail;
        st = capture_issue(b, err);
        if (st == CDDP_OK)
            st = cdi_cuda_check(cdi_cuda.event_record(after, b->device.captured), "capturing a step", err);
    }
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.stream_wait(stream, after, 0), "capturing a step", err);
    (void)pthread_mutex_unlock(&b->lock);
    return st;
}

cddp_status cdi_capture_element_begin(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_health(b, err);

    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter_briefly(&b->device, err);
    (void)pthread_mutex_lock(&b->lock);
    if (st == CDDP_OK)
        st = capture_issue(b, err);
    if (st != CDDP_OK) {
        (void)pthread_mutex_unlock(&b->lock);
        cdi_device_leave_briefly(&b->device);
    }
    return st;
}

/* ----------------------------------------------------------------------------------------------------- replays ---- */

/* Reads the words of a group. Returns whether they have changed. */
static bool capture_update_group(struct cdi_capture *c, struct cdi_captured_group *g)
{
    /* In this order: otherwise a group could have ended and not begun. */
    uint32_t ended = atomic_load_explicit(&g->words->ended, memory_order_acquire);
    uint32_t begun = atomic_load_explicit(&g->words->begun, memory_order_acquire);

    bool changed = begun != g->begun || ended != g->ended;

    if (begun != g->begun)
        g->begun_ms = cdi_now_ms();
    c->begun += begun - g->begun;
    c->ended += ended - g->ended;
    if (begun != g->begun || begun != ended)
        c->last = g;
    g->begun = begun;
    g->ended = ended;
    if (begun != ended)
        c->current = g;
    return changed;
}

static void capture_update_page(struct cdi_backend *b)
{
    const struct cdi_capture *c = &b->captured;
    struct cdi_flight_replay r = {.begun = c->begun, .ended = c->ended};

    if (c->last == NULL)
        return;
    r.number = c->last->begun;
    r.op = (uint32_t)cdi_flight_op_of(c->last->op.kind);
    r.bucket = c->last->op.bucket;
    cdi_host->flight_replays(b->record, &r);
}

bool cdi_capture_poll(struct cdi_backend *b)
{
    struct cdi_capture *c = &b->captured;
    bool idle, changed = false;

    (void)pthread_mutex_lock(&b->ring_lock);
    c->current = NULL;
    for (size_t i = 0; i < atomic_load(&c->n_groups); i++)
        changed |= capture_update_group(c, c->group[i]);
    if (changed)
        capture_update_page(b);
    idle = c->current == NULL;
    (void)pthread_mutex_unlock(&b->ring_lock);
    return idle;
}

void cdi_capture_add_time(struct cdi_backend *b, int64_t ms)
{
    int64_t now_ms = cdi_now_ms();

    (void)pthread_mutex_lock(&b->ring_lock);
    for (size_t i = 0; i < atomic_load(&b->captured.n_groups); i++) {
        struct cdi_captured_group *g = b->captured.group[i];

        g->begun_ms = g->begun_ms + ms < now_ms ? g->begun_ms + ms : now_ms;
    }
    (void)pthread_mutex_unlock(&b->ring_lock);
}

void cdi_capture_current(struct cdi_backend *b, struct cdi_op_info *out)
{
    const struct cdi_captured_group *g;
    size_t used;

    (void)pthread_mutex_lock(&b->ring_lock);
    g = b->captured.current;
    if (g != NULL) {
        out->since_ms = g->begun_ms;
        out->ticket = out->number = CDI_REPLAYS + b->captured.begun;
        cdi_coll_text(&g->op, out->op, sizeof out->op);
        used = strlen(out->op);
        (void)snprintf(out->op + used, sizeof out->op - used, ", replay %u of its graph", g->begun);
    }
    (void)pthread_mutex_unlock(&b->ring_lock);
}
