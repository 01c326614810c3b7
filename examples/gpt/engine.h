/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What computes: the CPU (engine_cpu.c), or the GPU that libcddp works on (gpu_engine.c). The loop in train.c, the
 * optimizer and the checkpoints see only this. Functions return CDDP_OK, or an error whose message is in engine->why,
 * or, where that is empty, in cddp_last_error().
 */
#ifndef GPT_ENGINE_H
#define GPT_ENGINE_H

#include "model.h"
#include "options.h"

#define CDDP_EXPERIMENTAL 1
#include <cddp/cddp.h>
#include <cddp/experimental/optim.h>
#include <cddp/experimental/stream.h>

struct engine;

/* A graph of what is enqueued between BEGIN and END, or GIVE_UP after an error; LAUNCH runs it; DROP frees it, if any.
 */
enum engine_graph { GRAPH_BEGIN, GRAPH_END, GRAPH_GIVE_UP, GRAPH_LAUNCH, GRAPH_DROP };

struct engine_ops {
    void (*release)(struct engine *e);
    /* A step begins: the tokens of all its passes, and what the optimizer needs. On a GPU the host does not wait. */
    cddp_status (*begin)(struct engine *e, const uint8_t *tokens, const uint8_t *targets, size_t seqs, double lr,
                         int64_t step);
    /*
     * Forward and backward pass of n of these sequences, from `first` on, for scale times the sum of their losses; the
     * first pass overwrites gradients and loss, later ones add to them. On a GPU it only enqueues, and may be captured.
     */
    cddp_status (*pass)(struct engine *e, size_t first, size_t n, double scale, struct gpt_ready ready);
    /* The sum of the losses of the step's passes. Waits for them. */
    cddp_status (*loss)(struct engine *e, double *sum);
    /* The sum of the losses of n sequences, without a backward pass; n is at most that of a pass. Waits. */
    cddp_status (*evaluate)(struct engine *e, const uint8_t *tokens, const uint8_t *targets, size_t n, double *sum);
    /* The logits that follow `time` tokens: as many as the vocabulary has. They live until the next call. Waits. */
    cddp_status (*logits)(struct engine *e, const uint8_t *tokens, size_t time, const real **logits);
    /* AdamW of every weight, by its gradient; not with --divided. On a GPU it only enqueues, and may be captured. */
    cddp_status (*update)(struct engine *e, double lr, int64_t step);
    /* Copies n numbers to memory of the engine's type, and loses `from`; and back. Waits. */
    cddp_status (*put)(struct engine *e, void *to, real *from, size_t n);
    cddp_status (*get)(struct engine *e, real *to, const void *from, size_t n);
    /*
     * Waits until the weights are those of the last step, and copies them into model->params, in the type `real`; not
     * with --fsdp. */
    cddp_status (*fetch)(struct engine *e);
    /* Waits until memory holds what was enqueued. */
    cddp_status (*wait)(struct engine *e);
    cddp_status (*graph)(struct engine *e, enum engine_graph what); /* NULL on the CPU */
};

/* Memory that a checkpoint keeps, besides the weights. */
struct engine_state {
    const char *name;
    void *at;
    size_t bytes;
};

struct engine {
    const struct engine_ops *ops;
    const struct options *opt;
    cddp_comm *comm;
    struct gpt *model; /* names and shapes; on the CPU it computes, on a GPU it has the first weights */
    char name[120];    /* "openblas"; "NVIDIA H100, bf16" */
    cddp_dtype dtype;  /* of weights and gradients */
    size_t number;     /* its bytes */
    bool is_gpu;
    void *stream;  /* the compute stream, for libcddp; NULL on the CPU */
    void **w, **g; /* of each parameter, where the engine computes; the caller sets g, and with --fsdp w */
    struct engine_state state[3]; /* of AdamW, if it is not divided; names are NULL after the last */
    char *why;
    size_t why_cap;
};

/* Fills in *e for the sizes and the weights of `model`; passes have at most max_seqs sequences, steps at most share. */
cddp_status engine_cpu_create(struct engine **out, struct gpt *model, const struct options *opt, char *why, size_t cap);
cddp_status engine_gpu_create(struct engine **out, cddp_comm *comm, struct gpt *model, const struct options *opt,
                              size_t max_seqs, size_t share, char *why, size_t cap);

/* Matrices decay; biases and layer norms do not. */
static inline bool engine_decays(const struct gpt_param *p)
{
    return p->n_dims == 2;
}

/* Keeps the error message. Returns CDDP_E_SYSTEM. */
cddp_status engine_fail(struct engine *e, const char *message);

#endif
