/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes checkpoints, below the public collective calls: completely or not at all, by a hidden name first. Removes old
 * ones. One job per directory: a second one is refused (owned.h).
 */
#ifndef CDI_CHECKPOINT_DRAFT_H
#define CDI_CHECKPOINT_DRAFT_H

#include "worker/checkpoint/file.h"

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

#endif
