/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which gradient lies where, in which bucket, and which buckets may be launched. Pure: the reducer drives it and does
 * what it says. Two ranks with the same gradients and caps have the same plan, and launch the same buckets in the same
 * order, whatever the order in which their gradients become ready.
 *
 * Gradients are placed in the reverse of their forward order, since a backward pass makes the last ones first. As in
 * PyTorch, a gradient is appended to its bucket first; the bucket is closed if it then has reached the cap. A bucket
 * holds one type only, so each type has a bucket of its own open; buckets are launched in the order of their closing,
 * those that never reached the cap last. If wanted, a gradient that is larger than the cap is cut into several buckets,
 * which hold nothing else; and the model's first gradients make a small bucket, the last to be launched.
 *
 * Gradients of one type lie behind one another, the last of the model first: where parts is 1, at a place that does not
 * depend on the caps.
 */
#ifndef CDI_REDUCER_BUCKET_H
#define CDI_REDUCER_BUCKET_H

#include "common/error.h"

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stddef.h>

#define CDI_GRAD_ALIGN 64 /* bytes; every gradient and so every bucket starts at a multiple of it */

/* FILLING -> READY (its last gradient is there) -> FLYING (handed to the backend) -> FILLING (the next step). */
enum cdi_bucket_state { CDI_BUCKET_FILLING, CDI_BUCKET_READY, CDI_BUCKET_FLYING };

struct cdi_bucket {
    enum cdi_bucket_state state;
    cddp_dtype dtype;
    size_t offset, bytes; /* the part of the arena to reduce: padding between gradients counts, behind the last not */
    size_t room;          /* bytes up to the next bucket of its type, a multiple of `parts` * CDI_GRAD_ALIGN */
    size_t n_grads;       /* that lie in it; a piece of one counts as one */
    size_t missing;       /* of these, not ready in this step yet */
    size_t made;          /* its number when the plan was made: cdi_bucket_reorder does not change it */
    size_t turn;          /* among all, where none is idle */
    bool idle;            /* of a bucket whose gradients do not come; the caller's */
};

/* One gradient. The caller fills in bytes and dtype. */
struct cdi_grad {
    size_t bytes;
    cddp_dtype dtype;
    size_t offset;  /* in the arena */
    size_t bucket;  /* index into b: of the first, where it lies in several, which then follow one another */
    size_t n_parts; /* buckets that it lies in */
    size_t piece;   /* bytes of it in each but the last of these */
    bool claimed;   /* the user said that it is ready; it may still be on its way into the arena */
    bool landed;    /* its mean was brought to where the user reads it */
};

struct cdi_bucket_plan {
    struct cdi_grad *grads;
    size_t n_grads;
    struct cdi_bucket *b;
    size_t n;     /* buckets, in the order of their launch */
    size_t ahead; /* of these, not idle: the others come behind them, and are launched out of turn or not at all */
    size_t next;  /* the first one ahead that was not launched in this step */
    size_t arena_bytes; /* a multiple of CDI_GRAD_ALIGN */
    size_t parts;       /* every bucket's room can be divided into so many equal, aligned parts: the world's ranks */
};

/* Where buckets end, in bytes of gradients: padding does not count. */
struct cdi_bucket_caps {
    size_t first; /* at which the first bucket of a type closes, >= 1 */
    size_t cap;   /* the others, >= 1 */
    size_t last;  /* the model's first gradients, until they reach this, make the last bucket of their type; 0: none */
    bool split;   /* cut gradients that are larger than cap; only where parts is 1 */
    size_t parts; /* a bucket's room can be divided into so many, >= 1 */
};

/*
 * Make the plan for n gradients in forward order (bytes and dtype of each; n, bytes >= 1). grads is taken over by the
 * plan on success and stays the caller's on failure (allocated by malloc). CDDP_OK, CDDP_E_NOMEM (also: more bytes than
 * an address space).
 */
cddp_status cdi_bucket_plan_init(struct cdi_bucket_plan *p, struct cdi_grad *grads, size_t n,
                                 const struct cdi_bucket_caps *caps, struct cdi_error *err);
/* Free; NULL-safe, and safe on a zeroed plan. */
void cdi_bucket_plan_release(struct cdi_bucket_plan *p);

/* Gradient i (in range) was said to be ready in this step. False: it had been already. */
bool cdi_bucket_claim(struct cdi_bucket_plan *p, size_t i);
/*
 * Claimed gradient i is in the arena. Returns how many buckets from p->next on may be launched now, which the caller
 * does, one by one, in order, telling of each by cdi_bucket_launched.
 */
size_t cdi_bucket_grad_ready(struct cdi_bucket_plan *p, size_t i);
/* Bucket p->next was handed to the backend. */
void cdi_bucket_launched(struct cdi_bucket_plan *p);
/* Full bucket b, behind those ahead, was handed to the backend. */
void cdi_bucket_launched_late(struct cdi_bucket_plan *p, size_t b);
/* Were all buckets ahead launched in this step? */
bool cdi_bucket_all_launched(const struct cdi_bucket_plan *p);
/*
 * Between two steps: launch the buckets in the order in which `order`, the n gradients as they became ready, completes
 * them; none is idle. What the arena holds stays where it is. to[b] becomes the new number of bucket b. CDDP_OK;
 * CDDP_E_NOMEM; CDDP_E_PROTOCOL (order comes from another rank, and holds what is no gradient).
 */
cddp_status cdi_bucket_reorder(struct cdi_bucket_plan *p, const int32_t *order, size_t n, size_t *to,
                               struct cdi_error *err);
/*
 * Between two steps, where parts is 1: other caps. What the arena holds stays where it is, and offset and bytes of a
 * gradient are not written, so that others may read them meanwhile. Buckets have the order of a new plan, and p->b is
 * other memory. *changed (may be NULL): they are not those from before, which were in that order, too. CDDP_OK;
 * CDDP_E_NOMEM, and then nothing has changed.
 */
cddp_status cdi_bucket_recut(struct cdi_bucket_plan *p, const struct cdi_bucket_caps *caps, bool *changed,
                             struct cdi_error *err);
/*
 * Between two steps: put the idle buckets behind the others, and let those that are not idle any more have their turn
 * again. to as in cdi_bucket_reorder. CDDP_OK, CDDP_E_NOMEM.
 */
cddp_status cdi_bucket_sort_idle(struct cdi_bucket_plan *p, size_t *to, struct cdi_error *err);
/* Begin a step, also where the one before was given up. */
void cdi_bucket_reset(struct cdi_bucket_plan *p);
/* All have landed: begin the next step. */
void cdi_bucket_next_step(struct cdi_bucket_plan *p);

#endif
