/* SPDX-License-Identifier: Apache-2.0 */
/* cddp_init: reads the environment and the options, and joins the job that they describe. */
#include "common/env.h"
#include "common/float_state.h"
#include "common/time_limits.h"
#include "worker/backend/loader.h"
#include "worker/base/sized.h"
#include "worker/comm/error_file.h"
#include "worker/comm/finalize.h"
#include "worker/comm/join.h"
#include "worker/comm/keys.h"
#include "worker/comm/log.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cddp_status read_timeouts(struct cdi_world *w, const cddp_init_options *opt, struct cdi_error *err)
{
    int64_t join_s, wait_s;
    cddp_status st = cdi_env_int_or("CDDP_JOIN_TIMEOUT", 1, INT_MAX / 1000, CDI_LIMIT_INIT_S, &join_s, err);

    if (st == CDDP_OK)
        st = cdi_log_check_level(err);
    if (st == CDDP_OK)
        st = cdi_env_int_or("CDDP_TIMEOUT", 1, INT_MAX / 1000, CDI_LIMIT_COLLECTIVE_S, &wait_s, err);
    if (st != CDDP_OK)
        return st;
    if (opt->join_timeout_ms < 0 || opt->timeout_ms < 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_init_options: a timeout is negative");
    w->init_timeout_ms = opt->join_timeout_ms > 0 ? opt->join_timeout_ms : join_s * 1000;
    w->timeout_ms = opt->timeout_ms > 0 ? opt->timeout_ms : wait_s * 1000;
    return CDDP_OK;
}

/*
 * Chooses the backend that the program or the user has named, or by default NCCL on a node with a GPU and the CPU on
 * others. MPI is only used if named. Looks at this node; does not communicate.
 */
static cddp_status choose_backend(const struct cdi_backend_ops **ops, const cddp_init_options *opt,
                                  struct cdi_error *err)
{
    const char *choice = opt->backend != NULL ? opt->backend : cdi_env_str("CDDP_BACKEND");
    const char *source = opt->backend != NULL ? "cddp_init_options.backend" : "CDDP_BACKEND";
    bool is_there, any = choice == NULL || strcmp(choice, "auto") == 0;
    const char *name = any ? "nccl" : choice;
    cddp_status st;

    *ops = &cdi_cpu_backend;
    if (strcmp(name, "cpu") == 0)
        return CDDP_OK;
    if (strcmp(name, "nccl") != 0 && strcmp(name, "mpi") != 0)
        return cdi_fail(err, CDDP_E_INVALID,
                        "this libcddp has no backend '%.64s' (%s): use \"auto\", \"cpu\", \"nccl\" or \"mpi\"", name,
                        source);
    st = cdi_module_open(name, ops, &is_there, err);
    if (st != CDDP_OK && any && (!is_there || st == CDDP_E_NOT_FOUND)) {
        *ops = &cdi_cpu_backend;
        return CDDP_OK;
    }
    return st == CDDP_OK || any ? st : cdi_error_wrap(err, "%s is \"%s\"", source, name);
}

/* Reads the device number: 3 of "cuda:3". */
static cddp_status read_device(struct cdi_world *w, const cddp_init_options *opt, struct cdi_error *err)
{
    int64_t n = -1;

    if (opt->device != NULL &&
        (strncmp(opt->device, "cuda:", 5) != 0 || !cdi_parse_int(opt->device + 5, 0, INT_MAX, &n)))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_init_options.device is '%.64s', but must be \"cuda:N\"",
                        opt->device);
    w->device = (int)n;
    return CDDP_OK;
}

/* Reads rank, size and the store's address: from the options, or from the environment if they have none of them. */
static cddp_status read_launch(struct cdi_launch *l, const cddp_init_options *opt, struct cdi_error *err)
{
    const struct cdi_given given = {.rank = opt->rank,
                                    .size = opt->world_size,
                                    .host = opt->host,
                                    .port = opt->port,
                                    .hosts = (opt->flags & CDDP_INIT_HOST_STORE) != 0,
                                    .by_id = opt->id != NULL};

    if ((opt->flags & ~(uint32_t)CDDP_INIT_HOST_STORE) != 0)
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "cddp_init_options.flags has unknown bits (%#x)", opt->flags);
    if (opt->world_size == 0 && opt->rank == 0 && opt->port == 0 && opt->flags == 0 && opt->host == NULL &&
        opt->id == NULL)
        return cdi_launch_read(l, cdi_env_str, err);
    return cdi_launch_given(l, cdi_env_str, &given, err);
}

/* Reads all of the environment and the options, which may be NULL. Does not communicate. */
static cddp_status read_world(struct cddp_comm *c, struct cdi_launch *l, cddp_init_options *opt,
                              const cddp_init_options *given, struct cdi_error *err)
{
    struct cdi_world *w = &c->world;
    cddp_status st = given == NULL ? CDDP_OK : cdi_sized_get(opt, sizeof *opt, given, "cddp_init_options", err);

    if (st == CDDP_OK)
        st = cdi_comm_check_name("cddp_init_options.name", opt->name, err);
    if (st == CDDP_OK)
        st = read_device(w, opt, err);
    if (st == CDDP_OK)
        st = read_timeouts(w, opt, err);
    if (st == CDDP_OK)
        st = read_launch(l, opt, err);
    if (st != CDDP_OK)
        return st;
    c->given = l->given;
    w->mpi_comm = opt->mpi_comm;
    st = choose_backend(&c->ops, opt, err);
    if (st != CDDP_OK)
        return st;
    if (opt->mpi_comm != NULL && strcmp(c->ops->name, "mpi") != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_init_options.mpi_comm needs the backend \"mpi\", but this is \"%s\"",
                        c->ops->name);
    w->rank = l->rank;
    w->size = l->size;
    w->restart_count = l->restart_count;
    if (opt->name != NULL)
        (void)snprintf(w->name, sizeof w->name, "%s", opt->name);
    cdi_comm_set_prefix(w, c->given, 0);
    return CDDP_OK;
}

cddp_status cddp_init(cddp_comm **comm, const cddp_init_options *opt)
{
    CDI_DEFAULT_FLOAT_STATE;
    cddp_init_options known = {.size = sizeof known};
    struct cdi_launch l;
    struct cdi_error err;
    struct cddp_comm *c;
    cddp_status st;

    cdi_error_file_arm();
    if (comm == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "out is NULL"), &err);
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_NOMEM, "out of memory"), &err);
    c->ops = &cdi_cpu_backend;
    st = read_world(c, &l, &known, opt, &err);
    if (st == CDDP_OK) {
        c->owner = c->user = cdi_owner_here(c->world.rank);
        st = cdi_join(c, &l, &known, &err);
    }
    if (st != CDDP_OK) {
        cdi_comm_say_goodbye(c, true); /* so that the others report an error with the same cause */
        cdi_comm_destroy(c);
        return cdi_last_error_return(st, &err);
    }
    *comm = c;
    return CDDP_OK;
}
