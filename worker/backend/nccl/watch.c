/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch thread of a communicator. While operations are under way it looks, every millisecond, at the words that the
 * stream writes (for the flight page), at what the agent says and at the deadline, and has the job's store asked now
 * and then, where peers tell of their failures. On the first failure it completes the flight page and aborts the
 * communicator, so that everything enqueued ends. Until then it makes no call of CUDA and waits for no lock that is
 * held over one, nor for the store unless nobody else can ask it.
 */
#include "common/clock.h"
#include "common/thread.h"
#include "worker/backend/nccl/state.h"
#include "worker/backend/peer_error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOOK_MS 1
#define REPLAY_MS 10       /* where only a graph may have begun a collective */
#define STORE_AFTER_MS 200 /* an operation that takes longer may be waiting for a rank that has failed */
#define STORE_EVERY_MS 250
#define STOPPED_MS 1000 /* between two looks: the process did not run, and perhaps no other rank's did */
#define END_MS 5000     /* for an abort */
#define NAME_MS 2000    /* for the tending thread to ask who was late */
#define TELL_MS 300     /* for the tending thread to tell peers, before the abort */
#define INSIDE_MS 200   /* for calls of NCCL that are under way; afterwards the abort is what ends them */
#define STACK_BYTES ((size_t)512 << 10)

/* ------------------------------------------------------------------------------------------ the sticky error ---- */

cddp_status cdi_gpu_fail(struct cdi_backend *b, const struct cdi_error *err)
{
    cddp_status st;

    (void)pthread_mutex_lock(&b->word);
    if (!atomic_load(&b->failed)) {
        b->error = *err;
        atomic_store(&b->failed, true);
    }
    st = b->error.status;
    (void)pthread_cond_broadcast(&b->news);
    (void)pthread_mutex_unlock(&b->word);
    return st;
}

/* The sticky error, for the program; with `word`. */
static void tell(const struct cdi_backend *b, struct cdi_error *err)
{
    if (err == NULL)
        return;
    *err = b->error;
    if (*b->world.name != '\0' && strncmp(err->msg, "communicator '", 14) != 0) /* a peer's word may have it */
        (void)cdi_error_wrap(err, "communicator '%s'", b->world.name);
}

cddp_status cdi_gpu_health_now(struct cdi_backend *b, struct cdi_error *err)
{
    struct cdi_error why;
    cddp_status st = CDDP_OK;

    if (!atomic_load(&b->failed) && cdi_host->flight_check(b->world.flight, &why) != CDDP_OK)
        (void)cdi_gpu_fail(b, &why);
    if (!atomic_load(&b->failed))
        return CDDP_OK;
    (void)pthread_mutex_lock(&b->word);
    st = b->error.status;
    tell(b, err);
    (void)pthread_mutex_unlock(&b->word);
    return st;
}

/* An absolute time for a condition variable of CLOCK_MONOTONIC. */
static struct timespec at_ms(int64_t ms)
{
    return (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
}

static void await_end(struct cdi_backend *b)
{
    const struct timespec until = at_ms(cdi_now_ms() + END_MS);

    (void)pthread_mutex_lock(&b->word);
    while (b->watching && !b->ended && !b->abandoned && !b->held)
        if (pthread_cond_timedwait(&b->news, &b->word, &until) == ETIMEDOUT)
            b->abandoned = true; /* nobody waits for it a second time */
    (void)pthread_mutex_unlock(&b->word);
}

/* Where the program's graphs hold up the abort: it may have destroyed them by now. */
static void await_graphs(struct cdi_backend *b)
{
    const struct timespec until = at_ms(cdi_now_ms() + END_MS);

    (void)pthread_mutex_lock(&b->word);
    while (b->held && !b->ended && !b->abandoned)
        if (pthread_cond_timedwait(&b->news, &b->word, &until) == ETIMEDOUT)
            b->abandoned = true;
    (void)pthread_mutex_unlock(&b->word);
}

cddp_status cdi_gpu_health(struct cdi_backend *b, struct cdi_error *err)
{
    if (cdi_gpu_health_now(b, err) == CDDP_OK)
        return CDDP_OK;
    await_end(b); /* the sentence is then complete, and memory is the caller's again */
    return cdi_gpu_health_now(b, err);
}

bool cdi_gpu_is_at_rest(struct cdi_backend *b)
{
    bool rest;

    (void)cdi_gpu_health(b, NULL);
    await_graphs(b);
    (void)pthread_mutex_lock(&b->word);
    rest = !atomic_load(&b->failed) || !b->watching || b->ended;
    (void)pthread_mutex_unlock(&b->word);
    return rest;
}

void cdi_gpu_busy(struct cdi_backend *b)
{
    (void)pthread_mutex_lock(&b->word);
    if (!b->busy) {
        b->busy = true;
        (void)pthread_cond_broadcast(&b->news);
    }
    (void)pthread_mutex_unlock(&b->word);
}

/* --------------------------------------------------------------------------------------- what peers are told ---- */

static struct cdi_peer_error word_of(const struct cdi_backend *b)
{
    return (struct cdi_peer_error){.keys = &b->world.keys,
                                   .prefix = b->prefix,
                                   .rank = b->world.rank,
                                   .size = b->world.size,
                                   .of_job = cdi_rank_of_job(&b->world, b->world.rank)};
}

/* The first rank that fails says why, for those that NCCL leaves waiting. */
void cdi_watch_tell(struct cdi_backend *b)
{
    const struct cdi_peer_error w = word_of(b);
    struct cdi_error why;

    if (!atomic_load(&b->failed) || atomic_exchange(&b->telling, true))
        return;
    (void)pthread_mutex_lock(&b->word);
    while (!b->complete)
        (void)pthread_cond_wait(&b->news, &b->word);
    why = b->error;
    (void)pthread_mutex_unlock(&b->word);
    if (!atomic_load(&b->told_by_peer))
        cdi_peer_error_tell(&w, &why);
    (void)pthread_mutex_lock(&b->word);
    b->told = true;
    (void)pthread_cond_broadcast(&b->news);
    (void)pthread_mutex_unlock(&b->word);
}

/* Also the end of the store itself, which is the end of its host. */
void cdi_watch_listen(struct cdi_backend *b)
{
    const struct cdi_peer_error w = word_of(b);
    struct cdi_error err;
    cddp_status st;

    (void)atomic_fetch_add(&b->in_store, 1);
    st = cdi_peer_error_heard(&w, &err);
    (void)atomic_fetch_sub(&b->in_store, 1);
    if (st == CDDP_OK)
        return;
    atomic_store(&b->told_by_peer, true);
    (void)cdi_gpu_fail(b, &err);
}

/* --------------------------------------------------------------------------------------------- what can happen ---- */

void cdi_gpu_too_late(struct cdi_backend *b, const struct cdi_glance *what)
{
    struct cdi_rank_list peers = {0};

    if (what->number == 0)
        cdi_gpu_peers(b, what->ticket, &peers);
    (void)pthread_mutex_lock(&b->word);
    if (!atomic_load(&b->failed)) {
        (void)cdi_fail(&b->error, CDDP_E_TIMEOUT, "%s: not done within %.4g s", what->op,
                       (double)b->world.timeout_ms / 1000);
        b->late = true;
        b->late_op = *what;
        b->late_peers = peers;
        atomic_store(&b->failed, true);
    }
    (void)pthread_cond_broadcast(&b->news);
    (void)pthread_mutex_unlock(&b->word);
}

/*
 * Who did not come: to a message its peers, of which NCCL does not say one. To a collective those of whom the store
 * does not know that they are in it, too: several exchanges, and any of them may take long.
 */
static void find_late(const struct cdi_backend *b, struct cdi_error *err)
{
    const struct cdi_peer_error w = word_of(b);
    struct cdi_rank_list late = b->late_peers; /* this and late_op do not change any more */
    const char *op = b->late_op.op;
    double seconds = (double)b->world.timeout_ms / 1000;

    if (b->late_op.number != 0)
        cdi_peer_error_late(&w, b->late_op.number, &late);
    if (cdi_host->flight_check(b->world.flight, err) != CDDP_OK) /* that is why */
        return;
    if (late.n > 1 && b->late_op.number == 0)
        (void)cdi_fail(err, CDDP_E_TIMEOUT, "%s: one of ranks %s did not come within %.4g s", op, late.text, seconds);
    else if (late.n > 0)
        (void)cdi_fail_by(err, cdi_rank_of_job(&b->world, late.first), CDDP_E_TIMEOUT,
                          "%s: rank%s %s did not come within %.4g s", op, late.n == 1 ? "" : "s", late.text, seconds);
    else
        (void)cdi_fail(err, CDDP_E_TIMEOUT,
                       "%s: not done within %.4g s, though every rank has come to it: ranks may have called different "
                       "collectives, or the network is stuck",
                       op, seconds);
}

void cdi_watch_name_late(struct cdi_backend *b)
{
    struct cdi_error err;
    bool asked;

    (void)pthread_mutex_lock(&b->word);
    asked = b->late;
    (void)pthread_mutex_unlock(&b->word);
    if (!asked)
        return;
    find_late(b, &err);
    (void)pthread_mutex_lock(&b->word);
    if (!b->complete)
        b->error = err;
    b->named = true;
    (void)pthread_cond_broadcast(&b->news);
    (void)pthread_mutex_unlock(&b->word);
}

/* Nothing is under way, nor coming, only where `lock` is to be had: else its holder may be about to wait for peers. */
static bool glance_at(struct cdi_backend *b, struct cdi_glance *g)
{
    bool rests = cdi_capture_poll(b);
    bool alone = pthread_mutex_trylock(&b->lock) == 0;

    if (cdi_gpu_poll(b) && alone) {
        (void)pthread_mutex_lock(&b->word);
        b->busy = false;
        (void)pthread_mutex_unlock(&b->word);
    }
    cdi_gpu_current(b, g);
    if (!rests && *g->op == '\0')
        cdi_capture_current(b, g);
    if (alone)
        (void)pthread_mutex_unlock(&b->lock);
    return alone;
}

/*
 * The tending thread asks the store, which may be long in answering while this thread sees to deadlines and aborts. If
 * that one has not taken up the last request, and is not at it, it hangs in the driver.
 */
static void have_store_asked(struct cdi_backend *b)
{
    if (atomic_exchange(&b->ask_store, true) && atomic_load(&b->in_store) == 0)
        cdi_watch_listen(b);
}

/* looked_ms: the last look, or the end of the last idle time. */
static void look(struct cdi_backend *b, int64_t *looked_ms, int64_t *next_store_ms)
{
    int64_t now_ms = cdi_now_ms(), lost_ms = now_ms - *looked_ms - LOOK_MS;
    struct cdi_glance g;
    bool alone;

    *looked_ms = now_ms;
    if (lost_ms > STOPPED_MS)
        cdi_gpu_forgive(b, lost_ms);

    if (cdi_gpu_health_now(b, NULL) != CDDP_OK)
        return;
    alone = glance_at(b, &g);
    if (g.since_ms > 0 && now_ms - g.since_ms > b->world.timeout_ms)
        cdi_gpu_too_late(b, &g);
    else if (alone && (g.since_ms == 0 || now_ms - g.since_ms < STORE_AFTER_MS))
        return;
    if (now_ms >= *next_store_ms && cdi_gpu_health_now(b, NULL) == CDDP_OK) {
        have_store_asked(b);
        *next_store_ms = now_ms + STORE_EVERY_MS;
    }
}

/* ----------------------------------------------------------------------------------------------------- the end ---- */

bool cdi_nccl_enter(struct cdi_backend *b)
{
    (void)atomic_fetch_add(&b->inside, 1);
    if (!atomic_load(&b->failed))
        return true;
    cdi_nccl_leave(b);
    return false;
}

void cdi_nccl_leave(struct cdi_backend *b)
{
    (void)atomic_fetch_sub(&b->inside, 1);
}

/* Who was late is told by another thread, in its time: the abort does not wait for a store that does not answer. */
static void await_named(struct cdi_backend *b)
{
    const struct timespec until = at_ms(cdi_now_ms() + NAME_MS);

    (void)pthread_mutex_lock(&b->word);
    while (b->late && b->tending && !b->named)
        if (pthread_cond_timedwait(&b->news, &b->word, &until) == ETIMEDOUT)
            break;
    (void)pthread_mutex_unlock(&b->word);
}

/* The sentence of a death says who; add what this rank was at. */
static void complete_sentence(struct cdi_backend *b)
{
    struct cdi_glance g;
    const char *op = g.op;
    size_t len;

    (void)cdi_gpu_poll(b);
    cdi_gpu_current(b, &g);
    if (*op == '\0' && !cdi_capture_poll(b))
        cdi_capture_current(b, &g);
    (void)pthread_mutex_lock(&b->word);
    len = strlen(b->error.msg);
    if (*op != '\0' && strstr(b->error.msg, op) == NULL && len + sizeof g.op + 32 < sizeof b->error.msg)
        (void)snprintf(b->error.msg + len, sizeof b->error.msg - len, "; this rank was in %s", op);
    b->complete = true;
    (void)pthread_cond_broadcast(&b->news);
    (void)pthread_mutex_unlock(&b->word);
}

/* Peers hear of it before memory goes that theirs may be reading; but not at any price. */
static void await_told(struct cdi_backend *b)
{
    const struct timespec until = at_ms(cdi_now_ms() + TELL_MS);

    (void)pthread_mutex_lock(&b->word);
    while (b->tending && !b->told)
        if (pthread_cond_timedwait(&b->news, &b->word, &until) == ETIMEDOUT)
            break;
    (void)pthread_mutex_unlock(&b->word);
}

static void await_outside(const struct cdi_backend *b)
{
    int64_t until_ms = cdi_now_ms() + INSIDE_MS;
    const struct timespec nap = {.tv_nsec = 100000};

    while (atomic_load(&b->inside) > 0 && cdi_now_ms() < until_ms)
        (void)nanosleep(&nap, NULL);
}

/*
 * The abort ends what replays wait for at once, and comes back when the graphs are gone: commDestroySync in init.cc
 * (v2.19.3 to v2.30.7) keeps on "until all graphs referencing us die". Callers do not wait for that.
 */
static void let_callers_go(struct cdi_backend *b)
{
    if (atomic_load(&b->captured.n_groups) == 0)
        return;
    (void)pthread_mutex_lock(&b->word);
    b->held = true;
    (void)pthread_cond_broadcast(&b->news);
    (void)pthread_mutex_unlock(&b->word);
    cdi_watch_tell(b);
}

/*
 * No lock is held over the abort, which joins threads of NCCL's and may take long: callers find the communicator
 * failed, and go. Its first act sets the flags that end what waits for peers (ncclCommAbort in init.cc,
 * setCommAbortFlags), and so also a call of the driver that waits for that.
 */
static void end_it(struct cdi_backend *b)
{
    await_named(b);
    complete_sentence(b);
    await_told(b);
    /* NCCL frees what a call aside is about: one that waits for a peer stays, with all that it uses. */
    if (b->aside != NULL && !cdi_call_thread_await(b->aside, INSIDE_MS)) {
        cdi_watch_tell(b);
        (void)pthread_mutex_lock(&b->word);
        b->abandoned = true;
        (void)pthread_cond_broadcast(&b->news);
        (void)pthread_mutex_unlock(&b->word);
        return;
    }
    await_outside(b);
    let_callers_go(b);
    b->aborted = b->comm != NULL;
    if (b->aborted)
        (void)cdi_nccl.comm_abort(b->comm);
    (void)cdi_device_enter(&b->device, NULL); /* without it, nothing runs any more */
    (void)cdi_completion_drain(b); /* what is behind the aborted collectives, copies and kernels, runs to its end */
    cdi_device_leave(&b->device);
    cdi_watch_tell(b);
    (void)pthread_mutex_lock(&b->word);
    b->ended = true;
    (void)pthread_cond_broadcast(&b->news);
    (void)pthread_mutex_unlock(&b->word);
}

static void *watch_main(void *arg)
{
    struct cdi_backend *b = arg;
    int64_t next_store_ms = 0, looked_ms = cdi_now_ms();

    while (cdi_watch_pause(b, LOOK_MS, &looked_ms))
        look(b, &looked_ms, &next_store_ms);
    if (atomic_load(&b->failed))
        end_it(b);
    return NULL;
}

/* ----------------------------------------------------------------------------------------------- the threads ---- */

bool cdi_watch_pause(struct cdi_backend *b, int64_t ms, int64_t *idle_until_ms)
{
    int64_t now_ms = cdi_now_ms();
    bool go_on, slept = false;

    (void)pthread_mutex_lock(&b->word);
    while (!b->stopping && !atomic_load(&b->failed) && !slept) {
        const struct timespec until = at_ms(now_ms + (b->busy ? ms : REPLAY_MS));

        if (!b->busy && atomic_load(&b->captured.n_groups) == 0) {
            (void)pthread_cond_wait(&b->news, &b->word);
            if (idle_until_ms != NULL)
                *idle_until_ms = cdi_now_ms();
        } else
            slept = pthread_cond_timedwait(&b->news, &b->word, &until) == ETIMEDOUT;
    }
    go_on = !b->stopping && !atomic_load(&b->failed);
    (void)pthread_mutex_unlock(&b->word);
    return go_on;
}

cddp_status cdi_watch_thread(struct cdi_backend *b, pthread_t *out, void *(*run)(void *b), struct cdi_error *err)
{
    int rc = cdi_thread_create(out, STACK_BYTES, run, b);

    return rc == 0 ? CDDP_OK : cdi_fail_errno(err, rc, "starting a thread for a communicator");
}

cddp_status cdi_watch_start(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = cdi_progress_start(b, err);

    b->tending = st == CDDP_OK;
    if (st == CDDP_OK)
        st = cdi_watch_thread(b, &b->watch, watch_main, err);
    b->watching = st == CDDP_OK;
    return st;
}

bool cdi_watch_stop(struct cdi_backend *b)
{
    if (b->watching && !cdi_gpu_is_at_rest(b)) {
        (void)pthread_detach(b->watch);
        (void)pthread_detach(b->tender);
        return false;
    }
    (void)pthread_mutex_lock(&b->word);
    b->stopping = true;
    b->complete = b->complete || !b->watching; /* nobody else is there to say so */
    (void)pthread_cond_broadcast(&b->news);
    (void)pthread_mutex_unlock(&b->word);
    if (b->watching)
        (void)pthread_join(b->watch, NULL);
    if (b->tending)
        (void)pthread_join(b->tender, NULL);
    b->watching = b->tending = false;
    return true;
}
