/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process has of the jobs that it joins: the claims of its ranks in their stores, and the agent's page.
 * cddp_init is called by one thread at a time; the others by any.
 */
#ifndef CDI_COMM_CLAIM_H
#define CDI_COMM_CLAIM_H

#include "worker/comm/state.h"

/*
 * Claims this process's rank in the store, and sets the prefix of c's keys. *is_old: the store is that of a job which
 * this process has left, and is about to end. CDDP_E_EXISTS: another process has the rank, or this one has joined.
 */
cddp_status cdi_claim_rank(struct cddp_comm *c, bool *is_old, struct cdi_error *err);
/* Ends c's claim, if it has one and is of this process: its rank may be claimed again, under other keys. */
void cdi_claim_release(const struct cddp_comm *c);
/* Returns whether this process has left a job by cddp_finalize. */
bool cdi_claim_has_left(void);

/* Gives c the agent's page if no other communicator of this process has it, and a record of its own otherwise. */
cddp_status cdi_page_acquire(struct cddp_comm *c, struct cdi_error *err);
void cdi_page_release(struct cddp_comm *c);

#endif
