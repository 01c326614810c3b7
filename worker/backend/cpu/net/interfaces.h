/* SPDX-License-Identifier: Apache-2.0 */
/* Which of this host's addresses other nodes are to use: interfaces by name, addresses to and from text. */
#ifndef CDI_NET_INTERFACES_H
#define CDI_NET_INTERFACES_H

#include "common/error.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#define CDI_NET_IFNAME_ENV "CDDP_SOCKET_IFNAME"
#define CDI_NET_ADDRESSES 4 /* a rank offers at most so many */
#define CDI_NET_TEXT 64     /* "[ipv6]:port" */

struct cdi_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } u;
    socklen_t len; /* 0: none */
};

/*
 * Is the interface meant by `spec`? NCCL's syntax: "eth,ib": names that begin so; "=eth0,eth1": just these; with "^" in
 * front: all others. Pure.
 */
bool cdi_net_meant(const char *spec, const char *name);

/*
 * The addresses to listen on, best first, *n of them: those of the interfaces that spec (CDDP_SOCKET_IFNAME; may be
 * NULL) means; without it `reached`, by which this host reaches the job's endpoint. Where that is a loopback address,
 * those of other interfaces come behind it, since another host cannot use it. CDDP_E_INVALID: spec means no interface
 * that is up and has an address; CDDP_E_SYSTEM.
 */
cddp_status cdi_net_choose(const char *spec, const struct cdi_address *reached, struct cdi_address *out, int *n,
                           struct cdi_error *err);

/* "10.0.0.1:4000", "[fd00::1]:4000", and back; false: it is no such text. */
void cdi_net_print(const struct cdi_address *a, char text[CDI_NET_TEXT]);
bool cdi_net_parse(const char *text, struct cdi_address *a);

#endif
