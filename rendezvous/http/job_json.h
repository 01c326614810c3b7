/* SPDX-License-Identifier: Apache-2.0 */
/* The members of a job in /status that say how it is and where its ranks are. Pure. */
#ifndef RDZV_JOB_JSON_H
#define RDZV_JOB_JSON_H

#include "rendezvous/http/pages.h"

/* Returns an object with verdict, places, timing, history and where (docs/internals/protocol.md); NULL: out of memory.
 */
json_t *page_job_view(const struct page_job *j);

#endif
