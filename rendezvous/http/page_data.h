/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facts about the server and its jobs that pages and replies show. snapshot.c collects them; whoever shows them
 * (views.h) explains a job first, which fills in the members from `placed` on.
 */
#ifndef RDZV_PAGE_DATA_H
#define RDZV_PAGE_DATA_H

#include "common/address.h"
#include "protocol/c10d.h"
#include "protocol/places.h"
#include "rendezvous/view/hang.h"
#include "rendezvous/view/history.h"

#include <stdbool.h>

/* A connected agent. */
struct page_agent {
    char address[CDI_ADDRESS_TEXT];
    int32_t node_rank; /* -1: not in the running round; then it has no ranks */
    uint32_t first_rank, n_ranks;
    const char *host; /* its name; NULL: unknown */
};

#define PAGE_WAITS_MAX 64 /* that a page shows of a job */
#define PAGE_KEY 128

/* A client of the store that waits for keys. */
struct page_wait {
    char address[CDI_ADDRESS_TEXT]; /* the client's */
    char server[CDI_ADDRESS_TEXT];  /* this end of the same connection */
    char key[PAGE_KEY]; /* the first that is missing; cut; a question mark for any byte outside of ASCII text */
    size_t missing;     /* keys in all */
    int64_t for_ms;     /* since its last request */
};

/* A node of the running round, and where its ranks are. */
struct page_node {
    int32_t node_rank;
    const char *host;
    bool answered;  /* the last question; otherwise the ranks are as of an earlier report */
    int64_t ms_ago; /* age of the report; -1: there is none */
    const struct cdi_rank_report *ranks;
    size_t n_ranks;
};

#define PAGE_GROUPS 12 /* lines of "who is where" */
#define PAGE_GROUPS_MAX 64
#define PAGE_LATE_MS 1000 /* a rank is late if others wait for it for so long */

/* Initialises an array of names, by enum round_state. */
#define PAGE_JOB_STATES                            \
    {                                              \
        "joining", "running", "stopping", "closed" \
    }

struct page_job {
    const char *run_id;
    const char *state; /* one of PAGE_JOB_STATES */
    const char *why;   /* reason why the job or its last round ended, or "" */
    uint16_t port;
    uint32_t round;
    uint32_t restarts;
    uint32_t world_size;      /* workers of the running round */
    size_t nodes;             /* that joined and were neither lost nor left */
    uint32_t waiting, needed; /* nodes that wait for a round, and the number that it takes */
    uint32_t min_nodes, max_nodes;
    struct page_agent *agents; /* in the order of their ranks */
    size_t n_agents;
    struct page_wait *clients; /* that wait, the longest first, at most PAGE_WAITS_MAX */
    size_t n_clients;
    size_t store_connections;
    size_t keys, bytes, bytes_limit, waits, waits_limit;
    uint64_t operations[CDI_C10D_N_OPS]; /* since the job began */
    double operations_per_s;             /* during about the last second */
    bool done;                           /* closed: every worker ended with 0 */
    struct page_node *node;              /* in the order of node ranks */
    size_t n_nodes;
    const struct view_node *reports; /* the newest of these nodes */
    size_t n_reports;
    int64_t stuck_ms;              /* a wait of this time is an error: --hang_warning of the agents; 0: off */
    const struct history *history; /* NULL: none */
    int64_t now_ms;                /* of its clock */

    struct cdi_placed *placed; /* all ranks of these nodes, in the order of the groups */
    size_t n_placed;
    struct cdi_place_group groups[PAGE_GROUPS_MAX];
    size_t n_groups;
    struct cdi_places_sum sum;
    struct hang hang; /* the ranks that others wait for, since PAGE_LATE_MS */
};

struct page_data {
    const char *version;
    double started_s; /* Unix time */
    double uptime_s;
    bool draining;
    size_t connections;
    size_t connections_limit;   /* further ones are rejected */
    uint64_t accepted, dropped; /* connections: total; closed because of an error */
    size_t resident_bytes;
    struct page_job *jobs;
    size_t n_jobs;
};

#endif
