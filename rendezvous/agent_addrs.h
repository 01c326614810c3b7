/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From which addresses agents are connected, and of which job: found by a hash, since each connection without a proof
 * of the secret asks. Pure. One thread at a time.
 */
#ifndef RDZV_NODES_H
#define RDZV_NODES_H

#include "common/map.h"

#include <netinet/in.h>
#include <stdbool.h>

struct nodes {
    struct cdi_map places; /* struct place */
};

/* No allocation. */
void nodes_init(struct nodes *n);
/* Forget all of them, and free their memory. */
void nodes_release(struct nodes *n);
/* An agent of a job (any pointer but NULL, which is not followed) is connected from there; each call counts. CDDP_OK,
 * or CDDP_E_NOMEM: nothing changed. */
cddp_status nodes_add(struct nodes *n, const struct in6_addr *ip, const void *job);
/* The opposite of one nodes_add() with these arguments, which must have been successful. */
void nodes_remove(struct nodes *n, const struct in6_addr *ip, const void *job);
/* Is an agent of this job (NULL: of any) connected from there? */
bool nodes_has(const struct nodes *n, const struct in6_addr *ip, const void *job);

#endif
