/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/contact.h"

#include "common/clock.h"

void contact_init(struct contact *c, bool own)
{
    *c = (struct contact){.own = own};
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

static int64_t fence_at(const struct contact *c)
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

    if (c->linked && c->seq - seq < CONTACT_IN_FLIGHT && sent > c->alive_ms)
        c->alive_ms = sent;
}

void contact_broken(struct contact *c)
{
    c->linked = false;
}

int64_t contact_act_by_ms(const struct contact *c)
{
    return c->lease_ms == 0 || c->own || c->fenced ? CDI_NEVER_MS : c->alive_ms + c->lease_ms * 5 / 6;
}

enum contact_do contact_look(struct contact *c, int64_t now_ms, int64_t *next_ms)
{
    *next_ms = CDI_NEVER_MS;
    if (c->lease_ms == 0 || c->fenced)
        return CONTACT_NOTHING;
    if (!c->own && now_ms >= fence_at(c)) {
        c->fenced = true;
        return CONTACT_FENCE;
    }
    if (c->linked && !c->own && now_ms >= silent_at(c)) {
        c->linked = false;
        return CONTACT_RECONNECT;
    }
    if (c->linked && now_ms >= c->beat_ms)
        return CONTACT_BEAT;
    if (c->linked)
        *next_ms = c->beat_ms;
    if (c->linked && !c->own && silent_at(c) < *next_ms)
        *next_ms = silent_at(c);
    if (!c->own && fence_at(c) < *next_ms)
        *next_ms = fence_at(c);
    return CONTACT_NOTHING;
}
