/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record of a run, for --report: rounds, events, failures, the rate of steps and the time in communication over
 * time, and the ranks that were late. Its memory is bounded: when the time does not fit into the intervals,
 * their length doubles; when the ranks do not fit into the table, neighbours share a line. Pure; one thread.
 */
#ifndef WATCH_RUN_RUN_RECORD_H
#define WATCH_RUN_RUN_RECORD_H

#include "protocol/flight.h"
#include "protocol/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RUN_RECORD_SPANS 2000   /* intervals of time */
#define RUN_RECORD_SPAN_MS 100  /* their first length */
#define RUN_RECORD_RANKS 1000   /* lines of the table of ranks */
#define RUN_RECORD_ROUNDS 1000  /* further ones replace the last */
#define RUN_RECORD_EVENTS 500   /* further ones are counted */
#define RUN_RECORD_FAILURES 100 /* the same */

/* Sums over recorded steps, of one interval or one line of the table. */
struct run_record_sums {
    uint64_t n; /* steps */
    int64_t period_ns, comm_ns, exposed_ns, late_ns;
};

struct run_record_span {
    double steps; /* of the job: those of one rank */
    struct run_record_sums sums;
};

struct run_record_rank {
    struct run_record_sums sums;
    uint64_t n_late;   /* steps of others in which they waited longest for it */
    int64_t caused_ns; /* the time that they waited in these steps */
};

struct run_record_round {
    uint32_t round, restart_count, n_nodes, world_size;
    int64_t began_ms, ended_ms; /* Unix time; ended_ms 0: not yet */
    bool failed;
    char text[512]; /* why it ended; "": not known */
};

struct run_record_event {
    int64_t time_ms; /* Unix time */
    char kind[16];   /* such as "restart" */
    char text[512];
};

/* Only the functions below change it. */
struct run_record {
    int64_t began_ms, now_ms; /* Unix time of the first and the last run_record_time() */
    int64_t span_ms;
    struct run_record_span spans[RUN_RECORD_SPANS];
    uint32_t ranks_each; /* neighbours in a line of the table; 1, 2, 4, ... */
    uint32_t n_ranks;    /* lines in use */
    struct run_record_rank ranks[RUN_RECORD_RANKS];
    uint64_t n_steps; /* of the job, in all rounds */
    struct run_record_round *rounds;
    size_t n_rounds, n_rounds_lost;
    struct run_record_event *events;
    size_t n_events, n_events_lost;
    struct cdi_failure *failures;
    size_t n_failures, n_failures_lost;
    /* The rank whose steps are those of the job: the first that has reported one in this round. */
    int64_t leader;        /* -1: none yet */
    uint64_t leader_next;  /* the number of its completed steps */
    int64_t leader_end_ms; /* when that was known */
};

/* Makes an empty record. NULL: out of memory. run_record_free() frees it; NULL-safe. */
struct run_record *run_record_new(int64_t wall_ms);
void run_record_free(struct run_record *rr);
/* Sets the present. Times of other calls that are later count as it: clocks of other nodes may be wrong. */
void run_record_time(struct run_record *rr, int64_t wall_ms);
/*
 * Adds a completed step of any rank of the job, whose end was at wall_ms. The steps of a rank come in order; some may
 * be missing. Negative times count as 0.
 */
void run_record_step(struct run_record *rr, uint32_t rank, const struct cdi_flight_step *step, int64_t wall_ms);
/* Adds steps without their times: the rank had completed n steps at wall_ms. */
void run_record_count(struct run_record *rr, uint32_t rank, uint64_t n, int64_t wall_ms);
/* Begins a round. */
void run_record_round(struct run_record *rr, const struct cdi_msg_assign *assign, int64_t wall_ms);
/* Ends the last round, if it has not ended yet. */
void run_record_round_over(struct run_record *rr, bool failed, const char *text, int64_t wall_ms);
void run_record_event(struct run_record *rr, const char *kind, const char *text, int64_t wall_ms);
/* Adds a failure; the same one counts once. */
void run_record_failure(struct run_record *rr, const struct cdi_failure *f);

#endif
