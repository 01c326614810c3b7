/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that are enqueued as one, for a backend that runs one operation after another and whose sends may wait for
 * their receivers. Their order prevents a deadlock. A rank serves its partners in turns: turn k pairs the ranks whose
 * numbers add up to k, modulo the number of ranks. Of the two, the lower rank first sends all messages for the other,
 * and the higher rank first receives. So ranks never wait for each other in a circle.
 */
#ifndef CDI_BACKEND_MESSAGE_GROUP_H
#define CDI_BACKEND_MESSAGE_GROUP_H

#include "worker/backend/queue.h"

/*
 * Makes *w the work of n > 0 operations: a copy of them and of their counts, in the order in which they run.
 * cdi_queue_enqueue owns the copy if it succeeds; otherwise the caller frees w->group. CDDP_E_NOMEM.
 */
cddp_status cdi_group_make(struct cdi_work *w, const struct cdi_coll *ops, size_t n, int rank, int size,
                           struct cdi_error *err);
/*
 * Copies the messages of this rank to itself. Returns the number of other operations, which are the first ones of
 * w->group.
 */
size_t cdi_group_copy_own(const struct cdi_work *w, int rank);
/* Copies the messages of this rank to itself, then calls `run` for each other operation. */
cddp_status cdi_group_run(cdi_run_fn run, void *arg, const struct cdi_work *w, int rank, bool on_thread,
                          struct cdi_error *err);

static inline bool cdi_group_is_message(const struct cdi_coll *op)
{
    return op->kind == CDI_SEND || op->kind == CDI_RECV;
}

#endif
