/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the optimizer: what optim.c, which takes steps, optim_device.c, which does so on a device, optim_input.c,
 * which checks options, and optim_state.c, which saves and loads, share.
 */
#ifndef CDI_OPTIM_H
#define CDI_OPTIM_H

#include "worker/optim_shard.h"
#include "worker/optim_update.h"
#include "worker/reducer.h"

/* What a parameter's group says. */
struct cdi_optim_own {
    double lr_factor, weight_decay;
};

struct cddp_optim {
    cddp_ddp *ddp;
    struct cdi_optim_rule rule;
    struct cdi_optim_own *own; /* by parameter; the rule's weight_decay is that of those in no group */
    struct cdi_shard *shards;  /* this rank's, by parameter */
    struct cdi_shard_sizes sizes;
    void *state[CDI_OPTIM_STATES]; /* NULL: the rule has fewer, or this rank has no elements */
    float *master;                 /* NULL: no parameters of 16 bits */
    uint64_t *steps;               /* that each parameter has taken; the same on every rank. On a device: see rows */
    uint64_t *tickets;             /* by bucket: of the exchange of its parameters in this step */
    bool skip_nonfinite;           /* CDDP_OPTIM_SKIP_NONFINITE */
    uint64_t skipped;              /* so many steps; on a device: see device_skipped */
    bool on_device;
    /* On a device, where state and master are, too; else NULL. All of it is the reducer's optim_memory. */
    struct cdi_optim_row *device_rows, *rows; /* by parameter: what counts, and room for it on the host */
    uint64_t *device_skipped;
    struct cdi_optim_piece *pieces; /* by parameter: this rank's share */
    struct cdi_slice *others;       /* the arena: what is of other ranks' shares, and gaps */
    size_t n_others;
    uint8_t *idle; /* by parameter: no rank used it in this step */
};

/* Is there an optimizer (CDDP_E_INVALID), and its reducer still (CDDP_E_STATE)? Each public function's first question.
 */
cddp_status cdi_optim_check(const char *function, const cddp_optim *o, struct cdi_error *err);
/* A bucket's new parameters, which lie in the gradients' place, go to all ranks. Sticks. */
cddp_status cdi_optim_exchange(cddp_optim *o, size_t bucket);

/* --- optim_input.c: CDDP_OK, or CDDP_E_INVALID and a sentence that names the member */
/* opt becomes what the program said, as this library knows it. Also CDDP_E_UNSUPPORTED. */
cddp_status cdi_optim_make_rule(struct cdi_optim_rule *r, cddp_optim_options *opt, const cddp_optim_options *said,
                                struct cdi_error *err);
/* own: zeros, one for each of d's parameters. */
cddp_status cdi_optim_apply_groups(struct cdi_optim_own *own, const cddp_ddp *d, const cddp_optim_options *opt,
                                   struct cdi_error *err);

/* --- optim_device.c */
/* Groups, shards and sizes are known. CDDP_OK, CDDP_E_NOMEM, or what the device says. */
cddp_status cdi_optim_device_init(cddp_optim *o, struct cdi_error *err);
void cdi_optim_device_release(cddp_optim *o);
/* For cdi_ddp_finish: a step, and one that is left out. */
cddp_status cdi_optim_device_land(cddp_ddp *d, void *arg);
cddp_status cdi_optim_device_pass_over(cddp_ddp *d, void *arg);
/* Between the device's count of steps and o->steps. The host waits. */
cddp_status cdi_optim_device_pull(cddp_optim *o, struct cdi_error *err);
cddp_status cdi_optim_device_push(cddp_optim *o, struct cdi_error *err);

#endif
