/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "watch/run/progress_line.h"

#include <string.h>

CDI_SUITE(progress_line);

static const struct progress_facts all = {.n_ranks = 8,
                                          .step = 390,
                                          .rate = 12.34,
                                          .hidden_percent = 81,
                                          .late_rank = 5,
                                          .restarts = 2,
                                          .elapsed_ms = 192400};

Test(progress_line, says_all_that_is_known)
{
    char buf[PROGRESS_LINE_MAX];

    cr_assert_str_eq(progress_line_text(&all, 120, buf),
                     "step 390, 12.3 steps/s, 81 % of communication hidden, slowest rank 5, 2 restarts, 00:03:12");
}

Test(progress_line, says_no_more_than_is_known)
{
    struct progress_facts f = {
        .n_ranks = 1, .rate = -1, .hidden_percent = -1, .late_rank = -1, .elapsed_ms = 360000000};
    char buf[PROGRESS_LINE_MAX];

    cr_assert_str_eq(progress_line_text(&f, 80, buf), "1 rank, 100:00:00");
    f.n_ranks = 4;
    f.restarts = 1;
    cr_assert_str_eq(progress_line_text(&f, 80, buf), "4 ranks, 1 restart, 100:00:00");
}

Test(progress_line, fits_into_every_terminal)
{
    char buf[PROGRESS_LINE_MAX];

    for (unsigned columns = 1; columns < 300; columns++)
        cr_assert_lt(strlen(progress_line_text(&all, columns, buf)), columns);
    cr_assert_str_eq(progress_line_text(&all, 50, buf), "step 390, 12.3 steps/s, 2 restarts, 00:03:12");
    cr_assert_str_eq(progress_line_text(&all, 24, buf), "step 390, 12.3 steps/s");
    cr_assert_str_eq(progress_line_text(&all, 10, buf), "step 390");
}

Test(progress_line, names_the_rank_that_most_wait_for)
{
    struct cdi_rank_report ranks[] = {
        {.rank = 0,
         .place = CDI_PLACE_IN,
         .step = 11,
         .step_us = 500,
         .comm_us = 100,
         .exposed_us = 10,
         .late_rank = 2,
         .late_count = 30},
        {.rank = 1,
         .place = CDI_PLACE_IN,
         .step = 10,
         .step_us = 500,
         .comm_us = 100,
         .exposed_us = 30,
         .late_rank = 3,
         .late_count = 40},
        {.rank = 2, .place = CDI_PLACE_IN, .step = 11, .comm_us = 0, .late_rank = -1},
        {.rank = 3, .place = CDI_PLACE_AFTER, .step = 12, .late_rank = 2, .late_count = 20},
    };
    struct cdi_node_report r = {.n_ranks = 4, .ranks = ranks};
    struct progress_line p = {.n_points = 0};
    struct progress_facts f = progress_line_note(&p, &r, 1000);

    cr_assert_eq(f.step, 10);
    cr_assert_eq(f.late_rank, 2);
    cr_assert_eq(f.hidden_percent, 80);
    cr_assert_lt(f.rate, 0, "there is no second point");
}

Test(progress_line, rate_is_that_of_the_last_seconds)
{
    struct cdi_rank_report rank = {.rank = 0, .place = CDI_PLACE_AFTER, .late_rank = -1};
    struct cdi_node_report r = {.n_ranks = 1, .ranks = &rank};
    struct progress_line p = {.n_points = 0};
    struct progress_facts f = {.rate = 0};

    for (int i = 0; i <= 100; i++) { /* 4 steps/s, then 20 */
        rank.step += i < 80 ? 2 : 10;
        f = progress_line_note(&p, &r, 500 * i);
        if (i == 70)
            cr_assert_float_eq(f.rate, 4, 1e-9);
    }
    cr_assert_float_eq(f.rate, 20, 1e-9);
    rank.step = 1;
    cr_assert_lt(progress_line_note(&p, &r, 60000).rate, 0, "a new round");
    rank.step = 2;
    cr_assert_float_eq(progress_line_note(&p, &r, 120000).rate, 1.0 / 60, 1e-9, "a step may take long");
}
