/* SPDX-License-Identifier: Apache-2.0 */
/* The model's buffers. Without buffers these functions do nothing. */
#ifndef CDI_REDUCER_BUFFERS_H
#define CDI_REDUCER_BUFFERS_H

#include "worker/reducer/state/state.h"

/* Copies the root's buffers to all ranks before a step. Releases the lock meanwhile. Sets the sticky error. */
cddp_status cdi_buffers_sync(cddp_ddp *d, bool trains);
/* Checks, at the start of a step, that the buffers were sent if they must be. Sets the sticky error. */
cddp_status cdi_buffers_check(cddp_ddp *d);

#endif
