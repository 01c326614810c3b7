/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/worker_end.h"

#include "common/clock.h"
#include "launcher/process/program.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define LOGS_NOTE_MAX 500 /* the message and the end of stderr follow it in the failure's text */

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

bool worker_end_succeeded(const struct worker *w)
{
    return w->exited && w->exit_signal == 0 && w->exit_code == 0;
}

bool worker_end_uses_libcddp(const struct worker *w)
{
    return w->flight != NULL && cdi_flight_is_claimed(w->flight);
}

bool worker_end_error(const struct worker *w, int64_t recent_ms, struct cdi_flight_error *e)
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

void worker_end_fill(const struct worker_group *c, const struct worker *w, struct cdi_failure *f)
{
    struct cdi_flight_error e;

    (void)worker_end_error(w, WORKER_END_ERROR_MS, &e);
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
    if (f->kind == CDI_END_EXIT && f->code == 0 && !worker_end_uses_libcddp(w))
        (void)snprintf(f->text, sizeof f->text, "rank %d (pid %lld on %.200s) " CDI_FLIGHT_ABSENT, f->rank,
                       (long long)f->pid, f->host);
    else
        report_headline(f, f->text, sizeof f->text);
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

void worker_end_add_details(struct worker_group *c, struct worker *w, struct cdi_failure *f)
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
