/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous server in an agent. The agent that can bind the endpoint's address hosts it. */
#ifndef HOST_H
#define HOST_H

#include "launcher/agent/rdzv_client.h"
#include "launcher/plan/plan.h"
#include "rendezvous/server.h"

/*
 * Finds the addresses of the job's endpoint. Blocks for as long as the resolver does: the loop has nothing to do yet,
 * and the guard ends this process if a signal arrives. remote: --hosts has started this agent.
 */
cddp_status host_resolve(const struct endpoint *m, bool remote, struct rdzv_client_options *client,
                         struct cdi_error *err);

/*
 * Starts the rendezvous server if this agent hosts it, and sets client's addresses to it. *server stays as it is if
 * another process hosts it; client->note then states why this agent does not.
 */
cddp_status host_start(struct rdzv_server **server, uv_loop_t *loop, const struct plan *plan,
                       const struct rdzv_views *views, struct rdzv_client_options *client, struct cdi_error *err);

/*
 * Starts the rendezvous server of an agent that wants to be elected, at every address of this node. It gives no answers
 * before rdzv_server_answer_until(). lease_ms: of its agents.
 */
cddp_status host_start_elected(struct rdzv_server **server, uv_loop_t *loop, const struct plan *plan,
                               const struct rdzv_views *views, int64_t lease_ms, struct cdi_error *err);

#endif
