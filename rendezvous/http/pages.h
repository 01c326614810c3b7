/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rendezvous tells about itself: the values, and three ways to write them (JSON, Prometheus, a page for
 * people). Pure. overview.c collects the values.
 */
#ifndef RDZV_STATUS_H
#define RDZV_STATUS_H

#include "common/buf.h"
#include "protocol/c10d.h"

#include <stdbool.h>

/* An agent that is connected. */
struct page_agent {
    char address[80];
    int32_t node_rank; /* -1: not in the running round; then no ranks either */
    uint32_t first_rank, n_ranks;
    const char *host; /* its name; NULL: not known */
};

struct page_job {
    const char *run_id;
    const char *state; /* one of page_job_states */
    const char *why;   /* it is over, or the last round is: why; "" */
    uint16_t port;
    uint32_t round;
    uint32_t restarts;
    uint32_t world_size;      /* workers of the running round */
    size_t nodes;             /* that have joined and not gone */
    uint32_t waiting, needed; /* nodes that wait for a round, and how many it takes */
    uint32_t min_nodes, max_nodes;
    struct page_agent *agents; /* in the order of their ranks */
    size_t n_agents;
    size_t store_connections;
    size_t keys, bytes, bytes_limit, waits, waits_limit;
    uint64_t operations[CDI_C10D_N_OPS]; /* since the job began */
    double operations_per_s;             /* of the last second or so */
};

struct page_data {
    const char *version;
    double started_s; /* Unix time */
    double uptime_s;
    bool draining;
    size_t connections;
    size_t connections_limit;   /* further ones are closed */
    uint64_t accepted, dropped; /* connections: in sum; closed for a fault of theirs */
    size_t resident_bytes;
    struct page_job *jobs;
    size_t n_jobs;
};

extern const char *const page_job_states[];
extern const size_t page_n_job_states;

/* Append to out. CDDP_OK, CDDP_E_NOMEM, CDDP_E_LIMIT; after an error what was appended is to be dropped. */
cddp_status page_json(const struct page_data *s, struct cdi_buf *out);
cddp_status page_metrics(const struct page_data *s, struct cdi_buf *out);
cddp_status page_html(const struct page_data *s, struct cdi_buf *out);

#endif
