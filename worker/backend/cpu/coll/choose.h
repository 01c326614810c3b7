/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which algorithm moves an operation between the nodes. Pure, and a function of values that are equal on all ranks or
 * that the ranks compare: two ranks in the same operation never choose differently.
 */
#ifndef CDI_COLL_CHOOSE_H
#define CDI_COLL_CHOOSE_H

#include "worker/backend/backend.h"

/* What a node sends to all others, and gets from them, at a time: where all send more to one, switches drop packets. */
#define CDI_IN_FLIGHT_BYTES ((size_t)128 * 1024)

enum cdi_algorithm {
    CDI_BY_CHAIN,  /* along the chain of nodes, in pieces (chain.h) */
    CDI_BY_ROUNDS, /* all data to all nodes, in log2(nodes) rounds (bruck.h) */
    CDI_BY_SHARDS, /* each node has its shard, to and from all nodes directly */
};

/* What the ranks found out about their nodes when they joined; equal on all of them (cdi_cpu_comm_agree). */
struct cdi_choice_net {
    uint32_t crowd;    /* nodes for each core of the fullest machine, at least 1: containers of one machine share it */
    uint32_t delay_us; /* of a packet, between the two neighbours that are furthest apart */
    int only;          /* for tests: an algorithm, plus 1, that carries all that it can; 0: the fastest does */
};

/* What an operation is between nodes. */
struct cdi_choice_of {
    enum cdi_coll_kind kind;
    int nodes;
    size_t bytes;      /* that a rank brings, at most; broadcast: the root */
    size_t total;      /* of all ranks */
    size_t shards_max; /* `bytes` up to which shards can carry it; 0: they cannot */
};

enum cdi_algorithm cdi_choose(const struct cdi_choice_net *net, const struct cdi_choice_of *of);
/*
 * Returns the bytes of a piece on the chain: many hops need small pieces, since a piece travels as a whole, and crowded
 * nodes need few.
 */
size_t cdi_choose_piece(const struct cdi_choice_net *net, size_t bytes, int nodes);

#endif
