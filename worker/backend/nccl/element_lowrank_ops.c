/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of PowerSGD as kernels on the communication stream. */
#include "worker/backend/nccl/element_ops.h"

cddp_status cdi_gpu_lowrank(struct cdi_backend *b, enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m,
                            size_t n, double epsilon, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_element_begin(b, err);

    if (st != CDDP_OK)
        return st;
    while (n > 0 && st == CDDP_OK) {
        struct cdi_launch l;
        size_t taken = cdi_launch_lowrank(&l, b->device.n_sm, step, m, n, epsilon);

        st = cdi_device_launch(&b->device, &l, err);
        m += taken;
        n -= taken;
    }
    cdi_gpu_element_end(b);
    return st;
}
