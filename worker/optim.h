/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the optimizer: what optim.c, which takes steps, and optim_state.c, which saves and loads, share. */
#ifndef CDI_OPTIM_H
#define CDI_OPTIM_H

#include "worker/optim_shard.h"
#include "worker/optim_update.h"
#include "worker/reducer.h"

/* What a parameter's group says. */
struct cdi_optim_own {
    double lr_factor, weight_decay;
};

struct cddp_optim {
    cddp_ddp *ddp;
    struct cdi_optim_rule rule;
    struct cdi_optim_own *own; /* by parameter; the rule's weight_decay is that of those in no group */
    struct cdi_shard *shards;  /* this rank's, by parameter */
    struct cdi_shard_sizes sizes;
    void *state[CDI_OPTIM_STATES]; /* NULL: the rule has fewer, or this rank has no elements */
    float *master;                 /* NULL: no parameters of 16 bits */
    uint64_t *steps;               /* that each parameter has taken; the same on every rank */
    uint64_t *tickets;             /* by bucket: of the exchange of its parameters in this step */
};

/* Is there an optimizer (CDDP_E_INVALID), and its reducer still (CDDP_E_STATE)? Each public function's first question.
 */
cddp_status cdi_optim_check(const char *function, const cddp_optim *o, struct cdi_error *err);

#endif
