/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's side of the lease: when to send a HEARTBEAT, when to come back by a new connection, when to kill the
 * workers because the rendezvous may be about to count this node as lost. Pure; the rules are docs/protocol.md's.
 */
#ifndef LEASE_H
#define LEASE_H

#include <stdbool.h>
#include <stdint.h>

#define LEASE_IN_FLIGHT 32 /* heartbeats whose time of sending is remembered */

struct lease {
    bool own;         /* the rendezvous is in this process: it stops and goes on with us, so nothing can be missed */
    bool alone;       /* no other node waits for us */
    bool linked;      /* WELCOME has come on the present connection */
    bool fenced;      /* FENCE was said; nothing follows it */
    bool held;        /* HOLD was said; over when the rendezvous answers what was sent after it */
    int64_t lease_ms; /* 0: no WELCOME yet */
    int64_t alive_ms; /* when the last answered HEARTBEAT or JOIN was sent: the rendezvous heard from us no earlier */
    int64_t join_ms;  /* when the last JOIN was sent */
    int64_t beat_ms;  /* when the next HEARTBEAT is due */
    int64_t look_ms;  /* when lease_look() was to be called next: what is later, this process did not run */
    int64_t still_ms; /* how long it did not, when HOLD was said */
    uint32_t seq;     /* of the last one */
    int64_t sent_ms[LEASE_IN_FLIGHT];
};

enum lease_action {
    LEASE_NOTHING,
    LEASE_BEAT,      /* send the HEARTBEAT that lease_beat() makes */
    LEASE_RECONNECT, /* the connection is silent: reset it and come back by another */
    LEASE_FENCE,     /* kill the workers now */
    LEASE_HOLD,      /* stop the workers (again) until `held` is over: see lease_was_stopped() */
};

void lease_init(struct lease *c, bool own, bool alone);
void lease_joining(struct lease *c, int64_t now_ms); /* JOIN is being sent */
void lease_welcome(struct lease *c, uint32_t lease_ms, int64_t now_ms);
uint32_t lease_beat(struct lease *c, int64_t now_ms); /* its seq */
void lease_answer(struct lease *c, uint32_t seq);
void lease_broken(struct lease *c);            /* the connection is gone */
int64_t lease_fence_ms(const struct lease *c); /* when FENCE is due, if nothing is answered until then */
/*
 * By when this agent must have moved, else somebody else ends its workers (guard.h): later than FENCE, so that an agent
 * that runs is never in need of it, and before the lease is over. CDI_NEVER_MS: it need not. Who hosts the rendezvous
 * of other nodes has such a time, too: they end when they have not heard of it for the lease.
 */
int64_t lease_act_by_ms(const struct lease *c);
/*
 * Has this process not run (it was stopped, or its machine was) until FENCE would be due? Where all processes of a job
 * are stopped, as a scheduler does to suspend it, the rendezvous has not counted that time, and where only this node
 * was, the rendezvous may count it as lost. An answer tells which. True, once: `held` is set and must be obeyed before
 * anything else that has arrived meanwhile; time that this process did not run is then no longer counted.
 */
bool lease_was_stopped(struct lease *c, int64_t now_ms);
/* What is due. Call again until it is NOTHING, and then at *next_ms (CDI_NEVER_MS: not needed). */
enum lease_action lease_look(struct lease *c, int64_t now_ms, int64_t *next_ms);

#endif
