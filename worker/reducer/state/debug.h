/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings with CDDP_DEBUG=1, on the CPU. Otherwise these functions do nothing. */
#ifndef CDI_REDUCER_DEBUG_H
#define CDI_REDUCER_DEBUG_H

#include "worker/reducer/state/state.h"

cddp_status cdi_debug_init(cddp_ddp *d, struct cdi_error *err);
void cdi_debug_release(cddp_ddp *d);
/* Records that the program asked for the address of gradient i, in range. Called without the lock. */
void cdi_debug_asked(cddp_ddp *d, size_t i);
/* Looks at gradient i, which is in the arena and whose bucket was not launched yet. */
void cdi_debug_ready(cddp_ddp *d, size_t i);
/* Looks at all gradients of the step, before they are reduced. */
void cdi_debug_complete(cddp_ddp *d);
/* Looks at the means, where the program reads them. */
void cdi_debug_completed(cddp_ddp *d);

#endif
