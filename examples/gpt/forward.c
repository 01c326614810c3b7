/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass. */
#include "attention.h"
#include "model.h"

#include <math.h>

/* out[rows][outputs] = in[rows][inputs] times the transposed weight, plus the bias. */
static void linear(const struct gpt *m, size_t rows, real *out, const real *in, size_t weight)
{
    const struct gpt_param *w = &m->params[weight], *b = w + 1;
    const size_t outputs = w->shape[0], inputs = w->shape[1];

    m->k->bias(out, b->w, rows, outputs);
    m->k->gemm(rows, outputs, inputs, 1, plain(in, inputs), turned(w->w, inputs), true, out, outputs);
}

/* mixed = softmax(q k^T / sqrt(size)) v for each head of each sequence. Later tokens are never computed. */
static void attention(const struct gpt *m, const struct gpt_layer_acts *a, size_t seqs, size_t time)
{
    const struct kernels *k = m->k;

    for (size_t h = 0; h < seqs * m->config.heads; h++) {
        const struct head head = head_of(m, a, h, time);

        for (size_t first = 0; first < time; first += ATT_ROWS) {
            const size_t rows = att_rows(first, time), seen = first + rows;
            real *att = head.att + first * time;

            k->gemm(rows, seen, head.size, head.scale, plain(head.q + first * head.ld, head.ld),
                    turned(head.k, head.ld), false, att, time);
            k->causal(att, first, rows, seen, time);
            k->gemm(rows, head.size, seen, 1, plain(att, time), plain(head.v, head.ld), false,
                    head.mixed + first * head.width, head.width);
        }
    }
}

static void layer(const struct gpt *m, size_t l, const real *in, size_t seqs, size_t time)
{
    const struct gpt_layer_acts *a = &m->layers[l];
    const struct gpt_param *p = &m->params[gpt_of_layer(l, 0)];
    const size_t rows = seqs * time, width = m->config.width;

    m->k->norm(a->ln1, a->ln1_mean, a->ln1_rstd, in, p[LN1_W].w, p[LN1_B].w, rows, width);
    linear(m, rows, a->qkv, a->ln1, gpt_of_layer(l, QKV_W));
    attention(m, a, seqs, time);
    linear(m, rows, a->end, a->mixed, gpt_of_layer(l, PROJ_W)); /* `end` is free until the layer's end */
    m->k->plus(a->middle, in, a->end, rows * width);
    m->k->norm(a->ln2, a->ln2_mean, a->ln2_rstd, a->middle, p[LN2_W].w, p[LN2_B].w, rows, width);
    linear(m, rows, a->fc, a->ln2, gpt_of_layer(l, FC_W));
    m->k->gelu(a->gelu, a->fc, rows * 4 * width);
    linear(m, rows, m->d_rows, a->gelu, gpt_of_layer(l, OUT_W)); /* memory of the backward pass, which is yet to come */
    m->k->plus(a->end, a->middle, m->d_rows, rows * width);
}

bool gpt_forward(struct gpt *m, const uint8_t *tokens, const uint8_t *targets, size_t seqs, size_t time, real scale,
                 double *loss)
{
    const struct gpt_param *after = &m->params[gpt_after(m, 0)];
    const size_t rows = seqs * time, width = m->config.width, vocab = m->config.vocab;
    const real *stream = m->start;

    if (!gpt_enter(m, EMBEDDING, false))
        return false;
    m->k->embed(m->start, tokens, m->params[WTE].w, m->params[WPE].w, seqs, time, width);
    gpt_leave(m, EMBEDDING);
    for (size_t l = 0; l < m->config.layers; stream = m->layers[l++].end) {
        if (!gpt_enter(m, FIRST_BLOCK + l, false))
            return false;
        layer(m, l, stream, seqs, time);
        gpt_leave(m, FIRST_BLOCK + l);
    }
    if (!gpt_enter(m, gpt_last_unit(m), false))
        return false;
    m->k->norm(m->lnf, m->lnf_mean, m->lnf_rstd, stream, after[LNF_W].w, after[LNF_B].w, rows, width);
    gpt_leave(m, gpt_last_unit(m));
    if (!gpt_enter(m, gpt_head_unit(m), false))
        return false;
    m->k->gemm(rows, vocab, width, 1, plain(m->lnf, width), turned(m->params[gpt_head(m)].w, width), false, m->logits,
               vocab);
    gpt_leave(m, gpt_head_unit(m));
    *loss = targets == NULL ? 0 : m->k->entropy(m->logits, targets, rows, vocab, scale);
    return true;
}
