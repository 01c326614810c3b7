/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/state/gpu_timestamps.h"

#include "common/clock.h"
#include "worker/backend/nccl/device/anchor.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/state/ring.h"

#include <sched.h>

#define AHEAD 2048                /* stamps that are not read yet, at most; a power of two */
#define KEPT 2048                 /* times of stamps, and of buckets' operations; a power of two */
#define ANCHOR_NS 500000000       /* between two anchors */
#define ANCHOR_TRY_NS 100000      /* that the progress thread waits for one */
#define ANCHOR_FIRST_NS 100000000 /* that the creation of a communicator does */
#define ANCHOR_TRIES 8
#define READ_AT_ONCE 64

enum what {
    POINT,  /* of a stream of the program */
    FOLLOW, /* the communication stream follows it */
    END     /* of operations */
};

struct stamp {
    CUevent event;
    enum what what;
    uint64_t first, last; /* END: the tickets, */
    int64_t begun_ns;     /* when the host began them, */
    bool gap;             /* and whether a stamp before it is missing */
};

struct known_op {
    uint64_t ticket;
    int64_t ready_ns, started_ns, done_ns;
};

struct known_stamp {
    uint64_t number;
    int64_t ns;
};

struct anchored {
    CUevent event;
    struct cdi_anchor at;
    uint64_t before; /* stamps up to this number may be earlier */
};

struct cdi_gpu_timestamps {
    /* With the communicator's lock; `ahead` is read by the progress thread up to n_stamped. */
    struct stamp ahead[AHEAD];
    int64_t begun_ns;
    bool gap;
    /* The progress thread's. */
    struct anchored now, old; /* each event is complete */
    CUevent spare;
    int64_t next_anchor_ns, free_ns, ready_ns; /* free_ns: the communication stream was done with the last bucket */
    bool unsure;                               /* the time of something that the next bucket follows is not known */
    /* With known_lock, under which there are no calls of the driver. */
    pthread_mutex_t known_lock;
    struct known_stamp stamp[KEPT];
    struct known_op op[KEPT];
    CUevent idle[AHEAD]; /* no others are made until these are used, so there are never more */
    size_t n_idle;
};

/* -------------------------------------------------------------------------------------------------------- anchors */

/*
 * Records the spare event on a stream that has no work, and waits until it is complete, for a limited time. Returns
 * whether it is a better anchor by now than the present one.
 */
static bool anchor_try(struct cdi_backend *b, int64_t wait_ns, struct cdi_anchor *at)
{
    struct cdi_gpu_timestamps *s = b->stamps;
    bool first = s->now.event == NULL;
    CUresult r = s->spare != NULL ? CUDA_SUCCESS : cdi_cuda.event_create(&s->spare, CU_EVENT_DEFAULT);
    int64_t begun_ns = cdi_now_ns(), now_ns = begun_ns;
    float ms = 0;

    if (r == CUDA_SUCCESS)
        r = cdi_cuda.event_record(s->spare, b->device.side);
    while (r == CUDA_SUCCESS && now_ns - begun_ns < wait_ns) {
        r = cdi_cuda.event_query(s->spare);
        now_ns = cdi_now_ns();
        *at = cdi_anchor_between(begun_ns, now_ns);
        if (r == CUDA_SUCCESS)
            return first || (cdi_cuda.event_elapsed(&ms, s->now.event, s->spare) == CUDA_SUCCESS &&
                             at->error_ns <= cdi_anchor_error(&s->now.at, ms));
        if (r == CUDA_ERROR_NOT_READY)
            r = CUDA_SUCCESS;
        (void)sched_yield();
    }
    return false;
}

/* The spare event becomes the anchor of later stamps. */
static void anchor_take(struct cdi_backend *b, const struct cdi_anchor *at)
{
    struct cdi_gpu_timestamps *s = b->stamps;
    CUevent free_one = s->old.event;

    s->old = s->now;
    s->now = (struct anchored){.event = s->spare, .at = *at, .before = atomic_load(&b->n_stamped)};
    s->spare = free_one;
}

/* Takes a new anchor now and then, if no stamp needs the one before the present one. */
static void anchor_renew(struct cdi_backend *b)
{
    struct cdi_gpu_timestamps *s = b->stamps;
    struct cdi_anchor at;
    int64_t now_ns = cdi_now_ns();

    if (now_ns < s->next_anchor_ns || atomic_load(&b->n_stamps_read) < s->now.before)
        return;
    s->next_anchor_ns = now_ns + ANCHOR_NS;
    if (anchor_try(b, ANCHOR_TRY_NS, &at))
        anchor_take(b, &at);
}

/* The best of several: the first calls of the driver are slow. */
static bool anchor_first(struct cdi_backend *b)
{
    struct cdi_gpu_timestamps *s = b->stamps;
    struct cdi_anchor at;

    for (int i = 0; i < ANCHOR_TRIES; i++)
        if (anchor_try(b, ANCHOR_FIRST_NS, &at))
            anchor_take(b, &at);
    s->next_anchor_ns = cdi_now_ns() + ANCHOR_NS;
    return s->now.event != NULL;
}

/* --------------------------------------------------------------------------------------------------- begin, end ----
 */

cddp_status cdi_gpu_timestamps_open(struct cdi_backend *b, struct cdi_error *err)
{
    if (!cdi_host->flight_is_timed(b->record))
        return CDDP_OK;
    b->stamps = cdi_host->alloc(1, sizeof *b->stamps);
    if (b->stamps == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the times of buckets");
    (void)pthread_mutex_init(&b->stamps->known_lock, NULL);
    if (anchor_first(b))
        return CDDP_OK;
    cdi_host->debug("NO-TIMES", "the GPU does not reach an event in time: buckets and steps have no times");
    cdi_gpu_timestamps_close(b);
    return CDDP_OK;
}

static void destroy_event(CUevent e)
{
    if (e != NULL)
        (void)cdi_cuda.event_destroy(e);
}

void cdi_gpu_timestamps_close(struct cdi_backend *b)
{
    struct cdi_gpu_timestamps *s = b->stamps;

    if (s == NULL)
        return;
    for (uint64_t n = atomic_load(&b->n_stamps_read) + 1; n <= atomic_load(&b->n_stamped); n++)
        destroy_event(s->ahead[n & (AHEAD - 1)].event);
    for (size_t i = 0; i < s->n_idle; i++)
        destroy_event(s->idle[i]);
    destroy_event(s->now.event);
    destroy_event(s->old.event);
    destroy_event(s->spare);
    (void)pthread_mutex_destroy(&s->known_lock);
    cdi_host->release(s);
    b->stamps = NULL;
}

/* ----------------------------------------------------------------------------------------------------- recording ----
 */

/*
 * Returns an event for the next stamp, which stamp_add or stamp_drop takes; NULL: none. With `lock`, as those. Their
 * number settles at the most that were ever ahead.
 */
static CUevent stamp_event(struct cdi_backend *b)
{
    struct cdi_gpu_timestamps *s = b->stamps;
    CUevent e = NULL;
    bool full;

    if (s == NULL)
        return NULL;
    full = atomic_load(&b->n_stamped) - atomic_load(&b->n_stamps_read) >= AHEAD;
    (void)pthread_mutex_lock(&s->known_lock);
    if (!full && s->n_idle > 0)
        e = s->idle[--s->n_idle];
    (void)pthread_mutex_unlock(&s->known_lock);
    if (!full && e == NULL && cdi_cuda.event_create(&e, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
        e = NULL;
    return e;
}

static void stamp_drop(struct cdi_gpu_timestamps *s, CUevent e)
{
    (void)pthread_mutex_lock(&s->known_lock);
    s->idle[s->n_idle++] = e;
    (void)pthread_mutex_unlock(&s->known_lock);
}

/* Adds a stamp, whose event was recorded, for the progress thread. Returns its number. */
static uint64_t stamp_add(struct cdi_backend *b, const struct stamp *stamp)
{
    uint64_t number = atomic_load(&b->n_stamped) + 1;

    b->stamps->ahead[number & (AHEAD - 1)] = *stamp;
    atomic_store(&b->n_stamped, number);
    return number;
}

/* Records a stamp. *added: there was an event for it. */
static cddp_status stamp_record(struct cdi_backend *b, CUstream stream, struct stamp *stamp, uint64_t *added,
                                struct cdi_error *err)
{
    cddp_status st;

    *added = 0;
    stamp->event = stamp_event(b);
    if (stamp->event == NULL)
        return CDDP_OK;
    st = cdi_cuda_check(cdi_cuda.event_record(stamp->event, stream), "recording an event", err);
    if (st == CDDP_OK)
        *added = stamp_add(b, stamp);
    else
        stamp_drop(b->stamps, stamp->event);
    return st;
}

cddp_status cdi_gpu_timestamps_follow(struct cdi_backend *b, CUstream stream, bool timed, struct cdi_error *err)
{
    struct stamp stamp = {.what = FOLLOW};
    uint64_t added = 0;
    cddp_status st = timed ? stamp_record(b, stream, &stamp, &added, err) : CDDP_OK;

    if (st == CDDP_OK && added == 0)
        st = cdi_cuda_check(cdi_cuda.event_record(b->mark, stream), "following a stream", err);
    if (b->stamps != NULL && timed && added == 0)
        b->stamps->gap = true;
    if (st != CDDP_OK)
        return st;
    return cdi_cuda_check(cdi_cuda.stream_wait(b->device.stream, added != 0 ? stamp.event : b->mark, 0),
                          "following a stream", err);
}

void cdi_gpu_timestamps_begin(struct cdi_backend *b)
{
    if (b->stamps != NULL)
        b->stamps->begun_ns = cdi_now_ticks_ns();
}

cddp_status cdi_gpu_timestamps_end(struct cdi_backend *b, uint64_t first, uint64_t last, struct cdi_error *err)
{
    struct stamp stamp = {.what = END, .first = first, .last = last};
    bool timed = false;
    uint64_t added;
    cddp_status st;

    for (uint64_t t = first; b->stamps != NULL && t <= last; t++)
        timed |= cdi_slot_of(b, t)->one.op.timed;
    if (!timed)
        return CDDP_OK;
    stamp.begun_ns = b->stamps->begun_ns;
    stamp.gap = b->stamps->gap;
    st = stamp_record(b, b->device.stream, &stamp, &added, err);
    b->stamps->gap = added == 0;
    return st;
}

uint64_t cdi_gpu_timestamps_point(struct cdi_backend *b, CUstream stream)
{
    struct stamp stamp = {.what = POINT};
    uint64_t added = 0;

    (void)pthread_mutex_lock(&b->lock);
    (void)stamp_record(b, stream, &stamp, &added, NULL); /* an error is permanent: the next call reports it */
    (void)pthread_mutex_unlock(&b->lock);
    return added;
}

/* ------------------------------------------------------------------------------------------------------- reading ----
 */

/* Writes the times of tickets that are done to the flight page, unless their slots are in use again. */
static void show_times(struct cdi_backend *b, const struct stamp *stamp, const struct known_op *op)
{
    (void)pthread_mutex_lock(&b->ring_lock);
    for (uint64_t t = stamp->first; t <= stamp->last; t++)
        if (t + b->ring_size > b->enqueued)
            cdi_host->flight_times(b->record, cdi_slot_of(b, t)->flight_seq, op->ready_ns, op->started_ns, op->done_ns);
    (void)pthread_mutex_unlock(&b->ring_lock);
}

/* Notes that operations have ended, at ns (0: that is not known). */
static void note_end(struct cdi_backend *b, const struct stamp *stamp, int64_t ns)
{
    struct cdi_gpu_timestamps *s = b->stamps;
    struct known_op op = {.ready_ns = s->ready_ns, .started_ns = s->free_ns, .done_ns = ns};

    if (op.started_ns < stamp->begun_ns)
        op.started_ns = stamp->begun_ns;
    if (op.started_ns > ns) /* by the error of an anchor */
        op.started_ns = ns;
    if (ns == 0 || s->unsure || stamp->gap)
        op = (struct known_op){.done_ns = 0};
    if (ns > s->free_ns)
        s->free_ns = ns;
    s->unsure = ns == 0;
    s->ready_ns = 0;
    if (op.done_ns != 0)
        show_times(b, stamp, &op);
    (void)pthread_mutex_lock(&s->known_lock);
    for (uint64_t t = stamp->first; t <= stamp->last; t++) {
        op.ticket = t;
        s->op[t & (KEPT - 1)] = op;
    }
    (void)pthread_mutex_unlock(&s->known_lock);
}

static void note_follow(struct cdi_gpu_timestamps *s, int64_t ns)
{
    if (ns > s->ready_ns)
        s->ready_ns = ns;
    if (ns > s->free_ns)
        s->free_ns = ns;
    s->unsure |= ns == 0;
}

/* Reads one stamp. false: the GPU has not reached it. */
static bool read_stamp(struct cdi_backend *b, uint64_t number)
{
    struct cdi_gpu_timestamps *s = b->stamps;
    struct stamp *stamp = &s->ahead[number & (AHEAD - 1)];
    const struct anchored *from = number > s->now.before || s->old.event == NULL ? &s->now : &s->old;
    float ms = 0;
    CUresult r = cdi_cuda.event_query(stamp->event); /* cuda.h: cuEventElapsedTime is not for polling */
    int64_t ns;

    if (r == CUDA_SUCCESS)
        r = cdi_cuda.event_elapsed(&ms, from->event, stamp->event);
    if (r == CUDA_ERROR_NOT_READY)
        return false;
    ns = r == CUDA_SUCCESS ? cdi_anchor_time(&from->at, ms) : 0;
    if (stamp->what == END) {
        (void)cdi_ring_poll(b); /* the page shows that they are done before it shows when */
        if (r == CUDA_SUCCESS && !cdi_ring_is_done(b, stamp->last))
            return false;
        note_end(b, stamp, ns);
    } else if (stamp->what == FOLLOW) {
        note_follow(s, ns);
    }
    (void)pthread_mutex_lock(&s->known_lock);
    s->stamp[number & (KEPT - 1)] = (struct known_stamp){number, ns};
    s->idle[s->n_idle++] = stamp->event;
    (void)pthread_mutex_unlock(&s->known_lock);
    return true;
}

void cdi_gpu_timestamps_read(struct cdi_backend *b)
{
    uint64_t number = atomic_load(&b->n_stamps_read) + 1;

    if (b->stamps == NULL)
        return;
    for (int i = 0; i < READ_AT_ONCE && number <= atomic_load(&b->n_stamped) && read_stamp(b, number); i++)
        atomic_store(&b->n_stamps_read, number++);
    anchor_renew(b);
}

/* ------------------------------------------------------------------------------------------------------- answers ----
 */

uint64_t cdi_gpu_stamp(struct cdi_backend *b, void *stream)
{
    uint64_t number = 0;

    if (b->stamps == NULL || atomic_load(&b->failed))
        return 0;
    if (cdi_device_enter_briefly(&b->device, NULL) == CDDP_OK)
        number = cdi_gpu_timestamps_point(b, stream);
    cdi_device_leave_briefly(&b->device);
    if (number != 0)
        cdi_gpu_set_busy(b); /* the progress thread may be asleep, if all operations are done */
    return number;
}

bool cdi_gpu_stamp_time(struct cdi_backend *b, uint64_t stamp, int64_t *ns)
{
    struct cdi_gpu_timestamps *s = b->stamps;
    const struct known_stamp *known;

    *ns = 0;
    if (s == NULL || stamp == 0)
        return true;
    if (stamp > atomic_load(&b->n_stamps_read))
        return false;
    known = &s->stamp[stamp & (KEPT - 1)];
    (void)pthread_mutex_lock(&s->known_lock);
    if (known->number == stamp)
        *ns = known->ns;
    (void)pthread_mutex_unlock(&s->known_lock);
    return true;
}

void cdi_gpu_coll_times(struct cdi_backend *b, uint64_t ticket, struct cdi_coll_times *times, int64_t *ready_ns)
{
    struct cdi_gpu_timestamps *s = b->stamps;
    struct known_op found = {.ticket = 0};

    if (s != NULL && ticket != 0) {
        (void)pthread_mutex_lock(&s->known_lock);
        found = s->op[ticket & (KEPT - 1)];
        (void)pthread_mutex_unlock(&s->known_lock);
    }
    if (found.ticket != ticket)
        found = (struct known_op){.ticket = 0};
    *times = (struct cdi_coll_times){.started_ns = found.started_ns, .done_ns = found.done_ns, .late_rank = -1};
    *ready_ns = found.ready_ns;
}
