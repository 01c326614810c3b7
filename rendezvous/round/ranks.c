/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of the nodes of the next round, and their node ranks. */
#include "rendezvous/round/state.h"

#include "common/natsort.h"

#include <stdlib.h>

static bool was_in_last_round(const struct round *r, const struct node *n)
{
    return n->last_round >= 0 && n->last_round + 1 == r->number;
}

/*
 * Order for choosing if more nodes wait than fit: connected ones, then members of the previous round, then by arrival.
 */
static int ranks_by_priority(const void *a, const void *b, void *arg)
{
    const struct round *r = arg;
    const struct node *x = &r->nodes[*(const uint32_t *)a], *y = &r->nodes[*(const uint32_t *)b];

    if (x->away != y->away)
        return x->away ? 1 : -1;
    if (was_in_last_round(r, x) != was_in_last_round(r, y))
        return was_in_last_round(r, x) ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* Order for the remaining ranks: neighbours in the network get adjacent ranks. */
static int ranks_by_topology(const void *a, const void *b, void *arg)
{
    const struct round *r = arg;
    const struct node *x = &r->nodes[*(const uint32_t *)a], *y = &r->nodes[*(const uint32_t *)b];
    int order = cdi_natsort_cmp(x->topology, y->topology);

    if (order == 0)
        order = cdi_natsort_cmp(x->host, y->host);
    return order != 0 ? order : x->order < y->order ? -1 : x->order > y->order;
}

uint32_t ranks_choose(struct round *r)
{
    uint32_t n = 0;

    for (size_t i = 0; i < r->cap; i++)
        if (r->nodes[i].state == NODE_WAITING)
            r->slots[n++] = (uint32_t)i;
    if (n <= r->opt.max_nodes)
        return n;
    qsort_r(r->slots, n, sizeof *r->slots, ranks_by_priority, r);
    return r->opt.max_nodes;
}

/* Reasons for which a node gets a certain rank, in order of precedence. */
enum claim { CLAIM_REQUESTED_AND_KEPT, CLAIM_REQUESTED, CLAIM_KEPT, CLAIM_N };

static int32_t rank_by_claim(const struct round *r, const struct node *n, enum claim claim)
{
    int32_t kept = was_in_last_round(r, n) ? n->node_rank : -1;

    switch (claim) {
    case CLAIM_REQUESTED_AND_KEPT:
        return n->wanted == kept ? kept : -1;
    case CLAIM_REQUESTED:
        return n->wanted;
    case CLAIM_KEPT:
        return kept;
    case CLAIM_N:
        break;
    }
    return -1;
}

/* Assigns free ranks to those of the n chosen nodes with this claim: place[rank] is the peer. */
static void ranks_assign_claimed(struct round *r, uint32_t n, enum claim claim, uint32_t *place)
{
    for (uint32_t i = 0; i < n; i++) {
        struct node *node = &r->nodes[r->slots[i]];
        int32_t want = rank_by_claim(r, node, claim);

        if (node->state != NODE_WAITING || want < 0 || (uint32_t)want >= n || place[want] != NO_PEER)
            continue;
        place[want] = r->slots[i];
        members_move(r, node, NODE_RUNNING);
    }
}

const uint32_t *ranks_assign(struct round *r, uint32_t n)
{
    uint32_t rank = 0, n_rest = 0, *place = r->slots + r->cap;

    for (uint32_t i = 0; i < n; i++)
        place[i] = NO_PEER;
    for (enum claim claim = CLAIM_REQUESTED_AND_KEPT; claim < CLAIM_N; claim++)
        ranks_assign_claimed(r, n, claim, place);
    for (uint32_t i = 0; i < n; i++)
        if (r->nodes[r->slots[i]].state == NODE_WAITING)
            r->slots[n_rest++] = r->slots[i];
    qsort_r(r->slots, n_rest, sizeof *r->slots, ranks_by_topology, r);
    for (uint32_t i = 0; i < n_rest; i++) {
        while (place[rank] != NO_PEER)
            rank++;
        place[rank] = r->slots[i];
        members_move(r, &r->nodes[r->slots[i]], NODE_RUNNING);
    }
    return place;
}
