/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages, and waits for them. MPI itself waits forever, and does not report that a rank is gone. So messages in
 * transit are polled, and in between this rank checks the events that can end the wait: the deadline, an abort, the
 * agent's page, the state of processes of this node, and, from time to time, the job's store, where ranks report
 * failures.
 */
#include "common/clock.h"
#include "worker/backend/describe.h"
#include "worker/backend/mpi/state.h"
#include "worker/backend/spin.h"
#include "worker/backend/who.h"

#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define MEGA ((size_t)1 << 20)
#define SPIN_POLLS 200 /* before the thread yields */
#define NAP_AFTER_US 5000
#define NAP_US_MAX 500
#define NEIGHBOURS_EVERY_MS 20
#define STORE_AFTER_MS 50 /* then doubled, up to: */
#define STORE_EVERY_MS 1000
#define SERIES "at" /* of the numbers of collectives */
#define CANCEL_MS 100
#define LEFT_MS 1000 /* for messages that a rank sent before it left */

struct cdi_peer_error cdi_mpi_peer_error(const struct cdi_backend *b)
{
    return (struct cdi_peer_error){
        .keys = &b->world.keys, .prefix = "mpi/", .rank = b->world.rank, .size = b->world.size, .ranks = b->world_rank};
}

void cdi_mpi_what(const struct cdi_work *work, char *buf, size_t cap)
{
    if (work->is_region)
        (void)snprintf(buf, cap, "making memory of %zu bytes", work->region_bytes);
    else
        cdi_coll_text(&work->op, buf, cap);
}

/* ------------------------------------------------------------------------------------------------- messages ---- */

/* Starts one message of `count` elements; the sets have room for two per transfer. */
static cddp_status post(struct cdi_backend *b, struct cdi_requests *q, void *p, size_t count, MPI_Datatype type,
                        bool receives, int peer, enum cdi_mpi_tag tag, struct cdi_error *err)
{
    int rc, at = b->first_tag + (int)tag, rank = b->world_rank[peer];

    if (q->n >= q->cap)
        return cdi_fail(err, CDDP_E_LIMIT, "more than %d messages at once", q->cap);
    if (receives)
        rc = CDI_MPI(MPI_Irecv(p, (int)count, type, rank, at, b->process->comm, &q->req[q->n]));
    else
        rc = CDI_MPI(MPI_Isend(p, (int)count, type, rank, at, b->process->comm, &q->req[q->n]));
    if (rc != MPI_SUCCESS)
        return cdi_mpi_fail(rc, receives ? "receiving" : "sending", err);
    q->receives[q->n++] = receives;
    return CDDP_OK;
}

static cddp_status await_transfer(struct cdi_backend *b, struct cdi_requests *q, void *p, size_t bytes, bool receives,
                                  int peer, enum cdi_mpi_tag tag, struct cdi_error *err)
{
    size_t whole = bytes > INT32_MAX ? bytes / MEGA : 0;
    cddp_status st = CDDP_OK;

    if (whole > 0)
        st = post(b, q, p, whole, b->process->mega, receives, peer, tag, err);
    if (st == CDDP_OK && bytes > whole * MEGA)
        st = post(b, q, (uint8_t *)p + whole * MEGA, bytes - whole * MEGA, MPI_BYTE, receives, peer, tag, err);
    return st;
}

cddp_status cdi_mpi_send(struct cdi_backend *b, struct cdi_requests *q, const void *p, size_t bytes, int to,
                         enum cdi_mpi_tag tag, struct cdi_error *err)
{
    return await_transfer(b, q, (void *)(uintptr_t)p, bytes, false, to, tag, err);
}

cddp_status cdi_mpi_receive(struct cdi_backend *b, struct cdi_requests *q, void *p, size_t bytes, int from,
                            enum cdi_mpi_tag tag, struct cdi_error *err)
{
    return await_transfer(b, q, p, bytes, true, from, tag, err);
}

/* -------------------------------------------------------------------------------------- events that end a wait ---- */

struct watch {
    int64_t since_ns, now_ns;
    int64_t neighbours_ns, store_ns, store_step_ns;
    int64_t left_ns; /* when a rank that this rank waits for was found to have left; 0: none */
};

/* Returns how many collectives a rank had begun when it left; -1: it has not left, or the store does not know. */
static int64_t count_at_leave(const struct cdi_mpi_run *run, int rank)
{
    const struct cdi_peer_error w = cdi_mpi_peer_error(run->b);
    char name[32], key[CDI_PEER_ERROR_KEY_BYTES];
    int64_t n = 0;

    (void)snprintf(name, sizeof name, "left/%d", rank);
    cdi_peer_error_key(&w, name, key);
    return cdi_peer_error_has_peers(&w) && w.keys->add(w.keys->arg, key, 0, &n, NULL) == CDDP_OK ? n - 1 : -1;
}

static cddp_status report_left(const struct cdi_backend *b, int rank, struct cdi_error *err)
{
    return cdi_fail_by(err, b->world_rank[rank], CDDP_E_PEER, "%s " CDI_HAS_LEFT, cdi_who(b->world_rank, rank).text);
}

/* Finds the first of the ranks that have left: the others miss it first. */
static void find_first_left(struct cdi_mpi_run *run, int64_t n)
{
    struct cdi_backend *b = run->b;

    for (int r = 0; r < b->world.size; r++) {
        int64_t after = r != b->world.rank ? count_at_leave(run, r) : -1;

        if (after >= 0 && (b->n_left == 0 || after < b->left_after)) {
            b->left_rank = r;
            b->left_after = after;
        }
    }
    b->n_left = n;
}

/* A rank that left after its part of the running operation does not end it. */
static cddp_status await_check_left(struct cdi_mpi_run *run, struct watch *w, struct cdi_error *err)
{
    struct cdi_backend *b = run->b;
    const struct cdi_peer_error peer = cdi_mpi_peer_error(b);
    char key[CDI_PEER_ERROR_KEY_BYTES];
    int64_t n = 0;

    cdi_peer_error_key(&peer, "left", key);
    if (!cdi_peer_error_has_peers(&peer) || peer.keys->add(peer.keys->arg, key, 0, &n, NULL) != CDDP_OK || n == 0)
        return CDDP_OK;
    if (run->peer >= 0) { /* its last message may still be in transit */
        if (count_at_leave(run, run->peer) < 0)
            return CDDP_OK;
        w->left_ns = w->left_ns == 0 ? w->now_ns : w->left_ns;
        return w->now_ns - w->left_ns < LEFT_MS * 1000000 ? CDDP_OK : report_left(b, run->peer, err);
    }
    if (n > b->n_left)
        find_first_left(run, n);
    return b->left_after < (int64_t)run->number ? report_left(b, b->left_rank, err) : CDDP_OK;
}

/* The kernel reports the end of a process of this node; one that has left the job may end. */
static cddp_status await_check_host(struct cdi_mpi_run *run, struct cdi_error *err)
{
    struct cdi_backend *b = run->b;
    const struct cdi_peer_error peer = cdi_mpi_peer_error(b);
    cddp_status st;

    for (int r = 0; r < b->world.size; r++) {
        struct pollfd p = {.fd = b->neighbours[r].pidfd, .events = POLLIN};
        char what[160], pid[32];

        if (p.fd < 0 || poll(&p, 1, 0) != 1 || count_at_leave(run, r) >= 0)
            continue;
        /* It may have ended because of another rank's failure, and has then reported it, unless it hosted the store. */
        st = cdi_peer_error_heard(&peer, err);
        if (st != CDDP_OK && st != CDDP_E_IO && st != CDDP_E_CLOSED) {
            atomic_store(&b->failure_sent, true);
            return st;
        }
        cdi_mpi_what(run->work, what, sizeof what);
        (void)snprintf(pid, sizeof pid, "pid %d", b->neighbours[r].pid);
        return cdi_fail_by(err, b->world_rank[r], CDDP_E_PEER, "%s died; this rank was in %s",
                           cdi_who_note(b->world_rank, r, pid).text, what);
    }
    return CDDP_OK;
}

void cdi_mpi_tell_peers(struct cdi_backend *b, const struct cdi_error *why)
{
    const struct cdi_peer_error peer = cdi_mpi_peer_error(b);

    if (atomic_exchange(&b->failure_sent, true))
        return;
    cdi_peer_error_tell(&peer, why);
    /* NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker): no thread waits for it; once freed, it ends by itself. */
    for (int r = 0; r < b->world.size && b->process->own_threads; r++) {
        MPI_Request request;

        if (r != b->world.rank && CDI_MPI(MPI_Isend(NULL, 0, MPI_BYTE, b->world_rank[r], b->first_tag + CDI_TAG_FAILED,
                                                    b->process->comm, &request)) == MPI_SUCCESS)
            (void)CDI_MPI(MPI_Request_free(&request));
    }
    /* NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker) */
}

cddp_status cdi_mpi_peer_failure(struct cdi_backend *b, struct cdi_error *err)
{
    const struct cdi_peer_error peer = cdi_mpi_peer_error(b);
    int there = 0, rc = MPI_SUCCESS;
    cddp_status st = CDDP_OK;

    /* The first call may only receive the message. */
    for (int i = 0; i < 2 && rc == MPI_SUCCESS && !there && b->world.size > 1 && b->queue != NULL; i++)
        rc = CDI_MPI(
            MPI_Iprobe(MPI_ANY_SOURCE, b->first_tag + CDI_TAG_FAILED, b->process->comm, &there, MPI_STATUS_IGNORE));
    if (rc == MPI_SUCCESS && there)
        st = cdi_peer_error_heard(&peer, err);
    if (st != CDDP_OK)
        atomic_store(&b->failure_sent, true);
    return st;
}

static cddp_status await_check_peers(struct cdi_mpi_run *run, struct watch *w, struct cdi_error *err)
{
    const struct cdi_peer_error peer = cdi_mpi_peer_error(run->b);
    cddp_status st = cdi_peer_error_heard(&peer, err);

    if (run->number != 0)
        cdi_peer_error_tell_place(&peer, SERIES, &run->b->place, run->number);
    /* An aborting rank has connected: its messages to ranks that still connect are in transit. */
    if (st == CDDP_E_ABORTED && run->b->queue == NULL)
        return CDDP_OK;
    if (st != CDDP_OK)
        atomic_store(&run->b->failure_sent, true);
    return st == CDDP_OK ? await_check_left(run, w, err) : st;
}

static cddp_status await_timed_out(struct cdi_mpi_run *run, struct cdi_error *err)
{
    const struct cdi_peer_error w = cdi_mpi_peer_error(run->b);
    struct cdi_rank_list late = {0};
    bool known = true;
    char what[160];
    int of_job;

    cdi_mpi_what(run->work, what, sizeof what);
    if (run->peer >= 0)
        cdi_rank_list_add(&late, run->peer);
    else
        known = cdi_peer_error_late(&w, SERIES, run->number, &late);
    of_job = late.n > 0 ? run->b->world_rank[late.first] : -1;
    if (late.n > 0)
        return cdi_fail_by(err, of_job, CDDP_E_TIMEOUT, "%s: %s did not arrive within %.4g s", what,
                           cdi_who_list(run->b->world_rank, &late).text, (double)run->timeout_ms / 1000);
    return cdi_fail(err, CDDP_E_TIMEOUT, "%s: not done within %.4g s%s", what, (double)run->timeout_ms / 1000,
                    known ? ", though every rank has come to it: the network may be stuck" : "");
}

/* Stopped by abort, whose reason is in the queue, or by destroy, where no caller reads it. */
static cddp_status stopped(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = b->queue != NULL ? cdi_queue_health(b->queue, err) : CDDP_OK;

    return st != CDDP_OK ? st : cdi_fail(err, CDDP_E_ABORTED, "the communicator is being destroyed");
}

static cddp_status await_check(struct cdi_mpi_run *run, struct watch *w, struct cdi_error *err)
{
    struct cdi_backend *b = run->b;
    cddp_status st = atomic_load(&b->stopped) ? stopped(b, err) : cdi_flight_check(b->world.flight, err);

    w->now_ns = cdi_now_ns();
    if (st == CDDP_OK && w->now_ns >= w->neighbours_ns) {
        w->neighbours_ns = w->now_ns + NEIGHBOURS_EVERY_MS * 1000000;
        st = cdi_mpi_peer_failure(b, err);
        if (st == CDDP_OK)
            st = await_check_host(run, err);
    }
    if (st == CDDP_OK && w->now_ns >= w->store_ns) {
        st = await_check_peers(run, w, err);
        w->store_ns = cdi_now_ns() + w->store_step_ns;
        w->store_step_ns *= w->store_step_ns < STORE_EVERY_MS * 1000000 / 2 ? 2 : 1;
    }
    if (st == CDDP_OK && w->now_ns - w->since_ns > run->timeout_ms * 1000000)
        st = await_timed_out(run, err);
    return st;
}

/* MPI moves data only during calls: the longer a wait, the longer the sleeps. */
static void rest(const struct watch *w, int polls)
{
    int64_t waited_us = (w->now_ns - w->since_ns) / 1000;
    struct timespec nap = {.tv_nsec = 0};

    if (polls < SPIN_POLLS) {
        cdi_pause();
    } else if (waited_us < NAP_AFTER_US) {
        (void)sched_yield();
    } else {
        nap.tv_nsec = (waited_us / 100 < NAP_US_MAX ? waited_us / 100 : NAP_US_MAX) * 1000;
        (void)nanosleep(&nap, NULL);
    }
}

cddp_status cdi_mpi_test(struct cdi_requests *q, bool *done, struct cdi_error *err)
{
    int all = 1, rc = q->n > 0 ? CDI_MPI(MPI_Testall(q->n, q->req, &all, MPI_STATUSES_IGNORE)) : MPI_SUCCESS;

    if (rc != MPI_SUCCESS)
        return cdi_mpi_fail(rc, "moving data", err);
    if (all)
        q->n = 0;
    *done = all != 0;
    return CDDP_OK;
}

cddp_status cdi_mpi_poll(struct cdi_mpi_run *run, cdi_mpi_step step, void *arg, struct cdi_error *err)
{
    struct watch w;
    enum cdi_mpi_progress got = CDI_MPI_NOTHING;
    cddp_status st = step(arg, &got, err);

    if (st != CDDP_OK || got == CDI_MPI_DONE)
        return st;
    w = (struct watch){.since_ns = cdi_now_ns(), .store_step_ns = STORE_AFTER_MS * 1000000};
    w.neighbours_ns = w.since_ns + NEIGHBOURS_EVERY_MS * 1000000;
    w.store_ns = w.since_ns + STORE_AFTER_MS * 1000000;
    for (int polls = 0; st == CDDP_OK; polls++) {
        got = CDI_MPI_NOTHING;
        st = step(arg, &got, err);
        if (st != CDDP_OK || got == CDI_MPI_DONE)
            return st;
        st = await_check(run, &w, err);
        if (got == CDI_MPI_MOVED) { /* the next wait begins */
            w.since_ns = w.now_ns;
            polls = 0;
        }
        rest(&w, polls);
    }
    return st;
}

static cddp_status until_all(void *arg, enum cdi_mpi_progress *got, struct cdi_error *err)
{
    bool done = false;
    cddp_status st = cdi_mpi_test(arg, &done, err);

    if (done)
        *got = CDI_MPI_DONE;
    return st;
}

cddp_status cdi_mpi_await(struct cdi_mpi_run *run, struct cdi_requests *q, struct cdi_error *err)
{
    return q->n > 0 ? cdi_mpi_poll(run, until_all, q, err) : CDDP_OK;
}

/* ----------------------------------------------------------------------------------------------------- failure ---- */

static void await_cancel(struct cdi_requests *q)
{
    for (int i = 0; i < q->n; i++)
        if (q->receives[i] && q->req[i] != MPI_REQUEST_NULL)
            (void)CDI_MPI(MPI_Cancel(&q->req[i]));
}

/* Sends cannot be cancelled; they only read. */
static bool receives_ended(struct cdi_requests *q)
{
    bool ended = true;

    for (int i = 0; i < q->n; i++) {
        int done = 1;

        if (q->req[i] != MPI_REQUEST_NULL && CDI_MPI(MPI_Test(&q->req[i], &done, MPI_STATUS_IGNORE)) != MPI_SUCCESS)
            done = 0;
        ended = ended && (done || !q->receives[i]);
    }
    return ended;
}

/* Returns the i-th set of requests of the backend. */
static struct cdi_requests *set_of(struct cdi_backend *b, int i)
{
    if (i < CDI_SETS)
        return &b->parts[i];
    return i < 2 * CDI_SETS ? &b->results[i - CDI_SETS] : &b->pairs[i - 2 * CDI_SETS].q;
}

void cdi_mpi_give_up(struct cdi_backend *b)
{
    int64_t until_ms = cdi_now_ms() + CANCEL_MS;
    const struct timespec nap = {.tv_nsec = 200000};
    int n_sets = 2 * CDI_SETS + b->world.size;
    bool ended = false;

    cdi_mpi_process_broken();
    for (int i = 0; i < n_sets; i++)
        await_cancel(set_of(b, i));
    while (!ended && cdi_now_ms() < until_ms) {
        ended = true;
        for (int i = 0; i < n_sets; i++)
            ended = receives_ended(set_of(b, i)) && ended;
        if (!ended)
            (void)nanosleep(&nap, NULL);
    }
    b->in_use_by_mpi = true; /* a send may still be in transit */
}
