/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the newest whole checkpoint, of one file or of shards, and reads its items. Used also by the parts of the
 * library that have state in one.
 */
#ifndef CDI_CHECKPOINT_READ_H
#define CDI_CHECKPOINT_READ_H

#include "worker/checkpoint/file.h"

/*
 * Lists the steps of all checkpoints in dir, newest first; *steps is malloc'ed. A dir that does not exist is
 * CDDP_E_NOT_FOUND.
 */
cddp_status cdi_checkpoint_steps(const char *dir, uint64_t **steps, size_t *n, struct cdi_error *err);

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
/* Returns a hash of all its checksums: that of another checkpoint differs. */
uint64_t cdi_checkpoint_id(const struct cdi_checkpoint_file *f);
bool cdi_checkpoint_is_sharded(const char *dir, uint64_t step);
/* Notes that the program has what this file holds, so that it may save there. Returns CDDP_OK or CDDP_E_NOMEM. */
cddp_status cdi_checkpoint_own(const struct cdi_checkpoint_file *f, struct cdi_error *err);
/* Closes the file. Accepts NULL. */
void cdi_checkpoint_close(struct cdi_checkpoint_file *f);
/* Returns true if the file has an item of this kind, and stores its size (NULL: not needed). */
bool cdi_checkpoint_find(const struct cdi_checkpoint_file *f, const char *name, cddp_item_kind kind, size_t *bytes);
/*
 * Checks that each item is there, with the same kind and size: CDDP_E_MISMATCH if not. ranges: by item, which part of
 * it `data` is; NULL: all are whole. An item with CDDP_ITEM_PER_RANK, which is named NAME[rank], may be missing if it
 * is not rank 0's. Sets present[i] (NULL: not needed) to 1 if item i is there, otherwise to 0.
 */
cddp_status cdi_checkpoint_fit(const struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items,
                               const struct cdi_range *ranges, size_t n_items, uint8_t *present, struct cdi_error *err);
/* Reads the bytes of items that fit. Returns CDDP_OK, CDDP_E_IO, CDDP_E_NOMEM, or the mover's error. */
cddp_status cdi_checkpoint_fill(struct cdi_checkpoint_file *f, const cddp_checkpoint_item *items,
                                const struct cdi_range *ranges, size_t n_items, const struct cdi_mover *mover,
                                struct cdi_error *err);

#endif
