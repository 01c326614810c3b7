/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the data of the HTTP pages from the server's jobs and connections. Loop thread only. */
#ifndef RDZV_SNAPSHOT_H
#define RDZV_SNAPSHOT_H

#include "rendezvous/conn.h"
#include "rendezvous/http/page_data.h"

/*
 * Fills *out, which points into the jobs: valid until the next event. Returns CDDP_OK, or CDDP_E_NOMEM (*out is empty).
 */
cddp_status snapshot_take(struct conn_ctx *ctx, struct page_data *out);
void snapshot_release(struct page_data *s);
/*
 * Lists the clients of a job's store (NULL: of all jobs) that wait for keys, the longest first; returns their number,
 * at most cap.
 */
size_t snapshot_waits(struct conn_ctx *ctx, const struct conn_job *job, struct page_wait *out, size_t cap);
/* Adds a sample to the history of a job, from the newest reports of its nodes. */
void snapshot_sample(const struct conn_ctx *ctx, struct conn_job *job, int64_t now_ms);
/* Updates the request rate of each job's store. Call it at every tick. */
void snapshot_measure(struct conn_ctx *ctx);

#endif
