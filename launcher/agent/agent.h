/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent: an event loop that connects supervise.c, which decides, with processes, the rendezvous, the guard and the
 * output.
 */
#ifndef AGENT_H
#define AGENT_H

#include "launcher/plan/plan.h"
#include "launcher/process/guard.h"

/*
 * Runs the job to its end, and returns cddprun's exit status. No process of the job is left running, whatever it
 * returns. Takes link->fd. All messages are written to stderr before it returns.
 */
int agent_run(const struct plan *plan, struct guard_link *link);

#endif
