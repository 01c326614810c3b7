/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "watch/run/run_record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

CDI_SUITE(run_record);

#define T0 1700000000000 /* ms */
#define MS 1000000       /* ns */

static struct run_record *record(uint32_t world)
{
    struct run_record *rr = run_record_new(T0);
    struct cdi_msg_assign a = {.n_nodes = 2, .world_size = world};

    cr_assert_not_null(rr);
    run_record_time(rr, T0 + 1000000000);
    run_record_round(rr, &a, T0);
    return rr;
}

/* A step of 80 ms, of it 20 in communication, 5 exposed, 2 waiting for a rank. */
static struct cdi_flight_step step_of(uint64_t number, int32_t late)
{
    return (struct cdi_flight_step){.step = number,
                                    .begun_ns = (int64_t)number * 80 * MS,
                                    .end_ns = ((int64_t)number + 1) * 80 * MS,
                                    .comm_ns = 20 * MS,
                                    .exposed_ns = 5 * MS,
                                    .late_ns = 2 * MS,
                                    .late_rank = late};
}

static double all_steps(const struct run_record *rr)
{
    double n = 0;

    for (size_t i = 0; i < RUN_RECORD_SPANS; i++)
        n += rr->spans[i].steps;
    return n;
}

Test(run_record, counts_the_steps_of_one_rank_and_times_of_all)
{
    struct run_record *rr = record(2);

    for (uint64_t i = 0; i < 10; i++)
        for (uint32_t rank = 0; rank < 2; rank++) {
            struct cdi_flight_step s = step_of(i, 1);

            run_record_step(rr, rank, &s, T0 + 100 * (int64_t)(i + 1));
        }
    cr_assert_eq(rr->n_steps, 10);
    cr_assert_lt(fabs(all_steps(rr) - 10), 1e-6);
    cr_assert_lt(fabs(rr->spans[5].steps - 1), 1e-6);
    cr_assert_eq(rr->spans[5].sums.n, 2);
    cr_assert_eq(rr->spans[5].sums.period_ns, 2 * 80 * MS);
    cr_assert_eq(rr->n_ranks, 2);
    cr_assert_eq(rr->ranks[0].sums.n, 10);
    cr_assert_eq(rr->ranks[0].n_late, 0);
    cr_assert_eq(rr->ranks[1].n_late, 20);
    cr_assert_eq(rr->ranks[1].caused_ns, 20 * 2 * MS);
    run_record_free(rr);
}

Test(run_record, spreads_steps_without_records_over_the_time_before)
{
    struct run_record *rr = record(1);

    run_record_count(rr, 0, 100, T0 + 1000);
    run_record_count(rr, 0, 300, T0 + 2000);
    cr_assert_eq(rr->n_steps, 300);
    cr_assert_lt(fabs(rr->spans[4].steps - 10), 1e-6);
    cr_assert_lt(fabs(rr->spans[14].steps - 20), 1e-6);
    cr_assert_lt(fabs(all_steps(rr) - 300), 1e-6);
    run_record_free(rr);
}

Test(run_record, begins_anew_in_each_round)
{
    struct run_record *rr = record(1);
    struct cdi_msg_assign a = {.round = 1, .restart_count = 1, .n_nodes = 1, .world_size = 1};

    run_record_count(rr, 0, 50, T0 + 1000);
    run_record_round_over(rr, true, "rank 0 died", T0 + 1500);
    run_record_round_over(rr, false, "another cause", T0 + 1600);
    run_record_round(rr, &a, T0 + 2000);
    run_record_count(rr, 0, 30, T0 + 3000);
    cr_assert_eq(rr->n_steps, 80);
    cr_assert_eq(rr->n_rounds, 2);
    cr_assert_str_eq(rr->rounds[0].text, "rank 0 died");
    cr_assert_eq(rr->rounds[0].ended_ms, T0 + 1500);
    cr_assert(rr->rounds[0].failed);
    cr_assert_eq(rr->rounds[1].ended_ms, 0);
    cr_assert_eq(rr->spans[17].steps, 0);
    run_record_free(rr);
}

Test(run_record, halves_the_resolution_when_the_time_does_not_fit)
{
    struct run_record *rr = record(1);
    const int64_t day = 86400000;

    for (uint64_t i = 0; i < 5 * 8640; i++) { /* five days, a step every 10 s */
        struct cdi_flight_step s = step_of(i, -1);

        run_record_step(rr, 0, &s, T0 + 10000 * (int64_t)(i + 1));
    }
    cr_assert_eq(rr->span_ms, 409600);
    cr_assert_leq(5 * day / rr->span_ms, RUN_RECORD_SPANS);
    cr_assert_eq(rr->n_steps, 5 * 8640);
    cr_assert_lt(fabs(all_steps(rr) - 5 * 8640), 1e-3);
    for (size_t i = 1; i + 1 < (size_t)(5 * day / rr->span_ms); i++)
        cr_assert_lt(fabs(rr->spans[i].steps - 40.96), 1e-3, "span %zu: %g", i, rr->spans[i].steps);
    run_record_free(rr);
}

Test(run_record, ranks_share_lines_when_they_are_many)
{
    struct run_record *rr = record(5000);

    for (uint32_t rank = 0; rank < 5000; rank++) {
        struct cdi_flight_step s = step_of(0, 4999);

        run_record_step(rr, rank, &s, T0 + 100);
    }
    cr_assert_eq(rr->ranks_each, 8);
    cr_assert_eq(rr->n_ranks, 625);
    for (uint32_t i = 0; i < 625; i++)
        cr_assert_eq(rr->ranks[i].sums.n, 8);
    cr_assert_eq(rr->ranks[624].n_late, 5000);
    run_record_free(rr);
}

Test(run_record, foreign_numbers_do_no_harm)
{
    struct run_record *rr = record(4);
    struct cdi_flight_step s = {.step = UINT64_MAX};

    run_record_step(rr, 0, &s, T0);
    s = (struct cdi_flight_step){.step = 3,
                                 .begun_ns = INT64_MIN,
                                 .end_ns = INT64_MAX,
                                 .comm_ns = INT64_MAX,
                                 .exposed_ns = -5,
                                 .late_ns = INT64_MAX,
                                 .late_rank = 2};
    run_record_step(rr, 4, &s, T0);
    cr_assert_eq(rr->n_ranks, 0, "no rank of this world");
    run_record_step(rr, 3, &s, INT64_MAX);
    run_record_step(rr, 3, &s, INT64_MIN);
    run_record_step(rr, 2, &s, T0 - 1);
    s.late_rank = 4;
    run_record_step(rr, 2, &s, T0);
    cr_assert_eq(rr->ranks[3].sums.comm_ns, INT64_MAX);
    cr_assert_eq(rr->ranks[3].sums.exposed_ns, 0);
    cr_assert_eq(rr->ranks[3].sums.period_ns, 0);
    cr_assert_eq(rr->ranks[2].caused_ns, INT64_MAX);
    cr_assert_leq(rr->span_ms * RUN_RECORD_SPANS, 2 * 1000000000LL + rr->span_ms, "the present bounds the time");
    run_record_free(rr);
}

Test(run_record, lists_are_bounded)
{
    struct run_record *rr = record(1);
    struct cdi_msg_assign a = {.world_size = 1};
    struct cdi_failure f = {.kind = CDI_END_EXIT, .code = 1};

    for (uint32_t i = 1; i < 3 * RUN_RECORD_ROUNDS; i++) {
        a.round = i;
        run_record_round(rr, &a, T0 + i);
    }
    cr_assert_eq(rr->n_rounds, RUN_RECORD_ROUNDS);
    cr_assert_eq(rr->n_rounds_lost, 2 * RUN_RECORD_ROUNDS);
    cr_assert_eq(rr->rounds[RUN_RECORD_ROUNDS - 1].round, 3 * RUN_RECORD_ROUNDS - 1);
    for (int i = 0; i < RUN_RECORD_EVENTS + 7; i++)
        run_record_event(rr, "restart", "a text", T0 + i);
    cr_assert_eq(rr->n_events, RUN_RECORD_EVENTS);
    cr_assert_eq(rr->n_events_lost, 7);
    for (int i = 0; i < RUN_RECORD_FAILURES + 9; i++) {
        f.pid = i;
        run_record_failure(rr, &f);
        run_record_failure(rr, &f);
    }
    cr_assert_eq(rr->n_failures, RUN_RECORD_FAILURES);
    run_record_free(rr);
}
