/* SPDX-License-Identifier: Apache-2.0 */
/* Whether all is well with a job, in one word and one line: a person reads them first. Pure. */
#ifndef WATCH_VERDICT_H
#define WATCH_VERDICT_H

#include "rendezvous/http/page_data.h"

#define VERDICT_STUCK_MS 30000 /* page_job.stuck_ms, where the agents say nothing; a third of it is mentioned */

enum verdict_level { VERDICT_GOOD, VERDICT_WARN, VERDICT_BAD };

struct verdict {
    enum verdict_level level;
    const char *word; /* "Running", "Stuck", ... */
    char text[768];
};

/* Judges a job by its state and the places of its ranks. */
void verdict_of(const struct page_job *j, struct verdict *out);
/* Returns "good", "warn" or "bad". */
const char *verdict_level_name(enum verdict_level level);

#endif
