/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer's plan of buckets, and how it changes between steps. */
#ifndef CDI_REDUCER_PLAN_H
#define CDI_REDUCER_PLAN_H

#include "worker/reducer/state/state.h"

/*
 * Assigns, at creation, each gradient to a bucket. unit: by parameter, as in cdi_bucket_caps. Returns CDDP_OK or
 * CDDP_E_NOMEM.
 */
cddp_status cdi_plan_create(cddp_ddp *d, const cddp_ddp_options *opt, const size_t *unit, struct cdi_error *err);
/* Records that gradient i is the next one in the first step. */
void cdi_plan_note_order(cddp_ddp *d, size_t i);
/*
 * Updates the plan between two steps. Rank 0 broadcasts its order while the second step runs; all ranks use it from the
 * third step on. Then, with CDDP_DDP_TUNE, each step uses a bucket size of the schedule, until all ranks have received
 * rank 0's choice. Sets the sticky error.
 */
cddp_status cdi_plan_update(cddp_ddp *d);
/*
 * Moves, at the start of a step with CDDP_DDP_SKIP_UNUSED, the buckets that no rank used in the previous step to the
 * end. Not earlier, since on a device the host waits for the previous step: by now the program has enqueued more work.
 * Sets the sticky error.
 */
cddp_status cdi_plan_sort_idle(cddp_ddp *d);
/* Starts the clock of a step that is measured: its first gradient is ready. */
void cdi_plan_trial_begin(cddp_ddp *d);
/* Returns CDDP_E_STATE while bucket sizes are still being tried: `function` needs the final buckets. */
cddp_status cdi_plan_check_final(const cddp_ddp *d, const char *function, struct cdi_error *err);

#endif
