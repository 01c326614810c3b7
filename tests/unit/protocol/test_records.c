/* SPDX-License-Identifier: Apache-2.0 */
/* Records of a trace: from the struct to JSON and back, limits, JSON that is not such records, and questions of clocks.
 */
#include "protocol/records.h"

#include "hygiene.h"

#include <string.h>

CDI_SUITE(records);

static struct cdi_records some(void)
{
    struct cdi_records r;

    cr_assert_eq(cdi_records_init(&r, NULL), CDDP_OK);
    r.round = 3;
    r.node_rank = 1;
    (void)snprintf(r.host, sizeof r.host, "node1");
    r.clock_of = 77;
    r.offset_ns = -5000000000000;
    r.bound_ns = 35000;
    r.n_before = 10;
    r.n_lost = 2;
    r.n_names = 1;
    (void)snprintf(r.names[0], sizeof r.names[0], "layer1.weight \"x\"");
    r.n_colls = 2;
    r.colls[0] = (struct cdi_record_coll){.rank = 2,
                                          .name = 0,
                                          .e = {.seq = 1ULL << 40,
                                                .op = CDI_FLIGHT_ALL_REDUCE,
                                                .dtype = 8,
                                                .count = 1000,
                                                .bucket = 4,
                                                .late_rank = 3,
                                                .enqueued_ns = 1000000000000,
                                                .started_ns = 1000000000001,
                                                .done_ns = 1000000500000,
                                                .ready_ns = 999999999999,
                                                .arrived_ns = 1000000400000}};
    r.colls[1] = (struct cdi_record_coll){
        .rank = 3, .name = -1, .e = {.seq = 9, .bucket = -1, .late_rank = -1, .enqueued_ns = 1000000000100}};
    r.n_steps = 1;
    r.steps[0] = (struct cdi_record_step){.rank = 2,
                                          .s = {.step = 41,
                                                .begun_ns = 1,
                                                .end_ns = 1000000600000,
                                                .comm_ns = 7,
                                                .exposed_ns = 5,
                                                .late_ns = 3,
                                                .late_rank = 0,
                                                .n_buckets = 12}};
    r.n_events = 1;
    r.events[0] =
        (struct cdi_record_event){.time_ns = 1000000700000, .rank = -1, .kind = "failure", .text = "rank 3 \xff"};
    return r;
}

static cddp_status decode(const char *text, struct cdi_records *out)
{
    return cdi_records_decode(text, strlen(text), out, NULL);
}

Test(records, survive_encoding)
{
    struct cdi_records r = some(), back;
    size_t len;
    char *text = cdi_records_encode(&r, &len);

    cr_assert_not_null(text);
    cr_assert_eq(cdi_records_decode(text, len, &back, NULL), CDDP_OK, "%s", text);
    cr_assert(back.round == 3 && back.node_rank == 1 && back.clock_of == 77 && back.n_before == 10 && back.n_lost == 2);
    cr_assert(back.offset_ns == -5000000000000 && back.bound_ns == 35000);
    cr_assert_str_eq(back.host, "node1");
    cr_assert(back.n_colls == 2 && back.n_steps == 1 && back.n_events == 1 && back.n_names == 1);
    cr_assert_eq(memcmp(back.colls, r.colls, 2 * sizeof *r.colls), 0);
    cr_assert_eq(memcmp(back.steps, r.steps, sizeof *r.steps), 0);
    cr_assert_str_eq(back.names[0], r.names[0]);
    cr_assert(back.events[0].time_ns == 1000000700000 && back.events[0].rank == -1);
    cr_assert_str_eq(back.events[0].kind, "failure");
    cr_assert_str_eq(back.events[0].text, "rank 3 ?", "invalid UTF-8 is replaced");
    cr_assert_eq(cdi_records_count(&back), 4);
    free(text);
    cdi_records_release(&r);
    cdi_records_release(&back);
}

Test(records, full_frame_is_below_the_limits_of_the_relay)
{
    struct cdi_records r = some();
    size_t len;
    char *text;

    r.n_colls = r.n_steps = 700;
    for (size_t i = 1; i < 700; i++) {
        r.colls[i] = r.colls[0];
        r.colls[i].e.enqueued_ns += (int64_t)i * 250000;
        r.steps[i] = r.steps[0];
    }
    text = cdi_records_encode(&r, &len);
    cr_assert_not_null(text);
    cr_assert_lt(len, 256 * 1024, "%zu bytes", len);
    free(text);
    cdi_records_release(&r);
}

/* The text of some(), with one part replaced. */
static cddp_status decode_changed(const char *old, const char *new)
{
    struct cdi_records r = some(), back = {0};
    char *text, *at, changed[4096];
    cddp_status st;
    size_t len;

    text = cdi_records_encode(&r, &len);
    cr_assert_not_null(text);
    at = strstr(text, old);
    cr_assert_not_null(at, "no %s in %s", old, text);
    (void)snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    st = decode(changed, &back);
    if (st == CDDP_OK)
        cdi_records_release(&back);
    cr_assert_null(back.colls);
    free(text);
    cdi_records_release(&r);
    return st;
}

Test(records, reject_numbers_out_of_range)
{
    static const char *const changes[][2] = {
        {"\"round\":3", "\"round\":-1"},
        {"\"round\":3", "\"round\":4294967296"},
        {"\"round\":3", "\"round\":\"3\""},
        {"\"node_rank\":1", "\"node_rank\":-1"},
        {"\"node_rank\":1,", ""},
        {"\"host\":\"node1\"", "\"host\":7"},
        {"\"bound\":35000", "\"bound\":-1"},
        {"\"base\":1000000000000", "\"base\":-1"},
        {"\"base\":1000000000000", "\"base\":9223372036854775807"},
        {"[[2,0,", "[[-1,0,"}, /* a collective without a rank */
        {"[[2,0,", "[[2,1,"},  /* no such name */
        {"[[2,0,", "[[2,-2,"},
        {"[[2,0,", "[[2.5,0,"},
        {",8,1000,4,3,", ",8,-1,4,3,"},         /* a negative count */
        {",8,1000,4,3,", ",8,1000,4,"},         /* too few numbers */
        {",500000,-1,", ",-1000000000001,-1,"}, /* a time before 0 */
        {",500000,-1,", ",3000000000000000000,-1,"},
        {"\"failure\"", "7"},
        {"\"failure\"", "\"a word that is too long for a kind of event\""},
        {"\"layer1.weight", "7,\"layer1.weight"},
    };

    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        cr_assert_eq(decode_changed(changes[i][0], changes[i][1]), CDDP_E_PROTOCOL, "%s -> %s", changes[i][0],
                     changes[i][1]);
    cr_assert_eq(decode_changed("\"round\":3", "\"round\":3,\"newer\":[1]"), CDDP_OK);
}

Test(records, reject_other_texts)
{
    static const char *const texts[] = {"", "7", "[]", "{}", "null", "{\"round\":0}", "{\"round\":"};
    struct cdi_records r;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cr_assert_eq(decode(texts[i], &r), CDDP_E_PROTOCOL, "%s", texts[i]);
}

Test(records, reject_too_many)
{
    struct cdi_records r = some(), back;
    struct cdi_record_event *events = calloc(CDI_RECORDS_EVENTS_MAX + 1, sizeof *events);
    size_t len;
    char *text;

    free(r.events);
    r.events = events;
    r.n_events = CDI_RECORDS_EVENTS_MAX + 1;
    text = cdi_records_encode(&r, &len);
    cr_assert_eq(cdi_records_decode(text, len, &back, NULL), CDDP_E_LIMIT);
    free(text);
    cdi_records_release(&r);
}

Test(records, clock_question_and_answer)
{
    const struct cdi_clock_time t = {.asked_ns = 123456789012345, .time_ns = 98765, .of = 7};
    struct cdi_clock_time back;
    char text[CDI_CLOCK_TEXT];
    int64_t asked;
    size_t len = cdi_clock_encode_ask(t.asked_ns, text);

    cr_assert(cdi_clock_decode_ask(text, len, &asked) && asked == t.asked_ns);
    cr_assert_not(cdi_clock_decode_time(text, len, &back), "a question is not an answer");
    len = cdi_clock_encode_time(&t, text);
    cr_assert(cdi_clock_decode_time(text, len, &back));
    cr_assert(back.asked_ns == t.asked_ns && back.time_ns == t.time_ns && back.of == 7);
    cr_assert_not(cdi_clock_decode_ask("{\"asked\":-1}", 12, &asked));
    cr_assert_not(cdi_clock_decode_ask("[]", 2, &asked));
    cr_assert_not(cdi_clock_decode_time("{\"asked\":1,\"time\":1,\"of\":0}", 27, &back));
}
