/* SPDX-License-Identifier: Apache-2.0 */
/* Interfaces by name, and the choice of addresses. */
#include "hygiene.h"
#include "worker/base/interfaces.h"

#include <string.h>

CDI_SUITE(net);

Test(net, plain_list_selects_prefixes)
{
    cr_assert(cdi_net_selects("eth,ib", "eth0"));
    cr_assert(cdi_net_selects("eth,ib", "ib1"));
    cr_assert(!cdi_net_selects("eth,ib", "lo"));
    cr_assert(!cdi_net_selects("eth0", "eth"));
    cr_assert(!cdi_net_selects("", "eth0"));
    cr_assert(!cdi_net_selects(",", "eth0"), "an empty name is not a prefix");
}

Test(net, equals_sign_selects_whole_names)
{
    cr_assert(cdi_net_selects("=eth0,eth2", "eth2"));
    cr_assert(!cdi_net_selects("=eth0", "eth01"));
    cr_assert(!cdi_net_selects("=eth0", "eth"));
}

Test(net, caret_selects_all_others)
{
    cr_assert(cdi_net_selects("^lo,docker", "eth0"));
    cr_assert(!cdi_net_selects("^lo,docker", "docker0"));
    cr_assert(!cdi_net_selects("^=eth0", "eth0"));
    cr_assert(cdi_net_selects("^=eth0", "eth01"));
}

Test(net, chooses_the_address_that_reaches_the_endpoint)
{
    struct cdi_address reached, out[CDI_NET_ADDRESSES];
    struct cdi_error err;
    int n;

    cr_assert(cdi_address_parse("192.0.2.7:29500", &reached));
    cr_assert_eq(cdi_net_choose(NULL, &reached, out, &n, &err), CDDP_OK);
    cr_assert_eq(n, 1);
    cr_assert_eq(memcmp(&out[0].u.v4.sin_addr, &reached.u.v4.sin_addr, 4), 0);
}

Test(net, other_addresses_follow_a_loopback_address)
{
    struct cdi_address reached, out[CDI_NET_ADDRESSES];
    struct cdi_error err;
    int n;

    cr_assert(cdi_address_parse("127.0.1.1:29500", &reached));
    cr_assert_eq(cdi_net_choose(NULL, &reached, out, &n, &err), CDDP_OK);
    cr_assert_geq(n, 1);
    cr_assert_eq(memcmp(&out[0].u.v4.sin_addr, &reached.u.v4.sin_addr, 4), 0);
    for (int i = 1; i < n; i++)
        cr_assert_neq(ntohl(out[i].u.v4.sin_addr.s_addr) >> 24, 127);
}

Test(net, rejects_a_missing_interface)
{
    struct cdi_address reached = {.len = 0}, out[CDI_NET_ADDRESSES];
    struct cdi_error err;
    int n;

    cr_assert_eq(cdi_net_choose("=lo", &reached, out, &n, &err), CDDP_OK);
    cr_assert_geq(n, 1);
    cr_assert_eq(cdi_net_choose("=nosuch0", &reached, out, &n, &err), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "CDDP_SOCKET_IFNAME='=nosuch0'"));
}
