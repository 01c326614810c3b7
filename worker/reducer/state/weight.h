/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of the mean (CDDP_DDP_WEIGHTED). The ranks exchange them when a step begins, before its first bucket: only a
 * rank that knows all weights can leave its gradients as they are where the weights are equal, which gives the bits of
 * the plain mean. Where they differ, each rank multiplies its gradients by its share, and the sum is the mean.
 */
#ifndef CDI_REDUCER_WEIGHT_H
#define CDI_REDUCER_WEIGHT_H

#include "worker/reducer/state/state.h"

cddp_status cdi_weight_init(cddp_ddp *d, struct cdi_error *err);
void cdi_weight_release(cddp_ddp *d);
/* Sends this rank's weight at the start of a step; trains: false in cddp_ddp_join. Sets the sticky error. */
cddp_status cdi_weight_begin(cddp_ddp *d, bool trains);
/* Waits for the weights of all ranks, once per step, before the first bucket starts. Sets the sticky error. */
cddp_status cdi_weight_await(cddp_ddp *d);
/* Multiplies bucket b by this rank's share, unless a copy of it does that. The weights are known. */
cddp_status cdi_weight_apply(cddp_ddp *d, size_t b, bool copied, struct cdi_error *err);
/* Sets *bad, on every rank that trains, if the sum of the weights is 0. The weights are known. */
void cdi_weight_check(const cddp_ddp *d, struct cdi_error *bad);
/* Forgets the weights of the step that has ended. */
void cdi_weight_next_step(cddp_ddp *d);

/* Returns true if this rank adds zeros to the means of this step, whatever its gradients are. */
static inline bool cdi_weight_is_none(const cddp_ddp *d)
{
    return d->shadow || (d->weight.all != NULL && d->weight.mine == 0);
}

/* Returns true if the sum of what the ranks send is the mean already. A hook and PowerSGD make means themselves. */
static inline bool cdi_weight_sums(const cddp_ddp *d)
{
    return d->weight.differ && d->hook.begin == NULL && d->powersgd == NULL;
}

#endif
