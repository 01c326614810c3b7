/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CDDP_NAN_CHECK: each rank looks for NaN and infinities in its own gradients before they are reduced. Without the
 * variable these functions do nothing.
 *
 * "warn" needs no agreement: the rank that brings the number logs it. With "error" all ranks must end the step alike,
 * so they reduce one word at its end, which holds the first bad gradient; only if there is one, they exchange who
 * brought what. The sum itself is not searched: that would be a second pass over all gradients, and a communication
 * hook or PowerSGD may hide the number there.
 *
 * On a device a kernel reads each bucket once more before it is reduced, at the speed of the memory (docs/gpu.md). The
 * word stays on the device until it is reduced. "error" then makes the host wait at the end of each step; "warn"
 * reports one step later, so that the host does not wait.
 *
 * A launch of a graph makes no call of libcddp. So in a captured step the graph itself reduces the finding, tells the
 * host by a kernel that writes into pinned memory, and with "error" keeps the optimizer from the step. The host reads
 * it in cddp_ddp_replay_status.
 */
#ifndef CDI_REDUCER_NAN_CHECK_H
#define CDI_REDUCER_NAN_CHECK_H

#include "worker/reducer/state/state.h"

enum cdi_nan_mode { CDI_NAN_OFF, CDI_NAN_WARN, CDI_NAN_ERROR };

/* Reads the variable. CDDP_OK, CDDP_E_INVALID, CDDP_E_NOMEM, errors of the device. */
cddp_status cdi_nan_init(cddp_ddp *d, struct cdi_error *err);
/* Logs what is still to be logged, if the last step is over, and frees memory of the backend. */
void cdi_nan_release(cddp_ddp *d);
/* Frees the rest, which operations in flight may use. */
void cdi_nan_free(cddp_ddp *d);
enum cdi_nan_mode cdi_nan_mode(const cddp_ddp *d);

/* On the host: looks at gradient i of this step, where it is reduced. Any thread, without the lock or with it. */
void cdi_nan_look(cddp_ddp *d, size_t i);

/*
 * On a device, with the lock held: enqueues a kernel that looks at the complete gradients of bucket b in the arena,
 * each once and only those that this rank has made.
 */
cddp_status cdi_nan_look_there(cddp_ddp *d, size_t b, struct cdi_error *err);
/* Enqueues, with the lock held and after all buckets, the reduction of the finding. Sets the sticky error. */
cddp_status cdi_nan_send(cddp_ddp *d);
/* Adds to the graph, with the lock held and after all buckets of a captured step, the exchange and the report. */
cddp_status cdi_nan_send_captured(cddp_ddp *d, struct cdi_error *err);
/* Returns what the optimizer of a captured step reads: not 0 if it must leave the step out. NULL: nothing. */
const uint64_t *cdi_nan_bad(const cddp_ddp *d);
/*
 * Ends the check of this step, with the lock held: sets *bad to CDDP_E_NONFINITE if there is a finding and the mode is
 * "error", on every rank alike. Waits for the ranks. Returns CDDP_OK, or the sticky error.
 */
cddp_status cdi_nan_verdict(cddp_ddp *d, struct cdi_error *bad);

#endif
