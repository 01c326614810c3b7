/* SPDX-License-Identifier: Apache-2.0 */
/* The values of status.h, collected from the server's jobs and connections. Loop thread only. */
#ifndef RDZV_OVERVIEW_H
#define RDZV_OVERVIEW_H

#include "rendezvous/conn.h"
#include "rendezvous/http/pages.h"

/* *out holds pointers into the jobs: use it before anything else happens. CDDP_OK, or CDDP_E_NOMEM (*out is empty). */
cddp_status overview_take(struct conn_home *home, struct status *out);
void overview_release(struct status *s);
/* Once in a while: how many requests per second has each job's store had since the last call? */
void overview_measure(struct conn_home *home);

#endif
