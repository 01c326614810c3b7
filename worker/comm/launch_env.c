/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/launch_env.h"

#include "common/address.h"
#include "common/env.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#define BY_HAND "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT together, or start the program with cddprun"

/* The variables of one kind of launcher; NULL: it has no such variable. */
struct dialect {
    const char *mark; /* set if and only if this launcher has started the process */
    const char *rank, *size, *size_too;
    const char *local_rank, *local_size;
    const char *node_rank, *n_nodes, *n_nodes_too;
    const char *tasks_per_node; /* "2(x3),1": local_size of each node */
    const char *remedy;         /* for a missing variable */
};

static const struct dialect by_hand = {
    .rank = "RANK",
    .size = "WORLD_SIZE",
    .local_rank = "LOCAL_RANK",
    .local_size = "LOCAL_WORLD_SIZE",
    .node_rank = "GROUP_RANK",
    .n_nodes = "GROUP_WORLD_SIZE",
    .remedy = BY_HAND,
};

static const struct dialect others[] = {
    {
        .mark = "OMPI_COMM_WORLD_SIZE",
        .rank = "OMPI_COMM_WORLD_RANK",
        .size = "OMPI_COMM_WORLD_SIZE",
        .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
        .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
        .remedy = "under Open MPI pass both variables, with rank 0's host and a free port of it: mpirun -x "
                  "MASTER_ADDR=node1 -x MASTER_PORT=29500",
    },
    {
        .mark = "PMI_SIZE",
        .rank = "PMI_RANK",
        .size = "PMI_SIZE",
        .local_rank = "MPI_LOCALRANKID",
        .local_size = "MPI_LOCALNRANKS",
        .remedy = "under MPICH pass both variables, with rank 0's host and a free port of it: mpiexec -genv "
                  "MASTER_ADDR node1 -genv MASTER_PORT 29500",
    },
    {
        .mark = "SLURM_STEP_ID",
        .rank = "SLURM_PROCID",
        .size = "SLURM_STEP_NUM_TASKS",
        .size_too = "SLURM_NTASKS",
        .local_rank = "SLURM_LOCALID",
        .node_rank = "SLURM_NODEID",
        .n_nodes = "SLURM_STEP_NUM_NODES",
        .n_nodes_too = "SLURM_NNODES",
        .tasks_per_node = "SLURM_STEP_TASKS_PER_NODE",
        .remedy = "under srun export both variables first, with the step's first host and a free port of it: "
                  "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1) MASTER_PORT=29500; or "
                  "let srun start cddprun, once on each node",
    },
};

/* Reads a variable in [min, max]. Sets *v to fallback if it is unset or name is NULL. */
static cddp_status launch_int(cdi_env_fn *env, const char *name, int64_t min, int64_t max, int64_t fallback, int *v,
                              struct cdi_error *err)
{
    const char *text = name != NULL ? env(name) : NULL;
    int64_t n = fallback;

    if (text != NULL && !cdi_parse_int(text, min, max, &n))
        return cdi_fail(err, CDDP_E_INVALID, "%s='%.64s' is not a whole number from %" PRId64 " to %" PRId64, name,
                        text, min, max);
    *v = (int)n;
    return CDDP_OK;
}

/* Reads a variable that must be set. */
static cddp_status required_int(cdi_env_fn *env, const struct dialect *d, const char *name, int64_t min, int64_t max,
                                int *v, struct cdi_error *err)
{
    return env(name) != NULL ? launch_int(env, name, min, max, 0, v, err)
                             : cdi_fail(err, CDDP_E_INVALID, "%s is not set: %s", name, d->remedy);
}

static const char *first_set(cdi_env_fn *env, const char *name, const char *otherwise)
{
    return otherwise == NULL || (name != NULL && env(name) != NULL) ? name : otherwise;
}

/* Returns the number at index `node` of a text such as "2(x3),1"; -1: the text is not one, or is too short. */
static int nth_count(const char *text, int node)
{
    while (*text != '\0') {
        int64_t count = 0, times = 1;
        char part[32];
        size_t len = strcspn(text, ",");
        char *open;

        if (len >= sizeof part)
            return -1;
        memcpy(part, text, len);
        part[len] = '\0';
        open = strstr(part, "(x");
        if (open != NULL) {
            char *close = strchr(open, ')');

            if (close == NULL || close[1] != '\0')
                return -1;
            *close = *open = '\0';
            if (!cdi_parse_int(open + 2, 1, CDI_RANKS_MAX, &times))
                return -1;
        }
        if (!cdi_parse_int(part, 1, CDI_RANKS_MAX, &count))
            return -1;
        if (node < times)
            return (int)count;
        node -= (int)times;
        text += len + (text[len] == ',');
    }
    return -1;
}

static cddp_status read_ranks(struct cdi_launch *l, cdi_env_fn *env, const struct dialect *d, struct cdi_error *err)
{
    const char *size = first_set(env, d->size, d->size_too);
    cddp_status st = required_int(env, d, d->rank, 0, CDI_RANKS_MAX - 1, &l->rank, err);

    if (st == CDDP_OK)
        st = required_int(env, d, size, 1, CDI_RANKS_MAX, &l->size, err);
    if (st == CDDP_OK && l->rank >= l->size)
        return cdi_fail(err, CDDP_E_INVALID, "%s=%d is not below %s=%d: ranks are 0 to %d", d->rank, l->rank, size,
                        l->size, l->size - 1);
    return st;
}

static cddp_status read_place(struct cdi_launch *l, cdi_env_fn *env, const struct dialect *d, struct cdi_error *err)
{
    struct cdi_node_layout *p = &l->place;
    const char *per_node = d->tasks_per_node != NULL ? env(d->tasks_per_node) : NULL;
    cddp_status st = launch_int(env, d->local_size, 1, l->size, -1, &p->local_size, err);

    if (st == CDDP_OK)
        st = launch_int(env, first_set(env, d->n_nodes, d->n_nodes_too), 1, l->size, -1, &p->n_nodes, err);
    if (st == CDDP_OK)
        st = launch_int(env, d->node_rank, 0, (p->n_nodes > 0 ? p->n_nodes : l->size) - 1, -1, &p->node_rank, err);
    if (st == CDDP_OK && p->local_size < 0 && per_node != NULL && p->node_rank >= 0)
        p->local_size = nth_count(per_node, p->node_rank);
    return st == CDDP_OK ? launch_int(env, d->local_rank, 0, (p->local_size > 0 ? p->local_size : l->size) - 1, -1,
                                      &p->local_rank, err)
                         : st;
}

static cddp_status read_endpoint(struct cdi_launch *l, cdi_env_fn *env, const struct dialect *d, struct cdi_error *err)
{
    const char *hosted = env("TORCHELASTIC_USE_AGENT_STORE");

    l->host = env("MASTER_ADDR");
    if (l->host == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "MASTER_ADDR is not set: %s", d->remedy);
    l->hosted = hosted != NULL && strcmp(hosted, "True") == 0;
    if (cdi_address_without_port(l->host, "MASTER_ADDR", "MASTER_PORT", err) != CDDP_OK)
        return CDDP_E_INVALID;
    return required_int(env, d, "MASTER_PORT", 1, 65535, &l->port, err);
}

static const struct dialect *find_dialect(cdi_env_fn *env)
{
    if (env("RANK") != NULL || env("WORLD_SIZE") != NULL)
        return &by_hand;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (env(others[i].mark) != NULL)
            return &others[i];
    return env("MASTER_PORT") != NULL ? &by_hand : NULL;
}

cddp_status cdi_launch_read(struct cdi_launch *out, cdi_env_fn *env, struct cdi_error *err)
{
    struct cdi_launch l = {.alone = true, .size = 1, .place = {0, 1, 0, 1}};
    const struct dialect *d = find_dialect(env);
    cddp_status st = launch_int(env, "TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, 0, &l.restart_count, err);

    if (st == CDDP_OK && d != NULL)
        st = read_ranks(&l, env, d, err);
    /* A single process under mpirun or srun, with no address of a store: as if it was started alone. */
    l.alone = d == NULL || (d != &by_hand && l.size == 1 && env("MASTER_PORT") == NULL && env("MASTER_ADDR") == NULL);
    if (st == CDDP_OK && !l.alone)
        st = read_place(&l, env, d, err);
    if (st == CDDP_OK && !l.alone)
        st = read_endpoint(&l, env, d, err);
    if (st == CDDP_OK)
        *out = l;
    return st;
}

cddp_status cdi_launch_given(struct cdi_launch *out, cdi_env_fn *env, const struct cdi_given *given,
                             struct cdi_error *err)
{
    struct cdi_launch l = {.rank = given->rank,
                           .size = given->size,
                           .place = {-1, -1, -1, -1},
                           .host = given->host,
                           .port = given->port,
                           .hosted = !given->hosts,
                           .given = true};
    bool nowhere = given->host == NULL && given->port == 0 && !given->hosts;
    cddp_status st = launch_int(env, "TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, 0, &l.restart_count, err);

    if (st != CDDP_OK)
        return st;
    if (given->size == 0)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "cddp_init_options: rank, host, port, id and CDDP_INIT_HOST_STORE need world_size, too; leave all 0 "
            "to take them from the environment");
    if (given->size < 0 || given->size > CDI_RANKS_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_init_options.world_size is %d, but must be from 1 to %d",
                        given->size, CDI_RANKS_MAX);
    if (given->rank < 0 || given->rank >= given->size)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_init_options.rank is %d, but must be from 0 to world_size - 1 = %d",
                        given->rank, given->size - 1);
    if (given->by_id && !nowhere)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "cddp_init_options: id has the address of the store: leave out host, port and CDDP_INIT_HOST_STORE");
    l.alone = nowhere && !given->by_id && given->size == 1;
    if (l.alone)
        l.place = (struct cdi_node_layout){0, 1, 0, 1};
    else if (!given->by_id && given->host == NULL)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_init_options.world_size is set, so set host and port of the store, or id, too");
    else if (!given->by_id && cdi_address_without_port(given->host, "cddp_init_options.host", "port", err) != CDDP_OK)
        return CDDP_E_INVALID;
    else if (!given->by_id && (given->port < 1 || given->port > 65535))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_init_options.port is %d, but must be from 1 to 65535", given->port);
    *out = l;
    return CDDP_OK;
}
