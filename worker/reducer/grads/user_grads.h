/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients in the user's own memory. Without such gradients these functions do nothing. */
#ifndef CDI_USER_GRADS_H
#define CDI_USER_GRADS_H

#include "worker/reducer/state/state.h"

cddp_status cdi_user_grads_init(cddp_ddp *d, struct cdi_error *err);
void cdi_user_grads_release(cddp_ddp *d);
/* Returns true if all gradients of this rank are in such memory. */
bool cdi_user_grads_is_all(const cddp_ddp *d);
/*
 * Returns true if cdi_user_grads_gather multiplies bucket b by the factor of the mean, so that only the sum is left to
 * do. All ranks get the same result.
 */
bool cdi_user_grads_scales(const cddp_ddp *d, size_t b);
/* Lists the gradients of each bucket of a new plan. */
void cdi_user_grads_place(cddp_ddp *d);
/* Lists them anew after the set of gradients in such memory has changed. */
void cdi_user_grads_list(cddp_ddp *d);
/*
 * Copies, on a device, a bucket's gradients into the arena before it starts, in one launch.
 */
cddp_status cdi_user_grads_gather(cddp_ddp *d, size_t bucket, struct cdi_error *err);
/* Copies a bucket's means out of the arena, in one launch: those that some rank used and that were not copied yet. */
cddp_status cdi_user_grads_scatter(cddp_ddp *d, size_t bucket, struct cdi_error *err);

#endif
