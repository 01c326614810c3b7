/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a trace through the server: to node rank 0 only, within bounds, and answers about the clock. */
#include "rendezvous/view/relay.h"

#include "common/clock.h"
#include "hygiene.h"
#include "protocol/records.h"
#include "two_nodes.h"

#include <string.h>

CDI_SUITE(relay);

static struct session *s;
static struct relay relay;
static size_t queued;

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

static void tell(struct two_nodes_agent *a, const struct cdi_msg *m)
{
    two_nodes_tell(s, a, m, 0);
}

static void send_bulk(struct two_nodes_agent *a, uint16_t type, const void *payload, size_t len)
{
    two_nodes_send(s, a, type, payload, len, 0);
}

/* The node of rank 1 joins first. */
static void begin(struct two_nodes_agent *zero, struct two_nodes_agent *one)
{
    queued = 0;
    s = two_nodes_session(on_bulk, on_queued);
    relay_init(&relay, s, cdi_now_ns());
    two_nodes_join(s, one, 1, 1, NULL);
    send_bulk(one, CDI_BULK_RECORDS, "{}", 2);
    cr_assert(relay.n_dropped == 1 && relay.n_passed == 0, "no round runs");
    two_nodes_join(s, zero, 0, 1, NULL);
}

static void end(struct two_nodes_agent *zero, struct two_nodes_agent *one)
{
    session_destroy(s);
    two_nodes_release(zero);
    two_nodes_release(one);
}

/* Returns the next bulk frame to this agent; false: there is none. */
static bool hear(struct two_nodes_agent *a, struct cdi_frame *f, char *payload, size_t cap)
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
    struct two_nodes_agent zero, one;
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
    struct two_nodes_agent zero, one;
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
    struct two_nodes_agent zero, one;
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
    struct two_nodes_agent zero, one;
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
