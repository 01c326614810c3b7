/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "protocol/frame.h"
#include "rendezvous/round/session.h"

#include <string.h>

CDI_SUITE(session);

/* An agent's connection, as the session uses it. */
struct agent {
    struct cdi_buf got; /* frames sent to it */
    struct cdi_buf in;  /* frames from it */
    uint32_t peer;
    bool hung_up;
    char why[128];
};

static struct session *s;
static int n_ended; /* number of END_KEYS */
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

static void on_rename(void *conn, uint32_t peer)
{
    ((struct agent *)conn)->peer = peer;
}

static void on_end_keys(void *arg)
{
    cr_assert_eq(arg, journal);
    n_ended++;
    strncat(journal, "K", sizeof journal - strlen(journal) - 1);
}

static uint8_t next_random;
static uint32_t job_restarts;

static void on_random(void *bytes, size_t len)
{
    memset(bytes, next_random++, len);
}

static void begin(uint32_t nodes, uint32_t restarts)
{
    const struct session_ops ops = {on_send, on_hang_up, on_rename, on_end_keys, on_random, journal};
    const struct session_options opt = {.round = {.run_id = "job",
                                                  .min_nodes = nodes,
                                                  .max_nodes = nodes,
                                                  .max_restarts = restarts,
                                                  .join_timeout_ms = 60000,
                                                  .last_call_ms = 30000},
                                        .lease_ms = 15000,
                                        .hello_ms = 5000};

    job_restarts = restarts;
    n_ended = 0;
    next_random = 0;
    journal[0] = '\0';
    cr_assert_eq(session_create(&s, &opt, &ops, 0, NULL), CDDP_OK);
    next_random = 0; /* that of the job was also 0 */
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
    session_detach(s, a->peer, "its connection closed", false, now, 1000);
    cdi_buf_release(&a->got);
    cdi_buf_release(&a->in);
}

static cddp_status tell(struct agent *a, struct cdi_msg msg, int64_t now)
{
    struct cdi_error err;

    cr_assert_eq(cdi_msg_encode(&msg, &a->in, NULL), CDDP_OK);
    return session_feed(s, a->peer, &a->in, now, 1000, &err);
}

static void join_with(struct agent *a, uint32_t nodes, const char *nonce, int64_t now)
{
    struct cdi_msg m = {
        .type = CDI_MSG_JOIN,
        .u.join = {.version = 1, .run_id = "job", .host = "h", .node_rank = -1, .n_procs = 2, .round = -1}};

    (void)snprintf(m.u.join.nonce, sizeof m.u.join.nonce, "%s", nonce);
    m.u.join.min_nodes = m.u.join.max_nodes = nodes;
    m.u.join.max_restarts = job_restarts;
    cr_assert_eq(tell(a, m, now), CDDP_OK);
}

static void join(struct agent *a, uint32_t nodes, int64_t now)
{
    join_with(a, nodes, "", now);
}

/* Returns the next message to the agent, which must have this type. */
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

Test(session, next_round_has_new_keys_before_assignments)
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
    cr_assert_str_eq(m.u.welcome.session, "00000000000000000000000000000000000000000000000000000000");
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

Test(session, rejected_agent_gets_reason_and_is_closed)
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
    cr_assert_eq(a.got.len, 0, "no further reply");
    detach(&a, 1);
    session_destroy(s);
}

Test(session, heartbeats_get_replies_and_keep_the_lease)
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
    cr_assert_str_eq(b.why, "no message was received from it for 20 s");
    (void)hear(&a, CDI_MSG_WELCOME);
    (void)hear(&a, CDI_MSG_ASSIGN);
    cr_assert_eq(hear(&a, CDI_MSG_HEARTBEAT).u.heartbeat.seq, 10000);
    cr_assert_eq(hear(&a, CDI_MSG_ROUND_OVER).u.round_over.failure.kind, CDI_END_NODE);
    detach(&b, 50000);
    detach(&a, 50000);
    cr_assert_eq(round_state(session_round(s)), ROUND_CLOSED);
    session_destroy(s);
}

/* One node is cut off at `silent`, a worker of the other fails at `failed`; the lease reveals the cause. */
static enum cdi_end_kind cause_of(int64_t silent, int64_t failed)
{
    struct agent a, b;
    struct cdi_msg m = {.type = CDI_MSG_FAILED};

    begin(2, 0);
    attach(&a, 0);
    attach(&b, 0);
    join(&a, 2, 0);
    join(&b, 2, 0);
    cr_assert_eq(tell(&b, (struct cdi_msg){.type = CDI_MSG_HEARTBEAT}, silent), CDDP_OK);
    m.u.failed.failure = (struct cdi_failure){.kind = CDI_END_EXIT, .code = 1, .rank = -1, .time_ms = 1};
    cr_assert_eq(tell(&a, m, failed), CDDP_OK);
    cr_assert_eq(tell(&a, (struct cdi_msg){.type = CDI_MSG_STOPPED}, failed + 1), CDDP_OK);
    cr_assert_eq(tell(&a, (struct cdi_msg){.type = CDI_MSG_HEARTBEAT}, silent + 14000), CDDP_OK);
    session_tick(s, silent + 15000, 1000);
    (void)hear(&a, CDI_MSG_WELCOME);
    (void)hear(&a, CDI_MSG_ASSIGN);
    (void)hear(&a, CDI_MSG_ROUND_OVER);
    (void)hear(&a, CDI_MSG_HEARTBEAT);
    m = hear(&a, silent + 5000 < failed ? CDI_MSG_ROUND_OVER : CDI_MSG_CLOSED);
    detach(&b, silent + 15001);
    detach(&a, silent + 15001);
    session_destroy(s);
    return m.type == CDI_MSG_CLOSED ? m.u.closed.failure.kind : m.u.round_over.failure.kind;
}

Test(session, failure_follows_from_long_silence)
{
    cr_assert_eq(cause_of(1000, 11000), CDI_END_NODE);
    cr_assert_eq(cause_of(1000, 6001), CDI_END_NODE);
    cr_assert_eq(cause_of(1000, 6000), CDI_END_EXIT);
}

Test(session, closes_agent_that_never_joins)
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

Test(session, rejects_server_messages_from_agent)
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

Test(session, reuses_slots_of_removed_agents)
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

Test(session, returning_agent_gets_missed_messages)
{
    struct agent a, b, again;
    struct cdi_msg m = {.type = CDI_MSG_JOIN, .u.join = {.version = 1, .run_id = "job", .host = "h", .n_procs = 2}};

    begin(2, 0);
    attach(&a, 0);
    attach(&b, 0);
    join(&a, 2, 0);
    join(&b, 2, 0);
    (void)snprintf(m.u.join.session, sizeof m.u.join.session, "%s", hear(&b, CDI_MSG_WELCOME).u.welcome.session);
    (void)hear(&b, CDI_MSG_ASSIGN);
    session_detach(s, b.peer, "connection reset by peer", true, 1000, 0);
    session_tick(s, 14999, 0);
    (void)hear(&a, CDI_MSG_WELCOME);
    (void)hear(&a, CDI_MSG_ASSIGN);
    cr_assert_eq(tell(&a, (struct cdi_msg){.type = CDI_MSG_FAILED, .u.failed.failure.kind = CDI_END_EXIT}, 14999),
                 CDDP_OK);
    attach(&again, 14999);
    cr_assert_neq(again.peer, b.peer);
    m.u.join.max_nodes = m.u.join.min_nodes = 2;
    cr_assert_eq(tell(&again, m, 14999), CDDP_OK);
    cr_assert_eq(again.peer, b.peer, "it has the same number");
    m = hear(&again, CDI_MSG_WELCOME);
    cr_assert(m.u.welcome.resumed);
    cr_assert_str_eq(m.u.welcome.session, "00000001000000000000000001010101010101010101010101010101");
    cr_assert_eq(hear(&again, CDI_MSG_ROUND_OVER).u.round_over.failure.kind, CDI_END_EXIT);
    cr_assert_eq(tell(&again, (struct cdi_msg){.type = CDI_MSG_STOPPED}, 15000), CDDP_OK);
    session_detach(s, again.peer, "connection reset by peer", true, 15000, 0);
    session_tick(s, 29999, 0);
    cr_assert_eq(round_state(session_round(s)), ROUND_CLOSED, "a is silent, and no node is left");
    detach(&a, 30000);
    session_tick(s, 30000, 0);
    cdi_buf_release(&b.got), cdi_buf_release(&b.in);
    cdi_buf_release(&again.got), cdi_buf_release(&again.in);
    session_destroy(s);
}

Test(session, rejects_late_return_and_wrong_token)
{
    struct agent a, b, again;
    struct cdi_msg m = {.type = CDI_MSG_JOIN, .u.join = {.version = 1, .run_id = "job", .host = "h", .n_procs = 2}};

    begin(2, 0);
    attach(&a, 0);
    attach(&b, 0);
    join(&a, 2, 0);
    join(&b, 2, 0);
    m.u.join.max_nodes = m.u.join.min_nodes = 2;
    for (int i = 0; i < 3; i++) {
        static const char *const tokens[] = {"01", "000000010000000000000000ffffffffffffffffffffffffffffffff",
                                             "00000000000000000000000001010101010101010101010101010101"};
        struct agent x;

        attach(&x, 0);
        (void)snprintf(m.u.join.session, sizeof m.u.join.session, "%s", tokens[i]);
        cr_assert_eq(tell(&x, m, 0), CDDP_OK);
        cr_assert_not_null(strstr(hear(&x, CDI_MSG_CLOSED).u.closed.text, "no longer knows this agent"));
        cr_assert(x.hung_up);
        detach(&x, 0);
    }
    (void)snprintf(m.u.join.session, sizeof m.u.join.session, "%s",
                   "00000001000000000000000001010101010101010101010101010101");
    attach(&again, 14000);
    cr_assert_eq(tell(&again, m, 14000), CDDP_OK);
    cr_assert(hear(&again, CDI_MSG_WELCOME).u.welcome.resumed);
    cr_assert_eq(again.got.len, 0);
    cr_assert(b.hung_up && !again.hung_up);
    cr_assert_str_eq(b.why, "its agent has returned on another connection");
    detach(&b, 14001);
    cr_assert_eq(round_state(session_round(s)), ROUND_RUNNING, "the end of the old connection has no effect");
    session_tick(s, 15000, 0); /* a is silent */
    (void)hear(&again, CDI_MSG_ROUND_OVER);
    session_detach(s, again.peer, "reset", true, 15000, 0);
    session_tick(s, 29000, 0);
    cr_assert_eq(round_state(session_round(s)), ROUND_CLOSED);
    cdi_buf_release(&again.got), cdi_buf_release(&again.in);
    attach(&again, 29001);
    cr_assert_eq(tell(&again, m, 29001), CDDP_OK);
    m = hear(&again, CDI_MSG_CLOSED);
    cr_assert_eq(m.u.closed.status, CDI_CLOSE_REFUSED, "too late");
    cr_assert(m.u.closed.gone);
    cr_assert_str_eq(m.u.closed.text, "job 'job' is over");
    detach(&again, 29001);
    detach(&a, 30000);
    session_destroy(s);
}

/* The reply to its JOIN was lost with the connection, so the agent does not know that it has joined. */
Test(session, repeated_join_with_nonce_is_the_same_agent)
{
    struct agent a, b, again, third;
    struct cdi_msg m;

    begin(2, 0);
    attach(&a, 0);
    join_with(&a, 2, "aaaa", 0);
    m = hear(&a, CDI_MSG_WELCOME);
    cr_assert(!m.u.welcome.resumed && !m.u.welcome.hosted);
    attach(&again, 1); /* before the round, while the old connection is open */
    join_with(&again, 2, "aaaa", 1);
    m = hear(&again, CDI_MSG_WELCOME);
    cr_assert(m.u.welcome.resumed && a.hung_up);
    cr_assert_str_eq(m.u.welcome.session, "00000000000000000000000000000000000000000000000000000000");
    detach(&a, 1);
    attach(&b, 2);
    join_with(&b, 2, "bbbb", 2); /* the job is complete; WELCOME and ASSIGN are lost by a reset */
    (void)hear(&again, CDI_MSG_ASSIGN);
    session_detach(s, b.peer, "connection reset by peer", true, 3, 0);
    cdi_buf_release(&b.got), cdi_buf_release(&b.in);
    attach(&b, 4);
    join_with(&b, 2, "bbbb", 4);
    cr_assert(hear(&b, CDI_MSG_WELCOME).u.welcome.resumed);
    m = hear(&b, CDI_MSG_ASSIGN);
    cr_assert(m.u.assign.node_rank == 1 && m.u.assign.round == 0);
    cr_assert_eq(round_state(session_round(s)), ROUND_RUNNING);

    attach(&third, 5); /* another nonce, or none, is another agent */
    join_with(&third, 2, "cccc", 5);
    cr_assert_eq(hear(&third, CDI_MSG_CLOSED).u.closed.status, CDI_CLOSE_REFUSED);
    detach(&third, 5);
    attach(&third, 5);
    join(&third, 2, 5);
    cr_assert_eq(hear(&third, CDI_MSG_CLOSED).u.closed.status, CDI_CLOSE_REFUSED);
    detach(&third, 5);
    join_with(&b, 2, "bbbb", 6); /* twice on one connection is a protocol error */
    cr_assert(b.hung_up);
    cr_assert_str_eq(b.why, "it sent JOIN twice");
    detach(&b, 6);
    attach(&third, 7); /* the nonce of a lost agent is unknown */
    join_with(&third, 2, "bbbb", 7);
    m = hear(&third, CDI_MSG_WELCOME);
    cr_assert(!m.u.welcome.resumed);
    cr_assert_str_neq(m.u.welcome.session, "00000001000000000000000001010101010101010101010101010101");
    detach(&third, 7);
    detach(&again, 7);
    session_destroy(s);
}

/* A pod or a machine is replaced while the lease of the old one runs: its successor waits, a double is an error. */
Test(session, successor_of_silent_node_may_try_again)
{
    struct agent a, b, late;
    struct cdi_msg m;

    begin(2, 1);
    attach(&a, 0);
    attach(&b, 0);
    join(&a, 2, 0);
    join(&b, 2, 0);
    attach(&late, 1000);
    join(&late, 2, 1000);
    m = hear(&late, CDI_MSG_CLOSED);
    cr_assert(!m.u.closed.retry && strstr(m.u.closed.text, "one too many") != NULL, "%s", m.u.closed.text);
    detach(&late, 1000);
    cr_assert_eq(tell(&a, (struct cdi_msg){.type = CDI_MSG_HEARTBEAT}, 5000), CDDP_OK); /* b is silent */
    attach(&late, 5000);
    join(&late, 2, 5000);
    m = hear(&late, CDI_MSG_CLOSED);
    cr_assert(m.u.closed.retry && strstr(m.u.closed.text, "until its lease ends") != NULL, "%s", m.u.closed.text);
    cr_assert_eq(m.u.closed.status, CDI_CLOSE_REFUSED);
    detach(&late, 5000);
    detach(&a, 5000);
    detach(&b, 5000);
    session_destroy(s);
}

Test(session, suspended_time_extends_leases)
{
    struct agent a;

    begin(1, 0);
    attach(&a, 0);
    join(&a, 1, 0);
    session_extend_leases(s, 60000, 61000);
    session_tick(s, 61000, 0);
    cr_assert(!a.hung_up);
    session_tick(s, 75000, 0);
    cr_assert(a.hung_up);
    detach(&a, 75000);
    session_destroy(s);
}

/* ---------------------------------------------------------------------------------------------------- simulation ----
 *
 * Jobs of up to four nodes, each with an agent that follows docs/internals/protocol.md, over a network that delays,
 * cuts and resets, on a virtual clock; agents also die. Always: when a round begins, no node has workers of an older
 * one; when the job is over, no node has any; and every job ends. SESSION_SEED runs one job only.
 */

#define LEASE 15000
#define NODES_MAX 4
#define LINKS_MAX 256

struct link {
    struct cdi_buf up, down; /* in transit */
    uint32_t peer;
    int node;
    bool server_has, agent_has; /* the ends that are open */
    bool hung_up;
    bool eof; /* the agent's process has ended */
};

struct sim_node {
    struct link *link;
    char session[64];
    int64_t round;   /* of the last ASSIGN; -1: none */
    int64_t workers; /* round of the running ones; -1: none */
    int64_t contact, tried, cut_until, kill_at, stop_at;
    uint32_t life;               /* number of its process, for the nonce */
    bool welcomed, fenced, over; /* over: got ROUND_OVER of `round`, or of a later one */
    bool said_failed, said_done, said_stopped;
    bool gone; /* its process has ended */
};

static struct {
    uint64_t seed, state;
    int64_t now;
    int n_nodes;
    uint32_t checked; /* last round that began */
    bool begun, calm;
    struct link *links[LINKS_MAX];
    size_t n_links;
    struct sim_node nodes[NODES_MAX];
} w;

#define WCHECK(cond) cr_assert((cond), "seed %llu at %lld ms: %s", (unsigned long long)w.seed, (long long)w.now, #cond)

static uint32_t any(uint32_t below)
{
    w.state = w.state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((w.state >> 33) % below);
}

static void check_world(void)
{
    enum round_state state = round_state(session_round(s));
    uint32_t number = round_number(session_round(s));

    for (int i = 0; i < w.n_nodes; i++) {
        int64_t workers = w.nodes[i].workers;

        WCHECK(workers < 0 || state != ROUND_JOINING);
        WCHECK(workers < 0 || state != ROUND_CLOSED);
        WCHECK(workers < 0 || workers == (int64_t)number);
    }
}

static void link_send(void *conn, const void *bytes, size_t len)
{
    struct link *l = conn;

    WCHECK(l->server_has);
    (void)cdi_buf_append(&l->down, bytes, len);
}

static void link_hang_up(void *conn, const char *why)
{
    (void)why;
    ((struct link *)conn)->hung_up = true;
}

static void link_rename(void *conn, uint32_t peer)
{
    ((struct link *)conn)->peer = peer;
}

static void no_keys(void *arg)
{
    (void)arg;
}

static void random_token(void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)any(256);
}

static void say(struct sim_node *n, struct cdi_msg m)
{
    if (n->link != NULL && n->link->agent_has)
        cr_assert_eq(cdi_msg_encode(&m, &n->link->up, NULL), CDDP_OK);
}

static void say_failed(struct sim_node *n)
{
    n->said_failed = true;
    say(n, (struct cdi_msg){.type = CDI_MSG_FAILED,
                            .u.failed = {.round = (uint32_t)n->round, .failure.kind = CDI_END_EXIT}});
}

static void say_done(struct sim_node *n)
{
    n->said_done = true;
    say(n, (struct cdi_msg){.type = CDI_MSG_DONE, .u.done.round = (uint32_t)n->round});
}

static void say_stopped(struct sim_node *n)
{
    WCHECK(n->workers < 0);
    n->said_stopped = true;
    say(n, (struct cdi_msg){.type = CDI_MSG_STOPPED, .u.stopped.round = (uint32_t)n->round});
}

static void connect_node(int i)
{
    struct sim_node *n = &w.nodes[i];
    struct link *l = calloc(1, sizeof *l);
    struct cdi_msg m = {.type = CDI_MSG_JOIN, .u.join = {.version = 1, .run_id = "job", .host = "h", .n_procs = 1}};

    WCHECK(l != NULL && w.n_links < LINKS_MAX);
    if (n->link != NULL)
        n->link->agent_has = false;
    l->node = i;
    l->server_has = l->agent_has = true;
    cdi_buf_init(&l->up, 0);
    cdi_buf_init(&l->down, 0);
    w.links[w.n_links++] = l;
    n->link = l;
    n->tried = w.now;
    n->welcomed = false;
    cr_assert_eq(session_attach(s, l, w.now, &l->peer), CDDP_OK);
    m.u.join.node_rank = i;
    m.u.join.min_nodes = m.u.join.max_nodes = (uint32_t)w.n_nodes;
    m.u.join.max_restarts = job_restarts;
    m.u.join.round = n->round;
    (void)snprintf(m.u.join.session, sizeof m.u.join.session, "%s", n->session);
    (void)snprintf(m.u.join.nonce, sizeof m.u.join.nonce, "%x.%x", (unsigned)i, n->life);
    say(n, m);
}

static void end_workers(struct sim_node *n)
{
    n->workers = -1;
    n->kill_at = INT64_MAX;
}

/* The process ends with its workers. The network decides what the server notices. */
static void node_dies(struct sim_node *n)
{
    end_workers(n);
    n->gone = true;
    for (size_t i = 0; i < w.n_links; i++)
        if (&w.nodes[w.links[i]->node] == n && w.links[i]->agent_has)
            w.links[i]->eof = true, w.links[i]->agent_has = false;
}

static void agent_hears(struct sim_node *n, const struct cdi_msg *m)
{
    if (m->type == CDI_MSG_WELCOME) {
        n->welcomed = true;
        n->contact = n->tried > n->contact ? n->tried : n->contact;
        (void)snprintf(n->session, sizeof n->session, "%s", m->u.welcome.session);
        if (!m->u.welcome.resumed)
            n->round = -1;
        if (m->u.welcome.resumed && n->round >= 0) {
            if (n->fenced && n->workers < 0)
                n->said_failed = true;
            if (n->said_failed)
                say_failed(n);
            else if (n->said_done)
                say_done(n);
            if (n->said_stopped || (n->fenced && n->workers < 0))
                say_stopped(n);
        }
    } else if (m->type == CDI_MSG_HEARTBEAT) {
        n->contact = (int64_t)m->u.heartbeat.seq > n->contact ? (int64_t)m->u.heartbeat.seq : n->contact;
    } else if (m->type == CDI_MSG_ASSIGN) {
        WCHECK(n->workers < 0);
        n->round = m->u.assign.round;
        n->said_failed = n->said_done = n->said_stopped = n->over = n->fenced = false;
        n->kill_at = INT64_MAX;
        n->workers = n->round;
    } else if (m->type == CDI_MSG_ROUND_OVER) {
        if ((int64_t)m->u.round_over.round > n->round) {
            n->said_failed = n->said_done = n->said_stopped = false;
            n->round = m->u.round_over.round;
        }
        n->over = true;
        n->stop_at = w.now + any(5000);
    } else if (m->type == CDI_MSG_CLOSED) {
        if (m->u.closed.status == CDI_CLOSE_REFUSED && n->session[0] != '\0') {
            end_workers(n); /* it may join as a new one */
            n->session[0] = '\0';
            n->round = -1;
            n->over = n->fenced = n->said_failed = n->said_done = n->said_stopped = false;
            n->link->agent_has = false;
            if (any(2) == 0)
                node_dies(n);
        } else {
            WCHECK(n->workers < 0 || m->u.closed.status == CDI_CLOSE_REFUSED);
            node_dies(n);
        }
    }
}

/* Delivers a part of the bytes in transit. */
static void pump(struct link *l)
{
    struct sim_node *n = &w.nodes[l->node];
    bool cut = w.now < n->cut_until;
    struct cdi_buf in;
    struct cdi_frame f;
    struct cdi_msg m;

    if (cut)
        return;
    cdi_buf_init(&in, 0);
    while (l->server_has && any(8) != 0 && cdi_frame_next(&l->up, &f, NULL) == CDDP_OK) {
        (void)cdi_buf_append(&in, cdi_buf_data(&l->up), f.size);
        cdi_buf_consume(&l->up, f.size);
        WCHECK(session_feed(s, l->peer, &in, w.now, 0, NULL) == CDDP_OK);
        check_world();
    }
    cdi_buf_release(&in);
    while (l->agent_has && any(8) != 0 && cdi_frame_next(&l->down, &f, NULL) == CDDP_OK) {
        WCHECK(cdi_msg_decode(f.type, f.payload, f.len, &m, NULL) == CDDP_OK);
        cdi_buf_consume(&l->down, f.size);
        agent_hears(n, &m);
    }
    if (!l->server_has || (!l->hung_up && (l->agent_has || l->up.len > 0)) || (l->agent_has && l->down.len > 0))
        return;
    /* Only the end of a process causes EOF; an agent resets a connection that it abandons. */
    l->server_has = false;
    session_detach(s, l->peer, "closed", !l->eof && !l->hung_up, w.now, 0);
    check_world();
    l->agent_has = false;
}

static void reset_link(struct link *l)
{
    if (!l->server_has)
        return;
    l->server_has = false;
    session_detach(s, l->peer, "reset", true, w.now, 0);
    check_world();
    if (any(2) == 0)
        cdi_buf_consume(&l->down, l->down.len);
    if (l->down.len == 0)
        l->agent_has = false; /* otherwise it receives more first */
}

static void live(int i)
{
    struct sim_node *n = &w.nodes[i];
    struct link *l = n->link;
    bool linked = l != NULL && l->agent_has;

    if (linked && !l->server_has && l->down.len == 0)
        l->agent_has = linked = false;
    if (w.now - n->contact >= LEASE * 2 / 3 && n->workers >= 0 && n->kill_at == INT64_MAX)
        n->kill_at = w.now + any(LEASE / 3 - 600), n->fenced = true;
    if (w.now >= n->kill_at)
        end_workers(n);
    if (n->over && n->workers >= 0 && w.now >= n->stop_at)
        end_workers(n);
    if (n->over && n->workers < 0 && !n->said_stopped && w.now >= n->stop_at)
        say_stopped(n);
    if (n->workers >= 0 && !n->over && !n->fenced && any(w.calm ? 10 : 150) == 0) {
        end_workers(n);
        if (w.calm || any(3) == 0)
            say_done(n);
        else
            say_failed(n);
    }
    if (linked && n->welcomed)
        say(n, (struct cdi_msg){.type = CDI_MSG_HEARTBEAT, .u.heartbeat.seq = (uint32_t)w.now});
    if (!linked || (n->session[0] != '\0' && w.now - n->contact > LEASE / 5 && w.now - n->tried > 1000)) {
        if (n->session[0] == '\0' || n->round < 0)
            n->session[0] = '\0';
        connect_node(i);
    }
}

static void harm(void)
{
    struct sim_node *n = &w.nodes[any((uint32_t)w.n_nodes)];
    uint32_t what = any(1000);

    if (n->gone) {
        if (any(200) == 0) /* started again */
            *n = (struct sim_node){
                .round = -1, .workers = -1, .kill_at = INT64_MAX, .contact = w.now, .life = n->life + 1};
    } else if (what < 12) {
        n->cut_until = w.now + any(any(2) ? 9000 : 40000);
    } else if (what < 30 && n->link != NULL) {
        reset_link(n->link);
    } else if (what < 33) {
        node_dies(n);
    }
}

static void free_link(struct link *l)
{
    if (w.nodes[l->node].link == l)
        w.nodes[l->node].link = NULL;
    cdi_buf_release(&l->up);
    cdi_buf_release(&l->down);
    free(l);
}

static void run_job(uint64_t seed)
{
    const struct session_ops ops = {link_send, link_hang_up, link_rename, no_keys, random_token, NULL};
    struct session_options opt = {{"job", 0, 0, 0, 60000, 30000}, LEASE, 5000};
    int left = 1;

    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.state = seed * 2654435761u + 1;
    w.n_nodes = 1 + (int)any(NODES_MAX);
    opt.round.min_nodes = opt.round.max_nodes = (uint32_t)w.n_nodes;
    opt.round.max_restarts = job_restarts = any(5);
    cr_assert_eq(session_create(&s, &opt, &ops, 0, NULL), CDDP_OK);
    for (int i = 0; i < w.n_nodes; i++)
        w.nodes[i] = (struct sim_node){.round = -1, .workers = -1, .kill_at = INT64_MAX};
    for (int k = 0; k < 2500 && left > 0; k++) {
        w.calm = k >= 1200;
        w.now += 50 + any(300);
        if (!w.calm)
            harm();
        session_tick(s, w.now, 0);
        check_world();
        left = 0;
        for (int i = 0; i < w.n_nodes; i++)
            if (!w.nodes[i].gone)
                live(i), left++;
        for (size_t i = 0; i < w.n_links;) {
            struct link *l = w.links[i];

            pump(l);
            if (l->server_has || l->agent_has) {
                i++;
            } else {
                free_link(l);
                w.links[i] = w.links[--w.n_links];
            }
        }
    }
    WCHECK(left == 0);
    for (size_t i = 0; i < w.n_links; i++) {
        if (w.links[i]->server_has)
            session_detach(s, w.links[i]->peer, "closed", false, w.now, 0);
        free_link(w.links[i]);
    }
    session_destroy(s);
}

Test(session, network_faults_never_run_two_rounds_at_once)
{
    const char *one = getenv("SESSION_SEED");

    if (one != NULL) {
        run_job(strtoull(one, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= 150; seed++)
        run_job(seed);
}
