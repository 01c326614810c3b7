/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/session.h"
#include "protocol/frame.h"

#include <cddp/version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Hexadecimal digits: where to look, so that all agents can come back at once, and what nobody can guess. */
#define TOKEN_SLOT 8
#define TOKEN_LEN (TOKEN_SLOT + 32)

/* conn and away tell what a slot holds: a connected agent, one that may come back, or (neither) nothing. */
struct peer {
    void *conn;
    bool away;
    bool joined;
    bool ended; /* it was hung up on: what still comes is ignored */
    int64_t heard_ms;
    uint32_t next_free;
    char token[TOKEN_LEN + 1];
    char broke[80]; /* away: how its connection ended */
};

struct session {
    struct round *round;
    struct session_ops ops;
    int64_t lease_ms, hello_ms;
    uint16_t port; /* 0: the one that agents have reached */
    struct cdi_kv *keys;
    struct cdi_kv_limits limits;
    struct peer *peers;
    uint32_t n_peers, cap, free;
    struct cdi_buf line; /* the message that is being sent */
    cddp_status encoded; /* whether that could be made */
};

#define NOBODY UINT32_MAX

cddp_status session_create(struct session **out, const struct session_options *opt, const struct session_ops *ops,
                           int64_t now_ms, struct cdi_error *err)
{
    struct session *s = calloc(1, sizeof *s);
    cddp_status st;

    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a job");
    st = round_create(&s->round, &opt->round, now_ms, err);
    if (st != CDDP_OK) {
        free(s);
        return st;
    }
    s->ops = *ops;
    s->lease_ms = opt->lease_ms;
    s->hello_ms = opt->hello_ms;
    s->limits = opt->limits;
    s->free = NOBODY;
    cdi_buf_init(&s->line, 0);
    *out = s;
    return CDDP_OK;
}

void session_destroy(struct session *s)
{
    if (s == NULL)
        return;
    cdi_kv_destroy(s->keys);
    cdi_buf_release(&s->line);
    round_destroy(s->round);
    free(s->peers);
    free(s);
}

const struct round *session_round(const struct session *s)
{
    return s->round;
}

void session_set_port(struct session *s, uint16_t port)
{
    s->port = port;
}

struct cdi_kv *session_keys(struct session *s)
{
    if (round_state(s->round) == ROUND_CLOSED)
        return NULL;
    if (s->keys == NULL && cdi_kv_create(&s->keys, &s->limits) != CDDP_OK)
        return NULL;
    return s->keys;
}

/* --------------------------------------------------------------------------------------------------- sending ---- */

static void hang_up(struct session *s, uint32_t peer, const char *why)
{
    if (s->peers[peer].ended)
        return;
    s->peers[peer].ended = true;
    s->ops.hang_up(s->peers[peer].conn, why);
}

static void encode(struct session *s, const struct cdi_msg *m)
{
    cdi_buf_consume(&s->line, s->line.len);
    s->encoded = cdi_msg_encode(m, &s->line, NULL);
}

/* A message that cannot be sent would leave its agent waiting for ever: hang up instead. */
static void send_line(struct session *s, uint32_t peer)
{
    if (s->encoded != CDDP_OK)
        hang_up(s, peer, "no memory for a message to it");
    else
        s->ops.send(s->peers[peer].conn, cdi_buf_data(&s->line), s->line.len);
}

static void make_token(struct session *s, uint32_t peer)
{
    uint8_t bytes[(TOKEN_LEN - TOKEN_SLOT) / 2];
    char *token = s->peers[peer].token;

    s->ops.random(bytes, sizeof bytes);
    (void)snprintf(token, TOKEN_SLOT + 1, "%08x", peer);
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(token + TOKEN_SLOT + 2 * i, 3, "%02x", bytes[i]);
}

static void welcome(struct session *s, uint32_t peer, bool resumed, struct cdi_msg *m)
{
    if (!resumed)
        make_token(s, peer);
    m->type = CDI_MSG_WELCOME;
    m->u.welcome.version = CDI_CONTROL_VERSION;
    m->u.welcome.lease_ms = (uint32_t)s->lease_ms;
    m->u.welcome.resumed = resumed;
    (void)snprintf(m->u.welcome.release, sizeof m->u.welcome.release, "%s", CDDP_VERSION);
    (void)snprintf(m->u.welcome.session, sizeof m->u.welcome.session, "%s", s->peers[peer].token);
}

static void closed(struct cdi_msg *m, enum cdi_close_status status, const char *text, const struct cdi_failure *failure)
{
    m->type = CDI_MSG_CLOSED;
    m->u.closed.status = status;
    (void)snprintf(m->u.closed.text, sizeof m->u.closed.text, "%s", text);
    if (failure != NULL)
        m->u.closed.failure = *failure;
}

/* The message that an action sends to its peer; false if it sends none. */
static bool message_of(struct session *s, const struct round_action *a, struct cdi_msg *m)
{
    const struct round *r = s->round;

    memset(m, 0, sizeof *m);
    switch (a->kind) {
    case ROUND_DO_WELCOME:
    case ROUND_DO_RESUME:
        welcome(s, a->peer, a->kind == ROUND_DO_RESUME, m);
        return true;
    case ROUND_DO_REFUSE:
        closed(m, CDI_CLOSE_REFUSED, round_text(r), NULL);
        return true;
    case ROUND_DO_BYE:
        closed(m, CDI_CLOSE_LEFT, "this node has left the job", NULL);
        return true;
    case ROUND_DO_CLOSED:
        closed(m, round_close_status(r), round_why(r), round_failure(r));
        return true;
    case ROUND_DO_WAITING:
        m->type = CDI_MSG_WAITING;
        round_waiting(r, &m->u.waiting.have, &m->u.waiting.need);
        (void)snprintf(m->u.waiting.text, sizeof m->u.waiting.text, "%s", round_text(r));
        return true;
    case ROUND_DO_ASSIGN:
        m->type = CDI_MSG_ASSIGN;
        if (!round_assignment(r, a->peer, &m->u.assign))
            return false;
        m->u.assign.master_port = s->port;
        return true;
    case ROUND_DO_ROUND_OVER:
        m->type = CDI_MSG_ROUND_OVER;
        m->u.round_over = *round_over(r);
        return true;
    case ROUND_DO_DROP:
    case ROUND_DO_END_KEYS:
        break;
    }
    return false;
}

/* Is the message of this action the same for every peer? */
static bool for_all(enum round_action_kind kind)
{
    return kind == ROUND_DO_ROUND_OVER || kind == ROUND_DO_CLOSED || kind == ROUND_DO_WAITING;
}

/* *made: the message of such an action is in s->line already. */
static void carry_out(struct session *s, const struct round_action *a, bool *made)
{
    struct cdi_msg m;

    if (a->kind == ROUND_DO_END_KEYS) {
        s->ops.end_keys(s->ops.arg);
        cdi_kv_destroy(s->keys);
        s->keys = NULL;
        return;
    }
    if (s->peers[a->peer].ended || s->peers[a->peer].away)
        return; /* who is away is told when it comes back */
    if (a->kind == ROUND_DO_DROP) {
        hang_up(s, a->peer, round_text(s->round));
        return;
    }
    if (!*made) {
        if (!message_of(s, a, &m))
            return;
        encode(s, &m);
        *made = for_all(a->kind);
    }
    send_line(s, a->peer);
    if (a->kind == ROUND_DO_REFUSE)
        hang_up(s, a->peer, round_text(s->round));
    if (a->kind == ROUND_DO_BYE)
        hang_up(s, a->peer, "it left");
}

static void step(struct session *s, const struct round_event *ev, int64_t now_ms)
{
    size_t n;
    const struct round_action *actions = round_step(s->round, ev, now_ms, &n);

    bool made = false;

    for (size_t i = 0; i < n; i++) {
        made = made && actions[i - 1].kind == actions[i].kind;
        carry_out(s, &actions[i], &made);
    }
}

/* ----------------------------------------------------------------------------------------------------- peers ---- */

cddp_status session_attach(struct session *s, void *conn, int64_t now_ms, uint32_t *peer)
{
    uint32_t p = s->free;

    if (p != NOBODY) {
        s->free = s->peers[p].next_free;
    } else if (s->n_peers < s->cap) {
        p = s->n_peers++;
    } else {
        uint32_t cap = s->cap == 0 ? 16 : s->cap * 2;
        struct peer *peers = calloc(cap, sizeof *peers);

        if (peers == NULL)
            return CDDP_E_NOMEM;
        if (s->n_peers > 0)
            memcpy(peers, s->peers, s->n_peers * sizeof *peers);
        free(s->peers);
        s->peers = peers;
        s->cap = cap;
        p = s->n_peers++;
    }
    s->peers[p] = (struct peer){.conn = conn, .heard_ms = now_ms};
    *peer = p;
    return CDDP_OK;
}

static void release_slot(struct session *s, uint32_t peer)
{
    s->peers[peer] = (struct peer){.next_free = s->free};
    s->free = peer;
}

static void lose(struct session *s, uint32_t peer, const char *how, int64_t now_ms, int64_t wall_ms)
{
    s->peers[peer].ended = true;
    step(s, &(struct round_event){.kind = ROUND_EV_LOST, .peer = peer, .text = how, .wall_ms = wall_ms}, now_ms);
}

void session_detach(struct session *s, uint32_t peer, const char *how, bool may_return, int64_t now_ms, int64_t wall_ms)
{
    struct peer *p = &s->peers[peer];

    if (!may_return || p->ended || !round_keeps(s->round, peer)) {
        lose(s, peer, how, now_ms, wall_ms);
        release_slot(s, peer);
        return;
    }
    p->conn = NULL;
    p->away = true;
    (void)snprintf(p->broke, sizeof p->broke, "%s", how);
    step(s, &(struct round_event){.kind = ROUND_EV_AWAY, .peer = peer, .text = how, .wall_ms = wall_ms}, now_ms);
}

void session_excuse(struct session *s, int64_t gap_ms, int64_t now_ms)
{
    for (uint32_t p = 0; p < s->n_peers; p++) {
        int64_t later = s->peers[p].heard_ms + gap_ms;

        s->peers[p].heard_ms = later < now_ms ? later : now_ms;
    }
}

/* Its lease is over. */
static void expire(struct session *s, uint32_t peer, int64_t now_ms, int64_t wall_ms)
{
    struct peer *p = &s->peers[peer];
    long long silent_s = (long long)(now_ms - p->heard_ms) / 1000;
    char how[192];

    if (p->away)
        (void)snprintf(how, sizeof how, "its connection broke (%s), and it did not come back within %lld s", p->broke,
                       silent_s);
    else
        (void)snprintf(how, sizeof how, "nothing was heard from it for %lld s", silent_s);
    if (p->away) {
        lose(s, peer, how, now_ms, wall_ms);
        release_slot(s, peer);
    } else {
        hang_up(s, peer, how);
        lose(s, peer, how, now_ms, wall_ms);
    }
}

void session_tick(struct session *s, int64_t now_ms, int64_t wall_ms)
{
    for (uint32_t p = 0; p < s->n_peers; p++) {
        const struct peer *peer = &s->peers[p];

        if ((peer->conn == NULL && !peer->away) || peer->ended)
            continue;
        if (!peer->joined && now_ms - peer->heard_ms >= s->hello_ms)
            hang_up(s, p, "it did not send JOIN in time");
        else if (peer->joined && now_ms - peer->heard_ms >= s->lease_ms)
            expire(s, p, now_ms, wall_ms);
    }
    step(s, &(struct round_event){.kind = ROUND_EV_TICK, .peer = NOBODY, .wall_ms = wall_ms}, now_ms);
}

/* ----------------------------------------------------------------------------------------------- coming back ---- */

static uint32_t find_token(const struct session *s, const char *token)
{
    const struct peer *peer;
    unsigned differ = 0;
    uint32_t slot;
    char digits[TOKEN_SLOT + 1];

    (void)snprintf(digits, sizeof digits, "%.*s", TOKEN_SLOT, token);
    slot = (uint32_t)strtoul(digits, NULL, 16); /* whatever it is: the whole token is compared */
    if (slot >= s->n_peers)
        return NOBODY;
    peer = &s->peers[slot];
    if ((peer->conn == NULL && !peer->away) || peer->ended || !peer->joined)
        return NOBODY;
    for (size_t i = 0; i < TOKEN_LEN; i++)
        differ |= (unsigned)(peer->token[i] ^ token[i]);
    return differ == 0 ? slot : NOBODY;
}

static void refuse_to_resume(struct session *s, uint32_t peer)
{
    static const char why[] = "the rendezvous does not know this agent any more: its lease has run out, or the "
                              "rendezvous was started anew";
    struct cdi_msg m = {.type = CDI_MSG_CLOSED};

    closed(&m, CDI_CLOSE_REFUSED, why, NULL);
    encode(s, &m);
    send_line(s, peer);
    hang_up(s, peer, why);
}

/* The connection of `peer` becomes that of the agent whose token it shows. Returns the agent's number. */
static uint32_t resume(struct session *s, uint32_t peer, const struct cdi_msg_join *join, int64_t now_ms,
                       int64_t wall_ms)
{
    uint32_t p = strlen(join->session) == TOKEN_LEN ? find_token(s, join->session) : NOBODY;
    void *fresh = s->peers[peer].conn, *stale;

    if (p == NOBODY) {
        refuse_to_resume(s, peer);
        return peer;
    }
    stale = s->peers[p].conn;
    s->peers[p].conn = fresh;
    s->peers[p].away = false;
    s->peers[p].heard_ms = now_ms;
    s->ops.rename(fresh, p);
    if (stale == NULL) {
        release_slot(s, peer);
    } else {
        s->peers[peer].conn = stale;
        s->ops.rename(stale, peer);
        hang_up(s, peer, "its agent has come back on another connection");
    }
    step(s, &(struct round_event){.kind = ROUND_EV_BACK, .peer = p, .join = join, .wall_ms = wall_ms}, now_ms);
    return p;
}

/* An agent may only send what an agent sends. *peer changes when it comes back. */
static cddp_status take(struct session *s, uint32_t *peer, const struct cdi_msg *m, int64_t now_ms, int64_t wall_ms,
                        struct cdi_error *err)
{
    struct round_event ev = {.peer = *peer, .wall_ms = wall_ms};
    struct cdi_msg answer = {.type = CDI_MSG_HEARTBEAT};

    switch (m->type) {
    case CDI_MSG_JOIN:
        if (m->u.join.session[0] != '\0' && !s->peers[*peer].joined) {
            *peer = resume(s, *peer, &m->u.join, now_ms, wall_ms);
            return CDDP_OK;
        }
        s->peers[*peer].joined = true;
        ev.kind = ROUND_EV_JOIN;
        ev.join = &m->u.join;
        break;
    case CDI_MSG_FAILED:
        ev.kind = ROUND_EV_FAILED;
        ev.round = m->u.failed.round;
        ev.failure = &m->u.failed.failure;
        break;
    case CDI_MSG_DONE:
        ev.kind = ROUND_EV_DONE;
        ev.round = m->u.done.round;
        break;
    case CDI_MSG_STOPPED:
        ev.kind = ROUND_EV_STOPPED;
        ev.round = m->u.stopped.round;
        break;
    case CDI_MSG_LEAVE:
        ev.kind = ROUND_EV_LEAVE;
        ev.text = m->u.leave.reason;
        ev.final = m->u.leave.final;
        break;
    case CDI_MSG_HEARTBEAT:
        answer.u.heartbeat.seq = m->u.heartbeat.seq;
        encode(s, &answer);
        send_line(s, *peer);
        return CDDP_OK;
    case CDI_MSG_WELCOME:
    case CDI_MSG_WAITING:
    case CDI_MSG_ASSIGN:
    case CDI_MSG_ROUND_OVER:
    case CDI_MSG_CLOSED:
        return cdi_fail(err, CDDP_E_PROTOCOL, "%s is not for agents to send", cdi_msg_name(m->type));
    }
    step(s, &ev, now_ms);
    return CDDP_OK;
}

cddp_status session_feed(struct session *s, uint32_t peer, struct cdi_buf *in, int64_t now_ms, int64_t wall_ms,
                         struct cdi_error *err)
{
    struct cdi_frame f;
    struct cdi_msg m;
    cddp_status st = CDDP_OK;

    while (st == CDDP_OK && !s->peers[peer].ended) {
        st = cdi_frame_next(in, &f, err);
        if (st != CDDP_OK)
            break;
        st = cdi_msg_decode(f.type, f.payload, f.len, &m, err);
        cdi_buf_consume(in, f.size);
        /* Who has not joined gets no longer by chatting. */
        if (st == CDDP_OK && (s->peers[peer].joined || m.type == CDI_MSG_JOIN))
            s->peers[peer].heard_ms = now_ms;
        if (st == CDDP_OK)
            st = take(s, &peer, &m, now_ms, wall_ms, err);
    }
    if (s->peers[peer].ended)
        cdi_buf_consume(in, in->len);
    return st == CDDP_IN_PROGRESS ? CDDP_OK : st;
}
