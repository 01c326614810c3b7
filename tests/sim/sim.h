/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulator of rounds: nodes that start, crash, hang and return; a network that delays, breaks and duplicates; clocks
 * of different speed; the real rendezvous/round/round.c, with a model of its session (leases, tokens, connections); and
 * an oracle that checks every guarantee after each event. A seed determines the job. Without real time, and without I/O
 * but its output.
 */
#ifndef SIM_H
#define SIM_H

#include "protocol/cause.h"
#include "rendezvous/round/round.h"

#include <setjmp.h>
#include <stdarg.h>

#define SIM_LEASE_MS 15000
#define SIM_STOP_MS 5000 /* longest time for workers to stop */
#define SIM_TICK_MS 250

/* Kinds of events. */
enum sim_kind {
    SIM_START,   /* the node's agent starts */
    SIM_CONNECT, /* a connection with JOIN arrives */
    SIM_REPORT,  /* a message of an agent arrives */
    SIM_EOF,     /* the server notices a closed connection */
    SIM_RESET,   /* the server notices a broken connection */
    SIM_HEAR,    /* a message for an agent arrives */
    SIM_WORK,    /* its workers end */
    SIM_GONE,    /* its workers are stopped */
    SIM_FENCE,   /* two thirds of the lease have passed on the agent */
    SIM_LEASE,   /* the lease has ended on the server */
    SIM_HEAL,    /* the network of a node works again */
    SIM_THAW,    /* a stopped node continues */
    SIM_TICK,
    SIM_FAULT,
    SIM_UNKNOWN_CLIENT, /* a client connects that does not belong to the job */
    SIM_CALM,           /* no further faults: the job must end */
};

enum sim_report { SAY_FAILED, SAY_NODE, SAY_DONE, SAY_STOPPED, SAY_LEAVE };

enum sim_news { HEAR_WELCOME, HEAR_RESUMED, HEAR_WAITING, HEAR_ASSIGN, HEAR_OVER, HEAR_CLOSED, HEAR_REFUSED };

struct sim_event {
    int64_t at;
    uint64_t order; /* for events at the same time */
    enum sim_kind kind;
    uint32_t who; /* a node; for RESET, EOF and LEASE a slot */
    uint32_t seq; /* the event is stale if the number of its object has changed: of the connection, the slot, ... */
    uint32_t life;
    uint32_t what; /* enum sim_report or sim_news, or 1: failed */
    uint32_t round;
};

/* A slot of a peer on the server, as in session.c, and the state that the oracle keeps for it. */
struct sim_slot {
    uint32_t machine, conn, life, next_free;
    bool used, joined, away;
    int64_t heard_ms; /* after the last message: its time */
    /* of the oracle */
    bool member, notified, done, leaving, closed; /* of the current round; has ROUND_OVER; ... */
    bool counted_away, ran;                       /* it was in a round */
    int64_t last_round;
    uint32_t last_rank, n_procs;
    int32_t wanted;
    uint32_t restarts; /* of the job, from its JOIN */
};

struct sim_machine {
    bool on, up, cut, frozen, ending;              /* up: it has a connection, as far as the agent knows */
    bool workers, stopping, counted;               /* counted: as running by the oracle */
    bool failed, node_failed, done, stopped, left; /* messages sent for its round */
    uint32_t conn, attempt, stop_seq, contact;
    uint32_t at, at_life; /* slot of its connection */
    int64_t old_until;    /* until then, messages on an abandoned connection still arrive */
    int64_t last_sent, last_heard, alive_ms, cut_until, thaw_at;
    int64_t failed_ms; /* time when its workers failed, or were killed after a cut */
    int64_t round;     /* last one that it knows; -1: none */
    int64_t assigned;  /* last one that it was assigned, for its return; -1: none */
    double rate;       /* of its clock */
    uint32_t n_procs;
    int32_t wanted;
    uint32_t restarts; /* of the job that it knows of, from this server or an earlier one */
};

/* Reason for the end of the current round, by the oracle's own rules. */
enum sim_cause { CAUSE_NONE, CAUSE_FAILED, CAUSE_CHANGED, CAUSE_LEFT };

struct sim {
    uint64_t seed, rng;
    bool trace;
    struct round *r;
    struct round_options opt;
    bool elastic, calm;
    int64_t now;
    struct sim_event *heap;
    size_t n_heap, heap_cap;
    uint64_t orders;
    struct sim_machine *machines;
    uint32_t n_machines;
    struct sim_slot *slots;
    uint32_t n_slots, slots_cap, free_slot;
    uint32_t conns;
    int64_t latency_ms, fault_every_ms;
    uint64_t n_events, n_rounds; /* events for the round (without ticks); rounds begun */
    uint64_t max_faults, n_faults;

    /* Of the oracle. */
    enum round_state state;
    enum sim_cause cause;
    int64_t since_ms;    /* of that state */
    int64_t enough_ms;   /* JOINING: time since which enough nodes are present; -1 */
    int64_t ready_ms;    /* the same, all of them connected */
    int64_t notified_ms; /* JOINING: time of the last WAITING */
    int64_t began_ms;    /* the last round */
    int64_t pause_ms;    /* JOINING: the least time before the next round, after rounds that failed at once */
    unsigned n_quick;    /* of those, in a row */
    int64_t paused_for;  /* the round after which pause_ms is */
    int64_t last_number; /* of the last round that began; -1 */
    uint32_t last_n, restarts, n_done, n_waiting, n_away, n_present, n_leaving;
    bool keys, ending, any_left;
    bool gives_up;      /* the workers stood still, and no round may follow for that */
    bool recast;        /* by this event: the failure that ended the round was a consequence */
    bool by_node;       /* the round ended because a node was lost or cut off */
    int64_t failed_at;  /* time of that failure on its node */
    uint32_t failed_by; /* its node rank */
    uint32_t n_running; /* nodes whose workers run */
    uint32_t *place;    /* scratch: the peer of each rank, or UINT32_MAX */
    size_t place_cap;

    jmp_buf broken;
    char why[512];
};

/* Reports a broken guarantee. Does not return. */
_Noreturn void sim_fail(struct sim *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define SIM_CHECK(w, cond, ...)         \
    do {                                \
        if (!(cond))                    \
            sim_fail((w), __VA_ARGS__); \
    } while (0)

/* Runs one job of at most this many nodes (drawn from lo to hi). Returns false if a guarantee was broken: w->why. */
bool sim_run(struct sim *w, uint64_t seed, uint32_t lo, uint32_t hi, bool trace);

/* oracle.c: before each event, after it with the actions, and at every tick. */
void oracle_before(struct sim *w, const struct round_event *ev);
void oracle_after(struct sim *w, const struct round_event *ev, const struct round_action *a, size_t n);
void oracle_tick(struct sim *w);
/* The workers of a node start or end. */
void oracle_running(struct sim *w, uint32_t machine, bool runs);

#endif
