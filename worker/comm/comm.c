/* SPDX-License-Identifier: Apache-2.0 */
/* The process that a communicator belongs to, its state, and its getters. */
#include "worker/comm/comm.h"

#include "common/float_state.h"
#include "worker/backend/who.h"
#include "worker/base/sized.h"
#include "worker/comm/state.h"

#include <stdio.h>

cddp_status cdi_comm_own(const char *function, const cddp_comm *comm, struct cdi_error *err)
{
    if (comm == NULL || cdi_owner_is_here(&comm->user))
        return CDDP_OK;
    if (comm->over && cdi_owner_is_surely_here(&comm->owner))
        return cdi_fail(err, CDDP_E_STATE, "%s: the communicator is over: cddp_finalize was called for %s", function,
                        comm->finalized ? "it" : "the one that it is a part of");
    return cdi_owner_refuse(&comm->owner, function, "communicator", err);
}

bool cdi_comm_is_others(const char *function, const cddp_comm *comm)
{
    struct cdi_error err;

    if (cdi_owner_is_surely_here(&comm->owner))
        return false;
    (void)cdi_last_error_return(cdi_owner_refuse(&comm->owner, function, "communicator", &err), &err);
    return true;
}

bool cdi_comm_is_over(const cddp_comm *comm)
{
    return comm->over;
}

cddp_status cddp_comm_error(cddp_comm *comm, cddp_error_info *info)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err = {.status = CDDP_OK};
    cddp_status st = cdi_comm_own("cddp_comm_error", comm, &err);

    if (comm == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_comm_error: comm must not be NULL");
    else if (st == CDDP_OK)
        st = comm->ops->peek(comm->backend, &err);
    err.status = st;
    cdi_error_info_fill(info, &err);
    return cdi_last_error_return(st, &err);
}

void cddp_abort(cddp_comm *comm, const char *why)
{
    CDI_DEFAULT_FLOAT_STATE;

    if (comm == NULL || cdi_comm_is_others("cddp_abort", comm))
        return;
    (void)atomic_fetch_add(&comm->n_aborting, 1); /* before the look: comm_leave sets over, and then waits for this */
    if (!comm->over) {
        struct cdi_error err;

        (void)cdi_fail(&err, CDDP_E_ABORTED, "%s aborted the job%s%.300s",
                       cdi_who(comm->world.ranks, comm->world.rank).text, why != NULL ? ": " : "",
                       why != NULL ? why : "");
        comm->ops->abort(comm->backend, &err);
    }
    (void)atomic_fetch_sub(&comm->n_aborting, 1); /* the last access: comm may be freed after it */
}

/* --------------------------------------------------------------------------------------------------- getters ---- */

int cddp_rank(const cddp_comm *comm)
{
    return comm == NULL ? -1 : comm->world.rank;
}

int cddp_world_size(const cddp_comm *comm)
{
    return comm == NULL ? 0 : comm->world.size;
}

int cddp_world_rank(const cddp_comm *comm, int rank)
{
    return comm == NULL || rank < 0 || rank >= comm->world.size ? -1 : cdi_rank_of_job(&comm->world, rank);
}

int cddp_local_rank(const cddp_comm *comm)
{
    return comm == NULL ? -1 : comm->place.local_rank;
}

int cddp_local_world_size(const cddp_comm *comm)
{
    return comm == NULL ? 0 : comm->place.local_size;
}

int cddp_node_rank(const cddp_comm *comm)
{
    return comm == NULL ? -1 : comm->place.node_rank;
}

const char *cddp_backend_name(const cddp_comm *comm)
{
    return comm == NULL ? "" : comm->ops->name;
}

int cddp_restart_count(const cddp_comm *comm)
{
    return comm == NULL ? 0 : comm->world.restart_count;
}

int cddp_stop_requested(const cddp_comm *comm)
{
    if (comm == NULL)
        return 0;
    return cdi_flight_stop_wanted(comm->whole != NULL ? comm->whole->world.flight : comm->world.flight);
}

cddp_store *cddp_comm_store(cddp_comm *comm)
{
    return comm == NULL ? NULL : comm->world.store;
}

cddp_status cddp_get_device_info(cddp_comm *comm, cddp_device_info *info)
{
    CDI_DEFAULT_FLOAT_STATE;
    cddp_device_info known = {.size = sizeof known};
    struct cdi_error err;

    if (comm == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_get_device_info: comm is NULL"), &err);
    if (cdi_sized_check(info, "cddp_device_info", &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_INVALID, &err);
    if (cdi_comm_own("cddp_get_device_info", comm, &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_STATE, &err);
    comm->ops->describe(comm->backend, &known);
    cdi_sized_put(info, &known, sizeof known);
    return CDDP_OK;
}

cddp_status cddp_copy(cddp_comm *comm, void *to, const void *from, size_t bytes)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_comm_own("cddp_copy", comm, &err);

    if (st != CDDP_OK)
        return cdi_last_error_return(st, &err);
    if (comm == NULL || (bytes > 0 && (to == NULL || from == NULL)))
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_copy: comm, to and from must not be NULL"),
                                     &err);
    if (!comm->ops->on_device) /* a stream orders copies after operations; here nothing does */
        st = comm->ops->stream_wait(comm->backend, 0, NULL, &err);
    return cdi_last_error_return(st == CDDP_OK ? comm->ops->copy(comm->backend, to, from, bytes, &err) : st, &err);
}

void cdi_comm_set_step(cddp_comm *comm, const void *reducer, uint64_t step)
{
    const void *first = NULL;

    if (atomic_compare_exchange_strong(&comm->stepper, &first, reducer) || first == reducer)
        atomic_store_explicit(&comm->step, step + 1, memory_order_relaxed);
}

void cdi_comm_end_steps(cddp_comm *comm, const void *reducer)
{
    const void *first = reducer;

    (void)atomic_compare_exchange_strong(&comm->stepper, &first, NULL);
}

uint64_t cdi_comm_step(const cddp_comm *comm)
{
    return atomic_load_explicit(&comm->step, memory_order_relaxed);
}

uint32_t cdi_comm_number_model(cddp_comm *comm)
{
    return ++comm->n_models;
}

const struct cdi_world *cdi_comm_world(const cddp_comm *comm)
{
    return &comm->world;
}

const struct cdi_backend_ops *cdi_comm_ops(const cddp_comm *comm)
{
    return comm->ops;
}

struct cdi_backend *cdi_comm_backend(const cddp_comm *comm)
{
    return comm->backend;
}

struct cdi_memory *cdi_comm_memory(cddp_comm *comm)
{
    return &comm->memory;
}

struct cdi_on_finalize *cdi_comm_on_finalize(cddp_comm *comm)
{
    return &comm->on_finalize;
}
