/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of this node that other nodes use: network interfaces by name. */
#ifndef CDI_BASE_INTERFACES_H
#define CDI_BASE_INTERFACES_H

#include "common/address.h"
#include "common/error.h"

#include <stdbool.h>

#define CDI_NET_IFNAME_ENV "CDDP_SOCKET_IFNAME"
#define CDI_NET_ADDRESSES 4 /* the most that a rank publishes */

/*
 * Returns whether spec selects the interface. NCCL's syntax: "eth,ib" selects names with these prefixes, "=eth0,eth1"
 * exactly these names, and "^" in front all others. Pure.
 */
bool cdi_net_selects(const char *spec, const char *name);

/*
 * Finds the *n addresses to listen on, best first: those of the interfaces that spec (CDDP_SOCKET_IFNAME; may be NULL)
 * selects. Without spec it is `reached`, by which this node reaches the job's endpoint; if that is a loopback address,
 * which other nodes cannot use, those of other interfaces follow it. CDDP_E_INVALID: spec selects no interface that is
 * up and has an address; CDDP_E_SYSTEM.
 */
cddp_status cdi_net_choose(const char *spec, const struct cdi_address *reached, struct cdi_address *out, int *n,
                           struct cdi_error *err);

#endif
