/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture: operations on a capturing stream are kept and do not run; a wait for an event that was recorded in a
 * capture makes a stream part of it; and calls that a capture forbids end it with an error, whichever thread makes
 * them. graph.c launches the result.
 *
 * The rules are those of the CUDA Driver API, "Stream Management" (cuStreamBeginCapture, cuStreamEndCapture,
 * cuStreamIsCapturing, cuThreadExchangeStreamCaptureMode) and of the CUDA Programming Guide, "Prohibited and Unhandled
 * Operations": a query of, or a wait for, captured work is invalid, and an invalid operation invalidates the graphs
 * that are being captured.
 *
 * | call                                                  | forbidden                        | source
 * | cuStreamQuery, cuStreamSynchronize of a stream that   | in every mode                    | Programming Guide
 * |   captures; cuCtxSynchronize                          |                                  |
 * | cuEventQuery, cuEventSynchronize, cuEventElapsedTime  | in every mode                    | the manual of
 * |   of an event that was recorded last in a capture     |                                  |   cuThreadExchange...
 * | the same of others; allocation and release of memory; | where the thread's mode says so  | the same;
 * |   copies that wait                                    |                                  |   pytorch issue 104487
 * | cuLibraryLoadData, cuFuncLoad: loading of modules     | where the thread's mode says so  | error 900, reported in
 * |                                                       |                                  |   newton pull request
 * 357 | a copy between a capture and pageable host memory     | in every mode                    | PyTorch 2.8, Copy.cu
 * | the legacy stream, while a blocking stream captures   | in every mode                    | Programming Guide
 * | a wait for work outside of the capture, or of another | in every mode                    | cuda.h, errors 905, 902
 * | the end: with a stream that is not joined; on another | in every mode; on another thread | cuStreamEndCapture;
 * |   stream; in another thread                           |   unless it is RELAXED           |   cuda.h, 904, 903, 908
 *
 * What lazy loading does at the first launch of a kernel in a capture is not documented, and not modelled.
 */
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct si_capture {
    struct si_capture *next;
    uint64_t number;
    CUstreamCaptureMode mode;
    const struct si_thread *thread; /* that began it */
    struct CUstream_st *origin;
    bool invalidated;
    struct si_graph graph; /* the nodes until now */
    struct si_node **tail;
};

static struct si_capture *captures; /* that have begun and not ended */
static uint64_t n_captures;

static struct si_capture *capture_find(uint64_t number)
{
    struct si_capture *c = captures;

    while (c != NULL && c->number != number)
        c = c->next;
    return c;
}

/* Reports a call that captures forbid. */
static void tell(const char *function, const char *why)
{
    if (si_settings.capture_faults)
        si_fault("%s: %s", function, why);
    else
        si_refused("%s: %s", function, why);
}

static CUresult invalidate(struct si_capture *c, CUresult why)
{
    c->invalidated = true;
    return why;
}

/* ----------------------------------------------------------------------------------------------- forbidden calls -- */

/*
 * cuThreadExchangeStreamCaptureMode decides in which threads a capture forbids potentially unsafe calls. A thread in
 * GLOBAL, the default: while it captures itself (other than RELAXED), or any thread does in GLOBAL. In THREAD_LOCAL:
 * while it captures itself (other than RELAXED). In RELAXED: never. Allocations are an example in that function's
 * manual; cudaEventQuery is another one, which PyTorch's watch thread has met (pytorch issue 104487).
 */
static CUresult unsafe_in(const struct si_thread *thread, CUstreamCaptureMode mode, const char *function)
{
    CUresult rc = CUDA_SUCCESS;

    si_lock();
    for (struct si_capture *c = captures; c != NULL; c = c->next) {
        bool own = c->thread == thread;

        if (mode == CU_STREAM_CAPTURE_MODE_RELAXED || c->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
            continue;
        if (!own && (mode != CU_STREAM_CAPTURE_MODE_GLOBAL || c->mode != CU_STREAM_CAPTURE_MODE_GLOBAL))
            continue;
        rc = invalidate(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    si_unlock();
    if (rc != CUDA_SUCCESS)
        tell(function, "forbidden in this thread while a graph is captured, which is invalid now");
    return rc;
}

CUresult si_capture_unsafe(const char *function)
{
    return unsafe_in(&si_thread, si_thread.capture_mode, function);
}

void si_capture_unsafe_elsewhere(const char *function)
{
    (void)unsafe_in(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL, function);
}

CUresult si_capture_asked_stream_locked(const struct CUstream_st *s, const char *function)
{
    if (s->capture == NULL)
        return CUDA_SUCCESS;
    tell(function, "forbidden on a stream that captures a graph, which is invalid now");
    return invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

/* CUDA_ERROR_CAPTURED_EVENT: of an event that was last recorded in a capturing stream, also when that has ended. */
CUresult si_capture_asked_event_locked(const struct CUevent_st *e, const char *function)
{
    struct si_capture *c = e->captured != 0 ? capture_find(e->captured) : NULL;

    if (c != NULL)
        c->invalidated = true;
    if (e->captured != 0)
        tell(function, "forbidden on an event that was recorded in a capture");
    return e->captured != 0 ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

CUresult si_capture_asked_context_locked(CUcontext ctx, const char *function)
{
    CUresult rc = CUDA_SUCCESS;

    for (struct si_capture *c = captures; c != NULL; c = c->next)
        if (c->origin->ctx == ctx)
            rc = invalidate(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (rc != CUDA_SUCCESS)
        tell(function, "forbidden while a stream of the context captures a graph, which is invalid now");
    return rc;
}

/*
 * cuStreamIsCapturing: for the legacy stream it returns IMPLICIT, and the capture of the blocking stream stays valid.
 */
CUresult si_capture_legacy_locked(CUcontext ctx, const char *function)
{
    CUresult rc = CUDA_SUCCESS;

    for (unsigned i = 1; i < SI_ACTORS; i++) {
        const struct CUstream_st *s = si_stream_at_locked(i);

        if (s == NULL || s->ctx != ctx || !s->blocking || s->capture == NULL)
            continue;
        rc = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        if (function != NULL)
            s->capture->invalidated = true;
    }
    if (rc != CUDA_SUCCESS && function != NULL)
        tell(function, "the legacy stream would wait for a stream that captures a graph, which is invalid now");
    return rc;
}

CUresult si_capture_state_locked(const struct CUstream_st *s)
{
    return s->capture != NULL && s->capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

/* Each makes one call that a capture forbids, on the stream that captures. */
static void plant_alloc(CUstream s)
{
    CUdeviceptr p;

    (void)s;
    if (cuMemAlloc(&p, 4) == CUDA_SUCCESS)
        (void)cuMemFree(p);
}

static void plant_free(CUstream s)
{
    (void)s;
    (void)cuMemFree(0);
}

static void plant_host_alloc(CUstream s)
{
    void *p;

    (void)s;
    if (cuMemHostAlloc(&p, 4, 0) == CUDA_SUCCESS)
        (void)cuMemFreeHost(p);
}

static void plant_copy(CUstream s)
{
    char x;

    (void)s;
    (void)cuMemcpyHtoD(0, &x, 0);
}

static void plant_load(CUstream s)
{
    (void)s;
    (void)cuFuncLoad((CUfunction)(uintptr_t)s);
}

static void ask_event(CUstream s, CUresult (*ask)(CUevent e))
{
    CUevent e;

    if (cuEventCreate(&e, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return;
    (void)cuEventRecord(e, s);
    (void)ask(e);
    (void)cuEventDestroy(e);
}

static void plant_event_query(CUstream s)
{
    ask_event(s, cuEventQuery);
}

static void plant_event_synchronize(CUstream s)
{
    ask_event(s, cuEventSynchronize);
}

static void plant_stream_query(CUstream s)
{
    (void)cuStreamQuery(s);
}

static void plant_stream_synchronize(CUstream s)
{
    (void)cuStreamSynchronize(s);
}

static void plant_context_synchronize(CUstream s)
{
    (void)s;
    (void)cuCtxSynchronize();
}

void si_capture_plant(CUstream stream)
{
    static const struct {
        const char *function;
        void (*call)(CUstream s);
    } plants[] = {
        {"cuMemAlloc", plant_alloc},
        {"cuMemFree", plant_free},
        {"cuMemHostAlloc", plant_host_alloc},
        {"cuMemcpyHtoD", plant_copy},
        {"cuFuncLoad", plant_load},
        {"cuEventQuery", plant_event_query},
        {"cuEventSynchronize", plant_event_synchronize},
        {"cuStreamQuery", plant_stream_query},
        {"cuStreamSynchronize", plant_stream_synchronize},
        {"cuCtxSynchronize", plant_context_synchronize},
    };
    const char *function;
    struct CUstream_st *s;
    bool is_captured;

    si_lock();
    is_captured =
        stream != NULL && si_stream_locked(stream, "cuLaunchKernel", &s) == CUDA_SUCCESS && s->capture != NULL;
    si_unlock();
    function = is_captured ? si_unsafe_call() : NULL;
    for (size_t i = 0; function != NULL && i < sizeof plants / sizeof plants[0]; i++)
        if (strcmp(function, plants[i].function) == 0)
            plants[i].call(stream);
}

/* ---------------------------------------------------------------------------------------------- what is captured -- */

static struct si_node *add_node(struct CUstream_st *s, enum si_node_kind kind, size_t n_ranges)
{
    struct si_node *node = calloc(1, sizeof *node + n_ranges * sizeof node->range[0]);

    if (node == NULL) {
        si_fault("out of memory for a graph");
        return NULL;
    }
    node->kind = kind;
    node->lane = s->lane;
    *s->capture->tail = node;
    s->capture->tail = &node->next;
    return node;
}

void si_capture_push_locked(struct CUstream_st *s, struct si_op *op, const struct standin_ranges *r)
{
    struct si_node *node = add_node(s, SI_NODE_OPERATION, r != NULL ? r->n : 0);

    op->stream = s;
    if (node == NULL)
        return;
    node->op = op;
    node->n_ranges = r != NULL ? r->n : 0;
    for (size_t i = 0; i < node->n_ranges; i++)
        node->range[i] = r->range[i];
    s->n_captured++;
}

void si_capture_record_locked(struct CUstream_st *s, CUevent e)
{
    struct si_node *node = add_node(s, SI_NODE_RECORD, 0);

    e->captured = s->capture->number;
    e->captured_on = s;
    e->captured_at = s->n_captured;
    e->captured_point = s->capture->graph.n_points++;
    if (node != NULL)
        node->point = e->captured_point;
}

static void enter_capture(struct CUstream_st *s, struct si_capture *c)
{
    s->capture = c;
    s->n_captured = s->n_joined = 0;
    s->lane = c->graph.n_lanes++;
}

CUresult si_capture_wait_locked(struct CUstream_st *s, CUevent e)
{
    struct si_capture *c = e->captured != 0 ? capture_find(e->captured) : NULL;
    struct si_node *node;

    if (e->captured == 0) { /* a dependency on work outside */
        if (e->stop == NULL)
            return CUDA_SUCCESS;
        tell("cuStreamWaitEvent",
             "a stream that captures cannot wait for work outside of the graph, which is invalid now");
        return invalidate(s->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    if (c == NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (s->capture != NULL && s->capture != c) {
        s->capture->invalidated = true;
        tell("cuStreamWaitEvent", "it would merge two captures, which are invalid now");
        return invalidate(c, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (si_skip_captured_wait())
        return CUDA_SUCCESS;
    if (s->legacy)
        return invalidate(c, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (s->capture == NULL)
        enter_capture(s, c);
    node = add_node(s, SI_NODE_WAIT, 0);
    if (node != NULL)
        node->point = e->captured_point;
    if (e->captured_on->capture == c && e->captured_at > e->captured_on->n_joined)
        e->captured_on->n_joined = e->captured_at;
    s->n_captured++;
    return si_capture_state_locked(s);
}

/* What a graph keeps is an operation that does nothing. */
struct kept {
    void (*drop)(void *data);
    void *data;
};

static void run_kept(struct si_op *op)
{
    (void)op;
}

static void drop_kept(struct si_op *op)
{
    const struct kept *k = op->data;

    k->drop(k->data);
}

STANDIN_API void standin_graph_keeps(CUstream s, void (*drop)(void *data), void *data)
{
    struct si_op *op = si_op_create("kept by a graph", run_kept, sizeof(struct kept));

    if (op == NULL) {
        si_fault("out of memory for a graph");
        return;
    }
    *(struct kept *)op->data = (struct kept){drop, data};
    op->drop = drop_kept;
    si_lock();
    si_capture_push_locked(s, op, NULL);
    si_unlock();
}

STANDIN_API void standin_graph_joins(CUstream s)
{
    si_lock();
    s->n_joined = s->n_captured;
    si_unlock();
}

/* ------------------------------------------------------------------------------------------ the driver's functions */

SI_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUresult rc = si_enter("cuThreadExchangeStreamCaptureMode");
    CUstreamCaptureMode was = si_thread.capture_mode;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (!si_settings.never_relaxed)
        si_thread.capture_mode = *mode;
    *mode = was;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuStreamBeginCapture(CUstream hStream, CUstreamCaptureMode mode)
{
    CUresult rc = si_enter("cuStreamBeginCapture");
    struct si_capture *c;
    struct CUstream_st *s;

    if (rc != CUDA_SUCCESS)
        return rc;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (hStream == NULL || hStream == CU_STREAM_LEGACY)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    si_lock();
    rc = si_stream_locked(hStream, "cuStreamBeginCapture", &s);
    if (rc == CUDA_SUCCESS && s->capture != NULL)
        rc = CUDA_ERROR_ILLEGAL_STATE;
    if (rc == CUDA_SUCCESS) {
        *c = (struct si_capture){.next = captures,
                                 .number = ++n_captures,
                                 .mode = mode,
                                 .thread = &si_thread,
                                 .origin = s,
                                 .graph.ctx = s->ctx,
                                 .tail = &c->graph.first};
        captures = c;
        enter_capture(s, c);
        c = NULL;
    }
    si_unlock();
    free(c);
    return rc;
}

/* All streams leave it. True: every one but the first was waited for by another, up to its last operation. */
static bool capture_leave(struct si_capture *c)
{
    struct si_capture **at = &captures;
    bool joined = true;

    for (unsigned i = 1; i < SI_ACTORS; i++) {
        struct CUstream_st *s = si_stream_at_locked(i);

        if (s == NULL || s->capture != c)
            continue;
        joined = joined && (s == c->origin || s->n_joined == s->n_captured);
        s->capture = NULL;
    }
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    return joined;
}

SI_EXPORT CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    CUresult rc = si_enter("cuStreamEndCapture");
    struct si_capture *c = NULL;
    struct CUstream_st *s;

    if (rc != CUDA_SUCCESS)
        return rc;
    *phGraph = NULL;
    si_lock();
    rc = si_stream_locked(hStream, "cuStreamEndCapture", &s);
    if (rc == CUDA_SUCCESS && (s->capture == NULL || s->capture->origin != s))
        rc = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (rc == CUDA_SUCCESS && s->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && s->capture->thread != &si_thread)
        rc = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (rc == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED || rc == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        tell("cuStreamEndCapture", "no capture began on this stream, or another thread must end it");
    if (rc == CUDA_SUCCESS) {
        c = s->capture;
        rc = !capture_leave(c) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_SUCCESS;
        if (c->invalidated)
            rc = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (rc == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
            tell("cuStreamEndCapture", "a stream of the capture was not joined");
    }
    si_unlock();
    if (c == NULL)
        return rc;
    if (rc == CUDA_SUCCESS)
        *phGraph = si_graph_create(&c->graph);
    if (rc == CUDA_SUCCESS && *phGraph == NULL)
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    if (rc != CUDA_SUCCESS)
        si_nodes_destroy(c->graph.first);
    free(c);
    return rc;
}

SI_EXPORT CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
    CUresult rc = si_enter("cuStreamIsCapturing");
    struct CUstream_st *s;

    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    if (hStream == NULL || hStream == CU_STREAM_LEGACY)
        rc = si_capture_legacy_locked(si_current(), NULL);
    if (rc == CUDA_SUCCESS)
        rc = si_stream_locked(hStream, "cuStreamIsCapturing", &s);
    if (rc == CUDA_SUCCESS)
        *captureStatus = s->capture == NULL        ? CU_STREAM_CAPTURE_STATUS_NONE
                         : s->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    si_unlock();
    return rc;
}

/* Returns the id of the capture; "unique over the lifetime of the process" (CUDA Driver API, Stream Management). */
CUresult si_stream_capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    CUresult rc = cuStreamIsCapturing(stream, status);

    if (rc != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE || id == NULL)
        return rc;
    si_lock();
    if (stream->capture != NULL)
        *id = stream->capture->number;
    si_unlock();
    return rc;
}
