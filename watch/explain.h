/* SPDX-License-Identifier: Apache-2.0 */
/* What the facts about a job mean: the explained members of struct page_job. Pure. */
#ifndef WATCH_EXPLAIN_H
#define WATCH_EXPLAIN_H

#include "rendezvous/http/page_data.h"

/* Fills in `placed`, at most `groups` groups, and the sum. CDDP_E_NOMEM. */
cddp_status explain_places(struct page_job *j, size_t groups);
/* Fills in all of them, for a page. CDDP_E_NOMEM. */
cddp_status explain_job(struct page_job *j);

/* Returns "" for 1, otherwise "s". */
static inline const char *plural_of(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
