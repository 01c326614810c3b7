/* SPDX-License-Identifier: Apache-2.0 */
/* A job of Open MPI's mpirun. */
#include "launcher/cluster/readers.h"
#include "launcher/cluster/values.h"

#include <stdio.h>
#include <string.h>

/* "1234.0;tcp://10.0.0.1,192.168.0.1:45337": the first address of the node that runs mpirun. */
static void openmpi_address(struct cluster_env *s, const char *uri)
{
    const char *tcp = uri == NULL ? NULL : strstr(uri, "tcp://");
    size_t n = tcp == NULL ? 0 : strcspn(tcp + 6, ",:/;");

    if (n > 0 && n < sizeof s->first_node)
        (void)snprintf(s->first_node, sizeof s->first_node, "%.*s", (int)n, tcp + 6);
}

cddp_status openmpi_read(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err)
{
    const char *space = cluster_value(from, "PMIX_NAMESPACE"), *job = cluster_value(from, "OMPI_MCA_ess_base_jobid");
    int64_t local = 1;
    cddp_status st;

    s->kind = "Open MPI job";
    s->start = "mpirun --map-by ppr:1:node";
    st = cluster_number(&s->n_nodes, s, from, "OMPI_COMM_WORLD_SIZE", 1, CLUSTER_NODES_MAX, err);
    if (st == CDDP_OK)
        st = cluster_number(&s->node_rank, s, from, "OMPI_COMM_WORLD_RANK", 0, s->n_nodes - 1, err);
    if (st == CDDP_OK && cluster_value(from, "OMPI_COMM_WORLD_LOCAL_SIZE") != NULL)
        st = cluster_number(&local, s, from, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, CLUSTER_NODES_MAX, err);
    if (st != CDDP_OK)
        return st;
    s->in_step = true;
    s->one_task_per_node = local == 1;
    openmpi_address(s, cluster_value(from, "OMPI_MCA_orte_hnp_uri"));
    job = job != NULL ? job : space != NULL ? space : cluster_value(from, "OMPI_MCA_orte_hnp_uri");
    (void)snprintf(s->run_id, sizeof s->run_id, "%.80s", job == NULL ? "mpirun" : job);
    s->port = cluster_port(s->run_id);
    return CDDP_OK;
}
