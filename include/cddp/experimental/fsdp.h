/* SPDX-License-Identifier: Apache-2.0 */
/* Fully sharded data parallel training: parameters, gradients and optimizer states are divided among the ranks. */
#ifndef CDDP_EXPERIMENTAL_FSDP_H
#define CDDP_EXPERIMENTAL_FSDP_H

#ifndef CDDP_EXPERIMENTAL
#error "this may change in any version: define CDDP_EXPERIMENTAL to use it"
#endif

#include <cddp/experimental/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------- experimental sharding ---- */

/*
 * A model whose parameters no rank holds as a whole (ZeRO stage 3, as PyTorch's fully_shard). It consists of units,
 * such as the blocks of a transformer. Each rank keeps 1/world size of every unit: of its parameters, their gradients,
 * and the optimizer's state. A unit is gathered just before it computes, and its memory is used again afterwards. A
 * step is
 *
 *     for each unit u of the forward pass, then for each of the backward pass, in reverse:
 *         cddp_fsdp_gather(f, u);                   // begins; the units of the last step's order follow by themselves
 *         cddp_fsdp_wait_unit(f, u);                // now cddp_fsdp_param(f, u, i) are its parameters
 *         compute, backward into cddp_fsdp_grad(f, u, i)
 *         cddp_fsdp_release(f, u);
 *         cddp_fsdp_grads_ready(f, u);              // backward only, unless all of u is frozen: gradients are averaged
 *                                                   // and divided
 *     cddp_optim_step(optim, NULL);                 // of cddp_optim_create_sharded
 *
 * Every rank makes these calls in the same order, from one thread. Sums are made in rank order, as everywhere, so that
 * on the CPU parameters have the bits of cddp_ddp with cddp_optim.
 *
 * On a GPU whole steps may become part of a CUDA graph, as those of a reducer (experimental/stream.h). The capture
 * begins between two steps, after at least one, with no unit held; if it does not, its first call is CDDP_E_STATE,
 * which breaks nothing. A launch comes between two steps, too, with no unit held, which nobody can check. From the
 * first capture on, cddp_fsdp_gather() outside of captures gathers one unit at a time, and anew each time.
 */
typedef struct cddp_fsdp cddp_fsdp;

/* cddp_param.flags, in a unit. */
enum {
    /*
     * The parameter is frozen: it is gathered as any other, and never trained. It has no gradient, no optimizer state,
     * and no part in norms. So adapters (LoRA) need memory for their own gradients alone.
     */
    CDDP_PARAM_FROZEN = 1
};

/* cddp_fsdp_unit.flags. */
enum {
    /*
     * The unit stays gathered until the parameters change: fewer messages, more memory. For small or late units, and
     * for one that is much larger than the others, such as an embedding: it is beside the pools, so that their slots
     * are smaller. That of gradients holds only where it takes fewer bytes.
     */
    CDDP_FSDP_KEEP = 1
};

typedef struct cddp_fsdp_unit {
    size_t size;              /* sizeof(cddp_fsdp_unit), in each of an array */
    const char *name;         /* for messages, such as "block.3" */
    const cddp_param *params; /* in forward order. `data` is where rank 0's values are, or NULL; `grad` is NULL */
    size_t n_params;
    uint64_t flags; /* CDDP_FSDP_KEEP; 0: none */
} cddp_fsdp_unit;

typedef struct cddp_fsdp_options {
    size_t size; /* sizeof(cddp_fsdp_options) */
    /*
     * 3, or 0: parameters, gradients and states are divided. 2: each rank keeps whole parameters, so that each unit is
     * gathered once per step; gradients and states are divided.
     */
    int stage;
    uint32_t flags;            /* 0 */
    size_t max_live_units;     /* units whose parameters are whole at a time, without those that are kept; 0: 3 */
    size_t max_live_gradients; /* units whose gradients are whole at a time; 0: 2. All, to accumulate whole gradients
                                  over several backward passes */
    /*
     * Fills in the parameters of unit u, at data[0], data[1], ...: called once for each unit at creation, on every
     * rank, and rank 0's values count. So a model that does not fit into one rank's memory can begin. NULL: the
     * parameters' `data`; where that is NULL, too, they are zeros. On a GPU it enqueues its work on `stream`. Returns
     * CDDP_OK, or an error, which becomes that of cddp_fsdp_create.
     */
    cddp_status (*fill)(void *arg, size_t u, void *const *data);
    void *arg;
    void *stream; /* GPU: the compute stream, as in cddp_ddp_options */
    /*
     * Hybrid sharding (HSDP): the ranks that have the same shares in other groups. Then `comm` is a group, such as the
     * ranks of a node, among whom the model is divided, and this communicator has one rank of each group, in the same
     * order of groups for every rank of comm (cddp_comm_split, by node and by local rank). Gradients become the mean
     * over all ranks: the sum of each group in its rank order, divided by its size, then the sum of these in the order
     * of `replicas`, divided by their number, each rounded to the gradients' type. Rank 0 of the first group has the
     * first values. NULL: there are no replicas. It is finalized after cddp_fsdp_destroy.
     */
    cddp_comm *replicas;
} cddp_fsdp_options;

/* This rank's elements of a parameter: [begin, begin + count) of it. */
typedef struct cddp_fsdp_shard_info {
    size_t size; /* sizeof(cddp_fsdp_shard_info), set by the caller */
    size_t begin, count;
    void *param; /* `count` elements, of the parameter's type; NULL: there are none */
    void *grad;  /* the mean of their gradients, of the gradients' type, clipped if the step clips, from the step's end
                    to the next cddp_fsdp_grads_ready of the unit; NULL also if the parameter is frozen */
} cddp_fsdp_shard_info;

/*
 * Creates a sharded model of n_units, in forward order. A collective: every rank calls it with the same units, which
 * are compared. A unit is divided into equal parts of 64 bytes' alignment, regardless of its parameters' boundaries, so
 * parameters may have any size. Their gradients may be float32 (grad_dtype): then parameters of 16 bits are gathered as
 * such, and their gradients summed as float32, in twice the memory. A parameter belongs to one unit: one that others
 * use, too, such as an embedding that is also the output layer, is gathered with its unit for each use, and its
 * gradients are added up in one place (cddp_fsdp_grad). No two parameters have the same `data`. All memory is allocated
 * here: this rank's shares of parameters and gradients, units that are kept, and pools of max_live_units and
 * max_live_gradients times the largest other unit, for gradients without its frozen parameters.
 *
 * units and names are copied; `data` is not used after it. opt may be NULL. *out is written on success only; release it
 * with cddp_fsdp_destroy(). Returns CDDP_OK; CDDP_E_INVALID (the message names unit and parameter); CDDP_E_UNSUPPORTED
 * (CDDP_NAN_CHECK, a newer header's struct); CDDP_E_MISMATCH (the ranks differ, and in what); CDDP_E_NOMEM (the message
 * has the bytes); an error of `fill`; or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_fsdp_create(cddp_fsdp **out, cddp_comm *comm, const cddp_fsdp_unit *units,
                                                     size_t n_units, const cddp_fsdp_options *opt);

/*
 * Begins to gather unit u, unless its parameters are here already, and holds them until cddp_fsdp_release(), which must
 * follow as often. If the last step wanted units in this order, too, the next ones are begun as well, as far as the
 * pool has room for them. On the CPU it may wait for the last operation on a slot of the pool. From one thread.
 * Returns CDDP_OK; CDDP_E_INVALID (no such unit); CDDP_E_STATE (max_live_units are in use, or a unit was held over the
 * end of a step: the message names it; or a capture began in the middle of a step; nothing is broken); or the error of
 * a communicator that has failed.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_fsdp_gather(cddp_fsdp *f, size_t u);
/*
 * Waits until unit u, which is held, is here: on the CPU it blocks, and on a GPU the compute stream waits. Returns
 * CDDP_OK; CDDP_E_INVALID; CDDP_E_STATE (it is not held, or since before the end of a step, so that its parameters are
 * old); or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_fsdp_wait_unit(cddp_fsdp *f, size_t u);
/*
 * Returns parameter i of unit u, whole, from cddp_fsdp_wait_unit() to cddp_fsdp_release(); 64-byte aligned. It is only
 * read; anything written there is lost. Returns NULL and sets the last error: no such parameter; the unit is not held,
 * or was not waited for since cddp_fsdp_gather(); or a step has ended meanwhile.
 */
CDDP_API const void *cddp_fsdp_param(const cddp_fsdp *f, size_t u, size_t i);
/* Ends a hold of cddp_fsdp_gather. Returns CDDP_OK; CDDP_E_INVALID; or CDDP_E_STATE: the unit is not held. */
CDDP_API cddp_status cddp_fsdp_release(cddp_fsdp *f, size_t u);

/*
 * Returns where the gradient of parameter i of unit u belongs: memory of the pool with unspecified content, from the
 * first such call of a step to cddp_fsdp_grads_ready(), and at the same place in between. Every element is written. On
 * the CPU the first call for a unit may wait until an older unit's gradients are divided. Returns NULL and sets the
 * last error: no such parameter; it is frozen; the unit's gradients were reported in this step; max_live_gradients are
 * in use; the communicator has failed.
 */
CDDP_API void *cddp_fsdp_grad(cddp_fsdp *f, size_t u, size_t i);
/*
 * Reports all gradients of unit u as complete: their means are made, and each rank gets its share. Never waits. Once
 * per unit and step, from one thread. Returns CDDP_OK; CDDP_E_INVALID; CDDP_E_STATE (twice in a step, without
 * cddp_fsdp_grad, or a unit that is wholly frozen; nothing is broken); or the error of a communicator that has failed.
 * The status may be ignored: the end of the step finds a unit that is missing, and a communicator that has failed.
 */
CDDP_API cddp_status cddp_fsdp_grads_ready(cddp_fsdp *f, size_t u);

/*
 * Creates an optimizer for f's shares: cddp_optim_create() has the rest. cddp_optim_step() ends a step. A unit whose
 * gradients were not reported in it is CDDP_E_STATE, and ends the job, as in cddp_ddp_wait(). Groups number parameters
 * through all units, also frozen ones, for which it has no state.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_optim_create_sharded(cddp_optim **out, cddp_fsdp *f,
                                                              const cddp_optim_options *opt);
/*
 * Ends a step without cddp_optim: waits until the means of all units' gradients are in the shares, for an optimizer of
 * the program's own, which updates cddp_fsdp_shard()'s parameters before the next cddp_fsdp_gather(). On a GPU the
 * compute stream waits. Returns what cddp_ddp_wait() may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_fsdp_end_step(cddp_fsdp *f);
/*
 * Sets *norm to the norm of the whole model's gradients, the same on every rank, after cddp_fsdp_grads_ready of all
 * units and before the end of the step, which it does not end. norm_type, blocking and errors are as in
 * cddp_ddp_grad_norm(), whose bits it has.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_fsdp_grad_norm(cddp_fsdp *f, double norm_type, double *norm);
/* Fills in *info. Returns CDDP_OK; CDDP_E_INVALID (no such parameter, NULL); CDDP_E_UNSUPPORTED. */
CDDP_API CDDP_NODISCARD cddp_status cddp_fsdp_shard(const cddp_fsdp *f, size_t u, size_t i, cddp_fsdp_shard_info *info);
/* Returns the bytes that this rank holds for f, without optimizers. */
CDDP_API size_t cddp_fsdp_bytes(const cddp_fsdp *f);

/*
 * Frees f; NULL is allowed. Waits for operations that have begun. Otherwise as cddp_ddp_destroy(): it is local, and its
 * optimizers can only be destroyed afterwards.
 */
CDDP_API void cddp_fsdp_destroy(cddp_fsdp *f);

#ifdef __cplusplus
}
#endif

#endif
