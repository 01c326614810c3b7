/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/lease.h"

#include "common/clock.h"

void contact_init(struct contact *c, bool own, bool alone)
{
    *c = (struct contact){.own = own, .alone = alone, .look_ms = CDI_NEVER_MS};
}

void contact_joining(struct contact *c, int64_t now_ms)
{
    c->join_ms = now_ms;
}

/* A fifteenth of the lease: of two thirds that may pass, little is lost to the time since the last one. */
static int64_t beat_every(const struct contact *c)
{
    return c->lease_ms < 15 ? 1 : c->lease_ms / 15;
}

int64_t contact_fence_ms(const struct contact *c)
{
    return c->alive_ms + c->lease_ms * 2 / 3;
}

static int64_t silent_at(const struct contact *c)
{
    return c->alive_ms + c->lease_ms / 5;
}

void contact_welcome(struct contact *c, uint32_t lease_ms, int64_t now_ms)
{
    c->linked = true;
    c->held = false;
    c->look_ms = now_ms;
    c->lease_ms = lease_ms;
    c->alive_ms = c->join_ms;
    c->beat_ms = now_ms + beat_every(c);
    c->seq += CONTACT_IN_FLIGHT; /* answers to what was sent on an earlier connection count for nothing */
}

uint32_t contact_beat(struct contact *c, int64_t now_ms)
{
    c->seq++;
    c->sent_ms[c->seq % CONTACT_IN_FLIGHT] = now_ms;
    c->beat_ms = now_ms + beat_every(c);
    return c->seq;
}

void contact_answer(struct contact *c, uint32_t seq)
{
    int64_t sent = c->sent_ms[seq % CONTACT_IN_FLIGHT];

    if (!c->linked || c->seq - seq >= CONTACT_IN_FLIGHT || sent <= c->alive_ms)
        return;
    c->alive_ms = sent;
    c->held = false;
}

void contact_broken(struct contact *c)
{
    c->linked = false;
}

int64_t contact_act_by_ms(const struct contact *c)
{
    return c->lease_ms == 0 || (c->own && c->alone) || c->fenced ? CDI_NEVER_MS : c->alive_ms + c->lease_ms * 5 / 6;
}

/* Did that moment pass while this process did not run? */
static bool slept_over(int64_t at_ms, int64_t now_ms, int64_t still_ms)
{
    return now_ms >= at_ms && now_ms - still_ms < at_ms;
}

bool contact_was_stopped(struct contact *c, int64_t now_ms)
{
    int64_t still = c->look_ms < now_ms ? now_ms - c->look_ms : 0;

    /* A good connection that only seems silent is not given up: to come back takes time, and the fence may be near. */
    if (c->lease_ms == 0 || c->own || c->fenced ||
        !(slept_over(silent_at(c), now_ms, still) || slept_over(contact_fence_ms(c), now_ms, still)))
        return false;
    c->held = true;
    c->still_ms = still;
    c->alive_ms += still;
    c->look_ms = now_ms;
    c->beat_ms = now_ms;
    c->seq += CONTACT_IN_FLIGHT; /* an answer that has lain here since then says nothing about now */
    return true;
}

static enum contact_do look(struct contact *c, int64_t now_ms, int64_t *next_ms)
{
    *next_ms = CDI_NEVER_MS;
    if (c->lease_ms == 0 || c->fenced)
        return CONTACT_NOTHING;
    if (c->own)
        c->alive_ms = now_ms; /* whoever stopped this process has stopped the rendezvous too */
    if (contact_was_stopped(c, now_ms))
        return CONTACT_HOLD;
    if (!c->own && now_ms >= contact_fence_ms(c)) {
        c->fenced = true;
        return CONTACT_FENCE;
    }
    if (c->linked && !c->own && now_ms >= silent_at(c)) {
        c->linked = false;
        return CONTACT_RECONNECT;
    }
    if (c->linked && now_ms >= c->beat_ms)
        return CONTACT_BEAT;
    if (c->held && now_ms >= c->beat_ms) {
        c->beat_ms = now_ms + beat_every(c);
        return CONTACT_HOLD;
    }
    if (c->linked || c->held)
        *next_ms = c->beat_ms;
    if (c->linked && !c->own && silent_at(c) < *next_ms)
        *next_ms = silent_at(c);
    if (!c->own && contact_fence_ms(c) < *next_ms)
        *next_ms = contact_fence_ms(c);
    return CONTACT_NOTHING;
}

enum contact_do contact_look(struct contact *c, int64_t now_ms, int64_t *next_ms)
{
    enum contact_do due = look(c, now_ms, next_ms);

    c->look_ms = due == CONTACT_NOTHING ? *next_ms : now_ms;
    return due;
}
