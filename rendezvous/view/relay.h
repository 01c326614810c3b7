/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a trace through the server: passes RECORDS of all agents on to the agent of node rank 0, unread, and
 * answers CLOCK. What that agent does not read in time is dropped, so that the server holds a bounded number of bytes.
 * Without sockets: it uses the session. The loop's thread.
 */
#ifndef RDZV_RELAY_H
#define RDZV_RELAY_H

#include "rendezvous/round/session.h"

#define RELAY_FRAME_MAX (256u * 1024)      /* bytes of RECORDS; longer ones are dropped */
#define RELAY_QUEUE_MAX (2u * 1024 * 1024) /* bytes that wait for node rank 0, its messages included */

struct relay {
    struct session *session;
    uint64_t clock;               /* identifies this server's clock */
    uint64_t n_passed, n_dropped; /* frames */
};

/* Starts a relay; the session must outlive it. now_ns: CLOCK_MONOTONIC. */
void relay_init(struct relay *r, struct session *s, int64_t now_ns);
/* Handles a frame of bulk.h from an agent; other types than RECORDS and CLOCK are ignored. */
void relay_on_bulk(struct relay *r, uint32_t peer, uint16_t type, const void *payload, size_t len);

#endif
