/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of a job, and the start and end of its rounds: a state machine without I/O or clock.
 *
 *             enough nodes                 a worker failed; a node was lost, left or joined
 *   JOINING ------------------> RUNNING ----------------------------------------------> STOPPING
 *      ^  \                        \ all done                                             |  |
 *      |   \ join timeout           `-------> CLOSED <------------------------------------'  |
 *      |    `-----------------------------------^       no restart is left                   |
 *      `-------------------------------------------------------------------------------------'
 *                    every node of the round has stopped or is lost: the next round
 *
 * A job of MIN to MAX nodes, or one with spares, is elastic. A node that is lost or leaves, or that joins while there
 * is room, then changes the membership: a new round begins with the present nodes. That is not a restart (max_restarts
 * counts failures). In a job of a fixed size a lost node is a failure, and one that leaves ends the job. A worker's
 * failure in an elastic job counts only if every node of the round then sends STOPPED. If one is lost instead, the
 * failure was most likely a consequence of the loss.
 *
 * Nodes of the previous round keep their node rank if it is still valid. The others fill the gaps in the order of their
 * topology strings, then host names, then arrival. Nodes beyond MAX wait as spares and replace lost ones.
 *
 * A node whose connection broke may be away until its lease ends (the caller checks that). It counts as present, but
 * until the join timeout no round begins without it, unless MAX others are present.
 *
 * Each event carries the time and returns actions. Peers are small numbers that the caller chooses (its slots) and may
 * use again after LOST. One thread at a time.
 */
#ifndef RDZV_ROUND_H
#define RDZV_ROUND_H

#include "protocol/message.h"

struct round;

#define ROUND_NODES_MAX (1u << 20)

struct round_options {
    const char *run_id;
    uint32_t min_nodes, max_nodes; /* 1 <= min <= max <= ROUND_NODES_MAX */
    uint32_t spares;               /* standby nodes, beyond max_nodes; <= ROUND_NODES_MAX */
    uint32_t max_restarts;
    int64_t join_timeout_ms; /* of each round: until min_nodes have joined */
    int64_t last_call_ms;    /* from then, time that the first round waits for more, up to max_nodes */
    int64_t regroup_ms;      /* the same for a later round with fewer nodes than the previous one */
};

enum round_state { ROUND_JOINING, ROUND_RUNNING, ROUND_STOPPING, ROUND_CLOSED };

enum round_event_kind {
    ROUND_EV_JOIN,    /* join */
    ROUND_EV_FAILED,  /* round, failure */
    ROUND_EV_DONE,    /* round */
    ROUND_EV_STOPPED, /* round */
    ROUND_EV_LEAVE,   /* text: the reason; final */
    ROUND_EV_LOST,    /* text: the cause ("its connection closed"); the peer's number is free afterwards */
    ROUND_EV_AWAY, /* its connection broke; present until BACK or LOST. Requires round_may_return(), otherwise LOST */
    ROUND_EV_BACK, /* join, with the round of its last assignment; it gets the messages that it missed */
    ROUND_EV_TICK, /* time has passed; peer is ignored */
    ROUND_EV_HANG, /* round, failure, final: no restart follows; the workers stand still. peer is ignored */
};

struct round_event {
    enum round_event_kind kind;
    uint32_t peer;
    uint32_t round;
    const struct cdi_msg_join *join;
    const struct cdi_failure *failure;
    const char *text;
    bool final;      /* the node hosts the rendezvous server: the job ends, elastic or not; or as for HANG */
    bool stale;      /* JOIN: a node with this node rank or host may have died; its lease has not ended */
    int64_t wall_ms; /* Unix time, for the failure of a lost node */
    /* LOST after silence: time (of round_step's clock) from which its agent may have killed its workers; otherwise 0 */
    int64_t fence_ms;
};

enum round_action_kind {
    ROUND_DO_WELCOME,    /* the peer has joined */
    ROUND_DO_RESUME,     /* the peer is back; sent before the messages that it missed */
    ROUND_DO_REFUSE,     /* the peer may not join; the reason is round_text() */
    ROUND_DO_DROP,       /* protocol error of the peer, round_text(); it counts as lost */
    ROUND_DO_BYE,        /* confirms that the peer has left */
    ROUND_DO_WAITING,    /* what the peer waits for: round_text() */
    ROUND_DO_ASSIGN,     /* round_assignment() */
    ROUND_DO_ROUND_OVER, /* round_over() */
    ROUND_DO_CLOSED,     /* with round_close_status(), round_why() and round_failure() */
    ROUND_DO_END_KEYS,   /* the key space of the current round ends; always before the next ASSIGN */
};

struct round_action {
    enum round_action_kind kind;
    uint32_t peer; /* not for END_KEYS */
};

/*
 * Creates the rounds of a job. run_id is copied. The first join timeout begins at now_ms. Returns CDDP_OK, CDDP_E_NOMEM
 * or CDDP_E_INVALID.
 */
cddp_status round_create(struct round **out, const struct round_options *opt, int64_t now_ms, struct cdi_error *err);
void round_destroy(struct round *r); /* NULL-safe */

/*
 * Processes one event. Returns *n actions to carry out in order; valid until the next call. Events that are late (of an
 * earlier round), duplicated, or from unknown peers have no effect.
 */
const struct round_action *round_step(struct round *r, const struct round_event *ev, int64_t now_ms, size_t *n);

enum round_state round_state(const struct round *r);
uint32_t round_number(const struct round *r);        /* of the running round, or of the one that nodes join */
uint32_t round_nodes(const struct round *r);         /* of the last round that began; 0: none */
uint32_t round_world_size(const struct round *r);    /* workers of that round */
uint32_t round_restart_count(const struct round *r); /* failed rounds that another one followed */
const char *round_text(const struct round *r);       /* about the last event */
bool round_refused_for_now(const struct round *r);   /* JOIN: the peer may try again */
/* Returns whether an agent with this JOIN finds a free place: its node rank, or any. */
bool round_has_place(const struct round *r, const struct cdi_msg_join *join);
const char *round_why(const struct round *r); /* reason why the last round or the job ended */
/*
 * Returns the first failure of the round; kind NONE: none. While the round stops, another one may replace it: an
 * earlier one that a second node had already reported, a worker that was killed where this one exited, or a node that
 * was cut off before the failure and killed its workers (reported by itself, or lost). ROUND_OVER is then sent again.
 */
const struct cdi_failure *round_failure(const struct round *r);
/* STOPPING: whether another round will follow, and whether it will count as a restart, as known so far. */
bool round_restarts(const struct round *r);
bool round_uses_restart(const struct round *r);
/* Returns the last ROUND_OVER: of the stopping round, or of the previous one. */
const struct cdi_msg_round_over *round_over(const struct round *r);
enum cdi_close_status round_close_status(const struct round *r);
/* Sets *have to the number of nodes that wait for a round, and *need to the number that it takes. */
void round_waiting(const struct round *r, uint32_t *have, uint32_t *need);
/* Sets the limits of the number of nodes. */
void round_limits(const struct round *r, uint32_t *min_nodes, uint32_t *max_nodes);
/* Returns a peer's host name; NULL: unknown peer. */
const char *round_host(const struct round *r, uint32_t peer);
size_t round_present(const struct round *r); /* nodes that joined and were neither lost nor left */
/* Returns true if the peer was in a round; then it may be away for a while. */
bool round_may_return(const struct round *r, uint32_t peer);
/* Sets *out to the assignment of a peer (master_addr "" and port 0). Returns false if it is not in the round. */
bool round_assignment(const struct round *r, uint32_t peer, struct cdi_msg_assign *out);
/* Returns the node rank of a peer, in its last round if none runs; -1: it was in no round, or is gone. */
int32_t round_node_rank(const struct round *r, uint32_t peer);

#endif
