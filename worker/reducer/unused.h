/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients that are missing in a step. Without CDDP_DDP_FIND_UNUSED and CDDP_DDP_STATIC_GRAPH these functions do
 * nothing.
 */
#ifndef CDI_REDUCER_UNUSED_H
#define CDI_REDUCER_UNUSED_H

#include "worker/reducer/state/state.h"

cddp_status cdi_unused_init(cddp_ddp *d, struct cdi_error *err);
void cdi_unused_release(cddp_ddp *d);
/*
 * Records that the program reported parameter i as ready. Sets *now if its gradient is complete and is to be counted.
 * Sets the sticky error on misuse.
 */
cddp_status cdi_unused_on_ready(cddp_ddp *d, size_t i, bool *now);
/*
 * Fills missing gradients with zeros at the end of a step, and exchanges which gradients each rank used. Sets the
 * sticky error.
 */
cddp_status cdi_unused_fill(cddp_ddp *d);
/* Gives gradients that no rank used their old values, after the reduction. Sets the sticky error. */
cddp_status cdi_unused_restore(cddp_ddp *d);
/* Writes zeros into the arena as gradient i. */
cddp_status cdi_unused_zero(cddp_ddp *d, size_t i, struct cdi_error *err);
/* Begins a step: nothing is missing yet. */
void cdi_unused_next_step(cddp_ddp *d);
/*
 * Takes the frozen gradients out of a step that begins: zeros are sent in their place, and their buckets are skipped if
 * they hold nothing else. Sets the sticky error.
 */
cddp_status cdi_frozen_begin(cddp_ddp *d);

#endif
