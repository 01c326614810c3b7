/* SPDX-License-Identifier: Apache-2.0 */
/* Issuing: operations that have a ticket go to NCCL, and the communication stream. All with `lock`. */
#ifndef CDI_NCCL_ISSUE_H
#define CDI_NCCL_ISSUE_H

#include "worker/backend/nccl/state/state.h"

/* Completes the pending group, which then may begin: with the operation that a thread enqueues last, or waits for. */
void cdi_issue_close(struct cdi_backend *b);
/* Calls NCCL for every ticket that may begin, if the communicator is healthy. */
cddp_status cdi_issue_start(struct cdi_backend *b, struct cdi_error *err);
/*
 * Enclose a launch of NCCL, from the call until NCCL has put it on the stream: one at a time for each GPU, over all
 * communicators of the process. Take waits, and returns the sticky error that ends the wait. It needs nothing of the
 * other communicator, whose threads give its turn back, or have it fail.
 */
cddp_status cdi_issue_take_turn(struct cdi_backend *b, struct cdi_error *err);
void cdi_issue_give_turn(const struct cdi_backend *b);
/* Starts operations that may begin, if NCCL takes them at once. */
void cdi_issue_try_start(struct cdi_backend *b);
/*
 * Completes the operations that were begun last, to which NCCL has returned r ("in progress": polls until it is done):
 * enqueues their ends, after which the stream takes other work. Does nothing where nothing was begun. Polls like
 * cdi_nccl_wait_ready.
 */
cddp_status cdi_nccl_poll_async(struct cdi_backend *b, ncclResult_t r, struct cdi_error *err);
/* Puts every operation that may begin on the stream; NCCL then takes the next call. */
cddp_status cdi_issue_flush(struct cdi_backend *b, struct cdi_error *err);

#endif
