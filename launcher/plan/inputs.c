/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/inputs.h"

#include "common/log.h"
#include "launcher/cli/parse.h"
#include "launcher/cli/rankmap.h"
#include "launcher/cluster/detect.h"
#include "launcher/cluster/hostlist.h"
#include "launcher/plan/topology.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UTF8_MARK "\xef\xbb\xbf" /* editors of Windows put it at the start of a text */

cddp_status inputs_read_file(const char *path, struct cdi_buf *out, struct cdi_error *err)
{
    FILE *f = fopen(path, "re");
    cddp_status st = CDDP_OK;
    char part[4096];
    size_t n;

    if (f == NULL)
        return cdi_fail_errno(err, errno, "cannot read '%.300s'", path);
    while (st == CDDP_OK && (n = fread(part, 1, sizeof part, f)) > 0)
        st = cdi_buf_append(out, part, n);
    if (st != CDDP_OK)
        st = cdi_fail(err, st, "'%.300s' is too large", path);
    else if (ferror(f))
        st = cdi_fail_errno(err, errno, "cannot read '%.300s'", path);
    else if (out->len >= strlen(UTF8_MARK) && memcmp(cdi_buf_data(out), UTF8_MARK, strlen(UTF8_MARK)) == 0)
        cdi_buf_consume(out, strlen(UTF8_MARK));
    (void)fclose(f);
    return st;
}

/* The order of the user's file overrides that of the environment. */
static cddp_status read_order(struct cluster_env *cluster, const struct options *o, const char *host,
                              struct cdi_error *err)
{
    struct cdi_buf text;
    char from[320];
    cddp_status st;

    cdi_buf_init(&text, HOSTLIST_MAX);
    (void)snprintf(from, sizeof from, "--rank_order '%.300s'", o->rank_order);
    st = inputs_read_file(o->rank_order, &text, err);
    if (st == CDDP_OK)
        st = cdi_buf_append(&text, "", 1);
    if (st == CDDP_OK)
        st = hostlist_find(cluster, (const char *)cdi_buf_data(&text), o->local_addr != NULL ? o->local_addr : host,
                           from, err);
    if (st == CDDP_OK) {
        cluster->by_file = true;
        cluster->in_step = true;
        cluster->one_task_per_node = true;
        cluster->in_job = false;
        cluster->kind = cluster->kind == NULL ? "job" : cluster->kind;
    }
    cdi_buf_release(&text);
    return st;
}

cddp_status plan_inputs_cluster(struct cluster_env *cluster, const struct options *o, const char *host,
                                struct cdi_error *err)
{
    struct cluster_source from = {.env = options_real_env, .host = host, .read_file = inputs_read_file};
    cddp_status st;

    if (o->standalone)
        return CDDP_OK;
    /* With --nnodes, errors in the environment do not matter. */
    st = cluster_read(cluster, &from, err);
    if (st != CDDP_OK && !o->nnodes_given)
        return st;
    return o->rank_order != NULL ? read_order(cluster, o, host, err) : CDDP_OK;
}

void plan_inputs_log(const struct endpoint *endpoint, const struct options *o)
{
    bool speaks = endpoint->node_rank == 0 || endpoint->n_nodes == 1;
    enum cdi_log_level level = speaks ? CDI_LOG_WARN : CDI_LOG_INFO;

    if (endpoint->detected[0] != '\0')
        cdi_log(level, "MAIN-SITE", "%s", endpoint->detected);
    else if (endpoint->n_nodes > 1 && o->from_variables[0] != '\0')
        cdi_log(level, "MAIN-SITE", "from the environment: %s", o->from_variables);
}

void plan_inputs_warn(const struct plan *plan, const struct options *o)
{
    const char *given = o->master_port >= 0                                       ? "--master_port"
                        : o->master_addr != NULL                                  ? "--master_addr"
                        : o->rdzv_endpoint != NULL && o->rdzv_endpoint[0] != '\0' ? "--rdzv_endpoint"
                                                                                  : NULL;
    bool shown = false;

    if (o->standalone && given != NULL)
        cdi_log(CDI_LOG_WARN, "MAIN-STANDALONE",
                "%s is ignored: --standalone means 127.0.0.1 and any free port; remove one of them", given);
    for (uint32_t i = 0; i < plan->n_procs && !shown; i++)
        shown = rankset_has(o->local_ranks_filter, i);
    if (!shown)
        cdi_log(
            CDI_LOG_WARN, "MAIN-FILTER",
            "no output will be shown: --local_ranks_filter '%.100s' selects none of this node's local ranks, 0 to %u",
            o->local_ranks_filter, plan->n_procs - 1);
}

cddp_status plan_inputs_binding(struct plan *plan, const struct options *o, const struct machine *m,
                                struct cdi_error *err)
{
    enum bind_mode mode = (enum bind_mode)o->numa_binding;
    struct bind_topology t = {.n = 0};
    int gpu_nodes[CDI_GPUS_MAX];
    cddp_status st;

    plan->bind = calloc(plan->n_procs, sizeof *plan->bind);
    if (plan->bind == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < m->n_gpus; i++)
        gpu_nodes[i] = m->gpus[i].numa_node;
    st = mode == BIND_NONE || (mode == BIND_AUTO && !topology_is_numa("")) ? CDDP_OK : topology_read(&t, err);
    if (st == CDDP_OK)
        st = bind_make(plan->bind, plan->n_procs, mode, &t, gpu_nodes, m->n_gpus, err);
    free(t.cpus);
    for (uint32_t i = 0; st == CDDP_OK && i < plan->n_procs; i++)
        if (plan->bind[i].gpu >= 0)
            memcpy(plan->bind[i].gpu_pci, m->gpus[plan->bind[i].gpu].pci, sizeof plan->bind[i].gpu_pci);
    if (st == CDDP_OK || mode != BIND_AUTO)
        return st;
    cdi_log(CDI_LOG_WARN, "MAIN-BIND", "workers are not bound to cores: %s", err->msg);
    for (uint32_t i = 0; i < plan->n_procs; i++)
        plan->bind[i] = (struct bind_worker){.node = -1, .gpu = -1};
    return CDDP_OK;
}
