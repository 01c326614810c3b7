/* SPDX-License-Identifier: Apache-2.0 */
/* Who is in the next round, and who gets which node rank. */
#include "rendezvous/round/state.h"

#include "common/natsort.h"

#include <stdlib.h>

static bool was_in_last_round(const struct round *r, const struct node *n)
{
    return n->last_round >= 0 && n->last_round + 1 == r->number;
}

/* Who is in, if more wait than fit: who is really there, then who was in before, then who came first. */
static int by_merit(const void *a, const void *b, void *arg)
{
    const struct round *r = arg;
    const struct node *x = &r->nodes[*(const uint32_t *)a], *y = &r->nodes[*(const uint32_t *)b];

    if (x->away != y->away)
        return x->away ? 1 : -1;
    if (was_in_last_round(r, x) != was_in_last_round(r, y))
        return was_in_last_round(r, x) ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* Who gets the lower rank, of those whom nothing else gives one: neighbours in the network are neighbours in rank. */
static int by_place(const void *a, const void *b, void *arg)
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
    qsort_r(r->slots, n, sizeof *r->slots, by_merit, r);
    return r->opt.max_nodes;
}

/* What gives a node a right to a rank, the stronger ones first. */
enum right { RIGHT_WISH_KEPT, RIGHT_WISH, RIGHT_KEPT, RIGHT_N };

static int32_t rank_by_right(const struct round *r, const struct node *n, enum right right)
{
    int32_t kept = was_in_last_round(r, n) ? n->node_rank : -1;

    switch (right) {
    case RIGHT_WISH_KEPT:
        return n->wanted == kept ? kept : -1;
    case RIGHT_WISH:
        return n->wanted;
    case RIGHT_KEPT:
        return kept;
    case RIGHT_N:
        break;
    }
    return -1;
}

/* Those of the n chosen that have a right to a rank which is free: place[rank] is the peer. */
static void place_entitled(struct round *r, uint32_t n, enum right right, uint32_t *place)
{
    for (uint32_t i = 0; i < n; i++) {
        struct node *node = &r->nodes[r->slots[i]];
        int32_t want = rank_by_right(r, node, right);

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
    for (enum right right = RIGHT_WISH_KEPT; right < RIGHT_N; right++)
        place_entitled(r, n, right, place);
    for (uint32_t i = 0; i < n; i++)
        if (r->nodes[r->slots[i]].state == NODE_WAITING)
            r->slots[n_rest++] = r->slots[i];
    qsort_r(r->slots, n_rest, sizeof *r->slots, by_place, r);
    for (uint32_t i = 0; i < n_rest; i++) {
        while (place[rank] != NO_PEER)
            rank++;
        place[rank] = r->slots[i];
        members_move(r, &r->nodes[r->slots[i]], NODE_RUNNING);
    }
    return place;
}
