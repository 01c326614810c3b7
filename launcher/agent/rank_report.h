/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of this node are: from their flight pages to the report of a node (protocol/node_report.h). Pure. */
#ifndef RANK_REPORT_H
#define RANK_REPORT_H

#include "protocol/node_report.h"

/*
 * Fills in the place of a rank, and since when it is there: the collective, of the whole or of one of n parts, in which
 * it has been for longest; if it is in none, the one that is queued; if there is none, the one that it finished last.
 * now_ns: cdi_now_coarse_ns().
 */
void rank_report_place(const struct cdi_flight_view *view, const struct cdi_flight_part *parts, size_t n,
                       int64_t now_ns, struct cdi_rank_report *r);
/* Fills in the means of these steps, the rank that was late most often, and the age of the last one. */
void rank_report_steps(const struct cdi_flight_step *steps, size_t n, int64_t now_ns, struct cdi_rank_report *r);
/* Fills in all that the flight page has: the two above, and the names of the bucket. */
void rank_report_page(const struct cdi_flight *f, int64_t now_ns, struct cdi_rank_report *r);
/* Fills in the place of a worker that has ended: what its communicator left unfinished is where it was. */
void rank_report_last_place(const struct cdi_flight *f, int64_t now_ns, struct cdi_rank_report *r);

#endif
