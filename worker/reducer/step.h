/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a step. With the lock held, but for cdi_step_finish. */
#ifndef CDI_REDUCER_STEP_H
#define CDI_REDUCER_STEP_H

#include "worker/reducer/state/state.h"

/*
 * Ends the input of a step: fills in the gradients that may be missing, and rejects a step with any other missing. Sets
 * the sticky error.
 */
cddp_status cdi_step_close(cddp_ddp *d);
/*
 * Waits for what the ranks have found out about the step's numbers, after cdi_step_close: sets *bad if they are bad,
 * on every rank alike; its status is CDDP_OK otherwise. Sets the sticky error.
 */
cddp_status cdi_step_check(cddp_ddp *d, struct cdi_error *bad);
/*
 * Ends a step, without the lock: cdi_step_close, cdi_step_check, then `complete` with the lock held, which brings the
 * means to where they belong, then cdi_step_next. Bad numbers do not keep the step from its end. Sets the thread's last
 * error.
 */
cddp_status cdi_step_finish(cddp_ddp *d, cddp_status (*complete)(cddp_ddp *d, void *arg), void *arg);
/*
 * Ends the step if the compute stream captures a graph: `complete` enqueues its end there, and the reducer forgets the
 * step. If *captured is set, or the call fails, nothing is left to do. Without the lock. Sets the thread's last error.
 */
cddp_status cdi_step_finish_captured(cddp_ddp *d, cddp_status (*complete)(cddp_ddp *d, void *arg), void *arg,
                                     bool *captured);
/* Rejects, in a capture, a step with missing gradients. Breaks nothing. */
cddp_status cdi_step_close_captured(const cddp_ddp *d, struct cdi_error *err);
/* Waits until the means are in the arena (on a device: enqueues it); every bucket was launched. Sets the sticky error.
 */
cddp_status cdi_step_complete(cddp_ddp *d);
/*
 * Waits, with an optimizer or divided parameters, until this rank's share of the means is in the arena, except for what
 * a bucket's own ticket covers. Buckets that were not sent by reduce-scatter are there as a whole. Sets the sticky
 * error.
 */
cddp_status cdi_step_complete_share(cddp_ddp *d);
/* Begins the next step. Sets the sticky error. */
cddp_status cdi_step_next(cddp_ddp *d);

#endif
