/* SPDX-License-Identifier: Apache-2.0 */
/* Which process has a TCP connection, by its two ends: from /proc/net/tcp and /proc/PID/fd. No libuv, no thread. */
#ifndef CDI_SOCKETS_H
#define CDI_SOCKETS_H

#include "common/address.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Reads one line of /proc/net/tcp or tcp6: returns whether a process has the connection from local to remote, and sets
 * *inode of its socket. An IPv4 address is the same as that address mapped into IPv6. Both ends count: the kernel gives
 * one local port to connections that go to different places. A connection that its process has closed has no inode and
 * does not match. Pure.
 */
bool sockets_line_is(const char *line, const struct cdi_address *local, const struct cdi_address *remote,
                     uint64_t *inode);

/* Finds the socket at the local end of a connection; false: there is none in this network namespace. */
bool sockets_find(const struct cdi_address *local, const struct cdi_address *remote, uint64_t *inode);

/* Returns whether a process has this socket open; false, too, if its descriptors may not be read. */
bool sockets_has(pid_t pid, uint64_t inode);

#endif
