/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps, collectives and events of one node: the payloads of RECORDS, CLOCK and TIME (bulk.h), as structs and as JSON.
 * The agent of node rank 0 writes them into a trace. Times are ns of the sender's CLOCK_MONOTONIC. Pure.
 */
#ifndef CDI_RECORDS_H
#define CDI_RECORDS_H

#include "common/error.h"
#include "protocol/flight.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CDI_RECORDS_MAX 2048      /* collectives, and steps, of a frame */
#define CDI_RECORDS_EVENTS_MAX 64 /* of a frame */
#define CDI_RECORDS_NAMES_MAX 256
#define CDI_RECORDS_TEXT 256                     /* bytes of an event's text, NUL included */
#define CDI_RECORDS_TIME_MAX CDI_FLIGHT_TIME_MAX /* ns; later times, and those before 0, are rejected */

/* A collective with done_ns 0 still runs, or has not ended: its rank has. */
struct cdi_record_coll {
    int32_t rank;
    int32_t name; /* of the parameters: index in names[]; -1: none */
    struct cdi_flight_entry e;
};

struct cdi_record_step {
    int32_t rank;
    struct cdi_flight_step s;
};

struct cdi_record_event {
    int64_t time_ns;
    int32_t rank; /* -1: of no rank */
    char kind[24];
    char text[CDI_RECORDS_TEXT];
};

struct cdi_records {
    uint32_t round;
    int32_t node_rank;
    char host[256];
    /*
     * The rendezvous server's clock minus the sender's, at most bound_ns wrong. clock_of: which clock (cdi_clock_time);
     * 0: not known.
     */
    uint64_t clock_of;
    int64_t offset_ns, bound_ns;
    /* Records that the sender has put into earlier frames, and those that it has lost, since its start. */
    uint64_t n_before, n_lost;
    size_t n_colls, n_steps, n_events, n_names;
    struct cdi_record_coll *colls;
    struct cdi_record_step *steps;
    struct cdi_record_event *events;
    char (*names)[CDI_FLIGHT_NAMES];
};

/* Allocates empty arrays of the sizes above. CDDP_E_NOMEM. cdi_records_release() frees them. */
cddp_status cdi_records_init(struct cdi_records *r, struct cdi_error *err);
/* Frees the arrays; *r becomes zero. */
void cdi_records_release(struct cdi_records *r);
/* Returns the number of records that n_before and n_lost count. */
static inline uint64_t cdi_records_count(const struct cdi_records *r)
{
    return (uint64_t)r->n_colls + r->n_steps + r->n_events;
}

/* Returns the JSON text, which the caller frees; NULL: out of memory. *len is its length. */
char *cdi_records_encode(const struct cdi_records *r, size_t *len);
/*
 * Reads what cdi_records_encode() wrote. Unknown members are ignored. CDDP_E_PROTOCOL: not such a text, or a number out
 * of range; CDDP_E_LIMIT: more records than a frame may have; CDDP_E_NOMEM. *out is written on success only;
 * cdi_records_release() frees it.
 */
cddp_status cdi_records_decode(const void *text, size_t len, struct cdi_records *out, struct cdi_error *err);

/* CLOCK, an agent's question, and TIME, the server's answer. */
struct cdi_clock_time {
    int64_t asked_ns; /* the agent's clock when it asked */
    int64_t time_ns;  /* the server's clock when it answered; not in CLOCK */
    uint64_t of;      /* identifies the server's clock, from 1; not in CLOCK */
};

#define CDI_CLOCK_TEXT 128 /* bytes of either payload */

/* Write a payload, and return its length. */
size_t cdi_clock_encode_ask(int64_t asked_ns, char text[CDI_CLOCK_TEXT]);
size_t cdi_clock_encode_time(const struct cdi_clock_time *t, char text[CDI_CLOCK_TEXT]);
/* Read a payload. Return false if it has another form. */
bool cdi_clock_decode_ask(const void *text, size_t len, int64_t *asked_ns);
bool cdi_clock_decode_time(const void *text, size_t len, struct cdi_clock_time *t);

#endif
