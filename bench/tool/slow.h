/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank, or which link, holds the others up. Collectives take equally long on all ranks, so their times cannot say
 * it. Instead, each rank copies its own memory, and neighbours in a ring exchange messages, all pairs at once.
 */
#ifndef BENCH_SLOW_H
#define BENCH_SLOW_H

#include "table.h"

/* How many times as long as the others, for something to be called slow. */
#define BENCH_SLOW_TIMES 3

/*
 * Returns by how much times[i] is more than the usual one, or 0 if it is not slow: less than BENCH_SLOW_TIMES times the
 * lower median of all n, which is the faster one of two.
 */
double bench_slow(const double *times, int n, int i);
/*
 * The same for the link from rank i to the next one of n, among the links like it: within a node, or between two. A
 * network is slower than the memory of a node, however well it is.
 */
double bench_slow_link(const double *times, const int32_t *nodes, int n, int i);
/* Names slow ranks and links in the notes. Collective over the world; bytes: of a copy and of a message. */
void bench_find_slow(const struct bench *b, struct bench_table *t, size_t bytes);

#endif
