/* SPDX-License-Identifier: Apache-2.0 */
#include "tune_choose.h"

#include <math.h>
#include <stdlib.h>

#define SLOT_BYTES (UINT64_C(256) * 1024) /* of shared memory; what docs/environment.md limits rounds and shards to */
#define EQUAL 1e-9                        /* sums of logarithms that differ by less are equal */

bool bench_tune_possible(const struct bench_tune_limits *l, enum bench_way way, uint64_t bytes, uint64_t total,
                         int most_ranks)
{
    switch (way) {
    case BENCH_ROUNDS:
        return total <= SLOT_BYTES;
    case BENCH_SHARDS:
        if (!l->has_direct || (l->direct_alone && most_ranks > 1))
            return false;
        return !l->reduces || bytes <= SLOT_BYTES || (l->direct_any && most_ranks == 1);
    case BENCH_CHAIN:
        break;
    }
    return true;
}

/* The way that a table chooses; one that does not run gives way to the next. */
static enum bench_way way_of(const struct bench_tune_size *s, const struct bench_thresholds *t)
{
    if (s->bytes <= t->small_max && s->seconds[BENCH_ROUNDS] > 0)
        return BENCH_ROUNDS;
    return s->bytes <= t->direct_max && s->seconds[BENCH_SHARDS] > 0 ? BENCH_SHARDS : BENCH_CHAIN;
}

static double loss_of(const struct bench_tune_size *sizes, size_t n, const struct bench_thresholds *t)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        double best = INFINITY, took = sizes[i].seconds[way_of(&sizes[i], t)];

        for (int way = 0; way < BENCH_WAYS; way++)
            if (sizes[i].seconds[way] > 0 && sizes[i].seconds[way] < best)
                best = sizes[i].seconds[way];
        if (took > 0)
            sum += log(took / best);
    }
    return sum;
}

struct bench_thresholds bench_tune_choose(const struct bench_tune_size *sizes, size_t n, bool direct_open_ended)
{
    struct bench_thresholds best = {0, 0};
    double least = loss_of(sizes, n, &best);

    for (size_t small = 0; small <= n; small++)
        for (size_t direct = 0; direct <= n; direct++) {
            struct bench_thresholds t = {small > 0 ? sizes[small - 1].bytes : 0,
                                         direct > 0 ? sizes[direct - 1].bytes : 0};
            double loss = loss_of(sizes, n, &t);

            if (loss < least - EQUAL) {
                least = loss;
                best = t;
            }
        }
    if (direct_open_ended && n > 0 && way_of(&sizes[n - 1], &best) == BENCH_SHARDS)
        best.direct_max = BENCH_TUNE_ANY;
    return best;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_tune_median(double *values, size_t n)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof *values, by_value);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
