/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters and the memory of the model; forward.c and backward.c have its passes. */
#include "model.h"
#include "random.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *gpt_check(const struct gpt_config *c)
{
    if (c->vocab < 2 || c->vocab > 256)
        return "the vocabulary must have 2 to 256 tokens";
    if (c->layers < 1 || c->layers > 1000)
        return "there must be 1 to 1000 layers";
    if (c->context < 2 || c->context > 65536 || c->width < 1 || c->width > 65536)
        return "context and width must be at most 65536";
    if (c->heads < 1 || c->width % c->heads != 0 || c->width / c->heads < 2)
        return "the width must be a multiple of the number of heads, and at least twice as large";
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ parameters ---- */

static void add_param(struct gpt *m, const char *prefix, const char *name, size_t rows, size_t columns)
{
    struct gpt_param *p = &m->params[m->n_params++];

    (void)snprintf(p->name, sizeof p->name, "%s%s", prefix, name);
    p->n_dims = columns == 0 ? 1 : 2;
    p->shape[0] = rows;
    p->shape[1] = columns;
    p->count = columns == 0 ? rows : rows * columns;
    m->n_weights += p->count;
}

static void list_params(struct gpt *m)
{
    const struct gpt_config *c = &m->config;
    const size_t w = c->width;

    add_param(m, "wte", ".weight", c->vocab, w);
    add_param(m, "wpe", ".weight", c->context, w);
    for (uint32_t l = 0; l < c->layers; l++) {
        char h[16];

        (void)snprintf(h, sizeof h, "h.%u.", l);
        add_param(m, h, "ln_1.weight", w, 0);
        add_param(m, h, "ln_1.bias", w, 0);
        add_param(m, h, "attn.c_attn.weight", 3 * w, w);
        add_param(m, h, "attn.c_attn.bias", 3 * w, 0);
        add_param(m, h, "attn.c_proj.weight", w, w);
        add_param(m, h, "attn.c_proj.bias", w, 0);
        add_param(m, h, "ln_2.weight", w, 0);
        add_param(m, h, "ln_2.bias", w, 0);
        add_param(m, h, "mlp.c_fc.weight", 4 * w, w);
        add_param(m, h, "mlp.c_fc.bias", 4 * w, 0);
        add_param(m, h, "mlp.c_proj.weight", w, 4 * w);
        add_param(m, h, "mlp.c_proj.bias", w, 0);
    }
    add_param(m, "ln_f", ".weight", w, 0);
    add_param(m, "ln_f", ".bias", w, 0);
    if (c->untied)
        add_param(m, "lm_head", ".weight", c->vocab, w);
}

/* ---------------------------------------------------------------------------------------------------- memory ---- */

/* The next n numbers, 64-byte aligned; called twice: without memory it only counts. */
static real *take(const struct gpt *m, size_t *used, size_t n)
{
    const size_t at = *used;

    *used += (n + 15) / 16 * 16;
    return m->memory == NULL ? NULL : m->memory + at;
}

static size_t lay_out(struct gpt *m, bool whole)
{
    const struct gpt_config *c = &m->config;
    const size_t rows = m->max_seqs * c->context, wide = rows * c->width;
    size_t used = 0;
    real *w = whole ? take(m, &used, m->n_weights) : NULL;

    for (size_t i = 0; i < m->n_params && w != NULL; w += m->params[i++].count)
        m->params[i].w = w;
    m->start = take(m, &used, wide);
    for (size_t l = 0; l < c->layers; l++)
        m->layers[l] = (struct gpt_layer_acts){
            .ln1 = take(m, &used, wide),
            .ln1_mean = take(m, &used, rows),
            .ln1_rstd = take(m, &used, rows),
            .qkv = take(m, &used, 3 * wide),
            .att = take(m, &used, rows * c->heads * c->context),
            .mixed = take(m, &used, wide),
            .middle = take(m, &used, wide),
            .ln2 = take(m, &used, wide),
            .ln2_mean = take(m, &used, rows),
            .ln2_rstd = take(m, &used, rows),
            .fc = take(m, &used, 4 * wide),
            .gelu = take(m, &used, 4 * wide),
            .end = take(m, &used, wide),
        };
    m->lnf = take(m, &used, wide);
    m->lnf_mean = take(m, &used, rows);
    m->lnf_rstd = take(m, &used, rows);
    m->logits = take(m, &used, rows * c->vocab);
    m->d_stream = take(m, &used, wide);
    m->d_rows = take(m, &used, wide);
    m->d_wide = take(m, &used, 4 * wide);
    m->d_att = take(m, &used, (size_t)c->context * c->context);
    return used;
}

bool gpt_create(struct gpt *m, const struct gpt_config *config, const struct kernels *k, size_t max_seqs, bool whole)
{
    const double rows = (double)max_seqs * config->context;
    const double numbers =
        rows * config->layers * (18.0 * config->width + (double)config->heads * config->context + 260);
    size_t count;

    *m = (struct gpt){.config = *config, .k = k, .max_seqs = max_seqs};
    if (rows > INT_MAX || numbers > 1e15) /* rows are OpenBLAS's int */
        return false;
    m->params = calloc(gpt_after(m, HEAD_W) + 1, sizeof *m->params);
    m->layers = calloc(config->layers, sizeof *m->layers);
    if (m->params == NULL || m->layers == NULL)
        return false;
    list_params(m);
    count = lay_out(m, whole);
    m->memory = aligned_alloc(64, (count * sizeof(real) + 63) / 64 * 64);
    if (m->memory == NULL)
        return false;
    (void)lay_out(m, whole);
    if (whole)
        memset(m->params[0].w, 0, m->n_weights * sizeof(real));
    return true;
}

void gpt_release(struct gpt *m)
{
    free(m->memory);
    free(m->layers);
    free(m->params);
    *m = (struct gpt){0};
}

/* ------------------------------------------------------------------------------------------------- the start ---- */

/* A normal number, by the method of Box and Muller. */
static double normal(uint64_t *state)
{
    const double a = 1 - random_uniform(state), b = random_uniform(state);

    return sqrt(-2 * log(a)) * cos(2 * 3.14159265358979323846 * b);
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), e = strlen(end);

    return n >= e && strcmp(name + n - e, end) == 0;
}

void gpt_init_param(const struct gpt *m, size_t i, uint64_t seed, real *w)
{
    const struct gpt_param *p = &m->params[i];
    const bool matrix = p->n_dims == 2;
    const double residual = 0.02 / sqrt(2.0 * m->config.layers);
    const double deviation = ends_with(p->name, "c_proj.weight") ? residual : 0.02;
    const double otherwise = ends_with(p->name, ".weight") ? 1 : 0; /* of a layer norm; biases are 0 */
    uint64_t state = seed;

    for (size_t before = 0; before < i; before++) /* as if they had been made in order: two random numbers each */
        if (m->params[before].n_dims == 2)
            random_skip(&state, 2 * m->params[before].count);
    for (size_t j = 0; j < p->count; j++)
        w[j] = (real)(matrix ? deviation * normal(&state) : otherwise);
}

void gpt_init(struct gpt *m, uint64_t seed)
{
    for (size_t i = 0; i < m->n_params; i++)
        gpt_init_param(m, i, seed, m->params[i].w);
}
