/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CDDP_NAN_CHECK in captured steps. A launch of a graph makes no call of libcddp, so the graph itself reduces the
 * finding, tells the host by a kernel that writes into pinned memory, and with "error" keeps the optimizer from the
 * step. The host reads it in cddp_ddp_replay_status. With the lock held.
 */
#ifndef CDI_REDUCER_NAN_REPLAY_H
#define CDI_REDUCER_NAN_REPLAY_H

#include "worker/reducer/state/state.h"

/* On a device: allocates what graphs write. fatal: a finding is an error ("error"). CDDP_OK, CDDP_E_NOMEM, errors of
 * the device. */
cddp_status cdi_nan_replay_init(cddp_ddp *d, bool fatal, struct cdi_error *err);
/* Logs a finding that was not reported yet, and frees everything. No graph is launched any more. */
void cdi_nan_replay_release(cddp_ddp *d);
/* Returns where kernels of a captured step note what they find. */
uint64_t *cdi_nan_replay_word(const cddp_ddp *d);
/* Adds to the graph, after all buckets of a captured step, the exchange and the report. Without the check: nothing. */
cddp_status cdi_nan_replay_send(cddp_ddp *d, struct cdi_error *err);
/* Returns what the optimizer of a captured step reads: not 0 if it must leave the step out. NULL: nothing. */
const uint64_t *cdi_nan_replay_bad(const cddp_ddp *d);
/*
 * Reads a report of launches: with "error" CDDP_E_NONFINITE, with "warn" the rank that brought the number logs it.
 * CDDP_OK otherwise. Waits for nothing.
 */
cddp_status cdi_nan_replay_take(cddp_ddp *d, struct cdi_error *err);

#endif
