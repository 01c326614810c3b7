/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tied parameters with an optimizer: several parameters of one memory, each with its own gradient. The means of all are
 * added up in the place of the first one's gradient, of which each rank updates its share; the others have no share.
 */
#ifndef CDI_REDUCER_TIED_H
#define CDI_REDUCER_TIED_H

#include "worker/reducer/state/state.h"

/*
 * Adds the means of tied parameters to this rank's share of the first one's, once per step. All means have arrived, or
 * on a device are enqueued. Returns CDDP_OK, or the device's error.
 */
cddp_status cdi_tied_fold(cddp_ddp *d, struct cdi_error *err);

#endif
