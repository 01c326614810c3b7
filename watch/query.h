/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks a running rendezvous about its jobs (QUERY of protocol/bulk.h), for command-line tools. Blocks, with a time
 * limit for each call; uses no loop and no thread. One thread at a time for each struct query.
 */
#ifndef WATCH_QUERY_H
#define WATCH_QUERY_H

#include "common/error.h"
#include "protocol/auth.h"

#include <jansson.h>
#include <stdint.h>

#define QUERY_PORT 29400        /* of an endpoint without a port */
#define QUERY_SECOND_PORT 29500 /* tried after it: the port of --master_addr */
#define QUERY_REPLY_MAX (64u * 1024 * 1024)

struct query;

/*
 * Connects to the rendezvous at `endpoint` (HOST, HOST:PORT or [IPv6]:PORT), and proves the auth token (secret NULL:
 * none; it is not used after this call). timeout_ms covers all of it, but not the look-up of a name. *out is set on
 * success only; query_close() frees it.
 * Returns CDDP_OK, CDDP_E_INVALID (the endpoint's form), CDDP_E_NOT_FOUND (the name), CDDP_E_IO (nothing
 * listens there), CDDP_E_CLOSED (it hung up), CDDP_E_TIMEOUT, CDDP_E_DENIED (the token), CDDP_E_LIMIT (too many
 * clients), CDDP_E_PROTOCOL (another program listens there), CDDP_E_SYSTEM or CDDP_E_NOMEM; err names the endpoint.
 */
cddp_status query_open(struct query **out, const char *endpoint, const struct cdi_secret *secret, int64_t timeout_ms,
                       struct cdi_error *err);
/*
 * Asks about the job of this name; NULL: about each job of the server. *reply is set on success only: an object as
 * docs/internals/protocol.md describes (REPLY), complete even if it came in several frames; json_decref() frees it. The
 * server waits up to one second for its agents. After an error other than CDDP_E_NOT_FOUND (no such job) only
 * query_close() may follow. Also returns CDDP_E_CLOSED, CDDP_E_TIMEOUT, CDDP_E_PROTOCOL, CDDP_E_LIMIT (a reply of more
 * than QUERY_REPLY_MAX bytes, or too many questions) or CDDP_E_NOMEM.
 */
cddp_status query_ask(struct query *q, const char *job, int64_t timeout_ms, json_t **reply, struct cdi_error *err);
/* Closes the connection and frees q. NULL-safe. */
void query_close(struct query *q);

#endif
