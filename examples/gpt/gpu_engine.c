/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of a GPU: its memory, the input of a step, and results. */
#include "gpu_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------- memory ---- */

/* The next `bytes` bytes; called twice: without memory it only counts. */
static void *take(struct gpu_model *m, size_t bytes)
{
    const size_t at = m->bytes;

    m->bytes += (bytes + 255) / 256 * 256;
    return m->memory == NULL ? NULL : (char *)m->memory + at;
}

static void lay_out_layers(struct gpu_model *m)
{
    const struct gpt_config *c = &m->base.model->config;
    const size_t rows = m->max_seqs * c->context, wide = rows * c->width * m->base.number;

    for (uint32_t l = 0; l < c->layers; l++)
        m->layers[l] = (struct gpu_layer){
            .ln1 = take(m, wide),
            .qkv = take(m, 3 * wide),
            .att = take(m, rows * c->heads * c->context * m->base.number),
            .mixed = take(m, wide),
            .middle = take(m, wide),
            .ln2 = take(m, wide),
            .fc = take(m, 4 * wide),
            .gelu = take(m, 4 * wide),
            .end = take(m, wide),
            .ln1_stats = take(m, 2 * rows * sizeof(float)),
            .ln2_stats = take(m, 2 * rows * sizeof(float)),
        };
}

static void lay_out(struct gpu_model *m)
{
    const struct gpt_config *c = &m->base.model->config;
    const size_t rows = m->max_seqs * c->context, wide = rows * c->width * m->base.number;
    const size_t n_weights = m->base.model->n_weights * sizeof(float);
    const bool divided = m->base.opt->divided;

    m->bytes = 0;
    for (size_t i = 0; i < m->base.model->n_params; i++)
        m->base.w[i] = take(m, m->base.opt->fsdp > 0 ? 0 : m->base.model->params[i].count * m->base.number);
    m->start = take(m, wide);
    lay_out_layers(m);
    m->lnf = take(m, wide);
    m->lnf_stats = take(m, 2 * rows * sizeof(float));
    m->logits = take(m, rows * c->vocab * sizeof(float));
    m->d_logits = take(m, rows * c->vocab * m->base.number);
    m->losses = take(m, rows * sizeof(float));
    m->scores = take(m, (size_t)c->heads * c->context * c->context * sizeof(float));
    m->d_stream = take(m, wide);
    m->d_rows = take(m, wide);
    m->d_wide = take(m, 4 * wide);
    m->partial = take(m, GPU_CHUNKS * 4 * (size_t)c->width * sizeof(float));
    m->loss = take(m, sizeof *m->loss);
    m->step = take(m, sizeof *m->step + 2 * m->max_tokens);
    m->tokens = m->step == NULL ? NULL : (uint8_t *)(m->step + 1);
    m->targets = m->step == NULL ? NULL : m->tokens + m->max_tokens;
    m->adam = take(m, 2 * sizeof *m->adam);
    m->workspace = take(m, CUBLAS_WORKSPACE_BYTES);
    m->m = take(m, divided ? 0 : n_weights);
    m->v = take(m, divided ? 0 : n_weights);
    m->master = take(m, divided || !m->gpu.bf16 ? 0 : n_weights);
}

/* What libcddp says is in its own words; what the GPU says is kept here. */
static cddp_status done(struct gpu_model *m, bool good)
{
    return good ? CDDP_OK : engine_fail(&m->base, m->gpu.why);
}

static cddp_status allocate(struct gpu_model *m)
{
    cddp_comm *comm = m->base.comm;
    const size_t slot = sizeof *m->step + 2 * m->max_tokens;
    const size_t back = (size_t)m->base.model->config.vocab * sizeof(float);
    void *at;
    cddp_status status;

    lay_out(m);
    status = cddp_alloc(comm, m->bytes, 0, &m->memory);
    if (status != CDDP_OK) {
        char why[200];

        (void)snprintf(why, sizeof why,
                       "the GPU has no %zu MiB for the model: --micro with a smaller number takes less",
                       m->bytes >> 20);
        return status == CDDP_E_NOMEM ? engine_fail(&m->base, why) : status;
    }
    lay_out(m);
    for (size_t i = 0; i < GPU_SLOTS && status == CDDP_OK; i++) {
        status = cddp_alloc(comm, slot, CDDP_MEM_HOST, &at);
        if (status == CDDP_OK)
            m->slot[i].at = at;
        if (status == CDDP_OK)
            status = done(m, GPU_DO(&m->gpu, cuEventCreate, &m->slot[i].read, CU_EVENT_DISABLE_TIMING));
    }
    if (status == CDDP_OK)
        status = cddp_alloc(comm, back < 64 ? 64 : back, CDDP_MEM_HOST, &at);
    if (status == CDDP_OK)
        m->back = at;
    return status;
}

/* Rounds in place, from the first number on: it shrinks. */
static cddp_status put(struct engine *e, void *to, real *from, size_t n)
{
    for (size_t i = 0; e->dtype == CDDP_BFLOAT16 && i < n; i++) {
        const uint16_t bits = gpu_round(from[i]);

        memcpy((uint16_t *)from + i, &bits, sizeof bits);
    }
    return cddp_copy(e->comm, to, from, n * e->number);
}

/* Widens in place, from the last number on: it grows. */
static cddp_status get_numbers(struct engine *e, real *to, const void *from, size_t n)
{
    cddp_status status = done((struct gpu_model *)e, gpu_wait(&((struct gpu_model *)e)->gpu));

    if (status == CDDP_OK)
        status = cddp_copy(e->comm, to, from, n * e->number);
    for (size_t i = n; status == CDDP_OK && e->dtype == CDDP_BFLOAT16 && i-- > 0;) {
        uint16_t bits;

        memcpy(&bits, (uint16_t *)to + i, sizeof bits);
        to[i] = gpu_widen(bits);
    }
    return status;
}

static cddp_status fetch(struct engine *e)
{
    cddp_status status = CDDP_OK;

    for (size_t i = 0; i < e->model->n_params && status == CDDP_OK; i++)
        status = get_numbers(e, e->model->params[i].w, e->w[i], e->model->params[i].count);
    return status;
}

/*
 * The first weights go to the device. In bfloat16 the master copies are made of the rounded ones, as cddp_optim makes
 * its own of the parameters. AdamW's averages begin with zeros.
 */
static cddp_status upload(struct gpu_model *m)
{
    const struct gpt *model = m->base.model;
    const size_t bytes = model->n_weights * sizeof(float);
    float *zeros;
    cddp_status status = CDDP_OK;

    for (size_t i = 0; i < model->n_params && status == CDDP_OK; i++)
        status = put(&m->base, m->base.w[i], model->params[i].w, model->params[i].count);
    if (status == CDDP_OK && m->gpu.bf16)
        status = fetch(&m->base);
    if (status != CDDP_OK || m->base.opt->divided)
        return status;
    zeros = calloc(model->n_weights, sizeof *zeros);
    status = zeros == NULL ? CDDP_E_NOMEM : cddp_copy(m->base.comm, m->m, zeros, bytes);
    if (status == CDDP_OK)
        status = cddp_copy(m->base.comm, m->v, zeros, bytes);
    if (status == CDDP_OK && m->gpu.bf16)
        status = cddp_copy(m->base.comm, m->master, model->params[0].w, bytes);
    free(zeros);
    return status;
}

/* ------------------------------------------------------------------------------------------ to the GPU and back ----
 */

/*
 * Fills the device's memory for input, in the order of the stream. The host waits only if it is GPU_SLOTS steps ahead.
 * A graph of the step reads the same memory at every launch.
 */
static bool feed(struct gpu_model *m, const uint8_t *tokens, const uint8_t *targets, size_t n, struct gpu_step step)
{
    struct gpu *g = &m->gpu;
    const size_t i = m->next_slot++ % GPU_SLOTS;
    uint8_t *at = m->slot[i].at;

    if (m->next_slot > GPU_SLOTS && !GPU_DO(g, cuEventSynchronize, m->slot[i].read))
        return false;
    memcpy(at, &step, sizeof step);
    memcpy(at + sizeof step, tokens, n);
    if (targets != NULL)
        memcpy(at + sizeof step + m->max_tokens, targets, n);
    else
        memset(at + sizeof step + m->max_tokens, 0, n);
    return GPU_DO(g, cuMemcpyHtoDAsync, (CUdeviceptr)m->step, at, sizeof step + n, g->stream) &&
           GPU_DO(g, cuMemcpyHtoDAsync, (CUdeviceptr)m->targets, at + sizeof step + m->max_tokens, n, g->stream) &&
           GPU_DO(g, cuEventRecord, m->slot[i].read, g->stream);
}

static bool get(struct gpu_model *m, const void *from, size_t bytes)
{
    return GPU_DO(&m->gpu, cuMemcpyDtoHAsync, m->back, (CUdeviceptr)from, bytes, m->gpu.stream) && gpu_wait(&m->gpu);
}

static cddp_status begin(struct engine *e, const uint8_t *tokens, const uint8_t *targets, size_t seqs, double lr,
                         int64_t step)
{
    struct gpu_model *m = (struct gpu_model *)e;

    return done(m,
                feed(m, tokens, targets, seqs * e->model->config.context, (struct gpu_step){lr, (uint64_t)step + 1}));
}

static cddp_status pass(struct engine *e, size_t first, size_t n, double scale, struct gpt_ready ready)
{
    struct gpu_model *m = (struct gpu_model *)e;
    const size_t time = e->model->config.context;
    const uint8_t *tokens = m->tokens + first * time;

    return done(m, gpu_forward(m, tokens, n, time) &&
                       gpu_loss(m, m->targets + first * time, n, (float)scale, first > 0) &&
                       gpu_backward(m, tokens, n, first > 0, ready));
}

static cddp_status loss(struct engine *e, double *sum)
{
    struct gpu_model *m = (struct gpu_model *)e;
    const cddp_status status = done(m, get(m, m->loss, sizeof *sum));

    if (status == CDDP_OK)
        memcpy(sum, m->back, sizeof *sum);
    return status;
}

static cddp_status evaluate(struct engine *e, const uint8_t *tokens, const uint8_t *targets, size_t n, double *sum)
{
    struct gpu_model *m = (struct gpu_model *)e;
    const size_t time = e->model->config.context;

    if (!feed(m, tokens, targets, n * time, (struct gpu_step){0}) || !gpu_forward(m, m->tokens, n, time) ||
        !gpu_loss(m, m->targets, n, 0, false))
        return done(m, false);
    return loss(e, sum);
}

static cddp_status logits(struct engine *e, const uint8_t *tokens, size_t time, const real **out)
{
    struct gpu_model *m = (struct gpu_model *)e;
    const size_t vocab = e->model->config.vocab;

    *out = (const real *)(void *)m->back;
    return done(m, feed(m, tokens, NULL, time, (struct gpu_step){0}) && gpu_forward(m, m->tokens, 1, time) &&
                       get(m, m->logits + (time - 1) * vocab, vocab * sizeof *m->logits));
}

/* The learning rate and the step's number are those of begin(), in the device's memory. */
static cddp_status update(struct engine *e, double lr, int64_t step)
{
    struct gpu_model *m = (struct gpu_model *)e;
    const struct gpu_args now = {.in = {gpu_span(m->step, sizeof *m->step)},
                                 .out = {gpu_span(m->adam, 2 * sizeof *m->adam)},
                                 .n = 2,
                                 .decay = e->opt->weight_decay,
                                 .beta2 = e->opt->beta2};
    bool good = gpu_launch(&m->gpu, GPU_adam_now, &now);

    (void)lr, (void)step;
    for (size_t i = 0, at = 0; i < e->model->n_params && good; at += e->model->params[i++].count) {
        const size_t n = e->model->params[i].count;
        const struct gpu_args args = {
            .in = {gpu_span(m->adam + engine_decays(&e->model->params[i]), sizeof *m->adam), gpu_gradient(m, i)},
            .out = {gpu_weight(m, i), m->gpu.bf16 ? gpu_floats(m->master + at, n) : gpu_weight(m, i),
                    gpu_floats(m->m + at, n), gpu_floats(m->v + at, n)},
            .n = n};

        good = gpu_launch(&m->gpu, GPU_adam, &args);
    }
    return done(m, good);
}

static cddp_status graph(struct engine *e, enum engine_graph what)
{
    struct gpu *g = &((struct gpu_model *)e)->gpu;

    switch (what) {
    case GRAPH_BEGIN:
        return done((struct gpu_model *)e, gpu_graph_begin(g));
    case GRAPH_END:
        return done((struct gpu_model *)e, gpu_graph_end(g, true));
    case GRAPH_LAUNCH:
        return done((struct gpu_model *)e, gpu_graph_launch(g));
    case GRAPH_GIVE_UP:
        (void)gpu_graph_end(g, false);
        break;
    case GRAPH_DROP:
        gpu_graph_drop(g);
        break;
    }
    return CDDP_OK;
}

static cddp_status wait(struct engine *e)
{
    struct gpu_model *m = (struct gpu_model *)e;

    return done(m, gpu_wait(&m->gpu));
}

/* ------------------------------------------------------------------------------------------------------ the whole ----
 */

static void release(struct engine *e)
{
    struct gpu_model *m = (struct gpu_model *)e;

    if (m->gpu.stream != NULL)
        (void)gpu_wait(&m->gpu);
    cublas_close(&m->gpu);
    for (size_t i = 0; i < GPU_SLOTS; i++) {
        if (m->slot[i].read != NULL)
            (void)GPU_DO(&m->gpu, cuEventDestroy, m->slot[i].read);
        cddp_free(e->comm, m->slot[i].at);
    }
    cddp_free(e->comm, m->back);
    cddp_free(e->comm, m->memory);
    gpu_close(&m->gpu);
    free(m->layers);
    free(e->w);
    free(e->g);
    free(m);
}

static const struct engine_ops ops = {release, begin, pass,        loss,  evaluate, logits,
                                      update,  put,   get_numbers, fetch, wait,     graph};

static cddp_status open_parts(struct gpu_model *m)
{
    struct engine *e = &m->base;
    const size_t n = e->model->n_weights * sizeof(float);
    cddp_device_info info = {.size = sizeof info};
    cddp_status status;

    if (!gpu_open(&m->gpu, e->opt->bf16))
        return engine_fail(e, m->gpu.why);
    status = allocate(m);
    if (status == CDDP_OK && !cublas_open(&m->gpu, m->workspace))
        return engine_fail(e, m->gpu.why);
    if (status == CDDP_OK && e->opt->fsdp == 0)
        status = upload(m);
    if (status == CDDP_OK)
        status = cddp_get_device_info(e->comm, &info);
    if (status != CDDP_OK)
        return status;
    (void)snprintf(e->name, sizeof e->name, "%s, %s", info.name, e->opt->bf16 ? "bf16" : "float32");
    e->stream = m->gpu.stream;
    if (e->opt->divided)
        return CDDP_OK;
    e->state[0] = (struct engine_state){"adamw.m", m->m, n};
    e->state[1] = (struct engine_state){"adamw.v", m->v, n};
    if (e->opt->bf16)
        e->state[2] = (struct engine_state){"float32 weights", m->master, n};
    return CDDP_OK;
}

cddp_status engine_gpu_create(struct engine **out, cddp_comm *comm, struct gpt *model, const struct options *opt,
                              size_t max_seqs, size_t share, char *why, size_t cap)
{
    struct gpu_model *m = calloc(1, sizeof *m);

    *out = NULL;
    if (m == NULL)
        return CDDP_E_NOMEM;
    *out = &m->base;
    m->max_seqs = max_seqs;
    m->max_tokens = (share > max_seqs ? share : max_seqs) * model->config.context;
    m->layers = calloc(model->config.layers, sizeof *m->layers);
    m->base = (struct engine){.ops = &ops,
                              .opt = opt,
                              .comm = comm,
                              .model = model,
                              .dtype = opt->bf16 ? CDDP_BFLOAT16 : CDDP_FLOAT32,
                              .number = opt->bf16 ? sizeof(uint16_t) : sizeof(float),
                              .is_gpu = true,
                              .w = calloc(model->n_params, sizeof *m->base.w),
                              .g = calloc(model->n_params, sizeof *m->base.g),
                              .why = why,
                              .why_cap = cap};
    if (m->layers == NULL || m->base.w == NULL || m->base.g == NULL)
        return CDDP_E_NOMEM;
    return open_parts(m);
}
