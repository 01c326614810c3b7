/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/etcd/elect.h"

#include "common/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define RETRY_FIRST_MS 50

void elect_init(struct elect *e, int64_t lease_ms, int64_t deadline_ms, const char *name, const char *key)
{
    *e = (struct elect){.state = ELECT_LOOKING,
                        .lease_ms = lease_ms,
                        .deadline_ms = deadline_ms,
                        .next_ms = CDI_NEVER_MS,
                        .say_ms = CDI_NEVER_MS,
                        .end_by_ms = CDI_NEVER_MS,
                        .wait_ms = RETRY_FIRST_MS};
    (void)snprintf(e->name, sizeof e->name, "%s", name);
    (void)snprintf(e->key, sizeof e->key, "%s", key);
}

int64_t elect_answers_until_ms(const struct elect *e)
{
    return e->state == ELECT_HOSTING ? e->good_ms + e->ttl_ms / 5 : 0;
}

int64_t elect_alone_until_ms(const struct elect *e)
{
    return e->state == ELECT_HOSTING ? e->good_ms + e->ttl_ms * 19 / 20 : 0;
}

static void elect_act(struct elect_actions *out, enum elect_action_kind what)
{
    if (out->n < ELECT_MAX_ACTIONS)
        out->v[out->n++] = (struct elect_action){.what = what};
}

__attribute__((format(printf, 3, 4))) static void elect_say(struct elect_actions *out, enum elect_action_kind what,
                                                            const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(out->text, sizeof out->text, fmt, ap);
    va_end(ap);
    elect_act(out, what);
}

static void elect_send(struct elect *e, enum elect_ask ask, int64_t now_ms, struct elect_actions *out)
{
    e->asking = ask;
    e->asked_ms = now_ms;
    e->next_ms = CDI_NEVER_MS;
    if (out->n < ELECT_MAX_ACTIONS)
        out->v[out->n++] = (struct elect_action){.what = ELECT_DO_ASK, .ask = ask};
}

/* A renewal takes part of the fifth of the lease in which the server answers. */
static int64_t keep_every(const struct elect *e)
{
    return e->ttl_ms < 15 ? 1 : e->ttl_ms / 15;
}

/* --------------------------------------------------------------------------------------------------- ending ---- */

static void elect_end(struct elect *e, struct elect_actions *out)
{
    e->state = ELECT_ENDED;
    e->next_ms = e->say_ms = e->end_by_ms = e->deadline_ms = CDI_NEVER_MS;
    elect_act(out, ELECT_DO_ENDED);
}

static void elect_fail(struct elect *e, struct elect_actions *out)
{
    elect_act(out, ELECT_DO_FAIL);
    e->state = ELECT_ENDED;
    e->next_ms = e->say_ms = e->deadline_ms = CDI_NEVER_MS;
}

/* No request is under way: sends the first of the last ones. */
static void begin_ending(struct elect *e, bool was_host, int64_t now_ms, struct elect_actions *out)
{
    e->state = ELECT_ENDING;
    e->say_ms = e->deadline_ms = CDI_NEVER_MS;
    if (was_host && e->over)
        elect_send(e, ELECT_ASK_TOMB, now_ms, out);
    else if (e->lease != 0 && (!was_host || e->give_up))
        elect_send(e, ELECT_ASK_REVOKE, now_ms, out); /* of a host: no worker of its rounds runs */
    else
        elect_end(e, out); /* of a host: others may still run, so the lease must end by itself */
}

static void on_ending_answer(struct elect *e, enum elect_ask asked, const struct elect_answer *a, int64_t now_ms,
                             struct elect_actions *out)
{
    if (a->failed && !a->fatal && !a->lease_gone) {
        e->last = asked; /* until end_by_ms: etcd may be choosing its leader */
        e->next_ms = now_ms + ELECT_POLL_MS / 2;
    } else if (asked == ELECT_ASK_TOMB && !a->failed) {
        e->tomb_lease = a->lease;
        elect_send(e, ELECT_ASK_CLOSE, now_ms, out);
    } else if (asked == ELECT_ASK_TOMB || asked == ELECT_ASK_CLOSE) {
        elect_send(e, ELECT_ASK_REVOKE, now_ms, out);
    } else {
        elect_end(e, out);
    }
}

/* -------------------------------------------------------------------------------------------------- looking ---- */

static void retry(struct elect *e, int64_t now_ms)
{
    e->next_ms = now_ms + e->wait_ms;
    e->wait_ms = e->wait_ms * 2 > ELECT_RETRY_MAX_MS ? ELECT_RETRY_MAX_MS : e->wait_ms * 2;
}

static void stop_listening(struct elect *e, struct elect_actions *out)
{
    if (e->listening)
        elect_act(out, ELECT_DO_UNLISTEN);
    e->listening = false;
}

static void look_again(struct elect *e, int64_t now_ms, struct elect_actions *out)
{
    stop_listening(e, out);
    e->state = ELECT_LOOKING;
    retry(e, now_ms);
}

static void elect_follow(struct elect *e, const struct elect_host *host, int64_t now_ms, struct elect_actions *out)
{
    bool other = host->epoch != e->epoch;

    stop_listening(e, out);
    e->state = ELECT_FOLLOWING;
    e->host = *host;
    e->epoch = host->epoch;
    e->ever_joined = true;
    e->deadline_ms = e->say_ms = CDI_NEVER_MS;
    e->wait_ms = RETRY_FIRST_MS;
    e->next_ms = e->linked && !other ? CDI_NEVER_MS : now_ms + ELECT_POLL_MS;
    if (other) {
        e->linked = false;
        elect_act(out, ELECT_DO_JOIN);
    }
}

static void elect_win(struct elect *e, int64_t epoch, int64_t now_ms, struct elect_actions *out)
{
    e->state = ELECT_HOSTING;
    e->epoch = epoch;
    e->good_ms = e->granted_ms;
    e->linked = e->stale_said = false;
    e->ever_joined = true;
    e->deadline_ms = e->say_ms = CDI_NEVER_MS;
    elect_act(out, ELECT_DO_HOST);
    elect_send(e, ELECT_ASK_KEEP, now_ms, out);
}

/* The keys are known. */
static void on_keys(struct elect *e, const struct elect_answer *a, int64_t now_ms, struct elect_actions *out)
{
    if (e->known_epoch != 0 && a->over > e->known_epoch) {
        stop_listening(e, out);
        e->state = ELECT_OVER;
        e->done = a->over_done;
        e->next_ms = now_ms + ELECT_OVER_WAIT_MS;
    } else if (a->host.is && a->host.foreign) {
        stop_listening(e, out);
        (void)snprintf(out->text, sizeof out->text,
                       "the key '%s' in etcd at %s has a value that cddprun has not written; delete it, or choose "
                       "another --rdzv_id or --rdzv_conf=prefix=",
                       e->key, e->name);
        elect_fail(e, out);
    } else if (a->host.is && e->lease != 0 && a->host.lease == e->lease && e->listening) {
        elect_win(e, a->host.epoch, now_ms, out); /* created by a request whose answer was lost */
    } else if (a->host.is) {
        elect_follow(e, &a->host, now_ms, out);
    } else if (e->state == ELECT_LOOKING || e->state == ELECT_FOLLOWING) {
        stop_listening(e, out);
        e->state = ELECT_GRANTING;
        elect_send(e, ELECT_ASK_GRANT, now_ms, out);
    } else {
        look_again(e, now_ms, out);
    }
}

/* -------------------------------------------------------------------------------------------------- hosting ---- */

static void elect_unhost(struct elect *e, const char *why, int64_t now_ms, struct elect_actions *out)
{
    e->state = ELECT_LOOKING;
    e->lease = 0;
    e->epoch = 0;
    e->listening = false;
    retry(e, now_ms);
    elect_say(out, ELECT_DO_UNHOST, "this node no longer hosts the rendezvous: %s", why);
}

static void on_kept(struct elect *e, const struct elect_answer *a, int64_t now_ms, struct elect_actions *out)
{
    if (a->ttl_ms <= 0) {
        elect_unhost(e, "its lease in etcd has ended", now_ms, out);
        return;
    }
    e->keep_ms = e->asked_ms;
    elect_send(e, ELECT_ASK_LOOK, now_ms, out);
}

static void on_host_checked(struct elect *e, const struct elect_answer *a, int64_t now_ms, struct elect_actions *out)
{
    if (!a->host.is || a->host.epoch != e->epoch || a->host.foreign || a->host.lease != e->lease) {
        elect_unhost(e, a->host.is ? "its key in etcd was replaced" : "its key in etcd was deleted", now_ms, out);
        return;
    }
    if (e->stale_said)
        elect_say(out, ELECT_DO_WAITING, "etcd at %s answers again", e->name);
    e->stale_said = false;
    e->wait_ms = RETRY_FIRST_MS; /* not by winning: an election that is lost at once must not be repeated at once */
    e->good_ms = e->keep_ms;
    e->next_ms = e->keep_ms + keep_every(e) > now_ms ? e->keep_ms + keep_every(e) : now_ms + 1;
}

/* The lease may be good, or may end: agents get no answer until etcd answers. */
static void on_host_failed(struct elect *e, const struct elect_answer *a, int64_t now_ms, struct elect_actions *out)
{
    int64_t left_ms;

    if (a->lease_gone) {
        elect_unhost(e, "its lease in etcd has ended", now_ms, out);
        return;
    }
    e->next_ms = now_ms + keep_every(e) / 2 + 1;
    if (e->stale_said || now_ms <= elect_answers_until_ms(e))
        return;
    e->stale_said = true;
    left_ms = e->good_ms + e->ttl_ms * 4 / 5 - now_ms;
    elect_say(
        out, ELECT_DO_WAITING,
        "no answer from etcd at %s (%s): this node hosts the rendezvous, but gives no answers until etcd does; all "
        "nodes stop their workers in %.3g s",
        e->name, e->last_text, (double)left_ms / 1000);
}

/* --------------------------------------------------------------------------------------------------- events ---- */

/* Returns what the user may do about a failed request, by a word of its reason, as etcd 3.4 and libcurl have them; or
 * "". */
static const char *cure(const char *why)
{
    static const struct {
        const char *word, *text;
    } cures[] = {
        {"certificate", "; check cacert, cert and key (--rdzv_conf)"},
        {"authentication failed", "; check user and password_file (--rdzv_conf)"},
        {"permission denied", "; grant the user's role reading and writing below prefix (--rdzv_conf)"},
        {"authentication is not enabled", "; remove user and password_file (--rdzv_conf)"},
        {"resolve host", "; check the names in --rdzv_endpoint"},
        {"connect", "; check that etcd runs there, --rdzv_endpoint, and the firewall"},
        {"timed out", "; check that etcd runs there, --rdzv_endpoint, and the firewall"},
        {"reset by peer", "; check --rdzv_endpoint, and protocol=http or https (--rdzv_conf)"},
    };

    for (size_t i = 0; i < sizeof cures / sizeof cures[0]; i++)
        if (strstr(why, cures[i].word) != NULL)
            return cures[i].text;
    return "";
}

static void on_failed(struct elect *e, const struct elect_answer *a, int64_t now_ms, struct elect_actions *out)
{
    (void)snprintf(e->last_text, sizeof e->last_text, "%s", a->text != NULL ? a->text : "no answer");
    if (e->state == ELECT_HOSTING) {
        on_host_failed(e, a, now_ms, out);
        return;
    }
    if (a->fatal && !e->ever_joined) {
        (void)snprintf(out->text, sizeof out->text, "etcd at %s: %s%s", e->name, e->last_text, cure(e->last_text));
        elect_fail(e, out);
        return;
    }
    if (a->lease_gone)
        e->lease = 0;
    if (e->say_ms == CDI_NEVER_MS && e->deadline_ms != CDI_NEVER_MS)
        e->say_ms = now_ms + ELECT_RETRY_MAX_MS; /* early: the user may have to act */
    if (e->state == ELECT_FOLLOWING)
        retry(e, now_ms);
    else if (e->state == ELECT_CAMPAIGNING && !a->lease_gone) {
        e->state = ELECT_LOOKING; /* the key may have been created: the server stays until this is known */
        retry(e, now_ms);
    } else {
        look_again(e, now_ms, out);
    }
}

static void elect_on_answer(struct elect *e, const struct elect_answer *a, int64_t now_ms, struct elect_actions *out)
{
    enum elect_ask asked = e->asking;

    e->asking = ELECT_ASK_NONE;
    if (e->state == ELECT_ENDED)
        return;
    if (e->state == ELECT_ENDING) {
        on_ending_answer(e, asked, a, now_ms, out);
        return;
    }
    if (!a->failed) {
        e->contacted = true;
        e->last_text[0] = '\0';
    }
    if (e->ending) {
        bool host = e->state == ELECT_HOSTING;

        if (asked == ELECT_ASK_GRANT && !a->failed)
            e->lease = a->lease;
        begin_ending(e, host, now_ms, out);
    } else if (e->state == ELECT_OVER) {
        return;
    } else if (a->failed) {
        on_failed(e, a, now_ms, out);
    } else if (asked == ELECT_ASK_GRANT) {
        e->lease = a->lease;
        e->ttl_ms = a->ttl_ms;
        e->granted_ms = e->asked_ms;
        e->state = ELECT_CAMPAIGNING;
        e->listening = true;
        elect_act(out, ELECT_DO_LISTEN);
        elect_send(e, ELECT_ASK_CAMPAIGN, now_ms, out);
    } else if (asked == ELECT_ASK_CAMPAIGN && a->won) {
        elect_win(e, a->epoch, now_ms, out);
    } else if (asked == ELECT_ASK_KEEP && e->state != ELECT_HOSTING) {
        e->next_ms = now_ms; /* it came too late */
    } else if (asked == ELECT_ASK_KEEP) {
        on_kept(e, a, now_ms, out);
    } else if (e->state == ELECT_HOSTING) {
        on_host_checked(e, a, now_ms, out);
    } else {
        on_keys(e, a, now_ms, out);
    }
}

static void elect_on_tick(struct elect *e, int64_t now_ms, struct elect_actions *out)
{
    if (now_ms >= e->end_by_ms) {
        elect_end(e, out);
        return;
    }
    if (now_ms >= e->deadline_ms) {
        (void)snprintf(out->text, sizeof out->text, "cannot meet the other nodes by etcd at %s: %s%s", e->name,
                       e->last_text[0] != '\0' ? e->last_text : "no host of the rendezvous was elected in time",
                       cure(e->last_text));
        elect_fail(e, out);
        return;
    }
    if (e->state == ELECT_HOSTING && now_ms >= e->good_ms + e->ttl_ms) {
        elect_unhost(e, "etcd has not answered for as long as its lease lasts", now_ms, out);
        return;
    }
    if (now_ms >= e->say_ms) {
        e->say_ms = now_ms + ELECT_SAY_MS;
        if (e->last_text[0] != '\0')
            elect_say(out, ELECT_DO_WAITING, "no answer from etcd at %s (%s); trying again for %lld s", e->name,
                      e->last_text, (long long)(e->deadline_ms - now_ms) / 1000);
    }
    if (now_ms < e->next_ms || e->asking != ELECT_ASK_NONE)
        return;
    if (e->state == ELECT_OVER) {
        e->next_ms = CDI_NEVER_MS;
        elect_act(out, ELECT_DO_OVER);
        return;
    }
    if (e->state == ELECT_ENDING)
        elect_send(e, e->last, now_ms, out);
    else
        elect_send(e, e->state == ELECT_HOSTING ? ELECT_ASK_KEEP : ELECT_ASK_LOOK, now_ms, out);
}

void elect_handle(struct elect *e, const struct elect_event *ev, int64_t now_ms, struct elect_actions *out)
{
    out->n = 0;
    out->text[0] = '\0';
    switch (ev->kind) {
    case ELECT_EV_START:
        elect_send(e, ELECT_ASK_LOOK, now_ms, out);
        return;
    case ELECT_EV_ANSWER:
        elect_on_answer(e, ev->answer, now_ms, out);
        return;
    case ELECT_EV_TICK:
        elect_on_tick(e, now_ms, out);
        return;
    case ELECT_EV_LINK:
        if (e->state == ELECT_FOLLOWING && e->asking == ELECT_ASK_NONE && ev->linked != e->linked)
            e->next_ms = ev->linked ? CDI_NEVER_MS : now_ms;
        e->linked = ev->linked;
        return;
    case ELECT_EV_ROUND:
        e->known_epoch = e->epoch;
        return;
    case ELECT_EV_END:
        if (e->ending || e->state == ELECT_ENDED)
            return;
        e->ending = true;
        e->over = ev->over;
        e->done = ev->done;
        e->give_up = ev->give_up;
        e->end_by_ms = now_ms + ELECT_END_MS;
        if (e->asking == ELECT_ASK_NONE)
            begin_ending(e, e->state == ELECT_HOSTING, now_ms, out);
        return;
    }
}

int64_t elect_next_ms(const struct elect *e)
{
    int64_t next = e->asking == ELECT_ASK_NONE ? e->next_ms : CDI_NEVER_MS;

    if (e->state == ELECT_HOSTING && e->good_ms + e->ttl_ms < next)
        next = e->good_ms + e->ttl_ms;
    if (e->end_by_ms < next)
        next = e->end_by_ms;
    if (e->deadline_ms < next)
        next = e->deadline_ms;
    return e->say_ms < next ? e->say_ms : next;
}
