/* SPDX-License-Identifier: Apache-2.0 */
/* Communication hooks: user functions that replace a bucket's all-reduce. */
#ifndef CDI_REDUCER_HOOK_H
#define CDI_REDUCER_HOOK_H

#include "worker/reducer/state/state.h"

/* Initializes the reducer's lock, which a hook's thread may already hold. */
void cdi_hook_init_lock(cddp_ddp *d);
/*
 * Calls the hook for a complete bucket, in place of its all-reduce; the hook must not wait for a peer. *ticket is 0 if
 * there is nothing to join. On a device the hook's work runs in its stream, after everything enqueued so far. Sets the
 * sticky error.
 */
cddp_status cdi_hook_begin(cddp_ddp *d, size_t bucket, uint64_t *ticket);
/*
 * Calls the hook's end after the bucket was reduced (on a device: enqueued), once per step. Does nothing without a
 * hook. Sets the sticky error.
 */
cddp_status cdi_hook_end(cddp_ddp *d, size_t bucket);

#endif
