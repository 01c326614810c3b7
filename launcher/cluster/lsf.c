/* SPDX-License-Identifier: Apache-2.0 */
/* An LSF job: the script, or one process of blaunch or jsrun on each node. */
#include "launcher/cluster/hostlist.h"
#include "launcher/cluster/readers.h"
#include "launcher/cluster/values.h"

#include <stdio.h>
#include <string.h>

/*
 * jsrun numbers its tasks itself; the host that runs the job's script is first in the list, and not one of them. If
 * jsrun uses only some of the other hosts, it tells nobody which.
 */
static cddp_status lsf_read_jsrun(struct cluster_env *s, const struct cluster_source *from, const char *hosts,
                                  struct cdi_error *err)
{
    int64_t local = 1, unused;
    cddp_status st = cluster_number(&s->n_nodes, s, from, "JSM_NAMESPACE_SIZE", 1, CLUSTER_NODES_MAX, err);

    if (st == CDDP_OK)
        st = cluster_number(&s->node_rank, s, from, "JSM_NAMESPACE_RANK", 0, s->n_nodes - 1, err);
    if (st == CDDP_OK && cluster_value(from, "JSM_NAMESPACE_LOCAL_SIZE") != NULL)
        st = cluster_number(&local, s, from, "JSM_NAMESPACE_LOCAL_SIZE", 1, CLUSTER_NODES_MAX, err);
    if (st != CDDP_OK)
        return st;
    unused = s->job_nodes - s->n_nodes;
    if (unused == 1)
        hosts += strcspn(hosts, "\n") + 1;
    if (unused <= 1) {
        hostlist_show(s, hosts);
        (void)snprintf(s->first_node, sizeof s->first_node, "%.*s", (int)strcspn(hosts, "\n"), hosts);
    }
    s->in_step = true;
    s->one_task_per_node = local == 1;
    return CDDP_OK;
}

cddp_status lsf_read(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err)
{
    const char *list = cluster_value(from, "LSB_MCPU_HOSTS");
    bool by_jsrun = cluster_value(from, "JSM_NAMESPACE_SIZE") != NULL,
         by_blaunch = cluster_value(from, "LSF_PM_TASKID") != NULL;
    struct cdi_buf hosts;
    cddp_status st;

    s->kind = "LSF job";
    s->start = "blaunch, or jsrun -r 1";
    s->job_id = cluster_value(from, "LSB_JOBID");
    cluster_name_job(s);
    cdi_buf_init(&hosts, HOSTLIST_MAX);
    st = hostlist_unique(list == NULL ? "" : list, true, &hosts, &s->job_nodes, err);
    if (st == CDDP_OK)
        st = by_jsrun ? lsf_read_jsrun(s, from, (const char *)cdi_buf_data(&hosts), err)
                      : hostlist_place(s, from, &hosts, "LSB_MCPU_HOSTS", !by_blaunch, err);
    cdi_buf_release(&hosts);
    return st;
}
