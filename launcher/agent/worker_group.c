/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/worker_group.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"
#include "launcher/agent/crash.h"
#include "launcher/agent/progress.h"
#include "launcher/agent/rank_report.h"
#include "launcher/process/oom.h"
#include "launcher/process/procs.h"
#include "launcher/process/program.h"
#include "protocol/cause.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_CLOCK_MS 20 /* the most by which the time of a file is early: the kernel takes it from its last tick */
#define ALIVE_SHOWN 4
#define CRASHES_READ 4
#define FOLLOWS_WAIT_MS 2000 /* wait this long for the cause of a failure that follows from another */
#define ENDS_WAIT_MS 5000    /* wait this long for the end of a worker that crashes or has noted a failure */
#define ERROR_MS 60000       /* an older error of libcddp does not explain a worker's end */
#define LATE_ERROR_MS 10000  /* an older error does not make a suspect of a running worker that another rank blames */
#define LOGS_NOTE_MAX 500    /* the message and the end of stderr follow it in the failure's text */

struct output {
    struct logs_stream streams[2];
    bool paused;
    struct crash_read *crash; /* NULL: the worker has not crashed */
    int64_t crash_ms;         /* when it was seen to crash; 0: not yet */
};

struct worker_group {
    struct worker_group_options opt;
    struct output *outputs;
    uint32_t n, n_open;
    uint32_t first_unstarted; /* workers from here on could not be started */
    struct cdi_error why;     /* of the first of them */
    struct oom_count ooms;    /* before the start */
    bool destroyed;
    bool failed;  /* the first failure was reported */
    bool stopped; /* by worker_group_signal(), until it continues them */
    bool progress_read;
    int end_signal; /* the first by which the workers were to end; 0: none */
    int64_t end_ms;
    bool waits;            /* an end is not reported yet, since its cause may become known */
    int64_t wait_until_ms; /* for it; 0: no end has waited */
    uint32_t n_crashes;
    char progress[PROGRESS_TEXT];
    char error_file[PATH_MAX];
    struct worker workers[];
};

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

/* The kernel also returns ENOENT for an existing file whose interpreter does not exist. */
static void explain_program(const struct worker_group *c, const struct worker *w, struct cdi_failure *f)
{
    const char *program = c->opt.spawn->preflight != NULL ? c->opt.spawn->preflight_program : c->opt.plan->command[0];
    const char *error = strerror(w->exec_errno);
    struct program_facts facts;

    if (w->exec_errno != ENOENT || !program_read(c->opt.spawn->program, &facts) || facts.interpreter[0] == '\0')
        (void)snprintf(f->text, sizeof f->text, "rank %d: cannot run program '%.300s': %s", w->rank, program, error);
    else if (facts.carriage_return)
        (void)snprintf(f->text, sizeof f->text,
                       "rank %d: cannot run script '%.300s': its first line ends in a carriage return, as on Windows, "
                       "which becomes part of its interpreter's name; remove it (sed -i 's/\\r$//' FILE)",
                       w->rank, program);
    else
        (void)snprintf(f->text, sizeof f->text,
                       "rank %d: cannot run %s '%.300s': the file exists, but its %s does not: '%.200s'", w->rank,
                       facts.script ? "script" : "program", program, facts.script ? "interpreter" : "dynamic loader",
                       facts.interpreter);
}

/* Describes which step failed before the program ran, and the file or cores involved, if any. */
static void explain_exec(const struct worker_group *c, const struct worker *w, struct cdi_failure *f)
{
    const char *error = strerror(w->exec_errno);

    /* A worker's environment is larger than cddprun's, so exec can fail here although cddprun itself started. */
    if (w->exec_errno == E2BIG) {
        (void)snprintf(f->text, sizeof f->text,
                       "rank %d: cannot run program '%.300s': its arguments and environment, with the variables of "
                       "cddprun, are too large; shorten them (a variable may have 128 KiB), or raise the limit of the "
                       "stack, of which they may take a quarter (ulimit -s)",
                       w->rank, c->opt.plan->command[0]);
        return;
    }
    switch (w->exec_failure) {
    case EXEC_PROGRAM:
        explain_program(c, w, f);
        return;
    case EXEC_CPUS:
        (void)snprintf(f->text, sizeof f->text,
                       "rank %d: cannot be bound to cores %.300s: %s; use --numa_binding=none to start without binding",
                       w->rank, w->cpus == NULL ? "" : w->cpus, error);
        return;
    case EXEC_SHIM:
        (void)snprintf(f->text, sizeof f->text, "rank %d: cannot run '%.300s', a part of cddprun: %s%s", w->rank,
                       c->opt.spawn->shim, error,
                       w->exec_errno == EPERM ? "; the kernel or a seccomp filter forbids it"
                                              : "; install cddprun again");
        return;
    case EXEC_GROUP:
        (void)snprintf(f->text, sizeof f->text,
                       "rank %d: cannot make a process group or session for it: %s; a seccomp filter may forbid it",
                       w->rank, error);
        return;
    case EXEC_FILES:
        (void)snprintf(
            f->text, sizeof f->text,
            "rank %d: cannot give it its standard streams and flight page: %s; a seccomp filter may forbid it", w->rank,
            error);
        return;
    case EXEC_ARGS:
    case EXEC_AGENT:
        (void)snprintf(f->text, sizeof f->text,
                       "rank %d: '%.300s' does not fit this cddprun: %s; install cddprun again", w->rank,
                       c->opt.spawn->shim, error);
        return;
    }
    (void)snprintf(f->text, sizeof f->text, "rank %d could not be started: %s", w->rank, error);
}

static bool has_succeeded(const struct worker *w)
{
    return w->exited && w->exit_signal == 0 && w->exit_code == 0;
}

static bool uses_libcddp(const struct worker *w)
{
    return w->flight != NULL && cdi_flight_is_claimed(w->flight);
}

/* Why the worker failed, if libcddp knows. Returns false if it has no error of the last `recent_ms`. */
static bool read_error(const struct worker *w, int64_t recent_ms, struct cdi_flight_error *e)
{
    *e = (struct cdi_flight_error){.blamed = -1};
    if (w->flight == NULL)
        return false;
    cdi_flight_error(w->flight, e);
    if (e->status < 0 && (w->exited ? w->ended_ms : cdi_now_ms()) - e->at_ns / 1000000 <= recent_ms)
        return true;
    *e = (struct cdi_flight_error){.blamed = -1};
    return false;
}

static void fill_end(const struct worker_group *c, const struct worker *w, struct cdi_failure *f)
{
    struct cdi_flight_error e;

    (void)read_error(w, ERROR_MS, &e);
    *f = (struct cdi_failure){
        .kind = CDI_END_EXIT,
        .code = w->exit_code,
        .rank = w->rank,
        .local_rank = (int32_t)w->local_rank,
        .node_rank = c->opt.assign.node_rank,
        .pid = w->pid,
        .time_ms = cdi_wall_ms() - (w->exited ? cdi_now_ms() - w->ended_ms : 0),
        .core_dumped = w->dumped,
        .error = e.status,
        .blames = (uint32_t)e.blamed + 1,
    };
    (void)snprintf(f->host, sizeof f->host, "%s", c->opt.plan->host);
    if (w->exec_errno != 0) {
        f->kind = CDI_END_SPAWN;
        f->code = w->exec_errno;
        explain_exec(c, w, f);
        return;
    }
    if (w->exit_signal != 0) {
        f->kind = CDI_END_SIGNAL;
        f->code = w->exit_signal;
    }
    if (f->kind == CDI_END_EXIT && f->code == 0 && !uses_libcddp(w))
        (void)snprintf(f->text, sizeof f->text, "rank %d (pid %lld on %.200s) " CDI_FLIGHT_ABSENT, f->rank,
                       (long long)f->pid, f->host);
    else
        report_headline(f, f->text, sizeof f->text);
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

/* Output buffered by stdio is lost with a killed process. Python does not buffer: its workers run with -u. */
static bool may_lack_output(const struct worker_group *c, const struct worker *w, const struct cdi_failure *f)
{
    return f->kind == CDI_END_SIGNAL && !w->on_pty && !w->interactive && c->opt.plan->interpreter[0] == NULL;
}

/* Notes the files with all of its output; the report shows only the end. */
static void note_logs(const struct output *o, struct cdi_failure *f)
{
    char path[2][PATH_MAX], note[LOGS_NOTE_MAX];
    bool out = logs_file(&o->streams[0], path[0]), err = logs_file(&o->streams[1], path[1]);
    int n = snprintf(note, sizeof note, out && err ? "its logs: %s and stdout.log" : "its log: %s", path[err ? 1 : 0]);

    if ((out || err) && n > 0 && (size_t)n < sizeof note) /* a part of a path is of no use */
        report_note(f, note);
}

/* Has this worker not called cddp_init, but another one of the same program? */
static bool is_before_init(const struct worker_group *c, const struct worker *w)
{
    bool others = false;

    for (uint32_t i = 0; i < c->n && !others; i++)
        others = c->workers[i].flight != NULL && cdi_flight_is_claimed(c->workers[i].flight);
    return others && !cdi_flight_is_claimed(w->flight);
}

/*
 * Adds the stack of a worker that crashed, or the reason why there is none. A shell may have turned the signal into an
 * exit status.
 */
static void add_stack(const struct worker_group *c, const struct worker *w, struct cdi_failure *f)
{
    const struct crash_read *crash = c->outputs[w->local_rank].crash;
    char text[CRASH_TEXT];

    if (w->flight != NULL &&
        crash_text(cdi_flight_crash(w->flight), crash, w->exit_signal, is_before_init(c, w), text, sizeof text))
        report_stack(f, text);
}

/* Appends the worker's own messages to the first failure; other nodes show them, too. */
static void add_details(struct worker_group *c, struct worker *w, struct cdi_failure *f)
{
    const struct ranklog *log = &c->outputs[w->local_rank].streams[1].log;
    const char *tail[RANKLOG_TAIL_LINES];
    char note[160];
    unsigned n;

    worker_drain(w); /* its last output may still be in the pipe */
    logs_error_file(c->opt.logs, w->local_rank, c->error_file);
    if (f->kind == CDI_END_SIGNAL && f->code == SIGKILL && oom_explain("", &c->ooms, note, sizeof note))
        report_note(f, note);
    if (may_lack_output(c, w, f))
        report_note(f, "its stdout was a pipe: unflushed output is lost; --pty=always, stdbuf -oL or fflush(stdout) "
                       "would keep it");
    note_logs(&c->outputs[w->local_rank], f);
    add_stack(c, w, f);
    n = ranklog_tail_count(log);
    for (unsigned i = 0; i < n; i++)
        tail[i] = ranklog_tail_line(log, i);
    report_details(f, c->error_file, tail, n);
}

/*
 * Tells the other workers that w exited with status 0, since only they know whether they still need it. If it never
 * joined, peers may wait for it in cddp_init, now or later, unless a process that it has started joins in its place.
 */
static void publish_exit(const struct worker_group *c, const struct worker *w)
{
    bool was_peer = uses_libcddp(w), tells = was_peer || worker_left_nobody(w);

    for (uint32_t i = 0; tells && i < c->n; i++) {
        const struct worker *v = &c->workers[i];

        if (v != w && !v->exited && v->flight != NULL && (!was_peer || uses_libcddp(v)))
            cdi_flight_tell_ended(v->flight, w->rank);
    }
}

static int32_t missed_by(const struct worker *w)
{
    struct cdi_flight_view view = {.missed_rank = -1};

    if (w->flight != NULL)
        cdi_flight_read(w->flight, &view);
    return view.missed_rank;
}

static bool is_here(const struct worker_group *c, int32_t rank)
{
    return rank >= 0 && (uint32_t)rank >= c->opt.assign.rank_base && (uint32_t)rank - c->opt.assign.rank_base < c->n;
}

/* Returns the worker of this rank, if it has exited with status 0, as published; NULL: it has not, or is elsewhere. */
static struct worker *succeeded_rank(struct worker_group *c, int32_t rank)
{
    struct worker *w = is_here(c, rank) ? &c->workers[(uint32_t)rank - c->opt.assign.rank_base] : NULL;

    return w != NULL && w->reported && w->pid > 0 && w->exec_errno == 0 && has_succeeded(w) ? w : NULL;
}

/* Returns the worker that had exited with status 0 and that another one still needed; NULL: none. */
static struct worker *find_missed(struct worker_group *c)
{
    struct worker *found = NULL;

    for (uint32_t i = 0; i < c->n && found == NULL; i++)
        found = succeeded_rank(c, missed_by(&c->workers[i]));
    return found;
}

/* The value of cdi_failure.misses. Only that rank's own node knows why it is missing. */
static uint32_t missed_elsewhere(const struct worker_group *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        int32_t rank = missed_by(&c->workers[i]);

        if (rank >= 0 && (uint32_t)rank < c->opt.assign.world_size && !is_here(c, rank))
            return (uint32_t)rank + 1;
    }
    return 0;
}

/* Gets the time at which the worker wrote its error file. */
static bool noted_at(struct worker_group *c, const struct worker *w, struct timespec *at)
{
    struct stat sb;

    logs_error_file(c->opt.logs, w->local_rank, c->error_file);
    if (stat(c->error_file, &sb) != 0 || sb.st_size == 0)
        return false;
    *at = sb.st_mtim;
    return true;
}

/* --------------------------------------------------------------------------------------------------- the cause ---- */

/* A worker that has failed, or is about to end since it has noted a failure. */
struct suspect {
    struct worker *w; /* NULL: none */
    bool noted;       /* in its error file */
    struct cdi_cause cause;
};

/*
 * Gathers what is known of a worker. An exception is as old as the worker's error file: Python takes long to exit, and
 * workers that fail because of another's exception may exit before the one that raised it. (torchrun uses the time in
 * the file, too, but in whole seconds.)
 */
static struct suspect suspect_of(struct worker_group *c, struct worker *w)
{
    const int64_t now_ms = cdi_now_ms();
    struct suspect s = {.w = w, .cause = {.kind = CDI_END_EXIT, .code = w->exit_code, .rank = w->rank}};
    struct cdi_flight_error e;
    struct timespec at;
    int64_t noted_ms;

    (void)read_error(w, ERROR_MS, &e);
    s.cause.error = e.status;
    s.cause.blamed = missed_by(w) >= 0 ? missed_by(w) : e.blamed;
    s.cause.at_ms = w->exited ? w->ended_ms : now_ms;
    if (w->exited && c->end_signal != 0 && w->ended_ms >= c->end_ms)
        s.cause.ordered = c->end_signal;
    if (w->exec_errno != 0)
        s.cause.kind = CDI_END_SPAWN;
    else if (w->exit_signal != 0) {
        s.cause.kind = CDI_END_SIGNAL;
        s.cause.code = w->exit_signal;
    }
    s.noted = !has_succeeded(w) && noted_at(c, w, &at);
    if (!s.noted)
        return s;
    noted_ms = now_ms - cdi_wall_ms() + (int64_t)at.tv_sec * 1000 + at.tv_nsec / 1000000 + FILE_CLOCK_MS;
    s.cause.recorded = true;
    if (noted_ms < s.cause.at_ms)
        s.cause.at_ms = noted_ms;
    return s;
}

static void keep_preceding_suspect(struct suspect *best, const struct suspect *s)
{
    if (best->w == NULL || cdi_cause_precedes(&s->cause, &best->cause))
        *best = *s;
}

/*
 * Returns whether w, which still runs, has crashed, and fills in *s if so. A process with many threads, or one that
 * dumps a core, takes long to end.
 */
static bool is_crashing(struct worker_group *c, struct worker *w, struct suspect *s)
{
    struct output *o = &c->outputs[w->local_rank];
    struct cdi_flight_crash note;
    enum cdi_crash_state state;

    if (w->flight == NULL)
        return false;
    state = cdi_crash_look(cdi_flight_crash(w->flight), &note);
    if ((state != CDI_CRASH_WAITS && state != CDI_CRASH_UNREACHED) || note.pid != w->pid)
        return false;
    if (o->crash_ms == 0)
        o->crash_ms = cdi_now_ms();
    *s = suspect_of(c, w);
    s->cause.kind = CDI_END_SIGNAL;
    s->cause.code = note.signal;
    s->cause.at_ms = o->crash_ms;
    return true;
}

/*
 * Considers running workers, too, as the cause of the failure `because`. One that crashes counts. One that has recorded
 * an exception counts if `because` follows from another failure, or if its worker has recorded one (`noted`). One with
 * a recent error of libcddp counts if `because` follows and blames its rank.
 */
static void suspect_running(struct worker_group *c, const struct cdi_cause *because, bool noted, struct suspect *best)
{
    const bool follows = cdi_cause_class_of(because) == CDI_CAUSE_FOLLOWS;
    struct cdi_flight_error e;
    struct suspect s;

    for (uint32_t i = 0; i < c->n; i++) {
        struct worker *w = &c->workers[i];

        if (w->exited || w->pid <= 0)
            continue;
        if (is_crashing(c, w, &s)) {
            keep_preceding_suspect(best, &s);
            continue;
        }
        s = suspect_of(c, w);
        if ((s.noted && (noted || follows)) ||
            (follows && because->blamed == w->rank && read_error(w, LATE_ERROR_MS, &e)))
            keep_preceding_suspect(best, &s);
    }
}

/* Finds the cause of what has failed so far. *by is the first that has exited, or NULL. */
static struct suspect find_cause(struct worker_group *c, struct worker **by)
{
    struct suspect best = {.w = NULL}, s;
    struct worker *missed;

    for (uint32_t i = 0; i < c->n; i++) {
        struct worker *w = &c->workers[i];

        if (!w->exited || w->reported || has_succeeded(w))
            continue;
        s = suspect_of(c, w);
        keep_preceding_suspect(&best, &s);
    }
    *by = best.w;
    if (best.w == NULL)
        return best;
    s = best;
    missed = best.cause.kind == CDI_END_EXIT ? find_missed(c) : NULL;
    if (missed != NULL) {
        const struct suspect m = suspect_of(c, missed);

        keep_preceding_suspect(&best, &m);
    }
    suspect_running(c, &s.cause, s.noted, &best);
    return best;
}

/*
 * Returns whether to delay the report. A failure that follows from another waits for its cause. That of a running
 * worker waits for its end and last output, unless the worker has recorded an exception.
 */
static bool waits_for_cause(struct worker_group *c, const struct suspect *s)
{
    const bool follows = cdi_cause_class_of(&s->cause) == CDI_CAUSE_FOLLOWS;
    const int64_t now_ms = cdi_now_ms();
    bool others = c->opt.assign.world_size > c->n;

    for (uint32_t i = 0; i < c->n; i++)
        others = others || (c->workers[i].pid > 0 && !c->workers[i].exited);
    if (c->end_signal != 0 || (follows ? !others : s->w->exited || (s->noted && s->cause.kind == CDI_END_EXIT)))
        return false;
    if (c->wait_until_ms == 0)
        c->wait_until_ms = now_ms + (s->w->exited ? FOLLOWS_WAIT_MS : ENDS_WAIT_MS);
    return now_ms < c->wait_until_ms;
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
    if (s->noted || f->kind != CDI_END_EXIT || !read_error(s->w, LATE_ERROR_MS, &e))
        return;
    (void)snprintf(note, sizeof note, "its error: %s: %s", cdi_status_name(e.status), e.text);
    report_note(f, note);
}

/* by: the worker that failed because of s; NULL: a rank of another node. */
static void report_cause_worker(struct worker_group *c, const struct suspect *s, const struct worker *by)
{
    struct cdi_failure end;

    fill_end(c, s->w, &end);
    if (!s->w->exited)
        describe_running(c, s, by, &end);
    read_progress(c);
    add_details(c, s->w, &end);
    c->failed = true;
    c->opt.cause(c->opt.arg, &end);
}

static void report_exit(struct worker_group *c, struct worker *w)
{
    struct cdi_failure end;

    fill_end(c, w, &end);
    if (end.kind == CDI_END_EXIT && end.code == 0)
        publish_exit(c, w);
    if (!c->failed && (end.kind == CDI_END_SIGNAL || (end.kind == CDI_END_EXIT && end.code != 0))) {
        read_progress(c);
        add_details(c, w, &end);
        end.misses = missed_elsewhere(c);
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
    const struct suspect s = find_cause(c, &by);

    c->waits = s.w != NULL && waits_for_cause(c, &s);
    if (s.w == NULL || c->waits)
        return false;
    if (s.w->exited && !has_succeeded(s.w))
        report_exit(c, s.w);
    else
        report_cause_worker(c, &s, by);
    return true;
}

void worker_group_note_failure(struct worker_group *c, const struct cdi_failure *first)
{
    const struct cdi_cause because = cdi_cause_of(first, cdi_now_ms());
    struct worker *by, *missed = first->misses > 0 ? succeeded_rank(c, (int32_t)(first->misses - 1)) : NULL;
    struct suspect s = find_cause(c, &by);

    c->wait_until_ms = 1; /* no end waits any more */
    if (missed == NULL && first->kind == CDI_END_EXIT)
        missed = find_missed(c);
    if (missed != NULL) {
        s = suspect_of(c, missed);
    } else if (cdi_cause_class_of(&because) == CDI_CAUSE_FOLLOWS) {
        suspect_running(c, &because, false, &s);
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
        if (has_succeeded(&c->workers[i]) && !c->workers[i].reported)
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
        fill_end(c, &c->workers[i], &end);
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

        if (w == first || !w->exited || w->pid <= 0 || was_stopped(c, w) || has_succeeded(w))
            continue;
        if (n < REPORT_OTHERS_MAX)
            others[n] = (struct report_other){.rank = w->rank,
                                              .code = w->exit_code,
                                              .signal = w->exit_signal,
                                              .later_ms = first != NULL ? w->ended_ms - first->ended_ms : -1};
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
        if (uses_libcddp(w))
            continue;
        if (n == cap)
            return 0;
        out[n++] = (struct foreign_worker){.rank = w->rank, .pid = w->pid, .started_wall_ms = w->started_wall_ms};
    }
    return n;
}
