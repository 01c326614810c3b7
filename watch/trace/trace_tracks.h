/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a trace: its nodes, their ranks, and the line that is being written. Part of trace_format.h, which has
 * the rest.
 */
#ifndef WATCH_TRACE_TRACE_TRACKS_H
#define WATCH_TRACE_TRACE_TRACKS_H

#include "common/buf.h"
#include "protocol/records.h"

#define TRACE_JOB_PID 1u
#define TRACE_FIRST_TID 1000000u /* readers take a thread whose number is that of a process for its main thread */
#define TRACE_JOB_TID (TRACE_FIRST_TID - 1)

enum { TRACE_TOLD_NOTHING = -1, TRACE_TOLD_UNKNOWN = -2 };

struct trace_rank {
    int32_t rank;
    uint32_t tid;               /* of the steps; tid + 1: of the collectives */
    int64_t step_end, coll_end; /* ns */
    uint64_t open;              /* seq of a collective whose begin is written; 0: none */
};

struct trace_node {
    int32_t node_rank;
    char host[256];
    uint32_t pid, tid; /* tid: of the node's own events */
    uint32_t round;
    bool has_clock;
    int64_t shift_ns, bound_ns, told_ns; /* told_ns: the bound in the file, or one of TRACE_TOLD_... */
    uint64_t n_seen, n_lost;             /* as the sender counts; see cdi_records */
    bool has_frame;
    struct trace_rank *ranks;
    size_t n_ranks, cap;
};

struct trace_format {
    char job[256];
    struct trace_node *nodes;
    size_t n_nodes, cap;
    uint32_t n_tids, n_ranks;
    uint64_t n_written, n_lost;
    int64_t last_ns; /* the latest time written */
    bool in_round;
    struct cdi_buf line;
    struct cdi_buf *to; /* of the lines */
};

/* Begins a line: {"ph":...,"pid":...,"tid":... More members follow. Returns &t->line. */
struct cdi_buf *trace_line(struct trace_format *t, const char *phase, uint32_t pid, uint32_t tid);
/* Ends it with this text, such as "}}", and appends it whole, or not at all: then it counts as lost. */
void trace_line_end(struct trace_format *t, const char *end);
/* Appends a text as a JSON string, and a member with a time in us. */
void trace_put_text(struct cdi_buf *b, const char *text);
void trace_put_us(struct cdi_buf *b, const char *name, int64_t ns);

/* Returns the node of these records, or the rank; a new one is created and named. NULL: out of memory, or too many. */
struct trace_node *trace_node_of(struct trace_format *t, const struct cdi_records *r);
struct trace_rank *trace_rank_of(struct trace_format *t, struct trace_node *n, int32_t rank);
/* Names the job, and all nodes and ranks. */
void trace_name_all(struct trace_format *t);
/* States how exact the clock of a node is, next to its name. */
void trace_name_clock(struct trace_format *t, const struct trace_node *n);

#endif
