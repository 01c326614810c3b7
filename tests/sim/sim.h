/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator of rounds: machines that start, crash, hang, return; a network that delays, breaks and doubles; clocks
 * that run unequally; a rendezvous that is rendezvous/round/round.c itself, with its session (leases, tokens,
 * connections) modelled here; and an oracle that looks after every event whether a promise was broken. One seed is one
 * job, and the same seed is the same job again. No real time, no I/O but what it says.
 */
#ifndef SIM_H
#define SIM_H

#include "rendezvous/round/round.h"

#include <setjmp.h>
#include <stdarg.h>

#define SIM_LEASE_MS 15000
#define SIM_STOP_MS 5000 /* the longest that workers take to stop */
#define SIM_TICK_MS 250

/* What happens, when, to whom. */
enum sim_kind {
    SIM_START,   /* the machine's agent starts */
    SIM_CONNECT, /* a connection arrives, with JOIN */
    SIM_REPORT,  /* a message of an agent arrives */
    SIM_EOF,     /* a closed connection is seen */
    SIM_RESET,   /* a broken connection is seen by the rendezvous */
    SIM_HEAR,    /* a message for an agent arrives */
    SIM_WORK,    /* its workers come to an end */
    SIM_GONE,    /* its workers have been stopped */
    SIM_FENCE,   /* two thirds of the lease have passed for an agent */
    SIM_LEASE,   /* the whole of it has for the rendezvous */
    SIM_HEAL,    /* the network of a machine works again */
    SIM_THAW,    /* a stopped machine goes on */
    SIM_TICK,
    SIM_FAULT,
    SIM_STRANGER, /* somebody connects who has no business here */
    SIM_CALM,     /* no faults any more: the job must end */
};

enum sim_report { SAY_FAILED, SAY_NODE, SAY_DONE, SAY_STOPPED, SAY_LEAVE };

enum sim_news { HEAR_WELCOME, HEAR_RESUMED, HEAR_WAITING, HEAR_ASSIGN, HEAR_OVER, HEAR_CLOSED, HEAR_REFUSED };

struct sim_event {
    int64_t at;
    uint64_t order; /* of two at the same time */
    enum sim_kind kind;
    uint32_t who; /* a machine; of RESET, EOF and LEASE a slot */
    uint32_t seq; /* it is stale if that of its object has changed: the connection, the slot's life, ... */
    uint32_t life;
    uint32_t what; /* enum sim_report or sim_news, or 1: badly */
    uint32_t round;
};

/* A place of a peer at the rendezvous: as session.c has them; and what the oracle knows of it. */
struct sim_slot {
    uint32_t machine, conn, life, next_free;
    bool used, joined, away;
    int64_t heard_ms; /* while nothing is heard any more: the last time */
    /* the oracle's */
    bool member, told, done, leaving, closed; /* in the present round; was told that it is over; ... */
    bool counted_away, ran;                   /* it was a member once */
    int64_t last_round;
    uint32_t last_rank, n_procs;
    int32_t wanted;
    uint32_t restarts; /* of the job, that its JOIN told */
};

struct sim_machine {
    bool on, up, cut, frozen, ending;              /* up: it has a connection, as far as it knows */
    bool workers, stopping, counted;               /* counted: as running, by the oracle */
    bool failed, node_failed, done, stopped, left; /* what it has said of its round */
    uint32_t conn, attempt, stop_seq, contact;
    uint32_t at, at_life; /* the slot that its connection has */
    int64_t old_until;    /* what was on its way on a connection that it gave up still arrives until then */
    int64_t last_sent, last_heard, alive_ms, cut_until, thaw_at;
    int64_t failed_ms; /* when its workers failed, or were killed because it was cut off */
    int64_t round;     /* that it knows last; -1: none */
    int64_t assigned;  /* that it was assigned last, and can come back to; -1: none */
    double rate;       /* of its clock */
    uint32_t n_procs;
    int32_t wanted;
    uint32_t restarts; /* of the job, as it knows them: from an earlier rendezvous, or this one */
};

/* Why the present round ends, by the oracle's own reading of the rules. */
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
    uint64_t n_events, n_rounds; /* given to the round (without ticks); begun */
    uint64_t max_faults, n_faults;

    /* The oracle's. */
    enum round_state state;
    enum sim_cause cause;
    int64_t since_ms;    /* of that state */
    int64_t enough_ms;   /* JOINING: since when enough nodes are there; -1 */
    int64_t ready_ms;    /* the same, and no connection of theirs is broken */
    int64_t told_ms;     /* JOINING: when the waiting were told about it last */
    int64_t last_number; /* of the last round that began; -1 */
    uint32_t last_n, restarts, n_done, n_waiting, n_away, n_present, n_leaving;
    bool keys, ending, any_left;
    bool recast;        /* by this event: what ended the round was the echo of something else */
    bool by_node;       /* what ended the round is that a node was lost or cut off */
    int64_t failed_at;  /* when that failure was, by its own node */
    int64_t failed_ms;  /* when it was heard of */
    uint32_t failed_by; /* the node rank it was on */
    uint32_t n_running; /* machines whose workers run now */
    uint32_t *place;    /* scratch: the peer of each rank, or UINT32_MAX */
    size_t place_cap;

    jmp_buf broken;
    char why[512];
};

/* A promise is broken: does not return. */
_Noreturn void sim_fail(struct sim *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define SIM_CHECK(w, cond, ...)         \
    do {                                \
        if (!(cond))                    \
            sim_fail((w), __VA_ARGS__); \
    } while (0)

/* One job of this many nodes at most (drawn from lo to hi); false: w->why says which promise was broken. */
bool sim_run(struct sim *w, uint64_t seed, uint32_t lo, uint32_t hi, bool trace);

/* oracle.c. Before the event is given to the round; after, with what it said; and at every tick. */
void oracle_before(struct sim *w, const struct round_event *ev);
void oracle_after(struct sim *w, const struct round_event *ev, const struct round_action *a, size_t n);
void oracle_tick(struct sim *w);
/* The workers of a machine begin to run, or do not run any more. */
void oracle_running(struct sim *w, uint32_t machine, bool runs);

#endif
