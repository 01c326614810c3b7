/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which algorithm moves an operation between the nodes. Pure, and a function of values that are equal on all ranks or
 * that the ranks compare: two ranks in the same operation never choose differently.
 */
#ifndef CDI_COLL_CHOOSE_H
#define CDI_COLL_CHOOSE_H

#include "worker/backend/backend.h"

enum cdi_algorithm {
    CDI_BY_CHAIN,  /* along the chain of nodes, in pieces (chain.h) */
    CDI_BY_ROUNDS, /* all data to all nodes, in log2(nodes) rounds (rounds.h) */
    CDI_BY_SHARDS, /* each node has its shard, to and from all nodes directly */
};

/* One row of the table: for this many nodes or more, until the next row of the collective. */
struct cdi_choice_row {
    enum cdi_coll_kind kind;
    int nodes;
    size_t small_max, direct_max; /* bytes that a rank brings: up to here by rounds, by shards */
};

/* What an operation is between nodes. */
struct cdi_choice_of {
    enum cdi_coll_kind kind;
    int nodes, most_ranks; /* of one node */
    size_t bytes;          /* that a rank brings, at most; broadcast: the root */
    size_t total;          /* of all ranks */
};

enum cdi_algorithm cdi_choose(const struct cdi_choice_row *rows, size_t n, const struct cdi_choice_of *of);
/* Returns the built-in rows. */
const struct cdi_choice_row *cdi_choose_defaults(size_t *n);

#endif
