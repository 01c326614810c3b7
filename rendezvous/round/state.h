/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to round.c, members.c and ranks.c: the state of a job's rounds, and the functions of each file for the
 * others. Other files use round.h.
 */
#ifndef RDZV_ROUND_STATE_H
#define RDZV_ROUND_STATE_H

#include "rendezvous/round/round.h"

#include <stdio.h>

enum node_state {
    NODE_ABSENT,
    NODE_WAITING,  /* for the next round */
    NODE_RUNNING,  /* its workers are running */
    NODE_DONE,     /* all of its workers exited with status 0 */
    NODE_STOPPING, /* ROUND_OVER is sent, STOPPED not received yet */
    NODE_N_STATES,
};

/* Why a round ended. */
enum verdict {
    OVER_FAILED,  /* a failure, which counts as a restart */
    OVER_CHANGED, /* a node was lost, left or joined; the others continue */
    OVER_LEFT,    /* a node left, which ends the job */
};

struct node {
    enum node_state state;
    int32_t wanted;     /* requested node rank; -1: any */
    int32_t node_rank;  /* of the last round it was in; -1: none yet */
    int64_t last_round; /* the number of that round; -1: none yet */
    uint32_t rank_base, n_procs;
    uint64_t order;    /* of arrival */
    uint32_t restarts; /* of the job, from an earlier rendezvous server, not added yet */
    bool away;         /* its connection broke, its lease has not ended */
    bool leaving;      /* leaves after its workers have stopped */
    int64_t ahead_ms;  /* its clock, of the server's, if has_clock */
    bool has_clock;
    int64_t pid;
    char *host;
    char *topology; /* "": none */
};

struct round {
    struct round_options opt;
    char *run_id;
    enum round_state state;
    uint32_t number, restart_count;
    enum verdict verdict; /* STOPPING and later */
    bool ending;          /* the rendezvous server is shutting down: no round follows */
    bool gives_up;        /* the workers stood still, and the job is to end for that */
    enum cdi_close_status close_status;
    int64_t deadline_ms, next_waiting_ms;
    int64_t started_ms, stopped_ms; /* of the last round: when it began, and when it was to stop */
    int64_t begin_ms;               /* of the next one at the earliest */
    unsigned n_quick;               /* rounds in a row that failed soon after their start */
    bool for_now;                   /* the last JOIN was refused, but may be repeated */
    int64_t enough_ms;              /* JOINING: time since which min_nodes are present; INT64_MAX: fewer are */
    uint64_t arrivals;

    struct node *nodes; /* by peer */
    size_t cap;
    size_t count[NODE_N_STATES];  /* nodes in each state but ABSENT */
    size_t away[NODE_N_STATES];   /* of these, nodes that are away */
    size_t n_leaving;             /* present nodes with `leaving` */
    size_t n_left;                /* nodes that have left since the last round began */
    uint64_t procs;               /* workers of all present nodes */
    uint32_t n_nodes, world_size; /* of the last round that began */

    uint32_t *by_rank; /* last peer that requested a node rank, or NO_PEER */
    size_t by_rank_cap;
    uint32_t *slots;              /* scratch memory for assigning ranks, 2 * cap */
    struct round_action *actions; /* room for the most actions of one event */
    size_t n_actions;
    struct cdi_failure failure;
    int64_t failed_ms;              /* when it happened */
    struct cdi_msg_round_over over; /* last ROUND_OVER */
    char text[512];                 /* about the last event */
    char why[512];                  /* reason why the round or the job ended */
    char lost[160];                 /* hosts lost since the last round began, for messages */
};

#define NO_PEER UINT32_MAX

/* Formats into r->text (about one event) or r->why (why the job ends). */
#define round_printf(where, ...) ((void)snprintf((where), sizeof(where), __VA_ARGS__))

/* Returns true if the number of nodes may change from round to round. */
static inline bool is_elastic(const struct round *r)
{
    return r->opt.min_nodes < r->opt.max_nodes || r->opt.spares > 0;
}

/* ---------------------------------------------------------------------------------- members.c: present nodes ---- */

/* Allocates everything that later events of a peer need, so that only a JOIN can fail. */
bool members_make_room(struct round *r, uint32_t peer);
/* Returns the capacity of r->actions: the most actions of one event. */
size_t members_actions(const struct round *r);
void members_move(struct round *r, struct node *n, enum node_state to);
void members_set_away(struct round *r, struct node *n, bool away);
void members_set_leaving(struct round *r, struct node *n);
/* Removes a present node; its peer number is free afterwards. */
void members_remove(struct round *r, struct node *n);
/* Returns true if a node may join. Otherwise r->text holds the reason. */
bool members_may_join(struct round *r, const struct cdi_msg_join *j, bool stale);
/* Adds a node, in state WAITING. Returns false if out of memory (nothing changed). */
bool members_add(struct round *r, uint32_t peer, const struct cdi_msg_join *j);
/* Writes "WHAT: 1 of 2 nodes have joined (a); missing: node rank 1; lost: b". */
void members_say_missing(const struct round *r, const char *what, char text[512]);
/* Adds a lost host to that message. */
void members_note_lost(struct round *r, const char *host);

/* --------------------------------------------------------------------------------------- ranks.c: assignment ---- */

/* Chooses the peers of the next round, at the front of r->slots. Returns their number. */
uint32_t ranks_choose(struct round *r);
/*
 * Assigns ranks to the n chosen nodes, and makes them RUNNING: first nodes that requested one, then those that had one
 * in the previous round, then the rest. Returns the peers by rank; valid until the next call.
 */
const uint32_t *ranks_assign(struct round *r, uint32_t n);

#endif
