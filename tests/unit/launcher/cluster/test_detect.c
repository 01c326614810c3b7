/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/cluster/detect.h"
#include "launcher/cluster/hostlist.h"
#include "launcher/cluster/values.h"

#include <string.h>

CDI_SUITE(cluster);

static struct cdi_error err;
static const char *pod_hosts;
static const char *nodefile = "node1\nnode1\nnode2.cluster\nnode2.cluster\nnode10\n";

static const char *fake_env(const char *name, void *arg)
{
    size_t n = strlen(name);

    for (const char *const *e = arg; *e != NULL; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return *e + n + 1;
    return NULL;
}

static cddp_status fake_file(const char *path, struct cdi_buf *out, struct cdi_error *e)
{
    if (strcmp(path, "/etc/hosts") == 0 && pod_hosts != NULL)
        return cdi_buf_append(out, pod_hosts, strlen(pod_hosts));
    if (strcmp(path, "/nodefile") != 0)
        return cdi_fail(e, CDDP_E_SYSTEM, "cannot read '%s'", path);
    return cdi_buf_append(out, nodefile, strlen(nodefile));
}

static cddp_status read_as(struct cluster_env *s, const char *host, const char **env)
{
    struct cluster_source from = {.env = fake_env, .arg = env, .host = host, .read_file = fake_file};

    memset(s, 0, sizeof *s);
    return cluster_read(s, &from, &err);
}

#define READ(s, host, ...) read_as(s, host, (const char *[]){__VA_ARGS__, NULL})
#define SAYS(text) cr_expect_not_null(strstr(err.msg, text), "%s", err.msg)

Test(cluster, finds_nothing_outside_jobs)
{
    struct cluster_env s;

    cr_assert_eq(READ(&s, "box", "HOME=/", "PBS_NODEFILE=/nodefile"), CDDP_OK);
    cr_assert_null(s.kind);
    cr_assert_not(s.in_step || s.in_job);
}

Test(cluster, reads_open_mpi_job)
{
    const char *uri = "OMPI_MCA_orte_hnp_uri=123.0;tcp://10.0.0.1,192.168.0.1:4567";
    struct cluster_env s;

    cr_assert_eq(READ(&s, "b", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=1", uri,
                      "OMPI_MCA_ess_base_jobid=99", "SLURM_JOB_ID=7", "SLURM_STEP_ID=0"),
                 CDDP_OK);
    cr_assert(s.in_step);
    cr_assert(s.one_task_per_node);
    cr_assert_eq(s.n_nodes, 2);
    cr_assert_eq(s.node_rank, 1);
    cr_assert_str_eq(s.first_node, "10.0.0.1");
    cr_assert_str_eq(s.run_id, "99");
    cr_assert_eq(s.port, cluster_port("99"));
    cr_assert_eq(READ(&s, "b", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=4"),
                 CDDP_OK);
    cr_assert_not(s.one_task_per_node);
    cr_assert_str_eq(s.first_node, "");
    cr_assert_eq(READ(&s, "b", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=4"), CDDP_E_INVALID);
    SAYS("OMPI_COMM_WORLD_RANK is '4'");
}

Test(cluster, reads_pbs_job_script_and_pbsdsh)
{
    struct cluster_env s;

    cr_assert_eq(READ(&s, "node2", "PBS_JOBID=12.head", "PBS_NODEFILE=/nodefile", "PBS_TASKNUM=3"), CDDP_OK);
    cr_assert(s.in_step);
    cr_assert_eq(s.n_nodes, 3);
    cr_assert_eq(s.node_rank, 1);
    cr_assert_str_eq(s.first_node, "node1");
    cr_assert_str_eq(s.nodes, "node1, node2.cluster, node10");
    cr_assert_str_eq(s.run_id, "12.head");
    cr_assert_eq(READ(&s, "node10.cluster", "PBS_JOBID=12.head", "PBS_NODEFILE=/nodefile", "PBS_TASKNUM=4"), CDDP_OK);
    cr_assert_eq(s.node_rank, 2);
    cr_assert_eq(READ(&s, "node1", "PBS_JOBID=12.head", "PBS_NODEFILE=/nodefile", "PBS_TASKNUM=1"), CDDP_OK);
    cr_assert(s.in_job && !s.in_step);
    cr_assert_eq(s.job_nodes, 3);
    cr_assert_eq(READ(&s, "elsewhere", "PBS_JOBID=1", "PBS_NODEFILE=/nodefile", "PBS_TASKNUM=2"), CDDP_E_NOT_FOUND);
    SAYS("PBS_NODEFILE does not list this host, 'elsewhere'");
    cr_assert_eq(READ(&s, "node1", "PBS_JOBID=1", "PBS_NODEFILE=/none", "PBS_TASKNUM=2"), CDDP_E_SYSTEM);
}

Test(cluster, reads_lsf_job_blaunch_and_jsrun)
{
    const char *hosts = "LSB_MCPU_HOSTS= batch1 1 c7 42 c9 42";
    struct cluster_env s;

    cr_assert_eq(READ(&s, "batch1", "LSB_JOBID=5", hosts), CDDP_OK);
    cr_assert(s.in_job && !s.in_step);
    cr_assert_eq(s.job_nodes, 3);
    cr_assert_eq(READ(&s, "c9", "LSB_JOBID=5", hosts, "LSF_PM_TASKID=3"), CDDP_OK);
    cr_assert(s.in_step);
    cr_assert_eq(s.node_rank, 2);
    cr_assert_eq(READ(&s, "c9", "LSB_JOBID=5", hosts, "JSM_NAMESPACE_SIZE=2", "JSM_NAMESPACE_RANK=1",
                      "JSM_NAMESPACE_LOCAL_SIZE=1"),
                 CDDP_OK);
    cr_assert(s.in_step && s.one_task_per_node);
    cr_assert_eq(s.n_nodes, 2);
    cr_assert_eq(s.node_rank, 1);
    cr_assert_str_eq(s.first_node, "c7");
    cr_assert_str_eq(s.nodes, "c7, c9");
    cr_assert_eq(READ(&s, "c9", "LSB_JOBID=5", hosts, "JSM_NAMESPACE_SIZE=1", "JSM_NAMESPACE_RANK=0"), CDDP_OK);
    cr_assert_str_empty(s.first_node, "one of two hosts: jsrun has not said which");
    cr_assert_eq(READ(&s, "c9", "LSB_JOBID=5", hosts, "JSM_NAMESPACE_SIZE=x"), CDDP_E_INVALID);
}

/* The kubelet writes these lines: the last one only into pods that have a subdomain. */
#define KUBELET "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n"

Test(cluster, reads_index_of_kubernetes_pod)
{
    struct cluster_env s;

    pod_hosts = KUBELET "10.244.1.5\ttrain-a-3.workers.team.svc.cluster.local\ttrain-a-3\n";
    cr_assert_eq(READ(&s, "train-a-3", "JOB_COMPLETION_INDEX=3"), CDDP_OK);
    cr_assert(s.in_step && s.one_task_per_node && s.nodes_by_user);
    cr_assert_eq(s.n_nodes, 0);
    cr_assert_eq(s.node_rank, 3);
    cr_assert_str_eq(s.first_node, "train-a-0.workers.team.svc.cluster.local");
    cr_assert_str_eq(s.run_id, "train-a");
    /* JobSet: JOBSET-REPLICATEDJOB-JOB-POD. */
    pod_hosts = KUBELET "fd00::7 gpt-node-0-12.gpt.ns.svc.corp gpt-node-0-12";
    cr_assert_eq(READ(&s, "gpt-node-0-12", "JOB_COMPLETION_INDEX=12"), CDDP_OK);
    cr_assert_str_eq(s.first_node, "gpt-node-0-0.gpt.ns.svc.corp");
    cr_assert_eq(READ(&s, "train-1", "JOB_COMPLETION_INDEX=x"), CDDP_E_INVALID);
    SAYS("JOB_COMPLETION_INDEX is 'x'");
}

Test(cluster, kubernetes_pod_without_subdomain_has_no_name)
{
    struct cluster_env s;

    pod_hosts = KUBELET "10.244.1.5\ttrain-10.other.ns train-1 # train-1.in.comment\n";
    cr_assert_eq(READ(&s, "train-1", "JOB_COMPLETION_INDEX=1"), CDDP_OK);
    cr_assert_str_eq(s.first_node, "");
    cr_assert_str_eq(s.run_id, "train");
    pod_hosts = NULL;
    cr_assert_eq(READ(&s, "train-1", "JOB_COMPLETION_INDEX=1"), CDDP_OK);
    cr_assert_str_eq(s.first_node, "");
    /* hostNetwork: true; setHostnameAsFQDN: true */
    cr_assert_eq(READ(&s, "machine7", "JOB_COMPLETION_INDEX=1"), CDDP_OK);
    cr_assert_eq(s.node_rank, 1);
    cr_assert_str_eq(s.first_node, "");
    cr_assert_str_eq(s.run_id, "");
    cr_assert_eq(READ(&s, "-1", "JOB_COMPLETION_INDEX=1"), CDDP_OK);
    cr_assert_str_eq(s.run_id, "");
    cr_assert_eq(READ(&s, "train-1.workers.ns.svc.cluster.local", "JOB_COMPLETION_INDEX=1"), CDDP_OK);
    cr_assert_str_eq(s.first_node, "train-0.workers.ns.svc.cluster.local");
}

Test(cluster, batch_system_overrides_kubernetes)
{
    struct cluster_env s;

    cr_assert_eq(READ(&s, "slinky-1", "JOB_COMPLETION_INDEX=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=2"),
                 CDDP_OK);
    cr_assert_eq(s.node_rank, 2);
    cr_assert_not(s.nodes_by_user);
}

Test(cluster, orders_by_host_file)
{
    struct cluster_env s = {.kind = NULL};
    const char *text = "# ring\n node66 slots=8\n\nnode7.cluster.local  # the last\r\nnode8";

    cr_assert_eq(hostlist_find(&s, text, "NODE7", "F", &err), CDDP_OK);
    cr_assert_eq(s.n_nodes, 3);
    cr_assert_eq(s.node_rank, 1);
    cr_assert_str_eq(s.first_node, "node66");
    cr_assert_eq(hostlist_find(&s, text, "node8.cluster.local", "F", &err), CDDP_OK);
    cr_assert_eq(s.node_rank, 2);
    cr_assert_eq(hostlist_find(&s, text, "node6", "F", &err), CDDP_E_NOT_FOUND);
    SAYS("F does not list this host, 'node6'");
    cr_assert_eq(hostlist_find(&s, "# nobody\n", "a", "F", &err), CDDP_E_INVALID);
    SAYS("F lists no host");
    cr_assert_eq(hostlist_find(&s, "a\nb\na.x", "a", "F", &err), CDDP_E_INVALID);
    SAYS("twice");
}
