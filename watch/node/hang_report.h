/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This node's part in noticing a standstill. While a round runs it looks at the workers' flight pages about once a
 * second, when the watcher calls it. It sends a REPORT by itself when a rank has waited for long in a collective, again
 * from time to time while that lasts, and when it is over; otherwise it sends nothing. It answers ASK, with details
 * that a thread of libuv's pool reads. The loop's thread.
 */
#ifndef WATCH_NODE_HANG_REPORT_H
#define WATCH_NODE_HANG_REPORT_H

#include "launcher/agent/facts.h"

#include <uv.h>

#define HANG_REPORT_TICK_MS 1000
#define HANG_REPORT_AGAIN_MS 10000

struct hang_report;

struct hang_report_options {
    uv_loop_t *loop;
    size_t n_ranks;
    int64_t wait_ms; /* a longer wait in a collective is reported; 0: none is */
    const struct facts *facts;
};

/* *opt is copied. CDDP_E_NOMEM. hang_report_close() ends it. */
cddp_status hang_report_start(struct hang_report **out, const struct hang_report_options *opt);
/* Looks at these ranks (NULL: they are not known). Returns when to look again; CDI_NEVER_MS: never. NULL-safe. */
int64_t hang_report_look(struct hang_report *h, struct cdi_node_report *r, int64_t now_ms);
/* Handles the payload of ASK: {"id": 7, "stacks_of": [3], "brief": false}. */
void hang_report_on_ask(struct hang_report *h, json_t *ask);
/* The agent has stopped its workers (true), or lets them go on (false): their waits begin anew. NULL-safe. */
void hang_report_held(struct hang_report *h, bool held);
/* Frees h, from the loop, after the thread has ended, which takes 3 s at most. Nothing is sent any more. NULL-safe. */
void hang_report_close(struct hang_report *h);

/*
 * Returns the longest wait of these ranks in a collective. Pure.
 */
int64_t hang_report_longest_ms(const struct cdi_node_report *r);

#endif
