/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Slurm's variables say about this process: the nodes of its job step, which of them this is, and where they can
 * meet. Values of the job are never mixed with those of the step. Pure; needs no scontrol.
 */
#ifndef SLURM_H
#define SLURM_H

#include "launcher/cluster/cluster.h"

/*
 * Read SLURM_* by env(name, arg); the strings stay the environment's. Outside of Slurm all is zero. CDDP_E_INVALID: a
 * step whose variables make no sense, with a sentence that names one.
 */
cddp_status slurm_read(struct cluster_env *out, options_getenv env, void *arg, struct cdi_error *err);

/*
 * Call each(arg, name) for every host of a list such as "node[01-03,7],a[1-2]b[1-2]", in its order, until it returns
 * false. CDDP_OK; CDDP_E_INVALID, CDDP_E_LIMIT (a name of more than 255 bytes, more than CLUSTER_NODES_MAX names).
 */
cddp_status slurm_hosts(const char *list, bool (*each)(void *arg, const char *name), void *arg, struct cdi_error *err);

#endif
