/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/plan/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

CDI_SUITE(endpoint);

static struct endpoint m;
static struct cdi_error err;
static struct cluster_env step; /* none */

static struct options nodes(int64_t n)
{
    return (struct options){.min_nodes = n, .max_nodes = n, .master_port = -1, .node_rank = -1};
}

static cddp_status decide(struct options o)
{
    err.msg[0] = '\0';
    return endpoint_decide(&m, &o, &step, &err);
}

#define SAYS(text) cr_assert_not_null(strstr(err.msg, text), "%s", err.msg)

Test(endpoint, one_node_hosts_on_loopback_and_any_port)
{
    cr_assert_eq(decide(nodes(1)), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_HOST);
    cr_assert_str_eq(m.host, "127.0.0.1");
    cr_assert_eq(m.port, 0);
    cr_assert_eq(m.node_rank, -1);
    cr_assert_eq(m.join_timeout_ms, 600000);
}

Test(endpoint, one_node_ignores_variables_of_outer_job)
{
    struct options o = nodes(1);

    o.env_master_addr = "10.0.0.1";
    o.env_master_port = "x";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_str_eq(m.host, "127.0.0.1");
    cr_assert_eq(m.port, 0);
}

Test(endpoint, standalone_overrides_address_and_port)
{
    struct options o = nodes(1);

    o.master_addr = "10.0.0.1";
    o.master_port = 29500;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_str_eq(m.host, "10.0.0.1");
    cr_assert_eq(m.port, 29500);
    o.standalone = true;
    o.rdzv_endpoint = "other:1";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_HOST);
    cr_assert_str_eq(m.host, "127.0.0.1");
    cr_assert_eq(m.port, 0);
}

Test(endpoint, node_rank_0_hosts)
{
    struct options o = nodes(2);

    o.master_addr = "node1";
    o.node_rank = 0;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_TRY, "a daemon may run there");
    cr_assert_str_eq(m.host, "node1");
    cr_assert_eq(m.port, ENDPOINT_MASTER_PORT);
    o.node_rank = 1;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_JOIN);
    cr_assert_eq(m.node_rank, 1);
    o.node_rank = -1;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_TRY);
}

Test(endpoint, is_host_selects_host)
{
    struct options o = nodes(2);

    o.rdzv_endpoint = "node1";
    o.rdzv_conf = "is_host=True,join_timeout=30";
    o.node_rank = 1;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_HOST);
    cr_assert(m.everywhere);
    cr_assert_eq(m.join_timeout_ms, 30000);
    cr_assert_eq(m.port, ENDPOINT_DEFAULT_PORT);
    cr_assert_eq(m.lease_ms, 0);
    o.rdzv_conf = "is_host=0,lease=5,timeout=20";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_JOIN);
    cr_assert_eq(m.join_timeout_ms, 20000);
    cr_assert_eq(m.lease_ms, 5000);
}

Test(endpoint, store_limits_are_the_hosts)
{
    struct options o = nodes(1);

    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.store.bytes == 0 && m.store.key == 0 && m.store.value == 0 && m.store.waits == 0);
    cr_assert(m.max_connections == 0 && m.max_buffered == 0);
    o.rdzv_conf = "store_memory=512M,max_key=1K,max_value=8M,max_waits=7,max_connections=9,buffer_memory=3G";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.store.bytes == 512u << 20 && m.store.key == 1024 && m.store.value == 8u << 20 && m.store.waits == 7);
    cr_assert(m.max_connections == 9 && m.max_buffered == (size_t)3 << 30);
}

Test(endpoint, accepts_torchruns_timeout_and_lease_keys)
{
    struct options o = nodes(2);

    o.master_addr = "10.0.0.1";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.last_call_ms == -1 && m.close_timeout_ms == -1 && m.lease_ms == 0 && m.join_timeout_ms == 600000);
    o.rdzv_conf = "join_timeout=9,last_call_timeout=0,close_timeout=7,keep_alive_interval=4";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.last_call_ms == 0 && m.close_timeout_ms == 7000 && m.lease_ms == 12000 && m.join_timeout_ms == 9000);
    o.rdzv_conf = "keep_alive_max_attempt=2,last_call_timeout=30";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.lease_ms == 10000 && m.last_call_ms == 30000);
    o.rdzv_conf = "keep_alive_max_attempt=3600,keep_alive_interval=3600";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.lease_ms, 3600000, "an hour is the longest");
    o.rdzv_conf = "keep_alive_interval=4,lease=6";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.lease_ms, 6000, "the plain word counts");
}

Test(endpoint, spares_add_to_node_count)
{
    struct options o = nodes(2);

    o.master_addr = "10.0.0.1";
    o.min_nodes = 1;
    o.spares = 2;
    o.node_rank = 3;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.min_nodes == 1 && m.max_nodes == 2 && m.spares == 2 && m.n_nodes == 4 && m.node_rank == 3);
    o.node_rank = 4;
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    o = nodes(1);
    o.spares = 1;
    cr_assert_eq(decide(o), CDDP_E_INVALID, "where do the two meet?");
    o.standalone = true;
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "2 with the spares"), "%s", err.msg);
}

Test(endpoint, one_node_with_endpoint_may_use_daemon)
{
    struct options o = nodes(1);

    o.rdzv_endpoint = "localhost:29400";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_TRY);
    o.rdzv_endpoint = "localhost:0";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_HOST);
    cr_assert_eq(m.port, 0);
}

Test(endpoint, flags_override_variables)
{
    struct options o = nodes(2);

    o.env_master_addr = "10.0.0.5";
    o.env_master_port = "1234";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_str_eq(m.host, "10.0.0.5");
    cr_assert_eq(m.port, 1234);
    o.master_addr = "10.0.0.6";
    o.master_port = 4321;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_str_eq(m.host, "10.0.0.6");
    cr_assert_eq(m.port, 4321);
    o.rdzv_endpoint = "[fd00::1]:99";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_str_eq(m.host, "fd00::1");
    cr_assert_eq(m.port, 99);
}

Test(endpoint, missing_endpoint_error_lists_ways_to_give_one)
{
    cr_assert_eq(decide(nodes(2)), CDDP_E_INVALID);
    SAYS("--nnodes=2");
    SAYS("--master_addr");
    SAYS("--rdzv_endpoint");
    SAYS("MASTER_ADDR");
}

Test(endpoint, rejects_contradictions)
{
    static const struct {
        struct options o;
        const char *expect;
    } bad[] = {
        {{.rdzv_backend = "zookeeper"}, "--rdzv_backend 'zookeeper' is not supported"},
        {{.rdzv_backend = "etcd", .run_id = "j"}, "--rdzv_backend=etcd needs the members of etcd"},
        {{.rdzv_backend = "etcd-v2", .rdzv_endpoint = "a"}, "--rdzv_backend=etcd needs --rdzv_id=NAME"},
        {{.rdzv_backend = "etcd", .run_id = "j", .rdzv_endpoint = "a,b:0"}, "port 0 is not the port of a member"},
        {{.rdzv_backend = "etcd", .run_id = "j", .rdzv_endpoint = "a", .rdzv_conf = "cacert="},
         "cacert cannot be empty"},
        {{.rdzv_endpoint = "a", .rdzv_conf = "lease=3,prefix=x"}, "--rdzv_conf: prefix is for --rdzv_backend=etcd"},
        {{.node_rank = 2}, "--node_rank 2 is out of range for 2 nodes: 0 to 1"},
        {{.node_rank = 1, .rdzv_conf = "rank=0"}, "--node_rank 1 contradicts --rdzv_conf rank=0"},
        {{.standalone = true}, "--standalone is for one node, but --nnodes is 2"},
        {{.master_addr = "0.0.0.0"}, "0.0.0.0 means every address"},
        {{.rdzv_endpoint = "[::]:5"}, ":: means every address"},
        {{.rdzv_endpoint = "a:0"}, "port 0 means any free port"},
        {{.rdzv_endpoint = "a:b"}, "--rdzv_endpoint 'a:b' is not HOST"},
        {{.rdzv_endpoint = "a:70000"}, "'a:70000' is not HOST"},
        {{.rdzv_endpoint = ":1"}, "':1' is not HOST"},
        {{.rdzv_endpoint = "[::1"}, "'[::1' is not HOST"},
        {{.rdzv_endpoint = "[::1]x"}, "'[::1]x' is not HOST"},
        {{.rdzv_endpoint = "[]:1"}, "'[]:1' is not HOST"},
        {{.rdzv_endpoint = "a\n:b"}, "'a?:b' is not HOST"},
        {{.rdzv_conf = "join_timeout"}, "--rdzv_conf 'join_timeout' is not KEY=VALUE"},
        {{.rdzv_conf = "=1"}, "--rdzv_conf '=1' is not KEY=VALUE"},
        {{.rdzv_conf = "join_timeout=0"}, "join_timeout cannot be '0'; give a whole number of seconds"},
        {{.rdzv_conf = "is_host=maybe"}, "is_host cannot be 'maybe'; give 0 or 1"},
        {{.rdzv_conf = "rank=-1"}, "rank cannot be '-1'; give a node rank"},
        {{.rdzv_conf = "store_memory=1T"}, "store_memory cannot be '1T'; give a number of bytes such as 512M"},
        {{.rdzv_conf = "max_value=9M"},
         "max_value cannot be '9M'; give a number of bytes such as 512M, at least 1, at most 8M"},
        {{.rdzv_conf = "max_key=0"}, "max_key cannot be '0'"},
        {{.rdzv_conf = "max_waits=1K"}, "max_waits cannot be '1K'; give a whole number, at least 1"},
        {{.rdzv_conf = "max_connections=0"}, "max_connections cannot be '0'"},
        {{.rdzv_conf = "timeout=5,colour=red"}, "unknown key 'colour'"},
        {{.rdzv_conf = "store_type=file"}, "torchrun's store_type has no meaning in cddprun"},
        {{.env_master_addr = "a", .env_master_port = "0"}, "MASTER_PORT='0' is not a port"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct options o = bad[i].o;

        o.min_nodes = o.max_nodes = 2;
        o.master_port = -1;
        o.node_rank = o.node_rank == 0 ? -1 : o.node_rank;
        cr_expect_neq(decide(o), CDDP_OK, "%zu", i);
        cr_expect_not_null(strstr(err.msg, bad[i].expect), "%zu: %s", i, err.msg);
    }
}

static struct cluster_env two_nodes(void)
{
    return (struct cluster_env){.kind = "Slurm step",
                                .start = "srun --ntasks-per-node=1",
                                .in_step = true,
                                .n_nodes = 2,
                                .node_rank = 1,
                                .one_task_per_node = true,
                                .nodes = "node[1-2]",
                                .first_node = "node1",
                                .port = 20007,
                                .run_id = "1.0.0"};
}

Test(endpoint, slurm_step_needs_no_flags)
{
    step = two_nodes();
    cr_assert_eq(decide(nodes(1)), CDDP_OK);
    cr_assert_eq(m.n_nodes, 2);
    cr_assert_eq(m.node_rank, 1);
    cr_assert_eq(m.role, ENDPOINT_JOIN);
    cr_assert_str_eq(m.host, "node1");
    cr_assert_eq(m.port, 20007);
    cr_assert_str_eq(m.run_id, "1.0.0");
    cr_assert_str_eq(m.detected, "Slurm step 1.0.0: 2 nodes (node[1-2]), this is node 1; rendezvous at "
                                 "node1, port 20007");
}

Test(endpoint, default_port_has_alternatives)
{
    struct options o = nodes(1);

    step = two_nodes();
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.port == 20007 && m.n_ports == CLUSTER_JOB_PORTS);
    o.env_master_port = "23456";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.port == 23456 && m.n_ports == 1, "MASTER_PORT counts without MASTER_ADDR");
    cr_assert_str_eq(m.host, "node1");
    o.master_port = 23457;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.port == 23457 && m.n_ports == 1);
    o = nodes(1);
    o.env_master_port = "x";
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    SAYS("MASTER_PORT='x'");
    step = (struct cluster_env){.kind = NULL};
    o = nodes(2);
    o.master_addr = "node1";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.n_ports, 1);
}

Test(endpoint, elastic_job_accepts_fewer_nodes_than_max)
{
    struct options o = nodes(4);

    step = two_nodes();
    step.n_nodes = 3;
    step.node_rank = 2;
    o.nnodes_given = true;
    o.min_nodes = 2;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.min_nodes == 2 && m.max_nodes == 4 && m.n_nodes == 4 && m.node_rank == 2 && m.role == ENDPOINT_JOIN);
    cr_assert_str_eq(m.host, "node1");
    cr_assert_str_eq(m.run_id, "1.0.0");
    SAYS("");
    cr_assert_not_null(strstr(m.detected, "3 nodes"), "%s", m.detected);
    o.rdzv_endpoint = "node1:21000"; /* a second job that joins the first one's run */
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.node_rank == -1 && m.run_id[0] == '\0' && m.role == ENDPOINT_TRY, "node ranks may be another step's");
}

Test(endpoint, min_alone_takes_max_from_step)
{
    struct options o = nodes(OPTIONS_NODES_AUTO);

    step = two_nodes();
    step.n_nodes = 3;
    o.nnodes_given = true;
    o.min_nodes = 2;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.min_nodes == 2 && m.max_nodes == 3 && m.n_nodes == 3 && m.node_rank == 1);
    o.spares = 1;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.min_nodes == 2 && m.max_nodes == 2 && m.n_nodes == 3);
    o.min_nodes = 3;
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    SAYS("more nodes than this Slurm step has: 3 with the spares");
    o.spares = 0;
    step.n_nodes = 1;
    step.node_rank = 0;
    o.min_nodes = 1;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert(m.max_nodes == 1 && m.role == ENDPOINT_HOST);
    step = (struct cluster_env){.kind = NULL};
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    SAYS("give --nnodes=MIN:MAX");
    step = (struct cluster_env){.kind = "Slurm job", .start = "srun", .in_job = true, .job_nodes = 2, .job_id = "7"};
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    SAYS("was started on the first one only");
}

Test(endpoint, rejects_step_with_wrong_node_count)
{
    static const int64_t counts[][2] = {{1, 2}, {2, 2}, {4, 4}, {4, 8}};
    struct options o;

    step = two_nodes();
    step.n_nodes = 3;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        o = nodes(counts[i][1]);
        o.min_nodes = counts[i][0];
        o.nnodes_given = true;
        cr_assert_eq(decide(o), CDDP_E_INVALID);
        SAYS("this Slurm step has 3 nodes");
        o.master_addr = "node1";
        o.node_rank = 0;
        cr_assert_eq(decide(o), CDDP_OK, "with an endpoint any node count is accepted");
    }
}

static struct cluster_env pod(int64_t index)
{
    return (struct cluster_env){.kind = "Kubernetes Job",
                                .start = "one pod per node",
                                .in_step = true,
                                .one_task_per_node = true,
                                .nodes_by_user = true,
                                .node_rank = index,
                                .first_node = "train-0.workers.ns.svc.cluster.local",
                                .run_id = "train"};
}

Test(endpoint, pod_takes_rank_and_endpoint_from_its_index)
{
    struct options o = nodes(4);

    step = pod(3);
    o.nnodes_given = true;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.node_rank, 3);
    cr_assert_eq(m.role, ENDPOINT_JOIN);
    cr_assert_eq(m.n_nodes, 4);
    cr_assert_str_eq(m.host, "train-0.workers.ns.svc.cluster.local");
    cr_assert_eq(m.port, 29500);
    cr_assert_str_eq(m.run_id, "train");
    step = pod(0);
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_TRY);
    o.rdzv_endpoint = "daemon:29400";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.node_rank, 0);
    cr_assert_str_eq(m.host, "daemon");
    o.rdzv_endpoint = NULL;
    o.node_rank = 2; /* such as a Job of a master, and another one of workers */
    o.master_addr = "master";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.node_rank, 2);
    cr_assert_str_eq(m.host, "master");
}

Test(endpoint, pod_and_nnodes_that_do_not_match_are_rejected)
{
    struct options o = nodes(2);

    step = pod(2);
    o.nnodes_given = true;
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    SAYS("JOB_COMPLETION_INDEX is 2, but --nnodes is 2: give");
    step = pod(1);
    step.first_node[0] = '\0';
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    SAYS("set subdomain in the pods' template");
    o.max_nodes = OPTIONS_NODES_AUTO;
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    SAYS("this is not a Slurm step");
    o = nodes(2);
    o.nnodes_given = true;
    o.max_nodes = 4; /* the ranks of an elastic job are in order of arrival */
    o.rdzv_endpoint = "daemon";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.node_rank, -1);
}

Test(endpoint, pod_that_trains_alone_explains_how_to_join)
{
    step = pod(1);
    cr_assert_eq(decide(nodes(1)), CDDP_OK);
    cr_assert_eq(m.role, ENDPOINT_HOST);
    cr_assert_not_null(strstr(m.detected, "give --nnodes=N if N pods train one model together"));
    step = pod(0);
    cr_assert_eq(decide(nodes(1)), CDDP_OK);
    cr_assert_str_eq(m.detected, "");
}

Test(endpoint, flags_override_slurm)
{
    struct options o = nodes(2);

    step = two_nodes();
    o.nnodes_given = true;
    o.rdzv_endpoint = "other:5";
    o.rdzv_conf = "is_host=1";
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_str_eq(m.host, "other");
    cr_assert_eq(m.port, 5);
    cr_assert_eq(m.role, ENDPOINT_HOST);
    cr_assert_eq(m.node_rank, 1);
    o = nodes(1);
    o.standalone = true;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.n_nodes, 1);
    cr_assert_str_eq(m.detected, "");
    o = nodes(1);
    o.nnodes_given = true;
    cr_assert_eq(decide(o), CDDP_OK);
    cr_assert_eq(m.n_nodes, 1);
    cr_assert_str_eq(m.host, "127.0.0.1");
}

Test(endpoint, reports_node_rank_expanded_by_batch_shell)
{
    struct options o = nodes(2);

    step = two_nodes();
    o.nnodes_given = true;
    o.node_rank = 0;
    o.master_addr = "node1";
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    SAYS("--node_rank is 0, but this is node 1 of the Slurm step");
    SAYS("before srun runs");
    o.node_rank = 1;
    cr_assert_eq(decide(o), CDDP_OK);
}

Test(endpoint, reports_forgotten_srun_unless_flags_are_clear)
{
    struct options o = nodes(1);

    step = (struct cluster_env){
        .kind = "Slurm job", .start = "srun --ntasks-per-node=1", .in_job = true, .job_nodes = 2, .job_id = "17"};
    cr_assert_eq(decide(o), CDDP_E_INVALID);
    SAYS("Slurm job 17 has 2 nodes");
    SAYS("srun --ntasks-per-node=1");
    o.standalone = true;
    cr_assert_eq(decide(o), CDDP_OK);
    o.standalone = false;
    o.nnodes_given = true;
    cr_assert_eq(decide(o), CDDP_OK);
    step.job_nodes = 1;
    cr_assert_eq(decide(nodes(1)), CDDP_OK);
}

Test(endpoint, rejects_two_launchers_on_a_node)
{
    step = two_nodes();
    step.one_task_per_node = false;
    cr_assert_eq(decide(nodes(1)), CDDP_E_INVALID);
    SAYS("--ntasks-per-node=1");
}

Test(endpoint, parses_endpoint)
{
    static const struct {
        const char *text, *host;
        uint16_t port;
    } good[] = {{"a", "a", 7},
                {"a:1", "a", 1},
                {"10.0.0.1:65535", "10.0.0.1", 65535},
                {"[::1]", "::1", 7},
                {"[::1]:2", "::1", 2},
                {"fe80::1:2", "fe80::1:2", 7},
                {"[10.0.0.1]:3", "10.0.0.1", 3}};

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char host[256];
        uint16_t port = 7;

        cr_expect_eq(endpoint_parse(good[i].text, "x", host, &port, &err), CDDP_OK, "%s", good[i].text);
        cr_expect_str_eq(host, good[i].host);
        cr_expect_eq(port, good[i].port, "%s", good[i].text);
    }
}

Test(endpoint, rejects_invalid_hosts)
{
    static const char *const bad[] = {"http://h:29400", "http://h", "host:1:2", "a,b", "a b:1", "1:2:3:4", "h/:1"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct options o = {.min_nodes = 2, .max_nodes = 2, .node_rank = -1, .master_port = -1, .master_addr = bad[i]};
        char host[256];
        uint16_t port = 7;
        struct endpoint m;

        cr_expect_eq(endpoint_parse(bad[i], "x", host, &port, &err), CDDP_E_INVALID, "%s", bad[i]);
        cr_expect_eq(endpoint_decide(&m, &o, &(struct cluster_env){.kind = NULL}, &err), CDDP_E_INVALID, "%s", bad[i]);
        cr_expect_not_null(strstr(err.msg, bad[i]), "%s", err.msg);
    }
}

Test(endpoint, address_with_port_error_shows_correct_flags)
{
    struct options o = {
        .min_nodes = 1, .max_nodes = 1, .node_rank = -1, .master_port = -1, .master_addr = "localhost:29500"};
    struct endpoint m;

    cr_assert_eq(endpoint_decide(&m, &o, &(struct cluster_env){.kind = NULL}, &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg,
                     "--master_addr 'localhost:29500' is an address with a port; give --master_addr=localhost and "
                     "--master_port=29500");
    o.master_addr = NULL;
    o.max_nodes = 2;
    o.env_master_addr = "a:1";
    cr_assert_eq(endpoint_decide(&m, &o, &(struct cluster_env){.kind = NULL}, &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "MASTER_ADDR 'a:1' is an address with a port; give MASTER_ADDR=a and MASTER_PORT=1");
    o.env_master_addr = NULL;
    cr_assert_eq(endpoint_decide(&m, &o, &(struct cluster_env){.kind = NULL}, &err), CDDP_E_INVALID);
    cr_assert_eq(strncmp(err.msg, "--nnodes=1:2 needs a rendezvous endpoint", 40), 0, "%s", err.msg);
}

static cddp_status check(const char *host, const char *address, uint32_t n_nodes)
{
    struct sockaddr_storage a = {.ss_family = strchr(address, ':') == NULL ? AF_INET : AF_INET6};
    struct endpoint endpoint = {.n_nodes = n_nodes};

    if (a.ss_family == AF_INET)
        cr_assert_eq(inet_pton(AF_INET, address, &((struct sockaddr_in *)&a)->sin_addr), 1);
    else
        cr_assert_eq(inet_pton(AF_INET6, address, &((struct sockaddr_in6 *)&a)->sin6_addr), 1);
    (void)snprintf(endpoint.host, sizeof endpoint.host, "%s", host);
    return endpoint_check_address(&endpoint, (struct sockaddr *)&a, &err);
}

Test(endpoint, rejects_name_that_resolves_to_loopback)
{
    cr_assert_eq(check("node1", "127.0.1.1", 2), CDDP_E_INVALID);
    SAYS("'node1' resolves to 127.0.1.1");
    SAYS("/etc/hosts");
    cr_assert_eq(check("node1", "::1", 2), CDDP_E_INVALID);
    cr_assert_eq(check("node1", "127.0.1.1", 1), CDDP_OK, "one node may live there");
    cr_assert_eq(check("node1", "10.0.0.1", 2), CDDP_OK);
    cr_assert_eq(check("localhost", "127.0.0.1", 2), CDDP_OK, "several agents on one machine");
    cr_assert_eq(check("127.0.0.1", "127.0.0.1", 2), CDDP_OK);
    cr_assert_eq(check("::1", "::1", 2), CDDP_OK);
}

Test(endpoint, etcd_elects_the_host)
{
    const struct options o = {.min_nodes = 2,
                              .max_nodes = 4,
                              .node_rank = -1,
                              .master_port = 4000,
                              .nnodes_given = true,
                              .run_id = "j",
                              .rdzv_backend = "etcd-v2",
                              .rdzv_endpoint = "e1,e2:4,[::1]:5",
                              .rdzv_conf =
                                  "lease=3,protocol=HTTPS,ca_cert=/ca,ssl_cert=/c,ssl_cert_key=/k,etcd_prefix=/x//"};
    struct endpoint m;
    struct cdi_error err;

    cr_assert_eq(endpoint_decide(&m, &o, &(struct cluster_env){0}, &err), CDDP_OK, "%s", err.msg);
    cr_assert(m.role == ENDPOINT_ELECT && m.port == 4000 && m.lease_ms == 3000 && m.etcd.n_members == 3 &&
              m.etcd.https);
    cr_assert_str_eq(m.etcd.members[0], "e1:2379");
    cr_assert_str_eq(m.etcd.members[1], "e2:4");
    cr_assert_str_eq(m.etcd.members[2], "[::1]:5");
    cr_assert_str_eq(m.etcd.prefix, "/x");
    cr_assert_str_eq(m.etcd.cacert, "/ca");
    cr_assert_str_eq(m.etcd.cert, "/c");
    cr_assert_str_eq(m.etcd.key, "/k");
}
