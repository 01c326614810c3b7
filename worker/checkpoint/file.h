/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint files of one process, below the collective calls of cddp.h: write whole or not at all, find the newest
 * whole one, read; and what those calls have for other parts of the library. One writer per directory. Layout,
 * little-endian:
 *
 *     "CDDPCKPT" | u32 version | u32 n_items | u64 step | u64 header_bytes | u64 file_bytes
 *     n_items x ( u64 bytes | u64 offset | u64 crc64 of the bytes | u8 kind | u8 name_len | name )
 *     u64 crc64 of the header up to here
 *     the items' bytes, each at a multiple of 64
 *
 * An item that is no memory is one item of its name in the file, or several whose names begin with it and a dot; all of
 * its kind. A later version keeps the first line, and the checksum as the last 8 of header_bytes: what has neither is
 * damaged, and not of another version.
 */
#ifndef CDI_CHECKPOINT_FILE_H
#define CDI_CHECKPOINT_FILE_H

#include "worker/backend/backend.h"

#include <stdbool.h>

#define CDI_CHECKPOINT_MAX_ITEMS 65536

/* In the flags of an item, beside those of cddp.h: its bytes are on the device, and come and go through a mover. */
#define CDI_ITEM_AWAY 0x80000000u

/* A backend with `move`, on whose device items are. Without one (NULL) no item is away. */
struct cdi_mover {
    const struct cdi_backend_ops *ops;
    struct cdi_backend *b;
};

/* Are an item of a program, and the list of those of a file, as cddp.h demands? CDDP_E_INVALID with a sentence. */
cddp_status cdi_checkpoint_check_item(const cddp_checkpoint_item *item, size_t i, struct cdi_error *err);
cddp_status cdi_checkpoint_check_items(const cddp_checkpoint_item *items, size_t n_items, struct cdi_error *err);

/* Write dir/checkpoint-STEP.cddp and keep the newest `keep`. CDDP_E_SYSTEM, CDDP_E_NOMEM, or what the mover says. */
cddp_status cdi_checkpoint_write(const char *dir, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                                 int keep, const struct cdi_mover *mover, struct cdi_error *err);

/* The newest whole checkpoint, all of whose checksums are right. */
struct cdi_checkpoint_file;

/* *out is to be closed. *info is written on success only. Results as of cddp_checkpoint_load. */
cddp_status cdi_checkpoint_open(struct cdi_checkpoint_file **out, const char *dir, cddp_checkpoint_info *info,
                                struct cdi_error *err);
/* NULL is allowed. */
void cdi_checkpoint_close(struct cdi_checkpoint_file *f);
bool cdi_checkpoint_has(const struct cdi_checkpoint_file *f, const char *name);
/*
 * Is each item there, of the same kind and size? CDDP_E_MISMATCH. One with CDDP_ITEM_PER_RANK, which is one rank's and
 * is named NAME[rank], may be missing if it is not rank 0's. present[i] (NULL: not wanted) becomes 1 if item i is
 * there, else 0.
 */
cddp_status cdi_checkpoint_fit(const struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items, size_t n_items,
                               uint8_t *present, struct cdi_error *err);
/* Items that fit get their bytes. CDDP_E_IO, CDDP_E_NOMEM, or what the mover says. */
cddp_status cdi_checkpoint_fill(const struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items, size_t n_items,
                                const struct cdi_mover *mover, struct cdi_error *err);

/* "an optimizer"; of what a file or a program says. */
const char *cdi_checkpoint_kind_name(unsigned kind);

/* --- checkpoint_agree.c */
/*
 * A collective: CDDP_OK where every rank has come to that (mine) and names the same n_items items in the same order;
 * else the same error on all of them, CDDP_E_MISMATCH for other items. Or what a collective may return.
 */
cddp_status cdi_checkpoint_agree(cddp_comm *comm, cddp_status mine, const cddp_checkpoint_item *const *items,
                                 size_t n_items, struct cdi_error *err);

#endif
