/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass on a GPU; forward.c has the same on the CPU. */
#include "gpu_model.h"

#include <math.h>

static bool norm(struct gpu_model *m, const void *in, void *out, float *stats, size_t weight, size_t rows)
{
    const size_t width = m->base.model->config.width, n = rows * width;

    return gpu_launch(
        &m->gpu, GPU_norm,
        &(struct gpu_args){.in = {gpu_numbers(m, in, n), gpu_weight(m, weight), gpu_weight(m, weight + 1)},
                           .out = {gpu_numbers(m, out, n), gpu_floats(stats, 2 * rows)},
                           .n = rows,
                           .width = (uint32_t)width});
}

/* out[rows][outputs] = in[rows][inputs] times the transposed weight. The bias is left to the kernel that follows. */
static bool linear(struct gpu_model *m, void *out, const void *in, size_t weight, size_t rows)
{
    const size_t outputs = m->base.model->params[weight].shape[0], inputs = m->base.model->params[weight].shape[1];

    return cublas_gemm(&m->gpu,
                       &(struct product){rows, outputs, inputs, 1, 1, gpu_plain(in, inputs),
                                         gpu_turned(m->base.w[weight], inputs), gpu_plain(out, outputs), false, false});
}

static bool bias(struct gpu_model *m, void *out, size_t b, size_t rows)
{
    const size_t width = m->base.model->params[b].count;

    return gpu_launch(&m->gpu, GPU_bias,
                      &(struct gpu_args){.in = {gpu_weight(m, b)},
                                         .out = {gpu_numbers(m, out, rows * width)},
                                         .n = rows * width,
                                         .width = (uint32_t)width});
}

/* out = stream + (x + bias) */
static bool bias_plus(struct gpu_model *m, void *out, const void *stream, const void *x, size_t b, size_t rows)
{
    const size_t width = m->base.model->config.width, n = rows * width;

    return gpu_launch(&m->gpu, GPU_bias_plus,
                      &(struct gpu_args){.in = {gpu_weight(m, b), gpu_numbers(m, stream, n), gpu_numbers(m, x, n)},
                                         .out = {gpu_numbers(m, out, n)},
                                         .n = n,
                                         .width = (uint32_t)width});
}

/* fc += bias, gelu of it */
static bool bias_gelu(struct gpu_model *m, const struct gpu_layer *a, size_t b, size_t rows)
{
    const size_t width = m->base.model->params[b].count, n = rows * width;

    return gpu_launch(&m->gpu, GPU_bias_gelu,
                      &(struct gpu_args){.in = {gpu_weight(m, b)},
                                         .out = {gpu_numbers(m, a->fc, n), gpu_numbers(m, a->gelu, n)},
                                         .n = n,
                                         .width = (uint32_t)width});
}

/* mixed = softmax(q k^T / sqrt(size)) v for all heads of one sequence at a time. */
static bool attention(struct gpu_model *m, const struct gpu_layer *a, size_t seqs, size_t time)
{
    const size_t heads = m->base.model->config.heads, width = m->base.model->config.width, size = width / heads;
    const size_t square = time * time, ld = 3 * width;
    const float scale = (float)(1 / sqrt((double)size));

    for (size_t s = 0; s < seqs; s++) {
        const void *q = gpu_at(m, a->qkv, s * time * ld);
        const struct matrix att = {gpu_at(m, a->att, s * heads * square), time, false, square};
        const struct product scores = {time,
                                       time,
                                       size,
                                       heads,
                                       scale,
                                       {q, ld, false, size},
                                       {gpu_at(m, q, width), ld, true, size},
                                       {m->scores, time, false, square},
                                       false,
                                       true};
        const struct gpu_args softmax = {.in = {gpu_floats(m->scores, heads * square)},
                                         .out = {gpu_numbers(m, att.at, heads * square)},
                                         .n = heads * time,
                                         .time = (uint32_t)time};
        const struct product mix = {time,
                                    size,
                                    time,
                                    heads,
                                    1,
                                    att,
                                    {gpu_at(m, q, 2 * width), ld, false, size},
                                    {gpu_at(m, a->mixed, s * time * width), width, false, size},
                                    false,
                                    false};

        if (!cublas_gemm(&m->gpu, &scores) || !gpu_launch(&m->gpu, GPU_causal, &softmax) || !cublas_gemm(&m->gpu, &mix))
            return false;
    }
    return true;
}

static bool layer(struct gpu_model *m, size_t l, const void *in, size_t seqs, size_t time)
{
    const struct gpu_layer *a = &m->layers[l];
    const size_t rows = seqs * time, p = gpt_of_layer(l, 0);

    return norm(m, in, a->ln1, a->ln1_stats, p + LN1_W, rows) && linear(m, a->qkv, a->ln1, p + QKV_W, rows) &&
           bias(m, a->qkv, p + QKV_B, rows) && attention(m, a, seqs, time) &&
           linear(m, m->d_rows, a->mixed, p + PROJ_W, rows) && /* memory of the backward pass, which is yet to come */
           bias_plus(m, a->middle, in, m->d_rows, p + PROJ_B, rows) &&
           norm(m, a->middle, a->ln2, a->ln2_stats, p + LN2_W, rows) && linear(m, a->fc, a->ln2, p + FC_W, rows) &&
           bias_gelu(m, a, p + FC_B, rows) && linear(m, m->d_rows, a->gelu, p + OUT_W, rows) &&
           bias_plus(m, a->end, a->middle, m->d_rows, p + OUT_B, rows);
}

static bool embed(struct gpu_model *m, const uint8_t *tokens, size_t rows, size_t time)
{
    const size_t width = m->base.model->config.width;

    return gpu_launch(&m->gpu, GPU_embed,
                      &(struct gpu_args){.in = {gpu_span(tokens, rows), gpu_weight(m, WTE), gpu_weight(m, WPE)},
                                         .out = {gpu_numbers(m, m->start, rows * width)},
                                         .n = rows * width,
                                         .width = (uint32_t)width,
                                         .time = (uint32_t)time});
}

bool gpu_forward(struct gpu_model *m, const uint8_t *tokens, size_t seqs, size_t time)
{
    const struct gpt *model = m->base.model;
    const size_t rows = seqs * time, width = model->config.width, vocab = model->config.vocab, head = gpt_head(model);
    const void *stream = m->start;

    if (!gpt_enter(model, EMBEDDING, false) || !embed(m, tokens, rows, time))
        return false;
    gpt_leave(model, EMBEDDING);
    for (size_t l = 0; l < model->config.layers; stream = m->layers[l++].end) {
        if (!gpt_enter(model, FIRST_BLOCK + l, false) || !layer(m, l, stream, seqs, time))
            return false;
        gpt_leave(model, FIRST_BLOCK + l);
    }
    if (!gpt_enter(model, gpt_last_unit(model), false) ||
        !norm(m, stream, m->lnf, m->lnf_stats, gpt_after(model, LNF_W), rows))
        return false;
    gpt_leave(model, gpt_last_unit(model));
    if (!gpt_enter(model, gpt_head_unit(model), false) ||
        !cublas_gemm(&m->gpu,
                     &(struct product){rows, vocab, width, 1, 1, gpu_plain(m->lnf, width),
                                       gpu_turned(m->base.w[head], width), gpu_plain(m->logits, vocab), false, true}))
        return false;
    gpt_leave(model, gpt_head_unit(model));
    return true;
}

bool gpu_loss(struct gpu_model *m, const uint8_t *targets, size_t seqs, float scale, bool add)
{
    const size_t vocab = m->base.model->config.vocab, rows = seqs * m->base.model->config.context;
    const struct gpu_args entropy = {.in = {gpu_floats(m->logits, rows * vocab), gpu_span(targets, rows)},
                                     .out = {gpu_floats(m->losses, rows), gpu_numbers(m, m->d_logits, rows * vocab)},
                                     .n = rows,
                                     .width = (uint32_t)vocab,
                                     .scale = scale};
    const struct gpu_args total = {.in = {gpu_floats(m->losses, rows)},
                                   .out = {gpu_span(m->loss, sizeof *m->loss)},
                                   .n = 1,
                                   .width = (uint32_t)rows,
                                   .add = add};

    return gpu_launch(&m->gpu, GPU_entropy, &entropy) && gpu_launch(&m->gpu, GPU_total, &total);
}
