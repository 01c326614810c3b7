/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each rank sends when a step begins: its weight (weight.h), and with CDDP_DDP_JOIN whether it trains.
 */
#ifndef CDI_REDUCER_UNEVEN_H
#define CDI_REDUCER_UNEVEN_H

#include "worker/reducer/state/state.h"

cddp_status cdi_uneven_init(cddp_ddp *d, struct cdi_error *err);
void cdi_uneven_release(cddp_ddp *d);
/*
 * Sends this rank's weight at the start of a step, and writes into the arena that it trains (in cddp_ddp_join: that it
 * does not). Sets the sticky error.
 */
cddp_status cdi_uneven_begin(cddp_ddp *d, bool trains);
/* Counts the ranks that trained in the completed step. The host waits for it, unless it knows their weights. */
cddp_status cdi_uneven_count(cddp_ddp *d, int *active, struct cdi_error *err);
/*
 * Completes the means: with CDDP_DDP_JOIN_ACTIVE they become those over the ranks that trained; with
 * CDDP_DDP_JOIN_STRICT it is an error if some did not. Sets the sticky error.
 */
cddp_status cdi_uneven_complete(cddp_ddp *d);

#endif
