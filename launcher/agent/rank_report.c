/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/rank_report.h"

#include <string.h>

#define NS_PER_MS 1000000
#define NS_PER_US 1000

/* Of a send or a recv under way late_rank is the rank that it waits for; of others, the last rank that has arrived. */
static int32_t peer_of(const struct cdi_flight_entry *e)
{
    return e->done_ns == 0 && (e->op == CDI_FLIGHT_SEND || e->op == CDI_FLIGHT_RECV) ? e->late_rank : -1;
}

static void take_entry(const struct cdi_flight_entry *e, struct cdi_rank_report *r)
{
    r->op = e->op;
    r->dtype = e->dtype;
    r->seq = e->seq;
    r->count = e->count;
    r->bucket = e->bucket;
    r->peer = peer_of(e);
}

static int64_t since_ms(int64_t then_ns, int64_t now_ns)
{
    return then_ns > 0 && then_ns <= now_ns ? (now_ns - then_ns) / NS_PER_MS : 0;
}

/* Fills in the place on the communicator of cddp_init, without its parts. Returns when the rank came there. */
static int64_t place_in_whole(const struct cdi_flight_view *v, struct cdi_rank_report *r)
{
    const struct cdi_flight_entry *inside = &v->oldest_unfinished;

    if (inside->seq != 0) {
        take_entry(inside, r);
        r->place = v->over ? CDI_PLACE_AFTER : inside->started_ns != 0 ? CDI_PLACE_IN : CDI_PLACE_BEFORE;
        return inside->started_ns != 0 ? inside->started_ns : inside->enqueued_ns;
    }
    if (v->replay.begun > v->replay.ended || (v->replay.begun > 0 && v->replay.since_ns > v->last.done_ns)) {
        r->place = !v->over && v->replay.begun > v->replay.ended ? CDI_PLACE_IN_REPLAY : CDI_PLACE_AFTER_REPLAY;
        r->seq = v->last.seq;
        r->op = v->replay.op;
        r->bucket = v->replay.bucket;
        r->replay = v->replay.number;
        return v->replay.since_ns;
    }
    if (v->last.seq != 0) {
        take_entry(&v->last, r);
        r->place = CDI_PLACE_AFTER;
        return v->last.done_ns;
    }
    r->place = CDI_PLACE_START;
    return 0;
}

/* The place with the largest weight is shown: a wait before a queued call, and that before calls that are done. */
static int weight_of(enum cdi_place place)
{
    return place == CDI_PLACE_IN || place == CDI_PLACE_IN_REPLAY ? 3
           : place == CDI_PLACE_BEFORE                           ? 2
           : place == CDI_PLACE_START                            ? 0
                                                                 : 1;
}

/* Takes the place in a part, unless the present one, since *since_ns, says more. */
static void consider_part(const struct cdi_flight_part *part, struct cdi_rank_report *r, int64_t *since_ns)
{
    const struct cdi_flight_entry *e = part->unfinished.seq != 0 ? &part->unfinished : &part->last;
    enum cdi_place place = e->done_ns != 0 ? CDI_PLACE_AFTER : e->started_ns != 0 ? CDI_PLACE_IN : CDI_PLACE_BEFORE;
    int64_t then_ns = e->done_ns != 0 ? e->done_ns : e->started_ns != 0 ? e->started_ns : e->enqueued_ns;
    int by = weight_of(place) - weight_of(r->place);

    if (e->seq == 0 || by < 0 || (by == 0 && (place == CDI_PLACE_AFTER ? then_ns <= *since_ns : then_ns >= *since_ns)))
        return;
    take_entry(e, r);
    r->place = place;
    r->replay = 0;
    memcpy(r->part, part->who, sizeof r->part);
    *since_ns = then_ns;
}

void rank_report_place(const struct cdi_flight_view *v, const struct cdi_flight_part *parts, size_t n, int64_t now_ns,
                       struct cdi_rank_report *r)
{
    int64_t since_ns;

    r->process = v->claimed_pid;
    r->step = v->step;
    r->bucket = -1;
    r->peer = -1;
    r->part[0] = '\0';
    if (v->claimed_pid == 0) {
        r->place = CDI_PLACE_OUTSIDE;
        return;
    }
    since_ns = place_in_whole(v, r);
    for (size_t i = 0; i < n; i++)
        consider_part(&parts[i], r, &since_ns);
    r->for_ms = since_ms(since_ns, now_ns);
}

void rank_report_steps(const struct cdi_flight_step *steps, size_t n, int64_t now_ns, struct cdi_rank_report *r)
{
    int64_t period = 0, comm = 0, exposed = 0, late = 0, transfer = 0;

    r->late_rank = -1;
    r->late_count = 0;
    r->n_steps = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        uint32_t count = 0;

        period += steps[i].end_ns - steps[i].begun_ns;
        comm += steps[i].comm_ns;
        exposed += steps[i].exposed_ns;
        late += steps[i].late_ns;
        transfer += steps[i].transfer_ns;
        for (size_t k = 0; k < n; k++)
            count += steps[k].late_rank == steps[i].late_rank;
        if (steps[i].late_rank >= 0 && count > r->late_count) {
            r->late_rank = steps[i].late_rank;
            r->late_count = count;
        }
    }
    if (n == 0)
        return;
    r->step_age_ms = since_ms(steps[n - 1].end_ns, now_ns);
    r->step_us = (uint64_t)(period > 0 ? period : 0) / n / NS_PER_US;
    r->comm_us = (uint64_t)(comm > 0 ? comm : 0) / n / NS_PER_US;
    r->exposed_us = (uint64_t)(exposed > 0 ? exposed : 0) / n / NS_PER_US;
    r->late_us = (uint64_t)(late > 0 ? late : 0) / n / NS_PER_US;
    r->transfer_us = (uint64_t)(transfer > 0 ? transfer : 0) / n / NS_PER_US;
}

/* last: what a communicator that is over left unfinished counts as if it went on. */
static void place_on_page(const struct cdi_flight *f, bool last, int64_t now_ns, struct cdi_rank_report *r)
{
    struct cdi_flight_part parts[CDI_FLIGHT_PARTS];
    struct cdi_flight_view view;

    cdi_flight_read(f, &view);
    view.over = view.over && !last;
    rank_report_place(&view, parts, cdi_flight_parts(f, parts), now_ns, r);
}

void rank_report_last_place(const struct cdi_flight *f, int64_t now_ns, struct cdi_rank_report *r)
{
    place_on_page(f, true, now_ns, r);
}

void rank_report_page(const struct cdi_flight *f, int64_t now_ns, struct cdi_rank_report *r)
{
    struct cdi_flight_step steps[CDI_FLIGHT_STEPS];

    place_on_page(f, false, now_ns, r);
    rank_report_steps(steps, cdi_flight_steps(f, 0, steps, CDI_FLIGHT_STEPS), now_ns, r);
    cdi_flight_names(f, r->part[0] == '\0' ? r->bucket : -1, r->names); /* the page has none of parts */
}
