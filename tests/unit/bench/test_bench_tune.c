/* SPDX-License-Identifier: Apache-2.0 */
/* Which thresholds cddp-bench --tune makes of measured times. */
#include "bench/tool/tune_choose.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define N 13 /* sizes from 64 bytes to 256 KiB */

/* Rounds, shards and chain as docs/scale.md has them for 8 nodes: each is the fastest in a range of sizes. */
static void model(struct bench_tune_size *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double bytes = (double)(UINT64_C(64) << i);

        s[i] = (struct bench_tune_size){.bytes = UINT64_C(64) << i,
                                        .seconds = {[BENCH_ROUNDS] = 120e-6 + 7 * bytes * 0.85e-9,
                                                    [BENCH_SHARDS] = 150e-6 + 1.75 * bytes * 0.85e-9,
                                                    [BENCH_CHAIN] = 175e-6 + bytes * 0.85e-9}};
    }
}

static void is(const struct bench_tune_size *s, size_t n, bool open_ended, uint64_t small_max, uint64_t direct_max)
{
    struct bench_thresholds t = bench_tune_choose(s, n, open_ended);

    cr_expect(t.small_max == small_max && t.direct_max == direct_max, "%llu %llu, not %llu %llu",
              (unsigned long long)t.small_max, (unsigned long long)t.direct_max, (unsigned long long)small_max,
              (unsigned long long)direct_max);
}

Test(bench_tune, each_way_has_its_range)
{
    struct bench_tune_size s[N];

    model(s, N);
    is(s, N, false, 4096, 32768); /* crossings at 6.7 KiB and 38 KiB */
    is(s, N, true, 4096, 32768);
    is(s, 3, false, 256, 0); /* rounds are the best of all that was measured */
    is(s, 3, true, 256, 0);
    is(s, 9, false, 4096, 16384);
    is(s, 9, true, 4096, BENCH_TUNE_ANY);
    is(s, 0, true, 0, 0);
}

Test(bench_tune, one_way_may_be_the_best_everywhere)
{
    struct bench_tune_size s[N];

    for (int best = 0; best < BENCH_WAYS; best++) {
        uint64_t last = UINT64_C(64) << (N - 1);

        model(s, N);
        for (size_t i = 0; i < N; i++)
            s[i].seconds[best] = 1e-6;
        is(s, N, false, best == BENCH_ROUNDS ? last : 0, best == BENCH_SHARDS ? last : 0);
    }
}

Test(bench_tune, a_way_that_does_not_run_is_not_chosen)
{
    struct bench_tune_size s[N];

    model(s, N);
    for (size_t i = 0; i < N; i++) {
        if (s[i].bytes > 1024)
            s[i].seconds[BENCH_ROUNDS] = 0;
        if (s[i].bytes > 8192)
            s[i].seconds[BENCH_SHARDS] = 0;
    }
    is(s, N, true, 1024, 8192);
    for (size_t i = 0; i < N; i++)
        s[i].seconds[BENCH_SHARDS] = 0; /* as of broadcast */
    is(s, N, true, 1024, 0);
    for (size_t i = 0; i < N; i++)
        s[i].seconds[BENCH_ROUNDS] = 0;
    is(s, N, true, 0, 0);
}

/* What a table loses against the best way, as the sum over the sizes. */
static double loss(const struct bench_tune_size *s, size_t n, const struct bench_thresholds *t)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        double best = fmin(fmin(s[i].seconds[0], s[i].seconds[1]), s[i].seconds[2]);
        int way = s[i].bytes <= t->small_max ? BENCH_ROUNDS : s[i].bytes <= t->direct_max ? BENCH_SHARDS : BENCH_CHAIN;

        sum += log(s[i].seconds[way] / best);
    }
    return sum;
}

Test(bench_tune, noise_costs_little)
{
    uint32_t state = 1;
    double sum = 0, most = 0;

    for (int run = 0; run < 1000; run++) {
        struct bench_tune_size s[N], clean[N];
        struct bench_thresholds t;
        double lost;

        model(clean, N);
        memcpy(s, clean, sizeof s);
        for (size_t i = 0; i < N; i++)
            for (int way = 0; way < BENCH_WAYS; way++) {
                state = state * 1664525u + 1013904223u;
                s[i].seconds[way] *= 0.9 + 0.2 * (double)(state >> 8) / (double)(1u << 24); /* a tenth each way */
            }
        t = bench_tune_choose(s, N, false);
        lost = loss(clean, N, &t) / N;
        sum += lost;
        most = lost > most ? lost : most;
    }
    cr_expect_lt(sum / 1000, 0.01, "%g", sum / 1000); /* of the time of a size */
    cr_expect_lt(most, 0.05, "%g", most);
}

Test(bench_tune, one_disturbed_size_moves_nothing)
{
    for (size_t bad = 0; bad < N; bad++)
        for (int way = 0; way < BENCH_WAYS; way++) {
            struct bench_tune_size s[N];

            model(s, N);
            if (s[bad].bytes >= 2048 && s[bad].bytes <= 65536)
                continue; /* beside a crossing the ways are alike: there it may */
            s[bad].seconds[way] *= 1.15;
            is(s, N, false, 4096, 32768);
        }
}

Test(bench_tune, ranges_that_alternate_get_what_costs_the_least)
{
    /* Rounds win at 64 and 256 bytes, by a little and by much, and lose at 128 by something between. */
    struct bench_tune_size s[] = {{64, {1.0, 1.1, 9}}, {128, {1.5, 1.0, 9}}, {256, {1.0, 3.0, 9}}, {512, {9, 1, 9}}};

    is(s, 4, false, 256, 512);
    s[2].seconds[BENCH_SHARDS] = 1.2; /* now it costs more to be wrong at 128 */
    is(s, 4, false, 64, 512);
}

Test(bench_tune, equal_times_get_the_lowest_thresholds)
{
    struct bench_tune_size s[] = {{64, {1, 1, 1}}, {128, {1, 1, 1}}};

    is(s, 2, true, 0, 0);
}

Test(bench_tune, a_way_runs_where_the_documents_say_so)
{
    const struct bench_tune_limits all_reduce = {.reduces = true, .has_direct = true, .direct_any = true},
                                   reduce = {.reduces = true, .has_direct = true}, broadcast = {.has_direct = false},
                                   gather = {.has_direct = true, .direct_alone = true}, exchange = {.has_direct = true};
    const uint64_t slot = 256 * 1024;

    cr_expect(bench_tune_possible(&reduce, BENCH_ROUNDS, slot / 4, slot, 2));
    cr_expect(!bench_tune_possible(&reduce, BENCH_ROUNDS, slot / 4 + 64, slot + 256, 2));
    cr_expect(bench_tune_possible(&all_reduce, BENCH_SHARDS, slot + 64, 4 * slot, 1));
    cr_expect(!bench_tune_possible(&all_reduce, BENCH_SHARDS, slot + 64, 4 * slot, 2));
    cr_expect(bench_tune_possible(&all_reduce, BENCH_SHARDS, slot, 4 * slot, 2));
    cr_expect(!bench_tune_possible(&reduce, BENCH_SHARDS, slot + 64, 4 * slot, 1));
    cr_expect(!bench_tune_possible(&broadcast, BENCH_SHARDS, 64, 64, 1));
    cr_expect(bench_tune_possible(&gather, BENCH_SHARDS, 4 * slot, 8 * slot, 1));
    cr_expect(!bench_tune_possible(&gather, BENCH_SHARDS, 64, 128, 2));
    cr_expect(bench_tune_possible(&exchange, BENCH_SHARDS, 4 * slot, 8 * slot, 2));
    cr_expect(bench_tune_possible(&broadcast, BENCH_CHAIN, 16 * slot, 16 * slot, 8));
}

Test(bench_tune, the_median_ignores_one_slow_round)
{
    double odd[] = {3, 1, 90}, even[] = {4, 1, 90, 2};

    cr_expect_eq(bench_tune_median(odd, 3), 3);
    cr_expect_eq(bench_tune_median(even, 4), 3);
    cr_expect_eq(bench_tune_median(odd, 0), 0);
}
