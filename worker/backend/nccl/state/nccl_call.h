/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations as calls of NCCL, and the kernels that divide where a mean is not NCCL's. With `lock`; the calls also in
 * the call thread.
 */
#ifndef CDI_NCCL_NCCL_CALL_H
#define CDI_NCCL_NCCL_CALL_H

#include "worker/backend/nccl/state/state.h"

/* Returns CDDP_OK if the communicator can reduce this type, otherwise CDDP_E_UNSUPPORTED. Any thread. */
cddp_status cdi_gpu_check_reduction(struct cdi_backend *b, cddp_dtype dtype, cddp_redop op, struct cdi_error *err);
/* Makes NCCL's calls for the operations of b->call, as one group if there are several. b: the backend. */
ncclResult_t cdi_nccl_calls(void *b);

/* Has a kernel write the ticket into a completion word. */
typedef void cdi_write_fn(struct cdi_backend *b, uint64_t ticket, struct cdi_launch *scale);

/* Return whether a kernel divides, before or after NCCL's part of op. */
bool cdi_nccl_divides_before(const struct cdi_backend *b, const struct cdi_coll *op);
bool cdi_nccl_divides_after(const struct cdi_backend *b, const struct cdi_coll *op);
/*
 * Launch that kernel, if there is one. write: the kernel then writes the ticket (NULL: it does not).
 */
cddp_status cdi_nccl_divide_before(struct cdi_backend *b, struct cdi_coll *op, cdi_write_fn *write, uint64_t ticket,
                                   struct cdi_error *err);
cddp_status cdi_nccl_divide_after(struct cdi_backend *b, const struct cdi_coll *op, cdi_write_fn *write,
                                  uint64_t ticket, struct cdi_error *err);

#endif
