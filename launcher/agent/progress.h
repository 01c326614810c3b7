/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress of a node's ranks in one line: which ranks are in which collective, and which have not reached it. It
 * distinguishes a rank that hangs from those that wait for it. Pure.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "protocol/node_report.h"

#define PROGRESS_TEXT 256 /* bytes, NUL included; a longer text is cut */

/*
 * Writes "rank 2 after broadcast #811 (step 39), 12 s ago; ranks 0, 1, 3 in all_reduce #812 (bucket 3, step 39), for 12
 * s": the rank with the least progress is first. Numbers count the collectives of a rank from 1, and the steps of its
 * reducer from 0, as in libcddp's messages. Ranks that do not use libcddp are skipped; "" if there are no others, or
 * out of memory.
 */
void progress_text(const struct cdi_rank_report *ranks, size_t n, char *buf, size_t cap);

#endif
