/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint files of one process, below the public collective calls: write completely or not at all, find the newest
 * whole one, read. Also the functions that those calls share with other parts of the library. One job per directory: a
 * second one is refused (owned.h).
 * Layout, little-endian:
 *
 *     "CDDPCKPT" | u32 version | u32 n_items | u64 step | u64 header_bytes | u64 file_bytes
 *     n_items x ( u64 bytes | u64 offset | u64 crc64 of the bytes | u8 kind | u8 name_len | name )
 *     u64 crc64 of the header up to here
 *     the items' bytes, each at a multiple of 64
 *
 * An item other than memory is stored as one item with its name, or as several whose names begin with it and a dot, all
 * of its kind. A later version keeps the first line, and the checksum as the last 8 of header_bytes. A file without
 * them is damaged, and does not have another version.
 *
 * A sharded checkpoint is a folder of that name, with a file of each rank, "shard-R-of-N", and "index". A shard is such
 * a file of version 3, whose entries have, before the name, the bytes of the whole item (u64) and where these begin in
 * it (u64); it may have several of one item. The index has one item: for each rank, its file's size and the checksum of
 * its header (u64 each). The folder gets its name when all of it is on the disk.
 */
#ifndef CDI_CHECKPOINT_FILE_H
#define CDI_CHECKPOINT_FILE_H

#include "worker/backend/backend.h"

#include <stdbool.h>

#define CDI_CHECKPOINT_MAX_ITEMS 10000000

/* A flag of an item, in addition to the public ones: its bytes are on the device, and are copied by a mover. */
#define CDI_ITEM_ON_DEVICE 0x80000000u

/* Where an item's bytes belong, if they are a part of it. */
struct cdi_range {
    uint64_t whole, begin; /* bytes of the item, and the first of these */
};

/* A backend with `move`, on whose device items are. Without one (NULL) all items are in host memory. */
struct cdi_mover {
    const struct cdi_backend_ops *ops;
    struct cdi_backend *b;
};

/*
 * Check an item of a program, and the list of a file, by the rules of the public header. in_pieces: those with one
 * name, by address, are pieces of one item. Return CDDP_OK, or CDDP_E_INVALID with an error message.
 */
cddp_status cdi_checkpoint_check_item(const cddp_checkpoint_item *item, size_t i, struct cdi_error *err);
cddp_status cdi_checkpoint_check_items(const cddp_checkpoint_item *items, size_t n_items, bool in_pieces,
                                       struct cdi_error *err);

/*
 * Decides whether this process may save into dir (owned.h): it has loaded from there, or its first save found no whole
 * checkpoint; and it knows all that are there now. Returns CDDP_OK, CDDP_E_EXISTS, CDDP_E_SYSTEM or CDDP_E_NOMEM.
 */
cddp_status cdi_checkpoint_may_write(const char *dir, struct cdi_error *err);
/*
 * Writes dir/checkpoint-STEP.cddp and keeps the newest `keep`. Returns CDDP_OK, CDDP_E_EXISTS, CDDP_E_SYSTEM,
 * CDDP_E_NOMEM, or the mover's error.
 */
cddp_status cdi_checkpoint_write(const char *dir, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                                 int keep, const struct cdi_mover *mover, struct cdi_error *err);

/*
 * A sharded save. Rank 0 makes a hidden folder in dir and holds a lock on it; each rank writes its shard there; once
 * all have done so, rank 0 publishes it, which adds the index, or drops it.
 */
struct cdi_draft;

#define CDI_DRAFT_NAME 64 /* bytes */

/* Begins one. *out is set on success only. The statuses of cdi_checkpoint_write. */
cddp_status cdi_draft_begin(struct cdi_draft **out, const char *dir, uint64_t step, struct cdi_error *err);
/* Returns the folder's name. */
const char *cdi_draft_name(const struct cdi_draft *d);
/* Writes the file of a rank, and does not return before it is on the disk. The statuses of cdi_checkpoint_write. */
cddp_status cdi_draft_write_shard(const char *dir, const char *draft, size_t rank, size_t n_ranks, uint64_t step,
                                  const cddp_checkpoint_item *items, const struct cdi_range *ranges, size_t n_items,
                                  const struct cdi_mover *mover, struct cdi_error *err);
/* Ends the save: what n_ranks ranks have written becomes visible. Frees d. The statuses of cdi_checkpoint_write. */
cddp_status cdi_draft_publish(struct cdi_draft *d, const char *dir, size_t n_ranks, int keep, struct cdi_error *err);
/* Ends the save: removes what was written. Frees d; accepts NULL. */
void cdi_draft_drop(struct cdi_draft *d);

/* The newest whole checkpoint, all of whose checksums are right. */
struct cdi_checkpoint_file;

/* Opens it. The caller closes *out. *info is written on success only. Returns the statuses of cddp_checkpoint_load. */
cddp_status cdi_checkpoint_open(struct cdi_checkpoint_file **out, const char *dir, cddp_checkpoint_info *info,
                                struct cdi_error *err);
/*
 * The same in steps, for ranks that share the work. The checkpoints of dir, newest first; the caller frees `steps`.
 * begin: CDDP_E_NOT_FOUND if there is none. pass_over: the current one is damaged; CDDP_E_IO if it was the last.
 * found: it is f.
 */
struct cdi_search {
    const char *dir;
    uint64_t *steps;
    size_t n, at;
    cddp_checkpoint_info info;
};
cddp_status cdi_search_begin(struct cdi_search *s, const char *dir, struct cdi_error *err);
cddp_status cdi_search_pass_over(struct cdi_search *s, const struct cdi_error *why, struct cdi_error *err);
void cdi_search_found(struct cdi_search *s, struct cdi_checkpoint_file *f);
/* Opens one of them, and compares the checksums of share `mine` of `shares`. The caller closes *out in any case. */
cddp_status cdi_checkpoint_open_step(struct cdi_checkpoint_file **out, const char *dir, uint64_t step, size_t mine,
                                     size_t shares, struct cdi_error *err);
bool cdi_checkpoint_is_sharded(const char *dir, uint64_t step);
/* Notes that the program has what this file holds, so that it may save there. Returns CDDP_OK or CDDP_E_NOMEM. */
cddp_status cdi_checkpoint_own(const struct cdi_checkpoint_file *f, struct cdi_error *err);
/* Closes the file. Accepts NULL. */
void cdi_checkpoint_close(struct cdi_checkpoint_file *f);
/* Returns true if the file has such an item, and stores its size (NULL: not needed). */
bool cdi_checkpoint_find(const struct cdi_checkpoint_file *f, const char *name, size_t *bytes);
/*
 * Checks that each item is there, with the same kind and size: CDDP_E_MISMATCH if not. ranges: by item, which part of
 * it `data` is; NULL: all are whole. One with CDDP_ITEM_PER_RANK,
 * which is one rank's and is named NAME[rank], may be missing if it is not rank 0's. Sets present[i] (NULL: not needed)
 * to 1 if item i is there, otherwise to 0.
 */
cddp_status cdi_checkpoint_fit(const struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items,
                               const struct cdi_range *ranges, size_t n_items, uint8_t *present, struct cdi_error *err);
/* Reads the bytes of items that fit. Returns CDDP_OK, CDDP_E_IO, CDDP_E_NOMEM, or the mover's error. */
cddp_status cdi_checkpoint_fill(struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items,
                                const struct cdi_range *ranges, size_t n_items, const struct cdi_mover *mover,
                                struct cdi_error *err);

/* Returns a name for messages, such as "an optimizer", of a kind in a file or a program. */
const char *cdi_checkpoint_kind_name(unsigned kind);

/* --- agree.c */
/* Items of which rank 0's value is everyone's. */
struct cdi_shared {
    const cddp_checkpoint_item **items;
    size_t n; /* 0: they are not compared */
};

/*
 * A collective. Returns CDDP_OK if every rank has succeeded so far (mine) and lists the same n_items items in the same
 * order. Otherwise all ranks get the same error, CDDP_E_MISMATCH for other items; or what a collective may return. A
 * shared item with another value on another rank is logged. shared may be NULL.
 */
cddp_status cdi_checkpoint_agree(cddp_comm *comm, cddp_status mine, const cddp_checkpoint_item *const *items,
                                 size_t n_items, const struct cdi_shared *shared, struct cdi_error *err);

#endif
