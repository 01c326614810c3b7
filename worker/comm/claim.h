/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process holds in the jobs that it joins: the claims of its ranks in their stores, and the agent's flight
 * page. One thread at a time claims and acquires; any thread releases.
 */
#ifndef CDI_COMM_CLAIM_H
#define CDI_COMM_CLAIM_H

#include "worker/comm/state.h"

/*
 * Claims c's rank in the store for this process, and sets the prefix of c's keys. Sets *is_old if the store is that of
 * a join which this process has left, and is about to end. CDDP_E_EXISTS: another process has claimed the rank, or this
 * one has joined already.
 */
cddp_status cdi_claim_rank(struct cddp_comm *c, bool *is_old, struct cdi_error *err);
/* Releases c's claim if this process holds it: the rank may be claimed again, under other keys. */
void cdi_claim_release(const struct cddp_comm *c);
/* Returns whether this process has left a job by cddp_finalize. */
bool cdi_claim_has_left(void);

/* Gives c the agent's flight page if no other communicator of this process has it, and a private page otherwise. */
cddp_status cdi_page_acquire(struct cddp_comm *c, struct cdi_error *err);
void cdi_page_release(struct cddp_comm *c);

#endif
