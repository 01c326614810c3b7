/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks in equal places become one group, the least advanced first; the figures of their steps one summary. */
#include "protocol/places.h"

#include "hygiene.h"

#include <string.h>

CDI_SUITE(places);

#define MANY 1000

static struct cdi_rank_report reports[MANY];
static struct cdi_placed placed[MANY];
static struct cdi_place_group groups[16];
static char text[CDI_PLACES_TEXT];

static struct cdi_rank_report *plant(size_t i, enum cdi_place place, uint64_t seq, uint64_t step)
{
    reports[i] = (struct cdi_rank_report){.rank = (int32_t)i,
                                          .place = place,
                                          .op = seq > 0 ? CDI_FLIGHT_ALL_REDUCE : CDI_FLIGHT_NONE,
                                          .seq = seq,
                                          .step = step,
                                          .bucket = -1,
                                          .late_rank = -1,
                                          .peer = -1,
                                          .gpu_permille = -1,
                                          .for_ms = 1000 + (int64_t)i};
    placed[i] = (struct cdi_placed){&reports[i], "host", (int32_t)i / 8};
    return &reports[i];
}

static const char *ranks_of(size_t group)
{
    static char ranks[CDI_PLACES_RANKS];

    cdi_places_ranks(&groups[group], ranks);
    return ranks;
}

static const char *where(size_t group)
{
    cdi_places_where(&groups[group], text);
    return text;
}

Test(places, a_thousand_ranks_become_two_lines)
{
    for (size_t i = 0; i < MANY; i++)
        plant(i, i == 7 ? CDI_PLACE_AFTER : CDI_PLACE_IN, i == 7 ? 41 : 42, 20);
    cr_assert_eq(cdi_places_group(placed, MANY, groups, 12), 2);
    cr_assert_str_eq(ranks_of(0), "7");
    cr_assert_str_eq(where(0), "after all_reduce #41");
    cr_assert_str_eq(ranks_of(1), "0-6, 8-999");
    cr_assert_str_eq(where(1), "in all_reduce #42");
    cr_assert(groups[0].n_nodes == 1 && groups[1].n_nodes == MANY / 8);
    cr_assert_eq(groups[1].for_ms, 1000, "the shortest time is true for all");
}

Test(places, least_advanced_ranks_come_first)
{
    static const char *const wanted[] = {"ended",
                                         "before the first collective",
                                         "after all_reduce #4",
                                         "before all_reduce #5, queued",
                                         "in all_reduce #5",
                                         "in captured all_reduce, replay 3",
                                         "without libcddp"};

    plant(0, CDI_PLACE_OUTSIDE, 0, 0);
    plant(1, CDI_PLACE_IN, 5, 2);
    plant(2, CDI_PLACE_AFTER, 4, 2);
    plant(3, CDI_PLACE_BEFORE, 5, 2);
    plant(4, CDI_PLACE_EXITED, 9, 9);
    plant(5, CDI_PLACE_START, 0, 0);
    plant(6, CDI_PLACE_IN_REPLAY, 5, 2)->replay = 3;
    cr_assert_eq(cdi_places_group(placed, 7, groups, 12), 7);
    for (size_t i = 0; i < 7; i++)
        cr_assert_str_eq(where(i), wanted[i]);
}

Test(places, bucket_and_names_are_shown)
{
    struct cdi_rank_report *r = plant(0, CDI_PLACE_IN, 7, 1);

    r->bucket = 3;
    cr_assert_eq(cdi_places_group(placed, 1, groups, 2), 1);
    cr_assert_str_eq(where(0), "in all_reduce #7 (bucket 3)");
    (void)snprintf(r->names, sizeof r->names, "fc1.weight, fc1.bias");
    cr_assert_str_eq(where(0), "in all_reduce #7 (bucket 3: fc1.weight, fc1.bias)");
}

Test(places, different_collectives_of_equal_number_differ)
{
    plant(0, CDI_PLACE_IN, 7, 1);
    plant(1, CDI_PLACE_IN, 7, 1)->op = CDI_FLIGHT_BROADCAST;
    plant(2, CDI_PLACE_IN, 7, 1)->count = 9;
    cr_assert_eq(cdi_places_group(placed, 3, groups, 12), 3);
}

Test(places, part_is_shown)
{
    static const char *const wanted[] = {"in all_reduce #7", "in all_reduce #7 of part 'tp' (ranks 1, 2)",
                                         "in all_reduce #7 of part 'tp' (ranks 3, 4)",
                                         "after send #9 of part (ranks 5, 6)"};

    for (size_t i = 0; i < 5; i++)
        plant(i, CDI_PLACE_IN, 7, 1);
    for (size_t i = 1; i < 5; i++)
        (void)snprintf(reports[i].part, sizeof reports[i].part, "'tp' (ranks %d, %d)", i < 3 ? 1 : 3, i < 3 ? 2 : 4);
    plant(5, CDI_PLACE_AFTER, 9, 1)->op = CDI_FLIGHT_SEND;
    (void)snprintf(reports[5].part, sizeof reports[5].part, "(ranks 5, 6)");
    cr_assert_eq(cdi_places_group(placed, 6, groups, 12), 4);
    cr_assert_str_eq(ranks_of(1), "1, 2");
    for (size_t i = 0; i < 4; i++)
        cr_assert_str_eq(where(i), wanted[i]);
}

Test(places, too_many_places_share_lines)
{
    for (size_t i = 0; i < MANY; i++)
        plant(i, CDI_PLACE_IN, 100 + i % 50, 20 + i % 2);
    cr_assert_eq(cdi_places_group(placed, MANY, groups, 12), 2, "by step");
    cr_assert(groups[0].mixed && groups[0].n == MANY / 2);
    cr_assert_str_eq(where(0), "in several collectives of step 20");
    for (size_t i = 0; i < MANY; i++)
        plant(i, CDI_PLACE_AFTER, 100 + i, i);
    cr_assert_eq(cdi_places_group(placed, MANY, groups, 12), 12);
    cr_assert_eq(groups[11].n, MANY - 11);
    cr_assert_str_eq(where(11), "in several places, steps 11 to 999");
    cr_assert_str_eq(ranks_of(11), "11-999");
}

Test(places, long_lists_of_ranks_end_with_their_number)
{
    size_t n = 0;

    for (size_t i = 0; i < MANY; i++)
        plant(i, i % 2 == 0 ? CDI_PLACE_IN : CDI_PLACE_AFTER, 42, 1);
    cr_assert_eq(cdi_places_group(placed, MANY, groups, 12), 2);
    cr_assert(strncmp(ranks_of(0), "0, 2, 4, ", 9) == 0 && strstr(ranks_of(0), " more") != NULL, "%s", ranks_of(0));
    for (const char *at = ranks_of(0); (at = strchr(at, ',')) != NULL; at++)
        n++;
    cr_assert_eq(strtoull(strstr(ranks_of(0), "and ") + 4, NULL, 10), MANY / 2 - n - 1);
}

Test(places, doing_is_shown_if_it_is_the_same)
{
    (void)snprintf(plant(0, CDI_PLACE_IN, 1, 1)->doing, 128, "running, 99 %% of a core");
    (void)snprintf(plant(1, CDI_PLACE_IN, 1, 1)->doing, 128, "running, 98 %% of a core");
    (void)snprintf(plant(2, CDI_PLACE_IN, 1, 1)->doing, 128, "stopped by a signal");
    cr_assert_eq(cdi_places_group(placed, 3, groups, 12), 2, "a stopped rank has its own line");
    cdi_places_doing(&groups[0], text);
    cr_assert_str_eq(text, "running");
    cdi_places_doing(&groups[1], text);
    cr_assert_str_eq(text, "stopped by a signal");
}

Test(places, summary_names_the_slowest_rank)
{
    struct cdi_places_sum sum;

    for (size_t i = 0; i < 8; i++) {
        struct cdi_rank_report *r = plant(i, CDI_PLACE_IN, 42, 20 + i % 2);

        r->n_steps = 10;
        r->step_us = 10000;
        r->comm_us = 4000;
        r->exposed_us = 1000;
        r->late_us = 500;
        r->transfer_us = 2500;
        r->late_rank = i == 3 ? 0 : 3;
        r->late_count = i == 3 ? 5 : 8;
    }
    cdi_places_sum(placed, 8, &sum);
    cr_assert(sum.n == 8 && sum.n_timed == 8 && sum.by_place[CDI_PLACE_IN] == 8);
    cr_assert(sum.min_step == 20 && sum.max_step == 21);
    cr_assert(sum.n_fresh == 8 && sum.n_gpus == 0 && sum.gpu_memory < 0);
    cr_assert_float_eq(sum.steps_per_s, 100, 1e-9);
    cr_assert(sum.step_us == 10000 && sum.hidden_us == 3000 && sum.exposed_us == 1000 && sum.late_us == 500);
    cr_assert_eq(sum.transfer_us, 2500);
    cr_assert_eq(sum.slowest, 3);
    cr_assert_float_eq(sum.slowest_share, 56.0 / 80, 1e-9);
}

/* Steps of 10 ms. The rate falls with the age of the last one, and their figures tell nothing any more. */
Test(places, figures_of_steps_end_while_nothing_moves)
{
    struct cdi_places_sum sum;

    for (size_t i = 0; i < 4; i++) {
        struct cdi_rank_report *r = plant(i, CDI_PLACE_IN, 42, 20);

        r->n_steps = 10;
        r->step_us = 10000;
        r->comm_us = 4000;
        r->exposed_us = 1000;
        r->late_us = 500;
        r->step_age_ms = 1000;
    }
    cdi_places_sum(placed, 4, &sum);
    cr_assert_float_eq(sum.steps_per_s, 1, 1e-9);
    cr_assert(sum.n_fresh == 4 && sum.step_us == 10000, "a checkpoint may take a second");
    for (size_t i = 0; i < 4; i++)
        reports[i].step_age_ms = 40000 + (int64_t)i;
    cr_assert(cdi_places_stands_still(&reports[0]));
    cr_assert_float_eq(cdi_places_rate(&reports[0]), 0.025, 1e-9);
    cdi_places_sum(placed, 4, &sum);
    cr_assert(sum.steps_per_s > 0.0249 && sum.steps_per_s < 0.02501, "%g", sum.steps_per_s);
    cr_assert(sum.n_timed == 4 && sum.n_fresh == 0 && sum.step_us == 0 && sum.hidden_us == 0 && sum.exposed_us == 0 &&
              sum.late_us == 0);
    cr_assert_eq(sum.step_age_ms, 40000, "the youngest");
    reports[0].step_us = 0;
    cr_assert(cdi_places_rate(&reports[0]) < 0 && !cdi_places_stands_still(&reports[0]));
}

Test(places, long_steps_do_not_stand_still)
{
    struct cdi_rank_report *r = plant(0, CDI_PLACE_AFTER, 42, 20);

    r->step_us = 60000000;
    r->step_age_ms = 59000;
    cr_assert_not(cdi_places_stands_still(r));
    cr_assert_float_eq(cdi_places_rate(r), 1.0 / 60, 1e-9, "within a step the rate is that of the last ones");
}

Test(places, summary_of_gpus)
{
    struct cdi_places_sum sum;

    plant(0, CDI_PLACE_IN, 1, 1)->gpu_permille = 900;
    plant(1, CDI_PLACE_IN, 1, 1)->gpu_permille = 0;
    plant(2, CDI_PLACE_IN, 1, 1); /* not known */
    reports[0].gpu_used_bytes = 60;
    reports[0].gpu_total_bytes = 80;
    reports[1].gpu_used_bytes = 20;
    reports[1].gpu_total_bytes = 80;
    cdi_places_sum(placed, 3, &sum);
    cr_assert(sum.n_gpus == 2 && sum.gpu_least_load == 0);
    cr_assert_float_eq(sum.gpu_load, 0.45, 1e-9);
    cr_assert_float_eq(sum.gpu_memory, 0.75, 1e-9);
    reports[0].gpu_permille = INT32_MAX; /* an agent may say anything */
    reports[1].gpu_total_bytes = 0;
    cdi_places_sum(placed, 2, &sum);
    cr_assert_float_eq(sum.gpu_load, 0.5, 1e-9);
}

Test(places, message_names_the_other_rank)
{
    struct cdi_rank_report *r = plant(0, CDI_PLACE_IN, 7, 1), *s = plant(1, CDI_PLACE_IN, 7, 1);

    r->op = s->op = CDI_FLIGHT_RECV;
    r->peer = s->peer = 3;
    cr_assert_eq(cdi_places_group(placed, 2, groups, 2), 1);
    cr_assert_str_eq(where(0), "in recv #7 from rank 3");
    s->peer = 4;
    cr_assert_str_eq(where(0), "in recv #7 from ranks 3, 4");
    s->peer = -1;
    cr_assert_str_eq(where(0), "in recv #7", "not known of both");
    for (size_t i = 0; i < 5; i++) {
        struct cdi_rank_report *t = plant(i, CDI_PLACE_IN, 7, 1);

        t->op = CDI_FLIGHT_RECV;
        t->peer = (int32_t)i + 1;
    }
    cr_assert_eq(cdi_places_group(placed, 5, groups, 2), 1);
    cr_assert_str_eq(where(0), "in recv #7", "too many");
    cr_assert_eq(cdi_places_group(placed, 1, groups, 2), 1);
    r->op = CDI_FLIGHT_SEND;
    cr_assert_str_eq(where(0), "in send #7 to rank 1");
}

Test(places, summary_of_nothing_is_empty)
{
    struct cdi_places_sum sum;

    cdi_places_sum(placed, 0, &sum);
    cr_assert(sum.n == 0 && sum.min_step == 0 && sum.max_step == 0 && sum.slowest == -1 && sum.slowest_share == 0);
    cr_assert_eq(cdi_places_group(placed, 0, groups, 12), 0);
    plant(0, CDI_PLACE_OUTSIDE, 0, 77);
    cdi_places_sum(placed, 1, &sum);
    cr_assert(sum.n == 1 && sum.min_step == 0 && sum.max_step == 0, "steps of a rank without libcddp are not known");
}

Test(places, span_has_the_unit_that_fits)
{
    static const struct {
        double us;
        const char *text;
    } cases[] = {{0, "0 us"},           {850, "850 us"},       {12345, "12.3 ms"}, {250000, "250 ms"},
                 {4.2e6, "4.2 s"},      {42e6, "42 s"},        {59.7e6, "1 min"},  {185e6, "3 min 5 s"},
                 {7440e6, "2 h 4 min"}, {273600e6, "3 d 4 h"}, {-5, "0 us"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert_str_eq(cdi_places_span(text, cases[i].us), cases[i].text);
}
