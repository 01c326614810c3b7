/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a trace through the server: to node rank 0 only, within bounds, and answers about the clock. */
#include "rendezvous/view/relay.h"

#include "common/clock.h"
#include "hygiene.h"
#include "protocol/bulk.h"
#include "protocol/frame.h"
#include "protocol/records.h"

#include <string.h>

CDI_SUITE(relay);

struct agent {
    struct cdi_buf got, in;
    uint32_t peer;
};

static struct session *s;
static struct relay relay;
static size_t queued;

static void on_send(void *conn, const void *bytes, size_t len)
{
    (void)cdi_buf_append(&((struct agent *)conn)->got, bytes, len);
}

static void on_close(void *conn, const char *why)
{
    (void)conn;
    cr_assert_fail("closed: %s", why);
}

static void on_rename(void *conn, uint32_t peer)
{
    ((struct agent *)conn)->peer = peer;
}

static void on_end_keys(void *arg)
{
    (void)arg;
}

static void on_random(void *bytes, size_t len)
{
    memset(bytes, 7, len);
}

static void on_bulk(void *arg, uint32_t peer, uint16_t type, const void *payload, size_t len)
{
    (void)arg;
    relay_on_bulk(&relay, peer, type, payload, len);
}

static size_t on_queued(void *conn)
{
    (void)conn;
    return queued;
}

static void tell(struct agent *a, const struct cdi_msg *m)
{
    cr_assert_eq(cdi_msg_encode(m, &a->in, NULL), CDDP_OK);
    cr_assert_eq(session_feed(s, a->peer, &a->in, 0, 0, NULL), CDDP_OK);
}

static void send_bulk(struct agent *a, uint16_t type, const void *payload, size_t len)
{
    cr_assert_eq(cdi_frame_put(&a->in, type, payload, len), CDDP_OK);
    cr_assert_eq(session_feed(s, a->peer, &a->in, 0, 0, NULL), CDDP_OK);
}

static void join(struct agent *a, int32_t node_rank)
{
    struct cdi_msg m = {.type = CDI_MSG_JOIN,
                        .u.join = {.version = 1,
                                   .run_id = "job",
                                   .host = "h",
                                   .node_rank = node_rank,
                                   .n_procs = 1,
                                   .min_nodes = 2,
                                   .max_nodes = 2,
                                   .max_restarts = 1,
                                   .round = -1}};

    *a = (struct agent){0};
    cdi_buf_init(&a->got, 0);
    cdi_buf_init(&a->in, 0);
    cr_assert_eq(session_attach(s, a, 0, &a->peer), CDDP_OK);
    tell(a, &m);
}

/* The node of rank 1 joins first. */
static void begin(struct agent *zero, struct agent *one)
{
    const struct session_ops ops = {.send = on_send,
                                    .close_conn = on_close,
                                    .renumber = on_rename,
                                    .end_keys = on_end_keys,
                                    .random = on_random,
                                    .bulk = on_bulk,
                                    .queued = on_queued};
    const struct session_options opt = {
        .round = {.run_id = "job", .min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .join_timeout_ms = 60000},
        .lease_ms = 15000,
        .hello_ms = 5000};

    queued = 0;
    cr_assert_eq(session_create(&s, &opt, &ops, 0, NULL), CDDP_OK);
    relay_init(&relay, s, cdi_now_ns());
    join(one, 1);
    send_bulk(one, CDI_BULK_RECORDS, "{}", 2);
    cr_assert(relay.n_dropped == 1 && relay.n_passed == 0, "no round runs");
    join(zero, 0);
}

static void end(struct agent *zero, struct agent *one)
{
    session_destroy(s);
    cdi_buf_release(&zero->got);
    cdi_buf_release(&zero->in);
    cdi_buf_release(&one->got);
    cdi_buf_release(&one->in);
}

/* Returns the next bulk frame to this agent; false: there is none. */
static bool hear(struct agent *a, struct cdi_frame *f, char *payload, size_t cap)
{
    while (cdi_frame_next(&a->got, f, NULL) == CDDP_OK) {
        (void)snprintf(payload, cap, "%.*s", (int)f->len, (const char *)f->payload);
        cdi_buf_consume(&a->got, f->size);
        if (cdi_bulk_is(f->type))
            return true;
    }
    return false;
}

Test(relay, passes_records_on_to_node_0_unread)
{
    struct agent zero, one;
    struct cdi_frame f;
    char text[64];

    begin(&zero, &one);
    send_bulk(&one, CDI_BULK_RECORDS, "anything", 8);
    cr_assert(hear(&zero, &f, text, sizeof text) && f.type == CDI_BULK_RECORDS);
    cr_assert_str_eq(text, "anything");
    cr_assert_not(hear(&one, &f, text, sizeof text));
    send_bulk(&zero, CDI_BULK_RECORDS, "own", 3);
    cr_assert_not(hear(&zero, &f, text, sizeof text), "never back to its sender");
    cr_assert_eq(relay.n_passed, 1);
    end(&zero, &one);
}

/* A restart: node 0 has stopped, and the last records of the round still arrive. */
Test(relay, node_0_gets_records_between_rounds)
{
    struct agent zero, one;
    struct cdi_frame f;
    char text[64];
    struct cdi_msg failed = {.type = CDI_MSG_FAILED};

    begin(&zero, &one);
    failed.u.failed.failure.kind = CDI_END_EXIT;
    failed.u.failed.failure.code = 7;
    tell(&one, &failed);
    tell(&zero, &(struct cdi_msg){.type = CDI_MSG_STOPPED});
    send_bulk(&one, CDI_BULK_RECORDS, "last", 4);
    cr_assert(hear(&zero, &f, text, sizeof text));
    cr_assert_str_eq(text, "last");
    end(&zero, &one);
}

Test(relay, drops_what_node_0_does_not_read)
{
    static char large[RELAY_FRAME_MAX + 1];
    struct agent zero, one;
    struct cdi_frame f;
    char text[64];

    begin(&zero, &one);
    queued = RELAY_QUEUE_MAX;
    send_bulk(&one, CDI_BULK_RECORDS, "x", 1);
    cr_assert_not(hear(&zero, &f, text, sizeof text));
    cr_assert_eq(relay.n_dropped, 2);
    queued = 0;
    send_bulk(&one, CDI_BULK_RECORDS, large, sizeof large);
    cr_assert_not(hear(&zero, &f, text, sizeof text));
    cr_assert_eq(relay.n_dropped, 3);
    send_bulk(&one, CDI_BULK_RECORDS, large, sizeof large - 1);
    cr_assert(hear(&zero, &f, text, sizeof text));
    end(&zero, &one);
}

Test(relay, answers_clock)
{
    char text[CDI_CLOCK_TEXT];
    struct cdi_clock_time t;
    struct agent zero, one;
    struct cdi_frame f;
    int64_t before = cdi_now_ns();

    begin(&zero, &one);
    send_bulk(&one, CDI_BULK_CLOCK, text, cdi_clock_encode_ask(1234, text));
    cr_assert(hear(&one, &f, text, sizeof text) && f.type == CDI_BULK_TIME);
    cr_assert(cdi_clock_decode_time(text, strlen(text), &t));
    cr_assert(t.asked_ns == 1234 && t.of == relay.clock && t.of != 0 && t.time_ns >= before &&
              t.time_ns <= cdi_now_ns());
    send_bulk(&one, CDI_BULK_CLOCK, "nonsense", 8);
    cr_assert_not(hear(&one, &f, text, sizeof text));
    end(&zero, &one);
}
