/* SPDX-License-Identifier: Apache-2.0 */
/* Norms and clipping as kernels on the communication stream. */
#include "worker/backend/nccl/element_ops.h"

cddp_status cdi_gpu_tally(struct cdi_backend *b, const struct cdi_span *x, size_t n, bool largest, bool add,
                          double *out, struct cdi_error *err)
{
    struct cdi_launch l;
    cddp_status st = cdi_gpu_element_begin(b, err);

    if (st != CDDP_OK)
        return st;
    while (n > 0 && st == CDDP_OK) {
        size_t taken = cdi_launch_tally(&l, x, n, largest, b->partial);

        st = cdi_device_launch(&b->device, &l, err);
        x += taken;
        n -= taken;
    }
    cdi_launch_fold(&l, b->partial, largest, add, out);
    if (st == CDDP_OK)
        st = cdi_device_launch(&b->device, &l, err);
    cdi_gpu_element_end(b);
    return st;
}

cddp_status cdi_gpu_clip(struct cdi_backend *b, const struct cdi_span *x, size_t n, const struct cdi_clip *how,
                         const double *sum, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_element_begin(b, err);

    if (st != CDDP_OK)
        return st;
    while (n > 0 && st == CDDP_OK) {
        struct cdi_launch l;
        size_t taken = cdi_launch_clip(&l, b->device.n_sm, x, n, how, sum);

        st = cdi_device_launch(&b->device, &l, err);
        x += taken;
        n -= taken;
    }
    cdi_gpu_element_end(b);
    return st;
}
