/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent: an event loop that connects supervise.c, which decides, with processes, the rendezvous, the guard and the
 * output.
 */
#ifndef AGENT_H
#define AGENT_H

#include "launcher/plan/plan.h"
#include "launcher/process/guard.h"

struct rdzv_views;  /* rendezvous/views.h */
struct watcher_ops; /* watcher.h */

/*
 * Runs the job to its end, and returns cddprun's exit status. No process of the job is left running, whatever it
 * returns. Takes link->fd. views: for the rendezvous server, if this agent hosts it. All messages are written to stderr
 * before it returns.
 */
int agent_run(const struct plan *plan, struct guard_link *link, const struct rdzv_views *views,
              const struct watcher_ops *watch);
/*
 * Checks what a start would need first: the program, and the address of the rendezvous, which blocks for as long as the
 * resolver does. Returns 0, or agent_run()'s exit status with an error message in *err.
 */
int agent_check(const struct plan *plan, struct cdi_error *err);

#endif
