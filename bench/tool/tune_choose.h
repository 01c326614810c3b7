/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two thresholds of a line of CDDP_COLL_TABLE, from measured times. Pure. docs/environment.md lists the sizes at
 * which a way runs.
 */
#ifndef BENCH_TUNE_CHOOSE_H
#define BENCH_TUNE_CHOOSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How data move between nodes. */
enum bench_way { BENCH_ROUNDS, BENCH_SHARDS, BENCH_CHAIN };

#define BENCH_WAYS 3
#define BENCH_TUNE_ANY ((uint64_t)INT64_MAX) /* the largest threshold of a table: without a limit */

/* What one size took. */
struct bench_tune_size {
    uint64_t bytes;             /* that a rank brings */
    double seconds[BENCH_WAYS]; /* 0 or less: this way does not run at this size */
};

struct bench_thresholds {
    uint64_t small_max, direct_max; /* up to here by rounds; up to here by shards; the rest by the chain */
};

/* Where a way can be chosen. */
struct bench_tune_limits {
    bool reduces, has_direct; /* has_direct: there are shards, or another direct exchange */
    bool direct_alone;        /* only where each node has one rank */
    bool direct_any;          /* of any size; otherwise as CDDP_COLL_TABLE limits shards */
};

/* Does this way run? total: the bytes of all ranks; most_ranks: of one node. */
bool bench_tune_possible(const struct bench_tune_limits *l, enum bench_way way, uint64_t bytes, uint64_t total,
                         int most_ranks);
/*
 * Returns the thresholds under which the sizes, in ascending order, take the least time: the sum over all sizes of the
 * logarithm of the time by that of the best way there. So each size counts alike, and one that was disturbed moves
 * nothing unless it outweighs its neighbours. Of equal ones the lowest. A way that is open ended and the best at the
 * largest size gets no limit, for sizes that were not measured.
 */
struct bench_thresholds bench_tune_choose(const struct bench_tune_size *sizes, size_t n, bool direct_open_ended);
/* Returns the median of n values, and sorts them; 0 without any. */
double bench_tune_median(double *values, size_t n);

#endif
