/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection of the store client: connecting with retries, the handshake with the auth token, and bytes with
 * deadlines of common/dial.h. Only client.c uses it, with the client's lock held. The functions that read and write
 * return CDDP_OK, CDDP_E_TIMEOUT, CDDP_E_CLOSED, CDDP_E_IO, CDDP_E_NOMEM, or an error from the flight page (see
 * cdi_flight_check). Deadlines are absolute, in ms of cdi_now_ms.
 */
#ifndef CDI_STORE_CONN_H
#define CDI_STORE_CONN_H

#include "common/dial.h"
#include "worker/base/owner.h"
#include "worker/store/client.h"

#include <pthread.h>

struct cddp_store {
    struct cdi_owner owner;
    pthread_mutex_t lock;
    struct cdi_dial io; /* unconnected after an error */
    int64_t timeout_ms;
    const struct cdi_flight *flight; /* may be NULL */
    enum cdi_store_by by;
    bool given;      /* host and port come from the program */
    bool in_order;   /* the failed operation has sent nothing, or its wait was cancelled: the connection is as before */
    bool settling;   /* the answer to a cancelled wait is still to come */
    bool woken;      /* its first part has come: the wait had succeeded */
    char where[300]; /* "host:port", for error messages */
    char why[300];   /* the error that closed it; "": none */
};

/*
 * How long a host name that the name service does not know is retried, and a store of an id that is not there. All
 * other failures are retried until the timeout. Tests set their own.
 */
extern int64_t cdi_store_unknown_ms;
/* How long a wait that has timed out waits for the server to confirm its end; after it, the next operation does. */
extern int64_t cdi_store_cancel_ms;

/* Sends all of s->io.out. */
cddp_status cdi_store_flush(cddp_store *s, int64_t deadline_ms, struct cdi_error *err);
/* Receives until s->io.in holds at least n bytes. */
cddp_status cdi_store_need(cddp_store *s, size_t n, int64_t deadline_ms, struct cdi_error *err);
cddp_status cdi_store_read_u8(cddp_store *s, int64_t deadline_ms, unsigned *v, struct cdi_error *err);
cddp_status cdi_store_read_u64(cddp_store *s, int64_t deadline_ms, uint64_t *v, struct cdi_error *err);
/* Reads a string into buf. If it is too long, sets *len, copies nothing, and returns CDDP_E_LIMIT. */
cddp_status cdi_store_read_string(cddp_store *s, int64_t deadline_ms, void *buf, size_t cap, size_t *len,
                                  struct cdi_error *err);
/* Returns CDDP_E_PROTOCOL: the peer is not a store. */
cddp_status cdi_store_nonsense(const cddp_store *s, struct cdi_error *err);
/* Sets the page whose end of a round ends every wait; NULL: none. */
void cdi_store_follow(cddp_store *s, const struct cdi_flight *flight);
/* Closes the connection, and drops unsent and unread bytes. */
void cdi_store_drop(cddp_store *s);

#endif
