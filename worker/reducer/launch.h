/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts gradients down and hands complete buckets to the backend, in the order of the plan, which is the same on all
 * ranks.
 */
#ifndef CDI_REDUCER_LAUNCH_H
#define CDI_REDUCER_LAUNCH_H

#include "worker/reducer/state/state.h"

/* Counts gradient i, which is claimed and in the arena, and launches what may be launched. Sets the sticky error. */
cddp_status cdi_launch_count_down(cddp_ddp *d, size_t i);
/* Launches idle bucket b out of turn; all of its gradients are in the arena. Sets the sticky error. */
cddp_status cdi_launch_late(cddp_ddp *d, size_t b);
/* Brings reduced bucket b into the form in which the program reads it: calls the hook's end, and decompresses. */
cddp_status cdi_launch_finish(cddp_ddp *d, size_t b, struct cdi_error *err);

#endif
