/* SPDX-License-Identifier: Apache-2.0 */
/* A stream, an event and a recorded point from inside: for stream.c, and capture.c beside it. Everything here is
 * locked.
 */
#ifndef SI_STREAM_H
#define SI_STREAM_H

#include "core.h"

struct si_capture;

struct CUstream_st {
    CUcontext ctx;
    unsigned slot; /* of the table, and of clocks */
    bool legacy, blocking, ending;
    struct si_op *head, **tail;
    uint32_t pushed, done; /* operations; pushed is what the thread sleeps on */
    struct si_clock clock;
    uint64_t random;
    struct si_capture *capture;    /* NULL: what is pushed runs */
    uint64_t n_captured, n_joined; /* operations in it; up to which another stream waits for them */
};

struct si_stop {
    uint32_t refs;
    uint32_t passed; /* what waiters sleep on */
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
};

/* ------------------------------------------------------------------------------------------------------ capture.c */

/* The streams that exist, for walks; NULL in unused places (stream.c). */
struct CUstream_st *si_stream_at_locked(unsigned slot);

/* Keep op in the capture that the stream is in. */
void si_capture_push_locked(struct CUstream_st *s, struct si_op *op);
void si_capture_record_locked(struct CUstream_st *s, CUevent e);
/* The stream or the event is captured: what waiting for the event means, and its result. */
CUresult si_capture_wait_locked(struct CUstream_st *s, CUevent e);
/* A query of, or a wait for, a stream or an event is impossible while it is captured: the capture ends with an error.
 */
CUresult si_capture_asked_stream_locked(const struct CUstream_st *s);
CUresult si_capture_asked_event_locked(const struct CUevent_st *e);
/* The same for all streams of a context. */
CUresult si_capture_asked_context_locked(CUcontext ctx);
/* May the stream be given new work? */
CUresult si_capture_state_locked(const struct CUstream_st *s);
/* A use of the legacy stream, which would wait for the blocking ones; query: it only asks for its state. */
CUresult si_capture_legacy_locked(CUcontext ctx, bool query);

#endif
