/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan needs of the world besides the machine: the job's environment, a file of hosts, the cores. Blocks on
 * files. */
#ifndef PREPARE_H
#define PREPARE_H

#include "launcher/plan/plan.h"

/*
 * What the environment and --rank_order say of the job's nodes; nothing with --standalone. host: this machine's name.
 * The errors of site_read (but for a job whose --nnodes was given) and of site_order.
 */
cddp_status prepare_site(struct site *site, const struct options *o, const char *host, struct cdi_error *err);
/* Log one line about what no flag has said. */
void prepare_say(const struct meet *meet, const struct options *o);
/* Log one line about each flag that was given and changes nothing in this plan. */
void prepare_warn(const struct plan *plan, const struct options *o);
/*
 * Fill plan->bind: which cores each worker gets. Where nobody has asked for it, whatever goes wrong is no reason not to
 * run. The errors of topology_read and bind_make. Release it by bind_free and free, on failure too.
 */
cddp_status prepare_binding(struct plan *plan, const struct options *o, const struct machine *m, struct cdi_error *err);

#endif
