/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/lease.h"

#include "common/clock.h"

void lease_init(struct lease *c, bool own, bool alone)
{
    *c = (struct lease){.own = own, .alone = alone, .look_ms = CDI_NEVER_MS};
}

void lease_joining(struct lease *c, int64_t now_ms)
{
    c->join_ms = now_ms;
}

/* A fifteenth of the lease: the time since the last heartbeat costs little of the two thirds that may pass. */
static int64_t beat_every(const struct lease *c)
{
    return c->lease_ms < 15 ? 1 : c->lease_ms / 15;
}

int64_t lease_fence_ms(const struct lease *c)
{
    return c->alive_ms + (c->idle ? c->lease_ms * 2 : c->lease_ms * 2 / 3);
}

static int64_t silent_at(const struct lease *c)
{
    return c->alive_ms + c->lease_ms / 5;
}

void lease_welcome(struct lease *c, uint32_t lease_ms, int64_t now_ms)
{
    c->linked = true;
    c->held = false;
    c->look_ms = now_ms;
    c->lease_ms = lease_ms;
    c->alive_ms = c->join_ms;
    c->beat_ms = now_ms + beat_every(c);
    c->seq += LEASE_IN_FLIGHT; /* answers to messages of an earlier connection are ignored */
}

uint32_t lease_beat(struct lease *c, int64_t now_ms)
{
    c->seq++;
    c->sent_ms[c->seq % LEASE_IN_FLIGHT] = now_ms;
    c->beat_ms = now_ms + beat_every(c);
    return c->seq;
}

void lease_answer(struct lease *c, uint32_t seq)
{
    int64_t sent = c->sent_ms[seq % LEASE_IN_FLIGHT];

    if (!c->linked || c->seq - seq >= LEASE_IN_FLIGHT || sent <= c->alive_ms)
        return;
    c->alive_ms = sent;
    c->held = false;
}

void lease_broken(struct lease *c)
{
    c->linked = false;
    c->own = false; /* a connection that breaks may miss messages, as any other node's */
}

int64_t lease_act_by_ms(const struct lease *c)
{
    return c->lease_ms == 0 || (c->own && c->alone) || c->fenced || c->idle ? CDI_NEVER_MS
                                                                            : c->alive_ms + c->lease_ms * 5 / 6;
}

/* Did this time pass while this process did not run? */
static bool slept_over(int64_t at_ms, int64_t now_ms, int64_t still_ms)
{
    return now_ms >= at_ms && now_ms - still_ms < at_ms;
}

bool lease_was_stopped(struct lease *c, int64_t now_ms)
{
    int64_t still = c->look_ms < now_ms ? now_ms - c->look_ms : 0;

    /* A good connection that only seems silent is kept: reconnecting takes time, and the fence may be near. */
    if (c->lease_ms == 0 || c->own || c->fenced ||
        !(slept_over(silent_at(c), now_ms, still) || slept_over(lease_fence_ms(c), now_ms, still)))
        return false;
    c->held = true;
    c->still_ms = still;
    c->alive_ms += still;
    c->look_ms = now_ms;
    c->beat_ms = now_ms;
    c->seq += LEASE_IN_FLIGHT; /* an answer that was received meanwhile is outdated */
    return true;
}

static enum lease_action lease_next(struct lease *c, int64_t now_ms, int64_t *next_ms)
{
    *next_ms = CDI_NEVER_MS;
    if (c->lease_ms == 0 || c->fenced)
        return LEASE_NOTHING;
    if (c->own)
        c->alive_ms = now_ms; /* a stop of this process stops the rendezvous, too */
    if (lease_was_stopped(c, now_ms))
        return LEASE_HOLD;
    if (!c->own && now_ms >= lease_fence_ms(c)) {
        c->fenced = true;
        return LEASE_FENCE;
    }
    if (c->linked && !c->own && now_ms >= silent_at(c)) {
        c->linked = false;
        return LEASE_RECONNECT;
    }
    if (c->linked && now_ms >= c->beat_ms)
        return LEASE_BEAT;
    if (c->held && now_ms >= c->beat_ms) {
        c->beat_ms = now_ms + beat_every(c);
        return LEASE_HOLD;
    }
    if (c->linked || c->held)
        *next_ms = c->beat_ms;
    if (c->linked && !c->own && silent_at(c) < *next_ms)
        *next_ms = silent_at(c);
    if (!c->own && lease_fence_ms(c) < *next_ms)
        *next_ms = lease_fence_ms(c);
    return LEASE_NOTHING;
}

enum lease_action lease_look(struct lease *c, int64_t now_ms, int64_t *next_ms)
{
    enum lease_action due = lease_next(c, now_ms, next_ms);

    c->look_ms = due == LEASE_NOTHING ? *next_ms : now_ms;
    return due;
}
