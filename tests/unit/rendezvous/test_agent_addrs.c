/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/agent_addrs.h"
#include "tests/support/hygiene.h"

CDI_SUITE(nodes);

static int job, other;

static struct in6_addr address(uint32_t i)
{
    struct in6_addr ip = {.s6_addr = {[10] = 0xff, [11] = 0xff, [12] = 10}};

    ip.s6_addr[13] = (uint8_t)(i >> 16);
    ip.s6_addr[14] = (uint8_t)(i >> 8);
    ip.s6_addr[15] = (uint8_t)i;
    return ip;
}

Test(agent_addrs, agent_is_found_for_its_job_and_for_all)
{
    const struct in6_addr here = address(1), there = address(2);
    struct agent_addrs n;

    agent_addrs_init(&n);
    cr_assert_not(agent_addrs_has(&n, &here, NULL));
    cr_assert_eq(agent_addrs_add(&n, &here, &job), CDDP_OK);
    cr_assert(agent_addrs_has(&n, &here, &job));
    cr_assert(agent_addrs_has(&n, &here, NULL));
    cr_assert_not(agent_addrs_has(&n, &here, &other));
    cr_assert_not(agent_addrs_has(&n, &there, NULL));
    agent_addrs_remove(&n, &here, &job);
    cr_assert_not(agent_addrs_has(&n, &here, &job));
    cr_assert_not(agent_addrs_has(&n, &here, NULL));
    agent_addrs_release(&n);
}

Test(agent_addrs, address_stays_until_its_last_agent_is_removed)
{
    const struct in6_addr here = address(1);
    struct agent_addrs n;

    agent_addrs_init(&n);
    cr_assert_eq(agent_addrs_add(&n, &here, &job), CDDP_OK);
    cr_assert_eq(agent_addrs_add(&n, &here, &job), CDDP_OK);
    cr_assert_eq(agent_addrs_add(&n, &here, &other), CDDP_OK);
    agent_addrs_remove(&n, &here, &job);
    cr_assert(agent_addrs_has(&n, &here, &job));
    agent_addrs_remove(&n, &here, &job);
    cr_assert_not(agent_addrs_has(&n, &here, &job));
    cr_assert(agent_addrs_has(&n, &here, &other));
    cr_assert(agent_addrs_has(&n, &here, NULL));
    agent_addrs_remove(&n, &here, &other);
    cr_assert_not(agent_addrs_has(&n, &here, NULL));
    agent_addrs_release(&n);
}

Test(agent_addrs, adds_thousands_and_removes_half)
{
    struct agent_addrs n;

    agent_addrs_init(&n);
    for (uint32_t i = 0; i < 10000; i++) {
        const struct in6_addr ip = address(i);

        cr_assert_eq(agent_addrs_add(&n, &ip, i % 3 == 0 ? &job : &other), CDDP_OK);
    }
    for (uint32_t i = 0; i < 10000; i += 2) {
        const struct in6_addr ip = address(i);

        agent_addrs_remove(&n, &ip, i % 3 == 0 ? &job : &other);
    }
    for (uint32_t i = 0; i < 10000; i++) {
        const struct in6_addr ip = address(i);

        cr_assert_eq(agent_addrs_has(&n, &ip, NULL), i % 2 == 1);
        cr_assert_eq(agent_addrs_has(&n, &ip, &job), i % 2 == 1 && i % 3 == 0);
    }
    agent_addrs_release(&n);
}
