/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLUSTER_DETECT_H
#define CLUSTER_DETECT_H

#include "launcher/cluster/cluster.h"

/*
 * Finds the batch system that has started this process, if any, and reads its environment into *out, which stays all
 * zero without one and is written on success only. Pure but for from->read_file; the strings stay the environment's.
 * CDDP_E_INVALID: variables or a file that make no sense, with an error message that names one.
 */
cddp_status cluster_read(struct cluster_env *out, const struct cluster_source *from, struct cdi_error *err);

#endif
