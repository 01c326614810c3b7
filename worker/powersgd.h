/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PowerSGD: matrices among the gradients are sent as a product of two narrow ones, and what that leaves out is added to
 * the gradients of the next step. T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient
 * Compression for Distributed Optimization", NeurIPS 2019 (arXiv:1905.13727), in the form that PyTorch's powerSGD_hook
 * has given it. Called with the reducer's lock held, as a part of it.
 */
#ifndef CDI_POWERSGD_H
#define CDI_POWERSGD_H

#include "worker/backend.h"

struct cdi_powersgd;

/* NULL-safe. */
void cdi_powersgd_destroy(struct cdi_powersgd *s);
/* Is this full bucket to be sent by cdi_powersgd_begin in this step? The same answer on every rank. */
bool cdi_powersgd_takes(const cddp_ddp *d, size_t bucket);
/* In place of its all-reduce; never waits for peers. Sticks. */
cddp_status cdi_powersgd_begin(cddp_ddp *d, size_t bucket);
/* All that was begun in this step has arrived: make means of it, by further collectives. Sticks. */
cddp_status cdi_powersgd_land(cddp_ddp *d);

#endif
