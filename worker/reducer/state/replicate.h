/* SPDX-License-Identifier: Apache-2.0 */
/* Replicates one rank's parameters or buffers to all ranks. */
#ifndef CDI_REDUCER_REPLICATE_H
#define CDI_REDUCER_REPLICATE_H

#include "worker/reducer/state/state.h"

/* Lists the parameters and buffers, and allocates the staging buffer for small ones. */
cddp_status cdi_replicate_init(cddp_ddp *d, const cddp_param *buffers, struct cdi_error *err);
void cdi_replicate_release(cddp_ddp *d);
/*
 * Copies rank root's n slices of d->slices to all ranks: a collective, without the lock. With wait it blocks until the
 * copies are complete, on a device, too; otherwise the compute stream waits for them.
 */
cddp_status cdi_replicate(cddp_ddp *d, const struct cdi_slice *s, size_t n, int root, bool wait, struct cdi_error *err);

#endif
