/* SPDX-License-Identifier: Apache-2.0 */
#include "common/dial.h"

#include "common/clock.h"
#include "common/fork_close.h"
#include "common/resolve.h"
#include "common/tcp.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define INTERRUPT_MS 50
#define READ_MIN 16384

static cddp_status dial_wait(const struct cdi_dial *d, short events, int64_t deadline_ms, struct cdi_error *err)
{
    int64_t slice_ms = d->interrupt != NULL ? INTERRUPT_MS : 60000;

    for (;;) {
        struct pollfd p = {.fd = d->fd, .events = events};
        int64_t left = deadline_ms - cdi_now_ms();
        cddp_status st;
        int n;

        if (left <= 0)
            return cdi_fail(err, CDDP_E_TIMEOUT, "%s did not answer in time", d->peer);
        n = poll(&p, 1, (int)(left < slice_ms ? left : slice_ms));
        if (n > 0)
            return CDDP_OK;
        if (n < 0 && errno != EINTR)
            return cdi_fail_errno(err, errno, "cannot wait for %s", d->peer);
        st = d->interrupt != NULL ? d->interrupt(d->arg, err) : CDDP_OK;
        if (st != CDDP_OK)
            return st;
    }
}

static cddp_status dial_failed(const struct cdi_dial *d, const char *what, struct cdi_error *err)
{
    if (errno == EPIPE || errno == ECONNRESET)
        return cdi_fail(err, CDDP_E_CLOSED, "%s closed the connection: %s", d->peer, strerror(errno));
    return cdi_fail(err, CDDP_E_IO, "%s %s: %s", what, d->peer, strerror(errno));
}

cddp_status cdi_dial_flush(struct cdi_dial *d, int64_t deadline_ms, struct cdi_error *err)
{
    while (d->out.len > 0) {
        ssize_t n = send(d->fd, cdi_buf_data(&d->out), d->out.len, MSG_NOSIGNAL);
        cddp_status st = CDDP_OK;

        if (n >= 0)
            cdi_buf_consume(&d->out, (size_t)n);
        else if (errno == EAGAIN)
            st = dial_wait(d, POLLOUT, deadline_ms, err);
        else if (errno != EINTR)
            st = dial_failed(d, "sending to", err);
        if (st != CDDP_OK)
            return st;
    }
    return CDDP_OK;
}

cddp_status cdi_dial_need(struct cdi_dial *d, size_t n, int64_t deadline_ms, struct cdi_error *err)
{
    while (d->in.len < n) {
        size_t room = n - d->in.len < READ_MIN ? READ_MIN : n - d->in.len;
        uint8_t *to = cdi_buf_reserve(&d->in, room);
        ssize_t got = to == NULL ? 0 : recv(d->fd, to, room, 0);
        cddp_status st = CDDP_OK;

        if (to == NULL)
            return cdi_fail(err, CDDP_E_NOMEM, "out of memory for the answer of %s", d->peer);
        if (got > 0)
            cdi_buf_commit(&d->in, (size_t)got);
        else if (got == 0)
            st = cdi_fail(err, CDDP_E_CLOSED, "%s closed the connection", d->peer);
        else if (errno == EAGAIN)
            st = dial_wait(d, POLLIN, deadline_ms, err);
        else if (errno != EINTR)
            st = dial_failed(d, "receiving from", err);
        if (st != CDDP_OK)
            return st;
    }
    return CDDP_OK;
}

static cddp_status dial_refused(struct cdi_dial *d, int why, const char *text, struct cdi_error *err)
{
    cdi_dial_drop(d);
    (void)cdi_fail(err, CDDP_E_IO, "%s", text);
    if (err != NULL)
        err->os_error = why;
    return CDDP_E_IO;
}

cddp_status cdi_dial_connect(struct cdi_dial *d, const struct sockaddr *a, socklen_t len, int64_t deadline_ms,
                             struct cdi_error *err)
{
    int on = 1, why = 0;
    socklen_t size = sizeof why;

    d->fd = cdi_fork_socket(a->sa_family);
    if (d->fd < 0 && errno == EAFNOSUPPORT) /* such as IPv6 where the kernel has none; another address may do */
        return dial_refused(d, EAFNOSUPPORT, strerror(EAFNOSUPPORT), err);
    if (d->fd < 0)
        return cdi_fail_errno(err, errno, "cannot make a socket for %s", d->peer);
    (void)setsockopt(d->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    cdi_tcp_limit_backoff(d->fd);
    if (connect(d->fd, a, len) != 0)
        why = errno;
    if (why == EINPROGRESS || why == EINTR) {
        cddp_status st = dial_wait(d, POLLOUT, deadline_ms, err);

        if (st == CDDP_E_TIMEOUT)
            return dial_refused(d, ETIMEDOUT, "no answer", err);
        if (st != CDDP_OK) {
            cdi_dial_drop(d);
            return st;
        }
        if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &why, &size) != 0)
            why = errno;
    }
    if (why == 0 && cdi_is_self_connected(d->fd))
        why = ECONNREFUSED;
    return why == 0 ? CDDP_OK : dial_refused(d, why, strerror(why), err);
}

cddp_status cdi_dial_name(struct cdi_dial *d, const char *host, int port, int64_t deadline_ms, struct cdi_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    char service[16];
    cddp_status st = CDDP_E_IO;
    int rc;

    (void)snprintf(service, sizeof service, "%d", port);
    rc = cdi_resolve(host, service, &hints, &list);
    if (rc != 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "%s", rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    for (const struct addrinfo *a = list; a != NULL && st == CDDP_E_IO; a = a->ai_next) {
        int64_t now = cdi_now_ms(), half = now + (deadline_ms - now) / 2;

        /* A firewall may drop what is sent to one address, such as the IPv6 one, and the next may answer. */
        st = cdi_dial_connect(d, a->ai_addr, a->ai_addrlen, a->ai_next == NULL ? deadline_ms : half, err);
    }
    freeaddrinfo(list);
    return st;
}

void cdi_dial_drop(struct cdi_dial *d)
{
    cdi_fork_close(d->fd);
    d->fd = -1;
    cdi_buf_release(&d->in);
    cdi_buf_release(&d->out);
}
