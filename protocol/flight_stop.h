/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the flight page for a stop that all ranks agree on (cddp_should_stop): the worker notes there that it
 * asks, what it asks for, and what the ranks have agreed. The agent reads it when it has to stop the worker, and after
 * the worker has exited.
 */
#ifndef CDI_FLIGHT_STOP_H
#define CDI_FLIGHT_STOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The signals that a worker takes as a request to stop, once it asks: names without SIG, separated by commas. cddprun
 * sets it; without it: TERM.
 */
#define CDI_STOP_SIGNALS_ENV "CDDP_STOP_SIGNALS"

/* The origin of a request to stop. Of several requests the largest kind counts, then the highest rank. */
enum cdi_stop_kind {
    CDI_STOP_NONE = 0,
    CDI_STOP_LAUNCHER = 1, /* cddprun told the rank */
    CDI_STOP_SIGNAL = 2,   /* the rank itself got a signal */
    CDI_STOP_RANK = 3,     /* the rank called cddp_request_stop */
};

/* Worker -> agent. `agreed` publishes step_plus_1 and rank. */
struct cdi_flight_stop {
    _Atomic uint32_t asks;   /* 1: the worker has called cddp_should_stop, and may be stopped by it */
    _Atomic uint32_t agreed; /* enum cdi_stop_kind: all ranks have agreed to stop */
    _Atomic int32_t rank;    /* that requested it */
    uint32_t pad;
    _Atomic uint64_t step_plus_1; /* steps that the reducer had completed, plus 1; 0: without a reducer */
};

/* A copy. */
struct cdi_stop_view {
    bool asks;
    enum cdi_stop_kind agreed;
    int32_t rank;
    int64_t step; /* completed steps; -1: not known */
};

/* Reads the agent's copy. A value that no worker writes counts as none. */
void cdi_stop_look(const struct cdi_flight_stop *s, struct cdi_stop_view *view);

/* Notes whether the worker asks. Any thread. */
void cdi_stop_note_asks(struct cdi_flight_stop *s, bool asks);
/* Notes what the ranks have agreed; step -1: not known. */
void cdi_stop_note_agreed(struct cdi_flight_stop *s, enum cdi_stop_kind kind, int rank, int64_t step);

#endif
