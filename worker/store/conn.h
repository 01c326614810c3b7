/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection below the store client: connecting with retries, the opening and the secret, and bytes with deadlines
 * over poll(2). Only store_client.c uses it, with the client's lock held. The reading and writing functions return
 * CDDP_OK, CDDP_E_TIMEOUT, CDDP_E_CLOSED, CDDP_E_IO, CDDP_E_NOMEM, or what the flight page says (see
 * cdi_flight_check); deadlines are absolute, in ms of cdi_now_ms.
 */
#ifndef CDI_STORE_CONN_H
#define CDI_STORE_CONN_H

#include "common/buf.h"
#include "worker/base/owner.h"
#include "worker/store/client.h"

#include <pthread.h>

struct cddp_store {
    struct cdi_owner owner;
    pthread_mutex_t lock;
    int fd; /* -1: closed after an error */
    struct cdi_buf out, in;
    int64_t timeout_ms;
    const struct cdi_flight *flight; /* may be NULL */
    enum cdi_store_by by;
    bool given;      /* host and port, by the program */
    bool in_order;   /* the wait that has failed was taken back: the connection is as before */
    char where[300]; /* "host:port", for sentences */
};

/*
 * How long a name that the name service does not know is asked for again (another failure of it, until the timeout),
 * and an id's store that is not there. Tests have their own.
 */
extern int64_t cdi_store_unknown_ms;

/* Send all of s->out. */
cddp_status cdi_store_flush(cddp_store *s, int64_t deadline_ms, struct cdi_error *err);
/* Until s->in holds n bytes or more. */
cddp_status cdi_store_need(cddp_store *s, size_t n, int64_t deadline_ms, struct cdi_error *err);
cddp_status cdi_store_read_u8(cddp_store *s, int64_t deadline_ms, unsigned *v, struct cdi_error *err);
cddp_status cdi_store_read_u64(cddp_store *s, int64_t deadline_ms, uint64_t *v, struct cdi_error *err);
/* A string into the caller's memory; too long for it: *len is its length, no copy, CDDP_E_LIMIT. */
cddp_status cdi_store_read_string(cddp_store *s, int64_t deadline_ms, void *buf, size_t cap, size_t *len,
                                  struct cdi_error *err);
/* CDDP_E_PROTOCOL: what is there is no store. */
cddp_status cdi_store_nonsense(const cddp_store *s, struct cdi_error *err);
/* Close the connection and forget what was in flight. */
void cdi_store_drop(cddp_store *s);

#endif
