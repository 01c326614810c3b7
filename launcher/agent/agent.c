/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/agent.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/time_limits.h"
#include "launcher/agent/crash.h"
#include "launcher/agent/host.h"
#include "launcher/agent/lookup.h"
#include "launcher/agent/progress.h"
#include "launcher/agent/rdzv_client.h"
#include "launcher/agent/report.h"
#include "launcher/agent/supervise.h"
#include "launcher/agent/watcher.h"
#include "launcher/agent/worker_group.h"
#include "launcher/cli/rankmap.h"
#include "launcher/etcd/etcd.h"
#include "launcher/process/signame.h"
#include "rendezvous/server.h"

#include <cddp/version.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#define PYTHON_CANNOT_OPEN 2 /* its exit status then */
#define SWEEP_TICK_MS 1      /* between two scans for remaining descendants */
#define FINISH_QUIET_MS \
    200 /* processes that the workers have left may continue to write, if never silent for this long */
#define OUTPUT_QUIET_MS 500 /* with no descendant left, a silent open pipe belongs to another process */
#define FLUSH_REST_MS 1000  /* for the report, after the output for a stalled reader was dropped */
#define FLUSH_TICK_MS 50
#define LOOK_MS 100 /* of longer times between two looks: without a processor, or stopped, nobody here has listened */
#define AGENT_LINE_MAX (128 * 1024) /* bytes of a message */

/* How long nothing has happened while this process could have noticed it. */
struct silence {
    int64_t looked_ms, lasted_ms; /* looked_ms: 0: not begun */
};

struct agent {
    uv_loop_t loop;
    struct spawn_watch child;
    struct crash_watch crash;
    uv_pipe_t link;
    uv_timer_t grace, sweep;
    const struct plan *plan;
    struct guard_link *guard;
    struct stdin_copy *stdin_copy; /* NULL: not with --stdin=all */
    struct spawn_context spawn;
    struct supervise sup;
    struct worker_group *group;
    struct writer *console;
    struct logs *logs;
    struct event_log *events; /* NULL: none */
    const struct watcher_ops *watch;
    struct watcher *watcher;
    struct rdzv_client *client;
    struct rdzv_server *server;
    const struct rdzv_views *views;
    struct etcd *etcd;            /* elects the host; NULL: the endpoint is fixed */
    char local_ip[CDI_HOST_TEXT]; /* of --local_addr, with etcd; "": not given */
    char master_addr[64];
    uint16_t master_port;
    struct silence swept_for, output_silent; /* since the sweep began; since the last output arrived */
    uint64_t progress;                       /* of the writing of output */
    struct silence stalled, flushed_for;     /* since it last changed; since the flush began, or the sweep before it */
    int unwritten;                           /* the errno for workers' output that could not be written; 0 */
    bool skipped_hung;                       /* the output for a stalled reader was dropped */
    bool finishing;                          /* processes that the workers have left still write */
    bool swept;                              /* no descendant is left, but maybe output */
    bool over;                               /* after FINISH */
    bool held;                               /* the workers are stopped until the rendezvous answers */
    int64_t alone_ms;                        /* an elected host: until when no other world can run; 0: not known yet */
    bool abandoned;                          /* some output could not be written */
    bool no_wait;                            /* do not wait for output to be written */
    char read_buf[SPAWN_READ];
};

static void agent_handle(struct agent *a, const struct supervise_event *ev);
static void set_timer(struct agent *a);

/* Writes cddprun's own output, which is not a worker's. */
static void agent_push(struct agent *a, const void *text, size_t n)
{
    if (a->logs != NULL && logs_reset_drawn(a->logs))
        writer_push(a->console, writer_std(a->console, STDERR_FILENO), a->plan->n_procs, RANKLOG_ERASE,
                    strlen(RANKLOG_ERASE));
    writer_push(a->console, writer_std(a->console, STDERR_FILENO), a->plan->n_procs, text, n);
}

static void log_to_writer(enum cdi_log_level level, const char *id, const char *text, void *arg)
{
    struct agent *a = arg;
    char line[1600];
    int n = cdi_log_level() == CDI_LOG_DEBUG ? snprintf(line, sizeof line, "cddprun: %s %s\n", id, text)
                                             : snprintf(line, sizeof line, "cddprun: %s\n", text);

    (void)level;
    if (n > 0)
        agent_push(a, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

/* --------------------------------------------------------------------------------------------------- workers ---- */

static void agent_mark_final(const struct agent *a, struct cdi_failure *end)
{
    const char *codes = a->plan->options->no_restart_codes;
    bool succeeded = end->kind == CDI_END_EXIT && end->code == 0;

    end->final = codes != NULL && !succeeded && rankset_has(codes, (uint32_t)supervise_failure_status(end));
}

static void on_worker_exited(void *arg, const struct cdi_failure *end)
{
    struct supervise_event ev = {.kind = SUPERVISE_EXIT, .u.end = *end};
    struct agent *a = arg;
    struct cdi_stop_view stop;

    agent_mark_final(a, &ev.u.end);
    ev.agreed = worker_group_read_stop(a->group, end->rank, &stop) && stop.agreed != CDI_STOP_NONE;
    agent_handle(a, &ev);
}

static void on_worker_cause(void *arg, const struct cdi_failure *end)
{
    struct supervise_event ev = {.kind = SUPERVISE_CAUSE, .u.end = *end};

    agent_mark_final(arg, &ev.u.end);
    agent_handle(arg, &ev);
}

static int exit_status(const struct agent *a)
{
    int status = supervise_exit_status(&a->sup);

    if (status != 0 || a->unwritten == 0)
        return status;
    return a->unwritten == EPIPE ? 128 + SIGPIPE : 1;
}

/* How long a reader may stall: forever as long as the job succeeds, so that a pager can be left alone. */
static int64_t patience_ms(const struct agent *a)
{
    if (a->over ? exit_status(a) == 0 : a->sup.first.kind == CDI_END_NONE)
        return CDI_NEVER_MS;
    return a->sup.grace_ms > 1000 * CDI_LIMIT_READER_S ? a->sup.grace_ms : 1000 * CDI_LIMIT_READER_S;
}

static struct silence silence_begin(void)
{
    return (struct silence){.looked_ms = cdi_now_ms()};
}

/* Looks once more: has it lasted for ms? The loop reads, and other threads write, between two looks. */
static bool has_lasted(struct silence *s, int64_t ms)
{
    int64_t now = cdi_now_ms(), since = now - s->looked_ms;

    s->lasted_ms += since < LOOK_MS ? since : LOOK_MS;
    s->looked_ms = now;
    return s->lasted_ms >= ms;
}

static bool is_stalled_for(struct agent *a, int64_t ms)
{
    uint64_t progress = writer_progress(a->console) + (a->logs != NULL ? logs_progress(a->logs) : 0);

    if (progress != a->progress)
        a->stalled = silence_begin();
    a->progress = progress;
    return has_lasted(&a->stalled, ms);
}

/* Is the wait for the readers of the workers' output over? */
static bool is_wait_over(struct agent *a)
{
    if (a->sup.signal != 0)
        return has_lasted(&a->swept_for, 1000 * CDI_LIMIT_READER_S);
    return is_stalled_for(a, patience_ms(a));
}

/*
 * The workers have exited, but a filter after one of them (`./train | tee log` in a script) still writes. It may
 * continue while it writes, up to the workers' own grace period, but not if the workers were killed.
 */
static bool is_finishing(struct agent *a)
{
    return !a->sup.killed && a->sup.signal == 0 && worker_group_has_output(a->group) && !is_wait_over(a) &&
           !has_lasted(&a->output_silent, FINISH_QUIET_MS) && !has_lasted(&a->swept_for, a->sup.grace_ms) &&
           guard_has_children();
}

static void check_swept(struct agent *a)
{
    struct supervise_event ev = {.kind = SUPERVISE_SWEPT};

    if (a->sup.state != SUPERVISE_SWEEPING)
        return;
    if (a->finishing && is_finishing(a))
        return;
    if (a->finishing)
        a->swept_for = silence_begin();
    a->finishing = false;
    if (!a->swept && has_lasted(&a->swept_for, 1000 * CDI_LIMIT_KILLED_S)) {
        cdi_log(CDI_LOG_ERROR, "AGENT-SWEEP", "some job processes survived SIGKILL; continuing");
        a->swept = true;
    }
    if (!a->swept)
        a->swept = !guard_sweep_once();
    if (!a->swept)
        return;
    /* Reads the pipes to their ends, unless the readers have stalled or only unknown processes write. */
    if (worker_group_has_output(a->group) && !is_wait_over(a) &&
        (worker_group_waits_for_room(a->group) || !has_lasted(&a->output_silent, OUTPUT_QUIET_MS)))
        return;
    (void)uv_timer_stop(&a->sweep);
    agent_handle(a, &ev);
}

static void on_sweep_timer(uv_timer_t *t)
{
    check_swept(t->data);
}

static void on_output_moved(void *arg)
{
    struct agent *a = arg;

    a->output_silent = silence_begin();
    if (a->sup.state == SUPERVISE_SWEEPING && (a->swept || a->finishing) && !worker_group_has_output(a->group))
        check_swept(a);
}

static void begin_sweep(struct agent *a)
{
    a->swept = false;
    a->finishing = true;
    a->swept_for = a->output_silent = a->stalled = silence_begin();
    (void)uv_timer_start(&a->sweep, on_sweep_timer, 0, SWEEP_TICK_MS);
}

static void log_bindings(const struct agent *a)
{
    const struct bind_worker *b = a->plan->bind;
    char text[1500];

    for (uint32_t i = 0; b != NULL && a->plan->options->report_bindings && i < a->plan->n_procs; i++) {
        bind_text(&b[i], a->sup.assign.rank_base + i, text, sizeof text);
        cdi_log(CDI_LOG_WARN, "AGENT-BINDING", "%s", text);
    }
}

/* ------------------------------------------------------------------------------------------------------ facts ---- */

static size_t on_list_workers(void *arg, struct foreign_worker *out, size_t cap)
{
    const struct agent *a = arg;

    if (a->group == NULL || a->held || a->over || a->sup.state != SUPERVISE_RUNNING)
        return 0;
    return worker_group_foreign(a->group, out, cap);
}

static size_t on_list_waits(void *arg, struct page_wait *out, size_t cap)
{
    const struct agent *a = arg;

    return a->server == NULL ? 0 : rdzv_server_waits(a->server, out, cap);
}

static void on_say(void *arg, const char *text, size_t n)
{
    struct agent *a = arg;
    struct cdi_buf line;

    cdi_buf_init(&line, AGENT_LINE_MAX);
    if (cdi_buf_printf(&line, "cddprun: %.*s\n", (int)n, text) == CDDP_OK)
        agent_push(a, cdi_buf_data(&line), line.len);
    cdi_buf_release(&line);
}

static cddp_status on_list_ranks(void *arg, struct cdi_node_report *r)
{
    const struct agent *a = arg;

    if (a->group == NULL)
        return CDDP_E_NOT_FOUND;
    r->round = a->sup.assign.round;
    r->node_rank = a->sup.assign.node_rank;
    (void)snprintf(r->host, sizeof r->host, "%s", a->plan->host);
    return worker_group_ranks(a->group, r, NULL);
}

static void on_list_pages(void *arg, void (*take)(void *take_arg, const struct worker_page *page), void *take_arg)
{
    const struct agent *a = arg;

    if (a->group != NULL)
        worker_group_pages(a->group, take, take_arg);
}

static bool on_send_bulk(void *arg, uint16_t type, const void *payload, size_t len)
{
    const struct agent *a = arg;

    return rdzv_client_send_bulk(a->client, type, payload, len);
}

static cddp_status start_watcher(struct agent *a, struct cdi_error *err)
{
    const struct watcher_options opt = {.loop = &a->loop,
                                        .plan = a->plan,
                                        .logs = a->logs,
                                        .program = a->spawn.program,
                                        .facts = {.ranks = on_list_ranks,
                                                  .pages = on_list_pages,
                                                  .foreign = on_list_workers,
                                                  .waits = on_list_waits,
                                                  .send = on_send_bulk,
                                                  .say = on_say,
                                                  .arg = a}};
    cddp_status st = a->watch->start(&a->watcher, &opt, err);

    event_log_listen(a->events, a->watch->event, a->watcher);
    return st;
}

static void agent_start_workers(struct agent *a)
{
    struct worker_group_options opt = {
        .spawn = &a->spawn,
        .plan = a->plan,
        .logs = a->logs,
        .stdin_copy = a->stdin_copy,
        .events = a->events,
        .assign = a->sup.assign,
        .exited = on_worker_exited,
        .cause = on_worker_cause,
        .output_moved = on_output_moved,
        .arg = a,
    };
    struct supervise_event ev = {.kind = SUPERVISE_LINK_LOST};
    struct cdi_error err;

    a->watch->flush(a->watcher);
    worker_group_destroy(a->group);
    a->group = NULL;
    log_bindings(a);
    logs_begin(a->logs, a->sup.assign.restart_count);
    a->watch->round(a->watcher, &a->sup.assign, a->server != NULL);
    event_log_round(a->events, &a->sup.assign, a->plan->n_procs);
    if (worker_group_start(&a->group, &opt, &err) == CDDP_OK) {
        if (a->alone_ms != 0)
            worker_group_publish_alone(a->group, a->alone_ms);
        return;
    }
    /* No worker exists: set that all have exited, and end. */
    ev.u.text = err.msg;
    a->sup.n_alive = 0;
    a->sup.state = SUPERVISE_WAITING;
    agent_handle(a, &ev);
}

static void agent_on_room(void *arg)
{
    struct agent *a = arg;

    if (a->group != NULL)
        worker_group_read_on(a->group);
}

static void on_child(void *arg)
{
    struct agent *a = arg;
    struct worker *none;

    if (a->group != NULL) {
        worker_group_on_child(a->group);
        set_timer(a); /* an end may wait for its cause */
        return;
    }
    while (spawn_reap(NULL, 0, &none))
        ;
}

static void on_crash_call(void *arg)
{
    struct agent *a = arg;

    if (a->group != NULL)
        worker_group_on_crash(a->group);
}

/*
 * A full disk costs the output, but not the training. A closed pipe ends both, just as SIGPIPE would end a worker that
 * wrote to the pipe itself.
 */
static void agent_on_unwritten(void *arg, int fd, int error)
{
    struct supervise_event ev = {.kind = SUPERVISE_SIGNAL, .u.signal = SIGPIPE};
    const char *name = fd == STDOUT_FILENO ? "stdout" : "stderr";
    struct agent *a = arg;

    if (a->unwritten == 0)
        a->unwritten = error;
    if (error == EPIPE && !a->over)
        agent_handle(a, &ev);
    else if (error != EPIPE)
        cdi_log(CDI_LOG_ERROR, "AGENT-UNWRITTEN",
                "cannot write to %s: %s; the job continues, but further output of its workers there is lost, and the "
                "exit status will not be 0",
                name, strerror(error));
}

/* An incomplete log must not look complete. */
static void on_log_lost(void *arg, int error)
{
    struct agent *a = arg;

    if (a->unwritten == 0)
        a->unwritten = error;
}

/* Its reader may have closed it (EPIPE). */
static void on_refused(void *arg, int error)
{
    const struct agent *a = arg;

    if (error != EPIPE)
        cdi_log(CDI_LOG_WARN, "AGENT-STATUS-FD",
                "cannot write to --status_fd %lld: %s; the job continues, but later events are lost",
                (long long)a->plan->options->status_fd, strerror(error));
}

static const struct writer_events console_events = {
    .room = agent_on_room, .unwritten = agent_on_unwritten, .refused = on_refused};

/* ---------------------------------------------------------------------------------------------------- ending ---- */

static void close_handle(uv_handle_t *h)
{
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static void on_flushed(void *arg, bool flushed)
{
    struct agent *a = arg;

    a->abandoned |= !flushed;
    close_handle((uv_handle_t *)&a->grace);
    close_handle((uv_handle_t *)&a->sweep);
    close_handle((uv_handle_t *)&a->link);
    close_handle((uv_handle_t *)&a->child.handle);
    crash_watch_close(&a->crash);
}

static void on_logs_closed(void *arg, bool flushed)
{
    struct agent *a = arg;

    a->logs = NULL;
    a->abandoned |= !flushed;
    writer_close(a->console, on_flushed, a);
    if (a->no_wait)
        writer_abandon(a->console);
}

/* Stops waiting for a stalled reader of the output, or a stalled disk. */
static void stop_waiting(struct agent *a)
{
    a->no_wait = true;
    if (a->logs != NULL)
        logs_abandon(a->logs);
    else
        writer_abandon(a->console);
}

static void agent_log_line(struct agent *a, const char *text);

/* After a signal there is one wait for a stalled reader in all, that of the sweep included. */
static bool is_flush_over(struct agent *a)
{
    return a->sup.signal != 0 && has_lasted(&a->flushed_for, 1000 * CDI_LIMIT_READER_S);
}

/* Ensures that the report is written, even if the workers' output queued before it is not read. */
static void on_flush_tick(uv_timer_t *t)
{
    struct agent *a = t->data;

    if (a->skipped_hung ? is_stalled_for(a, FLUSH_REST_MS) : is_flush_over(a) || is_stalled_for(a, patience_ms(a))) {
        if (a->skipped_hung) {
            stop_waiting(a);
            return;
        }
        a->skipped_hung = true;
        a->stalled = silence_begin();
        writer_skip_hung(a->console);
        agent_log_line(a, "its output is not being read: the last output of the workers is lost");
    }
    (void)uv_timer_start(t, on_flush_tick, FLUSH_TICK_MS, 0);
}

static void agent_log_line(struct agent *a, const char *text)
{
    on_say(a, text, strlen(text));
}

static void write_failure_report(struct agent *a)
{
    struct report r = {.first = a->sup.first,
                       .n_succeeded = a->sup.n_succeeded,
                       .n_ended_after = a->sup.n_ended_after,
                       .program = plan_shown_program(a->plan),
                       .after_ms = -1};
    struct cdi_buf text;
    int error = 0;

    cdi_buf_init(&text, 64 * 1024);
    if (a->group != NULL)
        worker_group_describe(a->group, &r);
    if (report_write(&r, &text) == CDDP_OK)
        agent_push(a, cdi_buf_data(&text), text.len);
    else
        agent_log_line(a, a->sup.first.text);
    cdi_buf_release(&text);
    if (a->plan->options->error_file != NULL)
        error = report_copy_error_file(&r, supervise_exit_status(&a->sup), a->plan->options->error_file);
    if (error != 0)
        cdi_log(CDI_LOG_WARN, "AGENT-ERROR-FILE", "cannot write the error file '%.300s' (TORCHELASTIC_ERROR_FILE): %s",
                a->plan->options->error_file, strerror(error));
}

/* Writes who asked for the stop on which all ranks have agreed, and what they had done by then. */
static void stop_text(const struct agent *a, char *text, size_t cap)
{
    struct cdi_stop_view stop = {.step = -1};
    uint32_t base = a->sup.assign.rank_base, n = a->sup.n_local;
    char name[32], who[600], ranks[64], step[64] = "";

    if (a->group == NULL || !worker_group_read_stop(a->group, (int)base, &stop))
        stop = (struct cdi_stop_view){.step = -1};
    if (a->sup.first_signal == SIGPIPE)
        (void)snprintf(who, sizeof who, "since the reader of its output is gone (SIGPIPE)");
    else if (a->sup.first_signal != 0)
        (void)snprintf(who, sizeof who, "by %s to cddprun on %.250s", signame(a->sup.first_signal, name, sizeof name),
                       a->plan->host);
    else if (a->sup.round_over && a->sup.over.text[0] != '\0')
        (void)snprintf(who, sizeof who, "since %.500s", a->sup.over.text);
    else if (stop.agreed == CDI_STOP_RANK)
        (void)snprintf(who, sizeof who, "by rank %d (cddp_request_stop)", stop.rank);
    else
        (void)snprintf(who, sizeof who, "by a signal to rank %d", stop.rank);
    if (n == 1)
        (void)snprintf(ranks, sizeof ranks, "rank %u", base);
    else
        (void)snprintf(ranks, sizeof ranks, "ranks %u to %u", base, base + n - 1);
    if (stop.step >= 0)
        (void)snprintf(step, sizeof step, " after step %lld of this run", (long long)stop.step);
    (void)snprintf(text, cap, "stopped on purpose %s: %s of %u left%s, all with status 0", who, ranks,
                   a->sup.assign.world_size, step);
}

/* The failures of workers after an order to stop; empty without any. */
static void after_order_text(const struct agent *a, char *text, size_t cap)
{
    const struct supervise *s = &a->sup;
    int n = 0;

    text[0] = '\0';
    if (s->stop_failure.kind != CDI_END_NONE)
        n = snprintf(text, cap, "; then %.*s", (int)strcspn(s->stop_failure.text, "\n"), s->stop_failure.text);
    if (s->n_overdue > 0 && n >= 0 && (size_t)n < cap)
        (void)snprintf(text + n, cap - (size_t)n,
                       "; killed %u worker%s that had not ended %g s later (--shutdown_timeout)", s->n_overdue,
                       s->n_overdue == 1 ? "" : "s", (double)s->grace_ms / 1000);
    else if (s->n_hurried > 0 && n >= 0 && (size_t)n < cap)
        (void)snprintf(text + n, cap - (size_t)n, "; the second signal killed %u worker%s", s->n_hurried,
                       s->n_hurried == 1 ? "" : "s");
}

/* Prints why this agent ends, and what its workers did after the order to stop. */
static void log_order(struct agent *a, const char *why, bool with_progress)
{
    const char *progress = a->group != NULL && with_progress ? worker_group_progress(a->group) : "";
    char text[1024 + PROGRESS_TEXT], after[400];

    after_order_text(a, after, sizeof after);
    (void)snprintf(text, sizeof text, "%.512s%s%s%s", why, after, *progress != '\0' ? "\n    " REPORT_PROGRESS : "",
                   progress);
    agent_log_line(a, text);
}

static void agent_log_cause(struct agent *a)
{
    char text[1024 + PROGRESS_TEXT], name[32];

    if (a->sup.unreported && a->sup.text[0] != '\0')
        agent_log_line(a, a->sup.text);
    if (a->sup.first.kind != CDI_END_NONE) {
        write_failure_report(a);
    } else if (supervise_has_stopped(&a->sup)) {
        stop_text(a, text, sizeof text);
        agent_log_line(a, text);
    } else if (a->sup.signal == SIGPIPE) {
        agent_log_line(a, "the reader of its output is gone (SIGPIPE); the workers have been stopped");
    } else if (a->sup.signal != 0) {
        (void)snprintf(text, sizeof text, "ended by signal %d (%s)", a->sup.signal,
                       signame(a->sup.signal, name, sizeof name));
        log_order(a, text, true);
    }
    if (a->sup.given_up)
        agent_log_line(a, a->sup.text);
    else if (a->sup.first.kind == CDI_END_NONE && a->sup.signal == 0 && a->sup.text[0] != '\0' &&
             supervise_exit_status(&a->sup) != 0)
        log_order(a, a->sup.text, a->sup.n_overdue > 0);
}

static bool agent_is_elastic(const struct plan *p)
{
    return p->min_nodes < p->max_nodes || p->endpoint.spares > 0;
}

/* Only after CLOSED no worker runs on any node; without it, the lease must end by itself before another host follows.
 */
static void end_election(struct agent *a)
{
    bool hosts = a->server != NULL && a->sup.closed && a->sup.close_status != CDI_CLOSE_REFUSED;
    bool leaves = a->sup.close_status == CDI_CLOSE_LEFT && a->sup.signal != 0 && agent_is_elastic(a->plan);

    etcd_end(a->etcd, hosts && !leaves, a->sup.close_status == CDI_CLOSE_DONE, hosts && leaves);
    a->etcd = NULL;
}

static void on_server_closed(void *arg)
{
    struct agent *a = arg;

    a->server = NULL;
}

static void agent_end_job(struct agent *a)
{
    a->over = true;
    agent_log_cause(a);
    if (a->sup.first.kind != CDI_END_NONE)
        event_log_failure(a->events, &a->sup.first);
    event_log_end(a->events, exit_status(a));
    event_log_free(a->events);
    a->events = NULL;
    cdi_log_set_sink(NULL, NULL);
    a->watch->end(a->watcher, &a->sup, exit_status(a));
    worker_group_destroy(a->group);
    a->group = NULL;
    rdzv_client_close(a->client);
    a->client = NULL;
    end_election(a);
    if (a->server != NULL && a->sup.signal != 0)
        rdzv_server_close(a->server, on_server_closed, a);
    else if (a->server != NULL)
        rdzv_server_drain(a->server, on_server_closed, a);
    (void)uv_timer_stop(&a->grace);
    a->flushed_for = a->swept_for.looked_ms != 0 ? a->swept_for : silence_begin();
    if (a->stalled.looked_ms == 0)
        a->stalled = silence_begin();
    if (exit_status(a) != 0) {
        uv_update_time(&a->loop);
        (void)uv_timer_start(&a->grace, on_flush_tick, FLUSH_TICK_MS, 0);
    }
    logs_close(a->logs, on_logs_closed, a);
}

/* ------------------------------------------------------------------------------------------------- decisions ---- */

/* The clock may have been set since: then the age is not known, and as good as 0. */
static int64_t age_ms(const struct cdi_failure *f)
{
    const int64_t age = cdi_wall_ms() - f->time_ms;

    return f->time_ms > 0 && age > 0 && age < CDI_JOIN_TIME_MAX_MS ? age : 0;
}

static void send_round_message(struct agent *a, enum cdi_msg_type type)
{
    struct cdi_msg msg = {.type = type};
    char name[32];

    if (type != CDI_MSG_FAILED)
        a->watch->event(a->watcher, "over", -1, "");
    a->watch->flush(a->watcher); /* its last records are on the way before the server ends the round */
    if (type == CDI_MSG_FAILED) {
        msg.u.failed.round = a->sup.assign.round;
        msg.u.failed.failure = a->sup.local_first;
        msg.u.failed.failure.age_ms = age_ms(&a->sup.local_first);
    } else if (type == CDI_MSG_DONE) {
        msg.u.done.round = a->sup.assign.round;
    } else if (type == CDI_MSG_STOPPED) {
        msg.u.stopped.round = a->sup.assign.round;
    } else if (type == CDI_MSG_LEAVE) {
        msg.u.leave.final = a->server != NULL;
        (void)snprintf(msg.u.leave.reason, sizeof msg.u.leave.reason, "it was ended by signal %d (%s)", a->sup.signal,
                       signame(a->sup.signal, name, sizeof name));
    }
    rdzv_client_send(a->client, &msg);
}

/* The first line only: the rest is for the report. */
static void publish_failure(struct agent *a)
{
    char headline[sizeof a->sup.first.text];

    (void)snprintf(headline, sizeof headline, "%.*s", (int)strcspn(a->sup.first.text, "\n"), a->sup.first.text);
    worker_group_publish_failure(a->group, a->sup.first.rank, headline);
}

static void log_restart_cause(struct agent *a)
{
    const struct cdi_msg_round_over *over = &a->sup.over;
    char headline[1024], cause[400];

    a->watch->round_over(a->watcher, over);
    if (!over->counts) {
        cdi_log(CDI_LOG_WARN, "AGENT-CHANGE", "%s", over->text);
        return;
    }
    report_headline(&over->failure, headline, sizeof headline);
    report_cause(&over->failure, cause, sizeof cause);
    cdi_log(CDI_LOG_WARN, "AGENT-RESTART", "%s%s%s%s; restarting all workers (restart %u of %u)",
            a->sup.n_causes_logged > 1 ? "before that " : "", headline, cause[0] != '\0' ? ": " : "", cause,
            a->sup.restart, a->plan->max_restarts);
    event_log_failure(a->events, &over->failure);
    event_log_restart(a->events, a->sup.restart, headline);
}

/* Informs a user who waits for this cddprun to end. */
static void agent_log_wait(struct agent *a)
{
    int64_t now = cdi_now_ms();
    char who[256], name[32];

    if (a->group == NULL)
        return;
    worker_group_list_alive(a->group, who, sizeof who);
    if (who[0] != '\0')
        cdi_log(CDI_LOG_WARN, "AGENT-WAIT",
                "%s on %.200s: still running %lld s after %s; SIGKILL in %lld s (--shutdown_timeout)%s", who,
                a->plan->host, (long long)(now - a->sup.stop_ms) / 1000,
                signame(a->sup.stop_signal == SIGPIPE ? SIGTERM : a->sup.stop_signal, name, sizeof name),
                (long long)(a->sup.kill_at_ms - now + 999) / 1000, a->sup.signal != 0 ? ", or at the next signal" : "");
}

static void agent_carry_out(struct agent *a, const struct supervise_action *action)
{
    switch (action->what) {
    case SUPERVISE_DO_SPAWN:
        agent_start_workers(a);
        return;
    case SUPERVISE_DO_PUBLISH_FAILURE:
        if (a->plan->wait_on_failure)
            cdi_log(CDI_LOG_WARN, "AGENT-FAILURE", "%.*s; the other workers continue (--on_failure=wait)",
                    (int)strcspn(a->sup.first.text, "\n"), a->sup.first.text);
        if (a->group != NULL)
            publish_failure(a);
        return;
    case SUPERVISE_DO_PUBLISH_END:
        if (a->group != NULL)
            worker_group_publish_end(a->group);
        return;
    case SUPERVISE_DO_KILL:
        if (a->group != NULL && action->signal == SIGKILL && a->sup.first.kind == CDI_END_NONE)
            worker_group_look_again(a->group);
        if (a->group != NULL)
            worker_group_end(a->group,
                             action->signal == SIGPIPE ? SIGTERM : action->signal); /* Python ignores SIGPIPE */
        return;
    case SUPERVISE_DO_ASK:
        if (a->group != NULL)
            worker_group_ask(a->group, action->signal == SIGPIPE ? SIGTERM : action->signal);
        return;
    case SUPERVISE_DO_SWEEP:
        begin_sweep(a);
        return;
    case SUPERVISE_DO_SEND_FAILED:
        send_round_message(a, CDI_MSG_FAILED);
        return;
    case SUPERVISE_DO_SEND_DONE:
        send_round_message(a, CDI_MSG_DONE);
        return;
    case SUPERVISE_DO_SEND_STOPPED:
        send_round_message(a, CDI_MSG_STOPPED);
        return;
    case SUPERVISE_DO_SEND_LEAVE:
        send_round_message(a, CDI_MSG_LEAVE);
        return;
    case SUPERVISE_DO_LOG_WAIT:
        agent_log_wait(a);
        return;
    case SUPERVISE_DO_LOG_CAUSE:
        log_restart_cause(a);
        return;
    case SUPERVISE_DO_REJOIN:
        rdzv_client_again(a->client, cdi_deadline_ms(cdi_now_ms(), a->plan->endpoint.join_timeout_ms));
        return;
    case SUPERVISE_DO_FINISH:
        agent_end_job(a);
        return;
    }
}

static void on_grace(uv_timer_t *t)
{
    struct supervise_event ev = {.kind = SUPERVISE_TICK};

    on_child(t->data); /* an end that waited for its cause */
    agent_handle(t->data, &ev);
}

static void set_timer(struct agent *a)
{
    int64_t at = supervise_deadline_ms(&a->sup), now = cdi_now_ms();

    if (a->over)
        return;
    if (a->group != NULL && worker_group_deadline_ms(a->group) < at)
        at = worker_group_deadline_ms(a->group);
    (void)uv_timer_stop(&a->grace);
    if (at == CDI_NEVER_MS)
        return;
    uv_update_time(&a->loop);
    (void)uv_timer_start(&a->grace, on_grace, at > now ? (uint64_t)(at - now) : 0, 0);
}

static void agent_handle(struct agent *a, const struct supervise_event *ev)
{
    struct supervise_actions todo;

    supervise_handle(&a->sup, ev, cdi_now_ms(), &todo);
    for (unsigned i = 0; i < todo.n; i++)
        agent_carry_out(a, &todo.v[i]);
    set_timer(a);
    if (a->group != NULL)
        worker_group_report_unstarted(a->group);
}

/* ------------------------------------------------------------------------------------------------ rendezvous ---- */

static void on_connected(void *arg, const char *addr, uint16_t port, int fd)
{
    struct agent *a = arg;

    guard_hold(a->guard, fd);
    (void)snprintf(a->master_addr, sizeof a->master_addr, "%s", addr);
    a->master_port = port;
}

static void agent_on_assign(struct agent *a, const struct cdi_msg_assign *assign)
{
    struct supervise_event ev = {.kind = SUPERVISE_ASSIGN, .u.assign = *assign};

    if (ev.u.assign.master_addr[0] == '\0')
        (void)snprintf(ev.u.assign.master_addr, sizeof ev.u.assign.master_addr, "%s", a->master_addr);
    if (ev.u.assign.master_port == 0)
        ev.u.assign.master_port = a->master_port;
    if (assign->round > 0 && agent_is_elastic(a->plan))
        cdi_log(CDI_LOG_WARN, "AGENT-CHANGE",
                "the job continues with %u node%s; this is node rank %d (%s), ranks %u to %u of %u", assign->n_nodes,
                assign->n_nodes == 1 ? "" : "s", assign->node_rank, a->plan->host, assign->rank_base,
                assign->rank_base + a->plan->n_procs - 1, assign->world_size);
    cdi_log(CDI_LOG_INFO, "AGENT-ROUND", "round %u: ranks %u to %u of %u, MASTER_ADDR=%s MASTER_PORT=%u", assign->round,
            assign->rank_base, assign->rank_base + a->plan->n_procs - 1, assign->world_size, ev.u.assign.master_addr,
            ev.u.assign.master_port);
    agent_handle(a, &ev);
}

static void agent_on_round_over(struct agent *a, const struct cdi_msg_round_over *over)
{
    on_child(a); /* an exit here that is not reaped yet may be the cause: report it before the workers are stopped */
    if (a->group != NULL && !a->sup.round_over && over->round == a->sup.assign.round)
        worker_group_note_failure(a->group, &over->failure);
    agent_handle(a, &(struct supervise_event){.kind = SUPERVISE_ROUND_OVER, .u.over = *over});
}

static void on_message(void *arg, const struct cdi_msg *msg)
{
    struct agent *a = arg;
    struct supervise_event closed = {.kind = SUPERVISE_CLOSED};

    switch (msg->type) {
    case CDI_MSG_ASSIGN:
        etcd_note_round(a->etcd);
        agent_on_assign(a, &msg->u.assign);
        return;
    case CDI_MSG_ROUND_OVER:
        agent_on_round_over(a, &msg->u.round_over);
        return;
    case CDI_MSG_CLOSED:
        closed.u.closed.status = msg->u.closed.status;
        closed.u.closed.text = msg->u.closed.text;
        closed.u.closed.failure = msg->u.closed.failure;
        agent_handle(a, &closed);
        return;
    case CDI_MSG_WAITING: /* with --hosts all nodes share one terminal, and node 0 says it for all */
        if (!a->plan->options->remote || a->plan->endpoint.node_rank <= 0)
            cdi_log(CDI_LOG_WARN, "AGENT-WAITING", "%s", msg->u.waiting.text);
        return;
    case CDI_MSG_WELCOME:
        etcd_set_linked(a->etcd, true);
        if (msg->u.welcome.resumed)
            agent_handle(a, &(struct supervise_event){.kind = SUPERVISE_RESUMED});
        else
            supervise_reset_round(&a->sup);
        return;
    case CDI_MSG_HEARTBEAT:
    case CDI_MSG_JOIN:
    case CDI_MSG_FAILED:
    case CDI_MSG_DONE:
    case CDI_MSG_STOPPED:
    case CDI_MSG_LEAVE:
        return;
    }
}

static void on_bulk(void *arg, uint16_t type, const void *payload, size_t len)
{
    const struct agent *a = arg;

    a->watch->bulk(a->watcher, type, payload, len);
}

static void on_waiting(void *arg, const char *text)
{
    (void)arg;
    cdi_log(CDI_LOG_WARN, "AGENT-WAITING", "%s", text);
}

static void agent_on_lost(void *arg, const char *text)
{
    struct supervise_event ev = {.kind = SUPERVISE_LINK_LOST, .u.text = text};

    agent_handle(arg, &ev);
}

static void agent_on_fenced(void *arg, const char *text)
{
    struct supervise_event ev = {.kind = SUPERVISE_FENCED, .wall_ms = cdi_wall_ms(), .u.text = text};
    struct agent *a = arg;
    char why[1024];

    if (a->held && a->sup.closed && a->group != NULL)
        worker_group_signal(a->group, SIGCONT); /* they were signalled to end, but could not receive it */
    a->held = false;
    supervise_fence_text(&a->sup, text, why, sizeof why);
    if (supervise_returns(&a->sup))
        cdi_log(CDI_LOG_WARN, "AGENT-FENCED",
                "%s; this node (%s) will try to rejoin for %lld s (--rdzv_conf=join_timeout=SECONDS)", why,
                a->plan->host, (long long)a->plan->endpoint.join_timeout_ms / 1000);
    agent_handle(arg, &ev);
}

static void on_broken(void *arg)
{
    const struct agent *a = arg;

    etcd_set_linked(a->etcd, false);
}

static void on_hold(void *arg, bool held)
{
    struct agent *a = arg;

    a->held = held;
    a->watch->held(a->watcher, held);
    if (a->group != NULL)
        worker_group_signal(a->group, held ? SIGSTOP : SIGCONT);
}

/* ----------------------------------------------------------------------------------------------------- guard ---- */

/* A worker that was stopped for long must not show results before this agent knows that the job still runs here. */
static void note_alone(struct agent *a, int64_t until_ms)
{
    a->alone_ms = until_ms;
    if (a->group != NULL)
        worker_group_publish_alone(a->group, until_ms);
}

static void on_act_by(void *arg, int64_t act_by_ms)
{
    static const char look[] = {GUARD_DEADLINE};
    uv_buf_t word = uv_buf_init((char *)(uintptr_t)look, 1);
    struct agent *a = arg;

    if (a->plan->endpoint.role == ENDPOINT_ELECT && a->server == NULL && !a->held && act_by_ms != CDI_NEVER_MS)
        note_alone(a, act_by_ms); /* before that, the host's lease in etcd has not ended (etcd.md) */
    if (guard_act_by(a->guard, act_by_ms))
        (void)uv_try_write((uv_stream_t *)&a->link, &word, 1);
}

static void agent_on_signal(struct agent *a, int signal)
{
    static const char stopped[] = {GUARD_STOPPED};
    struct supervise_event ev = {.kind = SUPERVISE_SIGNAL, .u.signal = signal};
    uv_buf_t word = uv_buf_init((char *)(uintptr_t)stopped, 1);

    if (signal == SIGTSTP) {
        if (a->group != NULL)
            worker_group_signal(a->group, SIGSTOP);
        (void)uv_try_write((uv_stream_t *)&a->link, &word, 1);
    } else if (a->plan->options->interactive >= 0 && (signal == SIGINT || signal == SIGQUIT)) {
        return; /* the terminal has sent it to the interactive rank */
    } else if ((options_ending(a->plan->options) >> (signal - 1) & 1) == 0 && signal == SIGWINCH) {
        if (a->group != NULL)
            worker_group_resize(a->group);
    } else if ((options_ending(a->plan->options) >> (signal - 1) & 1) == 0) {
        if (signal == SIGCONT)
            rdzv_client_look(a->client); /* first: the lease may have expired while this process was stopped */
        if (a->group != NULL && signal != SIGCONT)
            worker_group_signal(a->group, signal);
        else if (a->group != NULL && !a->held)
            worker_group_continue(a->group);
    } else if (a->over) {
        if (a->server != NULL)
            rdzv_server_close(a->server, on_server_closed, a);
        stop_waiting(a);
    } else {
        event_log_signal(a->events, signal);
        agent_handle(a, &ev);
    }
}

static void on_link_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    static char bytes[16];

    (void)h;
    (void)suggested;
    *buf = uv_buf_init(bytes, sizeof bytes);
}

static void on_link_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    static const char word[] = {GUARD_GOT_SIGNAL};
    uv_buf_t heard = uv_buf_init((char *)(uintptr_t)word, 1);
    struct agent *a = s->data;

    if (n < 0)
        guard_is_gone(a->guard);
    for (ssize_t i = 0; i < n; i++)
        if ((options_ending(a->plan->options) >> ((unsigned char)buf->base[i] - 1) & 1) != 0)
            (void)uv_try_write((uv_stream_t *)&a->link, &heard, 1);
    for (ssize_t i = 0; i < n; i++)
        agent_on_signal(a, (unsigned char)buf->base[i]);
}

/* ----------------------------------------------------------------------------------------------------- start ---- */

/* It identifies this agent to the rendezvous if the answer to JOIN was lost. */
static void make_nonce(char *text, size_t cap)
{
    uint8_t bytes[16];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return; /* cannot happen for so few bytes; a nonce is optional */
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(text + 2 * i, cap - 2 * i, "%02x", bytes[i]);
}

static bool on_vacant(void *arg, struct rdzv_client_options *opt)
{
    struct agent *a = arg;
    struct cdi_error err;

    if (host_start(&a->server, &a->loop, a->plan, a->views, opt, &err) != CDDP_OK && a->server != NULL) {
        rdzv_server_close(a->server, NULL, NULL);
        a->server = NULL;
    }
    if (a->server == NULL)
        return false;
    supervise_set_host(&a->sup, a->plan->endpoint.n_nodes > 1);
    cdi_log(CDI_LOG_INFO, "AGENT-VACANT", "port %u was in use here, and is free now; this agent hosts the rendezvous",
            rdzv_server_port(a->server));
    return true;
}

static cddp_status start_join(struct agent *a, struct rdzv_client_options *opt, struct cdi_error *err)
{
    static const struct rdzv_client_events on = {.connected = on_connected,
                                                 .message = on_message,
                                                 .bulk = on_bulk,
                                                 .waiting = on_waiting,
                                                 .lost = agent_on_lost,
                                                 .fenced = agent_on_fenced,
                                                 .hold = on_hold,
                                                 .broken = on_broken,
                                                 .vacant = on_vacant,
                                                 .act_by = on_act_by};
    const struct endpoint *m = &a->plan->endpoint;

    opt->deadline_ms = cdi_deadline_ms(cdi_now_ms(), m->join_timeout_ms);
    opt->own = a->server != NULL && a->etcd == NULL; /* an elected host's agent is an agent like the others */
    opt->elected = a->etcd != NULL;
    opt->n_ports = opt->own ? 1 : m->n_ports;
    opt->rejoins = a->sup.rejoins;
    opt->elastic = agent_is_elastic(a->plan);
    if (opt->name[0] == '\0') {
        opt->port = m->port;
        (void)snprintf(opt->host, sizeof opt->host, "%s", m->host);
        (void)snprintf(opt->name, sizeof opt->name, strchr(m->host, ':') == NULL ? "%.255s:%u" : "[%.255s]:%u", m->host,
                       a->server != NULL ? rdzv_server_port(a->server) : m->port);
    }
    opt->secret = a->plan->secret;
    opt->hello = (struct cdi_msg_join){.version = CDI_CONTROL_VERSION,
                                       .release = CDDP_VERSION,
                                       .pid = getpid(),
                                       .node_rank = m->node_rank,
                                       .n_procs = a->plan->n_procs,
                                       .min_nodes = a->plan->min_nodes,
                                       .max_nodes = a->plan->max_nodes,
                                       .spares = m->spares,
                                       .max_restarts = a->plan->max_restarts,
                                       .join_timeout_ms = m->join_timeout_ms,
                                       .last_call_ms = m->last_call_ms,
                                       .close_timeout_ms = m->close_timeout_ms,
                                       .lease_ms = m->lease_ms > 0 ? m->lease_ms : -1,
                                       .round = -1,
                                       .hang_warning_ms = a->plan->options->hang_warning_ms,
                                       .hang_timeout_ms = a->plan->options->hang_timeout_ms,
                                       .on_hang = (enum cdi_on_hang)(a->plan->options->on_hang + 1)};
    make_nonce(opt->hello.nonce, sizeof opt->hello.nonce);
    (void)snprintf(opt->hello.run_id, sizeof opt->hello.run_id, "%s", a->plan->run_id);
    (void)snprintf(opt->hello.host, sizeof opt->hello.host, "%s", a->plan->host);
    if (a->plan->options->topology != NULL)
        (void)snprintf(opt->hello.topology, sizeof opt->hello.topology, "%s", a->plan->options->topology);
    return rdzv_client_start(&a->client, &a->loop, opt, &on, a, err);
}

/* ------------------------------------------------------------------------------------------------- election ---- */

/* The host is at this address from now on. */
static void agent_join_at(struct agent *a, const char *addr, uint16_t port)
{
    struct rdzv_client_options opt = {.n_addrs = 0};
    struct cdi_error err;
    cddp_status st;

    if (a->client != NULL) {
        rdzv_client_move(a->client, addr, port);
        return;
    }
    st = lookup_addresses(opt.addrs, &opt.n_addrs, addr, port, &err);
    (void)snprintf(opt.name, sizeof opt.name, strchr(addr, ':') == NULL ? "%.250s:%u" : "[%.250s]:%u", addr, port);
    if (st == CDDP_OK)
        st = start_join(a, &opt, &err);
    if (st != CDDP_OK)
        agent_on_lost(a, err.msg);
}

static void close_server(struct agent *a)
{
    supervise_set_host(&a->sup, false);
    if (a->server != NULL)
        rdzv_server_close(a->server, NULL, NULL);
    a->server = NULL;
}

static bool on_elect_listen(void *arg, int64_t agent_lease_ms, char *addr, uint16_t *port)
{
    struct agent *a = arg;
    struct cdi_error err;

    if (host_start_elected(&a->server, &a->loop, a->plan, a->views, agent_lease_ms, &err) != CDDP_OK) {
        agent_on_lost(a, err.msg);
        return false;
    }
    if (a->local_ip[0] != '\0')
        (void)snprintf(addr, ELECT_ADDR_MAX, "%s", a->local_ip);
    *port = rdzv_server_port(a->server);
    return true;
}

static void on_elect_unlisten(void *arg)
{
    close_server(arg);
}

static void on_elect_host(void *arg, const char *addr, uint16_t port)
{
    struct agent *a = arg;

    cdi_log(CDI_LOG_INFO, "AGENT-ELECTED", "this node (%s) hosts the rendezvous at %s, port %u", a->plan->host, addr,
            port);
    if (a->plan->endpoint.n_nodes > 1)
        supervise_set_host(&a->sup, true);
    agent_join_at(a, addr, port);
}

static void on_elect_unhost(void *arg, const char *text)
{
    cdi_log(CDI_LOG_WARN, "AGENT-UNHOST", "%s", text);
    close_server(arg);
}

static void on_elect_join(void *arg, const char *addr, uint16_t port)
{
    cdi_log(CDI_LOG_INFO, "AGENT-ELECTED", "the rendezvous is at %s, port %u", addr, port);
    agent_join_at(arg, addr, port);
}

/* This agent has missed the host's last message, maybe after its own workers had succeeded. */
static void on_elect_over(void *arg, bool done)
{
    const struct supervise_event closed = {.kind = SUPERVISE_CLOSED,
                                           .u.closed = {.status = CDI_CLOSE_DONE, .text = ""}};
    struct agent *a = arg;
    char text[320];

    if (done && a->sup.sent_done) {
        agent_handle(a, &closed);
        return;
    }
    (void)snprintf(text, sizeof text, "job '%.255s' is over", a->plan->run_id);
    agent_on_lost(a, text);
}

static void on_elect_answers(void *arg, int64_t until_ms, int64_t alone_ms)
{
    struct agent *a = arg;

    if (alone_ms != 0)
        note_alone(a, alone_ms);
    if (a->server != NULL)
        rdzv_server_answer_until(a->server, until_ms);
}

/* Blocks as host_resolve() does. */
static cddp_status start_election(struct agent *a, struct cdi_error *err)
{
    static const struct etcd_events on = {.listen = on_elect_listen,
                                          .unlisten = on_elect_unlisten,
                                          .host = on_elect_host,
                                          .unhost = on_elect_unhost,
                                          .join = on_elect_join,
                                          .answers_until = on_elect_answers,
                                          .waiting = on_waiting,
                                          .over = on_elect_over,
                                          .failed = agent_on_lost};
    const char *local = a->plan->options->local_addr;
    struct sockaddr_storage addrs[LOOKUP_ADDRS_MAX];
    unsigned n;

    if (local != NULL && lookup_addresses(addrs, &n, local, 0, NULL) != CDDP_OK)
        return cdi_fail(
            err, CDDP_E_NOT_FOUND,
            "--local_addr '%.200s' does not resolve; with etcd it is the address that other nodes connect to", local);
    if (local != NULL)
        cdi_address_host((struct sockaddr *)&addrs[0], a->local_ip);
    return etcd_start(&a->etcd, &a->loop, &a->plan->endpoint, a->plan->run_id, &on, a, err);
}

/* The endpoint is fixed, or the address comes from etcd. */
static cddp_status start_meeting(struct agent *a, struct cdi_error *err)
{
    struct rdzv_client_options opt = {.n_addrs = 0};
    cddp_status st;

    if (a->plan->endpoint.role == ENDPOINT_ELECT)
        return start_election(a, err);
    st = host_resolve(&a->plan->endpoint, a->plan->options->remote, &opt, err);
    if (st == CDDP_OK)
        st = host_start(&a->server, &a->loop, a->plan, a->views, &opt, err);
    if (st == CDDP_OK && a->server != NULL && a->plan->endpoint.n_nodes > 1)
        supervise_set_host(&a->sup, true);
    if (st == CDDP_OK)
        st = start_join(a, &opt, err);
    return st;
}

static cddp_status start_link(struct agent *a, struct cdi_error *err)
{
    static const char ready[] = {GUARD_READY};
    uv_buf_t word = uv_buf_init((char *)(uintptr_t)ready, 1);
    int rc = uv_pipe_open(&a->link, a->guard->fd);

    if (rc == 0)
        rc = uv_read_start((uv_stream_t *)&a->link, on_link_alloc, on_link_read);
    if (rc == 0)
        rc = uv_try_write((uv_stream_t *)&a->link, &word, 1);
    return rc > 0 ? CDDP_OK : cdi_fail_errno(err, -rc, "the link to the guard");
}

static cddp_status start_logs(struct agent *a, struct cdi_error *err)
{
    struct logs_options opt = {.plan = a->plan,
                               .console = a->console,
                               .run_dir = a->guard->run_dir,
                               .room = agent_on_room,
                               .lost = on_log_lost,
                               .arg = a};

    return logs_start(&a->logs, &a->loop, &opt, err);
}

/*
 * Starts a session, in which each worker has a process group: Linux's scheduler groups processes by session, and a rank
 * that yields gives its processor only to ranks of the same group. Called after logs_start(), which checks whether this
 * process has the terminal; skipped if a worker uses the terminal, which it would lose.
 */
static void lead_session(const struct agent *a)
{
    if (a->plan->options->interactive < 0)
        (void)setsid();
}

static cddp_status start_crash_watch(struct agent *a, struct cdi_error *err)
{
    cddp_status st;

    if (a->plan->options->crash_stack == OPTIONS_OFF)
        return CDDP_OK;
    a->crash = (struct crash_watch){.called = on_crash_call, .arg = a};
    st = crash_watch_start(&a->crash, &a->loop, err);
    if (st == CDDP_OK)
        a->spawn.crash_fd = a->crash.ends[1];
    return st;
}

static cddp_status start_events(struct agent *a, struct cdi_error *err)
{
    const struct options *o = a->plan->options;

    if (o->status_fd < 0 && o->trace == NULL && o->report == NULL)
        return CDDP_OK;
    return event_log_start(&a->events, a->console, a->plan->n_procs, (int)o->status_fd, err);
}

static cddp_status agent_start_all(struct agent *a, struct cdi_error *err)
{
    cddp_status st;

    (void)uv_timer_init(&a->loop, &a->grace);
    (void)uv_timer_init(&a->loop, &a->sweep);
    (void)uv_pipe_init(&a->loop, &a->link, 0);
    a->grace.data = a;
    a->sweep.data = a;
    a->link.data = a;
    a->child = (struct spawn_watch){.children = on_child, .arg = a};
    st = spawn_watch_start(&a->child, &a->loop, err);
    if (st == CDDP_OK)
        st = writer_start(&a->console, &a->loop, a->plan->n_procs + 1, &console_events, a, err);
    if (st == CDDP_OK)
        st = start_events(a, err);
    if (st == CDDP_OK)
        st = start_logs(a, err);
    if (st == CDDP_OK)
        st = start_watcher(a, err);
    lead_session(a);
    if (st == CDDP_OK && a->plan->options->stdin_to == OPTIONS_STDIN_ALL)
        st = stdin_copy_start(&a->stdin_copy, a->plan->n_procs, err);
    if (st == CDDP_OK)
        st = start_crash_watch(a, err);
    if (st == CDDP_OK)
        st = start_meeting(a, err);
    if (st == CDDP_OK)
        st = start_link(a, err);
    return st;
}

static int agent_run_loop(struct agent *a, struct cdi_error *err)
{
    int status = 1, rc = uv_loop_init(&a->loop);

    if (rc != 0) {
        (void)cdi_fail_errno(err, -rc, "cannot start the event loop");
        return 1;
    }
    if (agent_start_all(a, err) == CDDP_OK) {
        cdi_log_set_sink(log_to_writer, a);
        (void)uv_run(&a->loop, UV_RUN_DEFAULT);
        status = exit_status(a);
        err->msg[0] = '\0';
    } else {
        event_log_free(a->events);
        a->watch->end(a->watcher, NULL, status);
        rdzv_client_close(a->client);
        etcd_end(a->etcd, false, false, false);
        if (a->server != NULL)
            rdzv_server_close(a->server, NULL, NULL);
        if (a->logs != NULL)
            logs_close(a->logs, on_logs_closed, a);
        else if (a->console != NULL)
            writer_close(a->console, on_flushed, a);
        else
            on_flushed(a, true);
        (void)uv_run(&a->loop, UV_RUN_DEFAULT);
    }
    /* A reader of stderr that does not read is not waited for again. */
    a->abandoned |= !a->watch->finish(a->watcher, a->no_wait || a->skipped_hung);
    if (a->abandoned) {
        guard_leave(a->guard);
        _exit(status); /* the writer's thread hangs in write(2), and uses memory that would be freed */
    }
    (void)uv_loop_close(&a->loop);
    return status;
}

/* The user may not know that Python is used: the program's name selects it. */
static cddp_status agent_find_program(const struct plan *plan, char *path, int *status, struct cdi_error *err)
{
    struct cdi_error why;
    cddp_status st = spawn_find_program(plan_program(plan), path, status, &why);

    if (st == CDDP_OK)
        return st;
    if (plan->interpreter[0] == NULL)
        return cdi_fail(err, st, "%s", why.msg);
    return cdi_fail(err, st, "'%.200s' is run by Python, but %s; set PYTHON_EXEC to use another Python",
                    plan->command[0], why.msg);
}

int agent_check(const struct plan *plan, struct cdi_error *err)
{
    struct sockaddr_storage addrs[LOOKUP_ADDRS_MAX];
    char path[PATH_MAX];
    unsigned n;
    int status;

    if (agent_find_program(plan, path, &status, err) != CDDP_OK)
        return status;
    if (plan->interpreter[0] != NULL && plan->interpreter[2] == NULL && access(plan->command[0], R_OK) != 0) {
        (void)cdi_fail(err, CDDP_E_NOT_FOUND, "cannot read script '%.300s': %s", plan->command[0], strerror(errno));
        return PYTHON_CANNOT_OPEN;
    }
    if (plan->endpoint.role == ENDPOINT_ELECT) /* the winner's address */
        return 0;
    return lookup_addresses(addrs, &n, plan->endpoint.host, plan->endpoint.port, err) == CDDP_OK ? 0 : 1;
}

/*
 * Signals that workers ignore: a batch system sends USR1 to every process, also to a worker that does not ask yet, and
 * its default action would end the worker.
 */
static uint64_t ignored_signals(const struct plan *plan, const struct guard_link *link)
{
    return link->ignored | (plan->options->stop_set & ~plan->options->signals);
}

/* The word for cddp-preflight; NULL: it is off. */
static const char *preflight_mode(const struct options *o)
{
    static const char *const modes[] = {[OPTIONS_PREFLIGHT_STOP] = "stop",
                                        [OPTIONS_PREFLIGHT_ONLY] = "only",
                                        [OPTIONS_PREFLIGHT_EXCLUDE] = "exclude",
                                        [OPTIONS_PREFLIGHT_OFF] = NULL};

    return modes[o->preflight];
}

int agent_run(const struct plan *plan, struct guard_link *link, const struct rdzv_views *views,
              const struct watcher_ops *watch)
{
    struct agent *a = calloc(1, sizeof *a);
    struct cdi_error err = {.status = CDDP_OK};
    int status = 1;

    if (a == NULL) {
        cdi_log(CDI_LOG_ERROR, "AGENT-MEMORY", "out of memory");
        return 1;
    }
    a->plan = plan;
    a->guard = link;
    a->views = views;
    a->watch = watch;
    a->spawn = (struct spawn_context){.loop = &a->loop,
                                      .mask = link->mask,
                                      .ignored = ignored_signals(plan, link),
                                      .null_fd = -1,
                                      .preflight = preflight_mode(plan->options),
                                      .host = plan->host,
                                      .read_buf = a->read_buf};
    supervise_init(&a->sup, plan->n_procs, options_grace_ms(plan->options));
    supervise_set_stop(&a->sup, plan->options->stop_set, (int)plan->options->stop_exit_code);
    if (plan->wait_on_failure)
        supervise_keep_others(&a->sup);
    if (agent_is_elastic(plan) || plan->max_restarts > 0)
        supervise_set_rejoins(&a->sup);
    if (agent_find_program(plan, a->spawn.program, &status, &err) == CDDP_OK) {
        status = 1;
        if (spawn_prepare(&a->spawn, plan->n_procs, &err) == CDDP_OK)
            status = agent_run_loop(a, &err);
        spawn_release(&a->spawn);
    }
    if (err.msg[0] != '\0')
        cdi_log(CDI_LOG_ERROR, "AGENT-START", "%s", err.msg);
    stdin_copy_end(a->stdin_copy);
    free(a);
    return status;
}
