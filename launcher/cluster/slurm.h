/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of nodes that Slurm writes. Pure; needs no scontrol. */
#ifndef SLURM_H
#define SLURM_H

#include "launcher/cluster/cluster.h"

/*
 * Calls each(arg, name) for every host of a list such as "node[01-03,7],a[1-2]b[1-2]", in its order, until it returns
 * false. CDDP_OK; CDDP_E_INVALID, CDDP_E_LIMIT (a name of more than 255 bytes, more than CLUSTER_NODES_MAX names).
 */
cddp_status slurm_hosts(const char *list, bool (*each)(void *arg, const char *name), void *arg, struct cdi_error *err);

#endif
