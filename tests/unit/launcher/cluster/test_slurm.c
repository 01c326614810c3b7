/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/cluster/readers.h"
#include "launcher/cluster/slurm.h"
#include "launcher/cluster/values.h"

#include <string.h>

CDI_SUITE(slurm);

static char joined[4096];
static size_t n_names;

static bool join_names(void *arg, const char *name)
{
    size_t len = strlen(joined);

    (void)arg;
    n_names++;
    (void)snprintf(joined + len, sizeof joined - len, "%s%s", len > 0 ? " " : "", name);
    return true;
}

static cddp_status hosts(const char *list, struct cdi_error *err)
{
    joined[0] = '\0';
    n_names = 0;
    return slurm_hosts(list, join_names, NULL, err);
}

Test(slurm, expands_host_lists)
{
    static const char *const good[][2] = {
        {"node1", "node1"},
        {"node[1-3]", "node1 node2 node3"},
        {"node[1-3,7]", "node1 node2 node3 node7"},
        {"node[1-3,7],a[01-04]b", "node1 node2 node3 node7 a01b a02b a03b a04b"},
        {"a,b,c[2]", "a b c2"},
        {"x[008-010]", "x008 x009 x010"},
        {"x[9-11]", "x9 x10 x11"},
        {"r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"},
        {"[1-2]", "1 2"},
        {"gpu-node_7.cluster", "gpu-node_7.cluster"},
    };
    struct cdi_error err;

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_expect_eq(hosts(good[i][0], &err), CDDP_OK, "%s", good[i][0]);
        cr_expect_str_eq(joined, good[i][1], "%s: %s", good[i][0], joined);
    }
}

Test(slurm, rejects_invalid_host_lists)
{
    static const char *const bad[] = {"",
                                      "a,",
                                      ",a",
                                      "a[",
                                      "a[1",
                                      "a[1-",
                                      "a[]",
                                      "a[1-]",
                                      "a[-1]",
                                      "a[3-1]",
                                      "a[x]",
                                      "a]1[",
                                      "a[1,]",
                                      "a[1-2-3]",
                                      "a[1][2][3][4][5]",
                                      "a[1234567890]"};
    struct cdi_error err;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(hosts(bad[i], &err), CDDP_E_INVALID, "'%s'", bad[i]);
        cr_expect_not_null(strstr(err.msg, "is not a list of nodes as Slurm writes it"), "%s", err.msg);
    }
}

Test(slurm, host_list_has_limits)
{
    char text[400] = {0};
    struct cdi_error err;

    cr_assert_eq(hosts("a[1-100000]", &err), CDDP_OK);
    cr_assert_eq(n_names, 100000);
    cr_assert_eq(hosts("a[1-999999999]b[1-999999999]", &err), CDDP_E_LIMIT);
    memset(text, 'x', 256);
    cr_assert_eq(hosts(text, &err), CDDP_E_LIMIT);
    text[255] = '\0';
    cr_assert_eq(hosts(text, &err), CDDP_OK);
}

static bool only_one(void *arg, const char *name)
{
    (void)name;
    ++*(int *)arg;
    return false;
}

Test(slurm, stops_after_wanted_names)
{
    int n = 0;

    cr_assert_eq(slurm_hosts("a[1-999999999],b[", only_one, &n, NULL), CDDP_OK);
    cr_assert_eq(n, 1);
}

static const char *fake_env(const char *name, void *arg)
{
    size_t n = strlen(name);

    for (const char *const *e = arg; *e != NULL; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return *e + n + 1;
    return NULL;
}

Test(slurm, step_has_its_own_nodes)
{
    const char *env[] = {"SLURM_JOB_ID=1200",
                         "SLURM_STEP_ID=3",
                         "SLURM_JOB_NUM_NODES=4",
                         "SLURM_JOB_NODELIST=node[1-4]",
                         "SLURM_STEP_NUM_NODES=2",
                         "SLURM_STEP_NODELIST=node[2-3]",
                         "SLURM_STEP_TASKS_PER_NODE=1(x2)",
                         "SLURM_NODEID=1",
                         "SLURM_RESTART_COUNT=2",
                         NULL};
    struct cluster_env s;
    struct cdi_error err;

    cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = env}, &err), CDDP_OK);
    cr_assert(s.in_step);
    cr_assert_not(s.in_job);
    cr_assert_eq(s.n_nodes, 2);
    cr_assert_eq(s.node_rank, 1);
    cr_assert_str_eq(s.first_node, "node2");
    cr_assert_str_eq(s.run_id, "1200.3.2");
    cr_assert_eq(s.port, cluster_port("1200.3"), "a requeued job keeps its port");
    cr_assert(s.one_task_per_node);
    env[6] = "SLURM_STEP_TASKS_PER_NODE=2(x2)";
    cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = env}, &err), CDDP_OK);
    cr_assert_not(s.one_task_per_node);
    env[7] = "SLURM_NODEID=2";
    cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = env}, &err), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "SLURM_NODEID is '2'"), "%s", err.msg);
    env[7] = "SLURM_NODEID=0";
    env[5] = "SLURM_STEP_NODELIST=node[";
    cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = env}, &err), CDDP_E_INVALID);
}

/* As seen in Slurm 22.05: components node3, node[1-2] and node4; the step's list is sorted by name. */
Test(slurm, heterogeneous_step_uses_first_component)
{
    static const struct {
        const char *list, *n_nodes, *first;
    } steps[] = {
        {"SLURM_STEP_NODELIST=node[1-3]", "SLURM_STEP_NUM_NODES=3", "node3"},   /* --het-group=0,1 */
        {"SLURM_STEP_NODELIST=node[1-2]", "SLURM_STEP_NUM_NODES=2", "node1"},   /* 1 */
        {"SLURM_STEP_NODELIST=node[1-2,4]", "SLURM_STEP_NUM_NODES=3", "node1"}, /* 2,1: groups count upwards */
        {"SLURM_STEP_NODELIST=node[3-4]", "SLURM_STEP_NUM_NODES=2", "node3"},   /* 0,2 */
        {"SLURM_STEP_NODELIST=node[2,4]", "SLURM_STEP_NUM_NODES=2", "node2"},   /* 1,2, of 1 only node2 */
    };
    const char *env[] = {"SLURM_JOB_ID=1",
                         "SLURM_STEP_ID=0",
                         "SLURM_NODEID=0",
                         "SLURM_HET_SIZE=3",
                         "SLURM_JOB_NODELIST_HET_GROUP_0=node3",
                         "SLURM_JOB_NODELIST_HET_GROUP_1=node[1-2]",
                         "SLURM_JOB_NODELIST_HET_GROUP_2=node4",
                         NULL,
                         NULL,
                         NULL};
    struct cluster_env s;
    struct cdi_error err;

    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        env[7] = steps[i].list;
        env[8] = steps[i].n_nodes;
        cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = env}, &err), CDDP_OK);
        cr_expect_str_eq(s.first_node, steps[i].first, "%s: %s", steps[i].list, s.first_node);
    }
    env[4] = "SLURM_JOB_NODELIST_HET_GROUP_0=node[";
    cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = env}, &err), CDDP_E_INVALID);
}

/* `srun A : B` outside of a job says how many components there are, but not which nodes they have. */
Test(slurm, without_component_lists_order_decides)
{
    const char *env[] = {"SLURM_JOB_ID=1",
                         "SLURM_STEP_ID=0",
                         "SLURM_NODEID=1",
                         "SLURM_HET_SIZE=2",
                         "SLURM_STEP_NODELIST=node[1-3]",
                         "SLURM_STEP_NUM_NODES=3",
                         "SLURMD_NODENAME=node2",
                         NULL};
    struct cluster_env s;

    cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = env}, NULL), CDDP_OK);
    cr_assert_str_eq(s.first_node, "node1");
    env[6] = "SLURMD_NODENAME=node1";
    cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = env}, NULL), CDDP_OK);
    cr_assert_str_eq(s.first_node, "");
    cr_assert(s.in_step);
    cr_assert_eq(s.node_rank, 1);
}

Test(slurm, batch_script_is_in_job_without_step)
{
    const char *env[] = {"SLURM_JOB_ID=7", "SLURM_NNODES=2", NULL, NULL};
    const char *none[] = {"HOME=/", NULL};
    struct cluster_env s;

    cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = env}, NULL), CDDP_OK);
    cr_assert(s.in_job);
    cr_assert_not(s.in_step);
    cr_assert_eq(s.job_nodes, 2);
    env[2] = "SLURM_STEP_ID=4294967290"; /* the shell of an interactive salloc */
    cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = env}, NULL), CDDP_OK);
    cr_assert(s.in_job);
    cr_assert_eq(slurm_read(&s, &(struct cluster_source){.env = fake_env, .arg = none}, NULL), CDDP_OK);
    cr_assert_not(s.in_job);
    cr_assert_not(s.in_step);
}
