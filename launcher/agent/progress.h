/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress of a node's ranks, from their flight pages, in one line: which ranks are in which collective, and which
 * have not reached it. It distinguishes a rank that hangs from those that wait for it. Pure.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "protocol/flight.h"

#define PROGRESS_TEXT 256 /* bytes, NUL included; a longer text is cut */

struct progress_rank {
    int32_t rank;
    struct cdi_flight_view view;
};

/*
 * Writes "rank 2 after broadcast #811 (step 39), 12 s ago; ranks 0, 1, 3 in all_reduce #812 (bucket 3, step 39), for 12
 * s": the rank with the least progress is first. A rank with a queued collective that does not run yet is "before
 * all_reduce #812 (bucket 3, step 39), queued for 12 s". Numbers count the collectives of a rank from 1, and the steps
 * of its reducer from 0, as in libcddp's messages. For CUDA graphs: "rank 0 in captured all_reduce (bucket 3), replay
 * 17, for 12 s", with the replays of its graph counted from 1. Ranks that do not use libcddp are skipped; "" if there
 * are no others. Sorts v. now_ns: cdi_now_coarse_ns(), as in the views.
 */
void progress_text(struct progress_rank *v, size_t n, int64_t now_ns, char *buf, size_t cap);

#endif
