/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers some ranks of a communicator through the job's store, without the other ranks. The keys of one call begin
 * with a number made of the communicator, the tag and the list, and with the number of calls for that list that have
 * ended before:
 *   here/I = "node cpu" of member I
 *   n      = the number of members that are there
 *   end    = "all " and all of these, set by the last member; or "status blamed message", by the first that gives up
 *   left   = the number of members that have read a good `end`; the last one deletes these keys
 * The first `end` counts, so all members succeed, or none. The next call for that list has new keys. Another key, by
 * communicator, tag and rank, holds the list with which that rank is waiting, so that members detect different lists.
 */
#ifndef CDI_COMM_CREATE_GROUP_H
#define CDI_COMM_CREATE_GROUP_H

#include "worker/backend/backend.h"

#include <pthread.h>

/* The calls of one communicator, by list, that this process knows to have ended. Zeroed memory holds none. */
struct cdi_group_calls {
    struct cdi_group_call *first;
};
void cdi_group_calls_release(struct cdi_group_calls *calls);

struct cdi_group {
    cddp_store *store;
    const struct cdi_flight *flight; /* ends the wait, too */
    struct cdi_watch watch;          /* so does this */
    const char *prefix;              /* of keys of the job */
    struct cdi_group_calls *calls;
    uint64_t comm;     /* the communicator's number, the same on all its ranks */
    const int *ranks;  /* n members, as ranks of comm */
    const int *of_job; /* the same as ranks of the job */
    int n, self;       /* self: the index of this rank */
    int tag;
    int node; /* of this rank */
    bool on_cpu;
    int64_t timeout_ms;
};

/*
 * Waits for all members. Sets nodes[n] to their nodes, and *id to a number that no other group of the job has. Returns
 * CDDP_OK; CDDP_E_TIMEOUT (the message names missing members); CDDP_E_PEER or CDDP_E_ABORTED (from `watch`);
 * CDDP_E_MISMATCH (a member gives another list, or wants another backend); the error of a member that gave up; or an
 * error of the agent or the store. Any thread; blocks.
 */
cddp_status cdi_group_gather(const struct cdi_group *g, int *nodes, uint64_t *id, struct cdi_error *err);

#endif
