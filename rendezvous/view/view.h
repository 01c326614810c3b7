/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job as a whole: the newest report of each node about its ranks (protocol/node_report.h). Asks the agents for
 * reports, and sends text to the agent that prints it. Without sockets: it uses the session. The loop's thread.
 */
#ifndef RDZV_VIEW_H
#define RDZV_VIEW_H

#include "protocol/node_report.h"
#include "rendezvous/round/session.h"

struct view;

struct view_node {
    uint32_t peer;
    int64_t received_ms;
    struct cdi_node_report report;
};

/* Creates the view of a job; the session must outlive it. CDDP_OK or CDDP_E_NOMEM. */
cddp_status view_create(struct view **out, struct session *s);
void view_destroy(struct view *v); /* NULL-safe */

/*
 * Sends ASK to every agent of the running round. Returns its id, from 1. With n > 0 the agents add stacks of these
 * ranks of the job. brief: the agents read nothing but flight pages.
 */
uint32_t view_ask(struct view *v, const int32_t *stacks_of, size_t n, bool brief);
/* Returns the number of agents in the running round that have not answered this ASK, or a later one. */
size_t view_unanswered(const struct view *v, uint32_t id);
/*
 * Handles a frame of bulk.h from an agent. Frames that it does not know, or that are malformed, are ignored. Returns
 * the new report of a node, valid until the next call with v; NULL: it was none.
 */
const struct view_node *view_on_bulk(struct view *v, uint32_t peer, uint16_t type, const void *payload, size_t len,
                                     int64_t now_ms);
/* Returns the newest reports of the running round, in the order of node ranks; valid until the next call with v. */
const struct view_node *view_nodes(struct view *v, size_t *n);
/* Returns the newest report of a node; NULL: there is none. Valid as view_nodes() is, after which it is called. */
const struct view_node *view_find(const struct view *v, int32_t node_rank);
/* Makes the agent of node rank 0 print these lines on stderr. Returns false if no such agent is connected. */
bool view_notice(struct view *v, const char *text);

#endif
