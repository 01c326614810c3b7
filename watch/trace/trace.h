/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --trace and --report: reads the flight pages of this node's workers, and sends what is new to the agent of node rank
 * 0, which writes the trace of all nodes, or notes their steps. Keeps this node's clock aligned with the rendezvous
 * server's. Without a trace (NULL) every function does nothing. The loop's thread.
 */
#ifndef WATCH_TRACE_TRACE_H
#define WATCH_TRACE_TRACE_H

#include "launcher/agent/facts.h"
#include "protocol/message.h"
#include "protocol/records.h"

#include <uv.h>

struct trace;

struct trace_options {
    const char *path; /* NULL: no file, and only steps are sent; must outlive the trace, like the next two */
    const char *job, *host;
    uint64_t max_bytes;
    uint32_t n_procs; /* workers of this node */
    const struct facts *facts;
    /*
     * Called for each new step of a rank of this node, and on node rank 0 also of others; end_ns is by this node's
     * clock. NULL: none.
     */
    void (*step)(void *arg, int32_t rank, const struct cdi_flight_step *step, int64_t end_ns);
    void *arg;
};

/* Starts a trace. CDDP_E_NOMEM. */
cddp_status trace_start(struct trace **out, uv_loop_t *loop, const struct trace_options *opt, struct cdi_error *err);
/* Reads and sends what is due. Returns when to call it again; CDI_NEVER_MS: after trace_begin_round(). */
int64_t trace_look(struct trace *t, int64_t now_ms);
/* A round begins, with new pages. own_server: the rendezvous server runs in this process. */
void trace_begin_round(struct trace *t, const struct cdi_msg_assign *assign, bool own_server);
/* Records an event, such as "failure", of a rank (-1: of none). */
void trace_event(struct trace *t, const char *kind, int32_t rank, const char *text);
/* Reads everything that is new now. Call it before the server learns that the round is over here, and before the pages
 * end. */
void trace_flush(struct trace *t);
/* Handles RECORDS and TIME; returns false for other types. */
bool trace_on_bulk(struct trace *t, uint16_t type, const void *payload, size_t len);
/*
 * Completes the file, and frees t. Then calls closed(arg, flushed) from the loop; flushed false: exit by _exit(), since
 * a thread hangs in write(2). *text (cap bytes, which must stay until then) is by then a message for the user about the
 * file; "": there is none, or its loss was reported before. Without a trace, closed() is called at once.
 */
void trace_close(struct trace *t, char *text, size_t cap, void (*closed)(void *arg, bool flushed), void *arg);

#endif
