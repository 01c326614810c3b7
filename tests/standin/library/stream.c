/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events. A stream is a thread with a queue; an operation waits a random time, then runs. Clocks change
 * when an operation is pushed, in the order of the program's calls, so that they do not depend on timing.
 */
#include "stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MAGIC_EVENT 0x5e4e7001u

_Thread_local struct si_thread si_thread;
unsigned si_n_communicators;

static struct CUstream_st *streams[SI_ACTORS]; /* [SI_HOST] is always empty */
static uint64_t slot_time[SI_ACTORS];          /* where the last user of the slot ended */
static unsigned last_slot, n_events;
static uint64_t n_operations;
static struct si_clock host;
static pthread_key_t seen_key;

__attribute__((constructor)) static void prepare(void)
{
    (void)pthread_key_create(&seen_key, free);
}

static int64_t stream_now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* --------------------------------------------------------------------------------------- what is known to be done --
 */

void si_seen_locked(struct si_clock *out)
{
    si_copy(out, &host, sizeof host);
    if (si_thread.seen != NULL)
        si_clock_join(out, si_thread.seen);
}

/* The calling thread has learned that all this is done: by a query, or by waiting for it. */
static void learn_locked(const struct si_clock *c, bool by_query)
{
    if (!by_query) {
        si_clock_join(&host, c);
    } else {
        if (si_thread.seen == NULL) {
            si_thread.seen = calloc(1, sizeof *si_thread.seen);
            (void)pthread_setspecific(seen_key, si_thread.seen);
        }
        if (si_thread.seen != NULL)
            si_clock_join(si_thread.seen, c);
    }
}

/* ----------------------------------------------------------------------------------------------------- operations --
 */

struct si_op *si_op_create(const char *name, void (*run)(struct si_op *op), size_t data)
{
    struct si_op *op = calloc(1, sizeof *op + data);

    if (op == NULL)
        return NULL;
    op->name = name;
    op->run = run;
    op->data = data > 0 ? op + 1 : NULL;
    return op;
}

void si_op_destroy(struct si_op *op)
{
    if (op != NULL && op->drop != NULL)
        op->drop(op);
    free(op);
}

void si_range_add(struct standin_ranges *r, const void *at, size_t bytes, bool write)
{
    if (bytes == 0)
        return;
    if (r->n == SI_RANGES)
        r->full = true;
    else
        r->range[r->n++] = (struct si_range){.at = at, .bytes = bytes, .write = write};
}

void standin_reads(struct standin_ranges *r, const void *at, size_t bytes)
{
    si_range_add(r, at, bytes, false);
}

void standin_writes(struct standin_ranges *r, const void *at, size_t bytes)
{
    si_range_add(r, at, bytes, true);
}

static void use_memory(struct CUstream_st *s, const struct si_op *op, const struct si_range *range)
{
    struct si_alloc *a = si_find_locked(range->at, range->bytes);
    struct si_access use = {.write = range->write, .actor = s->slot, .name = op->name, .operation = op->number}, with;

    if (a == NULL) {
        si_fault("'%s' (operation %llu, stream %u) %s %zu bytes at %p, which are not within one piece of memory that "
                 "a device can use",
                 op->name, (unsigned long long)op->number, s->slot, range->write ? "writes" : "reads", range->bytes,
                 (const void *)range->at);
        return;
    }
    use.begin = (size_t)((const char *)standin_host(range->at) - a->host);
    use.end = use.begin + range->bytes;
    use.time = s->clock.t[s->slot];
    if (si_history_add(&a->history, &use, &s->clock, &with))
        si_fault("unordered access: '%s' (operation %llu, stream %u) %s bytes %zu to %zu of memory %llu, which '%s' "
                 "(operation %llu, stream %u) %s: no event makes one wait for the other",
                 op->name, (unsigned long long)op->number, s->slot, use.write ? "writes" : "reads", use.begin, use.end,
                 (unsigned long long)a->number, with.name, (unsigned long long)with.operation, with.actor,
                 with.write ? "writes" : "reads");
}

/* The plain push: queue and clock of this stream alone. */
static void stream_append(struct CUstream_st *s, struct si_op *op)
{
    op->stream = s;
    op->number = ++n_operations;
    op->next = NULL;
    s->clock.t[s->slot]++;
    *s->tail = op;
    s->tail = &op->next;
    si_edge_from(op);
    (void)__atomic_add_fetch(&s->pushed, 1, __ATOMIC_RELEASE);
    si_futex_wake(&s->pushed, false);
}

static uint64_t delay_ns(struct CUstream_st *s)
{
    if (!si_settings.device_delay)
        return 0;
    return si_random(&s->random, si_random(&s->random, 8) == 0 ? 500000 : 40000);
}

static void stream_wait_in(struct CUstream_st *s, struct si_stop *stop);

/* CUDA's legacy stream and the blocking ones wait for each other. */
static void wait_for_legacy(struct CUstream_st *s)
{
    struct si_stop *stop;

    for (unsigned i = 1; i < SI_ACTORS; i++) {
        struct CUstream_st *other = streams[i];

        if (other == NULL || other == s || other->ctx != s->ctx)
            continue;
        if (!(s->legacy ? other->blocking : s->blocking && other->legacy))
            continue;
        si_clock_join(&s->clock, &other->clock);
        stop = other->done != other->pushed ? si_stop_create_locked(other) : NULL;
        if (stop == NULL)
            continue;
        stream_wait_in(s, stop);
        si_stop_release_locked(stop);
    }
}

void si_push_for_locked(struct CUstream_st *s, struct si_op *op, const struct standin_ranges *r,
                        const struct si_clock *seen)
{
    if (s->capture != NULL) {
        si_capture_push_locked(s, op, r);
        return;
    }
    si_clock_join(&s->clock, seen);
    wait_for_legacy(s);
    op->delay_ns = delay_ns(s);
    stream_append(s, op);
    for (size_t i = 0; r != NULL && i < r->n; i++)
        use_memory(s, op, &r->range[i]);
    if (r != NULL && r->full)
        si_fault("'%s' uses more than %d ranges of memory: they cannot be checked", op->name, SI_RANGES);
}

void si_push_locked(struct CUstream_st *s, struct si_op *op, const struct standin_ranges *r)
{
    struct si_clock seen;

    si_seen_locked(&seen);
    si_push_for_locked(s, op, r, &seen);
}

/* ---------------------------------------------------------------------------------------------------------- stops --
 */

static void run_record(struct si_op *op)
{
    struct si_stop *stop = *(struct si_stop **)op->data;

    stop->time_ns = stream_now_ns();
    si_edge_from(stop);
    __atomic_store_n(&stop->passed, 1, __ATOMIC_RELEASE);
    si_futex_wake(&stop->passed, false);
}

static void run_wait(struct si_op *op)
{
    si_stop_wait(*(struct si_stop **)op->data);
}

static void drop_stop(struct si_op *op)
{
    si_lock();
    si_stop_release_locked(*(struct si_stop **)op->data);
    si_unlock();
}

static struct si_op *stop_op(const char *name, void (*run)(struct si_op *op), struct si_stop *stop)
{
    struct si_op *op = si_op_create(name, run, sizeof(struct si_stop *));

    if (op == NULL)
        return NULL;
    *(struct si_stop **)op->data = stop;
    op->drop = drop_stop;
    op->always = run == run_record;
    stop->refs++;
    return op;
}

struct si_stop *si_stop_create_locked(struct CUstream_st *s)
{
    struct si_stop *stop = calloc(1, sizeof *stop);
    struct si_op *op = stop != NULL ? stop_op("record", run_record, stop) : NULL;

    if (op == NULL) {
        free(stop);
        return NULL;
    }
    stop->refs = 2;
    stream_append(s, op);
    si_copy(&stop->clock, &s->clock, sizeof stop->clock);
    return stop;
}

void si_stop_release_locked(struct si_stop *stop)
{
    if (stop != NULL && --stop->refs == 0)
        free(stop);
}

bool si_stop_passed(const struct si_stop *stop)
{
    return __atomic_load_n(&stop->passed, __ATOMIC_ACQUIRE) != 0;
}

void si_stop_wait(struct si_stop *stop)
{
    while (!si_stop_passed(stop))
        si_futex_wait(&stop->passed, 0, 0, false);
    si_edge_to(stop);
}

static void stream_wait_in(struct CUstream_st *s, struct si_stop *stop)
{
    struct si_op *op = stop_op("wait", run_wait, stop);

    if (op != NULL)
        stream_append(s, op);
}

void si_serialise_locked(struct CUstream_st *s, struct si_stop *stop)
{
    stream_wait_in(s, stop);
}

void si_order_locked(struct CUstream_st *s, struct si_stop *stop)
{
    si_clock_join(&s->clock, &stop->clock);
    stream_wait_in(s, stop);
}

void si_stop_reach(struct si_stop *stop)
{
    si_stop_wait(stop);
    si_lock();
    learn_locked(&stop->clock, false);
    si_stop_release_locked(stop);
    si_unlock();
}

static CUresult reach_all(CUcontext ctx, const struct CUstream_st *only)
{
    struct si_stop *stop[SI_ACTORS];
    size_t n = 0;
    CUresult rc = CUDA_SUCCESS;

    si_lock();
    for (unsigned i = 1; i < SI_ACTORS; i++) {
        struct CUstream_st *s = streams[i];

        if (s == NULL || (only != NULL ? s != only : s->ctx != ctx))
            continue;
        if (only != NULL || s->ending == false || s->done != s->pushed)
            stop[n] = si_stop_create_locked(s);
        else
            continue;
        if (stop[n] == NULL)
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        else
            n++;
    }
    si_unlock();
    for (size_t i = 0; i < n; i++)
        si_stop_reach(stop[i]);
    return rc == CUDA_SUCCESS && ctx != NULL ? si_context_fault(ctx) : rc;
}

CUresult si_synchronise(CUcontext ctx)
{
    return reach_all(ctx, NULL);
}

/* -------------------------------------------------------------------------------------------------------- streams --
 */

/* The next operation, or NULL when the stream has ended. Sleeps. */
static struct si_op *next_op(struct CUstream_st *s)
{
    for (;;) {
        struct si_op *op;
        uint32_t seen;

        si_lock();
        op = s->head;
        seen = s->pushed;
        if (op != NULL) {
            s->head = op->next;
            if (s->head == NULL)
                s->tail = &s->head;
        } else if (s->ending) {
            streams[s->slot] = NULL;
            slot_time[s->slot] = s->clock.t[s->slot];
            si_unlock();
            return NULL;
        }
        si_unlock();
        if (op != NULL)
            return op;
        si_futex_wait(&s->pushed, seen, 0, false);
    }
}

static void *stream_work(void *arg)
{
    struct CUstream_st *s = arg;
    struct si_op *op;

    while ((op = next_op(s)) != NULL) {
        struct timespec ts = {.tv_nsec = (long)op->delay_ns};

        if (op->delay_ns > 0)
            (void)nanosleep(&ts, NULL);
        si_edge_to(op);
        if (op->always || si_context_fault(s->ctx) == CUDA_SUCCESS)
            op->run(op);
        si_edge_from(s);
        si_lock();
        s->done++;
        if (s->n_waiting > 0)
            si_futex_wake(&s->done, false);
        si_unlock();
        si_op_destroy(op);
    }
    free(s);
    return NULL;
}

/* Slots are used in turn, so that one is not soon another stream's. */
static struct CUstream_st *create_locked(CUcontext ctx, bool legacy, bool blocking)
{
    struct CUstream_st *s = calloc(1, sizeof *s);
    unsigned slot = 0;

    for (unsigned i = 0; i < SI_ACTORS && slot == 0; i++) {
        unsigned at = (last_slot + 1 + i) % SI_ACTORS;

        if (at != SI_HOST && streams[at] == NULL)
            slot = at;
    }
    if (s == NULL || slot == 0) {
        free(s);
        return NULL;
    }
    s->ctx = ctx;
    s->legacy = legacy;
    s->blocking = blocking;
    s->slot = last_slot = slot;
    s->tail = &s->head;
    s->clock.t[slot] = slot_time[slot];
    s->random = si_seed(2, slot);
    if (!si_start_thread(stream_work, s)) {
        free(s);
        return NULL;
    }
    streams[slot] = s;
    return s;
}

static void end_locked(struct CUstream_st *s)
{
    s->ending = true;
    (void)__atomic_add_fetch(&s->pushed, 1, __ATOMIC_RELEASE);
    s->done++;
    si_futex_wake(&s->pushed, false);
}

struct CUstream_st *si_stream_hidden_locked(CUcontext ctx)
{
    struct CUstream_st *s = create_locked(ctx, false, false);

    if (s != NULL)
        s->hidden = true;
    return s;
}

void si_stream_end_locked(struct CUstream_st *s)
{
    for (unsigned i = 1; i < SI_ACTORS; i++)
        if (streams[i] == s && !s->ending) /* its context may have ended it */
            end_locked(s);
}

void si_stream_begin_locked(struct CUstream_st *s)
{
    struct si_clock seen;

    si_seen_locked(&seen);
    si_clock_join(&s->clock, &seen);
    wait_for_legacy(s);
}

void si_streams_end_locked(CUcontext ctx)
{
    for (unsigned i = 1; i < SI_ACTORS; i++)
        if (streams[i] != NULL && streams[i]->ctx == ctx && !streams[i]->ending)
            end_locked(streams[i]);
    ctx->legacy = NULL;
}

CUresult si_stream_locked(CUstream handle, const char *function, struct CUstream_st **out)
{
    CUcontext ctx = si_current();

    if (handle == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (handle == NULL || handle == CU_STREAM_LEGACY) {
        if (ctx == NULL)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (si_capture_legacy_locked(ctx, function) != CUDA_SUCCESS)
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        if (ctx->legacy == NULL)
            ctx->legacy = create_locked(ctx, true, false);
        *out = ctx->legacy;
        return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (unsigned i = 1; i < SI_ACTORS; i++) {
        if (streams[i] != handle || handle->ending || handle->hidden)
            continue;
        *out = handle;
        return CUDA_SUCCESS;
    }
    si_refused("%s: %p is not a stream, or has been destroyed", function, (void *)handle);
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult si_stream_here_locked(CUstream handle, const char *function, struct CUstream_st **out)
{
    CUcontext ctx = si_current();
    CUresult rc = ctx == NULL ? CUDA_ERROR_INVALID_CONTEXT : si_stream_locked(handle, function, out);

    if (rc == CUDA_SUCCESS && (*out)->ctx != ctx) {
        si_refused("%s: stream %u is of device %u, but the current context of device %u", function, (*out)->slot,
                   (*out)->ctx->device, ctx->device);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (rc == CUDA_SUCCESS)
        rc = si_capture_state_locked(*out);
    if (rc == CUDA_SUCCESS)
        si_room_locked(*out);
    return rc;
}

void si_room_locked(struct CUstream_st *s)
{
    while (s->capture == NULL && s->pushed - s->done >= si_settings.queue) {
        uint32_t seen = s->done;

        s->n_waiting++;
        si_unlock();
        si_futex_wait(&s->done, seen, 0, false);
        si_lock();
        s->n_waiting--;
    }
}

struct CUstream_st *si_stream_at_locked(unsigned slot)
{
    return streams[slot];
}

bool si_stream_captures_locked(const struct CUstream_st *s)
{
    return s->capture != NULL;
}

void si_op_fault(const struct si_op *op, CUresult code)
{
    __atomic_store_n(&op->stream->ctx->fault, (int32_t)code, __ATOMIC_RELEASE);
}

unsigned si_streams_locked(void)
{
    unsigned n = 0;

    for (unsigned i = 1; i < SI_ACTORS; i++)
        n += streams[i] != NULL && !streams[i]->legacy && !streams[i]->ending && !streams[i]->hidden;
    return n;
}

unsigned si_events_locked(void)
{
    return n_events;
}

SI_EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUresult rc = si_enter("cuCtxGetStreamPriorityRange");

    if (rc == CUDA_SUCCESS && si_current() == NULL)
        rc = CUDA_ERROR_INVALID_CONTEXT;
    if (rc != CUDA_SUCCESS)
        return rc;
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    CUresult rc = si_enter_alloc("cuStreamCreateWithPriority");
    CUcontext ctx = si_current();
    struct CUstream_st *s;

    (void)priority; /* one outside the range is clamped */
    if (rc != CUDA_SUCCESS)
        return rc;
    if (ctx == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (phStream == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    si_lock();
    s = create_locked(ctx, false, (flags & CU_STREAM_NON_BLOCKING) == 0);
    si_unlock();
    if (s == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *phStream = s;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuStreamDestroy(CUstream hStream)
{
    CUresult rc = si_enter("cuStreamDestroy");
    struct CUstream_st *s;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (hStream == NULL || hStream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_HANDLE;
    si_lock();
    rc = si_stream_locked(hStream, "cuStreamDestroy", &s);
    if (rc == CUDA_SUCCESS)
        end_locked(s);
    si_unlock();
    return rc;
}

SI_EXPORT CUresult cuStreamQuery(CUstream hStream)
{
    CUresult rc = si_enter("cuStreamQuery");
    struct CUstream_st *s;
    bool idle = false;

    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuStreamQuery");
    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    rc = si_stream_locked(hStream, "cuStreamQuery", &s);
    if (rc == CUDA_SUCCESS)
        rc = si_capture_asked_stream_locked(s, "cuStreamQuery");
    if (rc == CUDA_SUCCESS) {
        idle = s->done == s->pushed;
        if (idle) {
            learn_locked(&s->clock, true);
            si_edge_to(s);
        }
    }
    si_unlock();
    return rc != CUDA_SUCCESS ? rc : idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SI_EXPORT CUresult cuStreamSynchronize(CUstream hStream)
{
    CUresult rc = si_enter("cuStreamSynchronize");
    struct CUstream_st *s = NULL;
    CUcontext ctx = NULL;

    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuStreamSynchronize");
    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    rc = si_stream_locked(hStream, "cuStreamSynchronize", &s);
    if (rc == CUDA_SUCCESS)
        rc = si_capture_asked_stream_locked(s, "cuStreamSynchronize");
    if (rc == CUDA_SUCCESS) {
        wait_for_legacy(s);
        ctx = s->ctx;
    }
    si_unlock();
    if (rc == CUDA_SUCCESS)
        rc = reach_all(NULL, s);
    return rc == CUDA_SUCCESS ? si_context_fault(ctx) : rc;
}

SI_EXPORT CUresult cuCtxSynchronize(void)
{
    CUresult rc = si_enter("cuCtxSynchronize");
    CUcontext ctx = si_current();

    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuCtxSynchronize");
    if (rc != CUDA_SUCCESS || ctx == NULL)
        return rc != CUDA_SUCCESS ? rc : CUDA_ERROR_INVALID_CONTEXT;
    si_lock();
    rc = si_capture_asked_context_locked(ctx, "cuCtxSynchronize");
    si_unlock();
    return rc == CUDA_SUCCESS ? si_synchronise(ctx) : rc;
}

/* --------------------------------------------------------------------------------------------------------- events --
 */

static CUresult check_event(CUevent e, const char *function)
{
    if (e != NULL && e->magic == MAGIC_EVENT)
        return CUDA_SUCCESS;
    si_refused("%s: %p is not an event, or has been destroyed", function, (void *)e);
    return CUDA_ERROR_INVALID_HANDLE;
}

/* Returns whether captures allow a query of it, or a wait for it, in this thread. */
static CUresult askable(CUevent e, const char *function)
{
    CUresult rc = si_capture_unsafe(function);

    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    rc = si_capture_asked_event_locked(e, function);
    si_unlock();
    return rc;
}

/* The event's recorded point as a reference of the caller's own; NULL: never recorded. */
static struct si_stop *stop_of(CUevent e)
{
    struct si_stop *stop;

    si_lock();
    stop = e->stop;
    if (stop != NULL)
        stop->refs++;
    si_unlock();
    return stop;
}

SI_EXPORT CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    CUresult rc = si_enter_alloc("cuEventCreate");
    CUcontext ctx = si_current();
    CUevent e;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (ctx == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    e = calloc(1, sizeof *e);
    if (e == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->magic = MAGIC_EVENT;
    e->timing = (Flags & CU_EVENT_DISABLE_TIMING) == 0;
    e->ctx = ctx;
    si_lock();
    n_events++;
    si_unlock();
    *phEvent = e;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuEventDestroy(CUevent hEvent)
{
    CUresult rc = si_enter("cuEventDestroy");

    if (rc == CUDA_SUCCESS)
        rc = check_event(hEvent, "cuEventDestroy");
    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    n_events--;
    si_stop_release_locked(hEvent->stop);
    hEvent->magic = 0;
    si_unlock();
    free(hEvent);
    return CUDA_SUCCESS;
}

static CUresult record_locked(CUevent e, CUstream stream)
{
    struct CUstream_st *s;
    struct si_stop *stop;
    CUresult rc = si_stream_locked(stream, "cuEventRecord", &s);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (s->ctx != e->ctx) {
        si_refused("cuEventRecord: the event is of device %u, stream %u of device %u", e->ctx->device, s->slot,
                   s->ctx->device);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (s->capture != NULL) {
        si_stop_release_locked(e->stop);
        e->stop = NULL;
        si_capture_record_locked(s, e);
        return si_capture_state_locked(s);
    }
    si_room_locked(s);
    si_stream_begin_locked(s);
    stop = si_stop_create_locked(s);
    if (stop == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    si_stop_release_locked(e->stop);
    e->stop = stop;
    e->captured = 0;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
    CUresult rc = si_enter("cuEventRecord");

    if (rc == CUDA_SUCCESS)
        rc = check_event(hEvent, "cuEventRecord");
    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    rc = record_locked(hEvent, hStream);
    si_unlock();
    return rc;
}

SI_EXPORT CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    CUresult rc = si_enter("cuStreamWaitEvent");
    struct CUstream_st *s;

    (void)Flags;
    if (rc == CUDA_SUCCESS)
        rc = check_event(hEvent, "cuStreamWaitEvent");
    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    rc = si_stream_locked(hStream, "cuStreamWaitEvent", &s);
    if (rc == CUDA_SUCCESS && (s->capture != NULL || hEvent->captured != 0)) {
        rc = si_capture_wait_locked(s, hEvent);
    } else if (rc == CUDA_SUCCESS && hEvent->stop != NULL && !si_skip_wait()) {
        struct si_stop *stop =
            hEvent->stop; /* that of now: while this waits for room, the event may be recorded anew */

        stop->refs++;
        si_room_locked(s);
        si_clock_join(&s->clock, &stop->clock);
        stream_wait_in(s, stop);
        si_stop_release_locked(stop);
    }
    si_unlock();
    return rc;
}

SI_EXPORT CUresult cuEventQuery(CUevent hEvent)
{
    CUresult rc = si_enter("cuEventQuery");
    struct si_stop *stop;
    bool passed;

    if (rc == CUDA_SUCCESS)
        rc = check_event(hEvent, "cuEventQuery");
    if (rc == CUDA_SUCCESS)
        rc = askable(hEvent, "cuEventQuery");
    if (rc != CUDA_SUCCESS)
        return rc;
    stop = stop_of(hEvent);
    if (stop == NULL)
        return CUDA_SUCCESS;
    passed = si_stop_passed(stop);
    if (passed)
        si_edge_to(stop);
    si_lock();
    if (passed)
        learn_locked(&stop->clock, true);
    si_stop_release_locked(stop);
    si_unlock();
    return passed ? si_context_fault(hEvent->ctx) : CUDA_ERROR_NOT_READY;
}

SI_EXPORT CUresult cuEventSynchronize(CUevent hEvent)
{
    CUresult rc = si_enter("cuEventSynchronize");
    struct si_stop *stop;

    if (rc == CUDA_SUCCESS)
        rc = check_event(hEvent, "cuEventSynchronize");
    if (rc == CUDA_SUCCESS)
        rc = askable(hEvent, "cuEventSynchronize");
    if (rc != CUDA_SUCCESS)
        return rc;
    stop = stop_of(hEvent);
    if (stop != NULL)
        si_stop_reach(stop);
    return si_context_fault(hEvent->ctx);
}

/* Half a microsecond is the resolution of times. */
static int64_t ticks_of(const struct si_stop *stop)
{
    return stop->time_ns / 500;
}

SI_EXPORT CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
    CUresult rc = si_enter("cuEventElapsedTime");

    if (rc == CUDA_SUCCESS)
        rc = check_event(hStart, "cuEventElapsedTime");
    if (rc == CUDA_SUCCESS)
        rc = check_event(hEnd, "cuEventElapsedTime");
    /* Nothing says that a capture allows it, and it asks about events as a query does. */
    if (rc == CUDA_SUCCESS)
        rc = askable(hStart, "cuEventElapsedTime");
    if (rc == CUDA_SUCCESS)
        rc = askable(hEnd, "cuEventElapsedTime");
    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    if (!hStart->timing || !hEnd->timing || hStart->stop == NULL || hEnd->stop == NULL)
        rc = CUDA_ERROR_INVALID_HANDLE;
    else if (!si_stop_passed(hStart->stop) || !si_stop_passed(hEnd->stop))
        rc = CUDA_ERROR_NOT_READY;
    else
        *pMilliseconds = (float)(ticks_of(hEnd->stop) - ticks_of(hStart->stop)) * 0.0005f;
    si_unlock();
    return rc == CUDA_SUCCESS ? si_context_fault(hEnd->ctx) : rc;
}
