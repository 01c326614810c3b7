/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's step, and clearing, on the communication stream; its numbers, on one of the program's. */
#include "worker/backend/nccl/element_ops.h"
#include "worker/backend/nccl/state/failure.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/wait.h"

cddp_status cdi_gpu_clear(struct cdi_backend *b, void *p, size_t bytes, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_element_begin(b, err);

    if (st != CDDP_OK)
        return st;
    if (bytes > 0)
        st = cdi_cuda_check(cdi_cuda.set_bytes(cdi_device_ptr(p), 0, bytes, cdi_device_stream(&b->device)),
                            "clearing memory", err);
    cdi_gpu_element_end(b);
    return st;
}

cddp_status cdi_gpu_store(struct cdi_backend *b, double *to, const double *value, size_t n, void *stream,
                          struct cdi_error *err)
{
    cddp_status st = cdi_gpu_health(b, err);
    struct cdi_launch l;

    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter_briefly(&b->device, err);
    if (st == CDDP_OK)
        st = cdi_gpu_refuse_capture(stream, err);
    cdi_launch_store(&l, to, value, n);
    if (st == CDDP_OK)
        st = cdi_device_launch_on(&b->device, stream, &l, err);
    cdi_device_leave_briefly(&b->device);
    return cdi_gpu_call_status(b, st, NULL, err);
}

cddp_status cdi_gpu_optim_count(struct cdi_backend *b, const struct cdi_optim_step *s, struct cdi_error *err)
{
    return CDI_GPU_LAUNCHES(b, s->n_rows, cdi_launch_count(&launch, s, at), err);
}

cddp_status cdi_gpu_optim_update(struct cdi_backend *b, const struct cdi_optim_step *s,
                                 const struct cdi_optim_piece *piece, size_t n, struct cdi_error *err)
{
    return CDI_GPU_LAUNCHES(b, n, cdi_launch_update(&launch, b->device.n_sm, s, piece + at, n - at), err);
}
