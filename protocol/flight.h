/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flight page: one shared memfd per worker, created by the agent, in two halves with one writer each.
 *   worker -> agent: a ring of the last collectives (operation, times of enqueue, start and end) and the current step.
 * The agent can read it when the worker hangs, is stopped or is dead. Parts of a communicator have private pages; each
 * shows what it does now in a slot of the worker's page.
 *   agent -> worker: stop requested, round over, the rank that died and why, with a futex word that every wait watches.
 * The worker finds the page by CDDP_FLIGHT=fd:N,/proc/PID/fd/N,NONCE. Every field is an atomic: there are no locks that
 * a dead writer could hold, and no torn reads that matter. Without an agent libcddp maps a private page of the same
 * form.
 */
#ifndef CDI_FLIGHT_H
#define CDI_FLIGHT_H

#include "common/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CDI_FLIGHT_ENV "CDDP_FLIGHT"
#define CDI_TIMING_ENV "CDDP_TIMING" /* on, all: times in ns; off: the kernel's ticks; none: no records */
#define CDI_FLIGHT_RING 256          /* recorded collectives; a power of two */
#define CDI_FLIGHT_DESERTED "exited with status 0 in the middle of the job, without cddp_finalize"
#define CDI_FLIGHT_ABSENT "exited with status 0 before cddp_init"
#define CDI_FLIGHT_TEXT 256   /* bytes of the message about a death, NUL included */
#define CDI_FLIGHT_STEPS 64   /* recorded steps of the reducer; a power of two */
#define CDI_FLIGHT_BUCKETS 64 /* buckets with names */
#define CDI_FLIGHT_MARKS 16   /* recorded marks; a power of two */
#define CDI_FLIGHT_NAMES 128  /* bytes of the parameters' names of a bucket, NUL included */
#define CDI_FLIGHT_PARTS 8    /* parts of a communicator that the page shows at once */
#define CDI_FLIGHT_WHO 96     /* bytes of the name and the ranks of a part, NUL included */

/*
 * Every collective, once: the enumerations and the tables of names are made from this list.
 * BASIC(NAME, number, name, reduces, root) is an operation of the backends, in the order of enum cdi_coll_kind.
 * MADE(NAME, number, name, reduces, root) is a collective that is made of others, in the order of enum cdi_api_call.
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

/* The last error of a libcddp function in this worker: why it ends, if it ends soon. */
struct cdi_flight_error {
    cddp_status status; /* CDDP_OK: there is none */
    int32_t blamed;     /* the rank that it names, in the world; -1: none */
    int64_t at_ns;      /* CLOCK_MONOTONIC */
    char text[CDI_FLIGHT_TEXT];
};

/*
 * A copy of the record of one collective. Times are CLOCK_MONOTONIC ns, 0 if the event has not happened yet. They are
 * exact to a microsecond, with CDDP_TIMING=off to the kernel's tick (1 to 10 ms), and may contradict each other by that
 * much. A pending record has started_ns only while it is the running one.
 *
 * late_rank is the last rank that this one has seen arriving; itself, if it has waited for none. On the CPU, a rank of
 * several nodes sees its own node and the two beside it. For a collective of at most 48 bytes arrived_ns is done_ns. Of
 * a send or a recv on the CPU it is the other rank, from the start on, and arrived_ns stays 0.
 */
struct cdi_flight_entry {
    uint64_t seq; /* 1, 2, ... per worker; 0: none */
    uint32_t op;
    uint32_t dtype;
    uint64_t count;                           /* elements */
    int32_t bucket;                           /* -1: none */
    int32_t late_rank;                        /* the rank that arrived last, of the world; -1: not known */
    int64_t enqueued_ns, started_ns, done_ns; /* queued until started_ns, running until done_ns */
    int64_t ready_ns;                         /* the last gradient of the bucket was reported; 0: no bucket */
    int64_t arrived_ns;                       /* the last peer had arrived; 0: not known */
};

/* A completed step of the reducer; times as above. */
struct cdi_flight_step {
    uint64_t step;            /* from 0 */
    int64_t begun_ns, end_ns; /* end_ns of the step before it, or its first gradient; end of its wait */
    int64_t comm_ns;          /* with a bucket between start and end: the union of these times */
    int64_t exposed_ns;       /* of it: while the program waited */
    int64_t late_ns;          /* of exposed_ns: until the last peer had arrived */
    int64_t transfer_ns;      /* of comm_ns: some bucket was moved; in the rest all waited for their last peer */
    int32_t late_rank;        /* the peer that this rank waited for longest, of the world; -1: none, or not known */
    uint32_t n_buckets;
};

/* A checkpoint call that has returned; times as above. */
enum cdi_flight_mark_kind { CDI_MARK_SAVE = 1, CDI_MARK_WAIT = 2, CDI_MARK_LOAD = 3 };
struct cdi_flight_mark {
    uint64_t number; /* 1, 2, ... per worker */
    uint32_t kind;
    uint64_t step; /* of a save */
    int64_t begun_ns, end_ns;
};

/*
 * Collectives of CUDA graphs, which are replayed without a call: how many have begun and ended in all replays, and the
 * last one that has begun. They have no records in the ring.
 */
struct cdi_flight_replay {
    uint64_t begun, ended; /* 0: none */
    uint64_t number;       /* of the replay of its graph, from 1 */
    uint32_t op;
    int32_t bucket;   /* -1: none */
    int64_t since_ns; /* when its begin was noticed or, if all have ended, its end; a clock as above */
};

/* ---------------------------------------------------------------------------------------------- agent's side ---- */

/*
 * Creates a page for a worker of round `epoch`. Sets *fd to the memfd (close-on-exec; the caller closes it).
 * cdi_flight_release() releases the mapping. CDDP_E_SYSTEM, CDDP_E_NOMEM.
 */
cddp_status cdi_flight_create(struct cdi_flight **out, uint32_t epoch, int *fd, struct cdi_error *err);
/* Writes the value of CDDP_FLIGHT for a child with the memfd as child_fd; this process keeps it open as own_fd. */
void cdi_flight_env(const struct cdi_flight *f, int child_fd, int own_fd, char *buf, size_t cap);
/*
 * Reports the first death of a rank; text is the message ("rank 3 (pid 77 on node1) was killed by signal 9 (SIGKILL)").
 * Later calls have no effect.
 */
void cdi_flight_tell_death(struct cdi_flight *f, int rank, const char *text);
/* Does the worker use libcddp? */
bool cdi_flight_is_claimed(const struct cdi_flight *f);
/*
 * Reports that a rank exited with status 0. That ends no wait by itself, since the rank may have done all of its part;
 * a wait that misses the rank calls cdi_flight_has_ended(). The page has room for 64 ranks.
 */
void cdi_flight_tell_ended(struct cdi_flight *f, int rank);
/* Reports that the round is over. */
void cdi_flight_tell_round_over(struct cdi_flight *f);
/* Requests the worker to stop. */
void cdi_flight_tell_stop_wanted(struct cdi_flight *f);
/*
 * Reports that no other world of the job runs before this time (of cdi_now_ms()), later than the time before;
 * CDI_NEVER_MS, as in the beginning: none runs at all.
 */
void cdi_flight_tell_alone_until(struct cdi_flight *f, int64_t until_ms);
/* The last record, the first record that was not done when it was read (each with seq 0 if none), and the step. */
struct cdi_flight_view {
    struct cdi_flight_entry last;
    struct cdi_flight_entry oldest_unfinished;
    struct cdi_flight_replay replay;
    uint64_t step;       /* steps that the reducer has completed */
    int32_t claimed_pid; /* 0: the worker does not use libcddp (yet) */
    int32_t missed_rank; /* a wait failed because this rank was gone without cddp_finalize; -1: none */
    bool over;           /* the communicator, and with it what is unfinished */
};
/*
 * Reads the worker's half of the page. Here and below, whatever the worker has written: at most as many turns as the
 * page has records, numbers up to CDI_FLIGHT_COUNT_MAX, times from 0 to CDI_FLIGHT_TIME_MAX, durations that can be
 * added for all steps of the page, and ranks and buckets from -1. Other times count as 0, and other ranks as -1.
 */
#define CDI_FLIGHT_COUNT_MAX (UINT64_C(1) << 62) /* which JSON can hold, and 1 can be added to */
#define CDI_FLIGHT_TIME_MAX (INT64_C(1) << 61)   /* ns; two of them can be added */
#define CDI_FLIGHT_SPAN_MAX (INT64_MAX / (2 * CDI_FLIGHT_STEPS))
void cdi_flight_read(const struct cdi_flight *f, struct cdi_flight_view *view);
/*
 * Copies the records of collectives with a seq above `after`, oldest first, at most cap of them. Records that the ring
 * has lost are skipped. Returns their number.
 */
size_t cdi_flight_records(const struct cdi_flight *f, uint64_t after, struct cdi_flight_entry *out, size_t cap);
/* The same for completed steps with a number of at least `from`. */
size_t cdi_flight_steps(const struct cdi_flight *f, uint64_t from, struct cdi_flight_step *out, size_t cap);
/* The same for marks with a number above `after`. */
size_t cdi_flight_marks(const struct cdi_flight *f, uint64_t after, struct cdi_flight_mark *out, size_t cap);
/*
 * What a part does: its newest operation that is not done (started_ns 0: it is queued) and the last one that is, each
 * with seq 0 if there is none, counted in the part. Their late_rank is a rank of the job.
 */
struct cdi_flight_part {
    char who[CDI_FLIGHT_WHO]; /* "'tp' (ranks 0, 2)", equal on all its ranks */
    struct cdi_flight_entry unfinished, last;
};
/* Copies the parts that the page shows. One that changes meanwhile is left out. Returns their number. */
size_t cdi_flight_parts(const struct cdi_flight *f, struct cdi_flight_part out[CDI_FLIGHT_PARTS]);
/* Reads the worker's last error. */
void cdi_flight_error(const struct cdi_flight *f, struct cdi_flight_error *e);
/* Copies the names of the parameters in a bucket, such as "layer1.weight, layer1.bias and 3 more"; "": not known. */
void cdi_flight_names(const struct cdi_flight *f, int bucket, char buf[CDI_FLIGHT_NAMES]);

/* --------------------------------------------------------------------------------------------- worker's side ---- */

/*
 * Maps the page that `env` (the value of CDDP_FLIGHT) names and claims it for this process. If env is NULL, or another
 * process has claimed the page, or it is gone (the agent is dead, the value is from an outer job), it maps a private
 * page: CDDP_OK. CDDP_E_VERSION: the page has another layout. CDDP_E_INVALID: the value does not have the form above,
 * or that of CDDP_TIMING is unknown.
 */
cddp_status cdi_flight_attach(struct cdi_flight **out, const char *env, struct cdi_error *err);
/* Does an agent write to this page? */
bool cdi_flight_has_agent(const struct cdi_flight *f);
/* Are its times exact (CDDP_TIMING=on, which is the default, or all)? */
bool cdi_flight_is_timed(const struct cdi_flight *f);
/*
 * Are the times of this step of a GPU measured? With CDDP_TIMING=all each one's are; by default those of the first
 * steps and of each eighth, since two events for each bucket take a fortieth of a short step. (PyTorch's DDP: the first
 * 10, then each 100th; reducer.hpp, kDDPRuntimeLoggingSampleRate.)
 */
bool cdi_flight_times_step(const struct cdi_flight *f, uint64_t step);
/*
 * Makes `page` show the operations of the private page `part` under the name `who`, until cdi_flight_release(part),
 * which precedes that of `page`. Nothing happens if all slots are in use, no agent reads `page`, or one of the two is
 * NULL. Call it before the first record. Replays of CUDA graphs are not shown.
 */
void cdi_flight_mirror(struct cdi_flight *part, struct cdi_flight *page, const char *who);
/* Ends that: none of the part's operations goes on, whatever it records. Any thread, more than once. */
void cdi_flight_hide(struct cdi_flight *part);
/* Records that the communicator is over: nothing that is pending on the page goes on, for those who look for a hang. */
void cdi_flight_tell_over(struct cdi_flight *f);
/* Begins the records of the next communicator: all that is pending ends. */
void cdi_flight_renew(struct cdi_flight *f);
/* Unmaps the page; NULL-safe. The worker's claim stays, so that no later process writes into its records. */
void cdi_flight_release(struct cdi_flight *f);
/* Makes the page stay mapped after cdi_flight_release(), until the process ends. */
void cdi_flight_keep(struct cdi_flight *f);

/*
 * Record that a collective was enqueued, started, or done. The caller serialises calls of enqueue, and those of start
 * and done, which are in the order of seq. The page names the running collective even if more than CDI_FLIGHT_RING were
 * enqueued after it. cdi_flight_enqueue() returns its seq.
 */
uint64_t cdi_flight_enqueue(struct cdi_flight *f, enum cdi_flight_op op, uint32_t dtype, uint64_t count, int bucket);
void cdi_flight_start(struct cdi_flight *f, uint64_t seq);
void cdi_flight_done(struct cdi_flight *f, uint64_t seq);
/*
 * Does the same as cdi_flight_enqueue for op, dtype, count, bucket, ready_ns and enqueued_ns of *e. enqueued_ns 0: now.
 * With `start`, it also does what cdi_flight_start does. Sets the other members of *e. Returns its seq.
 */
uint64_t cdi_flight_add(struct cdi_flight *f, struct cdi_flight_entry *e, bool start);
/* Does the same as cdi_flight_start. Returns the time. */
int64_t cdi_flight_begin(struct cdi_flight *f, uint64_t seq);
/*
 * Does the same as cdi_flight_done, with the last peer: `rank` of the world (-1: not known); arrived_ns 0: now. Returns
 * the time.
 */
int64_t cdi_flight_end(struct cdi_flight *f, uint64_t seq, int rank, int64_t arrived_ns);
/*
 * Replaces the times of a collective that is done by those of a device that has run it. The caller serialises it with
 * start and done.
 */
void cdi_flight_times(struct cdi_flight *f, uint64_t seq, int64_t ready_ns, int64_t started_ns, int64_t done_ns);
/* Returns the time with the resolution of the page. */
int64_t cdi_flight_now(const struct cdi_flight *f);
/*
 * Records that the last peer, `rank` of the world (-1: not known), has arrived in the running collective; arrived_ns 0:
 * that it is the one which is waited for.
 */
void cdi_flight_arrived(struct cdi_flight *f, uint64_t seq, int rank, int64_t arrived_ns);
/* Records the number of completed steps. */
void cdi_flight_step(struct cdi_flight *f, uint64_t step);
/* Records a completed step, and their number. */
void cdi_flight_step_done(struct cdi_flight *f, const struct cdi_flight_step *step);
/* Records a step whose times became known later, and no number: that of a later step may be there. */
void cdi_flight_step_times(struct cdi_flight *f, const struct cdi_flight_step *step);
/* Records a mark, and numbers it. Any thread. */
void cdi_flight_mark(struct cdi_flight *f, enum cdi_flight_mark_kind kind, uint64_t step, int64_t begun_ns,
                     int64_t end_ns);
/* Records the names of a bucket's parameters. */
void cdi_flight_set_names(struct cdi_flight *f, int bucket, const char *names);
/* Records the progress of replays; since_ns is not used. One caller at a time. */
void cdi_flight_replays(struct cdi_flight *f, const struct cdi_flight_replay *r);
/* Records that a wait fails because this rank is gone without cddp_finalize; the first call wins. Any thread. */
void cdi_flight_miss(struct cdi_flight *f, int rank);

/*
 * Records the last error of a libcddp function, for cdi_flight_error(); `note` is cdi_flight_error_note(). The caller
 * serialises the calls. The note is there until cdi_flight_release(), or for good after cdi_flight_keep().
 */
struct cdi_flight_note;
struct cdi_flight_note *cdi_flight_error_note(struct cdi_flight *f);
void cdi_flight_note_error(struct cdi_flight_note *note, const struct cdi_error *err);

/*
 * Returns what the agent has reported. CDDP_OK: nothing that ends a wait; CDDP_E_PEER: a rank died (the message is in
 * *err); CDDP_E_ABORTED: the round is over. Cheap: one atomic load in the common case. Any thread.
 */
cddp_status cdi_flight_check(const struct cdi_flight *f, struct cdi_error *err);
/*
 * Called when an operation is complete, before the program sees its result: returns CDDP_OK if no other world of the
 * job can run now. Otherwise this process was stopped, and its agent may not know yet that another world runs: waits
 * until the agent has reported a later time (CDDP_OK) or the end (as cdi_flight_check), or kills this process; after
 * CDI_FLIGHT_CONFIRM_MS, CDDP_E_ABORTED. Cheap where the agent reports no times: one atomic load. Any thread.
 */
#define CDI_FLIGHT_CONFIRM_MS 60000
cddp_status cdi_flight_confirm(const struct cdi_flight *f, struct cdi_error *err);
/*
 * Makes cdi_flight_check() in this thread, and in no other, call the program's q->fn about every CDI_FLIGHT_ASK_MS,
 * until cdi_flight_ask(f, NULL). Once q->fn has returned a value other than 0, every check in this thread is
 * CDDP_E_ABORTED. The thread owns *q; it sets fn, arg and what, and leaves the rest zero.
 */
#define CDI_FLIGHT_ASK_MS 100
struct cdi_flight_question {
    int (*fn)(void *arg);
    void *arg;
    const char *what; /* the wait that is given up, for the error message */
    int answer;
    int64_t next_ns;
};
void cdi_flight_ask(struct cdi_flight *f, struct cdi_flight_question *q);
/* Has q->fn of this thread ended its waits? */
bool cdi_flight_is_interrupted(const struct cdi_flight *f);
/* Has the agent requested to stop? */
bool cdi_flight_stop_wanted(const struct cdi_flight *f);
/* Has the agent reported that this rank exited with status 0? Any thread. */
bool cdi_flight_has_ended(const struct cdi_flight *f, int rank);
/* Returns the i-th rank that the agent has reported so; -1: there are fewer. Any thread. */
int cdi_flight_ended(const struct cdi_flight *f, uint32_t i);
/* Returns the futex word (shared between processes) that changes, with a wake-up, at every report of the agent. */
_Atomic uint32_t *cdi_flight_wake_word(struct cdi_flight *f);

/* Returns the part of the page for a worker's crash (flight_crash.h), of either side. */
struct cdi_flight_crash *cdi_flight_crash(struct cdi_flight *f);
/* Returns the part of the page for a stop that all ranks agree on (flight_stop.h), of either side. */
struct cdi_flight_stop *cdi_flight_stop(struct cdi_flight *f);
/*
 * For a signal handler: the word that tells whether the agent has reported a death or the end of the round. It is there
 * until cdi_flight_release(), or for good after cdi_flight_keep(). Both are async-signal-safe.
 */
const _Atomic uint32_t *cdi_flight_said(const struct cdi_flight *f);
bool cdi_flight_said_end(const _Atomic uint32_t *said);

#endif
