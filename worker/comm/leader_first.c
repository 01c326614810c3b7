/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank goes first. Those that wait and those that go first meet in one gather, before and after what is done: so
 * every rank learns whether it went well, and the death of a rank is told as in any collective.
 */
#include "common/cleanup.h"
#include "worker/comm/comm.h"

#include <stdio.h>
#include <string.h>

#define WHY_BYTES 256

static cddp_status out_of_memory(const cddp_comm *comm, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_NOMEM, "no memory for a word from each of %d ranks", cdi_comm_world(comm)->size);
}

/* Is no lower rank on this node? */
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

/* How it went for those that went first, and have it said to all; "" is said by the others, and if it went well. */
static cddp_status tell(cddp_comm *comm, const char *failure, struct cdi_error *err)
{
    int size = cdi_comm_world(comm)->size;
    CDI_AUTOFREE char *all = malloc((size_t)size * WHY_BYTES);
    char mine[WHY_BYTES] = "";
    cddp_status st;

    if (all == NULL)
        return out_of_memory(comm, err);
    if (failure != NULL)
        (void)snprintf(mine, sizeof mine, "%s", *failure != '\0' ? failure : "it did not say why");
    st = cdi_comm_all_gather(comm, mine, all, WHY_BYTES, CDDP_UINT8, err);
    for (int r = 0; r < size && st == CDDP_OK; r++)
        if (all[r * WHY_BYTES] != '\0')
            st = cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(comm), r), CDDP_E_REMOTE,
                             "rank %d, which went first, failed: %.*s", r, WHY_BYTES, all + r * WHY_BYTES);
    return st;
}

static cddp_status begin(cddp_comm *comm, cddp_scope of, int *first, struct cdi_error *err)
{
    cddp_status st = cdi_comm_own("cddp_leader_first_begin", comm, err);
    int mine = 0;

    if (st != CDDP_OK)
        return st;
    if (comm == NULL || first == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_leader_first_begin: comm and first must not be NULL");
    if (of != CDDP_SCOPE_JOB && of != CDDP_SCOPE_NODE)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_leader_first_begin: %d is no cddp_scope", (int)of);
    st = cdi_comm_ops(comm)->health(cdi_comm_backend(comm), err); /* the first one asks nobody else */
    if (st != CDDP_OK)
        return st;
    if (of == CDDP_SCOPE_JOB)
        mine = cdi_comm_world(comm)->rank == 0;
    else
        st = lowest_of_node(comm, &mine, err);
    if (st == CDDP_OK && !mine)
        st = tell(comm, NULL, err);
    if (st == CDDP_OK)
        *first = mine;
    return st;
}

cddp_status cddp_leader_first_begin(cddp_comm *comm, cddp_scope of, int *first)
{
    struct cdi_error err;
    cddp_status st = begin(comm, of, first, &err);

    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

cddp_status cddp_leader_first_end(cddp_comm *comm, int first, const char *failure)
{
    struct cdi_error err;
    cddp_status st = cdi_comm_own("cddp_leader_first_end", comm, &err);

    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    if (comm == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_leader_first_end: comm must not be NULL");
    else if (first)
        st = tell(comm, failure, &err);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
