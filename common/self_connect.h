/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CDI_COMMON_SELF_CONNECT_H
#define CDI_COMMON_SELF_CONNECT_H

#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

/*
 * Is this TCP connection one of a socket with itself? Where nobody listens at a port from which the kernel also takes
 * local ones, an attempt to connect may be given just that port, and then succeeds. Any thread.
 */
static inline bool cdi_is_self_connected(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_len = sizeof here, there_len = sizeof there;

    return getsockname(fd, (struct sockaddr *)&here, &here_len) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_len) == 0 && here_len == there_len &&
           memcmp(&here, &there, here_len) == 0;
}

#endif
