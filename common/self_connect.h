/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CDI_COMMON_SELF_CONNECT_H
#define CDI_COMMON_SELF_CONNECT_H

#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

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

#endif
