/* SPDX-License-Identifier: Apache-2.0 */
/* Staging of host memory: operations on it go through blocks of pinned memory and of the device's. */
#ifndef CDI_NCCL_STAGE_H
#define CDI_NCCL_STAGE_H

#include "worker/backend/nccl/state/state.h"

/* Allocates blocks for small operations, which then need no memory from the driver. The context is current. */
cddp_status cdi_stage_open(struct cdi_backend *b, struct cdi_error *err);
/* Gets a block for an operation on host memory and copies the input into it; *out = NULL: no host memory. Without
 * `lock`. */
cddp_status cdi_stage_prepare(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_staging **out,
                              struct cdi_error *err);
/* Returns CDDP_E_INVALID: the operation must not be on host memory. */
cddp_status cdi_stage_reject(struct cdi_error *err);
/* Returns a block that holds nothing to the free list. With `lock`. */
void cdi_stage_release(struct cdi_backend *b, struct cdi_staging *s);
/* Appends the block to the list of results. With `lock`. */
void cdi_stage_add_result(struct cdi_backend *b, struct cdi_staging *s);
/* Finds out whether the operation is on host memory. */
cddp_status cdi_stage_is_needed(const struct cdi_backend *b, const struct cdi_coll *op, bool *is,
                                struct cdi_error *err);
/* Enqueue the copies before and after the operation, whose pointers become the device's. With `lock`. */
cddp_status cdi_stage_in(struct cdi_backend *b, struct cdi_ring_op *op, struct cdi_error *err);
cddp_status cdi_stage_out(struct cdi_backend *b, const struct cdi_ring_op *op, struct cdi_error *err);
/*
 * Copies the results up to ticket, which are there, to the callers. Returns blocks to be freed without `lock`, and only
 * where nothing is in flight. With `lock`.
 */
struct cdi_staging *cdi_stage_finish(struct cdi_backend *b, uint64_t ticket);
/* Does the same, but leaves blocks to be freed to the next join. */
void cdi_stage_deliver(struct cdi_backend *b, uint64_t ticket);
/* Frees a list. Waits for the work on the GPU, so never with `lock`. */
void cdi_stage_free(struct cdi_staging *list);

#endif
