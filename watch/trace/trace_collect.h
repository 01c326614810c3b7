/* SPDX-License-Identifier: Apache-2.0 */
/* Takes what is new in a worker's flight page, for a trace. Pure. */
#ifndef WATCH_TRACE_TRACE_COLLECT_H
#define WATCH_TRACE_TRACE_COLLECT_H

#include "protocol/records.h"

#define TRACE_INTERVAL_MIN_MS 10
#define TRACE_INTERVAL_MAX_MS 100
#define TRACE_SETTLE_NS 20000000 /* after which the times of a collective do not change any more */
#define TRACE_OPEN_NS 1000000000 /* a collective that runs for longer is reported before its end */

/* The records that were taken from one page so far. Zero at first. */
struct trace_cursor {
    uint64_t seq;     /* of the last collective taken */
    uint64_t n_steps; /* number of the last step taken, plus 1 */
    uint64_t mark;    /* number of the last mark taken */
    uint64_t open;    /* the seq of the collective that was reported before its end */
    bool has_step;    /* a step was taken */
    bool over;        /* the rank has ended, and everything was taken */
};

struct trace_source {
    const struct cdi_flight *page;
    int32_t rank;
    bool ended; /* the rank has ended: an unfinished collective stays so */
    int64_t now_ns;
    size_t room; /* take at most so many collectives, and so many steps */
};

/*
 * Appends the new completed collectives and steps to *out, oldest first, as far as it has room; counts in out->n_lost
 * those that the page has lost before they were taken. Returns how much of the page's rings was new, in 1/1000: at 1000
 * the page may have lost some.
 */
unsigned trace_collect(struct trace_cursor *c, const struct trace_source *from, struct cdi_records *out);

/* Returns the time until pages should be read again, after `used` of the fullest was new. */
int64_t trace_interval_ms(int64_t last_ms, unsigned used);

#endif
