/* SPDX-License-Identifier: Apache-2.0 */
/* The internals of a stream, an event and a recorded point: for stream.c and capture.c. Everything here is locked. */
#ifndef SI_STREAM_H
#define SI_STREAM_H

#include "core.h"

struct si_capture;

/* The content of a capture, in the order of the program: operations, recorded points, waits for such points. */
enum si_node_kind { SI_NODE_OPERATION, SI_NODE_RECORD, SI_NODE_WAIT };

struct si_node {
    struct si_node *next;
    enum si_node_kind kind;
    unsigned lane;  /* of the capture's streams; 0: that it began on */
    uint64_t point; /* recorded, or waited for */
    struct si_op *op;
    size_t n_ranges; /* that op uses */
    struct si_range range[];
};

/* The result of a capture: shared by the graph, its executable graphs, and their launches. */
struct si_graph {
    uint32_t refs; /* locked */
    CUcontext ctx;
    struct si_node *first;
    unsigned n_lanes;
    uint64_t n_points;
};

struct CUstream_st {
    CUcontext ctx;
    unsigned slot; /* of the table, and of clocks */
    bool legacy, blocking, ending;
    bool hidden; /* no handle of the program's: it runs a part of a graph */
    struct si_op *head, **tail;
    uint32_t pushed, done; /* operations; the thread sleeps on pushed, and a caller that needs room on done */
    unsigned n_waiting;    /* for room */
    struct si_clock clock;
    uint64_t random;
    struct si_capture *capture;    /* NULL: pushed operations run */
    uint64_t n_captured, n_joined; /* operations in it; up to which another stream waits for them */
    unsigned lane;                 /* of the capture's streams */
};

struct si_stop {
    uint32_t refs;
    uint32_t passed; /* waiting threads sleep on it */
    int64_t time_ns;
    struct si_clock clock;
};

struct CUevent_st {
    uint32_t magic;
    bool timing;
    CUcontext ctx;
    struct si_stop *stop; /* NULL: never recorded, or captured */
    uint64_t captured;    /* the number of the capture in which it was recorded last; 0: in none */
    struct CUstream_st *captured_on;
    uint64_t captured_at; /* of that stream's operations */
    uint64_t captured_point;
};

/* ------------------------------------------------------------------------------------------------------- stream.c */

/* Creates, and ends, a stream that the program does not see. */
struct CUstream_st *si_stream_hidden_locked(CUcontext ctx);
void si_stream_end_locked(struct CUstream_st *s);
/* Orders later work on the stream after everything that the calling thread knows, and after the legacy stream. */
void si_stream_begin_locked(struct CUstream_st *s);

/* -------------------------------------------------------------------------------------------------------- graph.c */

/*
 * Creates a graph of these nodes for the program, with one reference. NULL: out of memory; then the caller still owns
 * the nodes.
 */
CUgraph si_graph_create(const struct si_graph *of);
void si_nodes_destroy(struct si_node *first);

/* ------------------------------------------------------------------------------------------------------ capture.c */

/* Returns all streams, for walks; NULL in unused places (stream.c). */
struct CUstream_st *si_stream_at_locked(unsigned slot);

/* Adds op, which uses these ranges, to the capture of the stream. */
void si_capture_push_locked(struct CUstream_st *s, struct si_op *op, const struct standin_ranges *r);
void si_capture_record_locked(struct CUstream_st *s, CUevent e);
/* Returns the result, and the effect, of a wait for an event if the stream or the event is captured. */
CUresult si_capture_wait_locked(struct CUstream_st *s, CUevent e);
/* Ends the capture of a stream or event with an error, because of a query of it or a wait for it. */
CUresult si_capture_asked_stream_locked(const struct CUstream_st *s, const char *function);
CUresult si_capture_asked_event_locked(const struct CUevent_st *e, const char *function);
/* Does the same for all streams of a context. */
CUresult si_capture_asked_context_locked(CUcontext ctx, const char *function);
/* Checks a use of the legacy stream, which would wait for the blocking ones. function NULL: it only reads its state. */
CUresult si_capture_legacy_locked(CUcontext ctx, const char *function);

#endif
