/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model in the GPU's memory. Its passes only enqueue, on one stream: they allocate nothing, ask for nothing, and
 * read nothing of the host's but the sizes, so that a CUDA graph can hold them. Numbers are float32 or bfloat16
 * (`number` bytes), but for statistics, scores of the attention before its softmax, and logits, which are float32.
 */
#ifndef GPT_GPU_MODEL_H
#define GPT_GPU_MODEL_H

#include "cublas.h"
#include "engine.h"

#define GPU_SLOTS 4 /* steps whose tokens may be under way to the device */

/* What a layer's forward pass leaves for its backward pass; shapes as in struct gpt_layer_acts. */
struct gpu_layer {
    void *ln1, *qkv, *att, *mixed, *middle, *ln2, *fc, *gelu, *end;
    float *ln1_stats, *ln2_stats; /* [rows][2]: mean, rstd */
};

struct gpu_model {
    struct engine base;
    struct gpu gpu;
    size_t max_seqs, max_tokens; /* of a pass; of a step or an evaluation */
    void *memory;                /* all that follows, but the slots */
    size_t bytes;
    void *start;
    struct gpu_layer *layers;
    void *lnf, *d_logits, *d_stream, *d_rows, *d_wide;
    float *lnf_stats, *logits, *scores, *losses, *partial; /* scores: [heads][time][time] of one sequence */
    double *loss;
    struct gpu_step *step; /* then tokens and targets, each max_tokens */
    uint8_t *tokens, *targets;
    struct gpu_adam *adam;
    float *m, *v, *master; /* [n_weights]; NULL if divided; master only in bfloat16 */
    void *workspace;       /* of cuBLAS */
    /* Pinned memory for what goes to the device, in turn; an event says that a slot has been read. */
    struct {
        uint8_t *at;
        CUevent read;
    } slot[GPU_SLOTS];
    size_t next_slot;
    uint8_t *back; /* pinned memory for what comes back */
};

/* The logits of `seqs` sequences of `time` tokens. false: gpu.why. */
bool gpu_forward(struct gpu_model *m, const uint8_t *tokens, size_t seqs, size_t time);
/*
 * The sum of the losses goes into *m->loss, or is added to it; with scale other than 0 the logits' gradient is
 * prepared.
 */
bool gpu_loss(struct gpu_model *m, const uint8_t *targets, size_t seqs, float scale, bool add);
/* The gradients of the preceding forward pass, whose sequences had the context's length. */
bool gpu_backward(struct gpu_model *m, const uint8_t *tokens, size_t seqs, bool add, struct gpt_ready ready);

/* --------------------------------------------------------------------------- what both passes are written with ---- */

static inline struct gpu_span gpu_span(const void *at, size_t bytes)
{
    return (struct gpu_span){(void *)(uintptr_t)at, bytes};
}

/* n numbers of the model's type. */
static inline struct gpu_span gpu_numbers(const struct gpu_model *m, const void *at, size_t n)
{
    return gpu_span(at, n * m->base.number);
}

static inline struct gpu_span gpu_floats(const float *at, size_t n)
{
    return gpu_span(at, n * sizeof *at);
}

/* Parameter i, and its gradient. */
static inline struct gpu_span gpu_weight(const struct gpu_model *m, size_t i)
{
    return gpu_numbers(m, m->base.w[i], m->base.model->params[i].count);
}

static inline struct gpu_span gpu_gradient(const struct gpu_model *m, size_t i)
{
    return gpu_numbers(m, m->base.g[i], m->base.model->params[i].count);
}

/* The n-th number of an array of the model's type. */
static inline void *gpu_at(const struct gpu_model *m, const void *at, size_t n)
{
    return (char *)(uintptr_t)at + n * m->base.number;
}

static inline struct matrix gpu_plain(const void *at, size_t ld)
{
    return (struct matrix){at, ld, false, 0};
}

static inline struct matrix gpu_turned(const void *at, size_t ld)
{
    return (struct matrix){at, ld, true, 0};
}

#endif
