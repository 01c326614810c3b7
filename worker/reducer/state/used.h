/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parameters some rank used in this step, as far as this process knows it. unused.c fills the map; without
 * CDDP_DDP_FIND_UNUSED and CDDP_DDP_STATIC_GRAPH every parameter counts as used.
 */
#ifndef CDI_REDUCER_USED_H
#define CDI_REDUCER_USED_H

#include "worker/reducer/state/state.h"

/*
 * Returns true if the map of used parameters stays on the device in this step, so that the host does not know it. With
 * a static graph the host knows it after the first step.
 */
bool cdi_used_stays_on_device(const cddp_ddp *d);
/* Waits until the host has the map, if the host needs it and a gradient is missing on this rank. */
cddp_status cdi_used_await(cddp_ddp *d, struct cdi_error *err);
/* Returns true if gradient i must keep its old value, since no rank used it. */
bool cdi_used_nowhere(const cddp_ddp *d, size_t i);
/* Returns true if that holds for gradient i and for those of parameters that are tied to it. */
bool cdi_used_nowhere_tied(const cddp_ddp *d, size_t i);
/* Returns true if some rank used a gradient of bucket b in the completed step. All ranks get the same result. */
bool cdi_used_in_bucket(const cddp_ddp *d, size_t b);

#endif
