/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint files of one process, below the collective calls of cddp.h: write whole or not at all, find the newest
 * whole one, read; and those calls for other parts of the library. One writer per directory. Layout, little-endian:
 *
 *     "CDDPCKPT" | u32 version | u32 n_items | u64 step | u64 header_bytes | u64 file_bytes
 *     n_items x ( u64 bytes | u64 offset | u64 crc64 of the bytes | u8 name_len | name )
 *     u64 crc64 of the header up to here
 *     the items' bytes, each at a multiple of 64
 *
 * A later version keeps the first line, and the checksum as the last 8 of header_bytes: what has neither is damaged,
 * and not of another version.
 */
#ifndef CDI_CHECKPOINT_H
#define CDI_CHECKPOINT_H

#include "worker/backend.h"

#define CDI_CHECKPOINT_MAX_ITEMS 65536

/* In the flags of an item, beside those of cddp.h: its bytes are on the device, and come and go through a mover. */
#define CDI_ITEM_AWAY 0x80000000u

/* A backend with `move`, on whose device items are. Without one (NULL) no item is away. */
struct cdi_mover {
    const struct cdi_backend_ops *ops;
    struct cdi_backend *b;
};

/* Are names and memory as cddp.h demands? CDDP_E_INVALID with a sentence. */
cddp_status cdi_checkpoint_check_items(const cddp_checkpoint_item *items, size_t n_items, struct cdi_error *err);

/* Write dir/checkpoint-STEP.cddp and keep the newest `keep`. CDDP_E_SYSTEM, CDDP_E_NOMEM, or what the mover says. */
cddp_status cdi_checkpoint_write(const char *dir, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                                 int keep, const struct cdi_mover *mover, struct cdi_error *err);

/*
 * Find the newest whole checkpoint and fill the items from it; results as of cddp_checkpoint_load. An item with
 * CDDP_ITEM_PER_RANK, which is one rank's and is named NAME[rank], may be missing if it is not rank 0's. present[i]
 * becomes 1 if item i was there, else 0. Or what the mover says.
 */
cddp_status cdi_checkpoint_read(const char *dir, const cddp_checkpoint_item *items, size_t n_items, uint8_t *present,
                                const struct cdi_mover *mover, cddp_checkpoint_info *info, struct cdi_error *err);

/*
 * List a, as a program gives it, and b, the library's own, after it: one that is to be freed. NULL: *err, which is not
 * NULL here, says why.
 */
cddp_checkpoint_item *cdi_checkpoint_join(const cddp_checkpoint_item *a, size_t n_a, const cddp_checkpoint_item *b,
                                          size_t n_b, struct cdi_error *err);

/* --- checkpoint_comm.c */
/*
 * Rank 0 alone, no communication: one item of the newest whole checkpoint, once no save in the background is under way.
 * Results as of cddp_checkpoint_load.
 */
cddp_status cdi_checkpoint_peek(cddp_comm *comm, const char *dir, const cddp_checkpoint_item *item,
                                struct cdi_error *err);
/* Bytes of host memory to (CDI_SEND) or from (CDI_RECV) rank `peer`, which calls it the other way round. */
cddp_status cdi_checkpoint_move(cddp_comm *comm, enum cdi_op_kind kind, void *at, size_t bytes, int peer,
                                struct cdi_error *err);
/* What follows are collectives. */
/* Rank 0's status, with its sentence in *err, becomes every rank's. Or what a collective may return. */
cddp_status cdi_checkpoint_share(cddp_comm *comm, cddp_status status, struct cdi_error *err);
/* As cddp_checkpoint_save; items, opt and info are those of a program, here and in the next one. */
cddp_status cdi_checkpoint_save(cddp_comm *comm, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                                size_t n_items, const cddp_checkpoint_options *opt, struct cdi_error *err);
/*
 * As cddp_checkpoint_load; beside the items, of which there may be none then, rank 0 reads `alone`, which nobody else
 * gets (elsewhere NULL and 0).
 */
cddp_status cdi_checkpoint_load(cddp_comm *comm, const char *dir, const cddp_checkpoint_item *alone, size_t n_alone,
                                const cddp_checkpoint_item *items, size_t n_items, cddp_checkpoint_info *info,
                                struct cdi_error *err);

#endif
