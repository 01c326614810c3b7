/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the ranks of a node are, from their flight pages, in a line for people: who is in which collective, and who has
 * not come to it. That is what tells a rank that hangs from those that wait for it. Pure.
 */
#ifndef PROGRESS_H
#define PROGRESS_H

#include "protocol/flight.h"

#define PROGRESS_TEXT 256 /* bytes, NUL included; what does not fit is cut */

struct progress_rank {
    int32_t rank;
    struct cdi_flight_view view;
};

/*
 * "rank 2 after broadcast #811 (step 39), 12 s ago; ranks 0, 1, 3 in all_reduce #812 (bucket 3, step 39), for 12 s":
 * who has come least far is first. A rank that has queued a collective, and that nobody runs it for, is "before
 * all_reduce #812 (bucket 3, step 39), queued for 12 s". A number counts the collectives of that rank from 1, and a
 * step those of its reducer from 0, as libcddp's messages do. Of CUDA graphs: "rank 0 in captured all_reduce (bucket
 * 3), replay 17, for 12 s", where the replays of its graph are counted from 1. Ranks that do not use libcddp are left
 * out; "" if there are no others. v is sorted. now_ns: as in the views, cdi_now_coarse_ns().
 */
void progress_text(struct progress_rank *v, size_t n, int64_t now_ns, char *buf, size_t cap);

#endif
