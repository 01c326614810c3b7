/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From which addresses agents are connected, and of which job: found by a hash, since each connection without a proof
 * of the secret asks. Pure. One thread at a time.
 */
#ifndef RDZV_AGENT_ADDRS_H
#define RDZV_AGENT_ADDRS_H

#include "common/map.h"

#include <netinet/in.h>
#include <stdbool.h>

struct agent_addrs {
    struct cdi_map entries; /* struct agent_addr */
};

/* No allocation. */
void agent_addrs_init(struct agent_addrs *n);
/* Forget all of them, and free their memory. */
void agent_addrs_release(struct agent_addrs *n);
/* An agent of a job (any pointer but NULL, which is not followed) is connected from there; each call counts. CDDP_OK,
 * or CDDP_E_NOMEM: nothing changed. */
cddp_status agent_addrs_add(struct agent_addrs *n, const struct in6_addr *ip, const void *job);
/* The opposite of one agent_addrs_add() with these arguments, which must have been successful. */
void agent_addrs_remove(struct agent_addrs *n, const struct in6_addr *ip, const void *job);
/* Is an agent of this job (NULL: of any) connected from there? */
bool agent_addrs_has(const struct agent_addrs *n, const struct in6_addr *ip, const void *job);

#endif
