/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/agent_addrs.h"

#include <stdlib.h>
#include <string.h>

/* Of a job, and once more, with NULL, of all of them. */
struct place_name {
    struct in6_addr ip;
    const void *job;
};

struct place {
    struct place_name name;
    size_t n_agents;
};

/* What is hashed must have no hole whose bytes are nobody's. */
_Static_assert(sizeof(struct place_name) == sizeof(struct in6_addr) + sizeof(void *), "a place's name has holes");

static struct place *find(const struct nodes *n, const struct in6_addr *ip, const void *job)
{
    const struct place_name name = {*ip, job};

    return cdi_map_get(&n->places, &name, sizeof name);
}

static cddp_status count_in(struct nodes *n, const struct in6_addr *ip, const void *job)
{
    struct place *p = find(n, ip, job);
    cddp_status st;

    if (p != NULL) {
        p->n_agents++;
        return CDDP_OK;
    }
    p = malloc(sizeof *p);
    if (p == NULL)
        return CDDP_E_NOMEM;
    *p = (struct place){{*ip, job}, 1};
    st = cdi_map_add(&n->places, &p->name, sizeof p->name, p);
    if (st != CDDP_OK)
        free(p);
    return st;
}

static void count_out(struct nodes *n, const struct in6_addr *ip, const void *job)
{
    struct place *p = find(n, ip, job);

    if (p == NULL || --p->n_agents > 0)
        return;
    (void)cdi_map_remove(&n->places, &p->name, sizeof p->name);
    free(p);
}

void nodes_init(struct nodes *n)
{
    cdi_map_init(&n->places);
}

void nodes_release(struct nodes *n)
{
    struct place *p;
    size_t at = 0;

    while ((p = cdi_map_next(&n->places, &at)) != NULL)
        free(p);
    cdi_map_release(&n->places);
}

cddp_status nodes_add(struct nodes *n, const struct in6_addr *ip, const void *job)
{
    cddp_status st = count_in(n, ip, job);

    if (st == CDDP_OK && (st = count_in(n, ip, NULL)) != CDDP_OK)
        count_out(n, ip, job);
    return st;
}

void nodes_remove(struct nodes *n, const struct in6_addr *ip, const void *job)
{
    count_out(n, ip, job);
    count_out(n, ip, NULL);
}

bool nodes_has(const struct nodes *n, const struct in6_addr *ip, const void *job)
{
    return find(n, ip, job) != NULL;
}
