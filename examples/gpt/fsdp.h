/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With --fsdp: the model is divided among the ranks, by the units of model.h. A rank has a layer's whole weights only
 * while its pass is there.
 */
#ifndef GPT_FSDP_H
#define GPT_FSDP_H

#include "engine.h"

#include <cddp/experimental/fsdp.h>
#include <stdio.h>

struct fsdp {
    cddp_comm *job;              /* all ranks */
    cddp_comm *group, *replicas; /* with --hsdp: this node's ranks, and those of other nodes with the same shares */
    struct engine *engine;
    cddp_fsdp *f; /* NULL: the model is not divided */
};

/*
 * Divides the engine's model, whose weights begin as those of gpt_init(). passes: of a step, whose gradients add up.
 * From here the engine's passes gather each unit when they come to it. A collective, as all functions here are that
 * take a pass. Errors are in cddp_last_error(), but for CDDP_E_SYSTEM. Release it in any case.
 */
cddp_status fsdp_create(struct fsdp *s, cddp_comm *comm, struct engine *e, size_t passes);
void fsdp_release(struct fsdp *s);

/* For the last backward pass of a step: what reports its gradients. */
struct gpt_ready fsdp_ready(struct fsdp *s);

/* Writes all weights in the order of the model, a unit at a time; to is NULL on all ranks but one. *good: it could. */
cddp_status fsdp_write(struct fsdp *s, FILE *to, bool *good);

#endif
