/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/cluster/values.h"

#include "common/env.h"

#include <inttypes.h>
#include <stdio.h>

const char *cluster_value(const struct cluster_source *from, const char *name)
{
    const char *value = from->env(name, from->arg);

    return value == NULL || *value == '\0' ? NULL : value;
}

cddp_status cluster_number(int64_t *out, const struct cluster_env *s, const struct cluster_source *from,
                           const char *name, int64_t min, int64_t max, struct cdi_error *err)
{
    const char *text = cluster_value(from, name);

    if (text != NULL && cdi_parse_int(text, min, max, out))
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID,
                    "%s: %s is '%.64s', not a number from %" PRId64 " to %" PRId64
                    "; give --nnodes, --node_rank and --master_addr, or --standalone",
                    s->kind, name, text == NULL ? "" : text, min, max);
}

uint16_t cluster_port(const char *job)
{
    uint32_t hash = 2166136261u;

    for (const char *p = job; *p != '\0'; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    return (uint16_t)(CLUSTER_FIRST_PORT + hash % (CLUSTER_N_PORTS - CLUSTER_JOB_PORTS + 1));
}

void cluster_name_job(struct cluster_env *s)
{
    (void)snprintf(s->run_id, sizeof s->run_id, "%.80s", s->job_id);
    s->port = cluster_port(s->job_id);
}
