/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store client for the library itself: the public operations, but with a cdi_error instead of the thread's last
 * error, and with keys as they are. The library's keys start with "cddp/"; public keys cannot, since they get a "/" in
 * front. The rules of cddp.h hold: blocking with deadlines, any thread, one operation at a time.
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

/* Connects. timeout_ms > 0, for that and for each operation. Returns the errors of cddp_store_open. */
cddp_status cdi_store_open(cddp_store **out, const char *host, int port, int64_t timeout_ms, struct cdi_error *err);

/* The addresses and the auth token of a store, from a cddp_unique_id. */
struct cdi_store_endpoint {
    struct cdi_secret secret;                          /* its user wipes it */
    struct cdi_address address[CDI_NET_ADDRESSES + 1]; /* with the port, in the order of trial */
    int n;
    int port;
};

/* How a communicator reaches its store. */
struct cdi_store_way {
    const char *host;
    int port;
    const struct cdi_flight *flight;     /* ends the waits of connecting, too, except the name's resolution */
    bool given;                          /* host and port come from the program, not from the environment */
    const struct cdi_store_endpoint *id; /* replaces host and port, and the environment's auth token */
};
cddp_status cdi_store_join(cddp_store **out, const struct cdi_store_way *way, int64_t timeout_ms,
                           struct cdi_error *err);
/* The store's host. An end of the connection to a rank is reported as that rank's death (CDDP_E_PEER). */
enum cdi_store_by { CDI_STORE_BY_OTHERS, CDI_STORE_BY_RANK_0, CDI_STORE_BY_ID };
/* Ends every wait from now on also when the agent reports the end of the round. The page must outlive the store. */
void cdi_store_watch(cddp_store *store, const struct cdi_flight *flight, enum cdi_store_by by);
/* Sets the timeout of all later operations. No operation may run. */
void cdi_store_set_timeout(cddp_store *store, int64_t timeout_ms);

/* Gets this node's address in the connection, which reaches the job's endpoint. Sets *len to 0 if it is closed. */
void cdi_store_local_address(const cddp_store *store, struct sockaddr_storage *address, socklen_t *len);

cddp_status cdi_store_set(cddp_store *store, const char *key, const void *value, size_t len, struct cdi_error *err);
cddp_status cdi_store_get(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                          struct cdi_error *err);
/*
 * Does the same as cdi_store_get by polling, so that other threads can use the store during the wait.
 */
cddp_status cdi_store_get_polling(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len,
                                  int64_t timeout_ms, struct cdi_error *err);
cddp_status cdi_store_add(cddp_store *store, const char *key, int64_t delta, int64_t *sum, struct cdi_error *err);
cddp_status cdi_store_compare_set(cddp_store *store, const char *key, const void *expected, size_t expected_len,
                                  const void *desired, size_t desired_len, void *buf, size_t cap, size_t *len,
                                  struct cdi_error *err);
cddp_status cdi_store_delete(cddp_store *store, const char *key, struct cdi_error *err); /* if it exists */
cddp_status cdi_store_exists(cddp_store *store, const char *key, bool *exists, struct cdi_error *err);

#endif
