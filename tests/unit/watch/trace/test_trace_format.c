/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a trace: what they say, that slices nest, that clocks are stated, and that losses are counted. */
#include "watch/trace/trace_format.h"

#include "hygiene.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

CDI_SUITE(trace_format);

static struct trace_format *format;
static struct cdi_buf out;
static struct cdi_records r;
static const struct trace_clock same = {.known = true};

static void begin(void)
{
    cr_assert_eq(trace_format_create(&format, "job \"1\"", NULL), CDDP_OK);
    cdi_buf_init(&out, 1 << 20);
    cr_assert_eq(cdi_records_init(&r, NULL), CDDP_OK);
    r.node_rank = 1;
    (void)snprintf(r.host, sizeof r.host, "node1");
    trace_format_head(format, &out);
}

/* Adds what is in r, and empties it. */
static void add(const struct trace_clock *clock)
{
    trace_format_records(format, &r, clock, &out);
    r.n_before += cdi_records_count(&r);
    r.n_colls = r.n_steps = r.n_events = 0;
}

static void coll(int32_t rank, uint64_t seq, int64_t begin_us, int64_t end_us)
{
    r.colls[r.n_colls++] = (struct cdi_record_coll){.rank = rank,
                                                    .name = -1,
                                                    .e = {.seq = seq,
                                                          .op = CDI_FLIGHT_ALL_REDUCE,
                                                          .dtype = 8,
                                                          .count = 1000,
                                                          .bucket = -1,
                                                          .late_rank = -1,
                                                          .enqueued_ns = begin_us * 1000,
                                                          .started_ns = begin_us * 1000,
                                                          .done_ns = end_us * 1000}};
}

static void event(const char *kind, int32_t rank, int64_t at_us, const char *text)
{
    struct cdi_record_event *e = &r.events[r.n_events++];

    *e = (struct cdi_record_event){.time_ns = at_us * 1000, .rank = rank};
    (void)snprintf(e->kind, sizeof e->kind, "%s", kind);
    (void)snprintf(e->text, sizeof e->text, "%s", text);
}

static const char *text_of(json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));

    return text == NULL ? "" : text;
}

static double number_of(json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);

    cr_assert(json_is_number(v), "%s", name);
    return json_number_value(v);
}

/* Completes the trace, and returns it as JSON. */
static json_t *finish(void)
{
    json_error_t why;
    json_t *root;

    trace_format_tail(format, &out);
    root = json_loadb((const char *)cdi_buf_data(&out), out.len, 0, &why);
    cr_assert_not_null(root, "%s at %d", why.text, why.position);
    cr_assert(json_is_array(root));
    return root;
}

static void end(json_t *root)
{
    json_decref(root);
    trace_format_destroy(format);
    cdi_buf_release(&out);
    cdi_records_release(&r);
}

/* Returns the i-th event of this phase and name. */
static json_t *find(json_t *root, const char *phase, const char *name, size_t nth)
{
    for (size_t i = 0; i < json_array_size(root); i++) {
        json_t *e = json_array_get(root, i);

        if (strcmp(text_of(e, "ph"), phase) == 0 && strcmp(text_of(e, "name"), name) == 0 && nth-- == 0)
            return e;
    }
    return NULL;
}

static size_t count(json_t *root, const char *phase, const char *name)
{
    size_t n = 0;

    while (find(root, phase, name, n) != NULL)
        n++;
    return n;
}

Test(trace_format, names_nodes_and_ranks)
{
    json_t *root, *e;

    begin();
    coll(6, 1, 10, 20);
    add(&same);
    root = finish();
    e = find(root, "M", "process_name", 0);
    cr_assert_str_eq(text_of(json_object_get(e, "args"), "name"), "job job \"1\"");
    e = find(root, "M", "process_name", 1);
    cr_assert_str_eq(text_of(json_object_get(e, "args"), "name"), "node 1 (node1)");
    cr_assert_eq(number_of(e, "pid"), 2);
    e = find(root, "M", "thread_name", 3);
    cr_assert_str_eq(text_of(json_object_get(e, "args"), "name"), "rank 6 collectives");
    cr_assert_eq(number_of(find(root, "X", "all_reduce", 0), "tid"), number_of(e, "tid"));
    end(root);
}

Test(trace_format, collective_tells_what_is_known)
{
    json_t *root, *e, *args;

    begin();
    r.round = 2;
    r.n_names = 1;
    (void)snprintf(r.names[0], sizeof r.names[0], "layer1.\"w\"\\\n\xff");
    coll(6, 41, 1000, 1500);
    r.colls[0].name = 0;
    r.colls[0].e.bucket = 3;
    r.colls[0].e.late_rank = 2;
    r.colls[0].e.arrived_ns = 1400000;
    r.colls[0].e.enqueued_ns = 900000;
    r.colls[0].e.ready_ns = 890000;
    add(&same);
    root = finish();
    e = find(root, "X", "all_reduce", 0);
    args = json_object_get(e, "args");
    cr_assert(number_of(e, "ts") == 1000 && number_of(e, "dur") == 500);
    cr_assert(number_of(args, "seq") == 41 && number_of(args, "bytes") == 4000 && number_of(args, "round") == 2);
    cr_assert(number_of(args, "bucket") == 3 && number_of(args, "late_rank") == 2);
    cr_assert(number_of(args, "queued_us") == 100 && number_of(args, "launch_us") == 10);
    cr_assert_str_eq(text_of(args, "parameters"), "layer1.\"w\"\\\n?");
    e = find(root, "X", "wait for the last rank", 0);
    cr_assert(number_of(e, "ts") == 1000 && number_of(e, "dur") == 400);
    cr_assert_eq(number_of(json_object_get(e, "args"), "late_rank"), 2);
    end(root);
}

Test(trace_format, the_late_rank_itself_has_not_waited)
{
    json_t *root;

    begin();
    coll(6, 1, 10, 20);
    r.colls[0].e.late_rank = 6;
    r.colls[0].e.arrived_ns = 15000;
    add(&same);
    root = finish();
    cr_assert_null(find(root, "X", "wait for the last rank", 0));
    end(root);
}

Test(trace_format, slices_of_a_track_do_not_overlap)
{
    json_t *root;
    double at = 0;

    begin();
    coll(0, 1, 10, 20);
    coll(0, 2, 18, 30); /* began before the one before it ended, as in coarse clocks */
    coll(0, 3, 25, 22); /* ends before it begins */
    coll(0, 4, 40, 50);
    r.colls[3].e.started_ns = 0;
    r.colls[3].e.enqueued_ns = 15000; /* waited for the others */
    for (uint64_t i = 0; i < 3; i++)
        r.steps[r.n_steps++] = (struct cdi_record_step){
            .rank = 0, .s = {.step = i, .begun_ns = 10000 * (int64_t)i, .end_ns = 10000 * (int64_t)i + 12000}};
    add(&same);
    root = finish();
    for (size_t i = 0; i < 4; i++) {
        json_t *e = find(root, "X", "all_reduce", i);

        cr_assert_geq(number_of(e, "ts"), at);
        at = number_of(e, "ts") + number_of(e, "dur");
    }
    cr_assert_eq(at, 50);
    cr_assert_eq(number_of(find(root, "X", "step 1", 0), "ts"), 12.002);
    cr_assert_eq(number_of(find(root, "X", "step 1", 0), "dur"), 9.998);
    end(root);
}

Test(trace_format, collective_that_lasts_begins_at_once_and_ends_later)
{
    json_t *root, *e;

    begin();
    coll(0, 7, 10, 0);
    add(&same);
    coll(0, 7, 10, 5000);
    r.colls[0].e.late_rank = 3;
    r.colls[0].e.arrived_ns = 4990000;
    coll(0, 8, 5010, 5020);
    add(&same);
    root = finish();
    e = find(root, "B", "all_reduce", 0);
    cr_assert(e != NULL && number_of(e, "ts") == 10 &&
              json_is_true(json_object_get(json_object_get(e, "args"), "unfinished")));
    cr_assert_eq(count(root, "E", ""), 1);
    cr_assert_eq(number_of(find(root, "E", "", 0), "ts"), 5000);
    cr_assert_eq(number_of(find(root, "X", "wait for the last rank", 0), "dur"), 4980);
    cr_assert_eq(count(root, "X", "all_reduce"), 1);
    end(root);
}

Test(trace_format, unfinished_collectives_are_closed)
{
    json_t *root;

    begin();
    coll(0, 1, 10, 0); /* its rank ends */
    coll(1, 1, 11, 0); /* its round ends */
    coll(2, 5, 12, 0); /* its end was lost, and the next one comes */
    add(&same);
    event("ended", 0, 100, "SIGKILL");
    coll(2, 7, 200, 210);
    add(&same);
    r.round = 1;
    coll(1, 1, 300, 0); /* the trace ends */
    coll(0, 1, 310, 320);
    add(&same);
    root = finish();
    cr_assert_eq(count(root, "B", "all_reduce"), 4);
    cr_assert_eq(count(root, "E", ""), 4);
    cr_assert_eq(number_of(find(root, "E", "", 0), "ts"), 200, "collectives come before events");
    cr_assert_eq(number_of(find(root, "E", "", 1), "ts"), 100);
    cr_assert_eq(number_of(find(root, "E", "", 3), "ts"), 320);
    end(root);
}

Test(trace_format, rounds_are_slices_and_failures_are_marks)
{
    json_t *root, *e;

    begin();
    event("round", -1, 10, "nodes: 2");
    event("failure", 3, 50, "rank 3 (pid 77) was killed");
    event("over", -1, 60, "");
    event("restart", -1, 61, "rank 3");
    r.round = 0;
    add(&same);
    r.round = 1;
    event("round", -1, 70, "nodes: 2");
    event("started", 3, 72, "pid 78");
    add(&same);
    root = finish();
    cr_assert_eq(number_of(find(root, "B", "round 0", 0), "ts"), 10);
    cr_assert_eq(number_of(find(root, "B", "round 1", 0), "ts"), 70);
    cr_assert(number_of(find(root, "E", "", 0), "ts") == 60 && count(root, "E", "") == 2);
    e = find(root, "i", "failure", 0);
    cr_assert(strcmp(text_of(e, "s"), "g") == 0 && number_of(json_object_get(e, "args"), "rank") == 3);
    cr_assert_str_eq(text_of(json_object_get(e, "args"), "text"), "rank 3 (pid 77) was killed");
    e = find(root, "i", "started", 0);
    cr_assert(strcmp(text_of(e, "s"), "t") == 0 && number_of(e, "pid") == 2);
    end(root);
}

Test(trace_format, times_are_shifted_and_the_bound_is_stated)
{
    struct trace_clock clock = {.known = true, .shift_ns = -5000000, .bound_ns = 40000};
    json_t *root, *args;
    size_t n_unknown;

    begin();
    coll(0, 1, 6000, 6100);
    add(&clock);
    clock.shift_ns -= 30000; /* the old shift is still possible: times do not jump */
    coll(0, 2, 6200, 6300);
    add(&clock);
    cr_assert_eq(trace_format_bound_ns(format, &n_unknown), 70000);
    cr_assert_eq(n_unknown, 0);
    clock.shift_ns -= 1000000;
    clock.bound_ns = 10000;
    coll(0, 3, 7400, 7500);
    add(&clock);
    clock.known = false; /* stays as it was */
    coll(0, 4, 7600, 7700);
    add(&clock);
    root = finish();
    cr_assert_eq(number_of(find(root, "X", "all_reduce", 0), "ts"), 1000);
    cr_assert_eq(number_of(find(root, "X", "all_reduce", 1), "ts"), 1200);
    cr_assert_eq(number_of(find(root, "X", "all_reduce", 2), "ts"), 1370);
    cr_assert_eq(number_of(find(root, "X", "all_reduce", 3), "ts"), 1570);
    cr_assert_eq(count(root, "i", "clock"), 2, "the first, and the one that contradicts it");
    args = json_object_get(find(root, "i", "clock", 0), "args");
    cr_assert(number_of(args, "shift_ns") == -5000000 && number_of(args, "error_bound_ns") == 40000);
    cr_assert_str_eq(text_of(json_object_get(find(root, "M", "process_labels", 0), "args"), "labels"),
                     "clock within 40 us");
    end(root);
}

Test(trace_format, unknown_clock_is_stated)
{
    const struct trace_clock none = {.known = false};
    json_t *root;
    size_t n_unknown;

    begin();
    coll(0, 1, 6000, 6100);
    add(&none);
    coll(0, 2, 6200, 6300);
    add(&none);
    (void)trace_format_bound_ns(format, &n_unknown);
    cr_assert_eq(n_unknown, 1);
    root = finish();
    cr_assert_eq(count(root, "M", "process_labels"), 1);
    cr_assert_str_eq(text_of(json_object_get(find(root, "M", "process_labels", 0), "args"), "labels"),
                     "clock not aligned");
    end(root);
}

Test(trace_format, losses_are_counted_and_marked)
{
    json_t *root;

    begin();
    r.n_before = 100; /* an agent that has traced before: not a loss */
    coll(0, 1, 10, 20);
    add(&same);
    r.n_before += 5; /* a dropped frame */
    r.n_lost = 3;    /* lost by the page */
    coll(0, 2, 30, 40);
    add(&same);
    cr_assert_eq(trace_format_lost(format), 8);
    cr_assert_eq(trace_format_written(format), 2);
    root = finish();
    cr_assert_eq(number_of(json_object_get(find(root, "i", "lost records", 0), "args"), "count"), 8);
    cr_assert_eq(number_of(json_object_get(find(root, "M", "trace", 0), "args"), "lost"), 8);
    end(root);
}

Test(trace_format, full_buffer_loses_whole_lines)
{
    begin();
    cdi_buf_release(&out);
    cdi_buf_init(&out, 2000);
    trace_format_head(format, &out);
    for (int i = 0; i < 200; i++)
        coll(0, (uint64_t)i + 1, 10 * i, 10 * i + 5);
    add(&same);
    cr_assert_gt(trace_format_lost(format), 100);
    cr_assert_eq(memcmp(cdi_buf_data(&out) + out.len - 2, ",\n", 2), 0);
    end(NULL);
}

Test(trace_format, new_file_names_everything_again)
{
    json_t *root;

    begin();
    coll(4, 1, 10, 20);
    add(&same);
    cdi_buf_consume(&out, out.len);
    trace_format_head(format, &out);
    coll(4, 2, 30, 40);
    add(&same);
    root = finish();
    cr_assert_not_null(find(root, "M", "process_name", 1));
    cr_assert_eq(count(root, "M", "thread_name"), 4);
    cr_assert_eq(count(root, "i", "clock"), 1);
    end(root);
}
