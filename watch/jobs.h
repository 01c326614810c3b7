/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs of a REPLY (protocol/bulk.h) and their ranks, the late ones first. Wrong members count as missing. Pure. */
#ifndef WATCH_JOBS_H
#define WATCH_JOBS_H

#include "protocol/places.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct top_rank {
    struct cdi_rank_report report;
    int32_t node_rank;
    const char *host;
};

struct top_job {
    json_t *json, *previous; /* previous NULL: not known */
    const char *name, *state;
    int64_t round, restarts, world_size;
    size_t n_nodes, n_ranks;
    struct top_rank *ranks;        /* the late ones first */
    struct cdi_node_report *nodes; /* hold the strings of the ranks */
    struct cdi_places_sum sum;
    uint64_t most_step;
    int64_t between_ms;
    bool gpus;
};

struct top_jobs {
    size_t n;
    struct top_job *v;
};

/*
 * Reads the jobs of a reply; previous, the reply between_ms before it, may be NULL. The texts are those of the reply,
 * which must outlive them. CDDP_E_NOMEM; top_jobs_release() is to be called in any case.
 */
cddp_status top_jobs_read(struct top_jobs *v, json_t *reply, json_t *previous, int64_t between_ms);
void top_jobs_release(struct top_jobs *v);
/* Returns a member of a JSON object, or `otherwise` if it is missing or of another type. */
const char *top_text(json_t *o, const char *name, const char *otherwise);
int64_t top_number(json_t *o, const char *name, int64_t otherwise);

#endif
