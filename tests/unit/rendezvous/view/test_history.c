/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/view/history.h"

#include "hygiene.h"

#include <inttypes.h>

CDI_SUITE(history);

static struct cdi_places_sum at_step(uint64_t step)
{
    return (struct cdi_places_sum){.n = 4, .n_timed = 4, .min_step = step, .steps_per_s = 50};
}

static void add(struct history *h, uint32_t round, uint64_t step, int64_t now_ms)
{
    struct cdi_places_sum sum = at_step(step);

    history_add(h, round, &sum, now_ms);
}

Test(history, rate_is_measured_between_samples)
{
    struct history h = {.taken = 0};

    add(&h, 0, 100, 1000);
    add(&h, 0, 140, 2000);
    add(&h, 0, 140, 6000);
    cr_assert_eq(history_count(&h), 3);
    cr_assert_float_eq(history_at(&h, 0)->steps_per_s, 50, 1e-9, "by the ranks' figures");
    cr_assert_float_eq(history_at(&h, 1)->steps_per_s, 40, 1e-9);
    cr_assert_float_eq(history_at(&h, 2)->steps_per_s, 0, 1e-9, "a job that stands still");
}

Test(history, new_round_begins_a_new_rate)
{
    struct history h = {.taken = 0};

    add(&h, 0, 100, 1000);
    add(&h, 1, 900, 2000);
    add(&h, 1, 3, 3000);
    cr_assert_float_eq(history_at(&h, 1)->steps_per_s, 50, 1e-9);
    cr_assert_float_eq(history_at(&h, 2)->steps_per_s, 50, 1e-9, "steps that were done again");
}

/* A step in each of the shortest times, for three hours. */
Test(history, keeps_the_last_hour)
{
    enum { HOUR = HISTORY_MAX << 5 };
    struct history h = {.taken = 0};

    for (uint64_t i = 0; i < 3 * HOUR; i++) {
        add(&h, 0, i, HISTORY_LEAST_MS * (int64_t)i);
        if (i + 1 < HISTORY_MAX)
            cr_assert(history_count(&h) == i + 1 && history_at(&h, 0)->step == 0, "a young job has all");
        if (i < HOUR)
            cr_assert_lt(history_at(&h, 0)->step, 32, "its begin is kept: %" PRIu64, i);
        if (i > HOUR + 32)
            cr_assert_lt(HOUR - (i - history_at(&h, 0)->step), 33, "an hour ago: %" PRIu64, i);
    }
    cr_assert_eq(history_count(&h), HISTORY_MAX);
    for (size_t i = 1; i < HISTORY_MAX; i++) {
        cr_assert_eq(history_at(&h, i)->at_ms - history_at(&h, i - 1)->at_ms, HISTORY_MOST_MS);
        cr_assert_float_eq(history_at(&h, i)->steps_per_s, 1e3 / HISTORY_LEAST_MS, 1e-9);
    }
}

Test(history, many_who_look_do_not_fill_it)
{
    struct history h = {.taken = 0};
    struct cdi_places_sum outside = {.n = 2, .by_place = {[CDI_PLACE_OUTSIDE] = 2}};

    for (int i = 0; i < 100; i++)
        add(&h, 0, (uint64_t)i, i);
    cr_assert_eq(history_count(&h), 1);
    history_add(&h, 0, &outside, 100000);
    cr_assert_eq(history_count(&h), 1, "a job without libcddp has no steps");
}
