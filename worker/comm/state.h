/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator from inside: for the files that make, split and destroy one. All others use comm.h. */
#ifndef CDI_COMM_STATE_H
#define CDI_COMM_STATE_H

#include "worker/base/owner.h"
#include "worker/comm/comm.h"
#include "worker/comm/create_group.h"
#include "worker/comm/launch_env.h"
#include "worker/comm/memory.h"
#include "worker/store/client.h"
#include "worker/store/host.h"

#include <stdatomic.h>

#define CDI_GOODBYE_MS 2000 /* for the store to take note that this rank leaves */

struct cddp_comm {
    struct cdi_owner owner;
    struct cdi_owner user; /* the same, until it is over; then nobody, so that every call is refused at no cost */
    struct cdi_world world;
    struct cdi_node_layout place; /* as users see it; world has it as the backend needs it */
    enum cdi_store_by by;         /* who hosts the store */
    struct cdi_store_host *host;  /* where this rank does */
    unsigned claim;               /* of its rank there, among this process's; 0: none yet */
    bool has_page;                /* it writes the agent's page */
    bool given;                   /* rank, size and store come from the program, and not from the environment */
    const struct cdi_backend_ops *ops;
    struct cdi_backend *backend;
    struct cdi_on_finalize on_finalize;
    struct cdi_memory memory;
    _Atomic int n_aborting; /* threads in cddp_abort */
    /* Of a part, also of a part's part: what cddp_init made, which has all but world, ops, backend and on_finalize. */
    struct cddp_comm *whole;
    int *ranks;                /* of a part: world.ranks */
    struct cdi_flight *record; /* where operations are noted if not on the agent's page: world.record */
    uint64_t id;               /* the same on all its ranks, and another one in each communicator of the job */
    uint32_t n_splits;
    struct cdi_group_calls groups;
    struct cddp_comm *parts; /* of the whole: those that were not finalized; of a part: `next` is the next one */
    struct cddp_comm *next;
    int n_children; /* reducers and, of the whole, parts, which use its memory */
    bool over;      /* this rank has left it: by cddp_finalize, or with its whole */
    bool finalized; /* and the program does not know it any more */
    struct cdi_grave *graves;
    struct cdi_error result; /* of leaving it */
};

#endif
