/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flight page: one shared memfd per worker, made by the agent, in two halves with one writer each.
 *   worker -> agent: a ring of the last collectives (what, when enqueued, started, done) and the current step, which
 * the agent reads also when the worker hangs, is stopped or is dead; agent -> worker: stop wanted, round over, which
 * rank died and why, with a futex word that every wait watches. The worker finds it by
 * CDDP_FLIGHT=fd:N,/proc/PID/fd/N,NONCE. Every field is an atomic: no locks, no torn reads that matter, nothing that a
 * dead writer can leave locked. Without an agent libcddp maps a private page of the same form.
 */
#ifndef CDI_FLIGHT_H
#define CDI_FLIGHT_H

#include "common/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CDI_FLIGHT_ENV "CDDP_FLIGHT"
#define CDI_FLIGHT_RING 256 /* collectives remembered; a power of two */
#define CDI_FLIGHT_DESERTED "exited with status 0 in the middle of the job, without cddp_finalize"
#define CDI_FLIGHT_ABSENT "exited with status 0 before cddp_init"
#define CDI_FLIGHT_TEXT 256 /* bytes of the sentence about a death, NUL included */

/*
 * Every collective, once: the enumerations and the tables of names are made from this list.
 * BASIC(NAME, number, name, reduces, root) is an operation of the backends, in the order of enum cdi_coll_kind.
 * MADE(NAME, number, name, reduces, root) is a collective that is made of others, in the order of enum cdi_asked.
 * number: in the flight page, a part of its version. root: the word before the rank of the root; NULL: it has no root.
 */
#define CDI_COLLECTIVES(BASIC, MADE)                       \
    BASIC(ALL_REDUCE, 1, "all_reduce", true, NULL)         \
    BASIC(BROADCAST, 2, "broadcast", false, "from")        \
    BASIC(ALL_GATHER, 3, "all_gather", false, NULL)        \
    BASIC(BARRIER, 4, "barrier", false, NULL)              \
    BASIC(REDUCE, 6, "reduce", true, "to")                 \
    BASIC(ALL_GATHERV, 7, "all_gatherv", false, NULL)      \
    BASIC(REDUCE_SCATTER, 8, "reduce_scatter", true, NULL) \
    BASIC(ALL_TO_ALL, 9, "all_to_all", false, NULL)        \
    BASIC(SEND, 10, "send", false, "to")                   \
    BASIC(RECV, 11, "recv", false, "from")                 \
    MADE(GATHER, 12, "gather", false, "to")                \
    MADE(SCATTER, 13, "scatter", false, "from")            \
    MADE(ALL_TO_ALLV, 14, "all_to_allv", false, NULL)      \
    MADE(REDUCE_SCATTERV, 15, "reduce_scatterv", true, NULL)

#define CDI_NO_COLLECTIVE(...) /* leaves one of the two out */

#define CDI_FLIGHT_NUMBER(NAME, number, ...) CDI_FLIGHT_##NAME = (number),
enum cdi_flight_op {
    CDI_FLIGHT_NONE = 0,
    CDI_FLIGHT_REGION = 5, /* the creation of shared memory */
    CDI_FLIGHT_GROUP = 16, /* several operations that were enqueued as one */
    CDI_COLLECTIVES(CDI_FLIGHT_NUMBER, CDI_FLIGHT_NUMBER)
};
#undef CDI_FLIGHT_NUMBER
/* Returns the name of an operation, such as "all_reduce", or "?" for an unknown number. */
const char *cdi_flight_op_name(uint32_t op);

struct cdi_flight; /* a mapped page */

/*
 * A copy of one collective's record. Times are CLOCK_MONOTONIC ns as of the kernel's last tick (1 to 10 ms), 0 where it
 * has not happened yet. Of started_ns the page knows only the last one: it is 0 in older records.
 */
struct cdi_flight_entry {
    uint64_t seq; /* 1, 2, ... per worker; 0: none */
    uint32_t op;
    uint32_t dtype;
    uint64_t count;                           /* elements */
    int32_t bucket;                           /* -1: not a bucket's */
    int64_t enqueued_ns, started_ns, done_ns; /* queued until started_ns, running until done_ns */
};

/*
 * Collectives of CUDA graphs, which are run again and again without a call: how many have begun and ended in all
 * replays, and the last that has begun. They have no records in the ring.
 */
struct cdi_flight_replay {
    uint64_t begun, ended; /* 0: there are none */
    uint64_t number;       /* of the replay of its graph, from 1 */
    uint32_t op;
    int32_t bucket;   /* -1: not a bucket's */
    int64_t since_ns; /* seen to have begun or, where all have ended, ended; a clock as above */
};

/* ---------------------------------------------------------------------------------------------- agent's side ---- */

/*
 * Make a page for a worker of round `epoch`. *fd is the memfd (close-on-exec; the caller closes it). Release the
 * mapping with cdi_flight_release. CDDP_E_SYSTEM, CDDP_E_NOMEM.
 */
cddp_status cdi_flight_create(struct cdi_flight **out, uint32_t epoch, int *fd, struct cdi_error *err);
/* The value of CDDP_FLIGHT for a child that has the memfd as child_fd, while this process keeps it open as own_fd. */
void cdi_flight_env(const struct cdi_flight *f, int child_fd, int own_fd, char *buf, size_t cap);
/* A rank died first: text is one sentence ("rank 3 (pid 77 on node1) was killed by signal 9 (SIGKILL)"). First call
 * wins. */
void cdi_flight_tell_death(struct cdi_flight *f, int rank, const char *text);
/* Does its worker use libcddp? */
bool cdi_flight_is_claimed(const struct cdi_flight *f);
/*
 * A rank exited with status 0. That ends no wait by itself, since the rank may have done all of its part; a wait that
 * misses it learns from cdi_flight_has_ended() what became of it. Of the first 64 only.
 */
void cdi_flight_tell_ended(struct cdi_flight *f, int rank);
void cdi_flight_tell_round_over(struct cdi_flight *f);
void cdi_flight_tell_stop_wanted(struct cdi_flight *f);
/* The last record written (seq 0 if none), the first one that was not done when read (seq 0 if none), and the step. */
struct cdi_flight_view {
    struct cdi_flight_entry last;
    struct cdi_flight_entry oldest_unfinished;
    struct cdi_flight_replay replay;
    uint64_t step;       /* of the reducer, from 0: how many it has completed */
    int32_t claimed_pid; /* 0: the worker does not use libcddp (yet) */
    int32_t missed_rank; /* a wait failed since this rank was gone without cddp_finalize; -1: none */
};
void cdi_flight_read(const struct cdi_flight *f, struct cdi_flight_view *view);

/* --------------------------------------------------------------------------------------------- worker's side ---- */

/*
 * Map the page that `env` (the value of CDDP_FLIGHT) names and claim it for this process. NULL, a page that is claimed
 * by another process, or one that is gone (the agent is dead, the value came from an outer job): a private page, and
 * CDDP_OK. CDDP_E_VERSION: the page is of another layout. CDDP_E_INVALID: the value has not the form above.
 */
cddp_status cdi_flight_attach(struct cdi_flight **out, const char *env, struct cdi_error *err);
/* Is there an agent on the other side? */
bool cdi_flight_has_agent(const struct cdi_flight *f);
/* Unmap; NULL-safe. The worker's claim stays, so that no later process writes into this one's history. */
void cdi_flight_release(struct cdi_flight *f);

/*
 * Calls of enqueue are serialised by the caller, and so are those of start and done, which come in the order of seq.
 * The page names the running collective also when more than CDI_FLIGHT_RING were begun behind it.
 */
uint64_t cdi_flight_enqueue(struct cdi_flight *f, enum cdi_flight_op op, uint32_t dtype, uint64_t count, int bucket);
void cdi_flight_start(struct cdi_flight *f, uint64_t seq);
void cdi_flight_done(struct cdi_flight *f, uint64_t seq);
void cdi_flight_step(struct cdi_flight *f, uint64_t step);
/* How far replays are; since_ns is not looked at. One caller at a time. */
void cdi_flight_replays(struct cdi_flight *f, const struct cdi_flight_replay *r);
/* A wait fails since this rank is gone without cddp_finalize; the first one stays. Any thread. */
void cdi_flight_miss(struct cdi_flight *f, int rank);

/*
 * What has the agent said? CDDP_OK: nothing that ends a wait; CDDP_E_PEER: a rank died (the sentence is in err);
 * CDDP_E_ABORTED: the round is over. Cheap: one atomic load in the common case. Any thread.
 */
cddp_status cdi_flight_check(const struct cdi_flight *f, struct cdi_error *err);
/*
 * Between cdi_flight_ask(f, q) and cdi_flight_ask(f, NULL), cdi_flight_check also asks the program in the thread that
 * has called this, and in no other: about every CDI_FLIGHT_ASK_MS it calls q->fn. Once that has returned other than 0
 * every check there is CDDP_E_ABORTED. *q is that thread's; fn, arg and what are filled in, the rest is zero.
 */
#define CDI_FLIGHT_ASK_MS 100
struct cdi_flight_question {
    int (*fn)(void *arg);
    void *arg;
    const char *what; /* that is given up, for the error message */
    int answer;
    int64_t next_ns;
};
void cdi_flight_ask(struct cdi_flight *f, struct cdi_flight_question *q);
/* This thread asks, and the answer was to give up. */
bool cdi_flight_is_interrupted(const struct cdi_flight *f);
bool cdi_flight_stop_wanted(const struct cdi_flight *f);
/* Has the agent said that this rank exited with status 0? Any thread. */
bool cdi_flight_has_ended(const struct cdi_flight *f, int rank);
/* The i-th rank of which the agent has said that; -1: there are not so many. Any thread. */
int cdi_flight_ended(const struct cdi_flight *f, uint32_t i);
/* The futex word (shared between processes) that changes, and is woken, whenever the agent says something. */
_Atomic uint32_t *cdi_flight_wake_word(struct cdi_flight *f);

#endif
