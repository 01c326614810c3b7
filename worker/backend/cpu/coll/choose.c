/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/choose.h"

#include "worker/backend/cpu/node/shm.h"
#include "worker/backend/describe.h"

#include <math.h>

#define KIB ((size_t)1024)

#define PIECES 8 /* at least so many, so that both directions of a link are busy at the same time */
#define PIECE_LEAST_BYTES (16 * KIB)
#define HOP_BYTES (64 * KIB) /* what a link moves in the time that a hop costs: 10 GbE, and loopback */

/* Microseconds, of 10 GbE and of loopback alike. */
#define WAKE_US 30.0                      /* until a sleeping rank goes on */
#define MESSAGE_US 10.0                   /* of processor time */
#define BYTE_US 1e-3                      /* to carry a byte over a link */
#define TURN_BYTES ((double)(1024 * KIB)) /* that shards move at a time (shards.c) */

/* A way to move an operation, as the busiest node sees it. */
struct cost {
    double hops; /* one after another; of packets, and `wakes` of ranks */
    double wakes;
    double messages; /* that the busiest node sends and receives, in pairs */
    double mean;     /* the same of all nodes: those of one machine take turns */
    double bytes;    /* over the busiest link, and `mean_bytes` through each node */
    double mean_bytes;
};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double time_of(const struct cdi_choice_net *net, const struct cost *c)
{
    return c->hops * net->delay_us + c->wakes * WAKE_US + larger(c->messages, c->mean * net->crowd) * MESSAGE_US +
           larger(c->bytes, c->mean_bytes * net->crowd) * BYTE_US;
}

static double rounds_us(const struct cdi_choice_net *net, const struct cdi_choice_of *of)
{
    double rounds = ceil(log2(of->nodes)), bytes = (of->nodes - 1.0) * (double)of->bytes;

    return time_of(net, &(struct cost){rounds, rounds, rounds, rounds, bytes, bytes});
}

static double shards_us(const struct cdi_choice_net *net, const struct cdi_choice_of *of)
{
    double n = of->nodes, turns = ceil((double)of->bytes / TURN_BYTES), bytes = 2 * (n - 1) / n * (double)of->bytes;

    double shard = larger((double)of->bytes / turns / n, 1),
           at_once = larger(floor((double)CDI_IN_FLIGHT_BYTES / shard), 1);
    double hops = at_once >= n - 1 ? 2 : 4 * ceil((n - 1) / at_once); /* TCP begins slowly with each node */

    return time_of(net,
                   &(struct cost){hops * turns, 2 * turns, 2 * (n - 1) * turns, 2 * (n - 1) * turns, bytes, bytes});
}

/* The first node sends the last piece after all others. 2 (nodes - 1) hops later it is back. */
static double chain_us(const struct cdi_choice_net *net, const struct cdi_choice_of *of)
{
    double hops = 2 * (of->nodes - 1.0), bytes = (double)of->bytes;
    double pieces = ceil(bytes / (double)cdi_choose_piece(net, of->bytes, of->nodes)), on_way = hops + pieces - 1;

    return time_of(net, &(struct cost){hops, hops, on_way, hops / of->nodes * pieces, on_way * bytes / pieces,
                                       hops / of->nodes * bytes});
}

/* Of operations that only move bytes: the best way has the lowest number, and INFINITY is not possible. */
static void rank_moves(const struct cdi_choice_of *of, double us[3])
{
    size_t rounds_max = of->kind == CDI_BROADCAST ? 16 * KIB : of->kind == CDI_ALL_TO_ALL ? 1 * KIB : 8 * KIB;

    us[CDI_BY_ROUNDS] = of->bytes <= rounds_max ? 0 : 3;
    us[CDI_BY_SHARDS] = of->kind == CDI_BROADCAST ? INFINITY : 1;
    us[CDI_BY_CHAIN] = 2;
}

enum cdi_algorithm cdi_choose(const struct cdi_choice_net *net, const struct cdi_choice_of *of)
{
    enum cdi_algorithm best = CDI_BY_CHAIN;
    double us[3];

    if (of->total == 0)
        return CDI_BY_ROUNDS;
    if (cdi_coll_reduces(of->kind)) {
        us[CDI_BY_ROUNDS] = rounds_us(net, of);
        us[CDI_BY_SHARDS] = of->bytes <= of->shards_max ? shards_us(net, of) : INFINITY;
        us[CDI_BY_CHAIN] = chain_us(net, of);
    } else {
        rank_moves(of, us);
    }
    if (of->total > CDI_SHM_PIECE_BYTES) /* all data of rounds are in the slot of one rank */
        us[CDI_BY_ROUNDS] = INFINITY;
    if (net->only > 0 && us[net->only - 1] < INFINITY)
        return (enum cdi_algorithm)(net->only - 1);
    for (int i = 0; i < 3; i++)
        best = us[i] < us[best] ? (enum cdi_algorithm)i : best;
    return best;
}

/*
 * A piece needs 2 (nodes - 1) hops, and each further one follows a piece's time later. With m bytes in a piece, b the
 * time of a byte and a that of a hop, 2 (nodes - 1) (a + m b) + bytes / m (a + m b) is least at the root below.
 */
size_t cdi_choose_piece(const struct cdi_choice_net *net, size_t bytes, int nodes)
{
    double best = sqrt((double)bytes * (double)HOP_BYTES * net->crowd / (2.0 * (double)(nodes - 1)));
    size_t part = net->crowd < PIECES ? bytes * net->crowd / PIECES : bytes;

    if (best < (double)part)
        part = (size_t)best;
    part = part / 64 * 64;
    if (part > CDI_SHM_PIECE_BYTES)
        return CDI_SHM_PIECE_BYTES;
    return part < PIECE_LEAST_BYTES ? PIECE_LEAST_BYTES : part;
}
