/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices of a track must not overlap, unless one contains the other; a reader would drop or misplace them. Clocks are
 * coarse, and the shift of a node may change a little. So a slice begins no earlier than the one before it ended.
 */
#include "watch/trace/trace_format.h"

#include "watch/trace/trace_tracks.h"

#include <cddp/types.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES (16u * 1024)
#define GAP_NS 2 /* between slices: a reader may take the numbers as double and cut them off to ns */

cddp_status trace_format_create(struct trace_format **out, const char *job, struct cdi_error *err)
{
    struct trace_format *t = calloc(1, sizeof *t);

    if (t == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a trace");
    (void)snprintf(t->job, sizeof t->job, "%s", job);
    cdi_buf_init(&t->line, LINE_MAX_BYTES);
    *out = t;
    return CDDP_OK;
}

void trace_format_destroy(struct trace_format *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->n_nodes; i++)
        free(t->nodes[i].ranks);
    free(t->nodes);
    cdi_buf_release(&t->line);
    free(t);
}

static void note_time(struct trace_format *t, int64_t ns)
{
    if (ns > t->last_ns)
        t->last_ns = ns;
}

void trace_format_head(struct trace_format *t, struct cdi_buf *out)
{
    t->to = out;
    (void)cdi_buf_append(out, "[\n", 2);
    trace_name_all(t);
}

/* ----------------------------------------------------------------------------------------------------- clocks ---- */

static int64_t distance(int64_t a, int64_t b)
{
    return a > b ? a - b : b - a;
}

/* States how wrong the times of this node may be: first, and when it is twice as much or half of it. */
static void tell_clock(struct trace_format *t, struct trace_node *n, int64_t at_ns)
{
    struct cdi_buf *b;

    if (n->told_ns >= 0 && n->bound_ns <= 2 * n->told_ns && 2 * n->bound_ns >= n->told_ns)
        return;
    n->told_ns = n->bound_ns;
    trace_name_clock(t, n);
    b = trace_line(t, "i", n->pid, n->tid);
    trace_put_us(b, "ts", at_ns);
    (void)cdi_buf_printf(b,
                         ",\"s\":\"p\",\"cat\":\"trace\",\"name\":\"clock\",\"args\":{\"shift_ns\":%" PRId64
                         ",\"error_bound_ns\":%" PRId64,
                         n->shift_ns, n->bound_ns);
    trace_line_end(t, "}}");
}

/* A shift that is still possible stays: times of a track should not jump. */
static void set_clock(struct trace_format *t, struct trace_node *n, const struct trace_clock *c, int64_t at_ns)
{
    if (!c->known && !n->has_clock && n->told_ns == TRACE_TOLD_NOTHING) {
        trace_name_clock(t, n);
        n->told_ns = TRACE_TOLD_UNKNOWN;
    }
    if (!c->known)
        return;
    if (!n->has_clock || distance(n->shift_ns, c->shift_ns) > c->bound_ns) {
        n->shift_ns = c->shift_ns;
        n->told_ns = TRACE_TOLD_NOTHING;
    }
    n->has_clock = true;
    n->bound_ns = c->bound_ns + distance(n->shift_ns, c->shift_ns);
    tell_clock(t, n, at_ns + n->shift_ns);
}

/* ----------------------------------------------------------------------------------------------------- slices ---- */

static size_t dtype_size(uint32_t dtype)
{
    switch ((cddp_dtype)dtype) {
    case CDDP_INT8:
    case CDDP_UINT8:
    case CDDP_FLOAT8_E4M3:
    case CDDP_FLOAT8_E5M2:
        return 1;
    case CDDP_FLOAT16:
    case CDDP_BFLOAT16:
    case CDDP_INT16:
    case CDDP_UINT16:
        return 2;
    case CDDP_INT32:
    case CDDP_UINT32:
    case CDDP_FLOAT32:
        return 4;
    case CDDP_INT64:
    case CDDP_UINT64:
    case CDDP_FLOAT64:
        return 8;
    case CDDP_DTYPE_NONE:
    case CDDP_DTYPE_FORCE_INT_:
        break;
    }
    return 0;
}

static void put_coll_args(struct cdi_buf *b, const struct cdi_records *r, const struct cdi_record_coll *c)
{
    const struct cdi_flight_entry *e = &c->e;
    size_t size = dtype_size(e->dtype);

    (void)cdi_buf_printf(b, ",\"args\":{\"round\":%" PRIu32 ",\"rank\":%" PRId32 ",\"seq\":%" PRIu64, r->round, c->rank,
                         e->seq);
    (void)cdi_buf_printf(b, ",\"count\":%" PRIu64, e->count);
    if (size > 0)
        (void)cdi_buf_printf(b, ",\"bytes\":%" PRIu64, e->count * size);
    if (e->bucket >= 0)
        (void)cdi_buf_printf(b, ",\"bucket\":%" PRId32, e->bucket);
    if (c->name >= 0) {
        (void)cdi_buf_printf(b, ",\"parameters\":");
        trace_put_text(b, r->names[c->name]);
    }
    if (e->late_rank >= 0)
        (void)cdi_buf_printf(b, ",\"late_rank\":%" PRId32, e->late_rank);
    if (e->started_ns > e->enqueued_ns)
        trace_put_us(b, "queued_us", e->started_ns - e->enqueued_ns);
    if (e->ready_ns > 0 && e->enqueued_ns > e->ready_ns)
        trace_put_us(b, "launch_us", e->enqueued_ns - e->ready_ns);
    if (e->done_ns == 0)
        (void)cdi_buf_printf(b, ",\"unfinished\":true");
}

/* The part of a collective, from begin to end, in which this rank waited for the last one to arrive. */
static void put_wait(struct trace_format *t, const struct trace_node *n, const struct trace_rank *k,
                     const struct cdi_record_coll *c, int64_t begin, int64_t end)
{
    int64_t arrived = c->e.arrived_ns + n->shift_ns;
    struct cdi_buf *b;

    if (c->e.arrived_ns == 0 || arrived <= begin || end <= begin + GAP_NS || c->e.late_rank == c->rank)
        return;
    b = trace_line(t, "X", n->pid, k->tid + 1);
    trace_put_us(b, "ts", begin);
    trace_put_us(b, "dur", (arrived < end - GAP_NS ? arrived : end - GAP_NS) - begin);
    (void)cdi_buf_printf(b, ",\"cat\":\"wait\",\"name\":\"wait for the last rank\",\"args\":{\"late_rank\":%" PRId32,
                         c->e.late_rank);
    (void)cdi_buf_printf(b, ",\"round\":%" PRIu32 ",\"seq\":%" PRIu64, n->round, c->e.seq);
    trace_line_end(t, "}}");
}

/* Ends the slice that was begun for a collective that had not ended. */
static void close_open(struct trace_format *t, const struct trace_node *n, struct trace_rank *k, int64_t at_ns)
{
    struct cdi_buf *b;

    if (k->open == 0)
        return;
    k->open = 0;
    if (at_ns > k->coll_end)
        k->coll_end = at_ns;
    b = trace_line(t, "E", n->pid, k->tid + 1);
    trace_put_us(b, "ts", k->coll_end);
    trace_line_end(t, "}");
}

static void put_coll(struct trace_format *t, const struct trace_node *n, struct trace_rank *k,
                     const struct cdi_records *r, const struct cdi_record_coll *c)
{
    const struct cdi_flight_entry *e = &c->e;
    int64_t begin = (e->started_ns != 0 ? e->started_ns : e->enqueued_ns) + n->shift_ns, end = e->done_ns + n->shift_ns;
    bool ends = k->open == e->seq && e->done_ns != 0;
    struct cdi_buf *b;

    if (k->open != 0 && !ends)
        close_open(t, n, k, begin);
    if (ends) {
        put_wait(t, n, k, c, k->coll_end, end);
        close_open(t, n, k, end);
        note_time(t, end);
        return;
    }
    if (begin < k->coll_end + GAP_NS)
        begin = k->coll_end + GAP_NS;
    if (end < begin)
        end = begin;
    b = trace_line(t, e->done_ns != 0 ? "X" : "B", n->pid, k->tid + 1);
    trace_put_us(b, "ts", begin);
    if (e->done_ns != 0)
        trace_put_us(b, "dur", end - begin);
    (void)cdi_buf_printf(b, ",\"cat\":\"collective\",\"name\":\"%s\"", cdi_flight_op_name(e->op));
    put_coll_args(b, r, c);
    trace_line_end(t, "}}");
    if (e->done_ns == 0) {
        k->open = e->seq;
        k->coll_end = begin;
    } else {
        put_wait(t, n, k, c, begin, end);
        k->coll_end = end;
    }
    note_time(t, k->coll_end);
}

static void put_step(struct trace_format *t, const struct trace_node *n, struct trace_rank *k,
                     const struct cdi_records *r, const struct cdi_flight_step *s)
{
    int64_t begin = s->begun_ns + n->shift_ns, end = s->end_ns + n->shift_ns;
    struct cdi_buf *b = trace_line(t, "X", n->pid, k->tid);

    if (begin < k->step_end + GAP_NS)
        begin = k->step_end + GAP_NS;
    if (end < begin)
        end = begin;
    k->step_end = end;
    note_time(t, end);
    trace_put_us(b, "ts", begin);
    trace_put_us(b, "dur", end - begin);
    (void)cdi_buf_printf(b, ",\"cat\":\"step\",\"name\":\"step %" PRIu64 "\",\"args\":{\"round\":%" PRIu32, s->step,
                         r->round);
    (void)cdi_buf_printf(b, ",\"rank\":%" PRId32 ",\"buckets\":%" PRIu32, k->rank, s->n_buckets);
    trace_put_us(b, "comm_us", s->comm_ns);
    trace_put_us(b, "exposed_us", s->exposed_ns);
    trace_put_us(b, "late_us", s->late_ns);
    if (s->late_rank >= 0)
        (void)cdi_buf_printf(b, ",\"late_rank\":%" PRId32, s->late_rank);
    trace_line_end(t, "}}");
}

/* ----------------------------------------------------------------------------------------------------- events ---- */

static void end_round(struct trace_format *t, int64_t at_ns)
{
    struct cdi_buf *b;

    if (!t->in_round)
        return;
    t->in_round = false;
    b = trace_line(t, "E", TRACE_JOB_PID, TRACE_JOB_TID);
    trace_put_us(b, "ts", at_ns);
    trace_line_end(t, "}");
}

static void put_event(struct trace_format *t, struct trace_node *n, const struct cdi_records *r,
                      const struct cdi_record_event *e)
{
    struct trace_rank *k = e->rank >= 0 ? trace_rank_of(t, n, e->rank) : NULL;
    bool of_rank = k != NULL && (strcmp(e->kind, "started") == 0 || strcmp(e->kind, "ended") == 0 ||
                                 strcmp(e->kind, "checkpoint") == 0);
    bool round = strcmp(e->kind, "round") == 0;
    int64_t at = e->time_ns + n->shift_ns;
    struct cdi_buf *b;

    note_time(t, at);
    if (of_rank && strcmp(e->kind, "ended") == 0)
        close_open(t, n, k, at);
    if (round || strcmp(e->kind, "over") == 0)
        end_round(t, at);
    if (strcmp(e->kind, "over") == 0)
        return;
    b = of_rank ? trace_line(t, "i", n->pid, k->tid) : trace_line(t, round ? "B" : "i", TRACE_JOB_PID, TRACE_JOB_TID);
    trace_put_us(b, "ts", at);
    if (round)
        (void)cdi_buf_printf(b, ",\"name\":\"round %" PRIu32 "\",\"cat\":\"round\"", r->round);
    else
        (void)cdi_buf_printf(b, ",\"s\":\"%s\",\"cat\":\"event\",\"name\":", of_rank ? "t" : "g");
    if (!round)
        trace_put_text(b, e->kind);
    t->in_round |= round;
    (void)cdi_buf_printf(b, ",\"args\":{\"round\":%" PRIu32 ",\"node\":%" PRId32, r->round, n->node_rank);
    if (e->rank >= 0)
        (void)cdi_buf_printf(b, ",\"rank\":%" PRId32, e->rank);
    (void)cdi_buf_printf(b, ",\"text\":");
    trace_put_text(b, e->text);
    trace_line_end(t, "}}");
}

/* Compares the sender's counts with the records that have arrived, and marks a loss in the trace. */
static void count_lost(struct trace_format *t, struct trace_node *n, const struct cdi_records *r, int64_t at_ns)
{
    uint64_t on_the_way = n->has_frame && r->n_before > n->n_seen ? r->n_before - n->n_seen : 0;
    uint64_t lost = on_the_way + (r->n_lost > n->n_lost ? r->n_lost - n->n_lost : 0);
    struct cdi_buf *b;

    n->has_frame = true;
    n->n_seen = r->n_before + cdi_records_count(r);
    n->n_lost = r->n_lost;
    t->n_lost += lost;
    if (lost == 0)
        return;
    b = trace_line(t, "i", n->pid, n->tid);
    trace_put_us(b, "ts", at_ns);
    (void)cdi_buf_printf(b, ",\"s\":\"p\",\"cat\":\"trace\",\"name\":\"lost records\",\"args\":{\"count\":%" PRIu64,
                         lost);
    trace_line_end(t, "}}");
}

static int64_t any_time(const struct cdi_records *r)
{
    return r->n_events > 0  ? r->events[0].time_ns
           : r->n_steps > 0 ? r->steps[0].s.end_ns
           : r->n_colls > 0 ? r->colls[0].e.enqueued_ns
                            : 0;
}

/* No collective of an earlier round goes on. */
static void begin_round(struct trace_format *t, struct trace_node *n, uint32_t round)
{
    if (n->round != round)
        for (size_t i = 0; i < n->n_ranks; i++)
            close_open(t, n, &n->ranks[i], 0);
    n->round = round;
}

void trace_format_records(struct trace_format *t, const struct cdi_records *r, const struct trace_clock *clock,
                          struct cdi_buf *out)
{
    struct trace_node *n;
    struct trace_rank *k;

    t->to = out;
    n = trace_node_of(t, r);
    if (n == NULL) {
        t->n_lost += cdi_records_count(r);
        return;
    }
    begin_round(t, n, r->round);
    set_clock(t, n, clock, any_time(r));
    count_lost(t, n, r, any_time(r) + n->shift_ns);
    t->n_written += cdi_records_count(r);
    for (size_t i = 0; i < r->n_steps; i++)
        if ((k = trace_rank_of(t, n, r->steps[i].rank)) != NULL)
            put_step(t, n, k, r, &r->steps[i].s);
    for (size_t i = 0; i < r->n_colls; i++)
        if ((k = trace_rank_of(t, n, r->colls[i].rank)) != NULL)
            put_coll(t, n, k, r, &r->colls[i]);
    for (size_t i = 0; i < r->n_events; i++)
        put_event(t, n, r, &r->events[i]);
}

void trace_format_tail(struct trace_format *t, struct cdi_buf *out)
{
    struct cdi_buf *b;

    t->to = out;
    for (size_t i = 0; i < t->n_nodes; i++)
        for (size_t k = 0; k < t->nodes[i].n_ranks; k++)
            close_open(t, &t->nodes[i], &t->nodes[i].ranks[k], t->last_ns);
    end_round(t, t->last_ns);
    b = trace_line(t, "M", TRACE_JOB_PID, TRACE_JOB_TID);
    (void)cdi_buf_printf(b, ",\"name\":\"trace\",\"args\":{\"records\":%" PRIu64 ",\"lost\":%" PRIu64, t->n_written,
                         t->n_lost);
    (void)cdi_buf_append(b, "}}\n]\n", 5);
    (void)cdi_buf_append(out, cdi_buf_data(b), b->len);
}

uint64_t trace_format_written(const struct trace_format *t)
{
    return t->n_written;
}

uint64_t trace_format_lost(const struct trace_format *t)
{
    return t->n_lost;
}

int64_t trace_format_bound_ns(const struct trace_format *t, size_t *n_unknown)
{
    int64_t bound = 0;

    *n_unknown = 0;
    for (size_t i = 0; i < t->n_nodes; i++) {
        *n_unknown += !t->nodes[i].has_clock;
        if (t->nodes[i].bound_ns > bound)
            bound = t->nodes[i].bound_ns;
    }
    return bound;
}
