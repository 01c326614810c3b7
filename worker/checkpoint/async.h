/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving in the background: a separate thread writes copies while the program trains. A communicator has one saver, and
 * at most one save in progress. Called by one thread at a time.
 */
#ifndef CDI_CHECKPOINT_ASYNC_H
#define CDI_CHECKPOINT_ASYNC_H

#include "worker/checkpoint/draft.h"
#include "worker/checkpoint/item.h"
#include "worker/comm/comm.h"

/* The data to write; all of its memory except the snapshot is allocated by malloc. */
struct cdi_save {
    char *dir;
    uint64_t step;
    int keep;
    cddp_checkpoint_item *items;
    size_t n_items;
    char *names;              /* of the items */
    void *block;              /* the bytes of those items that are copies */
    struct cdi_mover mover;   /* for items on a device */
    struct cdi_state *states; /* their entries are also items */
    size_t n_states;
    void *snapshot; /* copies on the device, acquired from the mover's backend; NULL: none */
    /* Of a sharded save, on each rank: */
    cddp_comm *comm;
    struct cdi_range *ranges; /* by item */
    char folder[CDI_DRAFT_NAME];
    struct cdi_draft *draft; /* on rank 0 */
};

void cdi_save_release(struct cdi_save *save);

/* Writes this rank's file of a sharded save. */
cddp_status cdi_save_write_shard(const struct cdi_save *save, struct cdi_error *err);
/* On rank 0: publishes a sharded save, which all ranks have written. */
cddp_status cdi_save_publish(struct cdi_save *save, struct cdi_error *err);

struct cdi_saver;

/*
 * Starts to write *save. It takes the contents and leaves *save empty, also on failure. The previous save must have
 * been waited for. `of` is the communicator's: the saver is its argument, and is freed with it. Returns CDDP_OK,
 * CDDP_E_NOMEM or CDDP_E_SYSTEM (no thread).
 */
cddp_status cdi_saver_start(struct cdi_on_finalize *of, struct cdi_save *save, struct cdi_error *err);
/*
 * A sharded save could not be started on every rank: the one that was started here comes to its end without the others.
 * saver may be NULL.
 */
void cdi_saver_cancel(struct cdi_saver *saver);
/* Waits until no save is in progress. Returns the result of the last one, once. A NULL saver has none in progress. */
cddp_status cdi_saver_wait(struct cdi_saver *saver, struct cdi_error *err);

#endif
