/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that wait until the agents have said where their ranks are. One ASK serves all that ask within
 * POLL_FRESH_MS; a timer, which runs only meanwhile, looks for the answers. Loop thread only.
 */
#ifndef RDZV_POLL_AGENTS_H
#define RDZV_POLL_AGENTS_H

#include "rendezvous/conn.h"

#define POLL_FRESH_MS 250 /* answers to an ASK of this age are still news */

/*
 * Asks the agents of a job (NULL: of all), and calls answer(c) from the loop: when all agents have answered, but not
 * before from_ms; after wait_ms in any case. Does nothing for a connection that already waits. The end of a connection
 * ends its waiting.
 */
void poll_agents_begin(struct conn *c, struct conn_job *job, int64_t from_ms, int64_t wait_ms,
                       void (*answer)(struct conn *c));
/* Does this connection wait for answers? */
static inline bool poll_agents_waits(const struct conn *c)
{
    return !cdi_list_empty(&c->asking);
}
/*
 * At each tick of a job: its history gets a sample now and then, also while nobody looks. ask: the agents may be asked
 * for it; otherwise the newest reports are as good.
 */
void poll_agents_sample(struct conn_ctx *ctx, struct conn_job *job, bool ask);
/* Calls answer(c) now, with what is known. */
void poll_agents_answer(struct conn *c);
/* A job ends: connections that wait for its agents are answered at the next tick of the timer. */
void poll_agents_forget(struct conn_ctx *ctx, const struct conn_job *job);

#endif
