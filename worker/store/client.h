/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store client's inner side: the public operations with a cdi_error instead of the thread's last one, and with keys
 * taken verbatim. The library's own keys start with "cddp/", which no public key can, since those get a "/" in front.
 * The rules of cddp.h hold: blocking with deadlines, any thread, one operation at a time.
 */
#ifndef CDI_STORE_CLIENT_H
#define CDI_STORE_CLIENT_H

#include "common/error.h"
#include "protocol/auth.h"
#include "protocol/flight.h"
#include "worker/base/interfaces.h"

#include <cddp/cddp.h>
#include <stdbool.h>
#include <sys/socket.h>

/* timeout_ms > 0, to connect and for each operation. The errors of cddp_store_open. */
cddp_status cdi_store_open(cddp_store **out, const char *host, int port, int64_t timeout_ms, struct cdi_error *err);

/* What a cddp_unique_id says of the store that its maker hosts. */
struct cdi_store_endpoint {
    struct cdi_secret secret;                          /* the reader wipes it */
    struct cdi_address address[CDI_NET_ADDRESSES + 1]; /* with the port, in the order in which they are to be tried */
    int n;
    int port;
};

/* How a communicator comes to its store. */
struct cdi_store_way {
    const char *host;
    int port;
    const struct cdi_flight *flight;     /* ends the waits of connecting, too, but for the resolution of the name */
    bool given;                          /* host and port are the program's, and not those of the environment */
    const struct cdi_store_endpoint *id; /* in place of host and port; its secret in place of the environment's */
};
cddp_status cdi_store_join(cddp_store **out, const struct cdi_store_way *way, int64_t timeout_ms,
                           struct cdi_error *err);
/* Whose end the end of the connection is: a rank's is said so (CDDP_E_PEER). */
enum cdi_store_by { CDI_STORE_BY_OTHERS, CDI_STORE_BY_RANK_0, CDI_STORE_BY_ID };
/* From now on every wait also ends when the agent says that the round is over. The page must outlive the store. */
void cdi_store_watch(cddp_store *store, const struct cdi_flight *flight, enum cdi_store_by by);
/* Of each operation from now on; while none runs. */
void cdi_store_set_timeout(cddp_store *store, int64_t timeout_ms);

/* This host's address in the connection: one that reaches the job's endpoint. *len 0: there is none any more. */
void cdi_store_local_address(const cddp_store *store, struct sockaddr_storage *address, socklen_t *len);

cddp_status cdi_store_set(cddp_store *store, const char *key, const void *value, size_t len, struct cdi_error *err);
cddp_status cdi_store_get(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                          struct cdi_error *err);
/*
 * cdi_store_get for where other threads use the store meanwhile, which they cannot while one waits in it: here the key
 * is asked for again and again.
 */
cddp_status cdi_store_get_aside(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len,
                                int64_t timeout_ms, struct cdi_error *err);
cddp_status cdi_store_add(cddp_store *store, const char *key, int64_t delta, int64_t *sum, struct cdi_error *err);
cddp_status cdi_store_compare_set(cddp_store *store, const char *key, const void *expected, size_t expected_len,
                                  const void *desired, size_t desired_len, void *buf, size_t cap, size_t *len,
                                  struct cdi_error *err);
cddp_status cdi_store_delete(cddp_store *store, const char *key, struct cdi_error *err); /* if it is there */
cddp_status cdi_store_exists(cddp_store *store, const char *key, bool *exists, struct cdi_error *err);

#endif
