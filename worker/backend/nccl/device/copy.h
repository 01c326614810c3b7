/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between host and GPU that no operation orders, and memory for a while. Any thread, with the context current.
 */
#ifndef CDI_NCCL_COPY_H
#define CDI_NCCL_COPY_H

#include "worker/backend/nccl/device/device.h"

/*
 * Copies `bytes` bytes between any two of host and device, and returns when they are there. Earlier work on the memory
 * has ended: the copy is not ordered after anything. Allocates nothing, and waits for nothing but other copies. Returns
 * CDDP_OK, or the errors of cdi_device_owns and of the driver.
 */
cddp_status cdi_device_copy(const struct cdi_device *d, void *to, const void *from, size_t bytes,
                            struct cdi_error *err);

/*
 * Get and release memory in the order of the side stream, without a wait for anything else. borrow returns NULL if less
 * than twice as much is free. Release it before the device is closed.
 */
void *cdi_device_borrow(const struct cdi_device *d, size_t bytes);
void cdi_device_give_back(const struct cdi_device *d, void *p);

#endif
