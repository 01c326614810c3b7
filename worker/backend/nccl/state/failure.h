/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of an operation, of the GPU, and of a deadline: each is the end of the communicator. */
#ifndef CDI_NCCL_FAILURE_H
#define CDI_NCCL_FAILURE_H

#include "worker/backend/nccl/state/state.h"

/* Sets the sticky error to err, with op in front of its message. Returns the sticky error's status. */
cddp_status cdi_gpu_fail_in(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err);
/*
 * Asks the driver whether the GPU works; a fault of it sets the sticky error. op: the operation of this thread (NULL:
 * the one that the GPU executes). Without `lock`, with the context entered or not.
 */
cddp_status cdi_gpu_check_device(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err);
/*
 * Returns the status of a call about op that has ended with st. The cause may be the program, or the GPU has failed;
 * then the communicator has, too. Without `lock`.
 */
cddp_status cdi_gpu_call_status(struct cdi_backend *b, cddp_status st, const struct cdi_coll *op,
                                struct cdi_error *err);
/*
 * Sets the sticky error: the operation has not ended in time. Waits for nothing: the progress thread adds the ranks
 * that are late to the error message, which is complete after cdi_gpu_health. With `lock` or without, without
 * `error_lock`.
 */
void cdi_gpu_timed_out(struct cdi_backend *b, const struct cdi_op_info *what);

#endif
