/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent: the event loop in which supervise's decisions meet processes, the rendezvous, the guard and the output.
 * What it does is thin; what it decides is in supervise.c.
 */
#ifndef AGENT_H
#define AGENT_H

#include "launcher/plan/plan.h"
#include "launcher/process/guard.h"

/*
 * Run the job to its end; the exit status of cddprun. Nothing is left running, whatever it returns. Takes link->fd.
 * Before it returns everything was said on stderr that is to be said.
 */
int agent_run(const struct plan *plan, struct guard_link *link);

#endif
