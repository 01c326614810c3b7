/* SPDX-License-Identifier: Apache-2.0 */
/* Types that the launcher of the mix (mix.c) and its ranks (mix_rank.c, mix_lane.c) share. */
#ifndef CDI_TEST_MIX_H
#define CDI_TEST_MIX_H

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define MIX_RANKS 4
#define MIX_LEFT 77 /* exit status of a rank that left without an error */

/* The mode of a run. */
enum mix_mode {
    MIX_ALL,     /* everything succeeds, and every result is right */
    MIX_EDGE,    /* ranks are late by about the timeout: a rank that times out names another one */
    MIX_CROSSED, /* two ranks both send first: both get an error */
    MIX_ENDS,    /* one rank aborts, leaves or dies: the errors of the others name it */
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
 * Operations on one communicator, in an order that is equal on all of its ranks. One thread uses a lane, but other
 * threads may wait for its operations.
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
/* Prints the place and the error. Returns false. */
bool mix_failed(const struct mix_lane *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Runs a few random operations. Returns false if one was wrong, and prints it. */
bool mix_collective(struct mix_lane *l);
bool mix_messages(struct mix_lane *l);
bool mix_group(struct mix_lane *l);
bool mix_begun(struct mix_lane *l, bool by_threads);
bool mix_reducer(struct mix_lane *l);
/* A message from one rank to another; other ranks do nothing. */
bool mix_message(struct mix_lane *l, int from, int to, size_t count);

/* Runs a rank; returns its exit status. */
int mix_be_rank(const struct mix *m);

/* Of chaos.c, in the build that is disturbed. */
void chaos_begin(unsigned one_in, uint64_t seed) __attribute__((weak));

#endif
