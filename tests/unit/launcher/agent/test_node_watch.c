/* SPDX-License-Identifier: Apache-2.0 */
/* From a flight page to the report of a rank. */
#include "launcher/agent/node_watch.h"

#include "hygiene.h"

CDI_SUITE(node_watch);

#define S 1000000000

static struct cdi_flight_view in_message(uint32_t op, int32_t other)
{
    return (struct cdi_flight_view){
        .claimed_pid = 77,
        .oldest_unfinished = {
            .seq = 5, .op = op, .count = 10, .bucket = -1, .late_rank = other, .enqueued_ns = S, .started_ns = 2 * S}};
}

Test(node_watch, message_names_the_rank_that_it_waits_for)
{
    struct cdi_flight_view v = in_message(CDI_FLIGHT_RECV, 3);
    struct cdi_rank_report r = {.rank = 0};

    node_watch_place(&v, 32 * (int64_t)S, &r);
    cr_assert(r.place == CDI_PLACE_IN && r.op == CDI_FLIGHT_RECV && r.peer == 3 && r.for_ms == 30000);
    v = in_message(CDI_FLIGHT_SEND, 0);
    node_watch_place(&v, 32 * (int64_t)S, &r);
    cr_assert_eq(r.peer, 0);
    v = in_message(CDI_FLIGHT_SEND, -1); /* of an older libcddp, or another backend */
    node_watch_place(&v, 32 * (int64_t)S, &r);
    cr_assert_eq(r.peer, -1);
}

Test(node_watch, other_collectives_and_ended_ones_wait_for_no_single_rank)
{
    struct cdi_flight_view v = in_message(CDI_FLIGHT_ALL_REDUCE, 3);
    struct cdi_rank_report r = {.rank = 0};

    node_watch_place(&v, 32 * (int64_t)S, &r);
    cr_assert_eq(r.peer, -1, "rank 3 has arrived");
    v = in_message(CDI_FLIGHT_RECV, 3);
    v.last = v.oldest_unfinished;
    v.last.done_ns = 3 * (int64_t)S;
    v.oldest_unfinished.seq = 0;
    node_watch_place(&v, 32 * (int64_t)S, &r);
    cr_assert(r.place == CDI_PLACE_AFTER && r.peer == -1);
    v = (struct cdi_flight_view){.claimed_pid = 0};
    node_watch_place(&v, 32 * (int64_t)S, &r);
    cr_assert(r.place == CDI_PLACE_OUTSIDE && r.peer == -1 && r.bucket == -1);
}

Test(node_watch, steps_have_an_age)
{
    const struct cdi_flight_step steps[] = {
        {.step = 7, .begun_ns = S, .end_ns = 2 * (int64_t)S, .comm_ns = S / 2, .exposed_ns = S / 4, .late_rank = 2},
        {.step = 8, .begun_ns = 2 * (int64_t)S, .end_ns = 5 * (int64_t)S, .comm_ns = S / 2, .late_rank = -1}};
    struct cdi_rank_report r = {.rank = 0};

    node_watch_steps(steps, 2, 45 * (int64_t)S, &r);
    cr_assert(r.step_us == 2000000 && r.comm_us == 500000 && r.exposed_us == 125000 && r.n_steps == 2);
    cr_assert(r.late_rank == 2 && r.late_count == 1);
    cr_assert_eq(r.step_age_ms, 40000);
    node_watch_steps(steps, 2, 4 * (int64_t)S, &r);
    cr_assert_eq(r.step_age_ms, 0, "a clock that is read earlier than the page");
    r.step_age_ms = 0;
    node_watch_steps(steps, 0, 45 * (int64_t)S, &r);
    cr_assert(r.n_steps == 0 && r.step_age_ms == 0 && r.late_rank == -1);
}
