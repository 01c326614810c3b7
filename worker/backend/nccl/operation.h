/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueueing of operations: the functions of the same names in struct cdi_backend_ops. */
#ifndef CDI_NCCL_OPERATION_H
#define CDI_NCCL_OPERATION_H

#include "worker/backend/nccl/state/state.h"

cddp_status cdi_gpu_enqueue(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket, struct cdi_error *err);
cddp_status cdi_gpu_can_enqueue(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, size_t calls,
                                struct cdi_error *err);
cddp_status cdi_gpu_enqueue_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, uint64_t *ticket,
                                  struct cdi_error *err);

#endif
