/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A record is an array of numbers. Times are relative to the frame's "base", so that they are short; null: not known.
 */
#include "protocol/records.h"

#include "protocol/json_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX (1LL << 62) /* JSON has no larger integers that every reader takes */

cddp_status cdi_records_init(struct cdi_records *r, struct cdi_error *err)
{
    *r = (struct cdi_records){.node_rank = -1};
    r->colls = calloc(CDI_RECORDS_MAX, sizeof *r->colls);
    r->steps = calloc(CDI_RECORDS_MAX, sizeof *r->steps);
    r->events = calloc(CDI_RECORDS_EVENTS_MAX, sizeof *r->events);
    r->names = calloc(CDI_RECORDS_NAMES_MAX, sizeof *r->names);
    if (r->colls != NULL && r->steps != NULL && r->events != NULL && r->names != NULL)
        return CDDP_OK;
    cdi_records_release(r);
    return cdi_fail(err, CDDP_E_NOMEM, "out of memory for records of a trace");
}

void cdi_records_release(struct cdi_records *r)
{
    free(r->colls);
    free(r->steps);
    free(r->events);
    free(r->names);
    *r = (struct cdi_records){0};
}

/* ---------------------------------------------------------------------------------------------------- encode ---- */

static int64_t to_int(uint64_t n)
{
    return n > (uint64_t)COUNT_MAX ? COUNT_MAX : (int64_t)n;
}

static json_t *time_to_json(int64_t ns, int64_t base)
{
    return ns <= 0 || ns > CDI_RECORDS_TIME_MAX ? json_null() : json_integer(ns - base);
}

/* Appends numbers to a row. */
static int put_ints(json_t *row, const int64_t *v, size_t n)
{
    int rc = 0;

    for (size_t i = 0; i < n && rc == 0; i++)
        rc = json_array_append_new(row, json_integer(v[i]));
    return rc;
}

static int put_times(json_t *row, const int64_t *ns, size_t n, int64_t base)
{
    int rc = 0;

    for (size_t i = 0; i < n && rc == 0; i++)
        rc = json_array_append_new(row, time_to_json(ns[i], base));
    return rc;
}

static int add_row(json_t *rows, json_t *row, int rc)
{
    if (rc == 0)
        return json_array_append_new(rows, row);
    json_decref(row);
    return -1;
}

static int put_coll(json_t *rows, const struct cdi_record_coll *c, int64_t base)
{
    const struct cdi_flight_entry *e = &c->e;
    const int64_t numbers[] = {c->rank,  c->name,          to_int(e->seq), e->op,
                               e->dtype, to_int(e->count), e->bucket,      e->late_rank};
    const int64_t times[] = {e->enqueued_ns, e->started_ns, e->done_ns, e->ready_ns, e->arrived_ns};
    json_t *row = json_array();

    return add_row(rows, row,
                   put_ints(row, numbers, sizeof numbers / sizeof *numbers) |
                       put_times(row, times, sizeof times / sizeof *times, base));
}

static int put_step(json_t *rows, const struct cdi_record_step *r, int64_t base)
{
    const struct cdi_flight_step *s = &r->s;
    const int64_t numbers[] = {r->rank,    to_int(s->step), s->comm_ns,  s->exposed_ns,
                               s->late_ns, s->late_rank,    s->n_buckets};
    const int64_t times[] = {s->begun_ns, s->end_ns};
    json_t *row = json_array();

    return add_row(rows, row,
                   put_ints(row, numbers, sizeof numbers / sizeof *numbers) |
                       put_times(row, times, sizeof times / sizeof *times, base));
}

static int put_event(json_t *rows, const struct cdi_record_event *e, int64_t base)
{
    json_t *row = json_array();
    int rc = json_array_append_new(row, json_integer(e->rank)) |
             json_array_append_new(row, time_to_json(e->time_ns, base)) |
             json_array_append_new(row, json_text(e->kind)) | json_array_append_new(row, json_text(e->text));

    return add_row(rows, row, rc);
}

/* The earliest begin is as good as any: it makes the numbers short. */
static int64_t base_of(const struct cdi_records *r)
{
    int64_t base = r->n_colls > 0    ? r->colls[0].e.enqueued_ns
                   : r->n_steps > 0  ? r->steps[0].s.begun_ns
                   : r->n_events > 0 ? r->events[0].time_ns
                                     : 0;

    return base < 0 || base > CDI_RECORDS_TIME_MAX ? 0 : base;
}

static int put_rows(const struct cdi_records *r, json_t *colls, json_t *steps, json_t *events, json_t *names)
{
    int64_t base = base_of(r);
    int rc = 0;

    for (size_t i = 0; i < r->n_colls && rc == 0; i++)
        rc = put_coll(colls, &r->colls[i], base);
    for (size_t i = 0; i < r->n_steps && rc == 0; i++)
        rc = put_step(steps, &r->steps[i], base);
    for (size_t i = 0; i < r->n_events && rc == 0; i++)
        rc = put_event(events, &r->events[i], base);
    for (size_t i = 0; i < r->n_names && rc == 0; i++)
        rc = json_array_append_new(names, json_text(r->names[i]));
    return rc;
}

char *cdi_records_encode(const struct cdi_records *r, size_t *len)
{
    json_t *colls = json_array(), *steps = json_array(), *events = json_array(), *names = json_array(), *root = NULL;
    char *text = NULL;

    if (put_rows(r, colls, steps, events, names) == 0)
        root = json_pack("{s:I, s:i, s:o?, s:I, s:I, s:I, s:I, s:I, s:I, s:O, s:O, s:O, s:O}", "round",
                         (json_int_t)r->round, "node_rank", (int)r->node_rank, "host", json_text(r->host), "clock_of",
                         (json_int_t)to_int(r->clock_of), "offset", (json_int_t)r->offset_ns, "bound",
                         (json_int_t)r->bound_ns, "before", (json_int_t)to_int(r->n_before), "lost",
                         (json_int_t)to_int(r->n_lost), "base", (json_int_t)base_of(r), "names", names, "collectives",
                         colls, "steps", steps, "events", events);
    if (root != NULL)
        text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    json_decref(colls);
    json_decref(steps);
    json_decref(events);
    json_decref(names);
    if (text != NULL)
        *len = strlen(text);
    return text;
}

/* ---------------------------------------------------------------------------------------------------- decode ---- */

/* Reads the numbers of a row in order. ok becomes false at the first that is missing, or out of range. */
struct row {
    json_t *array;
    size_t next;
    int64_t base;
    bool ok;
};

static int64_t take(struct row *r, int64_t min, int64_t max)
{
    json_t *v = json_array_get(r->array, r->next++);
    int64_t n = json_integer_value(v);

    if (json_is_integer(v) && n >= min && n <= max)
        return n;
    r->ok = false;
    return 0;
}

static int32_t take_rank(struct row *r)
{
    return (int32_t)take(r, -1, INT32_MAX);
}

static uint64_t take_count(struct row *r)
{
    return (uint64_t)take(r, 0, COUNT_MAX);
}

static int64_t take_time(struct row *r)
{
    int64_t ns;

    if (json_is_null(json_array_get(r->array, r->next))) {
        r->next++;
        return 0;
    }
    ns = r->base + take(r, -CDI_RECORDS_TIME_MAX, CDI_RECORDS_TIME_MAX);
    if (ns < 0 || ns > CDI_RECORDS_TIME_MAX)
        r->ok = false;
    return r->ok ? ns : 0;
}

static bool take_coll(json_t *array, int64_t base, const struct cdi_records *r, struct cdi_record_coll *c)
{
    struct row row = {.array = array, .base = base, .ok = true};

    c->rank = take_rank(&row);
    c->name = (int32_t)take(&row, -1, (int64_t)r->n_names - 1);
    c->e.seq = take_count(&row);
    c->e.op = (uint32_t)take(&row, 0, UINT32_MAX);
    c->e.dtype = (uint32_t)take(&row, 0, UINT32_MAX);
    c->e.count = take_count(&row);
    c->e.bucket = take_rank(&row);
    c->e.late_rank = take_rank(&row);
    c->e.enqueued_ns = take_time(&row);
    c->e.started_ns = take_time(&row);
    c->e.done_ns = take_time(&row);
    c->e.ready_ns = take_time(&row);
    c->e.arrived_ns = take_time(&row);
    return row.ok && c->rank >= 0;
}

static bool take_step(json_t *array, int64_t base, struct cdi_record_step *s)
{
    struct row row = {.array = array, .base = base, .ok = true};

    s->rank = take_rank(&row);
    s->s.step = take_count(&row);
    s->s.comm_ns = take(&row, -CDI_RECORDS_TIME_MAX, CDI_RECORDS_TIME_MAX);
    s->s.exposed_ns = take(&row, -CDI_RECORDS_TIME_MAX, CDI_RECORDS_TIME_MAX);
    s->s.late_ns = take(&row, -CDI_RECORDS_TIME_MAX, CDI_RECORDS_TIME_MAX);
    s->s.late_rank = take_rank(&row);
    s->s.n_buckets = (uint32_t)take(&row, 0, UINT32_MAX);
    s->s.begun_ns = take_time(&row);
    s->s.end_ns = take_time(&row);
    return row.ok && s->rank >= 0;
}

static bool take_text(json_t *v, char *buf, size_t cap)
{
    if (!json_is_string(v) || json_text_bytes(v) >= cap)
        return false;
    json_cut(buf, cap, json_line(v));
    return true;
}

static bool take_event(json_t *array, int64_t base, struct cdi_record_event *e)
{
    struct row row = {.array = array, .base = base, .ok = true};

    e->rank = take_rank(&row);
    e->time_ns = take_time(&row);
    return row.ok && take_text(json_array_get(array, 2), e->kind, sizeof e->kind) &&
           take_text(json_array_get(array, 3), e->text, sizeof e->text);
}

static bool take_rows(struct cdi_records *r, json_t *root, int64_t base)
{
    json_t *colls = json_object_get(root, "collectives"), *steps = json_object_get(root, "steps");
    json_t *events = json_object_get(root, "events"), *names = json_object_get(root, "names");
    bool ok = true;

    for (size_t i = 0; i < r->n_names && ok; i++)
        ok = take_text(json_array_get(names, i), r->names[i], sizeof r->names[i]);
    for (size_t i = 0; i < r->n_colls && ok; i++)
        ok = take_coll(json_array_get(colls, i), base, r, &r->colls[i]);
    for (size_t i = 0; i < r->n_steps && ok; i++)
        ok = take_step(json_array_get(steps, i), base, &r->steps[i]);
    for (size_t i = 0; i < r->n_events && ok; i++)
        ok = take_event(json_array_get(events, i), base, &r->events[i]);
    return ok;
}

static bool take_member(json_t *root, const char *name, int64_t min, int64_t max, int64_t *out)
{
    json_t *v = json_object_get(root, name);

    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= min && *out <= max;
}

/* Reads everything but the arrays. */
static bool take_head(json_t *root, struct cdi_records *r, int64_t *base)
{
    int64_t round, node_rank, of, before, lost;
    bool ok = take_member(root, "round", 0, UINT32_MAX, &round) &&
              take_member(root, "node_rank", 0, INT32_MAX, &node_rank) &&
              take_member(root, "clock_of", 0, COUNT_MAX, &of) &&
              take_member(root, "offset", -CDI_RECORDS_TIME_MAX, CDI_RECORDS_TIME_MAX, &r->offset_ns) &&
              take_member(root, "bound", 0, CDI_RECORDS_TIME_MAX, &r->bound_ns) &&
              take_member(root, "before", 0, COUNT_MAX, &before) && take_member(root, "lost", 0, COUNT_MAX, &lost) &&
              take_member(root, "base", 0, CDI_RECORDS_TIME_MAX, base) &&
              take_text(json_object_get(root, "host"), r->host, sizeof r->host);

    if (!ok)
        return false;
    r->round = (uint32_t)round;
    r->node_rank = (int32_t)node_rank;
    r->clock_of = (uint64_t)of;
    r->n_before = (uint64_t)before;
    r->n_lost = (uint64_t)lost;
    r->n_colls = json_array_size(json_object_get(root, "collectives"));
    r->n_steps = json_array_size(json_object_get(root, "steps"));
    r->n_events = json_array_size(json_object_get(root, "events"));
    r->n_names = json_array_size(json_object_get(root, "names"));
    return true;
}

static cddp_status allocate(struct cdi_records *r, struct cdi_error *err)
{
    r->colls = calloc(r->n_colls + 1, sizeof *r->colls);
    r->steps = calloc(r->n_steps + 1, sizeof *r->steps);
    r->events = calloc(r->n_events + 1, sizeof *r->events);
    r->names = calloc(r->n_names + 1, sizeof *r->names);
    if (r->colls != NULL && r->steps != NULL && r->events != NULL && r->names != NULL)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_NOMEM, "out of memory for records of a trace");
}

static cddp_status decode_root(json_t *root, struct cdi_records *r, struct cdi_error *err)
{
    int64_t base;
    cddp_status st;

    if (!take_head(root, r, &base))
        return cdi_fail(err, CDDP_E_PROTOCOL, "records of a trace have a wrong form");
    if (r->n_colls > CDI_RECORDS_MAX || r->n_steps > CDI_RECORDS_MAX || r->n_events > CDI_RECORDS_EVENTS_MAX ||
        r->n_names > CDI_RECORDS_NAMES_MAX)
        return cdi_fail(err, CDDP_E_LIMIT, "too many records of a trace in one frame");
    st = allocate(r, err);
    if (st == CDDP_OK && !take_rows(r, root, base))
        st = cdi_fail(err, CDDP_E_PROTOCOL, "a record of a trace has a wrong form");
    return st;
}

cddp_status cdi_records_decode(const void *text, size_t len, struct cdi_records *out, struct cdi_error *err)
{
    json_t *root = json_loadb(text, len, 0, NULL);
    struct cdi_records r = {0};
    cddp_status st = decode_root(root, &r, err);

    json_decref(root);
    if (st == CDDP_OK)
        *out = r;
    else
        cdi_records_release(&r);
    return st;
}

/* ---------------------------------------------------------------------------------------------------- clocks ---- */

size_t cdi_clock_encode_ask(int64_t asked_ns, char text[CDI_CLOCK_TEXT])
{
    return (size_t)snprintf(text, CDI_CLOCK_TEXT, "{\"asked\":%" PRId64 "}", asked_ns);
}

size_t cdi_clock_encode_time(const struct cdi_clock_time *t, char text[CDI_CLOCK_TEXT])
{
    return (size_t)snprintf(text, CDI_CLOCK_TEXT, "{\"asked\":%" PRId64 ",\"time\":%" PRId64 ",\"of\":%" PRId64 "}",
                            t->asked_ns, t->time_ns, to_int(t->of));
}

static bool clock_decode(const void *text, size_t len, struct cdi_clock_time *t, bool answered)
{
    json_t *root = len < CDI_CLOCK_TEXT ? json_loadb(text, len, 0, NULL) : NULL;
    int64_t of = 0;
    bool ok = take_member(root, "asked", 0, CDI_RECORDS_TIME_MAX, &t->asked_ns);

    if (ok && answered)
        ok = take_member(root, "time", 0, CDI_RECORDS_TIME_MAX, &t->time_ns) &&
             take_member(root, "of", 1, COUNT_MAX, &of);
    t->of = (uint64_t)of;
    json_decref(root);
    return ok;
}

bool cdi_clock_decode_ask(const void *text, size_t len, int64_t *asked_ns)
{
    struct cdi_clock_time t = {0};
    bool ok = clock_decode(text, len, &t, false);

    *asked_ns = t.asked_ns;
    return ok;
}

bool cdi_clock_decode_time(const void *text, size_t len, struct cdi_clock_time *t)
{
    return clock_decode(text, len, t, true);
}
