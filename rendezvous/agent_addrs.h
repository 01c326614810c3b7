/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses of connected agents, for each job: a hash table, since every connection that cannot prove the auth
 * token looks one up. Pure. One thread at a time.
 */
#ifndef RDZV_AGENT_ADDRS_H
#define RDZV_AGENT_ADDRS_H

#include "common/map.h"

#include <netinet/in.h>
#include <stdbool.h>

struct agent_addrs {
    struct cdi_map entries; /* struct agent_addr */
};

/* Initializes without an allocation. */
void agent_addrs_init(struct agent_addrs *n);
/* Frees all entries. */
void agent_addrs_release(struct agent_addrs *n);
/*
 * Adds one agent of a job (any pointer but NULL; not dereferenced) at this address. Each call counts. Returns CDDP_OK,
 * or CDDP_E_NOMEM (nothing changed).
 */
cddp_status agent_addrs_add(struct agent_addrs *n, const struct in6_addr *ip, const void *job);
/* Undoes one successful agent_addrs_add() with the same arguments. */
void agent_addrs_remove(struct agent_addrs *n, const struct in6_addr *ip, const void *job);
/* Returns true if an agent of this job (NULL: of any) is connected from this address. */
bool agent_addrs_has(const struct agent_addrs *n, const struct in6_addr *ip, const void *job);

#endif
