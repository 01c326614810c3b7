/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CDI_COMMON_TCP_H
#define CDI_COMMON_TCP_H

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#define CDI_TCP_BACKOFF_MS 1000 /* the least that Linux accepts */
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* linux/tcp.h, Linux 6.15 */
#endif

/*
 * Limits the back-off of this TCP socket, and of those that it accepts. After a cut of the network that has healed,
 * data wait for the next retransmission, which TCP puts off twice as long each time. From Linux 6.15 on, this limits
 * that to a second. The kernel derives its limit of 15 retransmissions from the same number, so the usual limit of
 * 924.6 s (ip-sysctl.txt, tcp_retries2) is set as well. Any thread.
 */
static inline void cdi_tcp_limit_backoff(int fd)
{
    const int most_ms = CDI_TCP_BACKOFF_MS, give_up_ms = 924600;

    if (setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &most_ms, sizeof most_ms) == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &give_up_ms, sizeof give_up_ms);
}

/*
 * Returns whether this TCP socket is connected to itself. That happens if no process listens at the port and the kernel
 * picks the same port as the local one. Any thread.
 */
static inline bool cdi_is_self_connected(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_len = sizeof here, there_len = sizeof there;

    return getsockname(fd, (struct sockaddr *)&here, &here_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_len) == 0 && here_len == there_len &&
           memcmp(&here, &there, here_len) == 0;
}

/*
 * Binds this TCP socket to an address and listens there. both: [::] accepts IPv4, too. Returns 0 or an errno. Any
 * thread.
 */
static inline int cdi_tcp_listen(int fd, const struct sockaddr *a, socklen_t len, bool both, int backlog)
{
    int on = 1, only = !both;

    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* inherited by accepted sockets */
    cdi_tcp_limit_backoff(fd);
    if (a->sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
    return bind(fd, a, len) != 0 || listen(fd, backlog) != 0 ? errno : 0;
}

#endif
