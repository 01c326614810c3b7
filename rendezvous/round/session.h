/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One job: its round, the agents that are connected, and the key space of the current round. It turns control messages
 * into events of the round and the round's actions into messages; it knows no sockets. server.c drives it; tests do
 * too. One thread at a time.
 */
#ifndef RDZV_SESSION_H
#define RDZV_SESSION_H

#include "rendezvous/round/round.h"
#include "store/kv.h"

struct session;

/* A job's id, in hexadecimal digits: no two jobs have the same, not even those of one name. */
#define SESSION_ID_LEN 16

/* What a session needs done; the calls must not call back into the session. */
struct session_ops {
    /* Queue bytes for an agent; conn is what session_attach got. */
    void (*send)(void *conn, const void *bytes, size_t len);
    /* Close an agent's connection once what was sent has been written; session_detach is still to be called. */
    void (*close_conn)(void *conn, const char *why);
    /* From now on this connection's number is `peer`: its agent has come back. */
    void (*renumber)(void *conn, uint32_t peer);
    /* Close all store connections now (end their waits): the keys of the round are about to be freed. */
    void (*end_keys)(void *arg);
    /* Fill with bytes nobody can guess. */
    void (*random)(void *bytes, size_t len);
    void *arg;
};

struct session_options {
    struct round_options round;
    int64_t lease_ms;
    int64_t hello_ms;            /* until an agent's JOIN must have come */
    bool hosted;                 /* the rendezvous runs in an agent: WELCOME says so */
    struct cdi_kv_limits limits; /* of each round's keys */
};

/* ops is copied. CDDP_OK, CDDP_E_NOMEM, CDDP_E_INVALID. */
cddp_status session_create(struct session **out, const struct session_options *opt, const struct session_ops *ops,
                           int64_t now_ms, struct cdi_error *err);
/* Nobody may hold a wait in its keys any more. NULL-safe. */
void session_destroy(struct session *s);

/* The job's id: SESSION_ID_LEN digits. */
const char *session_id(const struct session *s);
/* Does the session of a JOIN name the job with this id? */
bool session_token_is_of(const char *token, const char *id);

/* Agents are told that the job's MASTER_PORT is this; else the port that they have reached. */
void session_set_port(struct session *s, uint16_t port);

/* An agent has connected; *peer is its number until session_detach, or until ops.renumber. CDDP_OK, CDDP_E_NOMEM. */
cddp_status session_attach(struct session *s, void *conn, int64_t now_ms, uint32_t *peer);
/*
 * Its connection is gone; how: "its connection closed". may_return: it broke (a reset), so that its agent, if it was in
 * a round, has what is left of its lease to come back on another one; else the node is lost.
 */
void session_detach(struct session *s, uint32_t peer, const char *how, bool may_return, int64_t now_ms,
                    int64_t wall_ms);
/* The caller did not run for gap_ms (it was stopped): that time does not count for any lease. */
void session_extend_leases(struct session *s, int64_t gap_ms, int64_t now_ms);
/* Take the whole frames at the front of `in`, and consume them. An error: close the connection, then detach. */
cddp_status session_feed(struct session *s, uint32_t peer, struct cdi_buf *in, int64_t now_ms, int64_t wall_ms,
                         struct cdi_error *err);
/* Time has passed: leases, join timeouts. Call it several times a second. */
void session_tick(struct session *s, int64_t now_ms, int64_t wall_ms);

/* The key space of the current round; NULL: the job is over, or there is no memory. */
struct cdi_kv *session_keys(struct session *s);
const struct round *session_round(const struct session *s);

#endif
