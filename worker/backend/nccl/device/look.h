/* SPDX-License-Identifier: Apache-2.0 */
/* Launches that look for numbers that are not finite in memory that nothing else touches, or in a cast. */
#ifndef CDI_NCCL_LOOK_H
#define CDI_NCCL_LOOK_H

#include "worker/backend/nccl/device/device.h"

/* Launches the kernel that only reads x: once for each CDI_KERNEL_FINDS parts. */
cddp_status cdi_look_find(const struct cdi_device *d, const void *x, cddp_dtype dtype, const struct cdi_look *look,
                          struct cdi_error *err);
/* Launches the cast that looks: once for each CDI_KERNEL_PARTS parts. */
cddp_status cdi_look_cast(const struct cdi_device *d, void *to, cddp_dtype to_type, const void *from,
                          cddp_dtype from_type, size_t count, float factor, const struct cdi_look *look,
                          struct cdi_error *err);

#endif
