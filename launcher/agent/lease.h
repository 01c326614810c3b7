/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's side of the lease: when to send a HEARTBEAT, when to reconnect, and when to kill the workers because the
 * rendezvous may be about to count this node as lost. Pure; docs/internals/protocol.md has the rules.
 */
#ifndef LEASE_H
#define LEASE_H

#include <stdbool.h>
#include <stdint.h>

#define LEASE_IN_FLIGHT 32 /* heartbeats whose send time is remembered */

struct lease {
    bool own;    /* the rendezvous is in this process, and stops and continues with it */
    bool alone;  /* no other node waits for this one */
    bool linked; /* WELCOME was received on the present connection */
    bool fenced; /* FENCE was returned; no action follows it */
    bool idle;   /* no worker runs until the next round: FENCE, which has nothing to kill, comes after two leases */
    bool held;   /* HOLD was returned; ends when the rendezvous answers a message sent after it */
    int64_t lease_ms; /* 0: no WELCOME yet */
    int64_t
        alive_ms;    /* when the last answered HEARTBEAT or JOIN was sent: the rendezvous received it later than this */
    int64_t join_ms; /* when the last JOIN was sent */
    int64_t beat_ms; /* when the next HEARTBEAT is due */
    int64_t look_ms; /* when the next lease_look() was due: after it, this process did not run */
    int64_t still_ms; /* how long it did not run, when HOLD was returned */
    uint32_t seq;     /* of the last one */
    int64_t sent_ms[LEASE_IN_FLIGHT];
};

enum lease_action {
    LEASE_NOTHING,
    LEASE_BEAT,      /* send the HEARTBEAT that lease_beat() makes */
    LEASE_RECONNECT, /* the connection is silent: reset it, and connect again */
    LEASE_FENCE,     /* kill the workers now */
    LEASE_HOLD,      /* stop the workers (again) until `held` is over: see lease_was_stopped() */
};

/* Starts a lease without a connection. */
void lease_init(struct lease *c, bool own, bool alone);
/* Notes that JOIN is being sent. */
void lease_joining(struct lease *c, int64_t now_ms);
/* Notes WELCOME: the lease counts from the last JOIN. */
void lease_welcome(struct lease *c, uint32_t lease_ms, int64_t now_ms);
/* Notes that a HEARTBEAT is being sent, and returns its seq. */
uint32_t lease_beat(struct lease *c, int64_t now_ms);
/* Notes the answer to the HEARTBEAT with this seq. */
void lease_answer(struct lease *c, uint32_t seq);
/* Notes that the connection is lost. */
void lease_broken(struct lease *c);
/*
 * Returns when FENCE is due without an answer until then. An idle agent, whose workers have succeeded, waits longer: it
 * may be cut off while it learns how the job ended, and the host waits for it for a lease.
 */
int64_t lease_fence_ms(const struct lease *c);
/*
 * Returns the time by which this agent must have acted, or the guard ends its workers (guard.h). It is later than
 * FENCE, so that a running agent never needs it, and before the lease ends. CDI_NEVER_MS: none. It also applies to the
 * host of the rendezvous of other nodes, which end when they have not received its messages for the lease.
 */
int64_t lease_act_by_ms(const struct lease *c);
/*
 * Returns whether this process did not run (it or its node was stopped) until FENCE would be due. If all processes of a
 * job were stopped, such as by a scheduler that suspends it, the rendezvous has not counted that time. If only this
 * node was, the rendezvous may count it as lost. Its answer shows which. True is returned once: `held` is set, and must
 * be obeyed before any message that has arrived meanwhile. The time is then no longer counted.
 */
bool lease_was_stopped(struct lease *c, int64_t now_ms);
/* Returns the action that is due. Call again until it is NOTHING, and then at *next_ms (CDI_NEVER_MS: not needed). */
enum lease_action lease_look(struct lease *c, int64_t now_ms, int64_t *next_ms);

#endif
