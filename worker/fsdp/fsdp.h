/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of a sharded model. A unit is one or more buckets of a reducer, one for each type of parameter (reducer,
 * "divided"), whose lock covers everything here. That reducer has the shares, compares the ranks, and serves norms and
 * optimizers. create.c makes a model; fsdp.c gathers units, and divides their gradients; across.c has the replicas.
 */
#ifndef CDI_FSDP_H
#define CDI_FSDP_H

#include "worker/fsdp/across.h"
#include "worker/fsdp/pool.h"
#include "worker/reducer/state/state.h"

#include <cddp/experimental/fsdp.h>

/* One type of a unit. */
struct cdi_fsdp_part {
    size_t bucket;  /* of the reducer */
    size_t at;      /* bytes from the start of a slot of parameters, */
    size_t grad_at; /* and of one of gradients */
};

struct cdi_fsdp_unit {
    char *name;
    size_t first, n_params; /* parameters of the reducer */
    size_t part, n_parts;   /* of cddp_fsdp.parts */
    size_t n_made;          /* the first ones of these parts have gradients; the others are frozen */
    size_t bytes;           /* of a slot that holds it */
    size_t grad_bytes;      /* of its gradients */
    size_t own_grad_slot;   /* for it alone; CDI_POOL_NONE: it takes one of the pool's */
    uint64_t ticket;        /* of its last gather */
    size_t grad_slot;       /* CDI_POOL_NONE: it has none */
    bool is_here;           /* it is held, and was waited for since */
};

/* Where whole gradients are. */
struct cdi_fsdp_grad_slot {
    size_t at;       /* bytes from the start of the region */
    size_t unit;     /* CDI_POOL_NONE: none, or its gradients are being divided: */
    uint64_t ticket; /* the end of that; 0: nothing was there yet */
};

struct cddp_fsdp {
    const struct cdi_item_ops *item_ops; /* first: how it is saved in a checkpoint (checkpoint/item.h) */
    cddp_ddp *ddp;
    cddp_optim *optim; /* the one that was made last: it is there while ddp->held_by is set */
    struct cdi_fsdp_unit *unit;
    struct cdi_fsdp_part *parts;
    size_t n_units;
    struct cdi_region *region; /* slots of parameters, of kept units, of gradients; shares of gradients */
    size_t *slot_at;           /* by slot of parameters, also of kept units: bytes from the start of the region */
    uint64_t *slot_ticket;     /* by slot of parameters: the last gather into it */
    struct cdi_pool pool;
    struct cdi_fsdp_grad_slot *grad_slot;
    size_t n_grad_slots, n_own_grad_slots; /* the pool's, and after them those of one unit each */
    size_t shares_at;              /* this rank's shares of gradients, also there: windows of NCCL need both in one */
    uint64_t step, captured_steps; /* of the reducer, when the pool was up to date */
    bool in_graphs; /* a step was captured: launches, of which the host learns nothing, change parameters and slots */
    struct cdi_across across;
};

/* Returns where bucket part k of a unit, or one of its parameters, is in a slot of parameters. */
static inline char *cdi_fsdp_part_at(const struct cddp_fsdp *f, size_t slot_begin, size_t k)
{
    return (char *)f->region->base + slot_begin + f->parts[k].at;
}

extern const struct cdi_item_ops cdi_fsdp_item_ops;

void *cdi_fsdp_param_at(const struct cddp_fsdp *f, size_t slot_begin, size_t u, size_t i);

#endif
