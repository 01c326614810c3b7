/* SPDX-License-Identifier: Apache-2.0 */
/* How this process joins the others of its job: through the store, to a backend that connects all ranks. */
#ifndef CDI_COMM_JOIN_H
#define CDI_COMM_JOIN_H

#include "worker/comm/state.h"

/*
 * Joins: c has its rank, size, prefix and timeouts, and gets the flight page, the store and the backend. After an error
 * it has as much of them as there was; cdi_comm_destroy frees it. Blocks until all ranks are there, or the deadline.
 */
cddp_status cdi_join(struct cddp_comm *c, const struct cdi_launch *l, const cddp_init_options *opt,
                     struct cdi_error *err);

#endif
