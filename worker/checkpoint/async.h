/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save that goes on while the program trains: a thread of its own writes what was copied for it. One at a time for
 * each communicator, whose member a saver is. Called by one thread at a time.
 */
#ifndef CDI_CHECKPOINT_ASYNC_H
#define CDI_CHECKPOINT_ASYNC_H

#include "worker/checkpoint/item.h"

/* What is to be written; all of its memory is malloc'ed, but the snapshot. */
struct cdi_save {
    char *dir;
    uint64_t step;
    int keep;
    cddp_checkpoint_item *items;
    size_t n_items;
    char *names;              /* of items */
    void *block;              /* their bytes, those that are copies */
    struct cdi_mover mover;   /* for those that are on a device */
    struct cdi_state *states; /* whose entries are items, too */
    size_t n_states;
    void *snapshot; /* copies there, that the mover's backend has lent; NULL: there are none */
};

void cdi_save_release(struct cdi_save *save);

struct cdi_saver;

/*
 * Begin to write *save, which is taken over and left empty, also on failure. The one before must have been waited for.
 * *saver is NULL before the first one. CDDP_OK, CDDP_E_NOMEM, CDDP_E_SYSTEM (no thread).
 */
cddp_status cdi_saver_start(struct cdi_saver **saver, struct cdi_save *save, struct cdi_error *err);
/* Until nothing is under way; the result of what was, once. A saver that is NULL has nothing under way. */
cddp_status cdi_saver_wait(struct cdi_saver *saver, struct cdi_error *err);
/* Nothing may be under way. NULL is allowed. */
void cdi_saver_destroy(struct cdi_saver *saver);

#endif
