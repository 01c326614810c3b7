/* SPDX-License-Identifier: Apache-2.0 */
/* Which worker of this node is the cause of a failure: the one that a report names. */
#ifndef LAUNCHER_AGENT_FIRST_FAILURE_H
#define LAUNCHER_AGENT_FIRST_FAILURE_H

#include "launcher/agent/worker_group_state.h"
#include "protocol/cause.h"

/* A worker that has failed, or is about to end since it has noted a failure. */
struct suspect {
    struct worker *w; /* NULL: none */
    bool noted;       /* in its error file */
    struct cdi_cause cause;
};

/* Finds the cause of what has failed so far. *by is the first that has exited, or NULL. */
struct suspect first_failure_find(struct worker_group *c, struct worker **by);

/*
 * Gathers what is known of a worker. An exception is as old as the worker's error file: Python takes long to exit, and
 * workers that fail because of another's exception may exit before the one that raised it. (torchrun uses the time in
 * the file, too, but in whole seconds.)
 */
struct suspect first_failure_suspect(struct worker_group *c, struct worker *w);

/*
 * Considers running workers, too, as the cause of the failure `because`. One that crashes counts. One that has recorded
 * an exception counts if `because` follows from another failure, or if its worker has recorded one (`noted`). One with
 * a recent error of libcddp counts if `because` follows and blames its rank.
 */
void first_failure_suspect_running(struct worker_group *c, const struct cdi_cause *because, bool noted,
                                   struct suspect *best);

/*
 * Returns whether to delay the report. A failure that follows from another waits for its cause. That of a running
 * worker waits for its end and last output, unless the worker has recorded an exception.
 */
bool first_failure_waits(struct worker_group *c, const struct suspect *s);

/* Returns the worker of this rank, if it has exited with status 0, as published; NULL: it has not, or is elsewhere. */
struct worker *first_failure_succeeded(struct worker_group *c, int32_t rank);

/* Returns the worker that had exited with status 0 and that another one still needed; NULL: none. */
struct worker *first_failure_find_missed(struct worker_group *c);

/* The value of cdi_failure.misses. Only that rank's own node knows why it is missing. */
uint32_t first_failure_missed_elsewhere(const struct worker_group *c);

#endif
