/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as what computes: the passes of model.h, and AdamW as PyTorch has it. */
#include "engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

#define BETA1 0.9
#define EPS 1e-8

struct cpu {
    struct engine base;
    const uint8_t *tokens, *targets; /* of the step */
    double loss;
    real *m, *v; /* AdamW's averages, if they are not divided */
};

cddp_status engine_fail(struct engine *e, const char *message)
{
    if (e->why[0] == '\0')
        (void)snprintf(e->why, e->why_cap, "%s", message);
    return CDDP_E_SYSTEM;
}

static cddp_status begin(struct engine *e, const uint8_t *tokens, const uint8_t *targets, size_t seqs, double lr,
                         int64_t step)
{
    struct cpu *c = (struct cpu *)e;

    (void)seqs, (void)lr, (void)step;
    c->tokens = tokens;
    c->targets = targets;
    c->loss = 0;
    return CDDP_OK;
}

static cddp_status pass(struct engine *e, size_t first, size_t n, double scale, struct gpt_ready ready)
{
    struct cpu *c = (struct cpu *)e;
    const size_t time = e->model->config.context;
    const uint8_t *tokens = c->tokens + first * time;
    double sum;

    for (size_t i = 0; i < e->model->n_params; i++)
        e->model->params[i].g = e->g[i];
    if (!gpt_forward(e->model, tokens, c->targets + first * time, n, time, (real)scale, &sum) ||
        !gpt_backward(e->model, tokens, n, first > 0, ready))
        return CDDP_E_STATE; /* cddp_last_error() has the message */
    c->loss += sum;
    return CDDP_OK;
}

static cddp_status loss(struct engine *e, double *sum)
{
    *sum = ((struct cpu *)e)->loss;
    return CDDP_OK;
}

static cddp_status evaluate(struct engine *e, const uint8_t *tokens, const uint8_t *targets, size_t n, double *sum)
{
    return gpt_forward(e->model, tokens, targets, n, e->model->config.context, 0, sum) ? CDDP_OK : CDDP_E_STATE;
}

static cddp_status logits(struct engine *e, const uint8_t *tokens, size_t time, const real **out)
{
    double none;

    if (!gpt_forward(e->model, tokens, NULL, 1, time, 0, &none))
        return CDDP_E_STATE;
    *out = e->model->logits + (time - 1) * e->model->config.vocab;
    return CDDP_OK;
}

/* The arithmetic of PyTorch's AdamW, in its order; so is that of cddp_optim. `step` counts from 1. */
static void update_param(const struct cpu *c, const struct gpt_param *p, double lr, double step)
{
    const size_t at = (size_t)(p->w - c->base.model->params[0].w);
    const double beta2 = c->base.opt->beta2, decay = engine_decays(p) ? c->base.opt->weight_decay : 0;
    const real step_size = (real)(lr / (1 - pow(BETA1, step))), correction = (real)sqrt(1 - pow(beta2, step));
    const real take_m = (real)(1 - BETA1), take_v = (real)(1 - beta2), keep = (real)beta2, eps = (real)EPS;
    const real shrink = (real)(1 - lr * decay);
    const real *restrict g = p->g;
    real *restrict w = p->w, *restrict m = c->m + at, *restrict v = c->v + at;

    for (size_t i = 0; i < p->count; i++) {
        m[i] += take_m * (g[i] - m[i]);
        v[i] = v[i] * keep + take_v * g[i] * g[i];
        w[i] = w[i] * shrink - step_size * m[i] / (sqrt(v[i]) / correction + eps);
    }
}

static cddp_status update(struct engine *e, double lr, int64_t step)
{
    for (size_t i = 0; i < e->model->n_params; i++)
        update_param((struct cpu *)e, &e->model->params[i], lr, (double)(step + 1));
    return CDDP_OK;
}

static cddp_status put(struct engine *e, void *to, real *from, size_t n)
{
    (void)e;
    memcpy(to, from, n * sizeof *from);
    return CDDP_OK;
}

static cddp_status get(struct engine *e, real *to, const void *from, size_t n)
{
    (void)e;
    memcpy(to, from, n * sizeof *to);
    return CDDP_OK;
}

static cddp_status nothing(struct engine *e)
{
    (void)e;
    return CDDP_OK;
}

static void release(struct engine *e)
{
    struct cpu *c = (struct cpu *)e;

    free(c->m);
    free(c->v);
    free(e->w);
    free(e->g);
    free(c);
}

static const struct engine_ops ops = {release, begin, pass, loss,    evaluate, logits,
                                      update,  put,   get,  nothing, nothing,  NULL};

cddp_status engine_cpu_create(struct engine **out, struct gpt *model, const struct options *opt, char *why, size_t cap)
{
    struct cpu *c = calloc(1, sizeof *c);
    const size_t bytes = model->n_weights * sizeof(real);

    *out = NULL;
    if (c == NULL)
        return CDDP_E_NOMEM;
    *out = &c->base;
    c->base = (struct engine){.ops = &ops,
                              .opt = opt,
                              .model = model,
                              .dtype = sizeof(real) == sizeof(float) ? CDDP_FLOAT32 : CDDP_FLOAT64,
                              .number = sizeof(real),
                              .w = calloc(model->n_params, sizeof *c->base.w),
                              .g = calloc(model->n_params, sizeof *c->base.g),
                              .why = why,
                              .why_cap = cap};
    (void)snprintf(c->base.name, sizeof c->base.name, "%s", model->k->name);
    if (c->base.w == NULL || c->base.g == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; i < model->n_params; i++)
        c->base.w[i] = model->params[i].w;
    if (opt->divided)
        return CDDP_OK;
    c->m = calloc(model->n_weights, sizeof *c->m);
    c->v = calloc(model->n_weights, sizeof *c->v);
    c->base.state[0] = (struct engine_state){"adamw.m", c->m, bytes};
    c->base.state[1] = (struct engine_state){"adamw.v", c->v, bytes};
    return c->m != NULL && c->v != NULL ? CDDP_OK : CDDP_E_NOMEM;
}
