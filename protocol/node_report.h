/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the ranks of one node are: the payload of REPORT (bulk.h), as a struct and as JSON. The rendezvous merges the
 * reports of all nodes. Pure.
 */
#ifndef CDI_NODE_REPORT_H
#define CDI_NODE_REPORT_H

#include "common/error.h"
#include "protocol/flight.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CDI_REPORT_RANKS_MAX 4096 /* of a node */
#define CDI_PART_RANKS "(ranks "  /* in the text of a part, before its ranks of the job: "0, 2-5)" */

/* The position of a rank relative to its collective `op` number `seq`. */
enum cdi_place {
    CDI_PLACE_OUTSIDE = 0,   /* it does not use libcddp (yet) */
    CDI_PLACE_START = 1,     /* before its first collective */
    CDI_PLACE_BEFORE = 2,    /* the collective is queued and does not run yet */
    CDI_PLACE_IN = 3,        /* the collective runs: it waits for its peers */
    CDI_PLACE_AFTER = 4,     /* the collective is done, and it has not called another */
    CDI_PLACE_IN_REPLAY = 5, /* the same two for a collective of a CUDA graph; replay: its number */
    CDI_PLACE_AFTER_REPLAY = 6,
    CDI_PLACE_EXITED = 7, /* the process has ended */
};

struct cdi_rank_report {
    int32_t rank;
    int64_t pid;
    int64_t process; /* the process that uses libcddp, a descendant of pid or pid itself; 0: not known. Not in JSON */
    enum cdi_place place;
    uint32_t op, dtype;
    uint64_t seq, count, step, replay;
    int32_t bucket;            /* -1: none */
    int32_t peer;              /* of a send or a recv: the rank that it waits for; -1: none, or not known */
    int64_t for_ms;            /* since the rank came to this place */
    char part[CDI_FLIGHT_WHO]; /* whose collective it is, with seq counted there: "'tp' (ranks 0, 2)"; "": the whole */
    char names[CDI_FLIGHT_NAMES]; /* parameters of the bucket; "": none, or not known */
    char doing[128];              /* what the process does, such as "running, 99 % of a core"; "": not known */
    uint32_t halted;              /* 1: it cannot run, being stopped, frozen, swapping, ... */
    uint32_t cpu_permille;        /* processor time since the last report, in 1/1000 of a core */
    uint64_t resident_bytes;
    /* The GPU of the rank, with everything that runs there. */
    int32_t gpu_permille;     /* of the time in which it worked; -1: not known */
    uint64_t gpu_used_bytes;  /* of its memory, */
    uint64_t gpu_total_bytes; /* which has this size; 0: not known */
    /* Means of the last steps in the flight page; step_us 0: none. */
    uint32_t n_steps;
    uint64_t step_us, comm_us, exposed_us, late_us, transfer_us;
    int32_t late_rank;   /* the peer that it most often waited for longest; -1: none */
    uint32_t late_count; /* in so many of these steps */
    int64_t step_age_ms; /* since the last of them was complete */
    uint32_t late;       /* 1: others wait for it (hang.h). The server fills it in */
    const char *stack;   /* text, lines end with \n; NULL: not asked for. Memory of the one who fills it in */
};

/* Initialises the members of a rank's report of which 0 says something. */
#define CDI_RANK_UNKNOWN .bucket = -1, .peer = -1, .late_rank = -1, .gpu_permille = -1

struct cdi_node_report {
    uint32_t round;
    uint32_t asked; /* the `id` of the ASK that this answers; 0: sent by itself */
    int32_t node_rank;
    char host[256];
    size_t n_ranks;
    struct cdi_rank_report *ranks; /* by rank */
    json_t *holds;                 /* owns the strings of a decoded report; NULL: a report that was filled in here */
};

/* Returns the report as JSON (docs/internals/protocol.md); NULL: out of memory. */
json_t *cdi_node_report_encode(const struct cdi_node_report *r);
/*
 * Reads a report. Unknown members are ignored, missing ones are 0. CDDP_E_PROTOCOL: not a report, or a number out of
 * range; CDDP_E_LIMIT: more than CDI_REPORT_RANKS_MAX ranks; CDDP_E_NOMEM. *out is written on success only;
 * cdi_node_report_release() frees it.
 */
cddp_status cdi_node_report_decode(json_t *root, struct cdi_node_report *out, struct cdi_error *err);
/* Frees r->ranks and what a decoded report holds. */
void cdi_node_report_release(struct cdi_node_report *r);

/* Returns the name of a place in JSON, such as "in". */
const char *cdi_place_name(enum cdi_place place);

#endif
