/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/output/logs.h"

#include "common/env.h"
#include "common/log.h"
#include "common/nofollow.h"
#include "launcher/cli/rankmap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_MAX 65536 /* bytes of one logs_feed() */
#define LINES_MAX RANKLOG_OUT_MAX(READ_MAX)
#define NOWHERE "/dev/null" /* as --log_dir: torchrun's value for no files */

_Static_assert(WRITER_HIGH + 2 * LINES_MAX <= WRITER_MAX,
               "the bytes read from both streams before one is full must fit");

static const char *const names[] = {"stdout", "stderr"};

struct logs {
    struct logs_options opt;
    struct writer *files;   /* NULL: no files */
    char dir[PATH_MAX];     /* of the run, in --log_dir; "": none */
    char attempt[PATH_MAX]; /* of this attempt; "": none */
    int lock;               /* on `dir`; -1: none */
    uint32_t restart_count;
    bool warned_lost, said_no_pty;
    bool colour[2];
    bool draws[2];  /* a terminal, on which lines can be overwritten */
    bool drawn;     /* the next output there overwrites a line */
    bool own_line;  /* and that is of logs_draw_line() */
    char *words[2]; /* of --duplicate_*_filters */
    struct ranklog_filter filter[2];
    struct writer_sink *matched[2];
    struct cdi_buf shown, duplicates; /* scratch */
    void (*closed)(void *arg, bool flushed);
    void *closed_arg;
};

static void warn_lost(struct logs *l, const char *path, int error, const char *instead)
{
    if (!l->warned_lost)
        cdi_log(CDI_LOG_WARN, "LOGS-LOST", "cannot write logs to '%s': %s; the job continues, and %s", path,
                strerror(error), instead);
    l->warned_lost = true;
}

static void logs_on_lost(void *arg, const char *path, int error)
{
    struct logs *l = arg;

    warn_lost(l, path, error,
              "further output is lost there, and in other files that cannot be written; the exit status will not be 0");
    l->opt.lost(l->opt.arg, error);
}

static void logs_on_room(void *arg)
{
    struct logs *l = arg;

    l->opt.room(l->opt.arg);
}

static const struct writer_events file_events = {.room = logs_on_room, .lost = logs_on_lost};

/* ----------------------------------------------------------------------------------------------- directories ---- */

/* The same as mkdir -p. Returns errno. */
static int make_directories(const char *path)
{
    char part[PATH_MAX];
    size_t n = strlen(path);

    if (n >= sizeof part)
        return ENAMETOOLONG;
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return errno;
    }
    return 0;
}

/* <log_dir>/<prefix><run id>_XXXXXX, absolute, since workers may change their directory. Returns errno. */
static int make_run_directory(struct logs *l, const char *log_dir, const char *prefix)
{
    char id[sizeof l->opt.plan->run_id], *base;
    int error = make_directories(log_dir), n;

    if (error != 0)
        return error;
    base = realpath(log_dir, NULL);
    if (base == NULL)
        return errno;
    (void)snprintf(id, sizeof id, "%s", l->opt.plan->run_id);
    for (char *p = id; (p = strchr(p, '/')) != NULL;)
        *p = '_';
    n = snprintf(l->dir, sizeof l->dir, "%s/%s%s_XXXXXX", base, prefix, id);
    free(base);
    if (n >= (int)sizeof l->dir - 64)
        error = ENAMETOOLONG;
    else if (mkdtemp(l->dir) == NULL)
        error = errno;
    if (error != 0)
        l->dir[0] = '\0';
    return error;
}

/* For --tee without --log_dir, as in torchrun: the files stay, so the user must know their directory. */
static cddp_status make_own_directory(struct logs *l, struct cdi_error *err)
{
    const char *tmpdir = l->opt.plan->options->tmpdir;
    int error = make_run_directory(l, tmpdir, "cddprun-logs-");

    if (error != 0)
        return cdi_fail(err, CDDP_E_SYSTEM,
                        "--tee without --log_dir: cannot create a directory for its files in '%.400s' (TMPDIR): %s",
                        tmpdir, strerror(error));
    cdi_log(CDI_LOG_WARN, "LOGS-TEE", "--tee without --log_dir: its files are written to %s, and are kept", l->dir);
    return CDDP_OK;
}

static cddp_status make_directory(struct logs *l, struct cdi_error *err)
{
    const struct options *o = l->opt.plan->options;
    int error;

    if (o->log_dir == NULL)
        return rankmap_any(o->tee) ? make_own_directory(l, err) : CDDP_OK;
    if (strcmp(o->log_dir, NOWHERE) == 0)
        return CDDP_OK;
    error = make_run_directory(l, o->log_dir, "");
    if (error == 0)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_SYSTEM, "--log_dir '%.400s': cannot create a directory there: %s", o->log_dir,
                    strerror(error));
}

static void open_filtered(struct logs *l, int i)
{
    char path[PATH_MAX];
    int error;

    if (l->filter[i].n == 0)
        return;
    (void)snprintf(path, sizeof path, "%.4000s/filtered_%s.log", l->attempt, names[i]);
    error = writer_file(l->files, &l->matched[i], path, false);
    if (error != 0)
        warn_lost(l, path, error, "this file is missing");
}

void logs_begin(struct logs *l, uint32_t restart_count)
{
    l->restart_count = restart_count;
    l->attempt[0] = '\0';
    for (int i = 0; i < 2; i++) {
        writer_file_done(l->matched[i]);
        l->matched[i] = NULL;
    }
    if (l->dir[0] == '\0')
        return;
    (void)snprintf(l->attempt, sizeof l->attempt, "%.4000s/attempt_%u", l->dir, restart_count);
    if (mkdir(l->attempt, 0777) != 0 && errno != EEXIST) {
        warn_lost(l, l->attempt, errno, "the output for these files is shown instead");
        l->attempt[0] = '\0';
        return;
    }
    open_filtered(l, 0);
    open_filtered(l, 1);
}

void logs_error_file(const struct logs *l, uint32_t local_rank, char path[PATH_MAX])
{
    /* Without --log_dir all are in one directory: creating and removing one costs more than starting a worker. */
    if (l->attempt[0] == '\0')
        (void)snprintf(path, PATH_MAX, "%.4000s/error_%u_%u.json", l->opt.run_dir, l->restart_count, local_rank);
    else
        (void)snprintf(path, PATH_MAX, "%.4000s/%u/error.json", l->attempt, local_rank);
}

/* --------------------------------------------------------------------------------------------------- streams ---- */

static void name_file(const struct logs *l, uint32_t local_rank, int i, char path[PATH_MAX])
{
    (void)snprintf(path, PATH_MAX, "%.4000s/%u/%s.log", l->attempt, local_rank, names[i]);
}

bool logs_file(const struct logs_stream *s, char path[PATH_MAX])
{
    if (s->logs == NULL || s->file == NULL)
        return false;
    name_file(s->logs, s->local_rank, s->number - 1, path);
    return true;
}

static struct writer_sink *logs_open_file(struct logs *l, uint32_t local_rank, int i)
{
    struct writer_sink *file = NULL;
    char path[PATH_MAX];
    int error;

    name_file(l, local_rank, i, path);
    error = writer_file(l->files, &file, path, false);
    if (error != 0)
        warn_lost(l, path, error, "the output for these files is shown instead");
    return file;
}

/* The worker's own directory, for its error file too. */
static void make_rank_directory(struct logs *l, uint32_t local_rank)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof path, "%.4000s/%u", l->attempt, local_rank);
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        warn_lost(l, path, errno, "the output for these files is shown instead");
}

void logs_open(struct logs *l, struct logs_stream *s, uint32_t local_rank, uint32_t rank, int number)
{
    const struct options *o = l->opt.plan->options;
    unsigned bit = number == 1 ? RANKMAP_STDOUT : RANKMAP_STDERR;
    bool tee = (rankmap_streams(o->tee, local_rank) & bit) != 0,
         away = !tee && (rankmap_streams(o->redirects, local_rank) & bit) != 0,
         nowhere = o->log_dir != NULL && strcmp(o->log_dir, NOWHERE) == 0;
    char prefix[RANKLOG_PREFIX_MAX];
    struct ranklog_options opt = {
        .prefix = ranklog_prefix(prefix, o->log_line_prefix, l->opt.plan->role, rank, local_rank),
        .colour = l->colour[number - 1],
        .rank = rank,
        .drawn = l->draws[number - 1] ? &l->drawn : NULL,
        .keep_tail = number == 2,
    };

    *s = (struct logs_stream){.logs = l, .local_rank = local_rank, .number = number};
    if (l->attempt[0] != '\0' && number == 1)
        make_rank_directory(l, local_rank);
    if (l->attempt[0] != '\0' && (tee || away))
        s->file = logs_open_file(l, local_rank, number - 1);
    s->shown = (!away || (s->file == NULL && !nowhere)) && rankset_has(o->local_ranks_filter, local_rank);
    if (l->matched[number - 1] != NULL)
        opt.filter = l->filter[number - 1];
    ranklog_init(&s->log, &opt);
}

bool logs_wants_pty(const struct logs_stream *s)
{
    const struct options *o = s->logs->opt.plan->options;

    if (s->number != 1 || o->pty == OPTIONS_PTY_NEVER)
        return false;
    return o->pty == OPTIONS_PTY_ALWAYS ||
           (s->shown && o->interactive < 0 && (o->remote_terminal || isatty(STDOUT_FILENO) == 1));
}

void logs_warn_no_pty(struct logs *l, int error)
{
    if (!l->said_no_pty)
        cdi_log(CDI_LOG_WARN, "LOGS-PTY",
                "cannot open a pseudo-terminal for a worker's stdout: %s; using a pipe instead, on which a C program's "
                "lines may be delayed",
                strerror(error));
    l->said_no_pty = true;
}

uint32_t logs_front(const struct logs_stream *s)
{
    return (uint32_t)s->log.plain[0].len;
}

bool logs_reset_drawn(struct logs *l)
{
    bool drawn = l->draws[1] && l->drawn;

    l->drawn = l->drawn && !drawn;
    l->own_line = l->own_line && !drawn;
    return drawn;
}

bool logs_has_terminal(const struct logs *l)
{
    return l->draws[1];
}

void logs_draw_line(struct logs *l, const char *text)
{
    char line[256];
    int n = snprintf(line, sizeof line, "\r%.*s" RANKLOG_ERASE "\r", (int)(sizeof line - 8), text);

    if (!l->draws[1] || (l->drawn && !l->own_line) || (text[0] == '\0' && !l->own_line))
        return;
    if (text[0] != '\0' && !writer_is_idle(l->opt.console))
        return;
    writer_push(l->opt.console, writer_std(l->opt.console, STDERR_FILENO), l->opt.plan->n_procs, line, (size_t)n);
    l->own_line = text[0] != '\0';
    l->drawn = l->own_line;
}

void logs_feed(struct logs_stream *s, const char *bytes, size_t n)
{
    struct logs *l = s->logs;
    struct ranklog_out out = {.shown = s->shown ? &l->shown : NULL, .matched = &l->duplicates};
    cddp_status st = n > 0 ? ranklog_feed(&s->log, bytes, n, &out) : ranklog_end(&s->log, &out);

    if (st != CDDP_OK)
        cdi_log(CDI_LOG_WARN, "LOGS-MEMORY", "some output of local rank %u is lost: out of memory", s->local_rank);
    if (l->shown.len > 0 && l->draws[s->number - 1])
        l->own_line = false;
    writer_push(l->opt.console, writer_std(l->opt.console, s->number), s->local_rank, cdi_buf_data(&l->shown),
                l->shown.len);
    cdi_buf_consume(&l->shown, l->shown.len);
    if (l->files == NULL)
        return;
    writer_push(l->files, s->file, s->local_rank, bytes, n);
    writer_push(l->files, l->matched[s->number - 1], s->local_rank, cdi_buf_data(&l->duplicates), l->duplicates.len);
    cdi_buf_consume(&l->duplicates, l->duplicates.len);
}

void logs_release(struct logs_stream *s)
{
    if (s->logs == NULL)
        return;
    writer_file_done(s->file);
    ranklog_release(&s->log);
    s->logs = NULL;
}

uint64_t logs_progress(struct logs *l)
{
    return l->files != NULL ? writer_progress(l->files) : 0;
}

bool logs_full(struct logs *l, uint32_t local_rank)
{
    /* Calls both, so that both report room later. */
    bool console = writer_full(l->opt.console, local_rank);

    return (l->files != NULL && writer_full(l->files, local_rank)) || console;
}

/* ------------------------------------------------------------------------------------------- beginning, end ---- */

/* cddprun's own terminal. Other launchers, such as mpirun, replace stdout by their own pseudo-terminal. */
static bool takes_escapes(int fd)
{
    const char *term = cdi_env_str("TERM");

    return isatty(fd) == 1 && tcgetpgrp(fd) >= 0 && term != NULL && strcmp(term, "dumb") != 0;
}

static void free_logs(struct logs *l)
{
    cdi_buf_release(&l->shown);
    cdi_buf_release(&l->duplicates);
    free(l->words[0]);
    free(l->words[1]);
    if (l->lock >= 0)
        (void)close(l->lock);
    free(l);
}

static bool read_filters(struct logs *l)
{
    const char *texts[] = {l->opt.plan->options->duplicate_stdout_filters,
                           l->opt.plan->options->duplicate_stderr_filters};

    for (int i = 0; i < 2; i++) {
        if (texts[i] == NULL)
            continue;
        l->words[i] = malloc(strlen(texts[i]) + 1);
        if (l->words[i] == NULL)
            return false;
        l->filter[i] = (struct ranklog_filter){.words = l->words[i], .n = rankmap_filters(texts[i], l->words[i])};
    }
    return true;
}

cddp_status logs_start(struct logs **out, uv_loop_t *loop, const struct logs_options *opt, struct cdi_error *err)
{
    struct logs *l = calloc(1, sizeof *l);
    cddp_status st = CDDP_OK;

    if (l == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "logs: out of memory");
    l->opt = *opt;
    l->lock = -1;
    cdi_buf_init(&l->shown, LINES_MAX);
    cdi_buf_init(&l->duplicates, LINES_MAX);
    for (int i = 0; i < 2; i++) {
        l->draws[i] = takes_escapes(STDOUT_FILENO + i);
        l->colour[i] = l->draws[i] && !cdi_env_has("NO_COLOR");
    }
    if (!read_filters(l))
        st = cdi_fail(err, CDDP_E_NOMEM, "logs: out of memory");
    if (st == CDDP_OK)
        st = make_directory(l, err);
    if (l->dir[0] != '\0')
        l->lock = cdi_lock_dir(l->dir);
    if (st == CDDP_OK && l->dir[0] != '\0')
        st = writer_start(&l->files, loop, opt->plan->n_procs, &file_events, l, err);
    if (st == CDDP_OK)
        *out = l;
    else
        free_logs(l);
    return st;
}

static void logs_on_closed(void *arg, bool flushed)
{
    struct logs *l = arg;
    void (*closed)(void *arg, bool flushed) = l->closed;
    void *closed_arg = l->closed_arg;

    if (flushed)
        free_logs(l);
    closed(closed_arg, flushed);
}

void logs_close(struct logs *l, void (*closed)(void *arg, bool flushed), void *arg)
{
    l->closed = closed;
    l->closed_arg = arg;
    writer_file_done(l->matched[0]);
    writer_file_done(l->matched[1]);
    if (l->files != NULL)
        writer_close(l->files, logs_on_closed, l);
    else
        logs_on_closed(l, true);
}

void logs_abandon(struct logs *l)
{
    if (l->files != NULL)
        writer_abandon(l->files);
}
