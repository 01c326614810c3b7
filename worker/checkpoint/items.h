/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The items of one call for checkpoints: the program's list, read and checked on this rank, and the list for a file
 * that is made of it. Used by one thread.
 */
#ifndef CDI_CHECKPOINT_ITEMS_H
#define CDI_CHECKPOINT_ITEMS_H

#include "worker/checkpoint/async.h"
#include "worker/checkpoint/item.h"
#include "worker/comm/comm.h"

static inline bool cdi_item_is_own(const cddp_checkpoint_item *item)
{
    return (item->flags & CDDP_ITEM_PER_RANK) != 0;
}

/* Items of which rank 0's value is everyone's. */
struct cdi_shared {
    const cddp_checkpoint_item **items;
    size_t n; /* 0: they are not compared */
};

/* A program's list by kind. Items other than memory are in a cdi_save, whose memory outlives the call. */
struct cdi_items {
    cddp_checkpoint_item *all, *memory;
    const cddp_checkpoint_item **alike; /* those with the same names on all ranks */
    struct cdi_shared shared;
    size_t n, n_memory, n_alike, bytes;
    bool by_all;   /* every rank writes or reads its part: CDDP_CHECKPOINT_SHARDED, or an item that needs it */
    uint8_t *own;  /* buffer: of each rank, one byte and all its own items; then this rank's */
    uint8_t *pack; /* buffer of a load: PACK bytes */
};

/* Returns true for memory on the communicator's device. */
bool cdi_item_is_on_device(cddp_comm *comm, const void *p);
/* Returns true if each rank has a part of this object. */
bool cdi_item_has_pieces(const struct cdi_state *s);
void cdi_items_release(struct cdi_items *l);
/*
 * Reads the list on this rank. all: every item counts, and has the same name, on every rank; otherwise only on rank 0,
 * except for those of which each rank has a part.
 */
cddp_status cdi_items_read(struct cdi_items *l, struct cdi_save *s, cddp_comm *comm, const cddp_checkpoint_item *items,
                           size_t n_items, bool all, struct cdi_error *err);
/* With CDDP_DEBUG=1: lists the items of which rank 0's value is everyone's. Other ranks need not have them. */
cddp_status cdi_items_shared(struct cdi_items *l, struct cdi_error *err);
/* Allocates the buffer to exchange each rank's own items. */
cddp_status cdi_items_make_room(struct cdi_items *l, const cddp_comm *comm, struct cdi_error *err);
/* Returns the total size of one rank's own items. */
size_t cdi_items_own_bytes(const cddp_checkpoint_item *items, size_t n_items);
/* Waits for enqueued work, so that memory on a device can be copied. */
cddp_status cdi_items_drain(cddp_comm *comm, struct cdi_error *err);
/* Copies bytes between host memory and the device's, in any direction. */
cddp_status cdi_items_copy(cddp_comm *comm, void *to, const void *from, size_t bytes, struct cdi_error *err);
/*
 * Makes rank 0's list for the file from the items that are memory; an item of each rank's own occurs once per rank.
 * Names are copied, and each item has memory, which is not filled yet. The list has capacity for the states' entries
 * after them.
 */
cddp_status cdi_items_expand(struct cdi_save *s, cddp_comm *comm, const cddp_checkpoint_item *items, size_t n_items,
                             bool background, struct cdi_error *err);
/* Lists what this rank writes, or with f, of a load, reads. Then rank 0 also reads the states that do not lie in
 * pieces. */
cddp_status cdi_items_pieces(struct cdi_pieces *p, const struct cdi_items *l, struct cdi_save *s, cddp_comm *comm,
                             struct cdi_checkpoint_file *f, struct cdi_error *err);

/* --- agree.c */

/* What a call has beside items, and is the same on all ranks. */
struct cdi_terms {
    uint64_t step; /* only by_all: otherwise rank 0's counts */
    uint64_t flags, background;
    int64_t keep;  /* -1: all */
    uint64_t file; /* which checkpoint this rank has opened */
    uint64_t by_all;
    uint64_t history; /* of the objects to save */
};

/*
 * A collective. Returns CDDP_OK if every rank has succeeded so far (mine), has the same terms, and lists the same
 * n_items items in the same order. Otherwise all ranks get the same error, CDDP_E_MISMATCH for other terms or items
 * (CDDP_E_SYSTEM for another file); or what a collective may return. A shared item with another value on another rank
 * is logged. terms and shared may be NULL.
 */
cddp_status cdi_checkpoint_agree(cddp_comm *comm, cddp_status mine, const struct cdi_terms *terms,
                                 const cddp_checkpoint_item *const *items, size_t n_items,
                                 const struct cdi_shared *shared, struct cdi_error *err);

#endif
