/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/trace/trace_file.h"

#include "common/cleanup.h"
#include "common/nofollow.h"
#include "launcher/output/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ADD_MAX (4u * 1024 * 1024) /* bytes of lines from one frame of records */

struct trace_file {
    uv_timer_t patience;
    struct writer *writer;
    struct writer_sink *sink;
    struct trace_format *format;
    struct cdi_buf lines;
    uint64_t written, max_bytes; /* written: to the present file */
    bool has_old, broken;
    bool endless;       /* a pipe or a device: it has no size, and must not be renamed */
    struct stat opened; /* the present file */
    void (*lost)(void *arg, const char *path, int error);
    void *arg;
    void (*closed)(void *arg, bool flushed);
    void *closed_arg;
    bool flushed;
    char path[4096], old[4096 + 8];
};

static void on_room(void *arg)
{
    (void)arg; /* records that found no room are lost; the next ones are written */
}

static void break_off(struct trace_file *f, int error)
{
    if (!f->broken)
        f->lost(f->arg, f->path, error);
    f->broken = true;
}

static void on_lost(void *arg, const char *path, int error)
{
    (void)path;
    break_off(arg, error);
}

static const struct writer_events events = {.room = on_room, .lost = on_lost};

static void push(struct trace_file *f)
{
    f->written += f->lines.len;
    writer_push(f->writer, f->sink, 0, cdi_buf_data(&f->lines), f->lines.len);
    cdi_buf_consume(&f->lines, f->lines.len);
}

/* The open of a FIFO waits for its reader; without one it is an error here. *fd stays open until the open that follows.
 */
static int check_reader(const char *path, int *fd)
{
    struct stat about;

    *fd = -1;
    if (stat(path, &about) != 0 || !S_ISFIFO(about.st_mode))
        return 0;
    *fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    return *fd < 0 ? errno : 0;
}

static int begin_file(struct trace_file *f)
{
    CDI_AUTOCLOSE int reader = -1;
    int error = check_reader(f->path, &reader);

    if (error == 0)
        error = writer_file(f->writer, &f->sink, f->path, true);
    if (error != 0)
        return error;
    f->endless = stat(f->path, &f->opened) != 0 || !S_ISREG(f->opened.st_mode);
    f->written = 0;
    trace_format_head(f->format, &f->lines);
    push(f);
    return 0;
}

/* Returns 0 if the path still has the file that was opened, or errno. */
static int check_place(const struct trace_file *f)
{
    struct stat now;

    if (f->endless)
        return 0;
    if (stat(f->path, &now) != 0)
        return errno;
    return now.st_dev == f->opened.st_dev && now.st_ino == f->opened.st_ino ? 0 : ESTALE;
}

/* FILE becomes FILE.old. Slices that are open are begun again in the new file, by the next records. */
static void rotate(struct trace_file *f)
{
    int error = check_place(f); /* another one's file stays where it is */

    trace_format_tail(f->format, &f->lines);
    push(f);
    writer_file_done(f->sink);
    f->sink = NULL;
    if (error == 0 && rename(f->path, f->old) != 0)
        error = errno;
    if (error == 0) {
        f->has_old = true;
        error = begin_file(f);
    }
    if (error != 0)
        break_off(f, error);
}

static void free_file(struct trace_file *f)
{
    trace_format_destroy(f->format);
    cdi_buf_release(&f->lines);
    free(f);
}

static void on_patience_closed(uv_handle_t *h)
{
    struct trace_file *f = (struct trace_file *)h;

    if (f->closed != NULL)
        f->closed(f->closed_arg, f->flushed);
    free_file(f);
}

static void on_writer_closed(void *arg, bool flushed)
{
    struct trace_file *f = arg;

    f->flushed = flushed;
    uv_close((uv_handle_t *)&f->patience, on_patience_closed);
}

static void on_patience(uv_timer_t *t)
{
    writer_abandon(((struct trace_file *)t)->writer);
}

cddp_status trace_file_open(struct trace_file **out, uv_loop_t *loop, const struct trace_file_options *opt,
                            struct cdi_error *err)
{
    struct trace_file *f = calloc(1, sizeof *f);
    cddp_status st;
    int error;

    if (f == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a trace");
    (void)snprintf(f->path, sizeof f->path, "%s", opt->path);
    (void)snprintf(f->old, sizeof f->old, "%s.old", f->path);
    f->max_bytes = opt->max_bytes;
    f->lost = opt->lost;
    f->arg = opt->arg;
    cdi_buf_init(&f->lines, ADD_MAX);
    st = trace_format_create(&f->format, opt->job, err);
    if (st == CDDP_OK)
        st = writer_start(&f->writer, loop, 1, &events, f, err);
    if (st != CDDP_OK) {
        free_file(f);
        return st;
    }
    (void)uv_timer_init(loop, &f->patience);
    error = begin_file(f);
    if (error != 0) {
        writer_close(f->writer, on_writer_closed, f);
        return cdi_fail(err, CDDP_E_SYSTEM, "cannot write the trace '%.400s': %s", opt->path,
                        cdi_link_is_planted(opt->path) ? "it is a symbolic link of another user; give another path"
                                                       : strerror(error));
    }
    *out = f;
    return CDDP_OK;
}

void trace_file_add(struct trace_file *f, const struct cdi_records *r, const struct trace_clock *clock)
{
    if (f->broken || writer_full(f->writer, 0))
        return;
    trace_format_records(f->format, r, clock, &f->lines);
    if (f->written + f->lines.len > f->max_bytes / 2 && !f->endless)
        rotate(f);
    else
        push(f);
}

const struct trace_format *trace_file_format(const struct trace_file *f)
{
    return f->format;
}

bool trace_file_has_old(const struct trace_file *f)
{
    return f->has_old;
}

bool trace_file_is_broken(const struct trace_file *f)
{
    return f->broken;
}

bool trace_file_is_gone(const struct trace_file *f)
{
    return check_place(f) != 0;
}

const char *trace_file_path(const struct trace_file *f)
{
    return f->path;
}

void trace_file_close(struct trace_file *f, void (*closed)(void *arg, bool flushed), void *arg)
{
    f->closed = closed;
    f->closed_arg = arg;
    if (!f->broken) {
        trace_format_tail(f->format, &f->lines);
        push(f);
    }
    writer_file_done(f->sink);
    f->sink = NULL;
    (void)uv_timer_start(&f->patience, on_patience, TRACE_FILE_WAIT_MS, 0);
    writer_close(f->writer, on_writer_closed, f);
}
