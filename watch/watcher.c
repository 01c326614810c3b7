/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/watcher.h"

#include "common/clock.h"
#include "common/log.h"
#include "protocol/bulk.h"
#include "protocol/json_text.h"
#include "watch/node/hang_report.h"
#include "watch/node/mpi_program.h"
#include "watch/node/torch_look.h"
#include "watch/run/run_watch.h"
#include "watch/trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LATER_MS 1000

struct watcher {
    uv_timer_t timer;
    struct watcher_options opt;
    struct trace *trace;   /* NULL: none, as the next three */
    struct run_watch *run; /* the report, and the line of --progress */
    struct hang_report *hang;
    struct torch_look *look;
    struct mpi_look mpi;
    bool mpi_known;                              /* the warning about an MPI program was given */
    int64_t trace_ms, ranks_ms, look_ms, mpi_ms; /* when each is due */
    char trace_text[1400];
    bool hangs; /* a thread hangs in write(2) */
};

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Shows where the ranks are to the record of the run, its line, and the reports about them. */
static void look_at_ranks(struct watcher *w, int64_t now_ms)
{
    struct cdi_node_report r = {.asked = 0};
    bool known = w->opt.facts.ranks(w->opt.facts.arg, &r) == CDDP_OK;

    w->ranks_ms =
        sooner(run_watch_look(w->run, known ? &r : NULL, now_ms), hang_report_look(w->hang, known ? &r : NULL, now_ms));
    cdi_node_report_release(&r);
}

static void on_look(uv_timer_t *timer)
{
    struct watcher *w = timer->data;
    int64_t now_ms = cdi_now_ms(), next_ms;

    if (now_ms >= w->trace_ms)
        w->trace_ms = trace_look(w->trace, now_ms);
    if (now_ms >= w->ranks_ms)
        look_at_ranks(w, now_ms);
    if (now_ms >= w->look_ms)
        w->look_ms = torch_look_again(w->look, now_ms);
    if (now_ms >= w->mpi_ms)
        w->mpi_ms = mpi_look_again(&w->mpi, now_ms);
    next_ms = sooner(sooner(w->trace_ms, w->ranks_ms), sooner(w->look_ms, w->mpi_ms));
    if (next_ms != CDI_NEVER_MS)
        (void)uv_timer_start(timer, on_look, next_ms > now_ms ? (uint64_t)(next_ms - now_ms) : 1, 0);
}

/* ----------------------------------------------------------------------------------------------------- start ---- */

static void on_step(void *arg, int32_t rank, const struct cdi_flight_step *step, int64_t end_ns)
{
    const struct watcher *w = arg;

    run_watch_step(w->run, rank, step, end_ns);
}

/* The report needs the steps of a trace. */
static cddp_status start_trace(struct watcher *w, struct cdi_error *err)
{
    const struct plan *p = w->opt.plan;
    const struct trace_options opt = {.path = p->options->trace,
                                      .job = p->run_id,
                                      .host = p->host,
                                      .max_bytes = (uint64_t)p->options->trace_max_mib << 20,
                                      .n_procs = p->n_procs,
                                      .facts = &w->opt.facts,
                                      .step = on_step,
                                      .arg = w};

    if (opt.path == NULL && p->options->report == NULL)
        return CDDP_OK;
    return trace_start(&w->trace, w->opt.loop, &opt, err);
}

static cddp_status start_hang_report(struct watcher *w, struct cdi_error *err)
{
    const struct plan *p = w->opt.plan;
    int64_t warning_ms = p->options->hang_warning_ms, timeout_ms = p->options->hang_timeout_ms;
    struct hang_report_options opt = {
        .loop = w->opt.loop,
        .n_ranks = p->n_procs,
        .wait_ms = warning_ms == 0 || (timeout_ms > 0 && timeout_ms < warning_ms) ? timeout_ms : warning_ms,
        .facts = &w->opt.facts};

    if (hang_report_start(&w->hang, &opt) == CDDP_OK)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_NOMEM, "out of memory for the reports of %u workers", p->n_procs);
}

static cddp_status start_look(struct watcher *w, struct cdi_error *err)
{
    const struct torch_look_options opt = {.loop = w->opt.loop,
                                           .warning_ms = w->opt.plan->options->hang_warning_ms,
                                           .host = w->opt.plan->host,
                                           .facts = &w->opt.facts};

    return opt.warning_ms > 0 ? torch_look_start(&w->look, &opt, err) : CDDP_OK;
}

static cddp_status watcher_start(struct watcher **out, const struct watcher_options *opt, struct cdi_error *err)
{
    struct watcher *w = calloc(1, sizeof *w);
    cddp_status st;

    if (w == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    w->opt = *opt;
    *out = w;
    (void)uv_timer_init(opt->loop, &w->timer);
    w->timer.data = w;
    st = start_trace(w, err);
    if (st == CDDP_OK)
        st = run_watch_start(&w->run, opt->plan, opt->logs, err);
    if (st == CDDP_OK)
        st = start_hang_report(w, err);
    if (st == CDDP_OK)
        st = start_look(w, err);
    w->mpi_known = mpi_program_warn(opt->plan, opt->program);
    w->mpi = (struct mpi_look){.loop = opt->loop, .plan = opt->plan, .facts = &w->opt.facts};
    w->trace_ms = w->mpi_ms = CDI_NEVER_MS;
    w->ranks_ms = w->look_ms = cdi_now_ms() + LATER_MS;
    (void)uv_timer_start(&w->timer, on_look, LATER_MS, 0);
    return st;
}

/* ---------------------------------------------------------------------------------------------------- events ---- */

static void watcher_round(struct watcher *w, const struct cdi_msg_assign *assign, bool own_server)
{
    trace_begin_round(w->trace, assign, own_server);
    run_watch_round(w->run, assign);
    w->trace_ms = w->trace == NULL ? CDI_NEVER_MS : 0;
    if (!w->mpi_known)
        w->mpi_ms = mpi_look_start(&w->mpi, cdi_now_ms());
    (void)uv_timer_start(&w->timer, on_look, 0, 0);
}

static void watcher_flush(struct watcher *w)
{
    struct cdi_node_report r = {.asked = 0};
    bool known = w->run != NULL && w->opt.facts.ranks(w->opt.facts.arg, &r) == CDDP_OK;

    trace_flush(w->trace);
    run_watch_count(w->run, known ? &r : NULL);
    cdi_node_report_release(&r);
}

static void watcher_round_over(struct watcher *w, const struct cdi_msg_round_over *over)
{
    watcher_flush(w);
    run_watch_round_over(w->run, over);
}

static void watcher_event(void *arg, const char *kind, int32_t rank, const char *text)
{
    struct watcher *w = arg;

    if (w == NULL)
        return;
    trace_event(w->trace, kind, rank, text);
    if (strcmp(kind, "notice") == 0 || strcmp(kind, "signal") == 0)
        run_watch_event(w->run, kind, text);
}

static void watcher_bulk(struct watcher *w, uint16_t type, const void *payload, size_t len)
{
    json_t *root = trace_on_bulk(w->trace, type, payload, len) ? NULL : json_loadb(payload, len, 0, NULL);
    const char *text = json_lines(json_object_get(root, "text"));

    if (type == CDI_BULK_ASK)
        hang_report_on_ask(w->hang, root);
    if (type == CDI_BULK_NOTICE && text != NULL) {
        w->opt.facts.say(w->opt.facts.arg, text, strlen(text));
        watcher_event(w, "notice", -1, text);
    }
    json_decref(root);
}

static void watcher_held(struct watcher *w, bool held)
{
    hang_report_held(w->hang, held);
}

/* ------------------------------------------------------------------------------------------------------- end ---- */

static void on_trace_closed(void *arg, bool flushed)
{
    struct watcher *w = arg;

    w->hangs = !flushed;
}

static void watcher_end(struct watcher *w, const struct supervise *s, int exit_status)
{
    if (w == NULL || uv_is_closing((uv_handle_t *)&w->timer))
        return;
    watcher_flush(w);
    trace_close(w->trace, w->trace_text, sizeof w->trace_text, on_trace_closed, w);
    run_watch_end(w->run, s, exit_status);
    hang_report_close(w->hang);
    torch_look_stop(w->look);
    w->mpi.ended = true;
    uv_close((uv_handle_t *)&w->timer, NULL);
}

static bool watcher_finish(struct watcher *w, bool quiet)
{
    struct cdi_error err;
    bool hangs;

    if (w == NULL)
        return true;
    if (w->trace_text[0] != '\0' && !quiet) /* only now it is known whether the file is whole */
        (void)dprintf(STDERR_FILENO, "cddprun: %s\n", w->trace_text);
    if (run_watch_finish(w->run, &err) != CDDP_OK) /* the run is over, so its exit status stays what it was */
        cdi_log(CDI_LOG_ERROR, "AGENT-RUN-REPORT", "%s", err.msg);
    hangs = w->hangs;
    free(w);
    return !hangs;
}

const struct watcher_ops watch_watcher = {.start = watcher_start,
                                          .round = watcher_round,
                                          .flush = watcher_flush,
                                          .round_over = watcher_round_over,
                                          .event = watcher_event,
                                          .bulk = watcher_bulk,
                                          .held = watcher_held,
                                          .end = watcher_end,
                                          .finish = watcher_finish};
