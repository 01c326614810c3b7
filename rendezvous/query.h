/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of clients that ask about jobs: QUERY and REPLY of protocol/bulk.h. A client asks one question at a time.
 * Loop thread only.
 */
#ifndef RDZV_QUERY_H
#define RDZV_QUERY_H

#include "rendezvous/conn.h"

#define QUERY_CLIENTS_MAX 32
#define QUERY_WAIT_MS 1000   /* for the answers of agents */
#define QUERY_BETWEEN_MS 100 /* between two replies on one connection */

/* Is there room for another client? */
bool query_has_room(const struct conn_ctx *ctx);
/* The client has been welcomed: READY is sent. */
void query_begin(struct conn *c);
/* Processes the bytes in c->in. */
void query_received(struct conn *c);

#endif
