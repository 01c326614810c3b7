/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Items of a checkpoint that are no memory: what a sampler, an optimizer or a reducer has to say in a file, and how it
 * takes that up. checkpoint_comm.c, which knows no kind, calls these in their order, between two steps, in one thread.
 */
#ifndef CDI_CHECKPOINT_ITEM_H
#define CDI_CHECKPOINT_ITEM_H

#include "worker/checkpoint/file.h"

/*
 * An object, and its state as a file has it: entries whose names begin with the item's, in memory of their own. There
 * are entries on rank 0 only.
 */
struct cdi_state {
    const char *name; /* the program's, like the object */
    void *object;
    cddp_item_kind kind;
    cddp_checkpoint_item *entries;
    size_t n_entries;
    void *room; /* what is needed for an exchange */
};

/* Another entry, NAME and suffix: its zeroed memory. NULL: *err says that there is no memory. */
void *cdi_state_add(struct cdi_state *s, const char *suffix, size_t bytes, struct cdi_error *err);
/* What cdi_state_add gave for the k-th one. */
void *cdi_state_at(const struct cdi_state *s, size_t k);
void cdi_state_release(struct cdi_state *s);

/*
 * Moves the part of one rank between `own`, memory of its backend, and `at_root`, host memory of rank 0. Rank 0 and
 * `rank` call it; each uses its own address. Fails like a collective, or with the device.
 */
cddp_status cdi_state_exchange(cddp_comm *comm, int rank, void *at_root, void *own, size_t bytes, bool to_root,
                               struct cdi_error *err);

/*
 * A kind. On failure of one that is no collective nothing has changed, and all ranks are told by the caller; one that
 * is a collective (collect, take_up) fails with the communicator, or with the device.
 */
struct cdi_item_ops {
    /* Each rank alone: is the object of comm, and can it be asked now? */
    cddp_status (*check)(void *object, const cddp_comm *comm, struct cdi_error *err);
    /* Rank 0 alone: entries for all of it, and what is rank 0's of them. */
    cddp_status (*begin_save)(struct cdi_state *s, struct cdi_error *err);
    /* A collective; NULL: rank 0 has all. The other ranks' part of the entries. */
    cddp_status (*collect)(struct cdi_state *s, struct cdi_error *err);
    /* Rank 0 alone: does what the file has fit the object? Then it is read into entries. */
    cddp_status (*begin_load)(struct cdi_state *s, const struct cdi_checkpoint_file *f, struct cdi_error *err);
    /*
     * A collective; NULL: there is nothing to compare. What each rank has to see before it can say that it fits. *fits
     * is this rank's answer, with its text in *err; the result is the communicator's.
     */
    cddp_status (*compare)(struct cdi_state *s, cddp_comm *comm, cddp_status *fits, struct cdi_error *err);
    /* A collective: the object becomes what the entries say. */
    cddp_status (*take_up)(struct cdi_state *s, cddp_comm *comm, struct cdi_error *err);
};

/* Returns the functions of s->object. An optimizer and a reducer begin with a pointer to theirs. */
const struct cdi_item_ops *cdi_item_ops(const struct cdi_state *s);

#endif
