/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <tgmath.h>

#define BETA1 0.9
#define EPS 1e-8
#define PI 3.14159265358979323846

double optimizer_lr(const struct options *opt, int64_t step)
{
    const double warmup = (double)opt->warmup, rest = (double)opt->steps - warmup, at = (double)step;
    const double part = rest > 0 ? fmin((at - warmup) / rest, 1) : 1;

    if (at < warmup)
        return opt->lr * (at + 1) / (warmup + 1);
    return opt->lr * (opt->min_lr + (1 - opt->min_lr) * 0.5 * (1 + cos(PI * part)));
}

/* Matrices decay; biases and layer norms do not. */
static bool decays(const struct gpt_param *p)
{
    return p->n_dims == 2;
}

static cddp_status create_divided(struct optimizer *o)
{
    size_t *plain = calloc(o->model->n_params, sizeof *plain), n = 0;
    cddp_optim_options options;
    cddp_optim_group group = {.size = sizeof group, .params = plain, .lr_factor = 1};
    cddp_status status;

    if (plain == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; i < o->model->n_params; i++)
        if (!decays(&o->model->params[i]))
            plain[n++] = i;
    group.n_params = n;
    cddp_optim_defaults(&options, sizeof options, CDDP_OPTIM_ADAMW);
    options.lr = o->opt->lr;
    options.weight_decay = o->opt->weight_decay;
    options.beta1 = BETA1;
    options.beta2 = o->opt->beta2;
    options.eps = EPS;
    options.groups = &group;
    options.n_groups = 1;
    status = cddp_optim_create(&o->divided, o->ddp, &options);
    free(plain);
    return status;
}

cddp_status optimizer_create(struct optimizer *o, const struct options *opt, struct gpt *model, cddp_ddp *ddp)
{
    *o = (struct optimizer){.opt = opt, .model = model, .ddp = ddp};
    if (opt->divided)
        return create_divided(o);
    o->m = calloc(model->n_weights, sizeof *o->m);
    o->v = calloc(model->n_weights, sizeof *o->v);
    return o->m != NULL && o->v != NULL ? CDDP_OK : CDDP_E_NOMEM;
}

void optimizer_release(struct optimizer *o)
{
    cddp_optim_destroy(o->divided);
    free(o->m);
    free(o->v);
    *o = (struct optimizer){0};
}

/* The arithmetic of PyTorch's AdamW, in its order; so is that of cddp_optim. `step` counts from 1. */
static void update(const struct optimizer *o, const struct gpt_param *p, double lr, double step)
{
    const size_t at = (size_t)(p->w - o->model->params[0].w);
    const double beta2 = o->opt->beta2, decay = decays(p) ? o->opt->weight_decay : 0;
    const real step_size = (real)(lr / (1 - pow(BETA1, step))), correction = (real)sqrt(1 - pow(beta2, step));
    const real take_m = (real)(1 - BETA1), take_v = (real)(1 - beta2), keep = (real)beta2, eps = (real)EPS;
    const real shrink = (real)(1 - lr * decay);
    const real *restrict g = p->g;
    real *restrict w = p->w, *restrict m = o->m + at, *restrict v = o->v + at;

    for (size_t i = 0; i < p->count; i++) {
        m[i] += take_m * (g[i] - m[i]);
        v[i] = v[i] * keep + take_v * g[i] * g[i];
        w[i] = w[i] * shrink - step_size * m[i] / (sqrt(v[i]) / correction + eps);
    }
}

cddp_status optimizer_step(struct optimizer *o, int64_t step, double *norm)
{
    const double lr = optimizer_lr(o->opt, step), clip = o->opt->clip > 0 ? o->opt->clip : INFINITY;
    const cddp_optim_step_args args = {.size = sizeof args, .lr = lr};
    cddp_status status = o->divided != NULL ? CDDP_OK : cddp_ddp_wait(o->ddp);

    if (status == CDDP_OK) /* of a divided optimizer this waits, too */
        status = cddp_ddp_clip_grad_norm(o->ddp, clip, 2, 1, norm);
    if (status != CDDP_OK)
        return status;
    if (o->divided != NULL)
        return cddp_optim_step(o->divided, &args);
    for (size_t i = 0; i < o->model->n_params; i++)
        update(o, &o->model->params[i], lr, (double)(step + 1));
    return CDDP_OK;
}
