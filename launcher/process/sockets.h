/* SPDX-License-Identifier: Apache-2.0 */
/* Which process has a TCP connection, by its local address: from /proc/net/tcp and /proc/PID/fd. No libuv, no thread.
 */
#ifndef CDI_SOCKETS_H
#define CDI_SOCKETS_H

#include "common/address.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Reads one line of /proc/net/tcp or tcp6: returns whether the connection's own address is this one, and sets *inode of
 * its socket. An IPv4 address is the same as that address mapped into IPv6. Pure.
 */
bool sockets_line_is(const char *line, const struct cdi_address *local, uint64_t *inode);

/* Finds the socket of a connection by its own address; false: there is none in this network namespace. */
bool sockets_find(const struct cdi_address *local, uint64_t *inode);

/* Returns whether a process has this socket open; false, too, if its descriptors may not be read. */
bool sockets_has(pid_t pid, uint64_t inode);

#endif
