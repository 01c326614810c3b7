/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/trace/trace.h"

#include "common/clock.h"
#include "common/log.h"
#include "protocol/bulk.h"
#include "watch/trace/clock_align.h"
#include "watch/trace/trace_collect.h"
#include "watch/trace/trace_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_MAX 700          /* collectives, and steps, in a frame: with long numbers it is below the relay's limit */
#define RECORD_BYTES 96       /* about, in a frame */
#define JOB_BYTES_S (4 << 20) /* all nodes together may send about so much a second: node 0 decodes it */
#define NODE_BYTES_MAX_S (1 << 20)
#define NODE_BYTES_MIN_S (4 << 10)
#define FLUSH_FRAMES 32 /* of one trace_flush() */
#define FIRST_CLOCKS 8  /* questions at the begin, which follow quickly */
#define FIRST_CLOCK_MS 20
#define CLOCK_MS 1000
#define CLOCK_WAIT_MS 2000 /* records wait for so long until the clocks are known: a server may not answer CLOCK */
#define HELD_MAX 64        /* frames of other nodes that wait so */

struct trace {
    uv_loop_t *loop;
    struct trace_options opt;
    struct clock_align clock;
    struct trace_file *file;      /* this agent has or had node rank 0 */
    struct trace_cursor *cursors; /* by local rank */
    struct cdi_records out;       /* not sent yet */
    bool writes;                  /* this agent has node rank 0 */
    bool own_server, in_round;
    bool unwritable; /* reported */
    int64_t interval_ms, last_ms;
    int64_t clock_ms;    /* when to ask next */
    int64_t clock_by_ms; /* when not to wait for the first answer any more */
    unsigned n_clocks;
    int64_t bytes_s, bytes; /* that may be sent in a second, and now */
    uint64_t n_sent;        /* records in earlier frames */
    size_t room, share;     /* in the next frame: for all ranks, and for each */
    unsigned used;          /* of the fullest page */
    struct cdi_records held[HELD_MAX];
    size_t n_held;
    char *text; /* of trace_close() */
    size_t text_cap;
    void (*closed)(void *arg, bool flushed);
    void *closed_arg;
};

cddp_status trace_start(struct trace **out, uv_loop_t *loop, const struct trace_options *opt, struct cdi_error *err)
{
    struct trace *t = calloc(1, sizeof *t);
    cddp_status st;

    if (t == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a trace");
    t->loop = loop;
    t->opt = *opt;
    t->cursors = calloc(opt->n_procs, sizeof *t->cursors);
    st = t->cursors == NULL ? cdi_fail(err, CDDP_E_NOMEM, "out of memory for a trace") : cdi_records_init(&t->out, err);
    if (st != CDDP_OK) {
        free(t->cursors);
        free(t);
        return st;
    }
    (void)snprintf(t->out.host, sizeof t->out.host, "%s", opt->host);
    *out = t;
    return CDDP_OK;
}

/* ---------------------------------------------------------------------------------------------------- sending ---- */

static bool waits_for_clock(const struct trace *t, int64_t now_ms)
{
    return t->clock.of == 0 && now_ms < t->clock_by_ms;
}

/* Sets the server's clock minus this node's. Returns false if it is not known. */
static bool own_offset(const struct trace *t, int64_t *offset_ns, int64_t *bound_ns)
{
    bool known = clock_align_get(&t->clock, cdi_now_ns(), offset_ns, bound_ns);

    if (t->own_server)
        *offset_ns = *bound_ns = 0; /* they are one clock */
    return known;
}

/* Tells the steps in these records to the one who notes them. */
static void pass_steps(const struct trace *t, const struct cdi_records *r, const struct trace_clock *clock)
{
    for (size_t i = 0; t->opt.step != NULL && i < r->n_steps; i++)
        t->opt.step(t->opt.arg, r->steps[i].rank, &r->steps[i].s,
                    clock->known ? r->steps[i].s.end_ns + clock->shift_ns : cdi_now_ns());
}

/* Both clocks are known relative to the server's: so is one relative to the other. Releases *r. */
static void write_records(struct trace *t, struct cdi_records *r)
{
    struct trace_clock clock = {.known = false};
    int64_t offset_ns, bound_ns;

    if (own_offset(t, &offset_ns, &bound_ns) && r->clock_of == t->clock.of)
        clock = (struct trace_clock){
            .known = true, .shift_ns = r->offset_ns - offset_ns, .bound_ns = r->bound_ns + bound_ns};
    if (t->file != NULL)
        trace_file_add(t->file, r, &clock);
    pass_steps(t, r, &clock);
    cdi_records_release(r);
}

/* Writes the records of other nodes that have waited for the clock of this one. */
static void write_held(struct trace *t)
{
    for (size_t i = 0; i < t->n_held; i++)
        write_records(t, &t->held[i]);
    t->n_held = 0;
}

static void send_frame(struct trace *t)
{
    size_t len = 0;
    char *text = cdi_records_encode(&t->out, &len);

    if (text != NULL)
        (void)t->opt.facts->send(t->opt.facts->arg, CDI_BULK_RECORDS, text,
                                 len); /* a dropped frame shows in the counts of the next one */
    t->bytes -= (int64_t)len;
    free(text);
}

/* Passes on what was collected. */
static void deliver(struct trace *t)
{
    const struct trace_clock same = {.known = true};

    if (cdi_records_count(&t->out) == 0)
        return;
    t->out.n_before = t->n_sent;
    t->out.clock_of = t->clock.of;
    (void)own_offset(t, &t->out.offset_ns, &t->out.bound_ns);
    pass_steps(t, &t->out, &same);
    if (t->writes && t->file != NULL)
        trace_file_add(t->file, &t->out, &same);
    else if (!t->writes)
        send_frame(t);
    t->n_sent += cdi_records_count(&t->out);
    t->out.n_colls = t->out.n_steps = t->out.n_events = t->out.n_names = 0;
}

static void take_page(void *arg, const struct worker_page *p)
{
    struct trace *t = arg;
    size_t taken = t->out.n_colls > t->out.n_steps ? t->out.n_colls : t->out.n_steps;
    struct trace_source from = {.page = p->page, .rank = p->rank, .ended = p->ended, .now_ns = cdi_now_ns()};
    unsigned used;

    if (p->page == NULL || p->local_rank >= t->opt.n_procs || taken >= t->room)
        return;
    from.room = t->room - taken < t->share ? t->room - taken : t->share;
    used = trace_collect(&t->cursors[p->local_rank], &from, &t->out);
    if (used > t->used)
        t->used = used;
}

/* Reads the pages, for at most `room` records of each kind. */
static void collect(struct trace *t, size_t room)
{
    t->room = room;
    t->share = room > t->opt.n_procs ? room / t->opt.n_procs : 1;
    t->used = 0;
    t->opt.facts->pages(t->opt.facts->arg, take_page, t);
    if (t->opt.path == NULL)
        t->out.n_colls = t->out.n_names = t->out.n_events = 0;
}

void trace_flush(struct trace *t)
{
    if (t == NULL || !t->in_round)
        return;
    for (int i = 0; i < FLUSH_FRAMES; i++) {
        collect(t, ROOM_MAX);
        if (cdi_records_count(&t->out) == 0)
            return;
        deliver(t);
    }
}

static size_t room_for(const struct trace *t)
{
    int64_t room = t->bytes / RECORD_BYTES;

    if (t->writes)
        return ROOM_MAX;
    return room <= 0 ? 0 : room > ROOM_MAX ? ROOM_MAX : (size_t)room;
}

static void ask_clock(struct trace *t, int64_t now_ms)
{
    char text[CDI_CLOCK_TEXT];

    if (now_ms < t->clock_ms)
        return;
    t->clock_ms = now_ms + (t->n_clocks < FIRST_CLOCKS ? FIRST_CLOCK_MS : CLOCK_MS);
    t->n_clocks++;
    (void)t->opt.facts->send(t->opt.facts->arg, CDI_BULK_CLOCK, text, cdi_clock_encode_ask(cdi_now_ns(), text));
}

int64_t trace_look(struct trace *t, int64_t now_ms)
{
    size_t room;

    if (t == NULL || !t->in_round)
        return CDI_NEVER_MS;
    t->bytes += (now_ms - t->last_ms) * t->bytes_s / 1000;
    if (t->bytes > t->bytes_s)
        t->bytes = t->bytes_s;
    t->last_ms = now_ms;
    ask_clock(t, now_ms);
    if (!waits_for_clock(t, now_ms))
        write_held(t);
    room = !t->writes && waits_for_clock(t, now_ms) ? 0 : room_for(t);
    if (room > 0) {
        collect(t, room);
        deliver(t);
        t->interval_ms = trace_interval_ms(t->interval_ms, t->used);
    }
    return t->clock_ms < now_ms + t->interval_ms ? t->clock_ms : now_ms + t->interval_ms;
}

/* ----------------------------------------------------------------------------------------------------- rounds ---- */

static void on_file_lost(void *arg, const char *path, int error)
{
    (void)arg;
    cdi_log(CDI_LOG_ERROR, "TRACE-LOST", "cannot write the trace '%.400s': %s; it ends here, the job continues", path,
            strerror(error));
}

/* The first round's node 0 writes FILE. A node that becomes node 0 later must not replace that one's file. */
static void open_file(struct trace *t, const struct cdi_msg_assign *assign)
{
    char path[4096];
    struct trace_file_options opt = {
        .path = path, .job = t->opt.job, .max_bytes = t->opt.max_bytes, .lost = on_file_lost, .arg = t};
    struct cdi_error err;

    if (assign->round == 0)
        (void)snprintf(path, sizeof path, "%s", t->opt.path);
    else
        (void)snprintf(path, sizeof path, "%s.round%" PRIu32, t->opt.path, assign->round);
    if (trace_file_open(&t->file, t->loop, &opt, &err) == CDDP_OK)
        return;
    t->unwritable = true;
    cdi_log(CDI_LOG_ERROR, "TRACE-FILE", "%s; the job continues without a trace", err.msg);
}

void trace_begin_round(struct trace *t, const struct cdi_msg_assign *assign, bool own_server)
{
    if (t == NULL)
        return;
    t->writes = assign->node_rank == 0;
    t->own_server = own_server;
    t->in_round = true;
    if (t->writes && t->opt.path != NULL && t->file == NULL && !t->unwritable)
        open_file(t, assign);
    memset(t->cursors, 0, t->opt.n_procs * sizeof *t->cursors);
    t->out.round = assign->round;
    t->out.node_rank = assign->node_rank;
    t->bytes_s = JOB_BYTES_S / assign->n_nodes;
    if (t->bytes_s > NODE_BYTES_MAX_S)
        t->bytes_s = NODE_BYTES_MAX_S;
    if (t->bytes_s < NODE_BYTES_MIN_S)
        t->bytes_s = NODE_BYTES_MIN_S;
    t->bytes = t->bytes_s;
    t->last_ms = cdi_now_ms();
    t->clock_ms = t->last_ms;
    t->clock_by_ms = t->last_ms + CLOCK_WAIT_MS;
    t->n_clocks = 0;
    t->interval_ms = TRACE_INTERVAL_MIN_MS;
}

/* Events of the whole job are known to every agent: node rank 0 records them. */
static bool is_of_job(const char *kind)
{
    return strcmp(kind, "started") != 0 && strcmp(kind, "ended") != 0;
}

void trace_event(struct trace *t, const char *kind, int32_t rank, const char *text)
{
    struct cdi_record_event *e;

    if (t == NULL || t->opt.path == NULL || !t->in_round || (is_of_job(kind) && !t->writes))
        return;
    if (t->out.n_events == CDI_RECORDS_EVENTS_MAX)
        deliver(t);
    e = &t->out.events[t->out.n_events++];
    *e = (struct cdi_record_event){.time_ns = cdi_now_ns(), .rank = rank < 0 ? -1 : rank};
    (void)snprintf(e->kind, sizeof e->kind, "%s", kind);
    (void)snprintf(e->text, sizeof e->text, "%.*s", (int)strcspn(text, "\n"), text);
}

/* -------------------------------------------------------------------------------------------------- receiving ---- */

static void take_time(struct trace *t, const void *payload, size_t len)
{
    struct cdi_clock_time time;

    if (!cdi_clock_decode_time(payload, len, &time))
        return;
    clock_align_add(&t->clock, time.of, time.asked_ns, time.time_ns, cdi_now_ns());
    write_held(t);
}

static void take_records(struct trace *t, const void *payload, size_t len)
{
    struct cdi_records r;

    if (!t->writes || cdi_records_decode(payload, len, &r, NULL) != CDDP_OK)
        return;
    if (waits_for_clock(t, cdi_now_ms()) && t->n_held < HELD_MAX)
        t->held[t->n_held++] = r;
    else
        write_records(t, &r);
}

bool trace_on_bulk(struct trace *t, uint16_t type, const void *payload, size_t len)
{
    if (type != CDI_BULK_RECORDS && type != CDI_BULK_TIME)
        return false;
    if (t != NULL && type == CDI_BULK_RECORDS)
        take_records(t, payload, len);
    else if (t != NULL)
        take_time(t, payload, len);
    return true;
}

/* ------------------------------------------------------------------------------------------------------ ending ---- */

static void describe(const struct trace *t, bool flushed, char *text, size_t cap)
{
    const struct trace_format *f = trace_file_format(t->file);
    uint64_t lost = trace_format_lost(f);
    size_t n_unknown;
    int64_t bound_ns = trace_format_bound_ns(f, &n_unknown);
    char clocks[64] = "", losses[64] = "";

    if (trace_file_is_broken(t->file))
        return;
    if (!flushed) {
        (void)snprintf(text, cap, "the trace '%.1000s' has no end: writing it hangs", trace_file_path(t->file));
        return;
    }
    if (trace_file_is_gone(t->file)) {
        (void)snprintf(text, cap, "the trace is lost: '%.1000s' was removed or replaced while the job ran",
                       trace_file_path(t->file));
        return;
    }
    if (n_unknown > 0)
        (void)snprintf(clocks, sizeof clocks, "; the clocks of %zu node%s are not aligned", n_unknown,
                       n_unknown == 1 ? "" : "s");
    else if (bound_ns > 0)
        (void)snprintf(clocks, sizeof clocks, "; clocks agree within %" PRId64 " us", (bound_ns + 999) / 1000);
    if (lost > 0)
        (void)snprintf(losses, sizeof losses, "; %" PRIu64 " record%s lost", lost, lost == 1 ? " was" : "s were");
    (void)snprintf(text, cap, "the trace is in '%.1000s'%s: %" PRIu64 " records%s%s", trace_file_path(t->file),
                   trace_file_has_old(t->file) ? ", its older part in a file that ends in .old" : "",
                   trace_format_written(f), clocks, losses);
}

static void free_trace(struct trace *t, bool flushed)
{
    void (*closed)(void *arg, bool flushed) = t->closed;
    void *arg = t->closed_arg;

    cdi_records_release(&t->out);
    free(t->cursors);
    free(t);
    closed(arg, flushed);
}

static void on_file_closed(void *arg, bool flushed)
{
    struct trace *t = arg;

    describe(t, flushed, t->text, t->text_cap);
    free_trace(t, flushed);
}

void trace_close(struct trace *t, char *text, size_t cap, void (*closed)(void *arg, bool flushed), void *arg)
{
    text[0] = '\0';
    if (t == NULL) {
        closed(arg, true);
        return;
    }
    t->closed = closed;
    t->closed_arg = arg;
    t->text = text;
    t->text_cap = cap;
    trace_flush(t);
    write_held(t);
    if (t->file != NULL)
        trace_file_close(t->file, on_file_closed, t);
    else
        free_trace(t, true);
}
