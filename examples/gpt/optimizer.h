/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW with a warm-up and a cosine: on every rank, or divided among the ranks by libcddp. The bits are the same. */
#ifndef GPT_OPTIMIZER_H
#define GPT_OPTIMIZER_H

#include "model.h"
#include "options.h"

#define CDDP_EXPERIMENTAL 1
#include <cddp/experimental/optim.h>

struct optimizer {
    const struct options *opt;
    struct gpt *model;
    cddp_ddp *ddp;
    cddp_optim *divided; /* with --divided; else NULL, and the averages are here: */
    real *m, *v;
};

/* Returns the learning rate of step number `step`, from 0. */
double optimizer_lr(const struct options *opt, int64_t step);

/* A collective. Errors are in cddp_last_error(), but for CDDP_E_NOMEM. Release it in any case. */
cddp_status optimizer_create(struct optimizer *o, const struct options *opt, struct gpt *model, cddp_ddp *ddp);
void optimizer_release(struct optimizer *o);

/*
 * Ends step number `step`, whose gradients have all been reported: waits until they are means over all ranks, clips
 * them, and updates the weights. *norm is that of the gradients before. A collective.
 */
cddp_status optimizer_step(struct optimizer *o, int64_t step, double *norm);

#endif
