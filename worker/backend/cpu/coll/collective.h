/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of the CPU backend. One operation runs at a time, called by the thread that runs the queue. */
#ifndef CDI_COLL_COLLECTIVE_H
#define CDI_COLL_COLLECTIVE_H

#include "worker/backend/cpu/coll/step.h"

/*
 * Runs one operation; blocks on peers. CDDP_OK, CDDP_E_MISMATCH, CDDP_E_PEER, CDDP_E_TIMEOUT, CDDP_E_ABORTED or the
 * error that a peer gave up with: after any of them the ranks no longer have a common state.
 */
cddp_status cdi_cpu_comm_run(struct cdi_cpu_comm *t, const struct cdi_work *work, bool on_thread,
                             struct cdi_error *err);

/*
 * The first operation between nodes: sets t->net, unless t->net.crowd is not 0. It waits for all ranks as a barrier
 * does.
 */
cddp_status cdi_cpu_comm_agree(struct cdi_cpu_comm *t, struct cdi_error *err);

#endif
