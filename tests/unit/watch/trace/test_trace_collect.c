/* SPDX-License-Identifier: Apache-2.0 */
/* What a trace takes from a flight page: each record once, losses counted, the one that lasts, the last one of a rank.
 */
#include "watch/trace/trace_collect.h"

#include "common/clock.h"
#include "hygiene.h"

#include <string.h>
#include <unistd.h>

CDI_SUITE(trace_collect);

static struct cdi_flight *page, *worker;
static struct cdi_records out;
static struct trace_cursor cursor;
static int fd;

static void begin(void)
{
    char env[128];

    cr_assert_eq(cdi_flight_create(&page, 0, &fd, NULL), CDDP_OK);
    cdi_flight_env(page, fd, fd, env, sizeof env);
    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cr_assert_eq(cdi_records_init(&out, NULL), CDDP_OK);
    cursor = (struct trace_cursor){0};
}

static void end(void)
{
    cdi_records_release(&out);
    cdi_flight_release(worker);
    cdi_flight_release(page);
    close(fd);
}

static uint64_t enqueue(int bucket)
{
    return cdi_flight_enqueue(worker, CDI_FLIGHT_ALL_REDUCE, 8, 100, bucket);
}

static void run(int n)
{
    for (int i = 0; i < n; i++) {
        uint64_t seq = enqueue(i % 3);

        cdi_flight_start(worker, seq);
        (void)cdi_flight_end(worker, seq, 1, 0);
    }
}

static void steps(uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < first + n; i++)
        cdi_flight_step_done(worker,
                             &(struct cdi_flight_step){.step = i, .begun_ns = 10, .end_ns = 20, .late_rank = -1});
}

/* Returns the number of collectives that are new. */
static size_t take(bool ended, size_t room, int64_t later_ns)
{
    const struct trace_source from = {
        .page = page, .rank = 5, .ended = ended, .now_ns = cdi_now_ns() + later_ns, .room = room};

    out.n_colls = out.n_steps = out.n_names = 0;
    (void)trace_collect(&cursor, &from, &out);
    return out.n_colls;
}

Test(trace_collect, unclaimed_page_has_nothing)
{
    struct trace_source from = {.rank = 1, .room = 10};

    cr_assert_eq(cdi_flight_create(&page, 0, &fd, NULL), CDDP_OK);
    cr_assert_eq(cdi_records_init(&out, NULL), CDDP_OK);
    from.page = page;
    cr_assert_eq(trace_collect(&cursor, &from, &out), 0);
    cr_assert_eq(cdi_records_count(&out), 0);
    cdi_records_release(&out);
    cdi_flight_release(page);
    close(fd);
}

Test(trace_collect, takes_each_record_once)
{
    begin();
    cdi_flight_set_names(worker, 1, "conv.weight, conv.bias");
    run(7);
    steps(0, 3);
    cr_assert_eq(take(false, 1000, 0), 7);
    cr_assert_eq(out.n_steps, 3);
    cr_assert_eq(out.n_names, 1);
    cr_assert(out.colls[0].rank == 5 && out.colls[0].e.seq == 1 && out.colls[0].e.done_ns > 0);
    cr_assert(out.colls[0].name == -1 && out.colls[1].name == 0 && out.colls[4].name == 0);
    cr_assert_str_eq(out.names[0], "conv.weight, conv.bias");
    cr_assert(out.steps[2].rank == 5 && out.steps[2].s.step == 2);
    cr_assert_eq(take(false, 1000, 0), 0);
    cr_assert_eq(out.n_steps, 0);
    run(2);
    steps(3, 1);
    cr_assert_eq(take(false, 1000, 0), 2);
    cr_assert(out.n_steps == 1 && out.steps[0].s.step == 3 && out.colls[0].e.seq == 8);
    cr_assert_eq(out.n_lost, 0);
    end();
}

Test(trace_collect, waits_for_the_times_of_a_device)
{
    uint64_t seq;

    begin();
    run(1);
    seq = enqueue(2);
    cdi_flight_start(worker, seq);
    cdi_flight_done(worker, seq); /* whose last peer is not known */
    run(1);
    cr_assert_eq(take(false, 1000, 0), 1);
    cdi_flight_times(worker, seq, 5, 6, 7);
    cr_assert_eq(take(false, 1000, 0), 2);
    cr_assert(out.colls[0].e.seq == 2 && out.colls[0].e.ready_ns == 5 && out.colls[0].e.started_ns == 6 &&
              out.colls[0].e.done_ns == 7);
    seq = enqueue(2);
    cdi_flight_start(worker, seq);
    cdi_flight_done(worker, seq);
    cr_assert_eq(take(false, 1000, 0), 0);
    cr_assert_eq(take(false, 1000, TRACE_SETTLE_NS), 1);
    seq = enqueue(2);
    cdi_flight_start(worker, seq);
    cdi_flight_done(worker, seq);
    cr_assert_eq(take(true, 1000, 0), 1, "the last ones of a rank");
    cr_assert_eq(out.n_lost, 0);
    end();
}

Test(trace_collect, room_leaves_the_rest_for_later)
{
    begin();
    run(10);
    steps(0, 5);
    cr_assert_eq(take(false, 4, 0), 4);
    cr_assert_eq(out.n_steps, 4);
    cr_assert_eq(take(false, 100, 0), 6);
    cr_assert(out.n_steps == 1 && out.n_lost == 0 && out.colls[0].e.seq == 5);
    end();
}

Test(trace_collect, counts_what_the_rings_have_lost)
{
    begin();
    run(1);
    steps(0, 1);
    cr_assert_eq(take(false, 1000, 0), 1);
    run(CDI_FLIGHT_RING + 44);
    steps(1, CDI_FLIGHT_STEPS + 6);
    cr_assert_eq(take(false, 1000, 0), CDI_FLIGHT_RING);
    cr_assert_eq(out.n_steps, CDI_FLIGHT_STEPS);
    cr_assert_eq(out.n_lost, 44 + 6);
    end();
}

Test(trace_collect, first_step_after_a_checkpoint_counts_as_no_loss)
{
    begin();
    steps(4000, 2);
    (void)take(false, 1000, 0);
    cr_assert(out.n_steps == 2 && out.n_lost == 0 && out.steps[0].s.step == 4000);
    end();
}

Test(trace_collect, reports_a_lasting_collective_once_before_its_end)
{
    uint64_t seq;

    begin();
    run(1);
    seq = enqueue(0);
    (void)enqueue(1);
    cr_assert_eq(take(false, 1000, 0), 1);
    cr_assert_eq(take(false, 1000, 0), 0, "it has not started");
    cdi_flight_start(worker, seq);
    cr_assert_eq(take(false, 1000, 0), 0, "it may end soon");
    cr_assert_eq(take(false, 1000, TRACE_OPEN_NS + 1), 1);
    cr_assert(out.colls[0].e.seq == seq && out.colls[0].e.done_ns == 0 && out.colls[0].e.started_ns > 0);
    cr_assert_eq(take(false, 1000, TRACE_OPEN_NS + 1), 0, "once");
    (void)cdi_flight_end(worker, seq, 1, 0);
    cr_assert_eq(take(false, 1000, 0), 1);
    cr_assert(out.colls[0].e.seq == seq && out.colls[0].e.done_ns != 0 && out.n_lost == 0);
    end();
}

Test(trace_collect, ended_rank_leaves_its_unfinished_collective)
{
    begin();
    run(2);
    cdi_flight_start(worker, enqueue(0));
    (void)enqueue(1);
    cr_assert_eq(take(true, 1000, 0), 3);
    cr_assert(out.colls[2].e.seq == 3 && out.colls[2].e.done_ns == 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(take(true, 1000, 0), 0);
    cr_assert(cursor.over);
    end();
}

Test(trace_collect, checkpoints_are_events)
{
    begin();
    cdi_flight_mark(worker, CDI_MARK_SAVE, 40, 1000000000, 2500000000);
    cdi_flight_mark(worker, CDI_MARK_LOAD, 0, 3000000000, 3004000000);
    out.n_events = 0;
    (void)take(false, 100, 0);
    cr_assert_eq(out.n_events, 2);
    cr_assert(out.events[0].rank == 5 && out.events[0].time_ns == 2500000000);
    cr_assert_str_eq(out.events[0].kind, "checkpoint");
    cr_assert_str_eq(out.events[0].text, "save of step 40, 1500 ms");
    cr_assert_str_eq(out.events[1].text, "load, 4 ms");
    out.n_events = 0;
    (void)take(false, 100, 0);
    cr_assert_eq(out.n_events, 0, "once");
    for (int i = 0; i < CDI_FLIGHT_MARKS + 3; i++)
        cdi_flight_mark(worker, CDI_MARK_WAIT, 0, 1, 2);
    (void)take(false, 100, 0);
    cr_assert(out.n_events == CDI_FLIGHT_MARKS && out.n_lost == 3);
    end();
}

/* The page is the worker's memory. */
Test(trace_collect, nonsense_in_a_page_makes_a_valid_frame)
{
    struct cdi_records back;
    char *text;
    size_t len;

    begin();
    run(1);
    cdi_flight_step_done(worker, &(struct cdi_flight_step){.step = 0,
                                                           .begun_ns = -5,
                                                           .end_ns = INT64_MAX,
                                                           .comm_ns = INT64_MIN,
                                                           .late_ns = INT64_MAX,
                                                           .late_rank = INT32_MIN,
                                                           .n_buckets = UINT32_MAX});
    (void)take(false, 10, 0);
    cr_assert(out.n_steps == 1 && out.n_colls == 1);
    out.colls[0].e.count = UINT64_MAX;
    out.colls[0].e.op = UINT32_MAX;
    out.node_rank = 0;
    text = cdi_records_encode(&out, &len);
    cr_assert_eq(cdi_records_decode(text, len, &back, NULL), CDDP_OK, "%s", text);
    cr_assert(back.steps[0].s.late_rank == -1 && back.steps[0].s.begun_ns == 0 && back.steps[0].s.end_ns == 0);
    free(text);
    cdi_records_release(&back);
    end();
}

Test(trace_collect, interval_follows_the_ring)
{
    int64_t ms = TRACE_INTERVAL_MAX_MS;

    for (int i = 0; i < 10; i++)
        ms = trace_interval_ms(ms, 900);
    cr_assert_eq(ms, TRACE_INTERVAL_MIN_MS);
    cr_assert_eq(trace_interval_ms(40, 300), 40);
    cr_assert_eq(trace_interval_ms(TRACE_INTERVAL_MAX_MS, 1000), TRACE_INTERVAL_MIN_MS, "records may be lost");
    for (int i = 0; i < 10; i++)
        ms = trace_interval_ms(ms, 0);
    cr_assert_eq(ms, TRACE_INTERVAL_MAX_MS);
    begin();
    run(CDI_FLIGHT_RING / 2);
    out.n_colls = 0;
    cr_assert_eq(trace_collect(&cursor, &(struct trace_source){.page = page, .room = 1000}, &out), 500);
    run(3 * CDI_FLIGHT_RING);
    cr_assert_eq(trace_collect(&cursor, &(struct trace_source){.page = page, .room = 1000}, &out), 1000);
    steps(0, CDI_FLIGHT_STEPS / 4);
    cr_assert_eq(trace_collect(&cursor, &(struct trace_source){.page = page, .room = 1000}, &out), 250);
    end();
}
