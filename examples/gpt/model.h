/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model: GPT-2's transformer, whose tokens are bytes. This file and its three sources know nothing of ranks; a pass
 * says by a call that a gradient is complete, and the caller hands that on to libcddp.
 */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "kernels.h"

struct gpt_config {
    uint32_t vocab; /* 256: the bytes */
    uint32_t context, layers, heads, width;
    uint32_t untied; /* 0: the output layer is the transposed embedding, as in GPT-2 */
};

/* The parameters in the order of the forward pass: the first two, PER_LAYER of each layer, the last ones. */
enum { WTE, WPE, FIRST_LAYER };
enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B, PER_LAYER };
enum { LNF_W, LNF_B, HEAD_W }; /* after the layers; HEAD_W only untied */

struct gpt_param {
    char name[40]; /* "h.0.attn.c_attn.weight", as nanoGPT has it */
    size_t shape[2];
    size_t n_dims;
    size_t count;
    real *w; /* in one piece of memory, one after another; or set by gpt_units.enter */
    real *g; /* the gradient; the caller sets it before a backward pass */
};

/*
 * For parameters that are not always there. A pass uses them unit by unit: the embedding, each layer, and the end,
 * which is the last norm and an untied output layer. enter: makes those of unit u usable, and in a backward pass their
 * gradients; false: the pass ends. leave: the pass does without them for now. NULL: all are always there.
 */
struct gpt_units {
    bool (*enter)(void *arg, size_t u, bool back);
    void (*leave)(void *arg, size_t u);
    void *arg;
};

/* What a layer's forward pass leaves for its backward pass. Rows are tokens. */
struct gpt_layer_acts {
    real *ln1, *ln1_mean, *ln1_rstd; /* [rows][width], [rows], [rows] */
    real *qkv;                       /* [rows][3 * width] */
    real *att;                       /* [seqs][heads][time][time]: the softmax */
    real *mixed;                     /* [rows][width]: att times v */
    real *middle;                    /* [rows][width]: the residual stream after attention */
    real *ln2, *ln2_mean, *ln2_rstd;
    real *fc, *gelu; /* [rows][4 * width] */
    real *end;       /* [rows][width]: the residual stream after the layer */
};

struct gpt {
    struct gpt_config config;
    const struct kernels *k;
    size_t n_params, n_weights;
    struct gpt_param *params;
    struct gpt_units units; /* the caller may set it */
    size_t max_seqs;        /* of one pass */
    real *memory;           /* all of the numbers */
    real *start;            /* [rows][width]: the embedding */
    struct gpt_layer_acts *layers;
    real *lnf, *lnf_mean, *lnf_rstd;
    real *logits; /* [rows][vocab]; after a forward pass that is to be followed by a backward pass: their gradient */
    real *d_stream, *d_rows, *d_wide,
        *d_att; /* of the backward pass: [rows][width] twice, [rows][4 * width], [time][time] */
};

/* Called in the backward pass when gradient i is complete. NULL: nobody is called. */
struct gpt_ready {
    void (*tell)(void *arg, size_t i);
    void *arg;
};

/* Returns what is wrong with the sizes, or NULL. */
const char *gpt_check(const struct gpt_config *config);

/*
 * Takes memory for passes of up to max_seqs sequences, and, if whole, for the weights, which are zeros. False: not
 * enough. Release it in any case.
 */
bool gpt_create(struct gpt *m, const struct gpt_config *config, const struct kernels *k, size_t max_seqs, bool whole);
void gpt_release(struct gpt *m);

/* GPT-2's start: normal numbers of deviation 0.02, less for what is added to the residual stream; the same everywhere.
 */
void gpt_init(struct gpt *m, uint64_t seed);
/* The same for parameter i alone, into w. */
void gpt_init_param(const struct gpt *m, size_t i, uint64_t seed, real *w);

/*
 * Computes the sum of the losses of seqs * time tokens (time is at most the context). With scale other than 0 it
 * prepares a backward pass for scale times that sum. Without targets it computes only the logits, and the sum is 0.
 * False: a unit could not be entered.
 */
bool gpt_forward(struct gpt *m, const uint8_t *tokens, const uint8_t *targets, size_t seqs, size_t time, real scale,
                 double *loss);

/*
 * Computes the gradients of the preceding forward pass, from the last parameter to the first. `time` must be the
 * context. With `add` they are added to those of the batch before. Of each unit the first parameter is reported last.
 * False: a unit could not be entered.
 */
bool gpt_backward(struct gpt *m, const uint8_t *tokens, size_t seqs, bool add, struct gpt_ready ready);

/* Returns parameter `which` of a layer (LN1_W ...), or one after the layers (LNF_W ...). */
static inline size_t gpt_of_layer(size_t layer, size_t which)
{
    return FIRST_LAYER + layer * PER_LAYER + which;
}

static inline size_t gpt_after(const struct gpt *m, size_t which)
{
    return FIRST_LAYER + m->config.layers * PER_LAYER + which;
}

/* Returns the matrix that makes logits of the last layer norm. */
static inline size_t gpt_head(const struct gpt *m)
{
    return m->config.untied ? gpt_after(m, HEAD_W) : WTE;
}

/* The units: the embedding, layer 0, layer 1, ..., and the end. */
enum { EMBEDDING, FIRST_BLOCK };

static inline size_t gpt_last_unit(const struct gpt *m)
{
    return FIRST_BLOCK + m->config.layers;
}

/* Returns the first parameter of unit u; of the unit after the last one, the number of parameters. */
static inline size_t gpt_unit_begin(const struct gpt *m, size_t u)
{
    if (u > gpt_last_unit(m))
        return m->n_params;
    return u == EMBEDDING ? 0 : gpt_of_layer(u - FIRST_BLOCK, 0);
}

/* Returns the unit of gpt_head(). */
static inline size_t gpt_head_unit(const struct gpt *m)
{
    return m->config.untied ? gpt_last_unit(m) : EMBEDDING;
}

static inline bool gpt_enter(const struct gpt *m, size_t u, bool back)
{
    return m->units.enter == NULL || m->units.enter(m->units.arg, u, back);
}

static inline void gpt_leave(const struct gpt *m, size_t u)
{
    if (m->units.leave != NULL)
        m->units.leave(m->units.arg, u);
}

#endif
