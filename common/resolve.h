/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves host names: getaddrinfo, and localhost also on a node that does not know it. Any thread. */
#ifndef CDI_RESOLVE_H
#define CDI_RESOLVE_H

#include <stdbool.h>

struct addrinfo;

/* Returns whether RFC 6761 (6.3) reserves the name for loopback: localhost, and all that end in .localhost. */
bool cdi_is_localhost(const char *host);

/*
 * Resolves host as getaddrinfo does, and blocks as it does. If the node does not know a name of localhost (such as a
 * container without /etc/hosts), the result is the loopback addresses. service NULL: the ports are 0. Returns 0 or an
 * EAI_ code, with errno for EAI_SYSTEM. If it returns 0, the caller frees *out by freeaddrinfo.
 */
int cdi_resolve(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);

/*
 * Returns whether an entry of the list before this one has the same address: /etc/hosts may have a name in two lines,
 * and getaddrinfo returns the address twice. A server that listens on each of them would find its port in use.
 */
bool cdi_is_repeated(const struct addrinfo *list, const struct addrinfo *entry);

#endif
