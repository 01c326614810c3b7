/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Items of a checkpoint other than memory: what a sampler, an optimizer or a reducer stores in a file, and how it
 * restores it. checkpoint.c, which is independent of the kinds, calls these functions in their order, between two
 * steps, in one thread.
 */
#ifndef CDI_CHECKPOINT_ITEM_H
#define CDI_CHECKPOINT_ITEM_H

#include "worker/checkpoint/read.h"

/*
 * An object, and its state as a file has it: entries whose names begin with the item's, in separate memory. Only rank 0
 * has entries.
 */
struct cdi_state {
    const char *name; /* the caller's, like the object */
    void *object;
    cddp_comm *comm; /* which saves or loads */
    cddp_item_kind kind;
    cddp_checkpoint_item *entries;
    size_t n_entries;
    void *scratch; /* buffer for exchanges */
};

/*
 * Adds an entry, NAME and suffix, and returns its zeroed memory. Returns NULL with an error message if there is none.
 */
void *cdi_state_add(struct cdi_state *s, const char *suffix, size_t bytes, struct cdi_error *err);
/* Returns the memory of the k-th entry. */
void *cdi_state_at(const struct cdi_state *s, size_t k);
/* Removes the last entry. */
void cdi_state_drop(struct cdi_state *s);
void cdi_state_release(struct cdi_state *s);

/*
 * Moves the part of one rank between `own`, memory of its backend, and `at_root`, host memory of rank 0. Rank 0 and
 * `rank` call it; each uses its own address. Fails like a collective, or with the device.
 */
cddp_status cdi_state_exchange(cddp_comm *comm, int rank, void *at_root, void *own, size_t bytes, bool to_root,
                               struct cdi_error *err);

/*
 * What one rank writes or reads of a sharded checkpoint: whole items, and parts of items, whose memory is the program's
 * or an object's. Pieces of one item have the same name, by address. All zeros: none.
 */
struct cdi_pieces {
    cddp_checkpoint_item *items;
    struct cdi_range *ranges;
    size_t n, room;
    char **names;
    size_t n_names;
};

/* Returns the name of an item, PREFIX and suffix, which lives as long as p. Returns NULL with an error message. */
const char *cdi_pieces_name(struct cdi_pieces *p, const char *prefix, const char *suffix, struct cdi_error *err);
/* Adds a piece, of item->bytes bytes, which may be none. Returns CDDP_OK or CDDP_E_NOMEM. */
cddp_status cdi_pieces_add(struct cdi_pieces *p, const cddp_checkpoint_item *item, struct cdi_range range,
                           struct cdi_error *err);
/* Adds this rank's piece of an item of memory: of a load all of it, of a save an equal part. */
cddp_status cdi_pieces_add_memory(struct cdi_pieces *p, const cddp_checkpoint_item *item, const cddp_comm *comm,
                                  bool loads, struct cdi_error *err);
/* Removes the pieces of no bytes, but not items of no bytes. */
void cdi_pieces_pack(struct cdi_pieces *p);
void cdi_pieces_release(struct cdi_pieces *p);

/*
 * The functions of a kind. If one that is not a collective fails, nothing has changed, and the caller reports it to all
 * ranks. One that is a collective (collect, restore) fails with the communicator, or with the device.
 */
struct cdi_item_ops {
    /* On each rank: checks that the object belongs to s->comm, and can be saved now. May allocate s->scratch. */
    cddp_status (*check)(struct cdi_state *s, struct cdi_error *err);
    /* On rank 0: adds all entries, and fills in rank 0's part of them. */
    cddp_status (*begin_save)(struct cdi_state *s, struct cdi_error *err);
    /* A collective; NULL: rank 0 has everything. Fills in the other ranks' part of the entries. */
    cddp_status (*collect)(struct cdi_state *s, struct cdi_error *err);
    /* On rank 0: checks that the file's state fits the object, and reads it into entries. */
    cddp_status (*begin_load)(struct cdi_state *s, struct cdi_checkpoint_file *f, struct cdi_error *err);
    /*
     * A collective; NULL: nothing to compare. Gives each rank what it needs to check that the state fits. *fits is this
     * rank's answer, with its message in *err; the result is the communicator's.
     */
    cddp_status (*compare)(struct cdi_state *s, cddp_status *fits, struct cdi_error *err);
    /* A collective: restores the object from the entries. */
    cddp_status (*restore)(struct cdi_state *s, struct cdi_error *err);
    /*
     * Of a sharded checkpoint, on each rank, after check: adds this rank's pieces of the object, for all items also
     * where it has none of their bytes. f: of a load, to check that it fits; NULL: of a save. NULL: rank 0 has all, by
     * the functions above. If they are NULL, the kind is only in sharded checkpoints.
     */
    cddp_status (*pieces)(struct cdi_state *s, struct cdi_checkpoint_file *f, struct cdi_pieces *p,
                          struct cdi_error *err);
    /* On each rank, after these were read. */
    cddp_status (*loaded)(struct cdi_state *s, struct cdi_error *err);
    /* On each rank, after check: a hash of what the object has done, equal on all ranks. NULL: not to be compared. */
    uint32_t (*history)(const struct cdi_state *s);
};

/* Returns the functions of s->object. An optimizer and a reducer begin with a pointer to theirs. */
const struct cdi_item_ops *cdi_item_ops(const struct cdi_state *s);

#endif
