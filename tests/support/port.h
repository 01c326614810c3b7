/* SPDX-License-Identifier: Apache-2.0 */
/* Ports for programs that need a number before they start: ports.py in C, which says why. */
#ifndef CDI_TEST_PORT_H
#define CDI_TEST_PORT_H

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT_FIRST 10000
#define PORT_COUNT 10000
#define PORT_HELD 64

static int port_fd[PORT_HELD], port_n;

/* The descriptor that keeps this port for programs that set SO_REUSEADDR, or -1: somebody has it. */
static inline int port_hold(int port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, off = 0, rc;

    if (fd >= 0) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        rc = bind(fd, (struct sockaddr *)&six, sizeof six);
    } else { /* a kernel without IPv6 */
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        rc = bind(fd, (struct sockaddr *)&four, sizeof four);
    }
    if (rc == 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0) /* not before bind() */
        return fd;
    (void)close(fd);
    return -1;
}

/* A port for the programs of this process alone, until it ends or port_release(). Ends the process where there is none.
 */
static inline int free_port(void)
{
    for (int i = 0; i < 1000 && port_n < PORT_HELD; i++) {
        uint16_t chance = 0;
        int port, fd;

        (void)getrandom(&chance, sizeof chance, 0);
        port = PORT_FIRST + chance % PORT_COUNT;
        fd = port_hold(port);
        if (fd >= 0) {
            port_fd[port_n++] = fd;
            return port;
        }
    }
    fprintf(stderr, "there is no free port from %d to %d, or this process keeps %d\n", PORT_FIRST,
            PORT_FIRST + PORT_COUNT - 1, port_n);
    abort();
}

static inline void port_release(void)
{
    while (port_n > 0)
        (void)close(port_fd[--port_n]);
}

#endif
