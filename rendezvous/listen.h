/* SPDX-License-Identifier: Apache-2.0 */
/* The listening sockets of one port: one per address of a name, or one for all addresses. Without an event loop. */
#ifndef RDZV_LISTEN_H
#define RDZV_LISTEN_H

#include "common/error.h"

#include <stddef.h>
#include <stdint.h>

#define LISTEN_MAX 8

/* The flags for host and port, for error messages. */
struct listen_names {
    const char *host, *port;
};

struct listen_set {
    struct listen_names names;
    int fds[LISTEN_MAX]; /* non-blocking */
    size_t n;
    uint16_t port;
};

/*
 * Listens on a port (0: any free one) of a host: a name, an address, or "*" for every address of both families.
 * Resolving a name may block. Returns CDDP_OK, CDDP_E_NOT_FOUND (it does not resolve), CDDP_E_EXISTS (the port is in
 * use), CDDP_E_INVALID (not an address of this node, or one with a port) or CDDP_E_SYSTEM. After an error nothing is
 * open.
 */
cddp_status listen_open(struct listen_set *s, const char *host, uint16_t port, struct listen_names names,
                        struct cdi_error *err);
void listen_close(struct listen_set *s);

#endif
