/* SPDX-License-Identifier: Apache-2.0 */
/* Waits: of the host for operations, and of streams for one another. */
#ifndef CDI_NCCL_WAIT_H
#define CDI_NCCL_WAIT_H

#include "worker/backend/nccl/state/state.h"

/* The functions of the same names in struct cdi_backend_ops. */
cddp_status cdi_gpu_test(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);
cddp_status cdi_gpu_join(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);
cddp_status cdi_gpu_wait_stream(struct cdi_backend *b, void *stream, bool timed, struct cdi_error *err);
cddp_status cdi_gpu_stream_wait(struct cdi_backend *b, uint64_t ticket, void *stream, struct cdi_error *err);
/*
 * Rejects a stream that captures, where a call would run later, or again, without notice: CDDP_E_UNSUPPORTED. The query
 * ends no capture. The context is current.
 */
cddp_status cdi_gpu_refuse_capture(CUstream stream, struct cdi_error *err);
/* Waits until the event is reached; after a failure, until nothing of the communicator runs. Without `lock`. */
cddp_status cdi_gpu_await_event(struct cdi_backend *b, CUevent event, struct cdi_error *err);
/* Reduces one value of host memory over all ranks, and waits for it. */
cddp_status cdi_gpu_agree(struct cdi_backend *b, int32_t *value, cddp_redop op, struct cdi_error *err);

#endif
