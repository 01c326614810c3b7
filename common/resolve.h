/* SPDX-License-Identifier: Apache-2.0 */
/* Names of hosts to addresses: getaddrinfo, which also knows localhost where the machine does not. Any thread. */
#ifndef CDI_RESOLVE_H
#define CDI_RESOLVE_H

#include <stdbool.h>

struct addrinfo;

/* True for the names that RFC 6761 (6.3) reserves for loopback: localhost, and all that end in .localhost. */
bool cdi_is_localhost(const char *host);

/*
 * Resolves host as getaddrinfo does, and blocks as it does. If the machine does not know a name of localhost (a
 * container without /etc/hosts, say), the result is the loopback addresses. service NULL: the ports are 0. Returns 0 or
 * an EAI_ code; errno says more of EAI_SYSTEM. *out is the caller's, for freeaddrinfo, only if the result is 0.
 */
int cdi_resolve(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out);

#endif
