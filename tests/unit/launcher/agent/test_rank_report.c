/* SPDX-License-Identifier: Apache-2.0 */
/* From a flight page to the report of a rank. */
#include "launcher/agent/rank_report.h"

#include "hygiene.h"

CDI_SUITE(rank_report);

#define S 1000000000

static struct cdi_flight_view in_message(uint32_t op, int32_t other)
{
    return (struct cdi_flight_view){
        .claimed_pid = 77,
        .oldest_unfinished = {
            .seq = 5, .op = op, .count = 10, .bucket = -1, .late_rank = other, .enqueued_ns = S, .started_ns = 2 * S}};
}

Test(rank_report, message_names_the_rank_that_it_waits_for)
{
    struct cdi_flight_view v = in_message(CDI_FLIGHT_RECV, 3);
    struct cdi_rank_report r = {.rank = 0};

    rank_report_place(&v, NULL, 0, 32 * (int64_t)S, &r);
    cr_assert(r.place == CDI_PLACE_IN && r.op == CDI_FLIGHT_RECV && r.peer == 3 && r.for_ms == 30000);
    v = in_message(CDI_FLIGHT_SEND, 0);
    rank_report_place(&v, NULL, 0, 32 * (int64_t)S, &r);
    cr_assert_eq(r.peer, 0);
    v = in_message(CDI_FLIGHT_SEND, -1); /* of an older libcddp, or another backend */
    rank_report_place(&v, NULL, 0, 32 * (int64_t)S, &r);
    cr_assert_eq(r.peer, -1);
}

Test(rank_report, other_collectives_and_ended_ones_wait_for_no_single_rank)
{
    struct cdi_flight_view v = in_message(CDI_FLIGHT_ALL_REDUCE, 3);
    struct cdi_rank_report r = {.rank = 0};

    rank_report_place(&v, NULL, 0, 32 * (int64_t)S, &r);
    cr_assert_eq(r.peer, -1, "rank 3 has arrived");
    v = in_message(CDI_FLIGHT_RECV, 3);
    v.last = v.oldest_unfinished;
    v.last.done_ns = 3 * (int64_t)S;
    v.oldest_unfinished.seq = 0;
    rank_report_place(&v, NULL, 0, 32 * (int64_t)S, &r);
    cr_assert(r.place == CDI_PLACE_AFTER && r.peer == -1);
    v = (struct cdi_flight_view){.claimed_pid = 0};
    rank_report_place(&v, NULL, 0, 32 * (int64_t)S, &r);
    cr_assert(r.place == CDI_PLACE_OUTSIDE && r.peer == -1 && r.bucket == -1);
}

Test(rank_report, steps_have_an_age)
{
    const struct cdi_flight_step steps[] = {
        {.step = 7,
         .begun_ns = S,
         .end_ns = 2 * (int64_t)S,
         .comm_ns = S / 2,
         .exposed_ns = S / 4,
         .transfer_ns = S / 8,
         .late_rank = 2},
        {.step = 8, .begun_ns = 2 * (int64_t)S, .end_ns = 5 * (int64_t)S, .comm_ns = S / 2, .late_rank = -1}};
    struct cdi_rank_report r = {.rank = 0};

    rank_report_steps(steps, 2, 45 * (int64_t)S, &r);
    cr_assert(r.step_us == 2000000 && r.comm_us == 500000 && r.exposed_us == 125000 && r.transfer_us == 62500);
    cr_assert_eq(r.n_steps, 2);
    cr_assert(r.late_rank == 2 && r.late_count == 1);
    cr_assert_eq(r.step_age_ms, 40000);
    rank_report_steps(steps, 2, 4 * (int64_t)S, &r);
    cr_assert_eq(r.step_age_ms, 0, "a clock that is read earlier than the page");
    r.step_age_ms = 0;
    rank_report_steps(steps, 0, 45 * (int64_t)S, &r);
    cr_assert(r.n_steps == 0 && r.step_age_ms == 0 && r.late_rank == -1);
}

/* A part whose collective 4 was enqueued at 10 s; started and done in s, 0: not yet. */
static struct cdi_flight_part part_at(int64_t started, int64_t done)
{
    struct cdi_flight_entry e = {.seq = 4,
                                 .op = CDI_FLIGHT_BROADCAST,
                                 .bucket = -1,
                                 .late_rank = -1,
                                 .enqueued_ns = 10 * (int64_t)S,
                                 .started_ns = started * S,
                                 .done_ns = done * S};
    struct cdi_flight_part part = {.who = "'tp' (ranks 2, 3)"};

    if (done != 0)
        part.last = e;
    else
        part.unfinished = e;
    return part;
}

static struct cdi_rank_report place_of(const struct cdi_flight_view *v, struct cdi_flight_part part)
{
    struct cdi_rank_report r = {.rank = 0, .part = "of before"};

    rank_report_place(v, &part, 1, 32 * (int64_t)S, &r);
    return r;
}

Test(rank_report, rank_is_in_the_collective_that_it_waits_in_for_longest)
{
    struct cdi_flight_view v = in_message(CDI_FLIGHT_ALL_REDUCE, -1); /* since 2 s */
    struct cdi_rank_report r = place_of(&v, part_at(12, 0));

    cr_assert(r.place == CDI_PLACE_IN && r.seq == 5 && r.for_ms == 30000);
    cr_assert_str_eq(r.part, "");
    v.oldest_unfinished.started_ns = 20 * (int64_t)S;
    r = place_of(&v, part_at(12, 0));
    cr_assert(r.place == CDI_PLACE_IN && r.seq == 4 && r.op == CDI_FLIGHT_BROADCAST && r.for_ms == 20000);
    cr_assert_str_eq(r.part, "'tp' (ranks 2, 3)");
    v.oldest_unfinished.started_ns = 0; /* queued since 1 s */
    r = place_of(&v, part_at(12, 0));
    cr_assert(r.place == CDI_PLACE_IN && r.seq == 4, "a queued collective waits for nobody");
    r = place_of(&v, part_at(0, 0));
    cr_assert(r.place == CDI_PLACE_BEFORE && r.seq == 5 && r.for_ms == 31000);
    r = place_of(&v, part_at(12, 13));
    cr_assert(r.place == CDI_PLACE_BEFORE && r.seq == 5 && r.part[0] == '\0');
}

Test(rank_report, rank_waits_for_nothing_once_its_communicator_is_over)
{
    struct cdi_flight_view v = in_message(CDI_FLIGHT_ALL_REDUCE, -1);
    struct cdi_rank_report r;

    v.over = true;
    r = place_of(&v, part_at(0, 0));
    cr_assert(r.place == CDI_PLACE_BEFORE && r.seq == 4, "a part may outlive the whole");
    rank_report_place(&v, NULL, 0, 32 * (int64_t)S, &r);
    cr_assert(r.place == CDI_PLACE_AFTER && r.seq == 5 && r.for_ms == 30000);
    v = (struct cdi_flight_view){.claimed_pid = 77, .over = true, .replay = {.begun = 2, .ended = 1}};
    rank_report_place(&v, NULL, 0, 32 * (int64_t)S, &r);
    cr_assert_eq(r.place, CDI_PLACE_AFTER_REPLAY);
}

Test(rank_report, rank_in_no_collective_is_after_the_last_one)
{
    struct cdi_flight_view v = in_message(CDI_FLIGHT_ALL_REDUCE, -1);
    struct cdi_rank_report r;

    v.last = v.oldest_unfinished;
    v.last.done_ns = 3 * (int64_t)S;
    v.oldest_unfinished.seq = 0;
    r = place_of(&v, part_at(12, 13));
    cr_assert(r.place == CDI_PLACE_AFTER && r.seq == 4 && r.for_ms == 19000);
    cr_assert_str_eq(r.part, "'tp' (ranks 2, 3)");
    v.last.done_ns = 30 * (int64_t)S;
    r = place_of(&v, part_at(12, 13));
    cr_assert(r.place == CDI_PLACE_AFTER && r.seq == 5 && r.for_ms == 2000 && r.part[0] == '\0');
    v.replay = (struct cdi_flight_replay){.begun = 2, .ended = 1, .number = 2, .since_ns = 31 * (int64_t)S};
    r = place_of(&v, part_at(12, 13));
    cr_assert(r.place == CDI_PLACE_IN_REPLAY && r.part[0] == '\0');
    r = place_of(&v, part_at(12, 0));
    cr_assert(r.place == CDI_PLACE_IN && r.seq == 4 && r.replay == 0 && r.for_ms == 20000);
    v = (struct cdi_flight_view){.claimed_pid = 77};
    r = place_of(&v, part_at(12, 13));
    cr_assert(r.place == CDI_PLACE_AFTER && r.seq == 4, "a part may be made without the whole");
    r = place_of(&v, (struct cdi_flight_part){.who = "'new' (ranks 2, 3)"});
    cr_assert(r.place == CDI_PLACE_START && r.part[0] == '\0');
}
