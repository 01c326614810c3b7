/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/reducer/layout/stats.h"
#include "worker/reducer/stats_text.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

CDI_SUITE(stats);

Test(stats, joins_intervals)
{
    struct cdi_interval v[] = {{50, 60}, {10, 20}, {20, 25}, {12, 15}, {30, 30}, {40, 35}, {58, 70}};

    cr_assert_eq(cdi_intervals_join(v, 7), 2);
    cr_assert(v[0].begin == 10 && v[0].end == 25 && v[1].begin == 50 && v[1].end == 70);
    cr_assert_eq(cdi_intervals_length(v, 2), 35);
    cr_assert_eq(cdi_intervals_join(v, 0), 0);
    cr_assert_eq(cdi_intervals_length(v, 0), 0);
}

Test(stats, finds_what_intervals_have_in_common)
{
    const struct cdi_interval a[] = {{0, 10}, {20, 30}, {40, 50}}, b[] = {{5, 25}, {29, 41}, {60, 70}};

    cr_assert_eq(cdi_intervals_common(a, 3, b, 3), 5 + 5 + 1 + 1);
    cr_assert_eq(cdi_intervals_common(b, 3, a, 3), 12);
    cr_assert_eq(cdi_intervals_common(a, 3, b, 0), 0);
    cr_assert_eq(cdi_intervals_common(a, 3, a, 3), 30);
}

static double cpu_seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* As with an optimizer: those of the buckets, then those of their exchange, of which every other one is empty. */
Test(stats, joins_many_intervals_at_once)
{
    enum { N = 200000 };
    struct cdi_interval *v = calloc(2 * N, sizeof *v);
    double begun;

    for (size_t i = 0; i < N; i++) {
        v[i] = (struct cdi_interval){.begin = 10 * (int64_t)i + 10, .end = 10 * (int64_t)i + 14};
        if (i % 2 == 0)
            v[N + i] = (struct cdi_interval){.begin = 10 * (int64_t)i + 12, .end = 10 * (int64_t)i + 16};
    }
    begun = cpu_seconds();
    cr_assert_eq(cdi_intervals_join(v, 2 * N), N);
    cr_assert_lt(cpu_seconds() - begun, 1);
    cr_assert_eq(cdi_intervals_length(v, N), 4 * N + 2 * (N / 2));
    free(v);
}

/* Is a point in one of them? */
static bool covers(const struct cdi_interval *v, size_t n, int64_t at)
{
    for (size_t i = 0; i < n; i++)
        if (v[i].begin <= at && at < v[i].end)
            return true;
    return false;
}

Test(stats, agrees_with_counting_every_point)
{
    unsigned seed = 7;

    for (int round = 0; round < 300; round++) {
        struct cdi_interval v[2][9];
        size_t n[2];
        int64_t length = 0, common = 0;

        for (int k = 0; k < 2; k++) {
            n[k] = (size_t)rand_r(&seed) % 9;
            for (size_t i = 0; i < n[k]; i++) {
                v[k][i].begin = rand_r(&seed) % 100;
                v[k][i].end = v[k][i].begin + rand_r(&seed) % 20 - 3;
            }
        }
        for (int64_t at = 0; at < 130; at++) {
            length += covers(v[0], n[0], at);
            common += covers(v[0], n[0], at) && covers(v[1], n[1], at);
        }
        for (int k = 0; k < 2; k++)
            n[k] = cdi_intervals_join(v[k], n[k]);
        cr_assert_eq(cdi_intervals_length(v[0], n[0]), length);
        cr_assert_eq(cdi_intervals_common(v[0], n[0], v[1], n[1]), common);
    }
}

Test(stats, tells_hidden_from_exposed_communication)
{
    /* The first bucket is hidden, the second half of the second and all of the third are not. */
    const struct cdi_bucket_times buckets[] = {
        {100, 110, 120, 150, 12, 1}, {200, 210, 300, 320, 22, 2}, {250, 320, 330, 400, 0, 1}};
    struct cdi_interval comm[3], waits[] = {{260, 405}};
    int64_t by_rank[4] = {0};
    const struct cdi_step_times t = {.begun = 10,
                                     .first = 60,
                                     .end = 405,
                                     .buckets = buckets,
                                     .n_buckets = 3,
                                     .comm = comm,
                                     .waits = waits,
                                     .n_waits = 1,
                                     .by_rank = by_rank,
                                     .n_ranks = 4};
    struct cdi_step_shares s = cdi_step_shares_of(&t);

    cr_expect_eq(s.step, 395);
    cr_expect_eq(s.forward, 50);
    cr_expect_eq(s.backward, 190);
    cr_expect_eq(s.comm, 40 + 190);
    cr_expect_eq(s.exposed, 140);
    cr_expect_eq(s.transfer, 30 + 20 + 70, "the rest of comm waits for ranks 1 and 2");
    cr_expect_eq(s.thread, 12 + 10, "half of the second bucket's");
    cr_expect_eq(s.late, 40 + 10);
    cr_expect_eq(s.late_rank, 2, "rank 1 was last twice, but for a shorter time");
    for (int r = 0; r < 4; r++)
        cr_expect_eq(by_rank[r], 0);
}

Test(stats, counts_only_what_is_known)
{
    /* Nothing is known of a bucket, its peers, the step before; a rank is not one of the job. */
    const struct cdi_bucket_times buckets[] = {
        {0, 0, 0, 0, 0, -1}, {90, 100, 0, 150, 30, -1}, {95, 150, 160, 170, 0, 9}};
    struct cdi_interval comm[3], waits[] = {{0, 500}};
    int64_t by_rank[2] = {0};
    const struct cdi_step_times t = {.first = 60,
                                     .end = 200,
                                     .buckets = buckets,
                                     .n_buckets = 3,
                                     .comm = comm,
                                     .waits = waits,
                                     .n_waits = 1,
                                     .by_rank = by_rank,
                                     .n_ranks = 2};
    struct cdi_step_shares s = cdi_step_shares_of(&t);

    cr_expect(s.step == 140 && s.forward == 0 && s.backward == 35);
    cr_expect(s.comm == 70 && s.exposed == 70 && s.transfer == 60 && s.thread == 0 && s.late == 0 && s.late_rank == -1);
}

Test(stats, writes_the_format_of_prometheus)
{
    const cddp_ddp_stats stats = {.steps = 3,
                                  .step_ns = 1234567890,
                                  .comm_ns = 5,
                                  .thread_ns = 2000000000,
                                  .bytes = UINT64_MAX,
                                  .slowest_rank = 2,
                                  .slowest_steps = 7,
                                  .last_slowest_rank = -1};
    static char buf[CDI_STATS_TEXT];
    size_t n = cdi_stats_text(&stats, 1, "a\"b\\c\n", buf);

    cr_assert_eq(strlen(buf), n);
    cr_expect_not_null(strstr(buf,
                              "# HELP cddp_steps_total Steps that the times are of.\n# TYPE cddp_steps_total counter\n"
                              "cddp_steps_total{rank=\"1\",model=\"a\\\"b\\\\c?\"} 3\n"));
    cr_expect_not_null(strstr(buf, "\ncddp_step_seconds_total{rank=\"1\",model=\"a\\\"b\\\\c?\"} 1.234567890\n"));
    cr_expect_not_null(strstr(buf, "} 0.000000005\n"));
    cr_expect_not_null(strstr(buf, "cddp_thread_seconds_total{rank=\"1\",model=\"a\\\"b\\\\c?\"} 2.000000000\n"));
    cr_expect_not_null(strstr(buf, "} 18446744073709551615\n"));
    cr_expect_not_null(strstr(buf, "} 2\n"));
    cr_expect_eq(buf[n - 1], '\n');
}

Test(stats, text_fits_with_the_longest_of_everything)
{
    cddp_ddp_stats stats;
    static char buf[CDI_STATS_TEXT];
    char model[300];

    memset(&stats, 0x7f, sizeof stats);
    memset(model, '"', sizeof model);
    model[sizeof model - 1] = '\0';
    cr_assert_lt(cdi_stats_text(&stats, INT32_MIN, model, buf), CDI_STATS_TEXT - 1000);
    stats.slowest_rank = -1;
    cr_assert_null(strstr((cdi_stats_text(&stats, 0, NULL, buf), buf), "slowest"));
}

Test(stats, names_the_file)
{
    char buf[32];

    cr_assert(cdi_stats_file_name("/m/%r.%m.prom", 12, "a/b", buf, sizeof buf) && strcmp(buf, "/m/12.a_b.prom") == 0);
    cr_assert(cdi_stats_file_name("50%%", 1, NULL, buf, sizeof buf) && strcmp(buf, "50%") == 0);
    cr_assert(cdi_stats_file_name("%mx", 1, NULL, buf, sizeof buf) && strcmp(buf, "x") == 0);
    cr_assert_not(cdi_stats_file_name("%d", 1, NULL, buf, sizeof buf));
    cr_assert_not(cdi_stats_file_name("x%", 1, NULL, buf, sizeof buf));
    cr_assert_not(cdi_stats_file_name("", 1, NULL, buf, sizeof buf));
    cr_assert(cdi_stats_file_name("0123456789012345678901234567890", 1, NULL, buf, sizeof buf));
    cr_assert_not(cdi_stats_file_name("01234567890123456789012345678901", 1, NULL, buf, sizeof buf));
}
