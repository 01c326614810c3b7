/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward pass on a GPU; backward.c has the same on the CPU, in the same order. A gradient is reported when its
 * last kernel is enqueued: libcddp lets its communication begin after that in the order of the stream.
 */
#include "gpu_model.h"

#include <math.h>

struct pass {
    struct gpu_model *m;
    size_t seqs, time, rows, width;
    bool add;
    struct gpt_ready ready;
};

static void tell(const struct pass *p, size_t i)
{
    if (p->ready.tell != NULL)
        p->ready.tell(p->ready.arg, i);
}

/* g (+)= the sums that a kernel has left for each column. */
static bool columns(const struct pass *p, const float *partial, size_t param)
{
    const size_t width = p->m->base.model->params[param].count;

    return gpu_launch(&p->m->gpu, GPU_columns,
                      &(struct gpu_args){.in = {gpu_floats(partial, GPU_CHUNKS * width)},
                                         .out = {gpu_gradient(p->m, param)},
                                         .n = width,
                                         .width = (uint32_t)width,
                                         .add = p->add});
}

static bool bias_params(const struct pass *p, const void *d_out, size_t param)
{
    const size_t width = p->m->base.model->params[param].count;
    const struct gpu_args sums = {.in = {gpu_numbers(p->m, d_out, p->rows * width)},
                                  .out = {gpu_floats(p->m->partial, GPU_CHUNKS * width)},
                                  .n = GPU_CHUNKS * width,
                                  .rows = (uint32_t)p->rows,
                                  .width = (uint32_t)width};

    return gpu_launch(&p->m->gpu, GPU_bias_columns, &sums) && columns(p, p->m->partial, param);
}

/* The gradients of a weight and its bias, from that of the output. */
static bool linear_params(const struct pass *p, const void *d_out, const void *in, size_t weight)
{
    const struct gpt_param *w = &p->m->base.model->params[weight];
    const size_t outputs = w->shape[0], inputs = w->shape[1];

    if (!bias_params(p, d_out, weight + 1))
        return false;
    tell(p, weight + 1);
    if (!cublas_gemm(&p->m->gpu,
                     &(struct product){outputs, inputs, p->rows, 1, 1, gpu_turned(d_out, outputs),
                                       gpu_plain(in, inputs), gpu_plain(p->m->base.g[weight], inputs), p->add, false}))
        return false;
    tell(p, weight);
    return true;
}

/* The gradient of the input. */
static bool linear_input(const struct pass *p, void *d_in, const void *d_out, size_t weight)
{
    const struct gpt_param *w = &p->m->base.model->params[weight];
    const size_t outputs = w->shape[0], inputs = w->shape[1];

    return cublas_gemm(&p->m->gpu, &(struct product){p->rows, inputs, outputs, 1, 1, gpu_plain(d_out, outputs),
                                                     gpu_plain(p->m->base.w[weight], inputs), gpu_plain(d_in, inputs),
                                                     false, false});
}

/* d_stream (+)= the gradient of the norm's input. */
static bool norm(const struct pass *p, const void *d_out, const void *in, const float *stats, size_t weight, bool first)
{
    struct gpu_model *m = p->m;
    const size_t n = p->rows * p->width, sums = GPU_CHUNKS * p->width;
    const struct gpu_args to_input = {
        .in = {gpu_numbers(m, d_out, n), gpu_numbers(m, in, n), gpu_weight(m, weight), gpu_floats(stats, 2 * p->rows)},
        .out = {gpu_numbers(m, m->d_stream, n)},
        .n = p->rows,
        .width = (uint32_t)p->width,
        .add = !first};
    const struct gpu_args to_params = {
        .in = {gpu_numbers(m, d_out, n), gpu_numbers(m, in, n), gpu_floats(stats, 2 * p->rows)},
        .out = {gpu_floats(m->partial, sums), gpu_floats(m->partial + sums, sums)},
        .n = sums,
        .rows = (uint32_t)p->rows,
        .width = (uint32_t)p->width};

    if (!gpu_launch(&m->gpu, GPU_norm_columns, &to_params) || !columns(p, m->partial + sums, weight + 1) ||
        !columns(p, m->partial, weight))
        return false;
    tell(p, weight + 1);
    tell(p, weight);
    return gpu_launch(&m->gpu, GPU_norm_back, &to_input);
}

/* From the gradient of `mixed`, in d_rows, to that of qkv, in d_wide; the softmax is overwritten. */
static bool attention(const struct pass *p, const struct gpu_layer *a)
{
    struct gpu_model *m = p->m;
    const size_t heads = m->base.model->config.heads, size = p->width / heads, time = p->time;
    const size_t square = time * time, ld = 3 * p->width;
    const float scale = (float)(1 / sqrt((double)size));

    for (size_t s = 0; s < p->seqs; s++) {
        const void *q = gpu_at(m, a->qkv, s * time * ld), *dq = gpu_at(m, m->d_wide, s * time * ld);
        const void *at = gpu_at(m, a->att, s * heads * square);
        const struct matrix att = {at, time, false, square}, turned = {at, time, true, square};
        const struct matrix d_mixed = {gpu_at(m, m->d_rows, s * time * p->width), p->width, false, size};
        const struct matrix v_turned = {gpu_at(m, q, 2 * p->width), ld, true, size};
        const struct matrix to_k = {gpu_at(m, dq, p->width), ld, false, size};
        const struct matrix to_v = {gpu_at(m, dq, 2 * p->width), ld, false, size};
        const struct matrix scores = {m->scores, time, false, square};
        const struct gpu_args softmax = {.in = {gpu_floats(m->scores, heads * square)},
                                         .out = {gpu_numbers(m, at, heads * square)},
                                         .n = heads * time,
                                         .time = (uint32_t)time};

        if (!cublas_gemm(&m->gpu, &(struct product){time, size, time, heads, 1, turned, d_mixed, to_v, false, false}) ||
            !cublas_gemm(&m->gpu,
                         &(struct product){time, time, size, heads, 1, d_mixed, v_turned, scores, false, true}) ||
            !gpu_launch(&m->gpu, GPU_causal_back, &softmax) ||
            !cublas_gemm(&m->gpu, &(struct product){time,
                                                    size,
                                                    time,
                                                    heads,
                                                    scale,
                                                    att,
                                                    {gpu_at(m, q, p->width), ld, false, size},
                                                    {dq, ld, false, size},
                                                    false,
                                                    false}) ||
            !cublas_gemm(
                &m->gpu,
                &(struct product){time, size, time, heads, scale, turned, {q, ld, false, size}, to_k, false, false}))
            return false;
    }
    return true;
}

static bool layer(const struct pass *p, size_t l, const void *in)
{
    struct gpu_model *m = p->m;
    const struct gpu_layer *a = &m->layers[l];
    const size_t first = gpt_of_layer(l, 0), wide = p->rows * 4 * p->width;
    const struct gpu_args gelu = {
        .in = {gpu_numbers(m, a->fc, wide)}, .out = {gpu_numbers(m, m->d_wide, wide)}, .n = wide};

    return linear_params(p, m->d_stream, a->gelu, first + OUT_W) &&
           linear_input(p, m->d_wide, m->d_stream, first + OUT_W) && gpu_launch(&m->gpu, GPU_gelu_back, &gelu) &&
           linear_params(p, m->d_wide, a->ln2, first + FC_W) && linear_input(p, m->d_rows, m->d_wide, first + FC_W) &&
           norm(p, m->d_rows, a->middle, a->ln2_stats, first + LN2_W, false) &&
           linear_params(p, m->d_stream, a->mixed, first + PROJ_W) &&
           linear_input(p, m->d_rows, m->d_stream, first + PROJ_W) && attention(p, a) &&
           linear_params(p, m->d_wide, a->ln1, first + QKV_W) && linear_input(p, m->d_rows, m->d_wide, first + QKV_W) &&
           norm(p, m->d_rows, in, a->ln1_stats, first + LN1_W, false);
}

static bool head_params(const struct pass *p)
{
    struct gpu_model *m = p->m;
    const size_t vocab = m->base.model->config.vocab, w = gpt_head(m->base.model);

    return cublas_gemm(&m->gpu, &(struct product){vocab, p->width, p->rows, 1, 1, gpu_turned(m->d_logits, vocab),
                                                  gpu_plain(m->lnf, p->width), gpu_plain(m->base.g[w], p->width),
                                                  p->add, false});
}

/* The output layer. Tied, its weight is the embedding's, whose gradients are made at the very end. */
static bool head(const struct pass *p)
{
    struct gpu_model *m = p->m;
    const struct gpt *model = m->base.model;
    const size_t vocab = model->config.vocab, w = gpt_head(model);

    if (model->config.untied) {
        if (!head_params(p))
            return false;
        tell(p, w);
    }
    return cublas_gemm(&m->gpu, &(struct product){p->rows, p->width, vocab, 1, 1, gpu_plain(m->d_logits, vocab),
                                                  gpu_plain(m->base.w[w], p->width), gpu_plain(m->d_rows, p->width),
                                                  false, false});
}

/*
 * Rows of wte get the gradients of their tokens. With 256 of them that is a matrix product with rows of one 1 each,
 * whose sums have a fixed order, as additions by atomic operations have not. Its memory is that of the logits'
 * gradient.
 */
static bool embedding(const struct pass *p, const uint8_t *tokens)
{
    struct gpu_model *m = p->m;
    const size_t vocab = m->base.model->config.vocab, n = p->rows * p->width;
    const struct gpu_args place = {.in = {gpu_numbers(m, m->d_stream, n)},
                                   .out = {gpu_gradient(m, WPE)},
                                   .n = p->time * p->width,
                                   .rows = (uint32_t)p->rows,
                                   .width = (uint32_t)p->width,
                                   .time = (uint32_t)p->time,
                                   .add = p->add};
    const struct gpu_args one_hot = {.in = {gpu_span(tokens, p->rows)},
                                     .out = {gpu_numbers(m, m->d_logits, p->rows * vocab)},
                                     .n = p->rows * vocab,
                                     .width = (uint32_t)vocab};
    const bool add = p->add || !m->base.model->config.untied;

    if ((!m->base.model->config.untied && !head_params(p)) || !gpu_launch(&m->gpu, GPU_place_back, &place))
        return false;
    tell(p, WPE);
    if (!gpu_launch(&m->gpu, GPU_one_hot, &one_hot) ||
        !cublas_gemm(&m->gpu, &(struct product){vocab, p->width, p->rows, 1, 1, gpu_turned(m->d_logits, vocab),
                                                gpu_plain(m->d_stream, p->width), gpu_plain(m->base.g[WTE], p->width),
                                                add, false}))
        return false;
    tell(p, WTE);
    return true;
}

bool gpu_backward(struct gpu_model *m, const uint8_t *tokens, size_t seqs, bool add, struct gpt_ready ready)
{
    const struct gpt *model = m->base.model;
    const struct pass p = {m,   seqs, model->config.context, seqs * model->config.context, model->config.width,
                           add, ready};
    const size_t layers = model->config.layers, last = gpt_last_unit(model);

    if (!gpt_enter(model, gpt_head_unit(model), model->config.untied != 0) || !head(&p))
        return false;
    gpt_leave(model, gpt_head_unit(model));
    if (!gpt_enter(model, last, true) ||
        !norm(&p, m->d_rows, m->layers[layers - 1].end, m->lnf_stats, gpt_after(model, LNF_W), true))
        return false;
    gpt_leave(model, last);
    for (size_t l = layers; l-- > 0;) {
        if (!gpt_enter(model, FIRST_BLOCK + l, true) || !layer(&p, l, l == 0 ? m->start : m->layers[l - 1].end))
            return false;
        gpt_leave(model, FIRST_BLOCK + l);
    }
    if (!gpt_enter(model, EMBEDDING, true) || !embedding(&p, tokens))
        return false;
    gpt_leave(model, EMBEDDING);
    return true;
}
