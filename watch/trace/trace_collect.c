/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/trace/trace_collect.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WHOLE 1000u

/* Returns the index of the bucket's names in out->names; -1: there are none, or no room. */
static int32_t take_names(const struct cdi_flight *page, int32_t bucket, struct cdi_records *out)
{
    char names[CDI_FLIGHT_NAMES];

    cdi_flight_names(page, bucket, names);
    if (names[0] == '\0')
        return -1;
    for (size_t i = 0; i < out->n_names; i++)
        if (strcmp(out->names[i], names) == 0)
            return (int32_t)i;
    if (out->n_names == CDI_RECORDS_NAMES_MAX)
        return -1;
    memcpy(out->names[out->n_names], names, sizeof names);
    return (int32_t)out->n_names++;
}

static void take_coll(const struct trace_source *from, const struct cdi_flight_entry *e, struct cdi_records *out)
{
    out->colls[out->n_colls++] =
        (struct cdi_record_coll){.rank = from->rank, .name = take_names(from->page, e->bucket, out), .e = *e};
}

/* The oldest collective that is not done: reported once, if it lasts, or if its rank has ended. */
static void take_unfinished(struct trace_cursor *c, const struct trace_source *from, const struct cdi_flight_entry *e,
                            struct cdi_records *out)
{
    struct cdi_flight_view view;

    cdi_flight_read(from->page, &view);
    if (c->open == e->seq || view.oldest_unfinished.seq != e->seq || view.oldest_unfinished.started_ns == 0 ||
        (!from->ended && from->now_ns - view.oldest_unfinished.started_ns < TRACE_OPEN_NS))
        return;
    c->open = e->seq;
    take_coll(from, &view.oldest_unfinished, out);
}

/* A GPU's times of a bucket replace those that the host has seen, a moment after its end. */
static bool may_change(const struct trace_source *from, const struct cdi_flight_entry *e)
{
    return !from->ended && e->bucket >= 0 && e->late_rank < 0 && e->arrived_ns == 0 &&
           from->now_ns - e->done_ns < TRACE_SETTLE_NS;
}

static unsigned take_colls(struct trace_cursor *c, const struct trace_source *from, struct cdi_records *out)
{
    struct cdi_flight_entry ring[CDI_FLIGHT_RING];
    size_t n = cdi_flight_records(from->page, c->seq, ring, CDI_FLIGHT_RING), taken = 0;
    uint64_t new = n == 0 ? 0 : ring[n - 1].seq - c->seq;

    for (size_t i = 0; i < n && taken < from->room && out->n_colls < CDI_RECORDS_MAX; i++, taken++) {
        if (ring[i].done_ns == 0) {
            take_unfinished(c, from, &ring[i], out);
            break;
        }
        if (may_change(from, &ring[i]))
            break;
        out->n_lost += ring[i].seq - c->seq - 1;
        c->seq = ring[i].seq;
        take_coll(from, &ring[i], out);
    }
    return new >= CDI_FLIGHT_RING ? WHOLE : (unsigned)(new *WHOLE / CDI_FLIGHT_RING);
}

static unsigned take_steps(struct trace_cursor *c, const struct trace_source *from, struct cdi_records *out)
{
    struct cdi_flight_step ring[CDI_FLIGHT_STEPS];
    size_t n = cdi_flight_steps(from->page, c->n_steps, ring, CDI_FLIGHT_STEPS);

    for (size_t i = 0; i < n && i < from->room && out->n_steps < CDI_RECORDS_MAX; i++) {
        /* The first number of a program that continues from a checkpoint may be any. */
        if (c->has_step)
            out->n_lost += ring[i].step - c->n_steps;
        c->has_step = true;
        c->n_steps = ring[i].step + 1;
        out->steps[out->n_steps++] = (struct cdi_record_step){.rank = from->rank, .s = ring[i]};
    }
    return (unsigned)(n * WHOLE / CDI_FLIGHT_STEPS);
}

static void take_mark(const struct trace_source *from, const struct cdi_flight_mark *m, struct cdi_records *out)
{
    static const char *const kinds[] = {[CDI_MARK_SAVE] = "save", [CDI_MARK_WAIT] = "wait", [CDI_MARK_LOAD] = "load"};
    const char *kind = m->kind >= CDI_MARK_SAVE && m->kind <= CDI_MARK_LOAD ? kinds[m->kind] : "?";
    int64_t ms = (m->end_ns - m->begun_ns) / 1000000;
    struct cdi_record_event *e = &out->events[out->n_events++];

    *e = (struct cdi_record_event){.time_ns = m->end_ns, .rank = from->rank, .kind = "checkpoint"};
    if (m->kind == CDI_MARK_SAVE)
        (void)snprintf(e->text, sizeof e->text, "save of step %" PRIu64 ", %" PRId64 " ms", m->step, ms);
    else
        (void)snprintf(e->text, sizeof e->text, "%s, %" PRId64 " ms", kind, ms);
}

/*
 * The number of a mark that is still being written counts already: the reader comes back for it, unless a later one is
 * complete.
 */
static void take_marks(struct trace_cursor *c, const struct trace_source *from, struct cdi_records *out)
{
    struct cdi_flight_mark ring[CDI_FLIGHT_MARKS];
    size_t n = cdi_flight_marks(from->page, c->mark, ring, CDI_FLIGHT_MARKS);

    for (size_t i = 0; i < n && out->n_events < CDI_RECORDS_EVENTS_MAX; i++) {
        out->n_lost += ring[i].number - c->mark - 1;
        c->mark = ring[i].number;
        take_mark(from, &ring[i], out);
    }
}

unsigned trace_collect(struct trace_cursor *c, const struct trace_source *from, struct cdi_records *out)
{
    unsigned steps, colls;
    uint64_t before = cdi_records_count(out);

    if (c->over || !cdi_flight_is_claimed(from->page))
        return 0;
    take_marks(c, from, out);
    steps = take_steps(c, from, out);
    colls = take_colls(c, from, out);
    c->over = from->ended && cdi_records_count(out) == before;
    return steps > colls ? steps : colls;
}

int64_t trace_interval_ms(int64_t last_ms, unsigned used)
{
    int64_t ms = used > WHOLE / 2 ? last_ms / 2 : used < WHOLE / 8 ? last_ms * 2 : last_ms;

    if (used >= WHOLE)
        return TRACE_INTERVAL_MIN_MS;
    return ms < TRACE_INTERVAL_MIN_MS ? TRACE_INTERVAL_MIN_MS : ms > TRACE_INTERVAL_MAX_MS ? TRACE_INTERVAL_MAX_MS : ms;
}
