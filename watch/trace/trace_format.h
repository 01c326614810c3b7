/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From records of nodes to lines of a trace: the array form of the "Trace Event Format" of Chrome, which Perfetto
 * reads, with one event a line. A process is a node, and has a track of steps and one of collectives for each rank. All
 * times are in us of one clock. Pure.
 */
#ifndef WATCH_TRACE_TRACE_FORMAT_H
#define WATCH_TRACE_TRACE_FORMAT_H

#include "common/buf.h"
#include "protocol/records.h"

struct trace_format;

/* Converts a node's times. known false: the last that was known is used, or none. */
struct trace_clock {
    bool known;
    int64_t shift_ns; /* to be added to the node's times */
    int64_t bound_ns; /* how wrong it may be */
};

/* Creates the state of a trace. job: its name, copied. CDDP_E_NOMEM. */
cddp_status trace_format_create(struct trace_format **out, const char *job, struct cdi_error *err);
void trace_format_destroy(struct trace_format *t); /* NULL-safe */
/* Appends the begin of a file: "[", and the names of all nodes and ranks known so far. */
void trace_format_head(struct trace_format *t, struct cdi_buf *out);
/* Appends the events of these records. Lines that do not fit into *out are counted as lost. */
void trace_format_records(struct trace_format *t, const struct cdi_records *r, const struct trace_clock *clock,
                          struct cdi_buf *out);
/* Appends the end of a file: open slices end at the last time in the trace, and "]". */
void trace_format_tail(struct trace_format *t, struct cdi_buf *out);
/* Returns the number of records written, and of those known to be lost. */
uint64_t trace_format_written(const struct trace_format *t);
uint64_t trace_format_lost(const struct trace_format *t);
/* Returns the largest bound of the error of a node's clock; *n_unknown: nodes whose clock is not known. */
int64_t trace_format_bound_ns(const struct trace_format *t, size_t *n_unknown);

#endif
