/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward pass: from the logits to the embedding, each gradient reported as soon as it is complete. Meanwhile
 * libcddp averages those that were reported, so the order here is what communication overlaps with.
 */
#include "attention.h"
#include "model.h"

#include <string.h>

/* One backward pass. d_stream is the gradient of the residual stream, as far as the pass has come. */
struct pass {
    struct gpt *m;
    size_t seqs, time, rows;
    bool add;
    struct gpt_ready ready;
};

static void tell(const struct pass *p, size_t i)
{
    if (p->ready.tell != NULL)
        p->ready.tell(p->ready.arg, i);
}

/* The gradients of a weight and its bias, from that of the output. */
static void linear_params(const struct pass *p, const real *d_out, const real *in, size_t weight)
{
    const struct gpt_param *w = &p->m->params[weight], *b = w + 1;
    const size_t outputs = w->shape[0], inputs = w->shape[1];

    p->m->k->bias_back(b->g, d_out, p->rows, outputs, p->add);
    tell(p, weight + 1);
    p->m->k->gemm(outputs, inputs, p->rows, 1, turned(d_out, outputs), plain(in, inputs), p->add, w->g, inputs);
    tell(p, weight);
}

/* The gradient of the input. */
static void linear_input(const struct pass *p, real *d_in, const real *d_out, size_t weight)
{
    const struct gpt_param *w = &p->m->params[weight];
    const size_t outputs = w->shape[0], inputs = w->shape[1];

    p->m->k->gemm(p->rows, inputs, outputs, 1, plain(d_out, outputs), plain(w->w, inputs), false, d_in, inputs);
}

static void norm(const struct pass *p, const real *d_out, const real *in, const real *mean, const real *rstd,
                 size_t weight)
{
    const struct gpt_param *w = &p->m->params[weight], *b = w + 1;

    p->m->k->norm_back(p->m->d_stream, w->g, b->g, d_out, in, w->w, mean, rstd, p->rows, p->m->config.width, p->add);
    tell(p, weight + 1);
    tell(p, weight);
}

/*
 * From the gradient of `mixed` to that of qkv. Rows are taken from the last block to the first: the last one sees every
 * token, and so gives all of dk and dv their first value.
 */
static void head_back(const struct pass *p, const struct head *head, const real *dmixed, real *dqkv)
{
    const struct kernels *k = p->m->k;
    const size_t time = p->time, ld = head->ld, last = (time - 1) / ATT_ROWS * ATT_ROWS;
    real *d = p->m->d_att, *dq = dqkv + head->in_qkv, *dk = dq + head->width, *dv = dk + head->width;

    for (size_t first = last;; first -= ATT_ROWS) {
        const size_t rows = att_rows(first, time), seen = first + rows;
        const real *att = head->att + first * time, *d_out = dmixed + head->in_mixed + first * head->width;
        const bool add = first != last;

        k->gemm(seen, head->size, rows, 1, turned(att, time), plain(d_out, head->width), add, dv, ld);
        k->gemm(rows, seen, head->size, 1, plain(d_out, head->width), turned(head->v, ld), false, d, time);
        k->causal_back(d, att, rows, seen, time);
        k->gemm(rows, head->size, seen, head->scale, plain(d, time), plain(head->k, ld), false, dq + first * ld, ld);
        k->gemm(seen, head->size, rows, head->scale, turned(d, time), plain(head->q + first * ld, ld), add, dk, ld);
        if (first == 0)
            break;
    }
}

static void layer(const struct pass *p, size_t l, const real *in)
{
    struct gpt *m = p->m;
    const struct gpt_layer_acts *a = &m->layers[l];

    linear_params(p, m->d_stream, a->gelu, gpt_of_layer(l, OUT_W));
    linear_input(p, m->d_wide, m->d_stream, gpt_of_layer(l, OUT_W));
    m->k->gelu_back(m->d_wide, a->fc, p->rows * 4 * m->config.width);
    linear_params(p, m->d_wide, a->ln2, gpt_of_layer(l, FC_W));
    linear_input(p, m->d_rows, m->d_wide, gpt_of_layer(l, FC_W));
    norm(p, m->d_rows, a->middle, a->ln2_mean, a->ln2_rstd, gpt_of_layer(l, LN2_W));

    linear_params(p, m->d_stream, a->mixed, gpt_of_layer(l, PROJ_W));
    linear_input(p, m->d_rows, m->d_stream, gpt_of_layer(l, PROJ_W));
    for (size_t h = 0; h < p->seqs * m->config.heads; h++) {
        const struct head head = head_of(m, a, h, p->time);

        head_back(p, &head, m->d_rows, m->d_wide);
    }
    linear_params(p, m->d_wide, a->ln1, gpt_of_layer(l, QKV_W));
    linear_input(p, m->d_rows, m->d_wide, gpt_of_layer(l, QKV_W));
    norm(p, m->d_rows, in, a->ln1_mean, a->ln1_rstd, gpt_of_layer(l, LN1_W));
}

static void head_params(const struct pass *p)
{
    struct gpt *m = p->m;
    const size_t width = m->config.width, vocab = m->config.vocab;

    m->k->gemm(vocab, width, p->rows, 1, turned(m->logits, vocab), plain(m->lnf, width), p->add,
               m->params[gpt_head(m)].g, width);
}

/* The output layer. Tied, its weight is the embedding's, whose gradients are made at the very end. */
static void head(const struct pass *p)
{
    struct gpt *m = p->m;
    const size_t width = m->config.width, vocab = m->config.vocab;
    const struct gpt_param *w = &m->params[gpt_head(m)];

    if (m->config.untied) {
        head_params(p);
        tell(p, gpt_head(m));
    }
    m->k->gemm(p->rows, width, vocab, 1, plain(m->logits, vocab), plain(w->w, width), false, m->d_rows, width);
}

bool gpt_backward(struct gpt *m, const uint8_t *tokens, size_t seqs, bool add, struct gpt_ready ready)
{
    const struct pass p = {m, seqs, m->config.context, seqs * m->config.context, add, ready};
    const size_t layers = m->config.layers, width = m->config.width;
    const struct gpt_param *wte = &m->params[WTE];

    if (!gpt_enter(m, gpt_head_unit(m), m->config.untied != 0))
        return false;
    head(&p);
    gpt_leave(m, gpt_head_unit(m));
    if (!gpt_enter(m, gpt_last_unit(m), true))
        return false;
    memset(m->d_stream, 0, p.rows * width * sizeof *m->d_stream);
    norm(&p, m->d_rows, m->layers[layers - 1].end, m->lnf_mean, m->lnf_rstd, gpt_after(m, LNF_W));
    gpt_leave(m, gpt_last_unit(m));
    for (size_t l = layers; l-- > 0;) {
        if (!gpt_enter(m, FIRST_BLOCK + l, true))
            return false;
        layer(&p, l, l == 0 ? m->start : m->layers[l - 1].end);
        gpt_leave(m, FIRST_BLOCK + l);
    }
    if (!gpt_enter(m, EMBEDDING, true))
        return false;
    if (!m->config.untied)
        head_params(&p);
    else if (!add)
        memset(wte->g, 0, wte->count * sizeof *wte->g);
    m->k->embed_back(wte->g, m->params[WPE].g, m->d_stream, tokens, seqs, m->config.context, width, add);
    tell(&p, WPE);
    tell(&p, WTE);
    gpt_leave(m, EMBEDDING);
    return true;
}
