/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/agent_addrs.h"

#include <stdlib.h>
#include <string.h>

/* Each agent counts twice: for its job, and with job NULL for all jobs. */
struct agent_addr_key {
    struct in6_addr ip;
    const void *job;
};

struct agent_addr {
    struct agent_addr_key key;
    size_t n_agents;
};

/* The key is hashed as bytes, so it must not have padding. */
_Static_assert(sizeof(struct agent_addr_key) == sizeof(struct in6_addr) + sizeof(void *), "the key has padding");

static struct agent_addr *agent_addrs_find(const struct agent_addrs *n, const struct in6_addr *ip, const void *job)
{
    const struct agent_addr_key key = {*ip, job};

    return cdi_map_get(&n->entries, &key, sizeof key);
}

static cddp_status agent_addrs_count_in(struct agent_addrs *n, const struct in6_addr *ip, const void *job)
{
    struct agent_addr *p = agent_addrs_find(n, ip, job);
    cddp_status st;

    if (p != NULL) {
        p->n_agents++;
        return CDDP_OK;
    }
    p = malloc(sizeof *p);
    if (p == NULL)
        return CDDP_E_NOMEM;
    *p = (struct agent_addr){{*ip, job}, 1};
    st = cdi_map_add(&n->entries, &p->key, sizeof p->key, p);
    if (st != CDDP_OK)
        free(p);
    return st;
}

static void agent_addrs_count_out(struct agent_addrs *n, const struct in6_addr *ip, const void *job)
{
    struct agent_addr *p = agent_addrs_find(n, ip, job);

    if (p == NULL || --p->n_agents > 0)
        return;
    (void)cdi_map_remove(&n->entries, &p->key, sizeof p->key);
    free(p);
}

void agent_addrs_init(struct agent_addrs *n)
{
    cdi_map_init(&n->entries);
}

void agent_addrs_release(struct agent_addrs *n)
{
    struct agent_addr *p;
    size_t at = 0;

    while ((p = cdi_map_next(&n->entries, &at)) != NULL)
        free(p);
    cdi_map_release(&n->entries);
}

cddp_status agent_addrs_add(struct agent_addrs *n, const struct in6_addr *ip, const void *job)
{
    cddp_status st = agent_addrs_count_in(n, ip, job);

    if (st == CDDP_OK && (st = agent_addrs_count_in(n, ip, NULL)) != CDDP_OK)
        agent_addrs_count_out(n, ip, job);
    return st;
}

void agent_addrs_remove(struct agent_addrs *n, const struct in6_addr *ip, const void *job)
{
    agent_addrs_count_out(n, ip, job);
    agent_addrs_count_out(n, ip, NULL);
}

bool agent_addrs_has(const struct agent_addrs *n, const struct in6_addr *ip, const void *job)
{
    return agent_addrs_find(n, ip, job) != NULL;
}
