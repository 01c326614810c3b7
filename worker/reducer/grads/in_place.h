/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are reduced in the user's own memory. Without such gradients these functions do nothing. */
#ifndef CDI_REDUCER_IN_PLACE_H
#define CDI_REDUCER_IN_PLACE_H

#include "worker/reducer/state/state.h"

/* Finds the gradients that could be reduced in place, at creation, after cdi_user_grads_init and the plan. */
cddp_status cdi_in_place_init(cddp_ddp *d, struct cdi_error *err);
void cdi_in_place_release(cddp_ddp *d);
/* Chooses, at creation, the gradients to reduce in place, if all ranks' hashes are equal. */
void cdi_in_place_choose(cddp_ddp *d);
/* Reserves memory for the stretches of a new plan. */
cddp_status cdi_in_place_reserve(cddp_ddp *d, struct cdi_error *err);
/* Lists the stretches of a new plan. */
void cdi_in_place_list(cddp_ddp *d);
/*
 * Makes each bucket one stretch again: all gradients are copied into the arena from now on. A collective of all ranks,
 * between two steps, not only before the first one. what: as for cdi_comm_agree. alone: CDDP_OK, or this rank's error
 * so far (*err), which all ranks get: nothing is changed. Without gradients in place it returns `alone`. Returns
 * CDDP_OK, such an error, CDDP_E_NOMEM, or what a collective may return.
 */
cddp_status cdi_in_place_disable(cddp_ddp *d, const char *what, cddp_status alone, struct cdi_error *err);

#endif
