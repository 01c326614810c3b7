/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's stream captures, words that a stream writes, permanent faults, and the context that one call holds. */
#include "hygiene.h"
#include "pair.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

CDI_SUITE(capture);

#define N 64

/* An event that was recorded outside of any capture, and reached. */
static CUevent plain_event(const struct pair *p)
{
    CUevent e = device_event();

    CU(cuEventRecord(e, p->b));
    CU(cuStreamSynchronize(p->b));
    return e;
}

/* The result of a call in another thread; mode: of that thread. */
struct other {
    const struct pair *p;
    CUstreamCaptureMode mode;
    CUevent event;
    CUresult rc;
};

static void *query_there(void *arg)
{
    struct other *o = arg;
    CUstreamCaptureMode mode = o->mode;

    CU(cuCtxSetCurrent(o->p->device.ctx));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    cr_assert_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL, "every thread begins so");
    o->rc = cuEventQuery(o->event);
    return NULL;
}

/* Captures in `capture` mode, while a thread in `thread` mode queries an event. Returns how the capture ends. */
static CUresult capture_beside_a_query(CUstreamCaptureMode capture, CUstreamCaptureMode thread)
{
    struct pair p;
    struct other o = {.p = &p, .mode = thread};
    pthread_t id;
    CUgraph graph;
    CUresult rc;

    pair_open(&p, N);
    o.event = plain_event(&p);
    CU(cuStreamBeginCapture(p.a, capture));
    device_axpy(&p.device, 1, p.x, p.y, N, p.a);
    cr_assert_eq(pthread_create(&id, NULL, query_there, &o), 0);
    cr_assert_eq(pthread_join(id, NULL), 0);
    rc = cuStreamEndCapture(p.a, &graph);
    cr_assert_eq(o.rc, rc == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (rc == CUDA_SUCCESS)
        CU(cuGraphDestroy(graph));
    cr_assert_eq(first(p.y), 2, "the captured work did not run");
    CU(cuEventDestroy(o.event));
    pair_close(&p);
    return rc;
}

Test(capture, query_in_any_thread_ends_global_capture)
{
    cr_assert_eq(capture_beside_a_query(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL),
                 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

Test(capture, a_thread_of_another_mode_may_query)
{
    cr_assert_eq(capture_beside_a_query(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                 CUDA_SUCCESS);
    cr_assert_eq(capture_beside_a_query(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    cr_assert_eq(capture_beside_a_query(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL),
                 CUDA_SUCCESS);
    cr_assert_eq(capture_beside_a_query(CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
}

Test(capture, times_of_events_are_forbidden_as_queries_are)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUevent begin, end;
    struct pair p;
    CUgraph graph;
    float ms;

    pair_open(&p, N);
    CU(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    CU(cuEventCreate(&end, CU_EVENT_DEFAULT));
    CU(cuEventRecord(begin, p.a));
    CU(cuEventRecord(end, p.a));
    CU(cuEventSynchronize(end));
    CU(cuStreamBeginCapture(p.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuEventElapsedTime(&ms, begin, end));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    cr_assert_eq(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(cuStreamEndCapture(p.a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CU(cuStreamBeginCapture(p.a, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuEventRecord(end, p.a));
    cr_assert_eq(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_CAPTURED_EVENT);
    cr_assert_eq(cuStreamEndCapture(p.a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CU(cuEventDestroy(begin));
    CU(cuEventDestroy(end));
    pair_close(&p);
}

Test(capture, the_capturing_thread_may_not_allocate_unless_relaxed)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct pair p;
    CUdeviceptr memory;
    CUgraph graph;

    pair_open(&p, N);
    CU(cuStreamBeginCapture(p.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuMemAlloc(&memory, 4));
    CU(cuMemFree(memory));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuStreamEndCapture(p.a, &graph));
    CU(cuGraphDestroy(graph));
    CU(cuStreamBeginCapture(p.a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    cr_assert_eq(cuMemAlloc(&memory, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(cuMemsetD8Async(p.x, 0, 4, p.a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    cr_assert_eq(cuStreamEndCapture(p.a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    cr_assert_null(graph);
    pair_close(&p);
}

Test(capture, relaxed_thread_cannot_query_captured_work)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct pair p;
    CUgraph graph;

    pair_open(&p, N);
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuStreamBeginCapture(p.a, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuEventRecord(p.event, p.a));
    cr_assert_eq(cuEventQuery(p.event), CUDA_ERROR_CAPTURED_EVENT);
    cr_assert_eq(cuStreamEndCapture(p.a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    cr_assert_eq(cuEventQuery(p.event), CUDA_ERROR_CAPTURED_EVENT, "for ever");
    CU(cuStreamBeginCapture(p.a, CU_STREAM_CAPTURE_MODE_RELAXED));
    cr_assert_eq(cuStreamQuery(p.a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    cr_assert_eq(cuStreamEndCapture(p.a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    pair_close(&p);
}

/* What a forbidden call needs. */
struct forbidden {
    struct pair p;
    CUstream capturing;
    CUevent captured, plain, begin;
    CUdeviceptr memory;
    void *pinned;
    CUlibrary library;
};

#define CALL(name, expression)                       \
    static CUresult call_##name(struct forbidden *f) \
    {                                                \
        return expression;                           \
    }
CALL(alloc, cuMemAlloc(&f->memory, 4))
CALL(managed, cuMemAllocManaged(&f->memory, 4, CU_MEM_ATTACH_GLOBAL))
CALL(free, cuMemFree(f->memory))
CALL(host_alloc, cuMemHostAlloc(&f->pinned, 4, 0))
CALL(host_free, cuMemFreeHost(f->pinned))
CALL(copy_to, cuMemcpyHtoD(f->p.x, &f->memory, 4))
CALL(copy_from, cuMemcpyDtoH(&f->memory, f->p.x, 4))
CALL(load, cuLibraryLoadData(&f->library, "standin", NULL, NULL, 0, NULL, NULL, 0))
CALL(func_load, cuFuncLoad((CUfunction)f->p.device.axpy))
CALL(plain_query, cuEventQuery(f->plain))
CALL(plain_synchronize, cuEventSynchronize(f->plain))
CALL(other_query, cuStreamQuery(f->p.b))
CALL(other_synchronize, cuStreamSynchronize(f->p.b))
CALL(stream_query, cuStreamQuery(f->capturing))
CALL(stream_synchronize, cuStreamSynchronize(f->capturing))
CALL(context, f != NULL ? cuCtxSynchronize() : CUDA_ERROR_INVALID_VALUE)
CALL(event_query, cuEventQuery(f->captured))
CALL(event_synchronize, cuEventSynchronize(f->captured))
CALL(outside, cuStreamWaitEvent(f->capturing, f->plain, 0))
CALL(pageable_to, cuMemcpyHtoDAsync(f->p.x, &f->memory, 4, f->capturing))
CALL(pageable_from, cuMemcpyDtoHAsync(&f->memory, f->p.x, 4, f->capturing))
CALL(legacy_record, cuEventRecord(f->p.event, NULL))
CALL(legacy_copy, cuMemcpyHtoDAsync(f->p.x, &f->memory, 4, CU_STREAM_LEGACY))

/* A call that captures forbid, its error, and whether a thread in RELAXED mode may make it all the same. */
static const struct {
    const char *function;
    CUresult (*call)(struct forbidden *f);
    CUresult error;
    bool relaxed;
} forbidden[] = {
    {"cuMemAlloc", call_alloc, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuMemFree", call_free, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuMemAllocManaged", call_managed, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuMemFree", call_free, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuMemHostAlloc", call_host_alloc, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuMemFreeHost", call_host_free, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuLibraryLoadData", call_load, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuFuncLoad", call_func_load, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuEventQuery", call_plain_query, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuEventSynchronize", call_plain_synchronize, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuStreamQuery", call_other_query, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuStreamSynchronize", call_other_synchronize, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, true},
    {"cuMemcpyHtoD", call_copy_to, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, false}, /* on the legacy stream */
    {"cuMemcpyDtoH", call_copy_from, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, false},
    {"cuStreamQuery", call_stream_query, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, false},
    {"cuStreamSynchronize", call_stream_synchronize, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, false},
    {"cuCtxSynchronize", call_context, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, false},
    {"cuEventQuery", call_event_query, CUDA_ERROR_CAPTURED_EVENT, false},
    {"cuEventSynchronize", call_event_synchronize, CUDA_ERROR_CAPTURED_EVENT, false},
    {"cuStreamWaitEvent", call_outside, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, false},
    {"cuMemcpyHtoDAsync", call_pageable_to, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, false},
    {"cuMemcpyDtoHAsync", call_pageable_from, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, false},
    {"cuEventRecord", call_legacy_record, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, false},
    {"cuMemcpyHtoDAsync", call_legacy_copy, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, false},
};
#define N_FORBIDDEN (sizeof forbidden / sizeof forbidden[0])

/* Makes call i in a capture on a blocking stream. Returns the error of the call; it is a fault that names the call. */
static CUresult call_in_capture(struct forbidden *f, size_t i, CUstreamCaptureMode mode, CUstreamCaptureMode thread)
{
    unsigned faults = standin_faults();
    CUgraph graph;
    CUresult rc, end;

    CU(cuThreadExchangeStreamCaptureMode(&thread));
    CU(cuStreamBeginCapture(f->capturing, mode));
    CU(cuEventRecord(f->captured, f->capturing));
    rc = forbidden[i].call(f);
    end = cuStreamEndCapture(f->capturing, &graph);
    CU(cuThreadExchangeStreamCaptureMode(&thread));
    cr_assert_eq(end, rc == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "%s",
                 forbidden[i].function);
    cr_assert_eq(standin_faults(), faults + (rc != CUDA_SUCCESS), "%s", forbidden[i].function);
    if (rc == CUDA_SUCCESS)
        CU(cuGraphDestroy(graph));
    else
        cr_assert_not_null(strstr(standin_last_fault(), forbidden[i].function), "%s", standin_last_fault());
    return rc;
}

Test(capture, each_forbidden_call_is_reported_and_ends_the_capture)
{
    static struct forbidden f;

    cr_assert_eq(setenv("CDDP_STANDIN_CAPTURE", "fault", 1), 0);
    standin_configure();
    pair_open(&f.p, N);
    CU(cuStreamCreateWithPriority(&f.capturing, CU_STREAM_DEFAULT, 0));
    f.captured = device_event();
    f.plain = plain_event(&f.p);
    CU(cuCtxSynchronize()); /* a query that is allowed then succeeds */
    for (size_t i = 0; i < N_FORBIDDEN; i++) {
        CUresult unsafe = forbidden[i].relaxed ? CUDA_SUCCESS : forbidden[i].error, rc;

        rc = call_in_capture(&f, i, CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
        cr_assert(rc == forbidden[i].error || (rc == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), "%s: %d",
                  forbidden[i].function, (int)rc);
        rc = call_in_capture(&f, i, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
        cr_assert_neq(rc, CUDA_SUCCESS, "%s", forbidden[i].function);
        rc = call_in_capture(&f, i, CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED);
        cr_assert_eq(rc, unsafe, "%s: %d", forbidden[i].function, (int)rc);
        if (strcmp(forbidden[i].function, "cuLibraryLoadData") == 0)
            CU(cuLibraryUnload(f.library));
        if (forbidden[i].relaxed && strstr(forbidden[i].function, "Alloc") != NULL)
            continue; /* the next one releases what it has allocated */
        if (strstr(forbidden[i].function, "Free") != NULL)
            f.memory = 0, f.pinned = NULL;
    }
    CU(cuEventDestroy(f.captured));
    CU(cuEventDestroy(f.plain));
    CU(cuStreamDestroy(f.capturing));
    pair_close(&f.p);
}

static CUstreamCaptureStatus status_of(CUstream s)
{
    CUstreamCaptureStatus status;

    CU(cuStreamIsCapturing(s, &status));
    return status;
}

Test(capture, rejects_dependency_on_outside_work)
{
    struct pair p;
    CUstream blocking;
    CUgraph graph;
    CUstreamCaptureStatus status;

    pair_open(&p, N);
    CU(cuEventRecord(p.event, p.b));
    CU(cuStreamBeginCapture(p.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    cr_assert_eq(cuStreamWaitEvent(p.a, p.event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    cr_assert_eq(cuStreamEndCapture(p.a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CU(cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0));
    CU(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
    cr_assert_eq(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    cr_assert_eq(status_of(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE, "asking does no harm");
    cr_assert_eq(cuEventRecord(p.event, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    cr_assert_eq(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    cr_assert_eq(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CU(cuStreamDestroy(blocking));
    pair_close(&p);
}

/* ---------------------------------------------------------------------------------------------------------- words --
 */

Test(capture, written_word_publishes_earlier_work)
{
    struct pair p;
    void *pinned;
    _Atomic uint32_t *word;
    float *y;

    pair_open(&p, N);
    CU(cuMemHostAlloc(&pinned, 4096, 0));
    y = pinned;
    word = (_Atomic uint32_t *)(void *)((char *)pinned + 2048);
    atomic_store(word, 0);
    for (uint32_t i = 1; i <= 20; i++) {
        device_axpy(&p.device, 1, p.x, p.y, N, p.a);
        CU(cuMemcpyDtoHAsync(y, p.y, N * sizeof *y, p.a));
        CU(cuStreamWriteValue32(p.a, (CUdeviceptr)(uintptr_t)word, i, 0));
        while (atomic_load_explicit(word, memory_order_acquire) != i) {
        }
        cr_assert_eq(y[N - 1], 2 + (float)i);
    }
    cr_assert_eq(cuStreamWriteValue32(p.a, (CUdeviceptr)(uintptr_t)word + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cuStreamWriteValue32(p.a, (CUdeviceptr)(uintptr_t)&p, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CU(cuMemFreeHost(pinned));
    cr_assert_eq(standin_faults(), 0);
    pair_close(&p);
}

/* --------------------------------------------------------------------------------------------------------- faults --
 */

Test(capture, device_fault_is_permanent)
{
    static struct pair p; /* nothing of it can be destroyed afterwards */
    CUdeviceptr memory;
    CUcontext ctx;
    CUresult rc;

    cr_assert_eq(setenv("CDDP_STANDIN_FAIL", "kernel:2:700", 1), 0);
    standin_configure();
    pair_open(&p, N);
    device_axpy(&p.device, 1, p.x, p.y, N, p.a);
    CU(cuStreamSynchronize(p.a));
    device_axpy(&p.device, 1, p.x, p.y, N, p.a);
    CU(cuEventRecord(p.event, p.a));
    do
        rc = cuEventQuery(p.event);
    while (rc == CUDA_ERROR_NOT_READY);
    cr_assert_eq(rc, CUDA_ERROR_ILLEGAL_ADDRESS, "%d", (int)rc);
    cr_assert_eq(cuStreamSynchronize(p.b), CUDA_ERROR_ILLEGAL_ADDRESS);
    cr_assert_eq(cuMemAlloc(&memory, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
    CU(cuCtxPopCurrent(&ctx));
    CU(cuCtxPushCurrent(ctx));
}

/* ------------------------------------------------------------------------------------------- who holds the context --
 */

struct held {
    struct pair p;
    CUdeviceptr memory;
    atomic_int in_stream, let_go, asked, seen;
};

static void wait_in_stream(void *arg)
{
    struct held *h = arg;

    atomic_store(&h->in_stream, 1);
    while (atomic_load(&h->let_go) == 0) {
    }
}

static void *free_there(void *arg)
{
    struct held *h = arg;

    CU(cuCtxSetCurrent(h->p.device.ctx));
    CU(cuMemFree(h->memory));
    return NULL;
}

static void *ask_there(void *arg)
{
    struct held *h = arg;

    while (atomic_load(&h->asked) == 0) {
    }
    CU(cuCtxSetCurrent(h->p.device.ctx));
    atomic_store(&h->seen, 1 + atomic_load(&h->let_go));
    return NULL;
}

Test(capture, no_memory_node_passes_for_an_allocation)
{
    struct pair p;
    CUdeviceptr fresh = 0, before;
    CUgraph graph;

    pair_open(&p, N);
    CU(cuMemAllocAsync(&before, 4, p.a));
    CU(cuStreamBeginCapture(p.a, CU_STREAM_CAPTURE_MODE_RELAXED));
    cr_assert_eq(cuMemAllocAsync(&fresh, 4, p.a), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(cuMemFreeAsync(before, p.a), CUDA_ERROR_NOT_SUPPORTED);
    CU(cuStreamEndCapture(p.a, &graph));
    CU(cuGraphDestroy(graph));
    CU(cuMemFreeAsync(before, p.a));
    pair_close(&p);
}

Test(capture, waiting_call_may_block_all_others)
{
    const struct timespec moment = {.tv_nsec = 30000000};
    struct held h = {.asked = 0};
    pthread_t frees, asks;

    cr_assert_eq(setenv("CDDP_STANDIN_CONTEXT_LOCK", "1", 1), 0);
    standin_configure();
    pair_open(&h.p, N);
    CU(cuMemAlloc(&h.memory, 4));
    CU(cuLaunchHostFunc(h.p.a, wait_in_stream, &h));
    while (atomic_load(&h.in_stream) == 0) {
    }
    cr_assert_eq(pthread_create(&asks, NULL, ask_there, &h), 0);
    cr_assert_eq(pthread_create(&frees, NULL, free_there, &h), 0);
    while (!standin_context_held()) {
    }
    atomic_store(&h.asked, 1);
    (void)nanosleep(&moment, NULL); /* so that it passes where it must not */
    atomic_store(&h.let_go, 1);
    cr_assert_eq(pthread_join(frees, NULL), 0);
    cr_assert_eq(pthread_join(asks, NULL), 0);
    cr_assert_eq(atomic_load(&h.seen), 2, "a call returned while another one held the context");
    pair_close(&h.p);
}
