/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that become part of a CUDA graph. On a host these functions do nothing. */
#ifndef CDI_REDUCER_CAPTURED_H
#define CDI_REDUCER_CAPTURED_H

#include "worker/reducer/state/state.h"

/*
 * Decides, with the lock held, whether this call, with this stream, becomes part of a graph. If *captured is set, the
 * thread's calls of the backend become part of the graph until cdi_captured_leave. Rejects what cannot be captured,
 * which breaks neither the capture nor the reducer. always: asks also in the middle of a step that is not captured,
 * which costs a call of the driver.
 */
cddp_status cdi_captured_enter(cddp_ddp *d, void *stream, bool always, bool *captured, struct cdi_error *err);
/*
 * Ends what cdi_captured_enter began. st is the result of the calls in between, and *err is its error. An error is the
 * capture's, unless the backend has failed.
 */
cddp_status cdi_captured_leave(cddp_ddp *d, void *stream, cddp_status st, struct cdi_error *err);
/* Forgets the captured step: it is complete, and all of it is in the graph. */
void cdi_captured_forget(cddp_ddp *d);
/* Returns CDDP_E_UNSUPPORTED, with the lock held, if the compute stream captures a graph. Breaks nothing. */
cddp_status cdi_captured_refuse(cddp_ddp *d, const char *function, struct cdi_error *err);

#endif
