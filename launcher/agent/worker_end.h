/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker's end tells: its exit status, libcddp's error, its last output, and the words for them. */
#ifndef LAUNCHER_AGENT_WORKER_END_H
#define LAUNCHER_AGENT_WORKER_END_H

#include "launcher/agent/worker_group_state.h"
#include "protocol/flight.h"

#define WORKER_END_ERROR_MS 60000 /* an older error of libcddp does not explain a worker's end */
#define WORKER_END_LATE_ERROR_MS \
    10000 /* an older error does not make a suspect of a running worker that another rank blames */

bool worker_end_succeeded(const struct worker *w);

bool worker_end_uses_libcddp(const struct worker *w);

/* Gets libcddp's error in the worker. Returns false if it has none of the last `recent_ms`: *e has no status then. */
bool worker_end_error(const struct worker *w, int64_t recent_ms, struct cdi_flight_error *e);

/* Describes the end of a worker, or why it could not be started: *f has a headline, and no details. */
void worker_end_fill(const struct worker_group *c, const struct worker *w, struct cdi_failure *f);

/* Appends what the report shows of the first failure: messages, log files, stack, and the end of stderr. */
void worker_end_add_details(struct worker_group *c, struct worker *w, struct cdi_failure *f);

#endif
