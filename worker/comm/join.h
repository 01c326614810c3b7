/* SPDX-License-Identifier: Apache-2.0 */
/* Joins a job: through the store, to a backend that connects all ranks. */
#ifndef CDI_COMM_JOIN_H
#define CDI_COMM_JOIN_H

#include "worker/comm/state.h"

/*
 * Joins the job that l and opt describe. c has its rank, size, prefix and timeouts, and gets the flight page, the store
 * and the backend. After an error it may have some of them; cdi_comm_destroy frees it. Blocks until all ranks have
 * joined, or for the join timeout.
 */
cddp_status cdi_join(struct cddp_comm *c, const struct cdi_launch *l, const cddp_init_options *opt,
                     struct cdi_error *err);

#endif
