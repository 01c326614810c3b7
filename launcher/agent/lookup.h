/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses of a host: at once, or by a thread while the loop runs, since a name server may be slow or never
 * answer. Nothing waits for that thread: its answer is fetched when there is one, and the process may end before.
 */
#ifndef LOOKUP_H
#define LOOKUP_H

#include "common/error.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define LOOKUP_ADDRS_MAX 8

/*
 * Finds the addresses of a host, LOOKUP_ADDRS_MAX at most. A name blocks for as long as the resolver does, so call this
 * before the loop runs; "*" is this node's loopback. Returns CDDP_E_NOT_FOUND with an error message.
 */
cddp_status lookup_addresses(struct sockaddr_storage *addrs, unsigned *n, const char *host, uint16_t port,
                             struct cdi_error *err);

struct lookup;

/* Starts a thread that looks for the addresses of host. Returns NULL if out of memory or threads. */
struct lookup *lookup_start(const char *host, uint16_t port);
/*
 * Fetches the answer, if there is one; *l is then freed and set to NULL. Returns true after it has written addrs
 * (LOOKUP_ADDRS_MAX of them) and *n; false without an answer, or if the name is not known. NULL-safe.
 */
bool lookup_fetch(struct lookup **l, struct sockaddr_storage *addrs, unsigned *n);
/* Drops the lookup: its answer is not needed. NULL-safe. Never blocks. */
void lookup_drop(struct lookup *l);

#endif
