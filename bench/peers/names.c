/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into PyTorch's store server, which looks up the name of every client that it accepts: getnameinfo() that
 * answers with the address, after NAMES_US microseconds (default 0), as if there were a resolver that needs so long.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int getnameinfo(const struct sockaddr *addr, socklen_t addr_len, char *host, socklen_t host_len, char *service,
                socklen_t service_len, int flags)
{
    const char *text = getenv("NAMES_US");
    long us = text == NULL ? 0 : strtol(text, NULL, 10);
    struct timespec wait = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    const void *ip = &((const struct sockaddr_in *)(const void *)addr)->sin_addr;
    in_port_t port = ((const struct sockaddr_in *)(const void *)addr)->sin_port;

    (void)addr_len;
    (void)flags;
    if (us > 0)
        (void)nanosleep(&wait, NULL);
    if (addr->sa_family == AF_INET6)
        ip = &((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr;
    if (host != NULL && inet_ntop(addr->sa_family, ip, host, host_len) == NULL)
        return EAI_OVERFLOW;
    if (service != NULL)
        (void)snprintf(service, service_len, "%u", (unsigned)ntohs(port));
    return 0;
}
