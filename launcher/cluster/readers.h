/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One reader for each batch system. Each is called with *s all zero in the environment of its batch system, and fills
 * it; CDDP_E_INVALID: variables or a file that make no sense, with an error message that names one.
 */
#ifndef CLUSTER_READERS_H
#define CLUSTER_READERS_H

#include "launcher/cluster/cluster.h"

cddp_status openmpi_read(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err);
cddp_status slurm_read(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err);
cddp_status pbs_read(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err);
cddp_status lsf_read(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err);
cddp_status kubernetes_read(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err);

#endif
