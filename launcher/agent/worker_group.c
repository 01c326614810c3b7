/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/worker_group.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"
#include "launcher/agent/first_failure.h"
#include "launcher/agent/rank_report.h"
#include "launcher/agent/worker_end.h"
#include "launcher/process/procs.h"
#include "protocol/cause.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALIVE_SHOWN 4
#define CRASHES_READ 4

/* -------------------------------------------------------------------------------------------------- starting ---- */

/* The arguments and environment of a worker. */
struct exec_vectors {
    char **args, **env;
};

/* The descriptor for the stdin of this worker; -1: an empty file, or an error that errno tells. */
static int stdin_of(const struct worker_group *c, const struct worker *w)
{
    const struct options *o = c->opt.plan->options;

    if (c->opt.stdin_copy != NULL)
        return stdin_copy_pipe(c->opt.stdin_copy, w->local_rank);
    return o->stdin_to != OPTIONS_STDIN_NONE && w->rank == (o->interactive >= 0 ? o->interactive : 0) ? STDIN_FILENO
                                                                                                      : -1;
}

static cddp_status group_start_one(struct worker_group *c, struct worker *w, struct exec_vectors *vectors,
                                   struct cdi_error *err)
{
    char flight[128], path[PATH_MAX];
    struct plan_rank r = {.assign = &c->opt.assign, .local_rank = w->local_rank, .error_file = path, .flight = flight};
    cddp_status st = worker_make_page(w, c->opt.assign.round, flight, sizeof flight, err);
    int in;

    logs_error_file(c->opt.logs, w->local_rank, path);
    (void)unlink(path); /* an older one */
    if (st != CDDP_OK)
        return st;
    if (c->opt.spawn->crash_fd > 0)
        cdi_crash_offer(cdi_flight_crash(w->flight), c->opt.spawn->crash_fd);
    vectors->env = plan_env(c->opt.plan, &r, environ);
    vectors->args = plan_args(c->opt.plan, w->local_rank);
    if (vectors->env == NULL || vectors->args == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    in = stdin_of(c, w);
    if (in < 0 && c->opt.stdin_copy != NULL)
        return cdi_fail_errno(err, errno, "a pipe for its stdin");
    st = worker_start(w, c->opt.spawn, vectors->args, vectors->env, in, err);
    if (in > STDIN_FILENO)
        (void)close(in);
    return st;
}

/* Starts all workers, or those before the first that cannot be started. */
static cddp_status group_start_workers(struct worker_group *c, struct cdi_error *err)
{
    struct exec_vectors *vectors = calloc(c->n, sizeof *vectors);
    uint32_t n = 0;

    if (vectors == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %u workers", c->n);
    while (n < c->n && group_start_one(c, &c->workers[n], &vectors[n], &c->why) == CDDP_OK)
        n++;
    c->first_unstarted = n;
    for (uint32_t i = 0; i < c->n; i++) {
        worker_wait_exec(&c->workers[i]);
        if (i < n && c->workers[i].pty_errno != 0)
            logs_warn_no_pty(c->opt.logs, c->workers[i].pty_errno);
        if (i < n)
            event_log_started(c->opt.events, c->workers[i].rank, i, c->workers[i].pid);
        plan_free_strings(vectors[i].args);
        plan_free_strings(vectors[i].env);
    }
    free(vectors);
    return CDDP_OK;
}

/* ---------------------------------------------------------------------------------------------------- events ---- */

static void on_output(struct worker *w, int stream, const char *bytes, size_t n)
{
    struct worker_group *c = w->arg;
    struct output *o = &c->outputs[w->local_rank];

    logs_feed(&o->streams[stream - 1], bytes, n);
    if (!o->paused && logs_full(c->opt.logs, w->local_rank)) {
        o->paused = true;
        worker_pause(w, true);
    }
    c->opt.output_moved(c->opt.arg);
}

/* Once in a round, before the workers are ended: later their progress is not that of the hang. */
static void read_progress(struct worker_group *c)
{
    struct cdi_rank_report *ranks;
    size_t n = 0;

    if (c->progress_read)
        return;
    c->progress_read = true;
    ranks = calloc(c->n, sizeof *ranks);
    if (ranks == NULL)
        return;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->workers[i].flight == NULL)
            continue;
        ranks[n].rank = c->workers[i].rank;
        rank_report_last_place(c->workers[i].flight, cdi_now_coarse_ns(), &ranks[n++]);
    }
    progress_text(ranks, n, c->progress, sizeof c->progress);
    free(ranks);
}

void worker_group_look_again(struct worker_group *c)
{
    c->progress_read = false;
    read_progress(c);
}

const char *worker_group_progress(const struct worker_group *c)
{
    return c->progress;
}

/*
 * Tells the other workers that w exited with status 0, since only they know whether they still need it. If it never
 * joined, peers may wait for it in cddp_init, now or later, unless a process that it has started joins in its place.
 */
static void publish_exit(const struct worker_group *c, const struct worker *w)
{
    bool was_peer = worker_end_uses_libcddp(w), tells = was_peer || worker_left_nobody(w);

    for (uint32_t i = 0; tells && i < c->n; i++) {
        const struct worker *v = &c->workers[i];

        if (v != w && !v->exited && v->flight != NULL && (!was_peer || worker_end_uses_libcddp(v)))
            cdi_flight_tell_ended(v->flight, w->rank);
    }
}

/*
 * Describes a failure whose worker still runs. It has no exit status yet, and cddprun's SIGTERM may end it before it
 * exits by itself.
 */
static void describe_running(struct worker_group *c, const struct suspect *s, const struct worker *by,
                             struct cdi_failure *f)
{
    struct cdi_flight_error e;
    char note[CDI_FLIGHT_TEXT + 80];

    f->kind = s->cause.kind;
    f->code = s->cause.code;
    if (f->kind == CDI_END_EXIT) {
        logs_error_file(c->opt.logs, s->w->local_rank, c->error_file);
        f->code = report_error_status(c->error_file, 1); /* 1: Python's status after an exception */
    }
    report_headline(f, f->text, sizeof f->text);
    if (f->kind == CDI_END_SIGNAL)
        (void)snprintf(note, sizeof note, "it has not ended yet");
    else if (by != NULL)
        (void)snprintf(note, sizeof note,
                       "it recorded its %s first, although rank %d, which failed later, exited earlier",
                       s->noted ? "exception" : "error", by->rank);
    else
        (void)snprintf(note, sizeof note, "it recorded its %s first", s->noted ? "exception" : "error");
    report_note(f, note);
    if (s->noted || f->kind != CDI_END_EXIT || !worker_end_error(s->w, WORKER_END_LATE_ERROR_MS, &e))
        return;
    (void)snprintf(note, sizeof note, "its error: %s: %s", cdi_status_name(e.status), e.text);
    report_note(f, note);
}

/* by: the worker that failed because of s; NULL: a rank of another node. */
static void report_cause_worker(struct worker_group *c, const struct suspect *s, const struct worker *by)
{
    struct cdi_failure end;

    worker_end_fill(c, s->w, &end);
    c->cause_ran = !s->w->exited;
    if (c->cause_ran)
        describe_running(c, s, by, &end);
    read_progress(c);
    worker_end_add_details(c, s->w, &end);
    c->failed = true;
    c->opt.cause(c->opt.arg, &end);
}

static void report_exit(struct worker_group *c, struct worker *w)
{
    struct cdi_failure end;

    worker_end_fill(c, w, &end);
    if (end.kind == CDI_END_EXIT && end.code == 0)
        publish_exit(c, w);
    if (!c->failed && (end.kind == CDI_END_SIGNAL || (end.kind == CDI_END_EXIT && end.code != 0))) {
        read_progress(c);
        worker_end_add_details(c, w, &end);
        end.misses = first_failure_missed_elsewhere(c);
        c->failed = true;
    }
    w->reported = true;
    event_log_ended(c->opt.events, &end);
    c->opt.exited(c->opt.arg, &end);
}

/* Reports the first failure. Returns false if there is none, or if it waits. */
static bool report_first(struct worker_group *c)
{
    struct worker *by;
    const struct suspect s = first_failure_find(c, &by);

    c->waits = s.w != NULL && first_failure_waits(c, &s);
    if (s.w == NULL || c->waits)
        return false;
    if (s.w->exited && !worker_end_succeeded(s.w))
        report_exit(c, s.w);
    else
        report_cause_worker(c, &s, by);
    return true;
}

void worker_group_note_failure(struct worker_group *c, const struct cdi_failure *first)
{
    const struct cdi_cause because = cdi_cause_of(first, cdi_now_ms());
    struct worker *by, *missed = first->misses > 0 ? first_failure_succeeded(c, (int32_t)(first->misses - 1)) : NULL;
    struct suspect s = first_failure_find(c, &by);

    c->wait_until_ms = 1; /* no end waits any more */
    if (missed == NULL && first->kind == CDI_END_EXIT)
        missed = first_failure_find_missed(c);
    if (missed != NULL) {
        s = first_failure_suspect(c, missed);
    } else if (cdi_cause_class_of(&because) == CDI_CAUSE_FOLLOWS) {
        first_failure_suspect_running(c, &because, false, &s);
        if (s.w != NULL && cdi_cause_class_of(&s.cause) != CDI_CAUSE_OWN)
            s.w = NULL;
    } else {
        s.w = NULL;
    }
    if (s.w != NULL && !c->failed)
        report_cause_worker(c, &s, NULL);
}

int64_t worker_group_deadline_ms(const struct worker_group *c)
{
    return c->waits && !c->failed ? c->wait_until_ms : CDI_NEVER_MS;
}

/*
 * Ends are reported when the stacks of crashes have been read: a worker that exits meanwhile may do so because of one
 * that has crashed, and is not the first failure.
 */
static bool waits_for_stack(const struct worker_group *c)
{
    for (uint32_t i = 0; i < c->n && !c->failed; i++)
        if (c->outputs[i].crash != NULL && !crash_read_is_over(c->outputs[i].crash))
            return true;
    return false;
}

static void on_stack_read(void *arg)
{
    worker_group_on_child(arg);
}

/*
 * The report shows the stack of the first failure, so of many that crash at once a few are read. The others wait until
 * one of these is reported: they must not be first.
 */
void worker_group_on_crash(struct worker_group *c)
{
    struct cdi_flight_crash note;
    struct cdi_flight_crash *page;

    for (uint32_t i = 0; i < c->n; i++) {
        page = c->workers[i].flight == NULL ? NULL : cdi_flight_crash(c->workers[i].flight);
        if (page == NULL || c->workers[i].reported || c->outputs[i].crash != NULL ||
            cdi_crash_look(page, &note) != CDI_CRASH_WAITS)
            continue;
        if (c->failed)
            cdi_crash_tell_read(page);
        else if (c->n_crashes++ < CRASHES_READ)
            c->outputs[i].crash = crash_read_start(c->opt.spawn->loop, page, on_stack_read, c);
    }
}

/*
 * One of its threads has crashed, but another one has ended the process with status 0 before the signal could. This is
 * not a success.
 */
static void note_hidden_crash(struct worker *w)
{
    struct cdi_flight_crash note;
    enum cdi_crash_state state;

    if (w->reported || !w->exited || w->flight == NULL || w->exit_signal != 0 || w->exit_code != 0 ||
        w->exec_errno != 0)
        return;
    state = cdi_crash_look(cdi_flight_crash(w->flight), &note);
    if ((state == CDI_CRASH_WAITS || state == CDI_CRASH_UNREACHED) && note.pid == w->pid)
        w->exit_signal = note.signal;
}

void worker_group_on_child(struct worker_group *c)
{
    struct worker *w;

    while (spawn_reap(c->workers, c->n, &w))
        ;
    for (uint32_t i = 0; i < c->n; i++)
        note_hidden_crash(&c->workers[i]);
    if (waits_for_stack(c))
        return;
    for (uint32_t i = 0; i < c->n && !c->destroyed; i++)
        if (worker_end_succeeded(&c->workers[i]) && !c->workers[i].reported)
            report_exit(c, &c->workers[i]);
    while (!c->destroyed && !c->failed && report_first(c))
        ;
    for (uint32_t i = 0; i < c->n && !c->destroyed && c->failed; i++)
        if (c->workers[i].exited && !c->workers[i].reported)
            report_exit(c, &c->workers[i]);
    if (c->failed && !c->destroyed)
        worker_group_on_crash(c);
}

void worker_group_report_unstarted(struct worker_group *c)
{
    uint32_t first = c->first_unstarted;

    c->first_unstarted = c->n;
    for (uint32_t i = first; i < c->n; i++) {
        struct cdi_failure end;

        c->workers[i].exited = true;
        c->workers[i].reported = true;
        c->workers[i].ended_ms = cdi_now_ms();
        worker_end_fill(c, &c->workers[i], &end);
        end.kind = CDI_END_SPAWN;
        end.code = EAGAIN;
        (void)snprintf(end.text, sizeof end.text, "rank %d could not be started: %.900s", end.rank, c->why.msg);
        c->opt.exited(c->opt.arg, &end);
    }
}

static const struct worker_events events = {.output = on_output};

cddp_status worker_group_start(struct worker_group **out, const struct worker_group_options *opt, struct cdi_error *err)
{
    uint32_t n = opt->plan->n_procs;
    struct worker_group *c = calloc(1, sizeof *c + n * sizeof c->workers[0]);
    struct output *outputs = calloc(n, sizeof *outputs);
    cddp_status st;

    if (c == NULL || outputs == NULL) {
        free(c);
        free(outputs);
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %u workers", n);
    }
    c->outputs = outputs;
    c->opt = *opt;
    c->n = n;
    c->ooms = oom_look("");
    for (uint32_t i = 0; i < n; i++) {
        struct worker *w = &c->workers[i];

        w->local_rank = i;
        w->rank = (int32_t)(opt->assign.rank_base + i);
        w->flight_fd = -1;
        w->exec_fd = -1;
        w->master = -1;
        w->interactive = w->rank == opt->plan->options->interactive;
        w->on = &events;
        w->cpus = opt->plan->bind == NULL ? NULL : opt->plan->bind[i].cpus;
        w->arg = c;
        for (int k = 0; k < 2; k++)
            logs_open(opt->logs, &c->outputs[i].streams[k], i, (uint32_t)w->rank, k + 1);
        w->wants_pty = logs_wants_pty(&c->outputs[i].streams[0]);
        w->needs_pty = opt->plan->options->pty == OPTIONS_PTY_ALWAYS;
        w->front = logs_front(&c->outputs[i].streams[0]);
    }
    st = group_start_workers(c, err);
    if (st == CDDP_OK)
        *out = c;
    else
        worker_group_destroy(c);
    return st;
}

/* -------------------------------------------------------------------------------------------------- commands ---- */

void worker_group_signal(struct worker_group *c, int signal)
{
    if (signal == SIGSTOP || signal == SIGCONT)
        c->stopped = signal == SIGSTOP;
    for (uint32_t i = 0; i < c->n; i++)
        worker_kill(&c->workers[i], signal);
}

void worker_group_resize(struct worker_group *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        worker_resize(&c->workers[i]);
}

static void wake_if_stopped(void *arg, pid_t pid)
{
    struct worker_group *c = arg;
    struct procs_stat stat;

    if (!procs_stat(pid, &stat) || stat.state != 'T') /* not 't': a tracer has stopped it */
        return;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->workers[i].pid > 0 && c->workers[i].pid == (c->workers[i].interactive ? pid : stat.group))
            worker_kill(&c->workers[i], SIGCONT);
}

/*
 * Skips running workers: SIGCONT cancels a SIGSTOP that has not arrived yet. ptrace(2) attaches by SIGSTOP, and a
 * debugger, or the leak checker of an exiting program, would wait forever.
 */
void worker_group_continue(struct worker_group *c)
{
    if (c->stopped || !procs_each(wake_if_stopped, c))
        worker_group_signal(c, SIGCONT);
}

static void group_end(struct worker_group *c, int signal, bool spares_those_that_ask)
{
    read_progress(c);
    if (c->end_signal == 0) {
        c->end_signal = signal;
        c->end_ms = cdi_now_ms();
        c->wait_until_ms = c->end_ms;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        struct cdi_flight *page = c->workers[i].flight;
        struct cdi_stop_view stop = {.asks = false};

        if (page != NULL) {
            cdi_flight_tell_stop_wanted(page);
            cdi_stop_look(cdi_flight_stop(page), &stop);
        }
        if (!spares_those_that_ask || !stop.asks)
            worker_kill(&c->workers[i], signal);
    }
    worker_group_continue(c);
}

void worker_group_end(struct worker_group *c, int signal)
{
    group_end(c, signal, false);
}

void worker_group_ask(struct worker_group *c, int signal)
{
    group_end(c, signal, true);
}

bool worker_group_read_stop(const struct worker_group *c, int rank, struct cdi_stop_view *view)
{
    int32_t i = rank - (int32_t)c->opt.assign.rank_base;

    if (i < 0 || (uint32_t)i >= c->n || c->workers[i].flight == NULL)
        return false;
    cdi_stop_look(cdi_flight_stop(c->workers[i].flight), view);
    return true;
}

void worker_group_list_alive(const struct worker_group *c, char *text, size_t cap)
{
    uint32_t n = 0;
    size_t at = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < c->n; i++) {
        const struct worker *w = &c->workers[i];

        if (!w->exited && w->pid > 0 && ++n <= ALIVE_SHOWN && at < cap)
            at += (size_t)snprintf(text + at, cap - at, "%srank %d (pid %d)", n > 1 ? ", " : "", w->rank, w->pid);
    }
    if (n > ALIVE_SHOWN && at < cap)
        (void)snprintf(text + at, cap - at, " and %u more", n - ALIVE_SHOWN);
}

void worker_group_publish_failure(struct worker_group *c, int rank, const char *headline)
{
    read_progress(c);
    for (uint32_t i = 0; i < c->n; i++)
        if (c->workers[i].flight != NULL && c->workers[i].rank != rank)
            cdi_flight_tell_death(c->workers[i].flight, rank, headline);
}

void worker_group_publish_end(struct worker_group *c)
{
    read_progress(c);
    for (uint32_t i = 0; i < c->n; i++)
        if (c->workers[i].flight != NULL)
            cdi_flight_tell_round_over(c->workers[i].flight);
}

void worker_group_publish_alone(struct worker_group *c, int64_t until_ms)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->workers[i].flight != NULL)
            cdi_flight_tell_alone_until(c->workers[i].flight, until_ms);
}

void worker_group_read_on(struct worker_group *c)
{
    for (uint32_t i = 0; i < c->n && !c->destroyed; i++) {
        if (!c->outputs[i].paused || logs_full(c->opt.logs, i))
            continue;
        c->outputs[i].paused = false;
        worker_pause(&c->workers[i], false);
    }
}

bool worker_group_waits_for_room(const struct worker_group *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->outputs[i].paused && worker_has_output(&c->workers[i]))
            return true;
    return false;
}

bool worker_group_has_output(const struct worker_group *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (worker_has_output(&c->workers[i]))
            return true;
    return false;
}

/* Did cddprun end it? SIGTERM and SIGINT may also come from whoever ends the job, such as a batch system. */
static bool was_stopped(const struct worker_group *c, const struct worker *w)
{
    return w->exit_signal == SIGTERM || w->exit_signal == SIGINT ||
           (w->exit_signal == SIGKILL && c->end_signal != 0 && w->ended_ms >= c->end_ms);
}

/* Lists the workers that failed by themselves. */
static unsigned describe_others(const struct worker_group *c, const struct worker *first, struct report_other *others)
{
    unsigned n = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        const struct worker *w = &c->workers[i];

        if (w == first || !w->exited || w->pid <= 0 || was_stopped(c, w) || worker_end_succeeded(w))
            continue;
        if (n < REPORT_OTHERS_MAX)
            others[n] =
                (struct report_other){.rank = w->rank,
                                      .code = w->exit_code,
                                      .signal = w->exit_signal,
                                      .later_ms = first != NULL && !c->cause_ran ? w->ended_ms - first->ended_ms : -1};
        n++;
    }
    return n;
}

cddp_status worker_group_ranks(const struct worker_group *c, struct cdi_node_report *r, struct cdi_error *err)
{
    int64_t now_ns = cdi_now_coarse_ns();

    r->ranks = calloc(c->n, sizeof *r->ranks);
    if (r->ranks == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a report of %u ranks", c->n);
    r->n_ranks = c->n;
    for (uint32_t i = 0; i < c->n; i++) {
        const struct worker *w = &c->workers[i];
        struct cdi_rank_report *rank = &r->ranks[i];

        *rank = (struct cdi_rank_report){.rank = w->rank, .pid = w->pid, CDI_RANK_UNKNOWN};
        if (w->flight != NULL)
            rank_report_page(w->flight, now_ns, rank);
        if (w->exited)
            rank->place = CDI_PLACE_EXITED;
    }
    return CDDP_OK;
}

void worker_group_pages(const struct worker_group *c, void (*take)(void *arg, const struct worker_page *page),
                        void *arg)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const struct worker *w = &c->workers[i];

        take(arg, &(struct worker_page){
                      .local_rank = w->local_rank, .rank = w->rank, .ended = w->exited, .page = w->flight});
    }
}

void worker_group_describe(struct worker_group *c, struct report *r)
{
    int32_t i = r->first.rank - (int32_t)c->opt.assign.rank_base;
    const struct worker *w = i >= 0 && (uint32_t)i < c->n ? &c->workers[i] : NULL;

    r->program = plan_shown_program(c->opt.plan);
    r->progress = c->progress;
    r->after_ms = -1;
    r->elsewhere = w == NULL;
    r->n_other_failures = describe_others(c, w, r->others);
    r->n_others = w != NULL ? c->n - 1 : c->n;
    if (r->first.kind == CDI_END_HANG && w != NULL && w->exited && r->n_ended_after > 0)
        r->n_ended_after--; /* its own end */
    r->restart_count = c->opt.assign.restart_count;
    r->max_restarts = c->opt.plan->max_restarts;
    if (w == NULL || w->started_ms == 0)
        return;
    r->after_ms = w->ended_ms - w->started_ms;
    logs_error_file(c->opt.logs, w->local_rank, c->error_file);
    r->error_file = c->error_file;
}

static void on_worker_closed(struct worker *w)
{
    struct worker_group *c = w->arg;

    if (--c->n_open > 0)
        return;
    free(c->outputs);
    free(c);
}

void worker_group_destroy(struct worker_group *c)
{
    if (c == NULL || c->destroyed)
        return;
    c->destroyed = true;
    c->n_open = c->n;
    for (uint32_t i = 0; i < c->n; i++) {
        crash_read_drop(c->outputs[i].crash);
        for (int k = 0; k < 2; k++)
            logs_release(&c->outputs[i].streams[k]);
    }
    for (uint32_t i = 0, n = c->n; i < n; i++)
        worker_close(&c->workers[i], on_worker_closed); /* the last one may free c */
}

size_t worker_group_foreign(const struct worker_group *c, struct foreign_worker *out, size_t cap)
{
    size_t n = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        const struct worker *w = &c->workers[i];

        if (c->stopped || c->destroyed || w->exited || w->pid <= 0)
            return 0;
        if (worker_end_uses_libcddp(w))
            continue;
        if (n == cap)
            return 0;
        out[n++] = (struct foreign_worker){.rank = w->rank, .pid = w->pid, .started_wall_ms = w->started_wall_ms};
    }
    return n;
}
