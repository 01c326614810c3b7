/* SPDX-License-Identifier: Apache-2.0 */
/* A PBS job: the script, or one process of pbsdsh on each node. */
#include "launcher/cluster/hostlist.h"
#include "launcher/cluster/readers.h"
#include "launcher/cluster/values.h"

#include <string.h>

cddp_status pbs_read(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err)
{
    const char *path = cluster_value(from, "PBS_NODEFILE"), *task = cluster_value(from, "PBS_TASKNUM");
    struct cdi_buf text, hosts;
    cddp_status st;

    s->kind = "PBS job";
    s->start = "pbsdsh -u";
    s->job_id = cluster_value(from, "PBS_JOBID");
    cluster_name_job(s);
    cdi_buf_init(&text, HOSTLIST_MAX);
    cdi_buf_init(&hosts, HOSTLIST_MAX);
    st = path == NULL ? CDDP_OK : from->read_file(path, &text, err);
    if (st == CDDP_OK)
        st = cdi_buf_append(&text, "", 1);
    if (st == CDDP_OK)
        st = hostlist_unique((const char *)cdi_buf_data(&text), false, &hosts, &s->job_nodes, err);
    /* The job's own shell is its first task; the processes of pbsdsh are the following ones. */
    if (st == CDDP_OK)
        st = hostlist_place(s, from, &hosts, "PBS_NODEFILE", task == NULL || strcmp(task, "1") == 0, err);
    cdi_buf_release(&text);
    cdi_buf_release(&hosts);
    return st;
}
