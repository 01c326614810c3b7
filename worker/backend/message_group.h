/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that are enqueued as one, for a backend that runs one operation after another and whose sends may wait for
 * their receivers: an order makes them safe. A rank serves its partners in rounds: in round k it turns to the one rank
 * with which its own number makes k, modulo the number of ranks, and that one turns to it. Of the two the lower rank
 * sends all that it has for the other first, and the higher one receives first. So nobody waits in a circle.
 */
#ifndef CDI_BACKEND_MESSAGE_GROUP_H
#define CDI_BACKEND_MESSAGE_GROUP_H

#include "worker/backend/queue.h"

/*
 * Makes *w the work of n > 0 operations: a copy of them and their counts, in the order in which they are run.
 * cdi_queue_enqueue takes the copy over where it succeeds; otherwise the caller frees w->group. CDDP_E_NOMEM.
 */
cddp_status cdi_group_make(struct cdi_work *w, const struct cdi_coll *ops, size_t n, int rank, int size,
                           struct cdi_error *err);
/*
 * Does what is copied within this rank. Returns how many operations are left: the first ones of w->group, since
 * messages to oneself come last.
 */
size_t cdi_group_copy_own(const struct cdi_work *w, int rank);
/* Both in turn: what is copied, then each operation by `run`. */
cddp_status cdi_group_run(cdi_run_fn run, void *arg, const struct cdi_work *w, int rank, bool on_thread,
                          struct cdi_error *err);

static inline bool cdi_group_is_message(const struct cdi_coll *op)
{
    return op->kind == CDI_SEND || op->kind == CDI_RECV;
}

#endif
