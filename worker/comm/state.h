/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator from inside: for the files that make, split and destroy one. All others use comm.h. */
#ifndef CDI_COMM_STATE_H
#define CDI_COMM_STATE_H

#include "worker/base/owner.h"
#include "worker/comm/comm.h"
#include "worker/comm/create_group.h"
#include "worker/comm/launch_env.h"
#include "worker/comm/memory.h"
#include "worker/comm/stop.h"
#include "worker/store/client.h"
#include "worker/store/host.h"

#include <stdatomic.h>

struct cddp_comm {
    struct cdi_owner owner;
    struct cdi_owner user; /* the same until it is over, then no process: every call is rejected at no cost */
    struct cdi_world world;
    struct cdi_node_layout place; /* for users; world has it as the backend needs it */
    enum cdi_store_by by;         /* who hosts the store */
    struct cdi_store_host *host;  /* if this rank does; otherwise NULL */
    unsigned claim;               /* of its rank there, among this process's; 0: none yet */
    bool has_page;                /* it writes the agent's flight page */
    bool given;                   /* the program has set rank, size and store, not the environment */
    const struct cdi_backend_ops *ops;
    struct cdi_backend *backend;
    struct cdi_on_finalize on_finalize;
    struct cdi_memory memory;
    struct cdi_stop stop;
    _Atomic int n_aborting; /* threads in cddp_abort */
    /*
     * For a part, also for a part of a part: the communicator of cddp_init, which has all but world, ops, backend and
     * on_finalize. NULL for that one.
     */
    struct cddp_comm *whole;
    int *ranks;                /* of a part: world.ranks */
    struct cdi_flight *record; /* where operations are noted if not on the agent's page: world.record */
    uint64_t id;               /* equal on all its ranks, and different in each communicator of the job */
    uint32_t n_splits;
    uint32_t n_models; /* that were created */
    struct cdi_group_calls groups;
    _Atomic uint64_t step;         /* for cddp_log, plus 1; 0: none */
    _Atomic(const void *) stepper; /* the reducer that sets it; NULL: none */
    struct cddp_comm *parts;       /* of the whole: those that were not finalized, linked by `next` */
    struct cddp_comm *next;
    int n_children;    /* reducers and, of the whole, parts, which use its memory */
    _Atomic bool over; /* this rank has left it: by cddp_finalize, or with the whole */
    bool finalized;    /* by the program, which may not use it any more */
    struct cdi_grave *graves;
    bool graves_open;        /* later graves are freed at once */
    struct cdi_error result; /* what cddp_finalize returns */
};

#endif
