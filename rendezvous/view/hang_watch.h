/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches a job for a standstill. It sleeps until an agent reports by itself that a rank has waited for long; then it
 * asks all agents, judges (hang.h), asks for the stacks of the ranks that are behind, and makes the agent of node rank
 * 0 print one message. While the standstill lasts it asks again now and then, and reports a change, the end, and the
 * timeout, after which it may end the round. Without sockets: it uses the session and the view. The loop's thread.
 */
#ifndef RDZV_HANG_WATCH_H
#define RDZV_HANG_WATCH_H

#include "rendezvous/view/hang.h"

#define HANG_ANSWER_MS 500  /* from one agent's answer to the next */
#define HANG_STACKS_MS 700  /* the same with stacks; later ones are printed separately */
#define HANG_ALL_MS 3000    /* for the answers of all agents */
#define HANG_AGAIN_MS 5000  /* between two looks during a standstill */
#define HANG_QUIET_MS 1000  /* between two looks that found no standstill */
#define HANG_MESSAGES_MAX 5 /* about one standstill, without its end and the timeout */

struct hang_watch;

/* Creates the watch of a job. What it gets must outlive it. CDDP_E_NOMEM. */
cddp_status hang_watch_create(struct hang_watch **out, struct session *s, struct view *v, const struct hang_ops *ops);
void hang_watch_destroy(struct hang_watch *w); /* NULL-safe */
/* Returns the wait after which a job with these settings is looked at; 0: never. */
int64_t hang_watch_long_wait_ms(const struct session_hang *opt);
/* Returns false while it asks all agents now and then. */
bool hang_watch_is_calm(const struct hang_watch *w);
/* A REPORT was taken by the view. asked: its member, 0 if it was sent by itself. From within session_ops.bulk. */
void hang_watch_on_report(struct hang_watch *w, int32_t node_rank, uint32_t asked, int64_t now_ms);
/* Time has passed. Call it several times per second; it may end the round. */
void hang_watch_tick(struct hang_watch *w, int64_t now_ms, int64_t wall_ms);

#endif
