/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is in the job, and when its rounds begin and end: a state machine without I/O or clock.
 *
 *             enough are there             a worker failed; a node was lost, left or came
 *   JOINING ------------------> RUNNING ----------------------------------------------> STOPPING
 *      ^  \                        \ all done                                             |  |
 *      |   \ not enough in time     `-------> CLOSED <------------------------------------'  |
 *      |    `-----------------------------------^       no restart is left                   |
 *      `-------------------------------------------------------------------------------------'
 *                    every node of the round has stopped or is lost: the next round
 *
 * A job of MIN to MAX nodes, or one with spares, is elastic. There a node that is lost or leaves, and one that comes
 * while there is room, is a change of the membership: a new round with the nodes that are there, which is no restart
 * (max_restarts counts failures). In a job of a fixed size a lost node is a failure, and one that leaves ends the job.
 * A worker's failure in an elastic job counts only if every node of the round then says STOPPED: where one is lost
 * instead, the failure was most likely its echo.
 *
 * Who was in the round before keeps its node rank where that still exists; the others fill the gaps in the order of
 * their topology strings, then host names, then arrival. Nodes beyond MAX wait, and step in.
 *
 * A node whose connection broke may be away for a while (its lease, which the caller watches): it counts as there, but
 * no round begins without it before the join timeout, unless there are MAX others.
 *
 * Events go in with the time, actions come out. Peers are small numbers that the caller chooses (its slots) and may use
 * again after LOST. One thread at a time.
 */
#ifndef RDZV_ROUND_H
#define RDZV_ROUND_H

#include "protocol/message.h"

struct round;

#define ROUND_NODES_MAX (1u << 20)

struct round_options {
    const char *run_id;
    uint32_t min_nodes, max_nodes; /* 1 <= min <= max <= ROUND_NODES_MAX */
    uint32_t spares;               /* nodes beyond max_nodes that may wait to step in; <= ROUND_NODES_MAX */
    uint32_t max_restarts;
    int64_t join_timeout_ms; /* for each round: until min_nodes are there */
    int64_t last_call_ms;    /* with min_nodes there, how long the first round still waits for more, up to max_nodes */
    int64_t regroup_ms;      /* the same for a later one that has fewer nodes than the one before it */
};

enum round_state { ROUND_JOINING, ROUND_RUNNING, ROUND_STOPPING, ROUND_CLOSED };

enum round_event_kind {
    ROUND_EV_JOIN,    /* join */
    ROUND_EV_FAILED,  /* round, failure */
    ROUND_EV_DONE,    /* round */
    ROUND_EV_STOPPED, /* round */
    ROUND_EV_LEAVE,   /* text: why; final */
    ROUND_EV_LOST,    /* text: how ("its connection closed"); the peer's number is free afterwards */
    ROUND_EV_AWAY, /* its connection broke; it counts as there until BACK or LOST. Only if round_may_return(), else LOST
                    */
    ROUND_EV_BACK, /* join: with the round of its last assignment; it is told what it missed */
    ROUND_EV_TICK, /* time has passed; peer is ignored */
};

struct round_event {
    enum round_event_kind kind;
    uint32_t peer;
    uint32_t round;
    const struct cdi_msg_join *join;
    const struct cdi_failure *failure;
    const char *text;
    bool final;      /* the rendezvous goes with it: the job ends, elastic or not */
    int64_t wall_ms; /* Unix time, for the failure that a lost node is */
    /* LOST after silence: from this time on (of round_step's clock) its agent may have killed its workers; else 0 */
    int64_t fence_ms;
};

enum round_action_kind {
    ROUND_DO_WELCOME,    /* the peer is in */
    ROUND_DO_RESUME,     /* the peer is back: before what it missed */
    ROUND_DO_REFUSE,     /* the peer may not join: round_text() says why */
    ROUND_DO_DROP,       /* the peer broke the protocol: round_text() says how; it counts as lost */
    ROUND_DO_BYE,        /* the peer has left: confirm it */
    ROUND_DO_WAITING,    /* tell the peer for whom it waits: round_text() */
    ROUND_DO_ASSIGN,     /* round_assignment() */
    ROUND_DO_ROUND_OVER, /* round_over() */
    ROUND_DO_CLOSED,     /* with round_close_status(), round_why() and round_failure() */
    ROUND_DO_END_KEYS,   /* the key space of the round that was current ends; always before the next ASSIGN */
};

struct round_action {
    enum round_action_kind kind;
    uint32_t peer; /* not of END_KEYS */
};

/* run_id is copied. CDDP_OK, CDDP_E_NOMEM, CDDP_E_INVALID. The first round's join timeout begins at now_ms. */
cddp_status round_create(struct round **out, const struct round_options *opt, int64_t now_ms, struct cdi_error *err);
void round_destroy(struct round *r); /* NULL-safe */

/*
 * Take one event. Returns what is to be done, in order, *n actions; valid until the next call. Events that are late
 * (of an earlier round), doubled, or of unknown peers do no harm.
 */
const struct round_action *round_step(struct round *r, const struct round_event *ev, int64_t now_ms, size_t *n);

enum round_state round_state(const struct round *r);
uint32_t round_number(const struct round *r);        /* of the round that runs, or is being gathered */
uint32_t round_nodes(const struct round *r);         /* of the last round that began; 0: none has */
uint32_t round_world_size(const struct round *r);    /* likewise, workers */
uint32_t round_restart_count(const struct round *r); /* rounds that failed and were followed by another */
const char *round_text(const struct round *r);       /* about the event just taken */
const char *round_why(const struct round *r);        /* why the last round, or the job, ended */
/*
 * The first of the round; kind NONE: there was none. While the round stops, one that another node had said already and
 * that is earlier by its own time, or was killed where this one exited, takes its place; so does a node that was cut
 * off before the failure and killed its workers, by its own word or because it is lost. ROUND_OVER tells it again.
 */
const struct cdi_failure *round_failure(const struct round *r);
/* STOPPING: will another round follow this one, and will it count as a restart? As far as it is known now. */
bool round_restarts(const struct round *r);
bool round_counts(const struct round *r);
/* What ROUND_OVER says: of the round that stops, or of the last one, as it was when that was said last. */
const struct cdi_msg_round_over *round_over(const struct round *r);
enum cdi_close_status round_close_status(const struct round *r);
/* Nodes that are there and wait for a round, and how many it takes. */
void round_waiting(const struct round *r, uint32_t *have, uint32_t *need);
/* The least and the most that it takes. */
void round_limits(const struct round *r, uint32_t *min_nodes, uint32_t *max_nodes);
/* The name of a peer's host; NULL: the peer is not there. */
const char *round_host(const struct round *r, uint32_t peer);
size_t round_present(const struct round *r); /* nodes that have joined and not gone */
/* Has the peer been in a round? Then it may be away for a while. */
bool round_may_return(const struct round *r, uint32_t peer);
/* What a peer of the running round was assigned (master_addr "" and port 0); false if it is not in the round. */
bool round_assignment(const struct round *r, uint32_t peer, struct cdi_msg_assign *out);

#endif
