/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which algorithm moves an operation between the nodes. Pure, and a function of values that are equal on all ranks or
 * that the ranks compare: two ranks in the same operation never choose differently.
 */
#ifndef CDI_COLL_CHOOSE_H
#define CDI_COLL_CHOOSE_H

#include "worker/backend/backend.h"

#define CDI_COLL_TABLE_ENV "CDDP_COLL_TABLE"

enum cdi_algorithm {
    CDI_BY_CHAIN,  /* along the chain of nodes, in pieces (chain.h) */
    CDI_BY_ROUNDS, /* all data to all nodes, in log2(nodes) rounds (rounds.h) */
    CDI_BY_SHARDS, /* each node has its shard, to and from all nodes directly */
};

/* One row of the table: for this many nodes or more, until the next row of the collective. */
struct cdi_choice_row {
    enum cdi_coll_kind kind;
    int nodes;
    uint64_t small_max, direct_max; /* bytes that a rank brings: up to here by rounds; up to here by shards */
};

#define CDI_CHOICE_ROWS 96

/* Equal on all ranks of a communicator: rank 0 reads a file, and all get its table (cdi_cpu_comm_agree). */
struct cdi_choice_table {
    struct cdi_choice_row row[CDI_CHOICE_ROWS];
    uint32_t n;
};

/* What an operation is between nodes. */
struct cdi_choice_of {
    enum cdi_coll_kind kind;
    int nodes, most_ranks; /* of one node */
    size_t bytes;          /* that a rank brings, at most; broadcast: the root */
    size_t total;          /* of all ranks */
};

enum cdi_algorithm cdi_choose(const struct cdi_choice_table *table, const struct cdi_choice_of *of);
/* Returns the bytes of a piece on the chain: many hops need small pieces, since a piece travels as a whole. */
size_t cdi_choose_piece(size_t bytes, int nodes);

/* Sets the built-in rows. */
void cdi_choose_defaults(struct cdi_choice_table *out);
/*
 * Reads lines of "COLLECTIVE NODES SMALL_MAX_BYTES DIRECT_MAX_BYTES", with '#' before a comment. Collectives without a
 * line keep their built-in rows. CDDP_E_INVALID: the error names the line and the reason.
 */
cddp_status cdi_choose_parse(const char *text, size_t len, struct cdi_choice_table *out, struct cdi_error *err);
/* Reads the file of CDDP_COLL_TABLE, if it is set. Otherwise sets the built-in rows. */
cddp_status cdi_choose_load(struct cdi_choice_table *out, struct cdi_error *err);
/* Is a received table one that this library can use? */
bool cdi_choose_valid(const struct cdi_choice_table *table);

#endif
