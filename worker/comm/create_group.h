/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Some ranks of a communicator meet in the job's store, and nobody else takes part. What they say there, under names
 * that begin with a number made of the communicator, the tag and the list, and how many meetings of it have ended:
 *   here/I = "node cpu" of member I   n = how many are there
 *   end = "all " and all of these, by the last one; or "status blamed message", by the first one that gives up
 * The first `end` stays, so all members go on, or none. Then the next meeting of that list is open. And, by
 * communicator, tag and rank: which list that rank is waiting with now, so that members whose lists differ find out.
 *   left = how many members have read that all have come; the last of them deletes these keys
 */
#ifndef CDI_COMM_CREATE_GROUP_H
#define CDI_COMM_CREATE_GROUP_H

#include "worker/backend/backend.h"

#include <pthread.h>

/* How many meetings of which list this process knows to have ended; of one communicator. Cleared memory is an empty
 * one. */
struct cdi_group_calls {
    struct cdi_group_call *first;
};
void cdi_group_calls_release(struct cdi_group_calls *calls);

struct cdi_group {
    cddp_store *store;
    const struct cdi_flight *flight; /* ends the wait, too */
    struct cdi_watch watch;          /* and so does this */
    const char *prefix;              /* of keys of the job */
    struct cdi_group_calls *calls;
    uint64_t comm;     /* the communicator's number, the same on all its ranks */
    const int *ranks;  /* n members, as ranks of comm */
    const int *of_job; /* the same as ranks of the job */
    int n, self;       /* self: which of them is this rank */
    int tag;
    int node; /* of this rank */
    bool on_cpu;
    int64_t timeout_ms;
};

/*
 * Wait for all members. nodes[n] gets theirs, and *id a number that no other group of the job has. CDDP_OK;
 * CDDP_E_TIMEOUT (names who did not come); CDDP_E_PEER and CDDP_E_ABORTED (what `watch` says); CDDP_E_MISMATCH (another
 * member gives another list, or wants another backend); what a member has given up for; what the agent or the store
 * says. Any thread; blocks.
 */
cddp_status cdi_group_meet(const struct cdi_group *g, int *nodes, uint64_t *id, struct cdi_error *err);

#endif
