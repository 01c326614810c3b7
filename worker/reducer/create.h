/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of a reducer, as other modules use it. */
#ifndef CDI_REDUCER_CREATE_H
#define CDI_REDUCER_CREATE_H

#include "worker/reducer/state/state.h"

/*
 * Does what cddp_ddp_create does. With `unit`, which numbers the unit of each parameter, ascending, parameters and
 * gradients are divided among the ranks: nothing is broadcast, `data` of the parameters is not used, and there is no
 * arena. The shares of parameters are zeros; the caller sets shares.grads, and frees that. Buckets then belong to one
 * unit each, and keep their order. cddp_ddp_destroy() frees it.
 */
cddp_status cdi_ddp_create(cddp_ddp **out, cddp_comm *comm, const cddp_param *params, size_t n, const size_t *unit,
                           const cddp_ddp_options *opt, struct cdi_error *err);

#endif
