/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that watches the running job for people: --trace, --report, --progress, reports about where the ranks are,
 * standstills of workers without a flight page, and MPI programs without MPI's launcher. One timer looks at the facts
 * that the agent exports. Nothing here changes the job. The loop's thread.
 */
#ifndef WATCHER_H
#define WATCHER_H

#include "launcher/agent/facts.h"
#include "launcher/agent/supervise.h"
#include "launcher/output/logs.h"
#include "launcher/plan/plan.h"

#include <uv.h>

struct watcher;

struct watcher_options {
    uv_loop_t *loop;
    const struct plan *plan; /* these must outlive watcher_finish() */
    struct logs *logs;       /* must outlive watcher_end() */
    const char *program;     /* its file */
    struct facts facts;
};

/* The program hands this table to the agent, which knows nothing else of the watcher. event, end and finish are
 * NULL-safe. */
struct watcher_ops {
    /* Starts it. CDDP_E_INVALID: the report of --report cannot be written there; CDDP_E_NOMEM. *out is set in any case.
     */
    cddp_status (*start)(struct watcher **out, const struct watcher_options *opt, struct cdi_error *err);
    /* A round begins. own_server: the rendezvous server runs in this process. */
    void (*round)(struct watcher *w, const struct cdi_msg_assign *assign, bool own_server);
    /* Reads everything new. Call it before the server learns that the round is over here, and before pages end. */
    void (*flush)(struct watcher *w);
    /* The rendezvous has ended the round. */
    void (*round_over)(struct watcher *w, const struct cdi_msg_round_over *over);
    /* Notes an event, such as "failure", of a rank (-1: of none). */
    void (*event)(void *w, const char *kind, int32_t rank, const char *text);
    /* Handles a frame of bulk.h from the server. */
    void (*bulk)(struct watcher *w, uint16_t type, const void *payload, size_t len);
    /* The agent has stopped its workers (true), or lets them go on (false): their waits begin anew. */
    void (*held)(struct watcher *w, bool held);
    /* The run is over, or with s NULL has not begun. Asks for facts a last time. */
    void (*end)(struct watcher *w, const struct supervise *s, int exit_status);
    /*
     * After the loop: says where the trace is (not if `quiet`), writes the report, if this is node rank 0 and the run
     * has begun, and frees w. Blocks. Returns false if the trace's thread hangs in write(2): then exit by _exit().
     */
    bool (*finish)(struct watcher *w, bool quiet);
};

#endif
