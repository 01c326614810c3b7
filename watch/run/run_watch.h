/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the run for --report and --progress: keeps the record of the run from the steps that the trace has read,
 * draws the line, and writes the report of node rank 0 at the end. The loop's thread. Every function does nothing for
 * NULL.
 */
#ifndef WATCH_RUN_RUN_WATCH_H
#define WATCH_RUN_RUN_WATCH_H

#include "launcher/agent/supervise.h"
#include "launcher/output/logs.h"
#include "protocol/node_report.h"

struct run_watch;

/*
 * Starts a watch; *out is NULL if no flag asks for one. CDDP_E_INVALID: the report cannot be written there;
 * CDDP_E_NOMEM. The plan and the logs must outlive run_watch_end().
 */
cddp_status run_watch_start(struct run_watch **out, const struct plan *plan, struct logs *logs, struct cdi_error *err);
/* Begins a round. */
void run_watch_round(struct run_watch *w, const struct cdi_msg_assign *assign);
/* Notes how many steps this node's ranks have done (r is NULL: not known). */
void run_watch_count(struct run_watch *w, const struct cdi_node_report *r);
/* Does that, and draws the line of --progress. Returns when to call it again; CDI_NEVER_MS: never. */
int64_t run_watch_look(struct run_watch *w, const struct cdi_node_report *r, int64_t now_ms);
/* Notes that the rendezvous has ended the round, and why. */
void run_watch_round_over(struct run_watch *w, const struct cdi_msg_round_over *over);
/* Notes an event for the report's timeline, such as "signal". */
void run_watch_event(struct run_watch *w, const char *kind, const char *text);
/* Adds a completed step of any rank, whose end was at end_ns of this node's clock. */
void run_watch_step(struct run_watch *w, int32_t rank, const struct cdi_flight_step *step, int64_t end_ns);
/* Ends the watch of the run: nothing is drawn any more. */
void run_watch_end(struct run_watch *w, const struct supervise *s, int exit_status);
/* After the loop: writes the report, if this is node rank 0 and the run has begun, and frees w. Blocks. CDDP_E_SYSTEM.
 */
cddp_status run_watch_finish(struct run_watch *w, struct cdi_error *err);

#endif
