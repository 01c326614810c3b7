/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection of a thread to a TCP server: connects, sends and receives with deadlines, over poll(2). Deadlines are
 * absolute, in ms of cdi_now_ms. One thread at a time. A child of fork() does not keep the socket (fork_close.h).
 */
#ifndef CDI_DIAL_H
#define CDI_DIAL_H

#include "common/buf.h"
#include "common/error.h"

#include <stdint.h>
#include <sys/socket.h>

struct cdi_dial {
    int fd; /* -1: not connected */
    struct cdi_buf out, in;
    char peer[330]; /* for error messages: "the store at 10.0.0.1:29500" */
    /* Called every 50 ms of a wait, which its error ends; NULL: none. */
    cddp_status (*interrupt)(const void *arg, struct cdi_error *err);
    const void *arg;
};

/*
 * Connects to one address. Returns CDDP_OK; CDDP_E_IO (err->os_error is the reason, ETIMEDOUT without an answer,
 * EAFNOSUPPORT without such a network here; the text is the reason alone), CDDP_E_SYSTEM, or the error of d->interrupt.
 * d stays unconnected after an error.
 */
cddp_status cdi_dial_connect(struct cdi_dial *d, const struct sockaddr *a, socklen_t len, int64_t deadline_ms,
                             struct cdi_error *err);
/*
 * Resolves host, which has no deadline, and connects to the first of its addresses that answers. Returns the same, the
 * last address's error, or CDDP_E_NOT_FOUND (the text is the resolver's).
 */
cddp_status cdi_dial_name(struct cdi_dial *d, const char *host, int port, int64_t deadline_ms, struct cdi_error *err);
/*
 * Send all of d->out; receive until d->in holds at least n bytes. Return CDDP_OK, CDDP_E_TIMEOUT, CDDP_E_CLOSED (the
 * server has ended the connection), CDDP_E_IO, CDDP_E_NOMEM, CDDP_E_SYSTEM, or the error of d->interrupt.
 */
cddp_status cdi_dial_flush(struct cdi_dial *d, int64_t deadline_ms, struct cdi_error *err);
cddp_status cdi_dial_need(struct cdi_dial *d, size_t n, int64_t deadline_ms, struct cdi_error *err);
/* Closes the connection, and drops unsent and unread bytes. Does nothing if there is none. */
void cdi_dial_drop(struct cdi_dial *d);

#endif
