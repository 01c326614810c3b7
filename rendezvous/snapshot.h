/* SPDX-License-Identifier: Apache-2.0 */
/* The values of status.h, collected from the server's jobs and connections. Loop thread only. */
#ifndef RDZV_SNAPSHOT_H
#define RDZV_SNAPSHOT_H

#include "rendezvous/conn.h"
#include "rendezvous/http/pages.h"

/* *out holds pointers into the jobs: use it before anything else happens. CDDP_OK, or CDDP_E_NOMEM (*out is empty). */
cddp_status snapshot_take(struct conn_ctx *ctx, struct page_data *out);
void snapshot_release(struct page_data *s);
/* Once in a while: how many requests per second has each job's store had since the last call? */
void snapshot_measure(struct conn_ctx *ctx);

#endif
