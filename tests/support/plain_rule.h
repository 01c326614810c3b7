/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of an optimizer with these options, on whole parameters. */
#ifndef PLAIN_RULE_H
#define PLAIN_RULE_H

#include "worker/math/optim_update.h"

/* factor: of the gradients. */
static inline struct cdi_optim_rule plain_rule(const cddp_optim_options *o, double factor)
{
    return (struct cdi_optim_rule){.kind = o->kind,
                                   .nesterov = (o->flags & CDDP_OPTIM_NESTEROV) != 0,
                                   .lr = o->lr,
                                   .weight_decay = o->weight_decay,
                                   .momentum = o->momentum,
                                   .dampening = o->dampening,
                                   .beta1 = o->beta1,
                                   .beta2 = o->beta2,
                                   .eps = o->eps,
                                   .factor = factor};
}

#endif
