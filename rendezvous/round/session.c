/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/round/session.h"
#include "common/map.h"
#include "protocol/bulk.h"
#include "protocol/frame.h"

#include <cddp/version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * A session token, in hexadecimal digits: the peer number, so that a lookup takes constant time; the job's id; and
 * random digits.
 */
#define TOKEN_SLOT 8
#define TOKEN_KNOWN (TOKEN_SLOT + SESSION_ID_LEN)
#define TOKEN_LEN (TOKEN_KNOWN + 32)

/* The nonce of an agent's JOIN, and the agent's peer number. */
struct known {
    uint32_t peer;
    char nonce[sizeof((struct cdi_msg_join *)0)->nonce];
};

/* A slot holds a connected agent (conn), one that may return (away), or neither. */
struct peer {
    void *conn;
    bool away;
    bool joined;
    bool ended; /* its connection is being closed; further messages are ignored */
    bool old;   /* it does not know CDI_END_HANG */
    int64_t heard_ms;
    uint32_t next_free;
    struct known *known; /* NULL: its JOIN had no nonce */
    char token[TOKEN_LEN + 1];
    char broke[80]; /* away: how its connection ended */
};

struct session {
    struct round *round;
    char id[SESSION_ID_LEN + 1];
    struct session_ops ops;
    int64_t lease_ms, hello_ms;
    bool hosted, hands_over;
    uint32_t leaver;  /* the agent with the server, after it has left; NO_PEER */
    bool hang_is_set; /* an agent has joined */
    struct session_hang hang;
    struct cdi_map known; /* struct known by nonce */
    uint16_t port;        /* 0: the port that agents connected to */
    struct cdi_kv *keys;
    struct cdi_kv_limits limits;
    struct peer *peers;
    uint32_t n_peers, cap, free;
    struct cdi_buf line; /* the message to send */
    cddp_status encoded; /* result of its encoding */
};

#define NO_PEER UINT32_MAX

static void random_digits(const struct session_ops *ops, char *digits, size_t n)
{
    uint8_t bytes[(TOKEN_LEN - TOKEN_KNOWN) / 2]; /* enough for an id too */

    ops->random(bytes, n / 2);
    for (size_t i = 0; i < n / 2; i++)
        (void)snprintf(digits + 2 * i, 3, "%02x", bytes[i]);
}

cddp_status session_create(struct session **out, const struct session_options *opt, const struct session_ops *ops,
                           int64_t now_ms, struct cdi_error *err)
{
    struct session *s = calloc(1, sizeof *s);
    cddp_status st;

    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a job");
    st = round_create(&s->round, &opt->round, now_ms, err);
    if (st != CDDP_OK) {
        free(s);
        return st;
    }
    s->ops = *ops;
    random_digits(ops, s->id, SESSION_ID_LEN);
    s->lease_ms = opt->lease_ms;
    s->hello_ms = opt->hello_ms;
    s->hosted = opt->hosted;
    s->hands_over = opt->hands_over && (opt->round.min_nodes < opt->round.max_nodes || opt->round.spares > 0);
    s->leaver = UINT32_MAX;
    cdi_map_init(&s->known);
    s->limits = opt->limits;
    s->free = NO_PEER;
    cdi_buf_init(&s->line, 0);
    *out = s;
    return CDDP_OK;
}

void session_destroy(struct session *s)
{
    if (s == NULL)
        return;
    for (uint32_t p = 0; p < s->n_peers; p++)
        free(s->peers[p].known);
    cdi_map_release(&s->known);
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

const char *session_id(const struct session *s)
{
    return s->id;
}

bool session_token_is_of(const char *token, const char *id)
{
    return strlen(token) == TOKEN_LEN && memcmp(token + TOKEN_SLOT, id, SESSION_ID_LEN) == 0;
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

static void session_close_conn(struct session *s, uint32_t peer, const char *why)
{
    if (s->peers[peer].ended)
        return;
    s->peers[peer].ended = true;
    s->ops.close_conn(s->peers[peer].conn, why);
}

static void session_encode(struct session *s, const struct cdi_msg *m)
{
    cdi_buf_consume(&s->line, s->line.len);
    s->encoded = cdi_msg_encode(m, &s->line, NULL);
}

/* Without the message its agent would wait for ever, so a failure closes the connection. */
static void send_line(struct session *s, uint32_t peer)
{
    if (s->encoded != CDDP_OK)
        session_close_conn(s, peer, "out of memory for a message");
    else
        s->ops.send(s->peers[peer].conn, cdi_buf_data(&s->line), s->line.len);
}

static void make_token(struct session *s, uint32_t peer)
{
    char *token = s->peers[peer].token;

    (void)snprintf(token, TOKEN_KNOWN + 1, "%08x%s", peer, s->id);
    random_digits(&s->ops, token + TOKEN_KNOWN, TOKEN_LEN - TOKEN_KNOWN);
}

static void session_welcome(struct session *s, uint32_t peer, bool resumed, struct cdi_msg *m)
{
    if (!resumed)
        make_token(s, peer);
    m->type = CDI_MSG_WELCOME;
    m->u.welcome.version = CDI_CONTROL_VERSION;
    m->u.welcome.lease_ms = (uint32_t)s->lease_ms;
    m->u.welcome.resumed = resumed;
    m->u.welcome.hosted = s->hosted;
    (void)snprintf(m->u.welcome.release, sizeof m->u.welcome.release, "%s", CDDP_VERSION);
    (void)snprintf(m->u.welcome.session, sizeof m->u.welcome.session, "%s", s->peers[peer].token);
}

static void fill_closed(struct cdi_msg *m, enum cdi_close_status status, const char *text,
                        const struct cdi_failure *failure)
{
    m->type = CDI_MSG_CLOSED;
    m->u.closed.status = status;
    (void)snprintf(m->u.closed.text, sizeof m->u.closed.text, "%s", text);
    if (failure != NULL)
        m->u.closed.failure = *failure;
}

/* Sets *m to the message of an action. Returns false if it has none. */
static bool message_of(struct session *s, const struct round_action *a, struct cdi_msg *m)
{
    const struct round *r = s->round;

    memset(m, 0, sizeof *m);
    switch (a->kind) {
    case ROUND_DO_WELCOME:
    case ROUND_DO_RESUME:
        session_welcome(s, a->peer, a->kind == ROUND_DO_RESUME, m);
        return true;
    case ROUND_DO_REFUSE:
        fill_closed(m, CDI_CLOSE_REFUSED, round_text(r), NULL);
        m->u.closed.retry = round_refused_for_now(r);
        return true;
    case ROUND_DO_BYE:
        fill_closed(m, CDI_CLOSE_LEFT, "this node has left the job", NULL);
        return true;
    case ROUND_DO_CLOSED:
        fill_closed(m, round_close_status(r), round_why(r), round_failure(r));
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

/* Returns true if the message of this action is the same for every peer. */
static bool for_all(enum round_action_kind kind)
{
    return kind == ROUND_DO_ROUND_OVER || kind == ROUND_DO_CLOSED || kind == ROUND_DO_WAITING;
}

/* *made: s->line already holds the message of this kind of action. */
static void session_carry_out(struct session *s, const struct round_action *a, bool *made)
{
    struct cdi_msg m;

    if (a->kind == ROUND_DO_END_KEYS) {
        s->ops.end_keys(s->ops.arg);
        cdi_kv_destroy(s->keys);
        s->keys = NULL;
        return;
    }
    if (s->peers[a->peer].ended || s->peers[a->peer].away)
        return; /* an agent that is away gets its messages when it returns */
    if (a->kind == ROUND_DO_DROP) {
        session_close_conn(s, a->peer, round_text(s->round));
        return;
    }
    if (a->kind == ROUND_DO_CLOSED && s->hands_over && s->leaver != NO_PEER && s->leaver != a->peer &&
        round_close_status(s->round) == CDI_CLOSE_LEFT) {
        session_close_conn(s, a->peer, "the node with the rendezvous server has left; another one hosts the job");
        return;
    }
    if (!*made) {
        if (!message_of(s, a, &m))
            return;
        session_encode(s, &m);
        *made = for_all(a->kind);
    }
    send_line(s, a->peer);
    if (a->kind == ROUND_DO_REFUSE)
        session_close_conn(s, a->peer, round_text(s->round));
    if (a->kind == ROUND_DO_BYE)
        session_close_conn(s, a->peer, "its node has left the job");
}

static void session_step(struct session *s, const struct round_event *ev, int64_t now_ms)
{
    size_t n;
    const struct round_action *actions = round_step(s->round, ev, now_ms, &n);

    bool made = false;

    for (size_t i = 0; i < n; i++) {
        made = made && actions[i - 1].kind == actions[i].kind;
        session_carry_out(s, &actions[i], &made);
    }
}

/* ----------------------------------------------------------------------------------------------------- peers ---- */

cddp_status session_attach(struct session *s, void *conn, int64_t now_ms, uint32_t *peer)
{
    uint32_t p = s->free;

    if (p != NO_PEER) {
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

static void forget_nonce(struct session *s, uint32_t peer)
{
    struct known *k = s->peers[peer].known;

    if (k == NULL)
        return;
    (void)cdi_map_remove(&s->known, k->nonce, strlen(k->nonce));
    s->peers[peer].known = NULL;
    free(k);
}

/* Stores the nonce. If out of memory the agent has joined anyway, but cannot return by its nonce. */
static void note_nonce(struct session *s, uint32_t peer, const char *nonce)
{
    const struct known *old = nonce[0] == '\0' ? NULL : cdi_map_get(&s->known, nonce, strlen(nonce));
    struct known *k = nonce[0] == '\0' || s->peers[peer].known != NULL ? NULL : calloc(1, sizeof *k);

    if (k == NULL)
        return;
    if (old != NULL)
        forget_nonce(s, old->peer);
    k->peer = peer;
    (void)snprintf(k->nonce, sizeof k->nonce, "%s", nonce);
    if (cdi_map_add(&s->known, k->nonce, strlen(k->nonce), k) == CDDP_OK)
        s->peers[peer].known = k;
    else
        free(k);
}

static void release_slot(struct session *s, uint32_t peer)
{
    forget_nonce(s, peer);
    s->peers[peer] = (struct peer){.next_free = s->free};
    s->free = peer;
}

static void session_lose(struct session *s, uint32_t peer, const char *how, int64_t fence_ms, int64_t now_ms,
                         int64_t wall_ms)
{
    const struct round_event ev = {
        .kind = ROUND_EV_LOST, .peer = peer, .text = how, .wall_ms = wall_ms, .fence_ms = fence_ms};

    s->peers[peer].ended = true;
    forget_nonce(s, peer);
    session_step(s, &ev, now_ms);
}

void session_detach(struct session *s, uint32_t peer, const char *how, bool may_return, int64_t now_ms, int64_t wall_ms)
{
    struct peer *p = &s->peers[peer];

    if (!may_return || p->ended || !round_may_return(s->round, peer)) {
        session_lose(s, peer, how, 0, now_ms, wall_ms);
        release_slot(s, peer);
        return;
    }
    p->conn = NULL;
    p->away = true;
    (void)snprintf(p->broke, sizeof p->broke, "%s", how);
    session_step(s, &(struct round_event){.kind = ROUND_EV_AWAY, .peer = peer, .text = how, .wall_ms = wall_ms},
                 now_ms);
}

void session_extend_leases(struct session *s, int64_t gap_ms, int64_t now_ms)
{
    for (uint32_t p = 0; p < s->n_peers; p++) {
        int64_t later = s->peers[p].heard_ms + gap_ms;

        s->peers[p].heard_ms = later < now_ms ? later : now_ms;
    }
}

/*
 * Handles the end of a lease. The agent kills its workers when two thirds of a lease have passed since the last
 * heartbeat with a reply. The last message here may be younger by one fifth, the time that an agent waits for a reply.
 * The rest is slack.
 */
static void session_expire(struct session *s, uint32_t peer, int64_t now_ms, int64_t wall_ms)
{
    struct peer *p = &s->peers[peer];
    int64_t fence_ms = p->heard_ms + s->lease_ms * 2 / 5;
    long long silent_s = (long long)(now_ms - p->heard_ms) / 1000;
    char how[192];

    if (p->away)
        (void)snprintf(how, sizeof how, "its connection broke (%s), and it did not return within %lld s", p->broke,
                       silent_s);
    else
        (void)snprintf(how, sizeof how, "no message was received from it for %lld s", silent_s);
    if (p->away) {
        session_lose(s, peer, how, fence_ms, now_ms, wall_ms);
        release_slot(s, peer);
    } else {
        session_close_conn(s, peer, how);
        session_lose(s, peer, how, fence_ms, now_ms, wall_ms);
    }
}

void session_tick(struct session *s, int64_t now_ms, int64_t wall_ms)
{
    for (uint32_t p = 0; p < s->n_peers; p++) {
        const struct peer *peer = &s->peers[p];

        if ((peer->conn == NULL && !peer->away) || peer->ended)
            continue;
        if (!peer->joined && now_ms - peer->heard_ms >= s->hello_ms)
            session_close_conn(s, p, "timed out before sending JOIN");
        else if (peer->joined && now_ms - peer->heard_ms >= s->lease_ms)
            session_expire(s, p, now_ms, wall_ms);
    }
    session_step(s, &(struct round_event){.kind = ROUND_EV_TICK, .peer = NO_PEER, .wall_ms = wall_ms}, now_ms);
}

/* ------------------------------------------------------------------------------------------ returning agents ---- */

/* Returns true if an agent may return to this slot. */
static bool is_joined(const struct peer *peer)
{
    return (peer->conn != NULL || peer->away) && !peer->ended && peer->joined;
}

uint32_t session_n_joined(const struct session *s, uint32_t *first)
{
    uint32_t n = 0;

    for (uint32_t p = s->n_peers; p-- > 0;) {
        if (!is_joined(&s->peers[p]))
            continue;
        *first = p;
        n++;
    }
    return n;
}

int64_t session_lease_ms(const struct session *s)
{
    return s->lease_ms;
}

/* Returns the agent whose JOIN had this nonce. It repeats a JOIN whose reply it did not receive. */
static uint32_t find_nonce(const struct session *s, const char *nonce)
{
    const struct known *k = nonce[0] == '\0' ? NULL : cdi_map_get(&s->known, nonce, strlen(nonce));

    return k != NULL && is_joined(&s->peers[k->peer]) ? k->peer : NO_PEER;
}

static uint32_t find_token(const struct session *s, const char *token)
{
    const struct peer *peer;
    unsigned differ = 0;
    uint32_t slot;
    char digits[TOKEN_SLOT + 1];

    (void)snprintf(digits, sizeof digits, "%.*s", TOKEN_SLOT, token);
    slot = (uint32_t)strtoul(digits, NULL, 16); /* any number will do: the whole token is compared */
    if (slot >= s->n_peers)
        return NO_PEER;
    peer = &s->peers[slot];
    if (!is_joined(peer))
        return NO_PEER;
    for (size_t i = 0; i < TOKEN_LEN; i++)
        differ |= (unsigned)(peer->token[i] ^ token[i]);
    return differ == 0 ? slot : NO_PEER;
}

/* An agent that missed the end of its job must not start it again. */
static void refuse_to_resume(struct session *s, uint32_t peer, const struct cdi_msg_join *join)
{
    struct cdi_msg m = {.type = CDI_MSG_CLOSED};
    char why[160];

    m.u.closed.gone = round_state(s->round) == ROUND_CLOSED && session_token_is_of(join->session, s->id);
    if (m.u.closed.gone)
        (void)snprintf(why, sizeof why, "job '%.100s' is over", join->run_id);
    else
        (void)snprintf(why, sizeof why, "%s",
                       "the rendezvous server no longer knows this agent: its lease has ended, or the server "
                       "was restarted");
    fill_closed(&m, CDI_CLOSE_REFUSED, why, NULL);
    session_encode(s, &m);
    send_line(s, peer);
    session_close_conn(s, peer, why);
}

/* Gives the connection of `peer` to the returning agent p. */
static void session_resume(struct session *s, uint32_t peer, uint32_t p, const struct cdi_msg_join *join,
                           int64_t now_ms, int64_t wall_ms)
{
    void *fresh = s->peers[peer].conn, *stale = s->peers[p].conn;

    s->peers[p].conn = fresh;
    s->peers[p].away = false;
    s->peers[p].heard_ms = now_ms;
    s->ops.renumber(fresh, p);
    if (stale == NULL) {
        release_slot(s, peer);
    } else {
        s->peers[peer].conn = stale;
        s->ops.renumber(stale, peer);
        session_close_conn(s, peer, "its agent has returned on another connection");
    }
    session_step(s, &(struct round_event){.kind = ROUND_EV_BACK, .peer = p, .join = join, .wall_ms = wall_ms}, now_ms);
}

/* Handles the JOIN of a returning agent; *peer becomes its number. Returns false if it is a new agent. */
static bool session_try_resume(struct session *s, uint32_t *peer, const struct cdi_msg_join *join, int64_t now_ms,
                               int64_t wall_ms)
{
    bool shows_token = join->session[0] != '\0';
    uint32_t p;

    if (s->peers[*peer].joined)
        return false;
    if (shows_token)
        p = strlen(join->session) == TOKEN_LEN ? find_token(s, join->session) : NO_PEER;
    else
        p = find_nonce(s, join->nonce);
    if (p != NO_PEER) {
        session_resume(s, *peer, p, join, now_ms, wall_ms);
        *peer = p;
    } else if (shows_token) {
        refuse_to_resume(s, *peer, join);
    }
    return p != NO_PEER || shows_token;
}

/* After the JOIN of a new agent. */
static void note_hang(struct session *s, uint32_t peer, const struct cdi_msg_join *join)
{
    if (round_host(s->round, peer) == NULL)
        return; /* it was rejected */
    s->peers[peer].old = join->on_hang == CDI_ON_HANG_NONE;
    if (s->hang_is_set)
        return;
    s->hang_is_set = true;
    s->hang = (struct session_hang){join->hang_warning_ms, join->hang_timeout_ms, join->on_hang};
}

/* A new agent may try again. The lease of a returning one must not be renewed. */
static void put_off_join(struct session *s, uint32_t peer, const struct cdi_msg_join *join)
{
    static const char why[] = "the rendezvous server waits for an answer of etcd";
    struct cdi_msg m = {.type = CDI_MSG_CLOSED};

    if (join->session[0] == '\0') {
        fill_closed(&m, CDI_CLOSE_REFUSED, why, NULL);
        m.u.closed.retry = true;
        session_encode(s, &m);
        send_line(s, peer);
    }
    session_close_conn(s, peer, why);
}

static bool session_may_answer(const struct session *s)
{
    return s->ops.may_answer == NULL || s->ops.may_answer(s->ops.arg);
}

/*
 * Returns whether a node of this node rank or host may have died without a word: such as the pod or the machine that
 * this agent replaces. A node that lives sends a HEARTBEAT every fifteenth of its lease.
 */
static bool has_stale(const struct session *s, const struct cdi_msg_join *join, int64_t now_ms)
{
    for (uint32_t p = 0; p < s->n_peers; p++) {
        const struct peer *peer = &s->peers[p];
        const char *host = is_joined(peer) ? round_host(s->round, p) : NULL;

        if (host != NULL && (peer->away || now_ms - peer->heard_ms > s->lease_ms / 5) &&
            (strcmp(host, join->host) == 0 ||
             (join->node_rank >= 0 && round_node_rank(s->round, p) == join->node_rank)))
            return true;
    }
    return false;
}

/* Processes one message. *peer changes when an agent returns. */
static cddp_status session_on_message(struct session *s, uint32_t *peer, const struct cdi_msg *m, int64_t now_ms,
                                      int64_t wall_ms, struct cdi_error *err)
{
    struct round_event ev = {.peer = *peer, .wall_ms = wall_ms};
    struct cdi_msg answer = {.type = CDI_MSG_HEARTBEAT};

    switch (m->type) {
    case CDI_MSG_JOIN:
        if (!session_may_answer(s)) {
            put_off_join(s, *peer, &m->u.join);
            return CDDP_OK;
        }
        if (session_try_resume(s, peer, &m->u.join, now_ms, wall_ms))
            return CDDP_OK;
        s->peers[*peer].joined = true;
        note_nonce(s, *peer, m->u.join.nonce);
        ev.kind = ROUND_EV_JOIN;
        ev.join = &m->u.join;
        ev.stale = !round_has_place(s->round, &m->u.join) && has_stale(s, &m->u.join, now_ms);
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
        if (ev.final)
            s->leaver = *peer;
        break;
    case CDI_MSG_HEARTBEAT:
        if (!session_may_answer(s))
            return CDDP_OK;
        answer.u.heartbeat.seq = m->u.heartbeat.seq;
        session_encode(s, &answer);
        send_line(s, *peer);
        return CDDP_OK;
    case CDI_MSG_WELCOME:
    case CDI_MSG_WAITING:
    case CDI_MSG_ASSIGN:
    case CDI_MSG_ROUND_OVER:
    case CDI_MSG_CLOSED:
        return cdi_fail(err, CDDP_E_PROTOCOL, "an agent must not send %s", cdi_msg_name(m->type));
    }
    session_step(s, &ev, now_ms);
    if (m->type == CDI_MSG_JOIN)
        note_hang(s, *peer, &m->u.join);
    return CDDP_OK;
}

struct session_hang session_hang(const struct session *s)
{
    struct session_hang h = s->hang;

    for (uint32_t p = 0; p < s->n_peers; p++)
        if ((s->peers[p].conn != NULL || s->peers[p].away) && s->peers[p].old)
            h.on_hang = CDI_ON_HANG_REPORT;
    return h;
}

void session_end_hung(struct session *s, const struct cdi_failure *failure, bool stop, int64_t now_ms)
{
    session_step(
        s,
        &(struct round_event){
            .kind = ROUND_EV_HANG, .peer = NO_PEER, .round = round_number(s->round), .failure = failure, .final = stop},
        now_ms);
}

void session_send_bulk(struct session *s, uint32_t peer, uint16_t type, const void *payload, size_t len)
{
    const struct peer *p = peer < s->n_peers ? &s->peers[peer] : NULL;

    if (p == NULL || p->conn == NULL || !p->joined || p->ended)
        return;
    cdi_buf_consume(&s->line, s->line.len);
    if (cdi_frame_put(&s->line, type, payload, len) == CDDP_OK)
        s->ops.send(p->conn, cdi_buf_data(&s->line), s->line.len);
}

bool session_next_agent(const struct session *s, uint32_t *peer, struct cdi_msg_assign *assign)
{
    for (uint32_t p = *peer + 1; p < s->n_peers; p++)
        if (s->peers[p].conn != NULL && s->peers[p].joined && !s->peers[p].ended &&
            round_assignment(s->round, p, assign)) {
            *peer = p;
            return true;
        }
    return false;
}

bool session_find_node(const struct session *s, int32_t node_rank, uint32_t *peer)
{
    struct cdi_msg_assign assign;
    bool found = false;

    for (uint32_t p = 0; p < s->n_peers; p++) {
        if (s->peers[p].conn == NULL || !s->peers[p].joined || s->peers[p].ended ||
            round_node_rank(s->round, p) != node_rank)
            continue;
        found = true;
        *peer = p;
        if (round_assignment(s->round, p, &assign))
            break; /* another one may have had it, and wait as a spare now */
    }
    return found;
}

size_t session_queued(const struct session *s, uint32_t peer)
{
    const struct peer *p = peer < s->n_peers ? &s->peers[peer] : NULL;

    return p == NULL || p->conn == NULL || s->ops.queued == NULL ? 0 : s->ops.queued(p->conn);
}

static void session_on_bulk(struct session *s, uint32_t peer, const struct cdi_frame *f, int64_t now_ms)
{
    if (!s->peers[peer].joined)
        return;
    s->peers[peer].heard_ms = now_ms;
    if (s->ops.bulk != NULL)
        s->ops.bulk(s->ops.arg, peer, f->type, f->payload, f->len);
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
        if (cdi_bulk_is(f.type)) {
            session_on_bulk(s, peer, &f, now_ms);
            cdi_buf_consume(in, f.size);
            continue;
        }
        st = cdi_msg_decode(f.type, f.payload, f.len, &m, err);
        cdi_buf_consume(in, f.size);
        /* Only JOIN extends the time of an agent that has not joined. */
        if (st == CDDP_OK && (s->peers[peer].joined || m.type == CDI_MSG_JOIN))
            s->peers[peer].heard_ms = now_ms;
        if (st == CDDP_OK)
            st = session_on_message(s, &peer, &m, now_ms, wall_ms, err);
    }
    if (s->peers[peer].ended)
        cdi_buf_consume(in, in->len);
    return st == CDDP_IN_PROGRESS ? CDDP_OK : st;
}
