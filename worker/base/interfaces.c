/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/base/interfaces.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>

bool cdi_net_selects(const char *spec, const char *name)
{
    bool others = *spec == '^', exact, found = false;

    spec += others;
    exact = *spec == '=';
    spec += exact;
    while (*spec != '\0' && !found) {
        size_t len = strcspn(spec, ",");

        found = len > 0 && strncmp(spec, name, len) == 0 && (!exact || name[len] == '\0');
        spec += len + (spec[len] == ',');
    }
    return found != others;
}

/* Returns whether the interface is up and has an address that needs no scope. */
static bool is_usable(const struct ifaddrs *i)
{
    const struct sockaddr *a = i->ifa_addr;

    if (a == NULL || (i->ifa_flags & IFF_UP) == 0)
        return false;
    if (a->sa_family == AF_INET)
        return true;
    return a->sa_family == AF_INET6 &&
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static void net_add(const struct sockaddr *a, struct cdi_address *out, int *n)
{
    struct cdi_address *to = &out[*n];

    if (*n >= CDI_NET_ADDRESSES)
        return;
    memset(to, 0, sizeof *to);
    to->len = a->sa_family == AF_INET ? sizeof to->u.v4 : sizeof to->u.v6;
    memcpy(&to->u, a, to->len);
    (*n)++;
}

/* Adds the addresses of interfaces, IPv4 first. Without spec: of all but loopback. */
static cddp_status add_interfaces(const char *spec, struct cdi_address *out, int *n, struct cdi_error *err)
{
    struct ifaddrs *all;

    if (getifaddrs(&all) != 0)
        return cdi_fail_errno(err, errno, "cannot list the network interfaces");
    for (int pass = 0; pass < 2; pass++)
        for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next)
            if (is_usable(i) && i->ifa_addr->sa_family == (pass == 0 ? AF_INET : AF_INET6) &&
                (spec != NULL ? cdi_net_selects(spec, i->ifa_name) : !cdi_address_is_loopback(i->ifa_addr)))
                net_add(i->ifa_addr, out, n);
    freeifaddrs(all);
    return CDDP_OK;
}

cddp_status cdi_net_choose(const char *spec, const struct cdi_address *reached, struct cdi_address *out, int *n,
                           struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    *n = 0;
    if (spec == NULL && reached->len > 0)
        net_add(&reached->u.any, out, n);
    if (spec != NULL || reached->len == 0 || cdi_address_is_loopback(&reached->u.any))
        st = add_interfaces(spec, out, n, err);
    if (st == CDDP_OK && *n == 0 && spec != NULL)
        return cdi_fail(err, CDDP_E_INVALID,
                        CDI_NET_IFNAME_ENV "='%.64s' selects no interface of this node that is up and has an address "
                                           "(see `ip addr`)",
                        spec);
    if (st == CDDP_OK && *n == 0)
        return cdi_fail(err, CDDP_E_SYSTEM, "this node has no network interface that is up and has an address");
    return st;
}
