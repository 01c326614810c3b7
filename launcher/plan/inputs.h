/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan needs of the world besides the machine: the job's environment, a file of hosts, the cores. Blocks on
 * files. */
#ifndef PLAN_INPUTS_H
#define PLAN_INPUTS_H

#include "launcher/plan/plan.h"

/*
 * What the environment and --rank_order say of the job's nodes; nothing with --standalone. host: this machine's name.
 * The errors of cluster_read (but for a job whose --nnodes was given) and of hostlist_find.
 */
cddp_status plan_inputs_cluster(struct cluster_env *cluster, const struct options *o, const char *host,
                                struct cdi_error *err);
/* Log one line about what no flag has said. */
void plan_inputs_log(const struct endpoint *endpoint, const struct options *o);
/* Log one line about each flag that was given and changes nothing in this plan. */
void plan_inputs_warn(const struct plan *plan, const struct options *o);
/*
 * Fill plan->bind: which cores each worker gets. Where nobody has asked for it, whatever goes wrong is no reason not to
 * run. The errors of topology_read and bind_make. Release it by bind_free and free, on failure too.
 */
cddp_status plan_inputs_binding(struct plan *plan, const struct options *o, const struct machine *m,
                                struct cdi_error *err);

#endif
