/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a rank waits for its peers: it spins while that costs the others nothing, yields for a moment, then sleeps. A
 * wait ends with the peer's counter, an abort, a notice of the agent, a death, a goodbye, or the deadline.
 */
#ifndef CDI_NODE_WAIT_H
#define CDI_NODE_WAIT_H

#include "protocol/flight.h"
#include "worker/backend/cpu/node/shm.h"

struct cdi_wait {
    struct cdi_shm *shm;
    struct cdi_flight *flight;
    const int *ranks; /* as in struct cdi_world */
    int64_t timeout_ms;
    int spins_inline; /* pauses before the caller's own thread yields; fewer if the peer has to run on its processor */
    int spins_thread; /* the same for the communication thread, beside which the caller's thread computes */
    bool yields;      /* yielding lets a peer run */
    int late; /* the local rank that the last cdi_wait_all() has seen arriving last; itself: it waited for none */
    int64_t aside_ms; /* the earliest time at which this rank may move to another processor again */
    bool no_waitv;    /* this kernel has no futex_waitv */
    int64_t slack_ms; /* added to the timeout where another rank waits first and knows the cause; the timeout then
                         restarts whenever a rank of the node has moved data */
};

/* Initialises *w. All ranks of the node have mapped shm. */
void cdi_wait_init(struct cdi_wait *w, struct cdi_shm *shm, struct cdi_flight *flight, int64_t timeout_ms);

/* Returns what has ended all waits: CDDP_OK, the error of an abort, CDDP_E_PEER or CDDP_E_ABORTED of the agent. Two
 * loads. */
cddp_status cdi_wait_check(const struct cdi_wait *w, struct cdi_error *err);

/* Returns the same without a wait, and also finds ranks of this node that died or left. Any thread. */
cddp_status cdi_wait_peek(const struct cdi_wait *w, struct cdi_error *err);

/*
 * Returns CDDP_E_PEER if one of these n ranks of the job is on this node and has died, or ended all waits by its death
 * or goodbye; otherwise CDDP_OK. Any thread.
 */
cddp_status cdi_wait_check_ranks(const struct cdi_wait *w, const int *of_job, int n, struct cdi_error *err);

/*
 * Blocks until every rank has posted `step`. `mine` was just set to it. This call wakes the ranks that sleep on it, a
 * microsecond later, since a wake-up takes longer than the whole wait where all ranks spin. `what` is called only on
 * failure, and writes the name of the operation for the error message. One thread at a time. CDDP_OK, CDDP_E_PEER,
 * CDDP_E_ABORTED, CDDP_E_TIMEOUT (names the ranks that are missing), or the status of a peer's abort.
 */
cddp_status cdi_wait_all(struct cdi_wait *w, struct cdi_counter *mine, uint32_t step, bool on_thread,
                         void (*what)(const void *arg, char *buf, size_t cap), const void *arg, struct cdi_error *err);

/* Waits like cdi_wait_all(), but until `c`, which local rank `rank` posts, has reached `step`. */
cddp_status cdi_wait_counter(struct cdi_wait *w, int rank, struct cdi_counter *c, uint32_t step, bool on_thread,
                             void (*what)(const void *arg, char *buf, size_t cap), const void *arg,
                             struct cdi_error *err);

/* Returns the rank of the job that a rank of this communicator is, for errors. */
static inline int cdi_wait_rank_of_job(const struct cdi_wait *w, int rank)
{
    return w->ranks != NULL ? w->ranks[rank] : rank;
}

/* Publishes, for errors of other ranks, that this rank sleeps until `rank` arrives (in the world; -1: none). */
void cdi_wait_note_peer(const struct cdi_wait *w, int rank);

/*
 * Returns how long this process did not run since the last call, in ms; 0 if that is less than a second. A signal may
 * have stopped it, or its control group was frozen, perhaps with the other ranks. Pure. *looked_ms is the time of the
 * last call, and becomes `now`. slice_ms is the longest sleep between two calls.
 */
int64_t cdi_wait_stopped_ms(int64_t *looked_ms, int64_t now, int64_t slice_ms);

/* Returns a number that changes whenever a rank of the node has moved data over the network. */
uint32_t cdi_wait_moved(const struct cdi_wait *w);

/* Sets *err to the death of a rank (in the world); waits a moment for the agent, whose message has the cause. */
cddp_status cdi_wait_report_death(const struct cdi_wait *w, int rank, const char *how, struct cdi_error *err);

/* The same for local rank `rank`, which may instead have left the job or aborted with a reason. */
cddp_status cdi_wait_report_end(const struct cdi_wait *w, int rank, struct cdi_error *err);

/* Returns a local rank that died, and sets *err as cdi_wait_report_death() does; or -1. */
int cdi_wait_find_dead(struct cdi_wait *w, struct cdi_error *err);

#endif
