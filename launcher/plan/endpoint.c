/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/endpoint.h"

#include "common/address.h"
#include "common/env.h"
#include "common/time_limits.h"
#include "launcher/cli/parse.h"
#include "launcher/plan/endpoint_etcd.h"
#include "protocol/message.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LEASE_MAX_S 3600
#define TIMEOUT_MAX_S (CDI_JOIN_TIME_MAX_MS / 1000)
#define KEEP_ALIVE_INTERVAL_S 5
#define KEEP_ALIVE_ATTEMPTS 3

/* -------------------------------------------------------------------------------------------------- endpoint ---- */

static cddp_status check_addr(const char *addr, const char *from, struct cdi_error *err)
{
    cddp_status st;

    if (endpoint_can_be_host(addr))
        return CDDP_OK;
    st = cdi_address_without_port(addr, from, from[0] == '-' ? "--master_port" : "MASTER_PORT", err);
    if (st != CDDP_OK)
        return st;
    return cdi_fail(err, CDDP_E_INVALID, "%s '%.200s' is neither a host name nor an address", from, addr);
}

/* ------------------------------------------------------------------------------------------------ --rdzv_conf ---- */

/* -1: not given. */
struct conf {
    int64_t join_timeout_s, timeout_s, last_call_s, close_timeout_s;
    int64_t lease_s, interval_s, attempts; /* the lease, by cddprun's key and by torchrun's */
    int64_t rank;
    int64_t store_memory, max_key, max_value, max_waits, max_connections, buffer_memory; /* limits of the host */
    int is_host;
    const char *etcd_key; /* the first key about etcd; NULL: none */
    struct endpoint_etcd etcd;
};

#define CONF_MAX 1023 /* bytes: the flag's limit */
#define SECONDS "a whole number of seconds, at least 1"
#define COUNT "a whole number, at least 1"
#define BYTES "a number of bytes such as 512M, at least 1"

/* The keys whose values are numbers. */
static const struct {
    const char *key;
    size_t offset;
    int64_t min, max;
    const char *what; /* the description of a valid value */
    bool bytes;       /* K, M or G may follow */
} conf_keys[] = {
    {"join_timeout", offsetof(struct conf, join_timeout_s), 1, TIMEOUT_MAX_S, SECONDS, false},
    {"timeout", offsetof(struct conf, timeout_s), 1, TIMEOUT_MAX_S, SECONDS, false},
    {"last_call_timeout", offsetof(struct conf, last_call_s), 0, TIMEOUT_MAX_S, "a whole number of seconds, at least 0",
     false},
    {"close_timeout", offsetof(struct conf, close_timeout_s), 1, TIMEOUT_MAX_S, SECONDS, false},
    {"lease", offsetof(struct conf, lease_s), 1, LEASE_MAX_S, SECONDS, false},
    {"keep_alive_interval", offsetof(struct conf, interval_s), 1, LEASE_MAX_S, SECONDS, false},
    {"keep_alive_max_attempt", offsetof(struct conf, attempts), 1, LEASE_MAX_S, COUNT, false},
    {"rank", offsetof(struct conf, rank), 0, OPTIONS_MAX_NODES - 1, "a node rank, at least 0", false},
    {"store_memory", offsetof(struct conf, store_memory), 1, INT64_MAX, BYTES, true},
    {"buffer_memory", offsetof(struct conf, buffer_memory), 1, INT64_MAX, BYTES, true},
    {"max_key", offsetof(struct conf, max_key), 1, CDI_C10D_KEY_MAX, BYTES ", at most 8K", true},
    {"max_value", offsetof(struct conf, max_value), 1, CDI_C10D_VALUE_MAX, BYTES ", at most 8M", true},
    {"max_waits", offsetof(struct conf, max_waits), 1, INT64_MAX, COUNT, false},
    {"max_connections", offsetof(struct conf, max_connections), 1, INT64_MAX, COUNT, false},
};

static const char *const torchrun_keys[] = {"read_timeout", "store_type", "heartbeat_timeout", "heartbeat"};

static bool parse_bool(const char *text, int *out)
{
    static const char *const yes[] = {"1", "true", "t", "yes", "y"}, *const no[] = {"0", "false", "f", "no", "n"};

    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (strcasecmp(text, yes[i]) == 0)
            *out = 1;
        else if (strcasecmp(text, no[i]) == 0)
            *out = 0;
        else
            continue;
        return true;
    }
    return false;
}

static cddp_status unknown_key(const char *key, struct cdi_error *err)
{
    for (size_t i = 0; i < sizeof torchrun_keys / sizeof torchrun_keys[0]; i++)
        if (strcmp(torchrun_keys[i], key) == 0)
            return cdi_fail(err, CDDP_E_UNSUPPORTED, "--rdzv_conf: torchrun's %s has no meaning in cddprun; remove it",
                            key);
    return cdi_fail(
        err, CDDP_E_INVALID,
        "--rdzv_conf: unknown key '%.64s'; the keys are join_timeout, timeout, last_call_timeout, "
        "close_timeout, lease, keep_alive_interval, keep_alive_max_attempt, is_host, rank, store_memory, "
        "buffer_memory, max_key, max_value, max_waits, max_connections, and for etcd protocol, cacert, cert, key, "
        "user, password_file and prefix",
        key);
}

static cddp_status bad_value(const char *key, const char *value, const char *what, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_INVALID, "--rdzv_conf: %s cannot be '%.64s'; give %s", key, value, what);
}

/* at: where the key stands in the flag. */
static cddp_status set_conf(struct conf *c, const char *key, const char *value, const char *at, struct cdi_error *err)
{
    cddp_status st;
    int64_t number;

    if (strcmp(key, "is_host") == 0)
        return parse_bool(value, &c->is_host)
                   ? CDDP_OK
                   : cdi_fail(err, CDDP_E_INVALID, "--rdzv_conf: is_host cannot be '%.64s'; give 0 or 1", value);
    for (size_t i = 0; i < sizeof conf_keys / sizeof conf_keys[0]; i++) {
        if (strcmp(conf_keys[i].key, key) != 0)
            continue;
        if (!(conf_keys[i].bytes ? cdi_parse_size(value, conf_keys[i].max, &number)
                                 : cdi_parse_int(value, conf_keys[i].min, conf_keys[i].max, &number)))
            return bad_value(key, value, conf_keys[i].what, err);
        memcpy((char *)c + conf_keys[i].offset, &number, sizeof number);
        return CDDP_OK;
    }
    st = endpoint_etcd_set(&c->etcd, key, value, err);
    if (st == CDDP_OK && c->etcd_key == NULL)
        c->etcd_key = at;
    return st == CDDP_E_NOT_FOUND ? unknown_key(key, err) : st;
}

/* Reads k=v,k=v; the last value of a key applies. */
static cddp_status read_conf(struct conf *c, const char *text, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    memset(c, 0xff, sizeof *c); /* -1 everywhere */
    memset(&c->etcd, 0, sizeof c->etcd);
    c->etcd_key = NULL;
    while (st == CDDP_OK && text != NULL && *text != '\0') {
        size_t n = strcspn(text, ",");
        const char *equals = memchr(text, '=', n);
        char key[CONF_MAX + 1], value[CONF_MAX + 1];

        if (equals == NULL || equals == text)
            return cdi_fail(err, CDDP_E_INVALID, "--rdzv_conf '%.64s' is not KEY=VALUE[,KEY=VALUE...]", text);
        (void)snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
        (void)snprintf(value, sizeof value, "%.*s", (int)(text + n - equals - 1), equals + 1);
        st = set_conf(c, key, value, text, err);
        text += text[n] == ',' ? n + 1 : n;
    }
    return st;
}

/* -------------------------------------------------------------------------------------------------- decision ---- */

static cddp_status check_backend(const struct options *o, struct cdi_error *err)
{
    const char *name = o->rdzv_backend;

    if (name == NULL || strcmp(name, "static") == 0 || strcmp(name, "c10d") == 0 || endpoint_is_etcd(name))
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_UNSUPPORTED,
                    "--rdzv_backend '%.64s' is not supported; use static or c10d, which both select cddprun's own "
                    "rendezvous, or etcd, or remove it",
                    name);
}

/* The node rank by --node_rank and --rdzv_conf rank=. */
static cddp_status find_rank(struct endpoint *m, const struct options *o, const struct conf *c, struct cdi_error *err)
{
    int64_t rank = o->node_rank >= 0 ? o->node_rank : c->rank;

    if (o->node_rank >= 0 && c->rank >= 0 && o->node_rank != c->rank)
        return cdi_fail(err, CDDP_E_INVALID, "--node_rank %lld contradicts --rdzv_conf rank=%lld; give one of them",
                        (long long)o->node_rank, (long long)c->rank);
    if (rank >= (int64_t)m->n_nodes && m->n_nodes == 1)
        return cdi_fail(err, CDDP_E_INVALID, "--node_rank %lld, but --nnodes is 1; give --nnodes, too, or remove both",
                        (long long)rank);
    if (rank >= (int64_t)m->n_nodes)
        return cdi_fail(err, CDDP_E_INVALID, "--node_rank %lld is out of range for %u nodes: 0 to %u (--nnodes)",
                        (long long)rank, m->n_nodes, m->n_nodes - 1);
    m->node_rank = (int32_t)rank;
    return CDDP_OK;
}

/* "Every address": other nodes cannot connect to it. */
static bool is_wildcard(const char *host)
{
    return strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* Sets *port to --master_port, otherwise to MASTER_PORT, if one of them is given. */
static cddp_status take_port(uint16_t *port, const struct options *o, struct cdi_error *err)
{
    int64_t number;

    if (o->master_port >= 0) {
        *port = (uint16_t)o->master_port;
    } else if (o->env_master_port != NULL) {
        if (!cdi_parse_int(o->env_master_port, 1, 65535, &number))
            return cdi_fail(err, CDDP_E_INVALID, "MASTER_PORT='%.64s' is not a port from 1 to 65535",
                            o->env_master_port);
        *port = (uint16_t)number;
    }
    return CDDP_OK;
}

/* The endpoint from the batch system's step, if none is given. A port that no user has chosen may be in use, so there
 * are several. */
static cddp_status take_cluster_endpoint(struct endpoint *m, const struct options *o, const struct cluster_env *s,
                                         struct cdi_error *err)
{
    (void)snprintf(m->host, sizeof m->host, "%s", s->first_node);
    m->port = s->port != 0 ? s->port : ENDPOINT_MASTER_PORT;
    if (s->port != 0 && o->master_port < 0 && o->env_master_port == NULL)
        m->n_ports = CLUSTER_JOB_PORTS;
    return take_port(&m->port, o, err);
}

/* The number of nodes as the user wrote it. */
static const char *nodes_text(const struct options *o, char *buf, size_t cap)
{
    int n = snprintf(buf, cap, "%lld", (long long)o->min_nodes);

    if (o->max_nodes != o->min_nodes)
        n += snprintf(buf + n, cap - (size_t)n, ":%lld", (long long)o->max_nodes);
    if (o->spares > 0)
        (void)snprintf(buf + n, cap - (size_t)n, " --spares=%lld", (long long)o->spares);
    return buf;
}

static cddp_status find_endpoint(struct endpoint *m, const struct options *o, const struct cluster_env *s,
                                 struct cdi_error *err)
{
    const char *addr = o->master_addr;
    cddp_status st = CDDP_OK;
    char nodes[80];

    if (addr == NULL && m->n_nodes > 1)
        addr = o->env_master_addr;
    if (addr != NULL && o->rdzv_endpoint == NULL)
        st = check_addr(addr, o->master_addr != NULL ? "--master_addr" : "MASTER_ADDR", err);
    if (st != CDDP_OK)
        return st;
    if (o->rdzv_endpoint != NULL) {
        m->port = ENDPOINT_DEFAULT_PORT;
        st = endpoint_parse(o->rdzv_endpoint, "--rdzv_endpoint", m->host, &m->port, err);
    } else if (addr == NULL && m->n_nodes > 1 && s != NULL && s->first_node[0] != '\0') {
        st = take_cluster_endpoint(m, o, s, err);
    } else if (addr == NULL && m->n_nodes > 1 && s != NULL && s->nodes_by_user) {
        return cdi_fail(err, CDDP_E_INVALID,
                        "--nnodes=%s needs a rendezvous endpoint, but this pod has no name that other pods can "
                        "resolve; set subdomain in the pods' template to the name of a headless Service, or give "
                        "--rdzv_endpoint=HOST:PORT",
                        nodes_text(o, nodes, sizeof nodes));
    } else if (addr == NULL && m->n_nodes > 1) {
        return cdi_fail(err, CDDP_E_INVALID,
                        "--nnodes=%s needs a rendezvous endpoint; give the same --master_addr=ADDRESS (of node 0; and "
                        "--master_port if %d is in use there) or --rdzv_endpoint=HOST:PORT on all nodes, or set "
                        "MASTER_ADDR, or use srun inside a Slurm job",
                        nodes_text(o, nodes, sizeof nodes), ENDPOINT_MASTER_PORT);
    } else {
        (void)snprintf(m->host, sizeof m->host, "%s", addr == NULL ? "127.0.0.1" : addr);
        m->port = m->n_nodes > 1 ? ENDPOINT_MASTER_PORT : 0;
        if (m->n_nodes > 1)
            st = take_port(&m->port, o, err);
        else if (o->master_port >= 0)
            m->port = (uint16_t)o->master_port;
    }
    if (st != CDDP_OK || m->n_nodes == 1)
        return st;
    if (is_wildcard(m->host))
        return cdi_fail(err, CDDP_E_INVALID,
                        "%s means every address, to which other nodes cannot connect; give one address of the node "
                        "that hosts the rendezvous",
                        m->host);
    return m->port != 0 ? CDDP_OK
                        : cdi_fail(err, CDDP_E_INVALID,
                                   "port 0 means any free port, which the other nodes cannot know; give a port");
}

/* The lease, or torchrun's two keys for it: the interval of heartbeats, and how many may be missing. 0: the default. */
static int64_t find_lease_ms(const struct conf *c)
{
    int64_t interval = c->interval_s > 0 ? c->interval_s : KEEP_ALIVE_INTERVAL_S;
    int64_t attempts = c->attempts > 0 ? c->attempts : KEEP_ALIVE_ATTEMPTS;

    if (c->lease_s > 0)
        return 1000 * c->lease_s;
    if (c->interval_s < 0 && c->attempts < 0)
        return 0;
    return 1000 * (interval * attempts < LEASE_MAX_S ? interval * attempts : LEASE_MAX_S);
}

/* The flags give the place of etcd: the nodes elect the host. */
static cddp_status find_etcd(struct endpoint *m, const struct options *o, const struct cluster_env *step,
                             const struct conf *c, struct cdi_error *err)
{
    cddp_status st;

    if (c->is_host >= 0)
        return cdi_fail(err, CDDP_E_INVALID, "--rdzv_conf: is_host has no meaning with etcd, which elects the host");
    if (o->run_id == NULL && (step == NULL || step->run_id[0] == '\0'))
        return cdi_fail(err, CDDP_E_INVALID,
                        "--rdzv_backend=etcd needs --rdzv_id=NAME: it is part of the job's keys in etcd");
    m->etcd = c->etcd;
    st = endpoint_etcd_read(&m->etcd, o->rdzv_endpoint, err);
    if (st != CDDP_OK)
        return st;
    m->role = ENDPOINT_ELECT;
    m->host[0] = '\0';
    m->port = 0;
    return take_port(&m->port, o, err);
}

static void find_role(struct endpoint *m, const struct options *o, const struct conf *c)
{
    if (c->is_host >= 0) {
        m->role = c->is_host == 1 ? ENDPOINT_HOST : ENDPOINT_JOIN;
        m->everywhere = c->is_host == 1;
    } else if (m->n_nodes == 1) {
        m->role = o->rdzv_endpoint != NULL && m->port != 0 ? ENDPOINT_TRY : ENDPOINT_HOST;
    } else {
        m->role = m->node_rank > 0 ? ENDPOINT_JOIN : ENDPOINT_TRY;
    }
}

static bool names_endpoint(const struct options *o)
{
    return o->rdzv_endpoint != NULL || o->master_addr != NULL || o->env_master_addr != NULL;
}

/*
 * Does the job run in this step? Then the step provides the node ranks and the endpoint. If the user gives an endpoint
 * and another number of nodes, nodes of other steps may join, too, and their node ranks would be the same.
 */
static bool is_of_step(const struct options *o, const struct cluster_env *s)
{
    if (!s->in_step || s->n_nodes < 2 || o->standalone)
        return false;
    return !o->nnodes_given || o->max_nodes + o->spares == s->n_nodes ||
           (o->max_nodes + o->spares > 1 && !names_endpoint(o));
}

/*
 * A pod knows its index, and not how many there are: with --nnodes=N, its Job is a step of N nodes. The nodes of an
 * elastic job come and go, so an index says nothing about them.
 */
static cddp_status take_users_count(struct cluster_env *s, const struct options *o, struct cdi_error *err)
{
    if (!s->nodes_by_user || !o->nnodes_given || o->standalone || o->min_nodes != o->max_nodes || o->node_rank >= 0)
        return CDDP_OK;
    s->n_nodes = o->max_nodes + o->spares;
    if (s->node_rank < s->n_nodes || s->n_nodes == 1)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID,
                    "JOB_COMPLETION_INDEX is %lld, but --nnodes is %lld%s: give the same number as --nnodes and as "
                    "completions and parallelism of the Job, or give --node_rank",
                    (long long)s->node_rank, (long long)o->max_nodes, o->spares > 0 ? " with the spares" : "");
}

/* A forgotten --nnodes would train as many models as there are pods, and nobody would notice. */
static void note_single_pod(struct endpoint *m, const struct options *o, const struct cluster_env *s)
{
    if (s->nodes_by_user && s->node_rank > 0 && !o->nnodes_given && !o->standalone && m->n_nodes == 1)
        (void)snprintf(m->detected, sizeof m->detected,
                       "JOB_COMPLETION_INDEX is %lld, but this pod runs a separate job; give --nnodes=N if N pods "
                       "train one model together, or --standalone if each trains its own",
                       (long long)s->node_rank);
}

static cddp_status endpoint_check_start(const struct options *o, const struct cluster_env *s, struct cdi_error *err)
{
    bool cluster_counts = !o->nnodes_given || o->max_nodes == OPTIONS_NODES_AUTO;

    if (!s->in_job || s->job_nodes < 2 || !cluster_counts || o->standalone)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID,
                    "%s %.64s has %lld nodes, but this cddprun was started on the first one only; start it on each "
                    "with %s cddprun ..., or give --standalone to use one node",
                    s->kind, s->job_id, (long long)s->job_nodes, s->start);
}

/* --nnodes=MIN: uses all nodes of the step. */
static cddp_status resolve_max_nodes(struct options *o, const struct cluster_env *s, struct cdi_error *err)
{
    if (o->max_nodes != OPTIONS_NODES_AUTO)
        return CDDP_OK;
    if (!s->in_step || s->nodes_by_user)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "--nnodes=%lld: takes the maximum from a Slurm step, but this is not a Slurm step; give --nnodes=MIN:MAX",
            (long long)o->min_nodes);
    o->max_nodes = s->n_nodes - o->spares;
    if (o->max_nodes < o->min_nodes)
        return cdi_fail(err, CDDP_E_INVALID, "--nnodes=%lld: needs more nodes than this %s has: %lld%s",
                        (long long)o->min_nodes, s->kind, (long long)s->n_nodes,
                        o->spares > 0 ? " with the spares" : "");
    return CDDP_OK;
}

/* Rejects a step with too many or too few nodes. Fewer than MAX are accepted: more may join later. */
static cddp_status check_count(const struct options *o, const struct cluster_env *s, struct cdi_error *err)
{
    if (!o->nnodes_given || (s->n_nodes >= o->min_nodes && s->n_nodes <= o->max_nodes + o->spares))
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID,
                    "--nnodes is %lld:%lld%s, but this %s has %lld nodes; remove --nnodes, start that number of nodes, "
                    "or give --rdzv_endpoint if nodes of other steps take part",
                    (long long)o->min_nodes, (long long)o->max_nodes, o->spares > 0 ? " and --spares" : "", s->kind,
                    (long long)s->n_nodes);
}

static cddp_status check_step(const struct options *o, const struct cluster_env *s, struct cdi_error *err)
{
    if (s->by_file && o->nnodes_given && o->max_nodes + o->spares != s->n_nodes)
        return cdi_fail(err, CDDP_E_INVALID, "--rank_order '%.200s' has %lld hosts, but --nnodes is %lld%s",
                        o->rank_order, (long long)s->n_nodes, (long long)(o->max_nodes + o->spares),
                        o->spares > 0 ? " with the spares" : "");
    if (!is_of_step(o, s))
        return CDDP_OK;
    if (!s->one_task_per_node)
        return cdi_fail(err, CDDP_E_INVALID,
                        "this %s starts more than one cddprun on a node, but one cddprun starts all workers of a node; "
                        "use %s, and --nproc_per_node for the number of workers",
                        s->kind, s->start);
    if (check_count(o, s, err) != CDDP_OK)
        return CDDP_E_INVALID;
    if (o->node_rank < 0 || o->node_rank == s->node_rank)
        return CDDP_OK;
    if (s->by_file || strcmp(s->kind, "Slurm step") != 0)
        return cdi_fail(err, CDDP_E_INVALID, "--node_rank is %lld, but by the %s this is node %lld; remove --node_rank",
                        (long long)o->node_rank, s->by_file ? "file of --rank_order" : s->kind,
                        (long long)s->node_rank);
    return cdi_fail(
        err, CDDP_E_INVALID,
        "--node_rank is %lld, but this is node %lld of the Slurm step (SLURM_NODEID): the batch shell expands "
        "$SLURM_NODEID on the first node, before srun runs; remove --node_rank",
        (long long)o->node_rank, (long long)s->node_rank);
}

/* Combines options and the job's environment; step: NULL if it does not apply. */
static cddp_status decide(struct endpoint *m, const struct options *o, const struct cluster_env *step,
                          const struct conf *c, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (step != NULL && !o->nnodes_given) {
        if (step->n_nodes <= o->spares)
            return cdi_fail(err, CDDP_E_INVALID, "--spares=%lld of %lld nodes leaves no node for the job",
                            (long long)o->spares, (long long)step->n_nodes);
        m->min_nodes = m->max_nodes = (uint32_t)(step->n_nodes - o->spares);
        m->n_nodes = (uint32_t)step->n_nodes;
    }
    if (o->standalone && m->n_nodes > 1)
        st = cdi_fail(err, CDDP_E_INVALID, "--standalone is for one node, but --nnodes is %u%s; remove one of them",
                      m->n_nodes, o->spares > 0 ? " with the spares" : "");
    if (st == CDDP_OK)
        st = find_rank(m, o, c, err);
    if (st == CDDP_OK && m->node_rank < 0 && step != NULL)
        m->node_rank = (int32_t)step->node_rank;
    if (st == CDDP_OK && c->etcd_key != NULL && !endpoint_is_etcd(o->rdzv_backend))
        st = cdi_fail(err, CDDP_E_INVALID, "--rdzv_conf: %.*s is for --rdzv_backend=etcd",
                      (int)strcspn(c->etcd_key, "="), c->etcd_key);
    if (st == CDDP_OK && !o->standalone)
        st = endpoint_is_etcd(o->rdzv_backend) ? find_etcd(m, o, step, c, err) : find_endpoint(m, o, step, err);
    if (st != CDDP_OK || o->standalone)
        return st;
    if (m->role != ENDPOINT_ELECT)
        find_role(m, o, c);
    if (step == NULL)
        return CDDP_OK;
    (void)snprintf(m->run_id, sizeof m->run_id, "%s", step->run_id);
    (void)snprintf(m->detected, sizeof m->detected,
                   m->role == ENDPOINT_ELECT ? "%s%s%s: %u nodes%s%s%s, this is node %d; etcd elects the host"
                                             : "%s%s%s: %u nodes%s%s%s, this is node %d; rendezvous at %.200s, port %u",
                   step->kind, step->run_id[0] != '\0' ? " " : "", step->run_id, (unsigned)step->n_nodes,
                   step->nodes[0] != '\0' ? " (" : "", step->nodes, step->nodes[0] != '\0' ? ")" : "", m->node_rank,
                   m->host, m->port);
    return CDDP_OK;
}

static size_t limit(int64_t given)
{
    return given > 0 ? (size_t)given : 0;
}

static void set_limits(struct endpoint *m, const struct conf *c)
{
    m->store = (struct cdi_kv_limits){.bytes = limit(c->store_memory),
                                      .key = limit(c->max_key),
                                      .value = limit(c->max_value),
                                      .waits = limit(c->max_waits)};
    m->max_connections = limit(c->max_connections);
    m->max_buffered = limit(c->buffer_memory);
}

cddp_status endpoint_decide(struct endpoint *out, const struct options *given, const struct cluster_env *cluster,
                            struct cdi_error *err)
{
    struct options resolved = *given, *o = &resolved;
    struct cluster_env known = *cluster, *s = &known;
    struct endpoint m = {.role = ENDPOINT_HOST, .node_rank = -1, .host = "127.0.0.1", .n_ports = 1};
    struct conf c;
    cddp_status st = check_backend(o, err);

    if (st == CDDP_OK)
        st = read_conf(&c, o->rdzv_conf, err);
    if (st == CDDP_OK)
        st = endpoint_check_start(o, s, err);
    if (st == CDDP_OK)
        st = resolve_max_nodes(o, s, err);
    if (st == CDDP_OK)
        st = take_users_count(s, o, err);
    if (st == CDDP_OK)
        st = check_step(o, s, err);
    m.min_nodes = (uint32_t)o->min_nodes;
    m.max_nodes = (uint32_t)o->max_nodes;
    m.spares = (uint32_t)o->spares;
    m.n_nodes = (uint32_t)(o->max_nodes + o->spares);
    if (st == CDDP_OK)
        st = decide(&m, o, is_of_step(o, s) ? s : NULL, &c, err);
    if (st != CDDP_OK) {
        options_one_line(err);
        return st;
    }
    note_single_pod(&m, o, s);
    m.join_timeout_ms = 1000 * (c.join_timeout_s > 0 ? c.join_timeout_s
                                : c.timeout_s > 0    ? c.timeout_s
                                                     : CDI_LIMIT_JOIN_S);
    m.lease_ms = find_lease_ms(&c);
    m.last_call_ms = c.last_call_s >= 0 ? 1000 * c.last_call_s : -1;
    m.close_timeout_ms = c.close_timeout_s > 0 ? 1000 * c.close_timeout_s : -1;
    set_limits(&m, &c);
    *out = m;
    return CDDP_OK;
}

/* --------------------------------------------------------------------------------------------------- address ---- */

cddp_status endpoint_check_address(const struct endpoint *m, const struct sockaddr *addr, struct cdi_error *err)
{
    static const char *const own[] = {"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"};
    char text[CDI_HOST_TEXT];
    struct in6_addr numeric;
    bool loopback = false;

    cdi_address_host(addr, text);
    if (addr->sa_family == AF_INET) {
        struct in_addr a = ((const struct sockaddr_in *)addr)->sin_addr;

        loopback = (ntohl(a.s_addr) >> 24) == 127;
    } else if (addr->sa_family == AF_INET6) {
        const struct in6_addr *a = &((const struct sockaddr_in6 *)addr)->sin6_addr;

        loopback = IN6_IS_ADDR_LOOPBACK(a);
    }
    if (m->n_nodes == 1 || !loopback || inet_pton(AF_INET, m->host, &numeric) == 1 ||
        inet_pton(AF_INET6, m->host, &numeric) == 1)
        return CDDP_OK;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcasecmp(m->host, own[i]) == 0)
            return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID,
                    "'%.200s' resolves to %s on this node, which other nodes cannot reach; remove it from the line of "
                    "%s in /etc/hosts, or give the address itself",
                    m->host, text, text);
}
