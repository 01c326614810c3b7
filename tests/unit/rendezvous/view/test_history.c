/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/view/history.h"

#include "hygiene.h"

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

Test(history, keeps_the_last_samples)
{
    struct history h = {.taken = 0};

    for (int i = 0; i < 300; i++)
        add(&h, 0, (uint64_t)i, 1000 * i);
    cr_assert_eq(history_count(&h), HISTORY_MAX);
    cr_assert_eq(history_at(&h, 0)->step, 300 - HISTORY_MAX);
    cr_assert_eq(history_at(&h, HISTORY_MAX - 1)->step, 299);
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
