/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's side of the lease: when to send a HEARTBEAT, when to come back by a new connection, when to kill the
 * workers because the rendezvous may be about to count this node as lost. Pure; the rules are PROTOCOL.md's.
 */
#ifndef CONTACT_H
#define CONTACT_H

#include <stdbool.h>
#include <stdint.h>

#define CONTACT_IN_FLIGHT 32 /* heartbeats whose time of sending is remembered */

struct contact {
    bool own;         /* the rendezvous is in this process: it stops and goes on with us, so nothing can be missed */
    bool linked;      /* WELCOME has come on the present connection */
    bool fenced;      /* FENCE was said; nothing follows it */
    int64_t lease_ms; /* 0: no WELCOME yet */
    int64_t alive_ms; /* when the last answered HEARTBEAT or JOIN was sent: the rendezvous heard from us no earlier */
    int64_t join_ms;  /* when the last JOIN was sent */
    int64_t beat_ms;  /* when the next HEARTBEAT is due */
    uint32_t seq;     /* of the last one */
    int64_t sent_ms[CONTACT_IN_FLIGHT];
};

enum contact_do {
    CONTACT_NOTHING,
    CONTACT_BEAT,      /* send the HEARTBEAT that contact_beat() makes */
    CONTACT_RECONNECT, /* the connection is silent: reset it and come back by another */
    CONTACT_FENCE,     /* kill the workers now */
};

void contact_init(struct contact *c, bool own);
void contact_joining(struct contact *c, int64_t now_ms); /* JOIN is being sent */
void contact_welcome(struct contact *c, uint32_t lease_ms, int64_t now_ms);
uint32_t contact_beat(struct contact *c, int64_t now_ms); /* its seq */
void contact_answer(struct contact *c, uint32_t seq);
void contact_broken(struct contact *c); /* the connection is gone */
/*
 * By when this agent must have moved, else somebody else ends its workers (guard.h): later than FENCE, so that an agent
 * that runs is never in need of it, and before the lease is over. CDI_NEVER_MS: it need not.
 */
int64_t contact_act_by_ms(const struct contact *c);
/* What is due. Call again until it is NOTHING, and then at *next_ms (CDI_NEVER_MS: not needed). */
enum contact_do contact_look(struct contact *c, int64_t now_ms, int64_t *next_ms);

#endif
