/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the user's options and step arguments, and applies groups to parameters. Pure. */
#include "worker/optim/optim.h"

#include "common/cleanup.h"
#include "worker/base/sized.h"

#include <math.h>
#include <string.h>

static cddp_status invalid(struct cdi_error *err, const char *member, double value, const char *must)
{
    return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_options.%s is %g: it must be %s", member, value, must);
}

#define DEFAULTS "; cddp_optim_defaults() fills in PyTorch's"

static cddp_status check_rule(const struct cdi_optim_rule *r, struct cdi_error *err)
{
    bool sgd = r->kind == CDDP_OPTIM_SGD;

    if (!(r->lr > 0) || !isfinite(r->lr))
        return invalid(err, "lr", r->lr,
                       "above 0" DEFAULTS ". For a schedule that begins with 0 use cddp_optim_set_lr()");
    if (!(r->weight_decay >= 0) || !isfinite(r->weight_decay))
        return invalid(err, "weight_decay", r->weight_decay, "0 or more");
    if (!(r->momentum >= 0) || !isfinite(r->momentum) || (!sgd && r->momentum != 0))
        return invalid(err, "momentum", r->momentum, sgd ? "0 or more" : "0: only CDDP_OPTIM_SGD has it");
    if (!isfinite(r->dampening) || (!sgd && r->dampening != 0))
        return invalid(err, "dampening", r->dampening, sgd ? "a number" : "0: only CDDP_OPTIM_SGD has it");
    if (r->nesterov != 0 && (!(r->momentum > 0) || r->dampening != 0))
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_optim_options.flags has CDDP_OPTIM_NESTEROV, which is for SGD with momentum and without "
                        "dampening");
    if (!sgd && !(r->beta1 >= 0 && r->beta1 < 1))
        return invalid(err, "beta1", r->beta1, "0 or more, and below 1");
    if (!sgd && !(r->beta2 > 0 && r->beta2 < 1))
        return invalid(err, "beta2", r->beta2, "above 0 and below 1" DEFAULTS);
    if (!sgd && (!(r->eps > 0) || !isfinite(r->eps)))
        return invalid(err, "eps", r->eps, "above 0" DEFAULTS);
    return CDDP_OK;
}

void cddp_optim_defaults(cddp_optim_options *opt, size_t size, cddp_optim_kind kind)
{
    bool adam = kind == CDDP_OPTIM_ADAM || kind == CDDP_OPTIM_ADAMW;
    const cddp_optim_options all = {.size = size,
                                    .kind = kind,
                                    .lr = 1e-3,
                                    .weight_decay = kind == CDDP_OPTIM_ADAMW ? 1e-2 : 0,
                                    .beta1 = adam ? 0.9 : 0,
                                    .beta2 = adam ? 0.999 : 0,
                                    .eps = adam ? 1e-8 : 0};

    if (opt == NULL || size < sizeof size)
        return;
    memset(opt, 0, size);
    memcpy(opt, &all, size < sizeof all ? size : sizeof all);
}

cddp_status cdi_optim_make_rule(struct cdi_optim_rule *r, cddp_optim_options *opt, const cddp_optim_options *given,
                                struct cdi_error *err)
{
    cddp_status st;

    if (given == NULL)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "cddp_optim_create: opt must not be NULL, since kind has no default; cddp_optim_defaults() fills "
            "in the rest");
    st = cdi_sized_get(opt, sizeof *opt, given, "cddp_optim_options", err);
    if (st != CDDP_OK)
        return st;
    if ((opt->flags & ~(uint32_t)CDDP_OPTIM_NESTEROV) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_options.flags has unknown bits: %#x", opt->flags);
    if (opt->kind != CDDP_OPTIM_SGD && opt->kind != CDDP_OPTIM_ADAM && opt->kind != CDDP_OPTIM_ADAMW)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_optim_options.kind is %d: use CDDP_OPTIM_SGD, CDDP_OPTIM_ADAM or CDDP_OPTIM_ADAMW",
                        (int)opt->kind);
    *r = (struct cdi_optim_rule){.kind = opt->kind,
                                 .nesterov = (opt->flags & CDDP_OPTIM_NESTEROV) != 0,
                                 .lr = opt->lr,
                                 .weight_decay = opt->weight_decay,
                                 .momentum = opt->momentum,
                                 .dampening = opt->dampening,
                                 .beta1 = opt->beta1,
                                 .beta2 = opt->beta2,
                                 .eps = opt->eps};
    return check_rule(r, err);
}

cddp_status cdi_optim_read_args(cddp_optim *o, const cddp_optim_step_args *given, struct cdi_error *err)
{
    cddp_optim_step_args args = {.size = sizeof args};
    cddp_status st = given != NULL ? cdi_sized_get(&args, sizeof args, given, "cddp_optim_step_args", err) : CDDP_OK;

    if (st != CDDP_OK)
        return st;
    if ((args.flags & ~(uint64_t)CDDP_OPTIM_SKIP_NONFINITE) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_step_args.flags has unknown bits: %#llx",
                        (unsigned long long)args.flags);
    if (!(args.lr >= 0) || !isfinite(args.lr))
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_optim_step_args.lr is %g: it must be above 0, or 0 for the one that is set", args.lr);
    if (!(args.grad_scale >= 0) || !isfinite(args.grad_scale))
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_optim_step_args.grad_scale is %g: it must be above 0, or 0 for the one that is set",
                        args.grad_scale);
    if (!(args.max_norm >= 0))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_step_args.max_norm is %g: it must be above 0, or 0 for none",
                        args.max_norm);
    o->now = o->rule;
    o->now.lr = args.lr != 0 ? args.lr : o->rule.lr;
    o->now.factor = o->rule.factor * (args.grad_scale != 0 ? args.grad_scale : o->grad_scale);
    o->own_lr = args.lr != 0;
    o->own_scale = args.grad_scale != 0;
    o->max_norm = args.max_norm;
    o->skip_nonfinite = (args.flags & CDDP_OPTIM_SKIP_NONFINITE) != 0;
    o->left_out = false;
    return CDDP_OK;
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
    if ((g->flags & ~(uint64_t)CDDP_OPTIM_GROUP_FROZEN) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_optim_options.groups[%zu].flags has unknown bits: %#llx", k,
                        (unsigned long long)g->flags);
    if ((!(g->lr_factor > 0) && g->flags == 0) || !(g->lr_factor >= 0) || !isfinite(g->lr_factor))
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_optim_options.groups[%zu].lr_factor is %g: it must be above 0; 1 is the optimizer's "
                        "learning rate, and CDDP_OPTIM_GROUP_FROZEN keeps parameters as they are",
                        k, g->lr_factor);
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

/* Checks that one update can stand for those of tied parameters. */
static cddp_status check_tied(const struct cdi_optim_own *own, const cddp_ddp *d, size_t i, struct cdi_error *err)
{
    size_t first = d->tied.first[i];
    const struct cdi_optim_own *a = &own[first], *b = &own[i];
    const char *what = a->lr_factor != b->lr_factor         ? "lr_factor"
                       : a->weight_decay != b->weight_decay ? "weight_decay"
                       : a->is_frozen != b->is_frozen       ? "flags"
                                                            : NULL;

    if (d->params[first].grad_dtype != d->params[i].grad_dtype)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_optim_create: parameters %zu '%.200s' and %zu '%.200s' are tied (the same data), but "
                        "their gradients have two types: give both the same grad_dtype",
                        first, d->params[first].name, i, d->params[i].name);
    if (what == NULL)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID,
                    "cddp_optim_options.groups: parameters %zu '%.200s' and %zu '%.200s' are tied (the same data) and "
                    "have one update: give both the same %s, in one group",
                    first, d->params[first].name, i, d->params[i].name, what);
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

            if (to->lr_factor != 0) /* it shows which parameters have a group */
                return cdi_fail(err, CDDP_E_INVALID,
                                "cddp_optim_options.groups[%zu]: parameter %zu '%.200s' is in a group already", k,
                                g->params[i], d->params[g->params[i]].name);
            *to = (struct cdi_optim_own){.lr_factor = g->flags == 0 ? g->lr_factor : 1,
                                         .weight_decay = g->weight_decay,
                                         .is_frozen = g->flags != 0};
        }
    }
    for (size_t i = 0; i < d->n_params; i++)
        if (own[i].lr_factor == 0)
            own[i] = (struct cdi_optim_own){.lr_factor = 1, .weight_decay = opt->weight_decay};
    for (size_t i = 0; i < d->n_params; i++)
        if (cdi_ddp_is_tied(d, i) && check_tied(own, d, i, err) != CDDP_OK)
            return err->status;
    return CDDP_OK;
}
