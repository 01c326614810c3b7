/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that only move bytes. */
#ifndef CDI_COLL_EXCHANGE_H
#define CDI_COLL_EXCHANGE_H

#include "worker/backend/cpu/coll/pairwise.h"

/* Runs broadcast, all_gather(v), all_to_all, send or recv. Errors as from cdi_cpu_comm_run. */
cddp_status cdi_run_exchange(struct cdi_run *run, struct cdi_error *err);

/*
 * Moves bytes from every rank to every rank, in pieces: rank r gives t->len[r] bytes, which is known to all; those of
 * this rank are at `mine`. Calls `take` for each stretch that arrives, this rank's own included. Takes at least one
 * step.
 */
cddp_status cdi_exchange(struct cdi_run *run, const void *mine, cdi_take_fn take, void *arg, struct cdi_error *err);

#endif
