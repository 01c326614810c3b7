/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of buckets: where each gradient is, in which bucket, and which buckets may be launched. Pure: the reducer
 * drives it and carries out the result. Two ranks with the same gradients and caps have the same plan. They launch the
 * same buckets in the same order, whatever the order in which their gradients become ready.
 *
 * Gradients are placed in the reverse of their forward order, since a backward pass produces the last ones first. As in
 * PyTorch, a gradient is first appended to its bucket, which is then closed if it has reached the cap. A bucket holds a
 * single type, so each type has its own open bucket. Buckets are launched in the order of their closing; those that
 * never reached the cap are last. On request, a gradient larger than the cap is cut into several buckets, which hold
 * nothing else. On request, the model's first gradients form a small bucket, which is launched last. Frozen gradients
 * have separate buckets, which come last and are idle from the beginning: they are for parameters alone.
 *
 * Gradients of one type are contiguous, the last of the model first; those that are frozen follow all others. If parts
 * is 1, their offsets do not depend on the caps.
 */
#ifndef CDI_REDUCER_BUCKET_H
#define CDI_REDUCER_BUCKET_H

#include "common/error.h"

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stddef.h>

#define CDI_GRAD_ALIGN 64 /* bytes; every gradient, and so every bucket, starts at a multiple of it */

/* FILLING -> READY (its last gradient has arrived) -> FLYING (handed to the backend) -> FILLING (the next step). */
enum cdi_bucket_state { CDI_BUCKET_FILLING, CDI_BUCKET_READY, CDI_BUCKET_FLYING };

struct cdi_bucket {
    enum cdi_bucket_state state;
    cddp_dtype dtype;
    size_t offset,
        bytes;       /* the part of the arena to reduce, including padding between gradients, but not after the last */
    size_t room;     /* bytes up to the next bucket of its type, a multiple of `parts` * CDI_GRAD_ALIGN */
    cddp_dtype held; /* the type of its parameters, */
    size_t held_offset, held_room; /* and where they would be in an arena of parameters, with equal parts */
    size_t first;                  /* its gradients are place[first] of the plan, and the n_grads - 1 after it */
    size_t n_grads;                /* gradients in it; a piece of one counts as one */
    size_t missing;                /* those not ready in this step yet */
    size_t made;                   /* its number when the plan was made: cdi_bucket_reorder does not change it */
    size_t turn;                   /* its position in the launch order if no bucket is idle */
    bool idle;                     /* set by the caller, or frozen: the bucket's gradients do not arrive */
};

/* One gradient. The caller fills in bytes, dtype, held and frozen. */
struct cdi_grad {
    size_t bytes;
    cddp_dtype dtype;
    cddp_dtype held; /* its parameter's type, if that is divided likewise and has fewer bytes; 0: as dtype */
    bool frozen;     /* it is never made */
    size_t offset;   /* in the arena */
    size_t bucket;   /* index into b of its bucket; of the first one if it is cut into consecutive buckets */
    size_t n_parts;  /* number of its buckets */
    size_t piece;    /* bytes of it in each of its buckets but the last */
    bool claimed;    /* the user reported it ready; it may still be on its way into the arena */
    bool copied_out; /* its mean was copied to where the user reads it */
};

struct cdi_bucket_plan {
    struct cdi_grad *grads;
    size_t n_grads;
    size_t *place; /* the gradients in the order of the arena; does not change */
    struct cdi_bucket *b;
    size_t n;     /* buckets, in launch order */
    size_t ahead; /* number of buckets that are not idle. The idle ones follow; they are launched out of turn or not at
                     all */
    size_t next;  /* the first of these not launched in this step */
    size_t arena_bytes; /* a multiple of CDI_GRAD_ALIGN */
    size_t made_bytes;  /* likewise, without the frozen gradients, which follow */
    size_t held_bytes;  /* likewise, of an arena of parameters */
    size_t parts; /* the number of equal, aligned parts into which every bucket's room can be divided: the world size */
};

/* The defaults of cddp_ddp_options: small first, so that communication begins early in the backward pass. */
#define CDI_BUCKET_FIRST_BYTES ((size_t)1 << 20)
#define CDI_BUCKET_BYTES ((size_t)25 << 20)

/* Where buckets end, in bytes of gradients, without padding. */
struct cdi_bucket_caps {
    size_t first; /* of the first bucket of a type, >= 1 */
    size_t cap;   /* of the other buckets, >= 1 */
    size_t
        last; /* the model's first gradients, until they reach this size, form the last bucket of their type; 0: off */
    bool split;         /* cut gradients that are larger than cap; requires parts == 1 */
    const size_t *unit; /* by gradient, ascending: no bucket has gradients of two units; NULL: there is one */
    size_t parts;       /* number of parts into which a bucket's room can be divided, >= 1 */
};

/*
 * Makes the plan for n gradients in forward order (what the caller fills in; n, bytes >= 1). On success the plan
 * owns grads, which was allocated by malloc; on failure the caller keeps it. Returns CDDP_OK or CDDP_E_NOMEM (also for
 * more bytes than the address space has).
 */
cddp_status cdi_bucket_plan_init(struct cdi_bucket_plan *p, struct cdi_grad *grads, size_t n,
                                 const struct cdi_bucket_caps *caps, struct cdi_error *err);
/* Frees the plan. Accepts NULL and a zeroed plan. */
void cdi_bucket_plan_release(struct cdi_bucket_plan *p);

/* Returns gradient k, in the order of the arena, of the n_grads of bucket b. */
static inline size_t cdi_bucket_grad(const struct cdi_bucket_plan *p, size_t b, size_t k)
{
    return p->place[p->b[b].first + k];
}

/* Claims gradient i (in range), which was reported ready. Returns false if it was claimed already in this step. */
bool cdi_bucket_claim(struct cdi_bucket_plan *p, size_t i);
/*
 * Records that claimed gradient i is in the arena. Returns the number of buckets from p->next on that may be launched
 * now. The caller launches them one by one, in order, and calls cdi_bucket_launched after each.
 */
size_t cdi_bucket_grad_ready(struct cdi_bucket_plan *p, size_t i);
/* Records that bucket p->next was handed to the backend. */
void cdi_bucket_launched(struct cdi_bucket_plan *p);
/* Records that complete bucket b, an idle one, was handed to the backend. */
void cdi_bucket_launched_late(struct cdi_bucket_plan *p, size_t b);
/* Returns true if all buckets that are not idle were launched in this step. */
bool cdi_bucket_all_launched(const struct cdi_bucket_plan *p);
/*
 * Changes the launch order between two steps: buckets are launched as `order`, the n gradients as they became ready,
 * completes them; none is idle. The arena's layout stays. Sets to[b] to the new number of bucket b. Returns CDDP_OK,
 * CDDP_E_NOMEM, or CDDP_E_PROTOCOL if order, which another rank sent, contains an invalid gradient.
 */
cddp_status cdi_bucket_reorder(struct cdi_bucket_plan *p, const int32_t *order, size_t n, size_t *to,
                               struct cdi_error *err);
/*
 * Applies other caps between two steps; requires parts == 1. The arena's layout stays, and offset and bytes of a
 * gradient are not written, so other threads may read them meanwhile. Buckets get the order of a new plan, and p->b is
 * new memory. Sets *changed (may be NULL) if the buckets differ from those before, which had that order, too. Returns
 * CDDP_OK or CDDP_E_NOMEM; then nothing has changed.
 */
cddp_status cdi_bucket_recut(struct cdi_bucket_plan *p, const struct cdi_bucket_caps *caps, bool *changed,
                             struct cdi_error *err);
/*
 * Moves the idle buckets after the others, between two steps, and puts those that are no longer idle back into their
 * turn. Sets to as cdi_bucket_reorder does. Returns CDDP_OK or CDDP_E_NOMEM.
 */
cddp_status cdi_bucket_sort_idle(struct cdi_bucket_plan *p, size_t *to, struct cdi_error *err);
/* Begins a step, also after an abandoned one. */
void cdi_bucket_reset(struct cdi_bucket_plan *p);
/* Begins the next step after all buckets are complete. */
void cdi_bucket_next_step(struct cdi_bucket_plan *p);

#endif
