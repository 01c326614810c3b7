/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the nodes work together: each measures itself and its links, node 0 collects the facts. They meet by the job's
 * store, in which all keys begin with cddp/preflight/. One process of each node calls this, with the same n_nodes.
 */
#ifndef PREFLIGHT_MEET_H
#define PREFLIGHT_MEET_H

#include "preflight/links.h"
#include "worker/store/client.h"

struct meet {
    cddp_store *store;
    uint32_t node, n_nodes, workers; /* workers of this node */
    const char *host;                /* the name of this node in messages */
    int rank;
    struct cdi_secret token;
    int64_t until_ms; /* after that, a node that is missing is waited for no longer */
};

/* Writes and reads the value of a key, a text. get waits for timeout_ms, and returns false for any error. */
cddp_status meet_put(const struct meet *m, const char *name, uint32_t i, const char *text, struct cdi_error *err);
bool meet_get(const struct meet *m, const char *name, uint32_t i, char *text, size_t cap, int64_t timeout_ms);

bool meet_has(const struct meet *m, const char *name, uint32_t i); /* without a wait */

/* Measures this node, waits for the others between the phases, and publishes its facts. Blocks for seconds. */
cddp_status meet_measure(struct meet *m, struct cdi_error *err);

/*
 * Node 0, after meet_measure(): reads the facts of all nodes into nodes[0..n_nodes); those of a node that does not
 * report in time stay unknown. Slow links are measured a second time, one after the other.
 */
cddp_status meet_collect(const struct meet *m, struct preflight_facts *nodes, struct cdi_error *err);
/* The other nodes, after meet_measure(): measure those of their links a second time that node 0 asks for.
   CDDP_E_TIMEOUT: it has not asked. */
cddp_status meet_again(const struct meet *m, struct cdi_error *err);

#endif
