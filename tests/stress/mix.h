/* SPDX-License-Identifier: Apache-2.0 */
/* What the launcher of the mix (mix.c) and its ranks (mix_rank.c, mix_lane.c) tell each other. */
#ifndef CDI_TEST_MIX_H
#define CDI_TEST_MIX_H

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define MIX_RANKS 4
#define MIX_LEFT 77 /* exit status of a rank that left without a word */

/* What a run is about. */
enum mix_mode {
    MIX_ALL,     /* everything succeeds, and every result is right */
    MIX_EDGE,    /* ranks are late by about the timeout: whoever times out names a rank */
    MIX_CROSSED, /* two ranks both send first: both are told */
    MIX_ENDS,    /* one rank aborts, leaves or dies: the others' messages name it */
};

/* A run of one rank. */
struct mix {
    enum mix_mode mode;
    uint64_t seed;
    unsigned n_ops;
    const char *kinds; /* c: collectives, p: messages, t: threads, s: splits, r: reducers */
    int rank, size, n_nodes;
};

/*
 * Operations on one communicator, in an order that all of its ranks know. One thread uses a lane, but what it has begun
 * may be waited for by others.
 */
struct mix_lane {
    const struct mix *mix;
    cddp_comm *comm;
    uint64_t seed;
    uint64_t nr; /* of the operation */
    int rank, size;
};

/* 0 .. n-1: the same on all ranks of the lane, or this rank's own. */
size_t mix_dice(const struct mix_lane *l, uint64_t what, size_t n);
size_t mix_own_dice(const struct mix_lane *l, uint64_t what, size_t n);
/* Print where and what went wrong. false. */
bool mix_failed(const struct mix_lane *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A few operations, chosen by the dice. false: one was wrong, and that was printed. */
bool mix_collective(struct mix_lane *l);
bool mix_messages(struct mix_lane *l);
bool mix_group(struct mix_lane *l);
bool mix_begun(struct mix_lane *l, bool by_threads);
bool mix_reducer(struct mix_lane *l);
/* A message from one rank to another; other ranks do nothing. */
bool mix_message(struct mix_lane *l, int from, int to, size_t count);

/* What a rank does in a run; its exit status. */
int mix_be_rank(const struct mix *m);

/* Of chaos.c, in the build that is disturbed. */
void chaos_begin(unsigned one_in, uint64_t seed) __attribute__((weak));

#endif
