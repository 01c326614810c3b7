/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Explains a standstill of a job: from the reports of all nodes to the ranks that the others wait for, and to the
 * message about it. Each part of the job's communicator counts its collectives, so numbers are compared within one
 * only. Ranks in no collective come first, by how long they have been there. Pure.
 */
#ifndef WATCH_HANG_H
#define WATCH_HANG_H

#include "rendezvous/view/hang.h"

/* Those of struct hang_ops. */
cddp_status hang_judge(const struct view_node *nodes, size_t n, uint32_t world_size, int64_t now_ms, int64_t warning_ms,
                       struct hang *out);
const struct hang_rank *hang_first(const struct hang *h);
cddp_status hang_text(const struct hang *h, struct cdi_buf *out);
cddp_status hang_stacks(const struct hang *h, int rows, struct cdi_buf *out);

/* Returns this rank of the job; NULL: no report has it. */
const struct hang_rank *hang_find(const struct hang *h, int32_t rank);
/* Is the rank one that the others wait for? */
bool hang_is_late(const struct hang *h, int32_t rank);
/*
 * Appends who waits for whom, for HANG_CYCLE: "2 ranks wait for each other in messages: rank 0 for rank 1, rank 1 for
 * rank 0". CDDP_E_NOMEM.
 */
cddp_status hang_cycle_text(const struct hang *h, struct cdi_buf *out);

#endif
