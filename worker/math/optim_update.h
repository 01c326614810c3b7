/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of one optimizer step, element by element: SGD, Adam and AdamW as PyTorch 2.13 defines them
 * (torch.optim.SGD, Adam, AdamW; one tensor at a time). Pure; any thread. Scalars are computed in double and rounded
 * once to the type of the elements. Nothing is fused or reordered, so the result depends neither on how a caller cuts
 * `count` nor on the machine.
 */
#ifndef CDI_MATH_OPTIM_UPDATE_H
#define CDI_MATH_OPTIM_UPDATE_H

#include <cddp/cddp.h>

#define CDI_OPTIM_STATES 2 /* largest number of state arrays */

struct cdi_optim_rule {
    cddp_optim_kind kind;
    int nesterov;
    double lr, weight_decay, momentum, dampening, beta1, beta2, eps;
    double factor; /* gradients are multiplied by it first */
};

/* Returns how many numbers a rule keeps per element: SGD with momentum one; Adam and AdamW two averages. */
int cdi_optim_n_states(const struct cdi_optim_rule *r);

/*
 * Does step number `step` (the first is 1) of `count` parameters w with gradients g. All arrays are of float or of
 * double, and do not overlap. s[k] is state k, of which there are cdi_optim_n_states: zeros before the first step.
 */
void cdi_optim_update_f32(const struct cdi_optim_rule *r, uint64_t step, float *w, const float *g, float *const *s,
                          size_t count);
void cdi_optim_update_f64(const struct cdi_optim_rule *r, uint64_t step, double *w, const double *g, double *const *s,
                          size_t count);

#endif
