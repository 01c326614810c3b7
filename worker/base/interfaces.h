/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of this node that other nodes use: network interfaces by name. */
#ifndef CDI_BASE_INTERFACES_H
#define CDI_BASE_INTERFACES_H

#include "common/address.h"
#include "common/error.h"

#include <stdbool.h>

#define CDI_NET_IFNAME_ENV "CDDP_SOCKET_IFNAME"
#define CDI_NET_ADDRESSES 4 /* a rank offers at most so many */

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

#endif
