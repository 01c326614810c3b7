/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer whose state is divided among the ranks. */
#ifndef CDDP_EXPERIMENTAL_OPTIM_H
#define CDDP_EXPERIMENTAL_OPTIM_H

#ifndef CDDP_EXPERIMENTAL
#error "this may change in any version: define CDDP_EXPERIMENTAL to use it"
#endif

#include <cddp/ddp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------ experimental optimizer ---- */

/*
 * An optimizer whose state is divided among the ranks (ZeRO, stage 1): of each bucket a rank receives only the mean of
 * its share of the gradients, updates that share of the parameters, for which alone it keeps momentum and averages, and
 * the ranks exchange the new values. Parameters become what every rank would have made of them alone, bit for bit, with
 * 1/world size of the state and of the arithmetic. Buckets that are compressed (`comm_dtype`, PowerSGD) or sent by a
 * hook become whole means on every rank, of which each updates its share; other buckets are scattered. A step is
 *
 *     write cddp_ddp_grad(ddp, i); cddp_ddp_grad_ready(ddp, i);     // as ever, for each parameter
 *     cddp_optim_step(optim, NULL);                                 // in place of cddp_ddp_wait and an optimizer
 */
typedef struct cddp_optim cddp_optim;

/* The rules, as PyTorch's torch.optim.SGD, Adam and AdamW have them; 0 is none, so that a forgotten one is an error. */
typedef enum cddp_optim_kind {
    CDDP_OPTIM_SGD = 1,
    CDDP_OPTIM_ADAM = 2,
    CDDP_OPTIM_ADAMW = 3,
    CDDP_ENUM_32(CDDP_OPTIM)
} cddp_optim_kind;

/* cddp_optim_group.flags. */
enum {
    /* The group's parameters, their state and its steps stay as they are. Their gradients count in norms. */
    CDDP_OPTIM_GROUP_FROZEN = 1
};

/*
 * Parameters with their own learning rate and weight decay, as in PyTorch's param_groups. A group gives both: lr_factor
 * 1, and the weight decay of the options, are as the optimizer's. {.size = sizeof(cddp_optim_group), .params = biases,
 * .n_params = 8, .lr_factor = 1} are eight that do not decay.
 */
typedef struct cddp_optim_group {
    size_t size;          /* sizeof(cddp_optim_group), in each of an array */
    const size_t *params; /* by number, each once, and in no other group; tied ones together */
    size_t n_params;
    double lr_factor;    /* > 0: the learning rate, also that of cddp_optim_set_lr and of a step, is multiplied by it */
    double weight_decay; /* >= 0, in place of the options' */
    uint64_t flags;      /* CDDP_OPTIM_GROUP_...; 0: none */
} cddp_optim_group;

/* cddp_optim_options.flags. */
enum {
    CDDP_OPTIM_NESTEROV = 1 /* SGD with momentum and no dampening looks ahead */
};

/* Numbers of which 0 is 0: cddp_optim_defaults() fills them in. */
typedef struct cddp_optim_options {
    size_t size;                    /* sizeof(cddp_optim_options) */
    cddp_optim_kind kind;           /* no default */
    uint32_t flags;                 /* CDDP_OPTIM_NESTEROV; 0: none */
    const cddp_optim_group *groups; /* n_groups of them, copied; parameters in none of them have the values below */
    size_t n_groups;                /* 0: none */
    double lr;                      /* learning rate, > 0 */
    double weight_decay;            /* >= 0; SGD and Adam add weight_decay * parameter to the gradient, AdamW shrinks
                                       the parameter by lr * weight_decay */
    double momentum;                /* SGD, >= 0; 0: none, and no state */
    double dampening;               /* SGD: of what the gradient adds to the momentum */
    double beta1;                   /* Adam, AdamW, in [0, 1) */
    double beta2;                   /* Adam, AdamW, in (0, 1) */
    double eps;                     /* Adam, AdamW, > 0 */
} cddp_optim_options;

/*
 * Fills in PyTorch's defaults for kind, where *opt has `size` bytes, sizeof(cddp_optim_options): kind and size too, a
 * learning rate of 1e-3, Adam's betas of 0.9 and 0.999 and eps of 1e-8, AdamW's weight decay of 0.01; all else is 0.
 * opt may be NULL. Never fails: cddp_optim_create() reports an unknown kind. Any thread.
 */
CDDP_API void cddp_optim_defaults(cddp_optim_options *opt, size_t size, cddp_optim_kind kind);

/*
 * Creates an optimizer for ddp. A collective: every rank calls it, between the same two steps, with the same options,
 * which are compared. From now on each step of ddp ends with cddp_optim_step; what its gradients hold afterwards is
 * unspecified, so the next backward pass has to overwrite them, as it should anyway. Gradients may still be accumulated
 * over several backward passes before they are reported ready.
 *
 * Parameters may have any size and type, also in worlds larger than they have elements. For float16 and bfloat16 the
 * share has float32 copies, which are what is updated; they are made here from the parameters, and by
 * cddp_checkpoint_load of the optimizer or of a cddp_fsdp. Their gradients may be float32 (grad_dtype): new values then
 * go from rank to rank in that type. With CDDP_DDP_FIND_UNUSED or CDDP_DDP_STATIC_GRAPH a parameter that no rank used
 * in a step stays as it is, and so does its state.
 *
 * Tied parameters (cddp_ddp_create) have one state and one update, by the sum of their mean gradients, which has the
 * gradients' type. They need the same learning rate, weight decay, flags and grad_dtype. They stay as they are if no
 * rank used any of them. On the CPU a step of a reducer that has some waits for all gradients before its first update.
 *
 * *out is written on success only; release it with cddp_optim_destroy(), before ddp or after it: without its reducer an
 * optimizer can only be destroyed, and its other functions return CDDP_E_STATE. Returns CDDP_OK; CDDP_E_INVALID (an
 * option, also one with which nothing would be learned, such as a learning rate of 0: it was not filled in; tied
 * parameters with two learning rates, say: the error message names both);
 * CDDP_E_UNSUPPORTED (a reducer with CDDP_DDP_SPLIT or CDDP_DDP_TUNE, whose buckets cannot be divided, or with
 * CDDP_DDP_JOIN: a rank in cddp_ddp_join does not hear whether the others clip or skip; the error message says which);
 * CDDP_E_STATE (ddp has one, or is in the middle of a step); CDDP_E_MISMATCH (ranks give different options: the error
 * message names two ranks and what differs); CDDP_E_NOMEM (here or on a peer); or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_optim_create(cddp_optim **out, cddp_ddp *ddp, const cddp_optim_options *opt);

/* cddp_optim_step_args.flags. */
enum {
    /*
     * A step whose gradients have a NaN or an infinity somewhere changes nothing, on any rank: parameters, their state
     * and its steps stay as they are, as with cddp_optim_skip(). Decided where the gradients are, without a wait of the
     * host on a GPU, at the price of reading this rank's share once more (with max_norm: at none).
     */
    CDDP_OPTIM_SKIP_NONFINITE = 1
};

/*
 * One step. Every rank gives the same. On the CPU and over MPI the model's later operations compare it, with what
 * cddp_optim_set_lr() and cddp_optim_set_grad_scale() have set, and which steps were cddp_optim_skip(): ranks that
 * differ get CDDP_E_MISMATCH there. On a GPU it is not compared.
 */
typedef struct cddp_optim_step_args {
    size_t size;       /* sizeof(cddp_optim_step_args) */
    uint64_t flags;    /* CDDP_OPTIM_SKIP_NONFINITE; 0: none */
    double lr;         /* learning rate of this step alone, of all groups by their factors; 0: as set */
    double grad_scale; /* > 0: gradients are multiplied by it: 1/the loss's scale of mixed precision; 0: as set, or 1 */
    double max_norm;   /* > 0: gradients are clipped to this norm, of type 2; 0: they are not */
} cddp_optim_step_args;

/*
 * Updates every parameter by its mean gradient; then the next step may begin. args may be NULL: a plain step. In one
 * call, and in this order: gradients are multiplied by grad_scale, their norm over all ranks is taken, a step with a
 * NaN or an infinity is skipped (if asked for), they are clipped, and parameters are updated. Where the scale is 1 the
 * results have the bits of cddp_ddp_clip_grad_norm() and a plain step. The scale is applied in the arithmetic of the
 * update, in float32 for gradients of 16 bits, so values that would be 0 in 16 bits are not lost.
 *
 * Call it once per step, from one thread, after the last cddp_ddp_grad_ready(), while nothing else uses the parameters.
 * Blocks until the new parameters of all ranks are in this rank's `data`, the same bits everywhere. The exchange of one
 * bucket runs while the next is updated. On a GPU nothing blocks, with args neither: the step begins after the work on
 * the reducer's stream, and later work on that stream finds the new parameters. (With CDDP_DDP_FIND_UNUSED it waits, as
 * every step does then.) There Adam's powers of beta1 and beta2 are products, so that parameters may differ from the
 * CPU's in the last bits.
 *
 * Returns what cddp_ddp_wait may return; after such an error parameters may be partly updated. CDDP_E_INVALID: a member
 * of args is wrong; nothing was done, and the step has not ended. (After cddp_ddp_set_weight() also: the sum of the
 * weights is 0, on every rank; the step has ended.) CDDP_E_NONFINITE (on the CPU, with CDDP_OPTIM_SKIP_NONFINITE): the
 * step was left out and has ended, the next one may begin, and nothing is broken. On a GPU the host does not know that,
 * and CDDP_OK is returned: cddp_optim_skipped() tells on both. The errors of CDDP_NAN_CHECK and CDDP_CHECK_REPLICAS
 * (cddp_ddp_wait; cddp_optim_skip() returns them, too): the step was left out as well, also on a GPU.
 * CDDP_E_UNSUPPORTED (a newer header's struct).
 *
 * A step on a GPU can be captured (experimental/stream.h). Each launch of the graph counts as a step. The learning rate
 * and the scale are read when it runs, so cddp_optim_set_lr() and cddp_optim_set_grad_scale() before a launch set them;
 * a number in args other than 0, max_norm and flags belong to the graph.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_optim_step(cddp_optim *optim, const cddp_optim_step_args *args);

/*
 * Ends the step without an update, for gradients that are not finite (mixed precision): parameters, their state and its
 * steps stay as they are. Every rank calls it for the same step, in place of cddp_optim_step. Returns what that
 * returns.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_optim_skip(cddp_optim *optim);

/*
 * Sets the learning rate from the next step on (for a schedule, also one that begins or ends with 0), of all groups by
 * their factors; every rank gives the same one. Between two steps, one thread. On a GPU it also holds for captured
 * steps, in the order of the reducer's stream: launches of a graph that are on the stream already keep the old one, and
 * later ones read the new one. The host does not wait. CDDP_OK; CDDP_E_INVALID (below 0, or NaN); CDDP_E_STATE (its
 * reducer is gone); CDDP_E_UNSUPPORTED (the stream captures a graph, in which a number would never change); the error
 * of a communicator that has failed. After an error the old one holds.
 */
CDDP_API cddp_status cddp_optim_set_lr(cddp_optim *optim, double lr);
/*
 * Sets what gradients are multiplied by from the next step on, where a step's `grad_scale` is 0: 1/the loss's scale of
 * mixed precision. It is 1 before the first call. Otherwise like cddp_optim_set_lr; CDDP_E_INVALID: not above 0.
 */
CDDP_API cddp_status cddp_optim_set_grad_scale(cddp_optim *optim, double scale);
/*
 * Stores in *steps how many steps CDDP_OPTIM_SKIP_NONFINITE has left out since cddp_optim_create(), the same on every
 * rank. Between two steps, one thread; on a GPU the host waits for the last one. CDDP_OK; CDDP_E_INVALID (NULL);
 * CDDP_E_STATE (its reducer is gone); or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_optim_skipped(cddp_optim *optim, uint64_t *steps);
/* Returns the bytes that this rank holds for its share: the state, and float32 copies of parameters of 16 bits. */
CDDP_API size_t cddp_optim_state_bytes(const cddp_optim *optim);

/* Frees the optimizer; NULL is allowed. The reducer then averages whole gradients again. Every rank does so between the
 * same steps.
 */
CDDP_API void cddp_optim_destroy(cddp_optim *optim);

#ifdef __cplusplus
}
#endif

#endif
