/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank runs first. All ranks take part in one gather: those that wait, before they go on, and those that run first,
 * after they are done. So every rank learns the result, and the death of a rank is reported as in any collective.
 */
#include "common/cleanup.h"
#include "common/float_state.h"
#include "worker/comm/comm.h"

#include <stdio.h>
#include <string.h>

#define WHY_BYTES 256

static cddp_status out_of_memory(const cddp_comm *comm, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_NOMEM, "out of memory (status buffer for %d ranks)", cdi_comm_world(comm)->size);
}

/* Sets *first to whether this rank is the lowest one of its node. */
static cddp_status lowest_of_node(cddp_comm *comm, int *first, struct cdi_error *err)
{
    CDI_AUTOFREE int32_t *nodes = calloc((size_t)cdi_comm_world(comm)->size, sizeof *nodes);
    int32_t mine = cddp_node_rank(comm);
    cddp_status st;
    int r = 0;

    if (nodes == NULL)
        return out_of_memory(comm, err);
    st = cdi_comm_all_gather(comm, &mine, nodes, 1, CDDP_INT32, err);
    if (st != CDDP_OK)
        return st;
    while (nodes[r] != mine)
        r++;
    *first = r == cdi_comm_world(comm)->rank;
    return CDDP_OK;
}

/* Gathers the results of the ranks that ran first: "" after success, and from all other ranks. */
static cddp_status exchange_result(cddp_comm *comm, const char *failure, struct cdi_error *err)
{
    int size = cdi_comm_world(comm)->size;
    CDI_AUTOFREE char *all = malloc((size_t)size * WHY_BYTES);
    char mine[WHY_BYTES] = "";
    cddp_status st;

    if (all == NULL)
        return out_of_memory(comm, err);
    if (failure != NULL)
        (void)snprintf(mine, sizeof mine, "%s", *failure != '\0' ? failure : "it gave no reason");
    st = cdi_comm_all_gather(comm, mine, all, WHY_BYTES, CDDP_UINT8, err);
    for (int r = 0; r < size && st == CDDP_OK; r++)
        if (all[r * WHY_BYTES] != '\0')
            st = cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(comm), r), CDDP_E_REMOTE,
                             "%s, which ran first, failed: %.*s", cdi_comm_who(comm, r).text, WHY_BYTES,
                             all + r * WHY_BYTES);
    return st;
}

static cddp_status leader_first_begin(cddp_comm *comm, cddp_scope of, int *first, struct cdi_error *err)
{
    cddp_status st = cdi_comm_own("cddp_leader_first_begin", comm, err);
    int mine = 0;

    if (st != CDDP_OK)
        return st;
    if (comm == NULL || first == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_leader_first_begin: comm and first must not be NULL");
    if (of != CDDP_SCOPE_JOB && of != CDDP_SCOPE_NODE)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_leader_first_begin: %d is not a cddp_scope", (int)of);
    st = cdi_comm_ops(comm)->health(cdi_comm_backend(comm), err); /* the first rank takes part in no gather here */
    if (st != CDDP_OK)
        return st;
    if (of == CDDP_SCOPE_JOB)
        mine = cdi_comm_world(comm)->rank == 0;
    else
        st = lowest_of_node(comm, &mine, err);
    if (st == CDDP_OK && !mine)
        st = exchange_result(comm, NULL, err);
    if (st == CDDP_OK)
        *first = mine;
    return st;
}

cddp_status cddp_leader_first_begin(cddp_comm *comm, cddp_scope of, int *first)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = leader_first_begin(comm, of, first, &err);

    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

cddp_status cddp_leader_first_end(cddp_comm *comm, int first, const char *failure)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_comm_own("cddp_leader_first_end", comm, &err);

    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    if (comm == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_leader_first_end: comm must not be NULL");
    else if (first)
        st = exchange_result(comm, failure, &err);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
