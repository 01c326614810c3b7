/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW with a warm-up and a cosine: on every rank, or divided among the ranks by libcddp. The bits are the same. */
#ifndef GPT_OPTIMIZER_H
#define GPT_OPTIMIZER_H

#include "engine.h"

#include <cddp/experimental/fsdp.h>

struct optimizer {
    const struct options *opt;
    struct engine *engine;
    cddp_ddp *ddp;       /* NULL with --fsdp */
    cddp_optim *divided; /* with --divided or --fsdp; else NULL, and the averages are the engine's */
};

/* Returns the learning rate of step number `step`, from 0. */
double optimizer_lr(const struct options *opt, int64_t step);

/*
 * For the one of ddp and fsdp that is not NULL. A collective. Errors are in cddp_last_error(), but for CDDP_E_NOMEM.
 * Release it in any case.
 */
cddp_status optimizer_create(struct optimizer *o, const struct options *opt, struct engine *engine, cddp_ddp *ddp,
                             cddp_fsdp *fsdp);
void optimizer_release(struct optimizer *o);

/* Before step number `step`, and outside of a graph: sets its learning rate. */
cddp_status optimizer_begin(struct optimizer *o, int64_t step);
/*
 * Ends step number `step`, whose gradients have all been reported: waits until they are means over all ranks, clips
 * them, and updates the weights. *norm is that of the gradients before, NAN with --fsdp; with NULL a GPU's host waits
 * for nothing, and the step may be captured. A collective. apart: none was reported, and each rank takes its own
 * gradients; only on the CPU, and not with a divided optimizer.
 */
cddp_status optimizer_step(struct optimizer *o, int64_t step, bool apart, double *norm);

#endif
