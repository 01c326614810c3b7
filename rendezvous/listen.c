/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/listen.h"
#include "common/address.h"
#include "common/cleanup.h"
#include "common/resolve.h"
#include "common/tcp.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 4096

static cddp_status bind_failed(int errnum, const char *host, const struct listen_set *s, struct cdi_error *err)
{
    if (errnum == EADDRINUSE)
        return cdi_fail(err, CDDP_E_EXISTS,
                        "port %u on %s is in use by another program; end that one, or choose another port with %s (0: "
                        "any free port)",
                        s->port, host, s->names.port);
    if (errnum == EADDRNOTAVAIL)
        return cdi_fail(err, CDDP_E_INVALID,
                        "%s is not an address of this node, so the rendezvous server cannot listen on it; check %s",
                        host, s->names.host);
    if (errnum == EACCES)
        return cdi_fail(err, CDDP_E_SYSTEM, "only root can listen on port %u; choose one above 1023", s->port);
    return cdi_fail_errno(err, errnum, "the rendezvous server cannot listen on port %u of %s", s->port, host);
}

/* Opens a listening socket and appends it to s->fds. */
static cddp_status add_socket(struct listen_set *s, const struct sockaddr *addr, socklen_t len, bool both,
                              const char *host, struct cdi_error *err)
{
    struct sockaddr_storage a = {0};
    CDI_AUTOCLOSE int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int why;

    if (fd < 0)
        return bind_failed(errno, host, s, err);
    memcpy(&a, addr, len);
    cdi_address_set_port((struct sockaddr *)&a, s->port);
    why = cdi_tcp_listen(fd, (struct sockaddr *)&a, len, both, BACKLOG);
    if (why != 0)
        return bind_failed(why, host, s, err);
    len = sizeof a;
    if (s->port == 0 && getsockname(fd, (struct sockaddr *)&a, &len) == 0)
        s->port = cdi_address_port((struct sockaddr *)&a);
    s->fds[s->n++] = cdi_steal_fd(&fd);
    return CDDP_OK;
}

void listen_close(struct listen_set *s)
{
    while (s->n > 0)
        (void)close(s->fds[--s->n]);
}

/* Listens on every address: one socket for both families, or IPv4 only if there is no IPv6. */
static cddp_status listen_all_addresses(struct listen_set *s, struct cdi_error *err)
{
    struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in any = {.sin_family = AF_INET};
    cddp_status st = add_socket(s, (struct sockaddr *)&any6, sizeof any6, true, "any address", err);

    if (st != CDDP_OK && st != CDDP_E_EXISTS)
        st = add_socket(s, (struct sockaddr *)&any, sizeof any, false, "any address", err);
    return st;
}

/* Listens on all addresses of a name. One that cannot be bound (no IPv6) is skipped if another can. */
static cddp_status listen_host(struct listen_set *s, const char *host, uint16_t port, struct cdi_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    cddp_status st = CDDP_E_NOT_FOUND;
    int rc = cdi_resolve(host, NULL, &hints, &list);

    if (rc != 0 && cdi_address_without_port(host, s->names.host, s->names.port, err) != CDDP_OK)
        return CDDP_E_INVALID;
    if (rc != 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "the listening address '%s' does not resolve: %s; check %s", host,
                        rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc), s->names.host);
    s->port = port;
    for (const struct addrinfo *a = list; a != NULL && s->n < LISTEN_MAX; a = a->ai_next) {
        if ((a->ai_family != AF_INET && a->ai_family != AF_INET6) || cdi_is_repeated(list, a))
            continue;
        st = add_socket(s, a->ai_addr, a->ai_addrlen, false, host, err);
        if (st == CDDP_E_EXISTS)
            break;
    }
    freeaddrinfo(list);
    if (st == CDDP_E_EXISTS)
        listen_close(s);
    return s->n > 0 ? CDDP_OK : st;
}

cddp_status listen_open(struct listen_set *s, const char *host, uint16_t port, struct listen_names names,
                        struct cdi_error *err)
{
    cddp_status st = CDDP_E_EXISTS;

    *s = (struct listen_set){.names = names, .port = port};
    if (strcmp(host, "*") == 0)
        return listen_all_addresses(s, err);
    /* A port that is free on the first address may be in use on the second; then try another. */
    for (int tries = 0; st == CDDP_E_EXISTS && tries < (port == 0 ? 16 : 1); tries++)
        st = listen_host(s, host, port, err);
    return st;
}
