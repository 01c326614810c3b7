/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/queue.h"

#include "common/clock.h"
#include "common/thread.h"
#include "worker/backend/describe.h"
#include "worker/backend/spin.h"

#include <sched.h>
#include <stdlib.h>

#define STACK_BYTES (512u * 1024) /* the default of 8 MiB counts against RLIMIT_AS */
#define SPARE_MAX 64
/* An operation with grace is left to its joiner for so long; handing one over to the thread costs 14 to 18 us. */
#define GRACE_NS 50000
/* While such operations arrive, the thread checks this often, and no caller has to wake it. */
#define LOOK_NS 1000000
#define FOREVER INT64_MAX

struct cdi_queue {
    cdi_run_fn run;
    void *arg;
    struct cdi_flight *flight;
    const char *name; /* before the text of errors; NULL: none */
    int spins;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* an operation has ended, or the queue has failed */
    pthread_cond_t wanted;  /* there is work for the thread */
    pthread_t thread;
    bool has_thread, thread_refused, stopping;
    bool thread_asleep; /* until it is woken */
    bool thread_dozing; /* for LOOK_NS at most */

    struct cdi_work *first, *last; /* not started, in order of tickets */
    struct cdi_work *spare;
    size_t n_queued, n_eager /* those that are not lazy */, n_grace /* those that are lazy, with grace */, n_spare;
    bool running;
    /* Of the running operation, whose thread writes it. */
    uint64_t running_seq;
    int late_rank;
    int64_t arrived_ns;

    uint64_t grace_given,
        grace_seen;         /* the last operation with grace that was enqueued, and the last that the thread has seen */
    uint64_t grace_open;    /* the last one, until it is joined or the thread runs it; 0: none */
    int64_t grace_since_ns; /* when it was enqueued, unless its joiner runs it; otherwise 0 */
    bool joined_late;       /* it was joined after its grace: the next one probably will be, too */

    uint64_t given;  /* the last ticket */
    uint64_t needed; /* the last one of an operation that is not spare */
    bool failed;
    struct cdi_error error;

    _Atomic uint64_t
        done; /* every ticket up to it is done; written under the lock, read by spinning threads without it */
    _Atomic uint32_t ended; /* changes with every end and failure, for spinning threads */
};

static struct cdi_work *get_node(struct cdi_queue *q)
{
    struct cdi_work *w = q->spare;

    if (w == NULL)
        return malloc(sizeof *w);
    q->spare = w->next;
    q->n_spare--;
    return w;
}

static void put_node(struct cdi_queue *q, struct cdi_work *w)
{
    if (w->group != NULL)
        free(w->group); /* rare: most operations do not call it */
    w->group = NULL;
    if (q->n_spare >= SPARE_MAX) {
        free(w);
        return;
    }
    w->next = q->spare;
    q->spare = w;
    q->n_spare++;
}

static void drop_all(struct cdi_queue *q)
{
    while (q->first != NULL) {
        struct cdi_work *w = q->first;

        q->first = w->next;
        put_node(q, w);
    }
    q->last = NULL;
    q->n_queued = 0;
    q->n_eager = 0;
    q->n_grace = 0;
}

/* The sticky error, for the program. */
static void tell_locked(const struct cdi_queue *q, struct cdi_error *err)
{
    if (err == NULL)
        return;
    *err = q->error;
    if (q->name != NULL && *q->name != '\0' &&
        strncmp(err->msg, "communicator '", 14) != 0) /* the message of a peer may contain it */
        (void)cdi_error_wrap(err, "communicator '%s'", q->name);
}

static void fail_locked(struct cdi_queue *q, const struct cdi_error *err)
{
    if (q->failed)
        return;
    q->failed = true;
    q->error = *err;
    cdi_flight_hide(q->flight); /* the record of the operation stays as that of a running one */
    drop_all(q);
}

static void tell_ended(struct cdi_queue *q)
{
    /* One writer at a time: the lock is held. */
    atomic_store_explicit(&q->ended, atomic_load_explicit(&q->ended, memory_order_relaxed) + 1, memory_order_release);
    (void)pthread_cond_broadcast(&q->changed);
}

static bool has_grace(const struct cdi_work *w)
{
    return w->op.lazy && w->op.grace;
}

/* Must the thread be woken for an operation? It finds one with grace by itself. */
static bool must_wake(const struct cdi_queue *q, bool eager, bool grace)
{
    return (eager && (q->thread_asleep || q->thread_dozing)) || (grace && q->thread_asleep);
}

/* Records the end of the running operation; the lock is held. */
static void queue_note_end(struct cdi_queue *q, uint64_t ticket, cddp_status st, const struct cdi_error *err)
{
    q->running = false;
    if (st == CDDP_OK)
        atomic_store_explicit(&q->done, ticket, memory_order_release);
    else
        fail_locked(q, err);
    tell_ended(q);
    if (must_wake(q, q->n_eager > 0,
                  q->n_grace > 0)) /* it woke up while this thread ran the operation, and slept again */
        (void)pthread_cond_signal(&q->wanted);
}

void cdi_queue_arrived(struct cdi_queue *q, int rank, int64_t arrived_ns)
{
    q->late_rank = rank;
    q->arrived_ns = arrived_ns;
    if (arrived_ns != 0)
        cdi_flight_arrived(q->flight, q->running_seq, rank, arrived_ns);
}

void cdi_queue_waits_for(struct cdi_queue *q, int rank)
{
    cdi_flight_arrived(q->flight, q->running_seq, rank, 0);
}

int64_t cdi_queue_now(const struct cdi_queue *q)
{
    return cdi_flight_now(q->flight);
}

/* Adds the times of an operation to those of its bucket. */
static void note_times(const struct cdi_queue *q, struct cdi_coll_times *t, int64_t started_ns, int64_t done_ns,
                       bool on_thread)
{
    if (t->started_ns == 0) { /* a bucket may be several operations: the first one waits for the peers */
        t->started_ns = started_ns;
        t->arrived_ns = q->late_rank < 0 ? 0 : q->arrived_ns != 0 ? q->arrived_ns : done_ns;
        t->late_rank = q->late_rank;
    }
    t->done_ns = done_ns;
    t->by_joiner = !on_thread;
    if (on_thread)
        t->thread_ns += cdi_thread_cpu_ns();
}

/*
 * Runs an operation; the lock is held, and released while the operation runs. started_ns: what the flight page has as
 * its start; 0: nothing yet.
 */
static cddp_status run_now(struct cdi_queue *q, const struct cdi_work *w, int64_t started_ns, bool on_thread,
                           struct cdi_error *err)
{
    int64_t done_ns;
    cddp_status st;

    q->running = true;
    (void)pthread_mutex_unlock(&q->lock);

    if (started_ns == 0)
        started_ns = cdi_flight_begin(q->flight, w->flight_seq);
    if (on_thread && w->op.times != NULL)
        w->op.times->thread_ns -= cdi_thread_cpu_ns();
    q->running_seq = w->flight_seq;
    q->late_rank = -1;
    q->arrived_ns = 0;
    st = q->run(q->arg, w, on_thread, err);
    if (st == CDDP_OK) {
        done_ns = cdi_flight_end(q->flight, w->flight_seq, q->late_rank, q->arrived_ns);
        if (w->op.times != NULL)
            note_times(q, w->op.times, started_ns, done_ns, on_thread);
    }

    (void)pthread_mutex_lock(&q->lock);
    queue_note_end(q, w->ticket, st, err);
    return st;
}

/* Runs the first operation in the queue likewise. */
static void run_first(struct cdi_queue *q, bool on_thread)
{
    struct cdi_work *w = q->first;
    struct cdi_error err;

    q->first = w->next;
    if (q->first == NULL)
        q->last = NULL;
    q->n_queued--;
    q->n_eager -= !w->op.lazy;
    q->n_grace -= has_grace(w);
    if (has_grace(w) && q->grace_open == w->ticket) {
        q->joined_late = on_thread;
        q->grace_open = 0;
    }
    (void)run_now(q, w, 0, on_thread, &err);
    put_node(q, w);
}

/* Returns for how long the thread is idle. 0: there is work for it; FOREVER: until it is woken. */
static int64_t idle_ns(struct cdi_queue *q)
{
    if (q->n_eager > 0)
        return q->running ? FOREVER : 0; /* the running thread wakes it afterwards */
    if (q->grace_seen == q->grace_given)
        return q->n_grace > 0 && !q->running ? 0 : FOREVER;
    q->grace_seen = q->grace_given;
    return q->n_grace > 0 && !q->running ? GRACE_NS : LOOK_NS;
}

static void doze(struct cdi_queue *q, int64_t ns)
{
    int64_t until = cdi_now_ns() + ns;
    const struct timespec t = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};

    q->thread_dozing = true;
    (void)pthread_cond_timedwait(&q->wanted, &q->lock, &t);
    q->thread_dozing = false;
}

static void *thread_main(void *arg)
{
    struct cdi_queue *q = arg;

    cdi_thread_name("cddp-comm");
    (void)pthread_mutex_lock(&q->lock);
    while (!q->stopping) {
        int64_t ns = idle_ns(q);

        if (ns == 0) {
            run_first(q, true);
        } else if (ns != FOREVER) {
            doze(q, ns);
        } else {
            q->thread_asleep = true;
            (void)pthread_cond_wait(&q->wanted, &q->lock);
            q->thread_asleep = false;
        }
    }
    (void)pthread_mutex_unlock(&q->lock);
    return NULL;
}

bool cdi_thread_start(pthread_t *thread, void *(*main)(void *arg), void *arg)
{
    return cdi_thread_create(thread, STACK_BYTES, main, arg) == 0;
}

static void queue_start_thread(struct cdi_queue *q)
{
    q->has_thread = cdi_thread_start(&q->thread, thread_main, q);
    q->thread_refused = !q->has_thread;
}

cddp_status cdi_queue_create(struct cdi_queue **out, cdi_run_fn run, void *arg, struct cdi_flight *flight, int spins,
                             struct cdi_error *err)
{
    struct cdi_queue *q = calloc(1, sizeof *q);

    if (q == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    q->run = run;
    q->arg = arg;
    q->flight = flight;
    q->spins = spins;
    (void)pthread_mutex_init(&q->lock, NULL); /* on Linux none of these can fail */
    (void)pthread_cond_init(&q->changed, NULL);
    cdi_cond_init_monotonic(&q->wanted);
    *out = q;
    return CDDP_OK;
}

void cdi_queue_set_name(struct cdi_queue *q, const char *name)
{
    q->name = name;
}

bool cdi_queue_idle(struct cdi_queue *q)
{
    bool idle;

    (void)pthread_mutex_lock(&q->lock);
    idle = !q->running;
    for (const struct cdi_work *w = q->first; w != NULL && idle; w = w->next)
        idle = w->op.spare;
    (void)pthread_mutex_unlock(&q->lock);
    return idle;
}

void cdi_queue_destroy(struct cdi_queue *q)
{
    if (q == NULL)
        return;
    (void)pthread_mutex_lock(&q->lock);
    q->stopping = true;
    drop_all(q);
    (void)pthread_cond_signal(&q->wanted);
    (void)pthread_mutex_unlock(&q->lock);
    if (q->has_thread)
        (void)pthread_join(q->thread, NULL);
    while (q->spare != NULL) {
        struct cdi_work *w = q->spare;

        q->spare = w->next;
        free(w);
    }
    (void)pthread_cond_destroy(&q->wanted);
    (void)pthread_cond_destroy(&q->changed);
    (void)pthread_mutex_destroy(&q->lock);
    free(q);
}

static void begin_grace(struct cdi_queue *q, struct cdi_work *w)
{
    /* If the previous one was not joined in time, this one is probably not joined soon either. */
    w->op.lazy = !q->joined_late && q->n_grace == 0;
    q->grace_given = q->grace_open = w->ticket;
    q->grace_since_ns = w->op.lazy ? 0 : cdi_now_ns();
}

/* Records that every operation up to `ticket` is joined, and whether that was in time. */
static void end_grace(struct cdi_queue *q, uint64_t ticket)
{
    if (q->grace_open == 0 || ticket < q->grace_open)
        return;
    q->grace_open = 0;
    q->joined_late = q->grace_since_ns != 0 && cdi_now_ns() - q->grace_since_ns > GRACE_NS;
}

static enum cdi_flight_op flight_op_of(const struct cdi_work *w)
{
    if (w->group != NULL)
        return cdi_flight_op_of_group(w->group, w->n_group);
    return w->is_region ? CDI_FLIGHT_REGION : cdi_flight_op_of(w->op.kind);
}

/* Sets its ticket, and makes its record in the flight page. Returns when it was enqueued. */
static int64_t queue_number(struct cdi_queue *q, struct cdi_work *w, bool start)
{
    struct cdi_flight_entry e = {.op = (uint32_t)flight_op_of(w),
                                 .dtype = (uint32_t)w->op.dtype,
                                 .count = w->is_region ? w->region_bytes : w->op.count,
                                 .bucket = w->op.bucket,
                                 .ready_ns = w->op.ready_ns,
                                 .enqueued_ns = w->op.enqueued_ns};

    w->ticket = ++q->given;
    q->needed = w->op.spare ? q->needed : w->ticket;
    w->flight_seq = cdi_flight_add(q->flight, &e, start);
    return e.enqueued_ns;
}

static cddp_status check_room(const struct cdi_queue *q, size_t n, struct cdi_error *err)
{
    if (q->n_queued + n > CDI_QUEUE_LIMIT)
        return cdi_fail(err, CDDP_E_LIMIT,
                        "%zu collectives would be pending, and %d may be: wait for some of them first", q->n_queued + n,
                        CDI_QUEUE_LIMIT);
    return CDDP_OK;
}

cddp_status cdi_queue_has_room(struct cdi_queue *q, size_t n, struct cdi_error *err)
{
    cddp_status st;

    (void)pthread_mutex_lock(&q->lock);
    st = check_room(q, n, err);
    (void)pthread_mutex_unlock(&q->lock);
    return st;
}

static cddp_status queue_append(struct cdi_queue *q, const struct cdi_work *work, struct cdi_error *err)
{
    cddp_status st = check_room(q, 1, err);
    struct cdi_work *w;

    if (st != CDDP_OK)
        return st;
    w = get_node(q);
    if (w == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a collective");
    *w = *work;
    w->next = NULL;
    (void)queue_number(q, w, false);
    if (q->last != NULL)
        q->last->next = w;
    else
        q->first = w;
    q->last = w;
    q->n_queued++;
    if (has_grace(w))
        begin_grace(q, w);
    q->n_eager += !w->op.lazy;
    q->n_grace += has_grace(w);
    return CDDP_OK;
}

cddp_status cdi_queue_enqueue(struct cdi_queue *q, const struct cdi_work *work, uint64_t *ticket, struct cdi_error *err)
{
    bool wake = false;
    cddp_status st;

    (void)pthread_mutex_lock(&q->lock);
    if (q->failed) {
        st = q->error.status;
        tell_locked(q, err);
    } else {
        st = queue_append(q, work, err);
    }
    if (st == CDDP_OK) {
        bool eager = !q->last->op.lazy, grace = has_grace(q->last);

        *ticket = q->given;
        if ((eager || grace) && !q->has_thread && !q->thread_refused)
            queue_start_thread(q);
        wake = must_wake(q, eager, grace);
    }
    (void)pthread_mutex_unlock(&q->lock);
    if (wake)
        (void)pthread_cond_signal(&q->wanted);
    return st;
}

uint64_t cdi_queue_needed(struct cdi_queue *q)
{
    uint64_t last;

    (void)pthread_mutex_lock(&q->lock);
    last = q->needed;
    (void)pthread_mutex_unlock(&q->lock);
    return last;
}

/* Another thread runs the work: spins for its end for a moment. */
static void spin_until(struct cdi_queue *q, uint64_t ticket, uint32_t seen)
{
    int64_t until;

    for (int i = 0; i < q->spins; i++) {
        if (atomic_load(&q->done) >= ticket || atomic_load(&q->ended) != seen)
            return;
        cdi_pause();
    }
    until = cdi_now_ns() + CDI_SPIN_YIELD_US * 1000;
    while (atomic_load(&q->done) < ticket && atomic_load(&q->ended) == seen && cdi_now_ns() < until)
        (void)sched_yield();
}

cddp_status cdi_queue_join(struct cdi_queue *q, uint64_t ticket, struct cdi_error *err)
{
    bool spun = false;
    cddp_status st;

    (void)pthread_mutex_lock(&q->lock);
    end_grace(q, ticket);
    for (;;) {
        if (ticket > q->given) {
            st = cdi_fail(err, CDDP_E_INVALID, "no such ticket");
            break;
        }
        if (q->failed && !q->running) {
            st = q->error.status;
            tell_locked(q, err);
            break;
        }
        if (!q->failed && atomic_load(&q->done) >= ticket) {
            st = CDDP_OK;
            break;
        }
        if (!q->running && q->first != NULL) {
            run_first(q, false);
        } else if (!spun) {
            uint32_t seen = atomic_load(&q->ended);

            (void)pthread_mutex_unlock(&q->lock);
            spin_until(q, ticket, seen);
            (void)pthread_mutex_lock(&q->lock);
            spun = true;
        } else {
            (void)pthread_cond_wait(&q->changed, &q->lock);
        }
    }
    (void)pthread_mutex_unlock(&q->lock);
    return st;
}

cddp_status cdi_queue_run(struct cdi_queue *q, struct cdi_work *work, struct cdi_error *err)
{
    struct cdi_error why;
    int64_t started_ns;
    uint64_t ticket;
    cddp_status st;

    (void)pthread_mutex_lock(&q->lock);
    if (q->failed || q->running || q->first != NULL) {
        (void)pthread_mutex_unlock(&q->lock);
        st = cdi_queue_enqueue(q, work, &ticket, err);
        return st == CDDP_OK ? cdi_queue_join(q, ticket, err) : st;
    }
    started_ns = queue_number(q, work, true);
    end_grace(q, work->ticket);
    st = run_now(q, work, started_ns, false, &why);
    if (q->failed) {
        st = q->error.status;
        tell_locked(q, err);
    }
    (void)pthread_mutex_unlock(&q->lock);
    return st;
}

cddp_status cdi_queue_test(struct cdi_queue *q, uint64_t ticket, struct cdi_error *err)
{
    cddp_status st = CDDP_IN_PROGRESS;
    bool alone;

    (void)pthread_mutex_lock(&q->lock);
    if (ticket > q->given) {
        st = cdi_fail(err, CDDP_E_INVALID, "no such ticket");
    } else if (q->failed && !q->running) {
        st = q->error.status;
        if (err != NULL)
            *err = q->error;
    } else if (!q->failed && atomic_load(&q->done) >= ticket) {
        st = CDDP_OK;
    }
    alone = st == CDDP_IN_PROGRESS && q->n_eager > 0 && !q->has_thread;
    (void)pthread_mutex_unlock(&q->lock);
    return alone ? cdi_queue_join(q, ticket, err) : st;
}

void cdi_queue_fail(struct cdi_queue *q, const struct cdi_error *err)
{
    (void)pthread_mutex_lock(&q->lock);
    fail_locked(q, err);
    tell_ended(q);
    (void)pthread_mutex_unlock(&q->lock);
}

cddp_status cdi_queue_health(struct cdi_queue *q, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    (void)pthread_mutex_lock(&q->lock);
    if (q->failed) {
        st = q->error.status;
        tell_locked(q, err);
    }
    (void)pthread_mutex_unlock(&q->lock);
    return st;
}
