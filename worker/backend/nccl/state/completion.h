/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion words: pinned memory into which the communication stream writes tickets, so that any thread sees how far
 * it has come without a call of the driver.
 */
#ifndef CDI_NCCL_COMPLETION_H
#define CDI_NCCL_COMPLETION_H

#include "worker/backend/nccl/device/ticket.h"
#include "worker/backend/nccl/state/state.h"

/* Allocates the words, and finds out whether the driver's streams can write. The context is current. */
cddp_status cdi_completion_create(struct cdi_backend *b, struct cdi_error *err);
void cdi_completion_destroy(struct cdi_backend *b);
/* Enqueue the write of a ticket on the stream. With `lock`. */
cddp_status cdi_completion_write_started(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);
cddp_status cdi_completion_write_done(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);
/*
 * Have a scale kernel, with a grid above 0, write the ticket as its last act. CUDA takes the kernel for done only
 * later: not for an operation that is followed by an event which is queried once the word is there.
 */
void cdi_completion_started_by_kernel(struct cdi_backend *b, uint64_t ticket, struct cdi_launch *scale);
void cdi_completion_done_by_kernel(struct cdi_backend *b, uint64_t ticket, struct cdi_launch *scale);
/* Waits, at most CDI_DRAIN_MS, for all that is on the stream. Returns whether it is done. One thread at a time. */
bool cdi_completion_drain(struct cdi_backend *b);

#endif
