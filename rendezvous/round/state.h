/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What round.c, members.c and ranks.c share: the state of a job's rounds, and what each does for the others. For these
 * three alone; everybody else uses round.h.
 */
#ifndef RDZV_ROUND_STATE_H
#define RDZV_ROUND_STATE_H

#include "rendezvous/round/round.h"

#include <stdio.h>

enum node_state {
    NODE_ABSENT,
    NODE_WAITING,  /* for the next round */
    NODE_RUNNING,  /* its workers run */
    NODE_DONE,     /* they all ended well */
    NODE_STOPPING, /* was told ROUND_OVER, has not said STOPPED yet */
    NODE_N_STATES,
};

/* Why a round ended. */
enum verdict {
    OVER_FAILED,  /* a failure that counts */
    OVER_CHANGED, /* a node was lost, left or came: the others go on */
    OVER_LEFT,    /* a node left, and the job ends with it */
};

struct node {
    enum node_state state;
    int32_t wanted;     /* node rank that it asked for; -1: any */
    int32_t node_rank;  /* of the last round it was in; -1: none yet */
    int64_t last_round; /* the number of that round; -1: none yet */
    uint32_t rank_base, n_procs;
    uint64_t order;    /* of arrival */
    uint32_t restarts; /* of the job, as its agent knows them from an earlier rendezvous; 0: none, or taken over */
    bool away;         /* its connection broke, and its lease runs */
    bool leaving;      /* it goes as soon as its workers have stopped */
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
    bool ending;          /* the rendezvous is about to go: no round follows */
    enum cdi_close_status close_status;
    int64_t deadline_ms, next_waiting_ms;
    int64_t enough_ms; /* JOINING: since when min_nodes are there; INT64_MAX: they are not */
    uint64_t arrivals;

    struct node *nodes; /* by peer */
    size_t cap;
    size_t count[NODE_N_STATES];  /* nodes in each state, ABSENT aside */
    size_t away[NODE_N_STATES];   /* those of them that are away */
    size_t n_leaving;             /* nodes that are there, but not for long */
    size_t n_left;                /* nodes that left since the last round began */
    uint64_t procs;               /* workers of all nodes that are there */
    uint32_t n_nodes, world_size; /* of the last round that began */

    uint32_t *by_rank; /* the peer that last asked for a node rank, or NO_PEER */
    size_t by_rank_cap;
    uint32_t *slots;              /* 2 * cap long: scratch for assigning ranks */
    struct round_action *actions; /* room for the most that one event can cause */
    size_t n_actions;
    struct cdi_failure failure;
    int64_t failed_ms;              /* when it was heard of */
    struct cdi_msg_round_over over; /* what ROUND_OVER says */
    char text[512];                 /* about the last event */
    char why[512];                  /* why the round or the job ended */
    char lost[160];                 /* hosts that were lost since the last round began, for sentences */
};

#define NO_PEER UINT32_MAX

/* Into r->text (about one event) or r->why (why the job ends). */
#define say(where, ...) ((void)snprintf((where), sizeof(where), __VA_ARGS__))

/* The nodes that say so may differ from round to round. */
static inline bool is_elastic(const struct round *r)
{
    return r->opt.min_nodes < r->opt.max_nodes || r->opt.spares > 0;
}

/* ----------------------------------------------------------------------------------- members.c: who is there ---- */

/* Room for a peer: everything that later events need is allocated here, so that only a JOIN can fail. */
bool members_make_room(struct round *r, uint32_t peer);
/* How many actions r->actions has room for: the most that one event can cause. */
size_t members_actions(const struct round *r);
void members_move(struct round *r, struct node *n, enum node_state to);
void members_set_away(struct round *r, struct node *n, bool away);
void members_set_leaving(struct round *r, struct node *n);
/* A node that is there goes; its peer's number is free then. */
void members_remove(struct round *r, struct node *n);
/* May it join? If not, r->text says why. */
bool members_may_join(struct round *r, const struct cdi_msg_join *j);
/* It waits from now on. false: no memory, and nothing changed. */
bool members_add(struct round *r, uint32_t peer, const struct cdi_msg_join *j);
/* "WHAT: 1 of 2 nodes are here (a); missing: node rank 1; lost: b". */
void members_say_missing(const struct round *r, const char *what, char text[512]);
/* A host was lost, for the sentence above. */
void members_note_lost(struct round *r, const char *host);

/* ------------------------------------------------------------------------------------- ranks.c: who gets which ---- */

/* The peers that will be in the next round, at the front of r->slots. Returns how many. */
uint32_t ranks_choose(struct round *r);
/*
 * Give the n nodes chosen their ranks, and make them RUNNING: first who asked for one, then who had one in the round
 * before, then the rest. Returns place[rank], the peer; valid until the next call.
 */
const uint32_t *ranks_assign(struct round *r, uint32_t n);

#endif
