/* SPDX-License-Identifier: Apache-2.0 */
/* What a user says of an optimizer: checked, with defaults, and spread over the parameters. Pure. */
#include "worker/optim.h"

#include "common/cleanup.h"
#include "worker/sized.h"

#include <math.h>

static cddp_status invalid(struct cdi_error *err, const char *member, double value, const char *must)
{
    return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_options.%s is %g: it must be %s", member, value, must);
}

static cddp_status check_rule(const struct cdi_optim_rule *r, struct cdi_error *err)
{
    bool sgd = r->kind == CDDP_OPTIM_SGD;

    if (!(r->lr > 0) || !isfinite(r->lr))
        return invalid(err, "lr", r->lr, "above 0, and has no default");
    if (!(r->weight_decay >= 0) || !isfinite(r->weight_decay))
        return invalid(err, "weight_decay", r->weight_decay, "0 or more");
    if (!(r->momentum >= 0) || !isfinite(r->momentum) || (!sgd && r->momentum != 0))
        return invalid(err, "momentum", r->momentum, sgd ? "0 or more" : "0: only CDDP_OPTIM_SGD has it");
    if (!isfinite(r->dampening) || (!sgd && r->dampening != 0))
        return invalid(err, "dampening", r->dampening, sgd ? "a number" : "0: only CDDP_OPTIM_SGD has it");
    if (r->nesterov != 0 && (!(r->momentum > 0) || r->dampening != 0))
        return invalid(err, "nesterov", r->nesterov, "0 without momentum, and with dampening");
    if (!sgd && !(r->beta1 > 0 && r->beta1 < 1))
        return invalid(err, "beta1", r->beta1, "between 0 and 1");
    if (!sgd && !(r->beta2 > 0 && r->beta2 < 1))
        return invalid(err, "beta2", r->beta2, "between 0 and 1");
    if (!sgd && (!(r->eps > 0) || !isfinite(r->eps)))
        return invalid(err, "eps", r->eps, "above 0");
    return CDDP_OK;
}

cddp_status cdi_optim_make_rule(struct cdi_optim_rule *r, cddp_optim_options *opt, const cddp_optim_options *said,
                                struct cdi_error *err)
{
    cddp_status st;

    if (said == NULL)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_optim_create: opt must not be NULL, since kind and lr have no "
                        "default");
    st = cdi_sized_get(opt, sizeof *opt, said, "cddp_optim_options", err);
    if (st != CDDP_OK)
        return st;
    if ((opt->flags & ~(uint64_t)CDDP_OPTIM_SKIP_NONFINITE) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_options.flags has a bit that means nothing: %#llx",
                        (unsigned long long)opt->flags);
    if (opt->kind != CDDP_OPTIM_SGD && opt->kind != CDDP_OPTIM_ADAM && opt->kind != CDDP_OPTIM_ADAMW)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_optim_options.kind is %d: use CDDP_OPTIM_SGD, CDDP_OPTIM_ADAM or CDDP_OPTIM_ADAMW",
                        (int)opt->kind);
    *r = (struct cdi_optim_rule){.kind = opt->kind,
                                 .nesterov = opt->nesterov != 0,
                                 .lr = opt->lr,
                                 .weight_decay = opt->weight_decay,
                                 .momentum = opt->momentum,
                                 .dampening = opt->dampening,
                                 .beta1 = opt->beta1 != 0 ? opt->beta1 : 0.9,
                                 .beta2 = opt->beta2 != 0 ? opt->beta2 : 0.999,
                                 .eps = opt->eps != 0 ? opt->eps : 1e-8};
    return check_rule(r, err);
}

static cddp_status check_group(const cddp_optim_group *g, size_t k, size_t n_params, struct cdi_error *err)
{
    if (g->params == NULL && g->n_params > 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_options.groups[%zu]: n_params is %zu, but params is NULL", k,
                        g->n_params);
    if (g->n_params > n_params)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_optim_options.groups[%zu]: n_params is %zu, but the reducer has %zu parameters", k,
                        g->n_params, n_params);
    if (!(g->lr_factor >= 0) || !isfinite(g->lr_factor))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_options.groups[%zu].lr_factor is %g: it must be above 0", k,
                        g->lr_factor);
    if (!(g->weight_decay >= 0) || !isfinite(g->weight_decay))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_options.groups[%zu].weight_decay is %g: it must be 0 or more",
                        k, g->weight_decay);
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i] >= n_params)
            return cdi_fail(err, CDDP_E_INVALID,
                            "cddp_optim_options.groups[%zu]: there is no parameter %zu, only 0 to %zu", k, g->params[i],
                            n_params - 1);
    return CDDP_OK;
}

cddp_status cdi_optim_apply_groups(struct cdi_optim_own *own, const cddp_ddp *d, const cddp_optim_options *opt,
                                   struct cdi_error *err)
{
    CDI_AUTOFREE cddp_optim_group *groups = NULL;

    if (opt->groups == NULL && opt->n_groups > 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_options.n_groups is %zu, but groups is NULL", opt->n_groups);
    groups = cdi_sized_get_list(sizeof *groups, opt->groups, opt->n_groups, "cddp_optim_group", err);
    if (groups == NULL)
        return err->status;
    for (size_t k = 0; k < opt->n_groups; k++) {
        const cddp_optim_group *g = &groups[k];

        if (check_group(g, k, d->n_params, err) != CDDP_OK)
            return err->status;
        for (size_t i = 0; i < g->n_params; i++) {
            struct cdi_optim_own *to = &own[g->params[i]];

            if (to->lr_factor != 0) /* which tells who was given a group */
                return cdi_fail(err, CDDP_E_INVALID,
                                "cddp_optim_options.groups[%zu]: parameter %zu '%.200s' is in a group already", k,
                                g->params[i], d->params[g->params[i]].name);
            *to = (struct cdi_optim_own){g->lr_factor == 0 ? 1 : g->lr_factor, g->weight_decay};
        }
    }
    for (size_t i = 0; i < d->n_params; i++)
        if (own[i].lr_factor == 0)
            own[i] = (struct cdi_optim_own){1, opt->weight_decay};
    return CDDP_OK;
}
