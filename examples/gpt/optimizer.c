/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer.h"

#include <math.h>
#include <stdlib.h>

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

static cddp_status create_divided(struct optimizer *o, cddp_fsdp *fsdp)
{
    size_t *plain = calloc(o->engine->model->n_params, sizeof *plain), n = 0;
    cddp_optim_options options;
    cddp_optim_group group = {.size = sizeof group, .params = plain, .lr_factor = 1};
    cddp_status status;

    if (plain == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; i < o->engine->model->n_params; i++)
        if (!engine_decays(&o->engine->model->params[i]))
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
    status = fsdp != NULL ? cddp_optim_create_sharded(&o->divided, fsdp, &options)
                          : cddp_optim_create(&o->divided, o->ddp, &options);
    free(plain);
    return status;
}

cddp_status optimizer_create(struct optimizer *o, const struct options *opt, struct engine *engine, cddp_ddp *ddp,
                             cddp_fsdp *fsdp)
{
    *o = (struct optimizer){.opt = opt, .engine = engine, .ddp = ddp};
    return opt->divided ? create_divided(o, fsdp) : CDDP_OK;
}

void optimizer_release(struct optimizer *o)
{
    cddp_optim_destroy(o->divided);
    *o = (struct optimizer){0};
}

cddp_status optimizer_begin(struct optimizer *o, int64_t step)
{
    return o->divided != NULL ? cddp_optim_set_lr(o->divided, optimizer_lr(o->opt, step)) : CDDP_OK;
}

/*
 * Clips this rank's own gradients, on the CPU. cddp_ddp_clip_grad_norm would take a part of each rank's, since they are
 * the same on all ranks otherwise.
 */
static void clip_apart(const struct gpt *model, double clip, double *norm)
{
    double sums[16] = {0}, sum = 0; /* side by side, which is faster than one after another */
    real scale;

    for (size_t i = 0; i < model->n_params; i++) {
        const struct gpt_param *p = &model->params[i];

        for (size_t j = 0; j < p->count; j += 16)
            for (size_t k = 0, n = p->count - j < 16 ? p->count - j : 16; k < n; k++)
                sums[k] += (double)p->g[j + k] * (double)p->g[j + k];
    }
    for (size_t k = 0; k < 16; k++)
        sum += sums[k];
    scale = (real)fmin(clip / (sqrt(sum) + 1e-6), 1);
    for (size_t i = 0; i < model->n_params && scale < 1; i++)
        for (size_t j = 0; j < model->params[i].count; j++)
            model->params[i].g[j] *= scale;
    if (norm != NULL)
        *norm = sqrt(sum);
}

/* One call clips and updates: no rank has the whole gradients. */
static cddp_status step_fsdp(struct optimizer *o, double *norm)
{
    const cddp_optim_step_args args = {.size = sizeof args, .max_norm = o->opt->clip};

    if (norm != NULL)
        *norm = NAN;
    return cddp_optim_step(o->divided, &args);
}

cddp_status optimizer_step(struct optimizer *o, int64_t step, bool apart, double *norm)
{
    const double lr = optimizer_lr(o->opt, step), clip = o->opt->clip > 0 ? o->opt->clip : INFINITY;
    cddp_status status;

    if (o->ddp == NULL)
        return step_fsdp(o, norm);
    status = o->divided != NULL || apart ? CDDP_OK : cddp_ddp_wait(o->ddp);
    if (apart)
        clip_apart(o->engine->model, clip, norm);
    else if (status == CDDP_OK) /* of a divided optimizer this waits, too */
        status = cddp_ddp_clip_grad_norm(o->ddp, clip, 2, norm != NULL, norm);
    if (status != CDDP_OK)
        return status;
    if (o->divided != NULL)
        return cddp_optim_step(o->divided, NULL);
    return o->engine->ops->update(o->engine, lr, step);
}
