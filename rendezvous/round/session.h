/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One job: its rounds, the connected agents, and the key space of the current round. Converts control messages to
 * events of the round, and the round's actions to messages. Does not use sockets. Driven by server.c, and by tests. One
 * thread at a time.
 */
#ifndef RDZV_SESSION_H
#define RDZV_SESSION_H

#include "rendezvous/round/round.h"
#include "store/kv.h"

struct session;

/* Length of a job's id in hexadecimal digits. Each job has a different one, even with the same name. */
#define SESSION_ID_LEN 16

/* Operations that a session needs. They must not call the session, except for `bulk`. */
struct session_ops {
    /* Queues bytes for an agent; conn is the one of session_attach(). */
    void (*send)(void *conn, const void *bytes, size_t len);
    /* Closes an agent's connection after the queued bytes are written. session_detach() must follow. */
    void (*close_conn)(void *conn, const char *why);
    /* Changes the peer number of a connection whose agent has returned. */
    void (*renumber)(void *conn, uint32_t peer);
    /* Closes all store connections, which ends their waits, before the keys of the round are freed. */
    void (*end_keys)(void *arg);
    /* Fills with unpredictable bytes. */
    void (*random)(void *bytes, size_t len);
    void *arg;
    /*
     * An agent that has joined sent a frame of bulk.h. The payload is valid during the call, which may use
     * session_send_bulk(). NULL: such frames are ignored.
     */
    void (*bulk)(void *arg, uint32_t peer, uint16_t type, const void *payload, size_t len);
    /* Returns the number of bytes that wait to be sent to an agent. NULL: it is not known, and counts as 0. */
    size_t (*queued)(void *conn);
    /*
     * May an agent get an answer that prolongs its lease? NULL: always. The server may count as lost elsewhere, and
     * agents that hear nothing from it stop their workers in time.
     */
    bool (*may_answer)(void *arg);
};

struct session_options {
    struct round_options round;
    int64_t lease_ms;
    int64_t hello_ms;            /* time for an agent's JOIN */
    bool hosted;                 /* the rendezvous server runs in an agent; part of WELCOME */
    bool hands_over;             /* if the agent with the server leaves an elastic job, others may host it */
    struct cdi_kv_limits limits; /* of each round's keys */
};

/* Creates a session. *ops is copied. Returns CDDP_OK, CDDP_E_NOMEM or CDDP_E_INVALID. */
cddp_status session_create(struct session **out, const struct session_options *opt, const struct session_ops *ops,
                           int64_t now_ms, struct cdi_error *err);
/* Frees a session. No wait in its keys may be pending. NULL-safe. */
void session_destroy(struct session *s);

/* Returns the job's id: SESSION_ID_LEN digits. */
const char *session_id(const struct session *s);
/* Returns true if the session token of a JOIN belongs to the job with this id. */
bool session_token_is_of(const char *token, const char *id);

/* Sets the MASTER_PORT in assignments; by default agents use the port that they connected to. */
void session_set_port(struct session *s, uint16_t port);

/*
 * Adds a connected agent. *peer is its number until session_detach() or ops.renumber. Returns CDDP_OK or CDDP_E_NOMEM.
 */
cddp_status session_attach(struct session *s, void *conn, int64_t now_ms, uint32_t *peer);
/*
 * Removes an agent whose connection ended; how: "its connection closed". may_return: the connection broke (such as a
 * reset), so an agent that was in a round may reconnect until its lease ends; otherwise the node is lost.
 */
void session_detach(struct session *s, uint32_t peer, const char *how, bool may_return, int64_t now_ms,
                    int64_t wall_ms);
/* Returns how many agents have joined and have neither closed their connection nor lost their lease; *first: one. */
uint32_t session_n_joined(const struct session *s, uint32_t *first);
int64_t session_lease_ms(const struct session *s);
/* Extends all leases by gap_ms, for which the caller did not run (it was suspended). */
void session_extend_leases(struct session *s, int64_t gap_ms, int64_t now_ms);
/* Processes and consumes the complete frames in `in`. After an error close the connection, then detach. */
cddp_status session_feed(struct session *s, uint32_t peer, struct cdi_buf *in, int64_t now_ms, int64_t wall_ms,
                         struct cdi_error *err);
/* Queues a frame of bulk.h for an agent; without effect if it is not connected. */
void session_send_bulk(struct session *s, uint32_t peer, uint16_t type, const void *payload, size_t len);
/*
 * Sets *peer to the next agent that is connected and in the running round, and *assign to its assignment. Begin with
 * *peer UINT32_MAX. Returns false after the last one.
 */
bool session_next_agent(const struct session *s, uint32_t *peer, struct cdi_msg_assign *assign);
/* What the job's first agent wants after a standstill; 0: off. */
struct session_hang {
    int64_t warning_ms, timeout_ms;
    enum cdi_on_hang on_hang; /* REPORT if an agent is too old to know CDI_END_HANG */
};
struct session_hang session_hang(const struct session *s);
/*
 * Ends the running round, whose workers stand still, by this failure (kind HANG); stop: no other round follows. Without
 * effect if no round runs. Not from within ops.bulk.
 */
void session_end_hung(struct session *s, const struct cdi_failure *failure, bool stop, int64_t now_ms);
/* Sets *peer to the connected agent that has this node rank in the running round, or had it in the last one. */
bool session_find_node(const struct session *s, int32_t node_rank, uint32_t *peer);
/* Returns the number of bytes that wait to be sent to an agent. */
size_t session_queued(const struct session *s, uint32_t peer);
/* Checks leases and join timeouts. Call it several times per second. */
void session_tick(struct session *s, int64_t now_ms, int64_t wall_ms);

/* Returns the key space of the current round; NULL: the job is over, or out of memory. */
struct cdi_kv *session_keys(struct session *s);
const struct round *session_round(const struct session *s);

#endif
