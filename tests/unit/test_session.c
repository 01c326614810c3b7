/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "protocol/frame.h"
#include "rendezvous/session.h"

#include <string.h>

CDI_SUITE(session);

/* An agent's connection as the session sees it. */
struct agent {
    struct cdi_buf got; /* frames for it */
    struct cdi_buf in;  /* frames of it */
    uint32_t peer;
    bool hung_up;
    char why[128];
};

static struct session *s;
static int n_ended; /* times the keys ended */
static char journal[64];

static void on_send(void *conn, const void *bytes, size_t len)
{
    struct agent *a = conn;

    (void)cdi_buf_append(&a->got, bytes, len);
    strncat(journal, "s", sizeof journal - strlen(journal) - 1);
}

static void on_hang_up(void *conn, const char *why)
{
    struct agent *a = conn;

    cr_assert(!a->hung_up);
    a->hung_up = true;
    (void)snprintf(a->why, sizeof a->why, "%s", why);
}

static void on_end_keys(void *arg)
{
    cr_assert_eq(arg, journal);
    n_ended++;
    strncat(journal, "K", sizeof journal - strlen(journal) - 1);
}

static void on_random(void *bytes, size_t len)
{
    memset(bytes, 0xab, len);
}

static void begin(uint32_t nodes, uint32_t restarts)
{
    const struct session_ops ops = {on_send, on_hang_up, on_end_keys, on_random, journal};
    const struct session_options opt = {{"job", nodes, nodes, restarts, 60000, 30000}, 15000, 5000};

    n_ended = 0;
    journal[0] = '\0';
    cr_assert_eq(session_create(&s, &opt, &ops, 0, NULL), CDDP_OK);
}

static void attach(struct agent *a, int64_t now)
{
    *a = (struct agent){0};
    cdi_buf_init(&a->got, 0);
    cdi_buf_init(&a->in, 0);
    cr_assert_eq(session_attach(s, a, now, &a->peer), CDDP_OK);
}

static void detach(struct agent *a, int64_t now)
{
    session_detach(s, a->peer, "its connection closed", now, 1000);
    cdi_buf_release(&a->got);
    cdi_buf_release(&a->in);
}

static cddp_status tell(struct agent *a, struct cdi_msg msg, int64_t now)
{
    struct cdi_error err;

    cr_assert_eq(cdi_msg_encode(&msg, &a->in, NULL), CDDP_OK);
    return session_feed(s, a->peer, &a->in, now, 1000, &err);
}

static void join(struct agent *a, uint32_t nodes, int64_t now)
{
    struct cdi_msg m = {.type = CDI_MSG_JOIN,
                        .u.join = {.version = 1, .run_id = "job", .host = "h", .node_rank = -1, .n_procs = 2}};

    m.u.join.min_nodes = m.u.join.max_nodes = nodes;
    cr_assert_eq(tell(a, m, now), CDDP_OK);
}

/* The next message that the agent got; it must be of this type. */
static struct cdi_msg hear(struct agent *a, enum cdi_msg_type type)
{
    struct cdi_frame f;
    struct cdi_msg m;
    struct cdi_error err = {0};

    cr_assert_eq(cdi_frame_next(&a->got, &f, &err), CDDP_OK, "nothing came, not %s", cdi_msg_name(type));
    cr_assert_eq(cdi_msg_decode(f.type, f.payload, f.len, &m, &err), CDDP_OK, "%s", err.msg);
    cdi_buf_consume(&a->got, f.size);
    cr_assert_eq(m.type, type, "%s came, not %s", cdi_msg_name(m.type), cdi_msg_name(type));
    return m;
}

Test(session, a_round_fails_and_the_next_one_has_fresh_keys_before_anybody_is_assigned)
{
    struct agent a, b;
    struct cdi_msg m;
    struct cdi_kv *keys;

    begin(2, 1);
    attach(&a, 0);
    attach(&b, 0);
    join(&a, 2, 0);
    m = hear(&a, CDI_MSG_WELCOME);
    cr_assert(m.u.welcome.lease_ms == 15000 && m.u.welcome.version == CDI_CONTROL_VERSION);
    cr_assert_str_eq(m.u.welcome.session, "abababababababababababababababab");
    keys = session_keys(s);
    cr_assert_not_null(keys);
    cr_assert_eq(session_keys(s), keys);
    (void)cdi_kv_set(keys, (struct cdi_c10d_bytes){(const uint8_t *)"k", 1}, (struct cdi_c10d_bytes){0}, NULL);
    join(&b, 2, 0);
    (void)hear(&b, CDI_MSG_WELCOME);
    m = hear(&b, CDI_MSG_ASSIGN);
    cr_assert(m.u.assign.node_rank == 1 && m.u.assign.rank_base == 2 && m.u.assign.world_size == 4);
    m = hear(&a, CDI_MSG_ASSIGN);
    cr_assert(m.u.assign.node_rank == 0 && m.u.assign.restart_count == 0);

    m = (struct cdi_msg){.type = CDI_MSG_FAILED, .u.failed.failure = {.kind = CDI_END_EXIT, .code = 3, .rank = 2}};
    cr_assert_eq(tell(&b, m, 1), CDDP_OK);
    m = hear(&a, CDI_MSG_ROUND_OVER);
    cr_assert(m.u.round_over.restart && m.u.round_over.failure.code == 3 && m.u.round_over.failure.rank == 2);
    m = hear(&b, CDI_MSG_ROUND_OVER);
    cr_assert_eq(m.u.round_over.failure.code, 3);
    cr_assert_eq(tell(&a, (struct cdi_msg){.type = CDI_MSG_STOPPED}, 2), CDDP_OK);
    cr_assert_eq(n_ended, 0);
    journal[0] = '\0';
    cr_assert_eq(tell(&b, (struct cdi_msg){.type = CDI_MSG_STOPPED}, 2), CDDP_OK);
    cr_assert_str_eq(journal, "Kss", "the keys end, then two assignments");
    m = hear(&b, CDI_MSG_ASSIGN);
    cr_assert(m.u.assign.round == 1 && m.u.assign.restart_count == 1 && m.u.assign.node_rank == 1);
    cr_assert_eq(cdi_kv_count(session_keys(s)), 0);

    cr_assert_eq(tell(&a, (struct cdi_msg){.type = CDI_MSG_DONE, .u.done.round = 1}, 3), CDDP_OK);
    cr_assert_eq(tell(&b, (struct cdi_msg){.type = CDI_MSG_DONE, .u.done.round = 1}, 3), CDDP_OK);
    (void)hear(&a, CDI_MSG_ASSIGN);
    cr_assert_eq(hear(&a, CDI_MSG_CLOSED).u.closed.status, CDI_CLOSE_DONE);
    cr_assert_eq(hear(&b, CDI_MSG_CLOSED).u.closed.status, CDI_CLOSE_DONE);
    cr_assert_null(session_keys(s));
    detach(&a, 4);
    detach(&b, 4);
    session_destroy(s);
}

Test(session, a_refused_agent_hears_why_and_is_hung_up_on)
{
    struct agent a;
    struct cdi_msg m;

    begin(1, 0);
    attach(&a, 0);
    join(&a, 3, 0);
    m = hear(&a, CDI_MSG_CLOSED);
    cr_assert_eq(m.u.closed.status, CDI_CLOSE_REFUSED);
    cr_assert_not_null(strstr(m.u.closed.text, "--nnodes=3:3"));
    cr_assert(a.hung_up);
    cr_assert_eq(tell(&a, (struct cdi_msg){.type = CDI_MSG_HEARTBEAT}, 1), CDDP_OK);
    cr_assert_eq(a.got.len, 0, "nothing is answered any more");
    detach(&a, 1);
    session_destroy(s);
}

Test(session, heartbeats_are_answered_and_keep_the_lease)
{
    struct agent a, b;

    begin(2, 0);
    attach(&a, 0);
    attach(&b, 0);
    join(&a, 2, 0);
    join(&b, 2, 0);
    for (int64_t now = 10000; now <= 40000; now += 10000) {
        session_tick(s, now, 0);
        cr_assert_eq(tell(&a, (struct cdi_msg){.type = CDI_MSG_HEARTBEAT, .u.heartbeat.seq = (uint32_t)now}, now),
                     CDDP_OK);
    }
    cr_assert(b.hung_up && !a.hung_up);
    cr_assert_str_eq(b.why, "nothing was heard from it for 20 s");
    (void)hear(&a, CDI_MSG_WELCOME);
    (void)hear(&a, CDI_MSG_ASSIGN);
    cr_assert_eq(hear(&a, CDI_MSG_HEARTBEAT).u.heartbeat.seq, 10000);
    cr_assert_eq(hear(&a, CDI_MSG_ROUND_OVER).u.round_over.failure.kind, CDI_END_NODE);
    detach(&b, 50000);
    detach(&a, 50000);
    cr_assert_eq(round_state(session_round(s)), ROUND_CLOSED);
    session_destroy(s);
}

Test(session, an_agent_that_never_joins_is_hung_up_on_even_if_it_chats)
{
    struct agent a;

    begin(1, 0);
    attach(&a, 0);
    cr_assert_eq(tell(&a, (struct cdi_msg){.type = CDI_MSG_HEARTBEAT}, 4000), CDDP_OK);
    session_tick(s, 4999, 0);
    cr_assert(!a.hung_up);
    session_tick(s, 5000, 0);
    cr_assert(a.hung_up);
    detach(&a, 5001);
    session_destroy(s);
}

Test(session, what_only_the_rendezvous_may_say_is_an_error)
{
    struct agent a;
    struct cdi_msg m = {.type = CDI_MSG_ASSIGN, .u.assign = {.n_nodes = 1, .world_size = 1}};

    begin(1, 0);
    attach(&a, 0);
    cr_assert_eq(tell(&a, m, 0), CDDP_E_PROTOCOL);
    (void)cdi_buf_append(&a.in, "\x02\0\0\0\x01\0\0\0{}", 10);
    cr_assert_eq(session_feed(s, a.peer, &a.in, 0, 0, NULL), CDDP_E_PROTOCOL);
    detach(&a, 0);
    session_destroy(s);
}

Test(session, slots_of_agents_that_went_are_used_again)
{
    struct agent a[40];

    begin(1, 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 40; i++) {
            attach(&a[i], 0);
            cr_assert_lt(a[i].peer, 40);
        }
        for (int i = 0; i < 40; i++)
            detach(&a[i], 0);
    }
    session_destroy(s);
}
