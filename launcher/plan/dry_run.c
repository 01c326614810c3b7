/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/dry_run.h"

#include "protocol/json_text.h"

#include <cddp/version.h>
#include <jansson.h>
#include <string.h>

/* Known only once it runs. */
static const char unknown[] = "?";

static json_t *text_or_null(const char *text)
{
    return text == NULL || *text == '\0' ? json_null() : json_text(text);
}

static bool knows_ranks(const struct plan *p)
{
    return p->endpoint.node_rank >= 0 || p->max_nodes == 1;
}

static bool knows_size(const struct plan *p)
{
    return p->min_nodes == p->max_nodes;
}

static const char *role_name(enum endpoint_role role)
{
    switch (role) {
    case ENDPOINT_HOST:
        return "hosts";
    case ENDPOINT_TRY:
        return "hosts if the address is this node's";
    case ENDPOINT_JOIN:
        return "joins";
    case ENDPOINT_ELECT:
        return "hosts if it is elected";
    }
    return "";
}

static json_t *describe_nodes(const struct plan *p)
{
    return json_pack("{s:i, s:i, s:o, s:o}", "min", (int)p->min_nodes, "max", (int)p->max_nodes, "rank",
                     p->max_nodes == 1           ? json_integer(0)
                     : p->endpoint.node_rank < 0 ? json_null()
                                                 : json_integer(p->endpoint.node_rank),
                     "host", json_text(p->host));
}

static json_t *describe_endpoint(const struct plan *p)
{
    const struct endpoint *m = &p->endpoint;

    return json_pack("{s:o, s:o, s:s, s:f, s:o}", "address", json_text(m->host), "port",
                     m->port == 0 ? json_null() : json_integer(m->port), "this_node", role_name(m->role),
                     "join_timeout_s", (double)m->join_timeout_ms / 1000.0, "found", text_or_null(m->detected));
}

static json_t *describe_device(const struct plan *p, const struct machine *m, uint32_t local_rank)
{
    int gpu = p->bind != NULL ? p->bind[local_rank].gpu : m->n_gpus > 0 ? (int)(local_rank % m->n_gpus) : -1;
    const struct cdi_gpu *g;

    if (gpu < 0)
        return json_null();
    g = &m->gpus[gpu];
    return json_pack("{s:i, s:o, s:o, s:o, s:o}", "index", gpu, "uuid", text_or_null(g->uuid), "pci",
                     text_or_null(g->pci), "model", text_or_null(g->model), "numa_node",
                     g->numa_node < 0 ? json_null() : json_integer(g->numa_node));
}

static bool is_unknown(const struct plan *p, const char *name)
{
    static const char *const ranks[] = {"RANK", "GROUP_RANK", "ROLE_RANK"};
    static const char *const sizes[] = {"WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"};

    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
        if ((!knows_ranks(p) && strcmp(name, ranks[i]) == 0) || (!knows_size(p) && strcmp(name, sizes[i]) == 0))
            return true;
    return p->endpoint.port == 0 && strcmp(name, "MASTER_PORT") == 0;
}

static bool is_in(char *const *base, const char *setting)
{
    for (; *base != NULL; base++)
        if (strcmp(*base, setting) == 0)
            return true;
    return false;
}

static json_t *describe_env(const struct plan *p, uint32_t local_rank, char *const *base)
{
    uint32_t n_nodes = p->max_nodes;
    struct cdi_msg_assign assign = {.world_size = n_nodes * p->n_procs,
                                    .n_nodes = n_nodes,
                                    .node_rank = p->endpoint.node_rank < 0 ? 0 : p->endpoint.node_rank,
                                    .master_port = p->endpoint.port};
    struct plan_rank r = {.assign = &assign, .local_rank = local_rank, .error_file = unknown, .flight = unknown};
    json_t *out = json_object();
    char **env;

    assign.rank_base = (uint32_t)assign.node_rank * p->n_procs;
    (void)snprintf(assign.master_addr, sizeof assign.master_addr, "%.60s", p->endpoint.host);
    env = plan_env(p, &r, base);
    for (char **e = env; out != NULL && e != NULL && *e != NULL; e++) {
        char *equals = strchr(*e, '=');

        if (equals == NULL || is_in(base, *e))
            continue;
        *equals = '\0';
        (void)json_object_set_new(
            out, *e, strcmp(equals + 1, unknown) == 0 || is_unknown(p, *e) ? json_null() : json_text(equals + 1));
        *equals = '=';
    }
    plan_free_strings(env);
    if (env == NULL) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static json_t *describe_command(const struct plan *p, uint32_t local_rank)
{
    char **args = plan_args(p, local_rank);
    json_t *out = args == NULL ? NULL : json_array();

    for (char **a = args; out != NULL && *a != NULL; a++)
        (void)json_array_append_new(out, json_text(*a));
    plan_free_strings(args);
    return out;
}

static json_t *describe_worker(const struct plan *p, const struct machine *m, uint32_t i, char *const *base)
{
    const struct bind_worker *b = p->bind == NULL ? NULL : &p->bind[i];
    uint32_t first = p->endpoint.node_rank > 0 ? (uint32_t)p->endpoint.node_rank * p->n_procs : 0;

    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "local_rank", (int)i, "rank",
                     knows_ranks(p) ? json_integer(first + i) : json_null(), "device", describe_device(p, m, i),
                     "cores", text_or_null(b == NULL ? NULL : b->cpus), "numa_node",
                     b == NULL || b->node < 0 ? json_null() : json_integer(b->node), "command", describe_command(p, i),
                     "environment", describe_env(p, i, base));
}

char *dry_run_text(const struct plan *p, const struct machine *m, char *const *base)
{
    json_t *workers = json_array(), *all;
    char *text = NULL;

    for (uint32_t i = 0; workers != NULL && i < p->n_procs; i++) {
        if (json_array_append_new(workers, describe_worker(p, m, i, base)) != 0) {
            json_decref(workers);
            return NULL;
        }
    }
    all = json_pack("{s:s, s:o, s:o, s:o, s:i, s:o, s:i, s:s, s:i, s:i, s:o}", "cddprun", CDDP_VERSION, "run_id",
                    json_text(p->run_id), "nodes", describe_nodes(p), "meet", describe_endpoint(p), "workers_here",
                    (int)p->n_procs, "world_size",
                    knows_size(p) ? json_integer((json_int_t)p->max_nodes * p->n_procs) : json_null(), "max_restarts",
                    (int)p->max_restarts, "on_failure", p->wait_on_failure ? "wait" : "stop", "usable_cores",
                    (int)m->n_cores, "gpus", (int)m->n_gpus, "workers", workers);
    if (all != NULL)
        text = json_dumps(all, JSON_INDENT(2));
    json_decref(all);
    return text;
}
