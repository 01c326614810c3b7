/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs of a plan besides the node itself: the job's environment, a file of hosts, the cores. Blocks on files. */
#ifndef PLAN_INPUTS_H
#define PLAN_INPUTS_H

#include "launcher/plan/plan.h"

/*
 * Reads the job's nodes from the environment and --rank_order; nothing with --standalone. host: this node's name. Fails
 * as hostlist_find does, and as cluster_read unless --nnodes was given.
 */
cddp_status plan_inputs_cluster(struct cluster_env *cluster, const struct options *o, const char *host,
                                struct cdi_error *err);
/*
 * Appends a whole file to out, whose limit is HOSTLIST_MAX bytes, without UTF-8's byte order mark at its start.
 * CDDP_E_SYSTEM, CDDP_E_LIMIT, CDDP_E_NOMEM.
 */
cddp_status inputs_read_file(const char *path, struct cdi_buf *out, struct cdi_error *err);
/* Logs one line about values that were taken from the environment. */
void plan_inputs_log(const struct endpoint *endpoint, const struct options *o);
/* Logs one line about each flag that was given but has no effect on this plan. */
void plan_inputs_warn(const struct plan *plan, const struct options *o);
/*
 * Fills plan->bind with the cores of each worker. Fails as topology_read and bind_make do, but without --numa_binding
 * an error only disables binding. Release plan->bind by bind_free and free, on failure, too.
 */
cddp_status plan_inputs_binding(struct plan *plan, const struct options *o, const struct machine *m,
                                struct cdi_error *err);

#endif
