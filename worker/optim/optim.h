/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the optimizer. Each file calls only those before it in this list: optim_check.c, which checks options;
 * optim_state.c, primitives; optim_host.c and optim_device.c, which do a step; optim_checkpoint.c, which saves and
 * loads; optim.c, the public functions.
 */
#ifndef CDI_OPTIM_H
#define CDI_OPTIM_H

#include "worker/math/optim_update.h"
#include "worker/reducer/layout/shard.h"
#include "worker/reducer/state/state.h"

/* The values of a parameter's group. */
struct cdi_optim_own {
    double lr_factor, weight_decay;
    uint64_t is_frozen; /* 1: the parameter is not updated */
};

struct cddp_optim {
    const struct cdi_item_ops *item_ops; /* first: how it is saved in a checkpoint (checkpoint/item.h) */
    cddp_ddp *ddp;
    struct cdi_optim_rule rule;
    struct cdi_optim_own *own; /* by parameter; the rule's weight_decay is for those in no group */
    struct cdi_shard *shards;  /* this rank's, by parameter */
    struct cdi_shard_sizes sizes;
    void *state[CDI_OPTIM_STATES]; /* NULL: the rule has fewer, or this rank has no elements */
    float *master;                 /* NULL: no parameters of 16 bits */
    uint64_t *steps;               /* steps of each parameter; the same on every rank. On a device: see rows */
    uint64_t *tickets;             /* by bucket: of the exchange of its parameters in this step */
    double grad_scale;             /* of cddp_optim_set_grad_scale */
    uint64_t skipped;              /* skipped steps; on a device: see device_skipped */
    /* For the current step, from the arguments of cddp_optim_step: */
    struct cdi_optim_rule now; /* with its learning rate and its scale */
    bool own_lr, own_scale;    /* they are this step's alone, also in a graph */
    double max_norm;           /* 0: no clipping */
    bool skip_nonfinite;       /* CDDP_OPTIM_SKIP_NONFINITE */
    bool left_out;             /* the step was skipped, as far as the host knows */
    bool on_device;
    bool is_loaded; /* the checkpoint that is being loaded has the state, and so the masters */
    /* On a device, which also holds state and master; otherwise NULL. All of it is in the reducer's optim_memory. */
    struct cdi_optim_row *device_rows,
        *rows; /* by parameter: its numbers on the device, and a buffer for them on the host */
    uint64_t *device_skipped;
    double *device_numbers; /* what a graph's steps read: the learning rate, and the factor of gradients */
    struct cdi_optim_piece
        *pieces;              /* by parameter: this rank's share; and other ranks', of those with long gradients */
    struct cdi_slice *others; /* the arena: parts of other ranks' shares, and gaps, also for those */
    size_t n_others, n_pieces;
    uint8_t *idle; /* by parameter: no rank used it in this step */
};

/* --- optim_state.c */
/*
 * Returns CDDP_OK; CDDP_E_INVALID if o is NULL, CDDP_E_STATE if its reducer was destroyed or in a child of the process
 * that made it. Every public function calls it first.
 */
cddp_status cdi_optim_check(const char *function, const cddp_optim *o, struct cdi_error *err);
/*
 * Returns true if parameter i stays as it is in this step, whose gradients are reduced, or is updated as the one to
 * which it is tied.
 */
bool cdi_optim_is_idle(const cddp_optim *o, size_t i);
/* Returns true if a 16-bit parameter has float32 gradients. */
bool cdi_optim_has_wide_grad(const cddp_param *p);
/* Returns true if the ranks exchange new parameters: there are several, and each has all of them. */
bool cdi_optim_exchanges(const cddp_optim *o);
/* Returns true if a bucket has other parameters than those that are tied to earlier ones. */
bool cdi_optim_bucket_has_untied(const cddp_optim *o, size_t bucket);
/* Sends a bucket's new parameters, which are in the gradients' place, to all ranks. Sets the sticky error. */
cddp_status cdi_optim_exchange(cddp_optim *o, size_t bucket);

/* --- optim_check.c: these return CDDP_OK, or CDDP_E_INVALID with an error message that names the member */
/* Reads the program's options into opt and its rule into r. May also return CDDP_E_UNSUPPORTED. */
cddp_status cdi_optim_make_rule(struct cdi_optim_rule *r, cddp_optim_options *opt, const cddp_optim_options *given,
                                struct cdi_error *err);
/*
 * Reads the arguments of o's next step; args may be NULL. May also return CDDP_E_UNSUPPORTED; on failure nothing
 * changes.
 */
cddp_status cdi_optim_read_args(cddp_optim *o, const cddp_optim_step_args *args, struct cdi_error *err);
/* Applies the groups to own: zeros, one for each of d's parameters. */
cddp_status cdi_optim_apply_groups(struct cdi_optim_own *own, const cddp_ddp *d, const cddp_optim_options *opt,
                                   struct cdi_error *err);

/* --- optim_host.c */
/* Allocates and fills the state; groups, shards and sizes are known. Returns false without memory. */
bool cdi_optim_host_init(cddp_optim *o);
/* Makes the float32 copies of this rank's 16-bit parameters. */
void cdi_optim_host_copy(cddp_optim *o);
void cdi_optim_host_release(cddp_optim *o);
/* For cdi_step_finish: complete a step, and a step that is skipped. */
cddp_status cdi_optim_host_complete(cddp_ddp *d, void *arg);
cddp_status cdi_optim_host_pass_over(cddp_ddp *d, void *arg);

/* --- optim_device.c */
/*
 * Allocates and fills the state; groups, shards and sizes are known. Returns CDDP_OK, CDDP_E_NOMEM, or the device's
 * error.
 */
cddp_status cdi_optim_device_init(cddp_optim *o, struct cdi_error *err);
/* Enqueues the making of the float32 copies of this rank's 16-bit parameters. */
cddp_status cdi_optim_device_copy(cddp_optim *o, struct cdi_error *err);
void cdi_optim_device_release(cddp_optim *o);
/* For cdi_step_finish: complete a step, and a step that is skipped. */
cddp_status cdi_optim_device_complete(cddp_ddp *d, void *arg);
cddp_status cdi_optim_device_pass_over(cddp_ddp *d, void *arg);
/*
 * Stores numbers for the steps of graphs, on the compute stream. The host does not wait. Returns CDDP_OK,
 * CDDP_E_UNSUPPORTED (the stream captures a graph), or the device's error.
 */
cddp_status cdi_optim_device_store(cddp_optim *o, double lr, double grad_scale, struct cdi_error *err);
/* Copy the count of steps from the device to o->steps, and back. The host waits. */
cddp_status cdi_optim_device_pull(cddp_optim *o, struct cdi_error *err);
cddp_status cdi_optim_device_push(cddp_optim *o, struct cdi_error *err);

/* --- optim_checkpoint.c */
extern const struct cdi_item_ops cdi_optim_item_ops;
/*
 * Makes the float32 copies anew from parameters that were loaded, unless the state was loaded, too (is_loaded). With
 * the reducer's lock.
 */
cddp_status cdi_optim_follow_params(cddp_optim *o, struct cdi_error *err);

#endif
