/* SPDX-License-Identifier: Apache-2.0 */
/* What every reader of a batch system's environment needs. */
#ifndef CLUSTER_VALUES_H
#define CLUSTER_VALUES_H

#include "launcher/cluster/cluster.h"

/* Returns the value of an environment variable; NULL if it is not set, or empty. */
const char *cluster_value(const struct cluster_source *from, const char *name);

/* Reads a variable that must be a number from min to max. CDDP_E_INVALID with an error message that names s->kind. */
cddp_status cluster_number(int64_t *out, const struct cluster_env *s, const struct cluster_source *from,
                           const char *name, int64_t min, int64_t max, struct cdi_error *err);

/* Returns the first of CLUSTER_JOB_PORTS ports for a job of this name; the same on all its nodes. */
uint16_t cluster_port(const char *job);

/* Sets run_id and port by job_id. */
void cluster_name_job(struct cluster_env *s);

#endif
