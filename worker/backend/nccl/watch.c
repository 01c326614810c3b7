/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch thread of a communicator. While operations are under way it looks, every millisecond, at their events (for
 * the flight page), at what the agent says, at NCCL's own errors, at the deadline, and now and then at the job's store,
 * where peers tell of their failures. On the first failure it completes the flight page, aborts the communicator, so
 * that everything enqueued ends, and tells the peers.
 */
#include "common/clock.h"
#include "worker/backend/nccl/state.h"
#include "worker/word.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOOK_MS 1
#define STORE_AFTER_MS 200 /* an operation that takes longer may be waiting for a rank that has failed */
#define STORE_EVERY_MS 250
#define WORD_OF_PEERS_MS 1000 /* NCCL notices that a peer is gone; who it was others know, a moment later */
#define END_MS 5000           /* for an abort */
#define DRAIN_MS 2000
#define LAST_CALL_MS 200
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
    if (err != NULL)
        *err = b->error;
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
    while (b->watching && !b->ended && !b->abandoned)
        if (pthread_cond_timedwait(&b->news, &b->word, &until) == ETIMEDOUT)
            b->abandoned = true; /* nobody waits for it a second time */
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

static struct cdi_word word_of(const struct cdi_backend *b)
{
    return (struct cdi_word){.keys = &b->world.keys, .prefix = b->prefix, .rank = b->world.rank, .size = b->world.size};
}

/* The first rank that fails says why, for those that NCCL leaves waiting. */
static void tell_peers(struct cdi_backend *b)
{
    const struct cdi_word w = word_of(b);
    struct cdi_error why;

    if (b->told_by_peer)
        return;
    (void)pthread_mutex_lock(&b->word);
    why = b->error;
    (void)pthread_mutex_unlock(&b->word);
    cdi_word_tell(&w, &why);
}

/* Has a peer said so? Also the end of the store itself, which is the end of its host. */
static void listen_to_peers(struct cdi_backend *b)
{
    const struct cdi_word w = word_of(b);
    struct cdi_error err;

    if (cdi_word_heard(&w, &err) == CDDP_OK)
        return;
    b->told_by_peer = true;
    (void)cdi_gpu_fail(b, &err);
}

/* --------------------------------------------------------------------------------------------- what can happen ---- */

/* NCCL says that something is wrong. Who is gone, the agent or a peer says in a moment; it is the better sentence. */
static void async_error(struct cdi_backend *b, ncclResult_t r, const char *op)
{
    int64_t until_ms = cdi_now_ms() + WORD_OF_PEERS_MS;
    struct cdi_error err;

    while (cdi_gpu_health_now(b, NULL) == CDDP_OK && cdi_now_ms() < until_ms) {
        const struct timespec nap = {.tv_nsec = 20000000};

        listen_to_peers(b);
        (void)nanosleep(&nap, NULL);
    }
    (void)cdi_nccl_fail(b, r, *op != '\0' ? op : "the communicator", &err);
    if (err.status == CDDP_E_PEER)
        (void)cdi_fail(&err, CDDP_E_PEER, "%.900s; a peer is gone, and nobody has said which", err.msg);
    (void)cdi_gpu_fail(b, &err);
}

void cdi_gpu_too_late(struct cdi_backend *b, const char *op, uint64_t ticket)
{
    const struct cdi_word w = word_of(b);
    struct cdi_rank_list late = {0};
    struct cdi_error err;

    cdi_word_late(&w, ticket, &late);
    if (cdi_gpu_health_now(b, NULL) != CDDP_OK)
        return;
    if (late.n > 0)
        (void)cdi_fail(&err, CDDP_E_TIMEOUT, "%s: rank%s %s did not come within %.4g s", op, late.n == 1 ? "" : "s",
                       late.text, (double)b->world.timeout_ms / 1000);
    else
        (void)cdi_fail(&err, CDDP_E_TIMEOUT,
                       "%s: not done within %.4g s, though every rank has come to it: ranks may have called different "
                       "collectives, or the network is stuck",
                       op, (double)b->world.timeout_ms / 1000);
    (void)cdi_gpu_fail(b, &err);
}

struct glance {
    char op[CDI_OP_TEXT];
    int64_t since_ms; /* 0: the GPU has not come to it */
    uint64_t ticket;
    ncclResult_t r;
};

/* Under the lock, if it is to be had: who holds it for long polls NCCL, and looks himself. */
static bool glance_at(struct cdi_backend *b, struct glance *g)
{
    if (pthread_mutex_trylock(&b->lock) != 0)
        return false;
    g->r = cdi_communicator_state(b, b->comm, ncclInProgress);
    if (b->comm != NULL && g->r == ncclSuccess)
        (void)cdi_gpu_settle(b, g->r, NULL); /* its error sticks */
    if (cdi_gpu_poll(b) && b->issued == b->given) {
        (void)pthread_mutex_lock(&b->word);
        b->busy = false;
        (void)pthread_mutex_unlock(&b->word);
    }
    cdi_gpu_current(b, g->op, &g->since_ms);
    g->ticket = b->done + 1;
    (void)pthread_mutex_unlock(&b->lock);
    return true;
}

static void look(struct cdi_backend *b, int64_t *next_store_ms)
{
    struct glance g = {.since_ms = 0};
    int64_t now_ms = cdi_now_ms();

    if (cdi_gpu_health_now(b, NULL) != CDDP_OK)
        return;
    if (glance_at(b, &g)) {
        if (g.r != ncclSuccess && g.r != ncclInProgress)
            async_error(b, g.r, g.op);
        else if (g.since_ms > 0 && now_ms - g.since_ms > b->world.timeout_ms)
            cdi_gpu_too_late(b, g.op, g.ticket);
        else if (g.since_ms == 0 || now_ms - g.since_ms < STORE_AFTER_MS)
            return;
    }
    if (now_ms >= *next_store_ms && cdi_gpu_health_now(b, NULL) == CDDP_OK) {
        listen_to_peers(b);
        *next_store_ms = now_ms + STORE_EVERY_MS;
    }
}

/* ----------------------------------------------------------------------------------------------------- the end ---- */

/* The sentence of a death says who; add what this rank was at. With `lock`. */
static void complete_sentence(struct cdi_backend *b)
{
    char op[CDI_OP_TEXT];
    int64_t since_ms;
    size_t len;

    cdi_gpu_current(b, op, &since_ms);
    (void)pthread_mutex_lock(&b->word);
    len = strlen(b->error.msg);
    if (*op != '\0' && strstr(b->error.msg, op) == NULL && len + sizeof op + 32 < sizeof b->error.msg)
        (void)snprintf(b->error.msg + len, sizeof b->error.msg - len, "; this rank was in %s", op);
    (void)pthread_mutex_unlock(&b->word);
}

/* What is behind the aborted collectives, copies and kernels, runs to its end. */
static void drain(struct cdi_backend *b)
{
    int64_t until_ms = cdi_now_ms() + DRAIN_MS;
    const struct timespec nap = {.tv_nsec = 200000};

    if (cdi_cuda.event_record(b->tail, b->device.stream) != CUDA_SUCCESS)
        return;
    while (cdi_cuda.event_query(b->tail) == CUDA_ERROR_NOT_READY && cdi_now_ms() < until_ms)
        (void)nanosleep(&nap, NULL);
}

/*
 * Peers hear of it before memory goes that theirs may be reading. The lock is not held over the abort, which joins
 * threads of NCCL's and may take long: callers find the communicator failed, and go.
 */
static void end_it(struct cdi_backend *b)
{
    ncclComm_t comm;

    (void)pthread_mutex_lock(&b->lock);
    (void)cdi_gpu_poll(b);
    complete_sentence(b);
    comm = b->comm;
    b->comm = NULL;
    (void)pthread_mutex_unlock(&b->lock);
    tell_peers(b);
    /* NCCL frees what a call aside is about: one that waits for a peer stays, with all that it uses. */
    if (b->aside != NULL && !cdi_aside_await(b->aside, LAST_CALL_MS)) {
        (void)pthread_mutex_lock(&b->word);
        b->abandoned = true;
        (void)pthread_cond_broadcast(&b->news);
        (void)pthread_mutex_unlock(&b->word);
        return;
    }
    if (comm != NULL)
        (void)cdi_nccl.comm_abort(comm);
    (void)pthread_mutex_lock(&b->lock);
    drain(b);
    (void)pthread_mutex_unlock(&b->lock);
    (void)pthread_mutex_lock(&b->word);
    b->ended = true;
    (void)pthread_cond_broadcast(&b->news);
    (void)pthread_mutex_unlock(&b->word);
}

static void *watch_main(void *arg)
{
    struct cdi_backend *b = arg;
    int64_t next_store_ms = 0;

    cdi_device_enter(&b->device);
    (void)pthread_mutex_lock(&b->word);
    while (!b->stopping && !atomic_load(&b->failed)) {
        const struct timespec until = at_ms(cdi_now_ms() + LOOK_MS);

        if (!b->busy) {
            (void)pthread_cond_wait(&b->news, &b->word);
            continue;
        }
        (void)pthread_mutex_unlock(&b->word);
        look(b, &next_store_ms);
        (void)pthread_mutex_lock(&b->word);
        if (b->busy && !b->stopping && !atomic_load(&b->failed))
            (void)pthread_cond_timedwait(&b->news, &b->word, &until);
    }
    (void)pthread_mutex_unlock(&b->word);
    if (atomic_load(&b->failed))
        end_it(b);
    cdi_device_leave(&b->device);
    return NULL;
}

cddp_status cdi_watch_start(struct cdi_backend *b, struct cdi_error *err)
{
    sigset_t all, before;
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return cdi_fail_errno(err, rc, "starting the watch thread");
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    /* Signals are the program's: none is delivered to a thread that it does not know. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&b->watch, &attr, watch_main, b);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    b->watching = rc == 0;
    return rc == 0 ? CDDP_OK : cdi_fail_errno(err, rc, "starting the watch thread");
}

bool cdi_watch_stop(struct cdi_backend *b)
{
    if (!b->watching)
        return true;
    if (!cdi_gpu_is_at_rest(b)) {
        (void)pthread_detach(b->watch);
        return false;
    }
    (void)pthread_mutex_lock(&b->word);
    b->stopping = true;
    (void)pthread_cond_broadcast(&b->news);
    (void)pthread_mutex_unlock(&b->word);
    (void)pthread_join(b->watch, NULL);
    b->watching = false;
    return true;
}
