/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "hygiene.h"

#include <pthread.h>

CDI_SUITE(clock);

#define MS INT64_C(1000000)

/* A counter of `mhz` at a clock that runs `ppm` too fast. */
static uint64_t ticks_at(int64_t ns, uint64_t mhz, int64_t ppm)
{
    return 1000 + (uint64_t)((double)ns * (double)mhz / 1e3 / (1.0 + (double)ppm * 1e-6));
}

Test(clock, follows_a_counter_of_any_rate)
{
    static const uint64_t mhz[] = {24, 1000, 2445, 5000};

    for (size_t i = 0; i < sizeof mhz / sizeof mhz[0]; i++) {
        struct cdi_ticks t = {0};
        int64_t ns = 0;

        cr_assert_not(cdi_ticks_read(&t, 5, &ns), "nothing is known yet");
        for (int64_t at = 0; at <= 5000 * MS; at += CDI_TICKS_MS * MS) {
            cdi_ticks_compare(&t, ticks_at(at, mhz[i], 0), 7 + at);
            if (at > 0)
                cr_assert(cdi_ticks_read(&t, ticks_at(at + 15 * MS, mhz[i], 0), &ns));
            if (at > 0)
                cr_assert(ns > 7 + at + 15 * MS - 100 && ns < 7 + at + 15 * MS + 100, "%lld", (long long)ns);
        }
        cr_assert_not(cdi_ticks_read(&t, ticks_at(5100 * MS, mhz[i], 0), &ns), "the comparison is old");
        cr_assert_not(cdi_ticks_read(&t, ticks_at(4000 * MS, mhz[i], 0), &ns), "the counter has gone back");
    }
}

Test(clock, follows_corrections_of_the_clock)
{
    struct cdi_ticks t = {0};
    int64_t at = 0, ns = 0;
    uint64_t ticks = 0;

    for (int i = 0; i < 400; i++, at += CDI_TICKS_MS * MS, ticks += (uint64_t)CDI_TICKS_MS * 3000000)
        cdi_ticks_compare(&t, ticks, at);
    for (int i = 0; i < 400; i++, at += CDI_TICKS_MS * (MS + 500), ticks += (uint64_t)CDI_TICKS_MS * 3000000)
        cdi_ticks_compare(&t, ticks, at);
    at -= CDI_TICKS_MS * (MS + 500);
    ticks -= (uint64_t)CDI_TICKS_MS * 3000000;
    cr_assert(cdi_ticks_read(&t, ticks + 30000000, &ns));
    cr_assert(ns - at > 10004900 && ns - at < 10005100, "500 in a million faster: %lld", (long long)(ns - at));
}

Test(clock, begins_anew_after_a_jump)
{
    struct cdi_ticks t = {0};
    int64_t ns;

    for (int64_t at = 0; at <= 100 * MS; at += CDI_TICKS_MS * MS)
        cdi_ticks_compare(&t, ticks_at(at, 3000, 0), at);
    cr_assert_neq(t.rate, 0);
    cdi_ticks_compare(&t, ticks_at(120 * MS, 3000, 0), 5000 * MS); /* the machine was moved, and its clock set */
    cr_assert_not(cdi_ticks_read(&t, ticks_at(121 * MS, 3000, 0), &ns));
    cdi_ticks_compare(&t, 10, 5020 * MS); /* and the counter, too */
    cdi_ticks_compare(&t, 10 + ticks_at(20 * MS, 3000, 0), 5040 * MS);
    cr_assert(cdi_ticks_read(&t, 10 + ticks_at(30 * MS, 3000, 0), &ns));
    cr_assert(ns > 5050 * MS - 1000 && ns < 5050 * MS + 1000);
}

static void *check_readings(void *arg)
{
    int64_t until = cdi_now_ns() + 150 * MS, last = 0;
    bool *good = arg;

    do {
        int64_t before = cdi_now_ns(), now = cdi_now_ticks_ns(), after = cdi_now_ns();

        *good = *good && now > before - MS / 10 && now < after + MS / 10 && now > last - MS / 10;
        last = now;
    } while (last < until && *good);
    return NULL;
}

Test(clock, agrees_with_the_kernel_in_all_threads)
{
    bool good[4] = {true, true, true, true};
    pthread_t threads[4];

    if (cdi_now_ns() - cdi_now_ticks_ns() > MS)
        cr_skip_test("reading the kernel's clock takes a system call here");
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, check_readings, &good[i]), 0);
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], NULL);
        cr_expect(good[i]);
    }
}
