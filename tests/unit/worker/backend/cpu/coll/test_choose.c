/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm moves an operation between nodes: these tests are the manual of the choice. */
#include "hygiene.h"
#include "worker/backend/cpu/coll/choose.h"
#include "worker/backend/cpu/node/shm.h"

CDI_SUITE(choose);

static const struct cdi_choice_net rack = {.crowd = 1, .delay_us = 10}, /* a machine for each node, one switch */
    far = {.crowd = 1, .delay_us = 4800},                               /* the same, through a long line */
    packed = {.crowd = 8, .delay_us = 10};                              /* eight nodes share each core */

static enum cdi_algorithm of(const struct cdi_choice_net *net, enum cdi_coll_kind kind, int nodes, size_t bytes)
{
    const struct cdi_choice_of x = {
        .kind = kind, .nodes = nodes, .bytes = bytes, .total = bytes * (size_t)nodes, .shards_max = SIZE_MAX};

    return cdi_choose(net, &x);
}

static enum cdi_algorithm sum(const struct cdi_choice_net *net, int nodes, size_t bytes)
{
    return of(net, CDI_ALL_REDUCE, nodes, bytes);
}

Test(choose, without_data_there_are_rounds)
{
    for (int nodes = 2; nodes <= 1024; nodes *= 2) {
        cr_expect_eq(of(&rack, CDI_BARRIER, nodes, 0), CDI_BY_ROUNDS);
        cr_expect_eq(sum(&far, nodes, 0), CDI_BY_ROUNDS);
    }
}

Test(choose, small_sums_take_rounds_middle_ones_shards_large_ones_the_chain)
{
    for (int nodes = 4; nodes <= 64; nodes *= 2) {
        cr_expect_eq(sum(&rack, nodes, 4), CDI_BY_ROUNDS, "%d nodes", nodes);
        cr_expect_eq(sum(&rack, nodes, 2048), CDI_BY_ROUNDS, "%d nodes", nodes);
        cr_expect_eq(sum(&rack, nodes, 65536), CDI_BY_SHARDS, "%d nodes", nodes);
        cr_expect_eq(sum(&rack, nodes, 1 << 20), CDI_BY_SHARDS, "%d nodes", nodes);
    }
    for (int nodes = 2; nodes <= 32; nodes *= 2)
        cr_expect_eq(sum(&rack, nodes, 25 << 20), CDI_BY_CHAIN, "%d nodes", nodes);
}

Test(choose, two_nodes_exchange_all_that_fits_a_slot)
{
    cr_expect_eq(sum(&rack, 2, 65536), CDI_BY_ROUNDS);
    cr_expect_eq(sum(&rack, 2, CDI_SHM_PIECE_BYTES / 2), CDI_BY_ROUNDS);
    cr_expect_neq(sum(&rack, 2, CDI_SHM_PIECE_BYTES / 2 + 4), CDI_BY_ROUNDS);
}

Test(choose, a_long_delay_makes_few_hops_worth_more_bytes)
{
    cr_expect_eq(sum(&rack, 16, 4), CDI_BY_ROUNDS, "4 hops, and 4 messages");
    cr_expect_eq(sum(&far, 16, 4), CDI_BY_SHARDS, "2 hops, though 30 messages");
    cr_expect_eq(sum(&far, 16, 65536), CDI_BY_SHARDS, "2 hops");
    cr_expect_eq(sum(&rack, 16, 1 << 20), CDI_BY_SHARDS, "two nodes at a time, though each begins slowly");
    cr_expect_eq(sum(&far, 16, 1 << 20), CDI_BY_CHAIN, "that is 32 delays, and the chain has 30");
}

Test(choose, nodes_that_share_few_cores_send_few_messages)
{
    cr_expect_eq(sum(&rack, 16, 65536), CDI_BY_SHARDS, "480 messages, 2 hops");
    cr_expect_eq(sum(&packed, 16, 65536), CDI_BY_CHAIN, "60 messages, 30 hops");
}

Test(choose, what_shards_cannot_carry_goes_another_way)
{
    struct cdi_choice_of x = {
        .kind = CDI_REDUCE_SCATTER, .nodes = 16, .bytes = 65536, .total = 16 * 65536, .shards_max = 65536};

    cr_expect_eq(cdi_choose(&rack, &x), CDI_BY_SHARDS);
    x.shards_max = 65535;
    cr_expect_eq(cdi_choose(&rack, &x), CDI_BY_CHAIN);
}

Test(choose, moves_go_by_size_alone)
{
    for (int nodes = 2; nodes <= 16; nodes *= 2) {
        cr_expect_eq(of(&rack, CDI_BROADCAST, nodes, 16384), CDI_BY_ROUNDS);
        cr_expect_eq(of(&rack, CDI_BROADCAST, nodes, 16385), CDI_BY_CHAIN);
        cr_expect_eq(of(&rack, CDI_ALL_GATHER, nodes, 8192), CDI_BY_ROUNDS);
        cr_expect_eq(of(&rack, CDI_ALL_GATHERV, nodes, 8193), CDI_BY_SHARDS);
        cr_expect_eq(of(&rack, CDI_ALL_TO_ALL, nodes, 1024), CDI_BY_ROUNDS);
        cr_expect_eq(of(&rack, CDI_ALL_TO_ALL, nodes, 1025), CDI_BY_SHARDS);
    }
    cr_expect_eq(of(&rack, CDI_ALL_GATHER, 64, 8192), CDI_BY_SHARDS, "all together do not fit a slot");
}

Test(choose, tests_choose_themselves)
{
    struct cdi_choice_net net = rack;

    net.only = CDI_BY_CHAIN + 1;
    cr_expect_eq(sum(&net, 16, 4), CDI_BY_CHAIN);
    net.only = CDI_BY_SHARDS + 1;
    cr_expect_eq(sum(&net, 16, 25 << 20), CDI_BY_SHARDS);
    cr_expect_eq(of(&net, CDI_BROADCAST, 16, 4), CDI_BY_ROUNDS, "where that is not possible, the best one goes");
    net.only = CDI_BY_ROUNDS + 1;
    cr_expect_eq(of(&net, CDI_ALL_GATHER, 2, 65536), CDI_BY_ROUNDS);
    cr_expect_eq(of(&net, CDI_ALL_GATHER, 16, 65536), CDI_BY_SHARDS);
}

Test(choose, pieces_are_larger_on_crowded_nodes)
{
    cr_expect_eq(cdi_choose_piece(&rack, 65536, 16), 16384, "120 messages, as early as possible");
    cr_expect_gt(cdi_choose_piece(&packed, 65536, 16), 32768, "60 messages");
    cr_expect_leq(cdi_choose_piece(&packed, 64 << 20, 16), CDI_SHM_PIECE_BYTES);
}

Test(choose, pieces_are_smaller_on_longer_chains)
{
    size_t last = CDI_SHM_PIECE_BYTES;

    for (int nodes = 2; nodes <= 1024; nodes *= 2) {
        size_t piece = cdi_choose_piece(&rack, 25u << 20, nodes);

        cr_expect(piece <= last && piece >= 16384 && piece % 64 == 0, "%d nodes: %zu", nodes, piece);
        last = piece;
    }
    cr_expect_eq(cdi_choose_piece(&rack, 25u << 20, 2), CDI_SHM_PIECE_BYTES);
    cr_expect_lt(last, CDI_SHM_PIECE_BYTES / 4);
    cr_expect_eq(cdi_choose_piece(&rack, 0, 2), 16384);
}
