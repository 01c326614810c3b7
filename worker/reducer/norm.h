/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of the gradients, and clipping. */
#ifndef CDI_REDUCER_NORM_H
#define CDI_REDUCER_NORM_H

#include "worker/reducer/state/state.h"

cddp_status cdi_norm_init(cddp_ddp *d, struct cdi_error *err);
void cdi_norm_release(cddp_ddp *d);
/*
 * Stores in d->norm the largest magnitude of all gradients; NaN counts as the largest. With an optimizer, after the
 * last bucket.
 */
cddp_status cdi_norm_largest(cddp_ddp *d, struct cdi_error *err);
/* Stores in d->norm the sum of the squares. */
cddp_status cdi_norm_measure(cddp_ddp *d, struct cdi_error *err);
/*
 * Clips by what cdi_norm_measure stored; gradients count `scale` times. On a device scale_at is where that factor is
 * when the work runs; NULL: it is `scale`.
 */
cddp_status cdi_norm_clip(cddp_ddp *d, double max_norm, double scale, const double *scale_at, struct cdi_error *err);

#endif
