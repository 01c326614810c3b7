/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a rank waits for its peers: spin while that cannot hurt, yield for a moment, then sleep; and everything that ends
 * a wait: the peer's counter, an abort, the agent's word, a hang-up, a goodbye, the deadline.
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
    int spins_inline; /* pauses before yielding, when the caller's own thread waits; fewer if the peer has to run here
                       */
    int spins_thread; /* the same for the communication thread, beside which the caller's thread computes */
    bool yields;      /* yielding lets a peer run */
    int64_t aside_ms; /* not before may this rank move to another processor again */
    bool no_waitv;    /* this kernel has no futex_waitv */
    int64_t slack_ms; /* beyond the timeout: for ranks that wait behind one which waits itself and knows more; the
                         timeout then starts again whenever a rank of the node has moved something */
};

/* shm: all ranks of the node have mapped it. */
void cdi_wait_init(struct cdi_wait *w, struct cdi_shm *shm, struct cdi_flight *flight, int64_t timeout_ms);

/* Has anything ended all waits? CDDP_OK, the abort's status, CDDP_E_PEER or CDDP_E_ABORTED from the agent. Two loads.
 */
cddp_status cdi_wait_check(const struct cdi_wait *w, struct cdi_error *err);

/* The same without a wait, and ranks of this node that died or left are found as well. Any thread. */
cddp_status cdi_wait_peek(const struct cdi_wait *w, struct cdi_error *err);

/* Has one of these n ranks of the job, if it is of this node, died? CDDP_OK or CDDP_E_PEER. Any thread. */
cddp_status cdi_wait_lost(const struct cdi_wait *w, const int *of_job, int n, struct cdi_error *err);

/*
 * Block until every rank has posted `step`. `mine` was just set to it: who sleeps on it is woken here, a microsecond
 * later, since that takes longer than the whole wait where all spin. `what` (called only on failure) writes the
 * operation's name for the sentence. One thread at a time. CDDP_OK, CDDP_E_PEER, CDDP_E_ABORTED, CDDP_E_TIMEOUT (names
 * who did not come), or the status that a peer aborted with.
 */
cddp_status cdi_wait_all(struct cdi_wait *w, struct cdi_counter *mine, uint32_t step, bool on_thread,
                         void (*what)(const void *arg, char *buf, size_t cap), const void *arg, struct cdi_error *err);

/* As cdi_wait_all, but until `c`, which local rank `rank` posts, has come to `step`. */
cddp_status cdi_wait_counter(struct cdi_wait *w, int rank, struct cdi_counter *c, uint32_t step, bool on_thread,
                             void (*what)(const void *arg, char *buf, size_t cap), const void *arg,
                             struct cdi_error *err);

/* A rank of this communicator as the rank of the job that it is, for errors. */
static inline int cdi_wait_rank_of_job(const struct cdi_wait *w, int rank)
{
    return w->ranks != NULL ? w->ranks[rank] : rank;
}

/* Notes, for the errors of other ranks, that this rank sleeps until `rank` (in the world; -1: none) comes. */
void cdi_wait_tell(const struct cdi_wait *w, int rank);

/*
 * Returns how long this process did not run since the last look, in ms; 0 if that is less than a second. A signal may
 * have stopped it, or its control group was frozen: the others may have been stopped with it. Pure. *looked_ms is the
 * time of the last look, and becomes `now`. slice_ms is how long a sleep between two looks takes at most.
 */
int64_t cdi_wait_stopped_ms(int64_t *looked_ms, int64_t now, int64_t slice_ms);

/* A number that changes whenever a rank of the node has moved something over the network. */
uint32_t cdi_wait_moved(const struct cdi_wait *w);

/* Rank (in the world) has died; err says so, or what the agent says of it, which comes a moment later. */
cddp_status cdi_wait_died(const struct cdi_wait *w, int rank, const char *how, struct cdi_error *err);

/* The same of local rank `rank`, which may also have left the job, or have given up for a reason that it has told. */
cddp_status cdi_wait_gone(const struct cdi_wait *w, int rank, struct cdi_error *err);

/* The local rank that hung up without a goodbye, or -1; then err is as from cdi_wait_died. */
int cdi_wait_hung_up(struct cdi_wait *w, struct cdi_error *err);

#endif
