/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/report.h"

#include "common/visible.h"
#include "launcher/output/ranklog.h"
#include "launcher/process/signame.h"
#include "protocol/flight.h"
#include "protocol/json_text.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_FRAME "| "
#define MESSAGE_HEAD "its message:\n"
#define MESSAGE_SHOWN 500 /* bytes of it; a report must fit on a screen and into a message to the other nodes */
#define STDERR_HEAD "the last of its stderr:\n"
#define CAUSE_STDERR "the last of its stderr: " /* which may not be the cause */
#define COLUMNS 80                              /* of a standard terminal; */
#define ROWS 23                                 /* a report leaves room for the prompt after it */
#define MESSAGE_ROWS 5                          /* of the message */
#define INDENT 4                                /* of the lines after the headline */
#define ERROR_FILE_MAX (1024 * 1024)            /* bytes read of an error file */
#define REPEAT_MIN 20                           /* a shorter line does not count as a repetition; */
#define REPEAT_MORE 60 /* a repetition may have this many more bytes, such as a program's name and the rank */

void report_headline(const struct cdi_failure *f, char *buf, size_t cap)
{
    char who[400], name[32];

    (void)snprintf(who, sizeof who, "rank %d (pid %lld on %.200s)", f->rank, (long long)f->pid, f->host);
    switch (f->kind) {
    case CDI_END_NONE:
        (void)snprintf(buf, cap, "%s ended", who);
        return;
    case CDI_END_EXIT:
        if (f->code == 0 && f->text[0] != '\0') /* a failure only if the others still needed it */
            (void)snprintf(buf, cap, "%.*s", (int)strcspn(f->text, "\n"), f->text);
        else if (f->code == 0)
            (void)snprintf(buf, cap, "%s " CDI_FLIGHT_DESERTED, who);
        else
            (void)snprintf(buf, cap, "%s exited with status %d", who, f->code);
        return;
    case CDI_END_SIGNAL:
        (void)snprintf(buf, cap, "%s was killed by signal %d (%s)%s", who, f->code, signame(f->code, name, sizeof name),
                       f->core_dumped != 0 ? ", core dumped" : "");
        return;
    case CDI_END_SPAWN:
        if (f->text[0] != '\0')
            (void)snprintf(buf, cap, "%.*s", (int)strcspn(f->text, "\n"), f->text);
        else
            (void)snprintf(buf, cap, "rank %d on %.200s could not be started: %s", f->rank, f->host, strerror(f->code));
        return;
    case CDI_END_HANG:
        (void)snprintf(buf, cap, "%.*s", (int)strcspn(f->text, "\n"), f->text);
        if (f->text[0] == '\0')
            (void)snprintf(buf, cap, "the workers stood still");
        return;
    case CDI_END_NODE:
        if (f->text[0] != '\0')
            (void)snprintf(buf, cap, "%.*s", (int)strcspn(f->text, "\n"), f->text);
        else
            (void)snprintf(buf, cap, "node %d (%.200s) was lost", f->node_rank, f->host);
        return;
    }
}

/* Returns the message of a JSON error file, in either of torch's formats. */
static const char *find_message(json_t *root)
{
    json_t *m = json_object_get(root, "message");

    if (json_is_object(m))
        m = json_object_get(m, "message");
    return json_lines(m);
}

/* NULL: there is none, or it is not JSON. */
static json_t *read_error_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    json_t *root = NULL;
    struct stat sb;

    /* The worker wrote it: it may have any contents. */
    if (fd < 0)
        return NULL;
    if (fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) && sb.st_size <= ERROR_FILE_MAX)
        root = json_loadfd(fd, JSON_DISABLE_EOF_CHECK, NULL);
    (void)close(fd);
    return root;
}

bool report_error_file(const char *path, char *buf, size_t cap)
{
    json_t *root = read_error_file(path);
    const char *text = find_message(root);
    bool found = text != NULL && *text != '\0';

    if (found)
        (void)snprintf(buf, cap, "%s", text);
    json_decref(root);
    return found;
}

int report_error_status(const char *path, int otherwise)
{
    json_t *root = read_error_file(path);
    json_t *info = json_object_get(json_object_get(root, "message"), "extraInfo");
    json_int_t status = json_integer_value(json_object_get(info, "exitStatus"));

    json_decref(root);
    return status > 0 && status <= 0xff ? (int)status : otherwise;
}

/* ------------------------------------------------------------------------------------------------- the report ---- */

/* Copies a line of a worker's text, cut if too long (cap: NUL included). Returns its full length. */
static size_t put_visible(char *to, size_t cap, const char *text, size_t n)
{
    return cdi_visible_line(to, cap, text, n > 0 && text[n - 1] == '\r' ? n - 1 : n);
}

/* Returns the bytes of the lines from first on, each after its frame. */
static size_t lines_size(const char *const *lines, unsigned first, unsigned n)
{
    size_t size = first < n ? strlen(STDERR_HEAD) : 0;

    for (unsigned i = first; i < n; i++)
        size += put_visible(NULL, 0, lines[i], strlen(lines[i])) + strlen(LINE_FRAME) + 1;
    return size;
}

static size_t line_len(const char *text)
{
    return strcspn(text, "\n");
}

/* Returns the rows of n bytes after the indent on that terminal. */
static int rows_of(size_t n)
{
    return 1 + (int)((n + INDENT - 1) / COLUMNS);
}

/* Cuts the message to the part that is shown: whole lines, or a part of the first. */
static void cut_message(char *message)
{
    size_t n = strnlen(message, MESSAGE_SHOWN);
    int rows = 0;

    while (n > 0 && (message[n] & 0xc0) == 0x80)
        n--; /* not through the middle of a character */
    message[n] = '\0';
    for (size_t at = 0, len; message[at] != '\0'; at += len + (message[at + len] == '\n')) {
        len = line_len(message + at);
        rows += rows_of(strlen(LINE_FRAME) + len);
        if (at > 0 && rows > MESSAGE_ROWS) {
            message[at] = '\0';
            return;
        }
    }
}

static size_t add_text(char *to, size_t cap, size_t at, const char *text)
{
    while (*text != '\0' && at + 1 < cap) {
        size_t n = strcspn(text, "\n");

        at += (size_t)snprintf(to + at, cap - at, LINE_FRAME);
        if (at < cap)
            at += put_visible(to + at, cap - at, text, n);
        if (at < cap)
            at += (size_t)snprintf(to + at, cap - at, "\n");
        text += text[n] == '\n' ? n + 1 : n;
    }
    return at < cap ? at : cap - 1;
}

/* Does this line of stderr repeat the message, maybe after the program's name? */
static bool repeats(const char *message, const char *line)
{
    const char *core = strstr(message, ": ");
    char first[REPORT_MESSAGE_MAX];

    if (strlen(line) >= REPEAT_MIN && strstr(message, line) != NULL)
        return true;
    core = strncmp(message, "CDDP_E_", 7) == 0 && core != NULL ? core + 2 : message;
    (void)snprintf(first, sizeof first, "%.*s", (int)line_len(core), core);
    return strlen(first) >= REPEAT_MIN && strstr(line, first) != NULL && strlen(line) <= strlen(first) + REPEAT_MORE;
}

/* Removes lines that only repeat the message. Returns the number of remaining lines, in kept. */
static unsigned drop_repeated(const char *message, const char *const *lines, unsigned n,
                              const char *kept[RANKLOG_TAIL_LINES])
{
    unsigned n_kept = 0;

    for (unsigned i = n > RANKLOG_TAIL_LINES ? n - RANKLOG_TAIL_LINES : 0; i < n; i++)
        if (message == NULL || !repeats(message, lines[i]))
            kept[n_kept++] = lines[i];
    return n_kept;
}

void report_note(struct cdi_failure *f, const char *note)
{
    size_t at = strlen(f->text);

    (void)snprintf(f->text + at, sizeof f->text - at, "\n%s", note);
}

void report_details(struct cdi_failure *f, const char *error_file, const char *const *lines, unsigned n)
{
    char message[REPORT_MESSAGE_MAX];
    const char *kept[RANKLOG_TAIL_LINES];
    bool has_message = error_file != NULL && report_error_file(error_file, message, sizeof message);
    size_t cap = sizeof f->text, at = strlen(f->text);
    unsigned first = 0;

    if (at + 1 < cap)
        at += (size_t)snprintf(f->text + at, cap - at, "\n");
    if (has_message)
        cut_message(message); /* before the comparison: a line may repeat the part that is cut */
    n = drop_repeated(has_message ? message : NULL, lines, n, kept);
    lines = kept;
    if (has_message) {
        at += (size_t)snprintf(f->text + at, cap - at, MESSAGE_HEAD);
        at = add_text(f->text, cap, at, message);
    }
    while (first < n && at + lines_size(lines, first, n) >= cap)
        first++;
    if (first < n)
        at += (size_t)snprintf(f->text + at, cap - at, STDERR_HEAD);
    for (unsigned i = first; i < n; i++)
        at = add_text(f->text, cap, at, lines[i][0] == '\0' ? " " : lines[i]);
}

static const char *wall_time(int64_t ms, char *buf, size_t cap)
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;

    if (localtime_r(&seconds, &tm) == NULL || strftime(buf, cap, "%F %T %z", &tm) == 0)
        buf[0] = '\0';
    return buf;
}

static cddp_status write_head(const struct report *r, struct cdi_buf *out)
{
    char text[1024], when[40];
    cddp_status st;

    report_headline(&r->first, text, sizeof text);
    st = cdi_buf_printf(out, "cddprun: %s", text);
    if (st == CDDP_OK && r->after_ms >= 0 && r->first.kind != CDI_END_SPAWN && r->first.kind != CDI_END_HANG)
        st = cdi_buf_printf(out, "%s after %lld.%01lld s",
                            r->first.kind == CDI_END_EXIT && r->first.code == 0 ? "," : "",
                            (long long)(r->after_ms / 1000), (long long)(r->after_ms % 1000 / 100));
    if (st == CDDP_OK && r->restart_count > 0)
        st = cdi_buf_printf(out, ", after %u restart%s", r->restart_count, r->restart_count == 1 ? "" : "s");
    if (st == CDDP_OK && r->first.final != 0 && r->restart_count < r->max_restarts)
        st = cdi_buf_printf(out, ", not restarted (--no_restart_codes)");
    if (st == CDDP_OK && r->first.local_rank >= 0)
        st = cdi_buf_printf(out, "\n    local rank %d%s of %.300s, at %s\n", r->first.local_rank,
                            r->elsewhere ? " of another node" : "", r->program,
                            wall_time(r->first.time_ms, when, sizeof when));
    else if (st == CDDP_OK)
        st = cdi_buf_printf(out, "\n");
    return st;
}

/* Returns the text from its next line on; NULL: there is none. */
static const char *next_line(const char *text)
{
    text += strcspn(text, "\n");
    return *text == '\n' && text[1] != '\0' ? text + 1 : NULL;
}

/* Returns the newest of these lines that fit into the rows; NULL: none. */
static const char *newest_lines(const char *text, int rows)
{
    int needed = 0;

    for (const char *p = text; p != NULL; p = next_line(p))
        needed += rows_of(line_len(p));
    for (; text != NULL && needed > rows; text = next_line(text))
        needed -= rows_of(line_len(text));
    return text;
}

/* Writes `what` and a line, without its frame, cut at a character if too long. */
static void copy_line(char *buf, size_t cap, const char *what, const char *line)
{
    size_t used = strlen(what), n;

    if (strncmp(line, LINE_FRAME, strlen(LINE_FRAME)) == 0)
        line += strlen(LINE_FRAME);
    n = line_len(line);
    if (used + n >= cap)
        for (n = cap - 1 - used; n > 0 && ((unsigned char)line[n] & 0xc0) == 0x80;)
            n--;
    (void)snprintf(buf, cap, "%s%.*s", what, (int)n, line);
}

void report_cause(const struct cdi_failure *f, char *buf, size_t cap)
{
    bool is_message = false, is_stderr = false;

    buf[0] = '\0';
    if (f->kind != CDI_END_EXIT && f->kind != CDI_END_SIGNAL)
        return;
    for (const char *p = next_line(f->text); p != NULL; p = next_line(p)) {
        if (is_message || is_stderr)
            copy_line(buf, cap, is_message ? "" : CAUSE_STDERR, p);
        if (is_message)
            return;
        is_message = strncmp(p, MESSAGE_HEAD, strlen(MESSAGE_HEAD)) == 0;
        is_stderr |= strncmp(p, STDERR_HEAD, strlen(STDERR_HEAD)) == 0 && f->kind == CDI_END_EXIT && f->code != 0;
    }
}

static cddp_status write_line(struct cdi_buf *out, const char *text)
{
    return cdi_buf_printf(out, "%*s%.*s\n", INDENT, "", (int)line_len(text), text);
}

/* Writes the lines after the headline. */
static cddp_status write_details(const struct report *r, int rows, struct cdi_buf *out)
{
    const char *text = next_line(r->first.text), *tail;
    cddp_status st = CDDP_OK;

    for (; st == CDDP_OK && text != NULL && strncmp(text, STDERR_HEAD, strlen(STDERR_HEAD)) != 0;
         text = next_line(text)) {
        st = write_line(out, text);
        rows -= rows_of(line_len(text));
    }
    tail = text == NULL ? NULL : newest_lines(next_line(text), rows - 1);
    if (st == CDDP_OK && tail != NULL)
        st = write_line(out, text);
    for (; st == CDDP_OK && tail != NULL; tail = next_line(tail))
        st = write_line(out, tail);
    return st;
}

static cddp_status write_other_failures(const struct report *r, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;
    char name[32];

    for (unsigned i = 0; st == CDDP_OK && i < r->n_other_failures && i < REPORT_OTHERS_MAX; i++) {
        const struct report_other *o = &r->others[i];

        st = o->signal != 0 ? cdi_buf_printf(out, "    rank %d: killed by signal %d (%s)", o->rank, o->signal,
                                             signame(o->signal, name, sizeof name))
                            : cdi_buf_printf(out, "    rank %d: exited with status %d", o->rank, o->code);
        if (st == CDDP_OK && o->later_ms >= 0)
            st = cdi_buf_printf(out, ", %lld.%03lld s later", (long long)(o->later_ms / 1000),
                                (long long)(o->later_ms % 1000));
        if (st == CDDP_OK)
            st = cdi_buf_printf(out, "\n");
    }
    if (st == CDDP_OK && r->n_other_failures > REPORT_OTHERS_MAX)
        st = cdi_buf_printf(out, "    and %u more failures\n", r->n_other_failures - REPORT_OTHERS_MAX);
    return st;
}

static cddp_status write_others(const struct report *r, struct cdi_buf *out)
{
    if (r->n_others == 0)
        return CDDP_OK;
    if (r->n_others == 1)
        return cdi_buf_printf(out, "    the %sworker of this node %s\n", r->elsewhere ? "" : "other ",
                              r->n_succeeded == 1 ? "had succeeded" : "was stopped, or failed after it");
    if (r->n_succeeded == 0 && r->n_ended_after == r->n_others)
        return cdi_buf_printf(out, "    the %s%u workers of this node were stopped or failed after it\n",
                              r->elsewhere ? "" : "other ", r->n_others);
    return cdi_buf_printf(out, "    this node's %s%u workers: %u %s stopped or failed after it, %u succeeded\n",
                          r->elsewhere ? "" : "other ", r->n_others, r->n_ended_after,
                          r->n_ended_after == 1 ? "was" : "were", r->n_succeeded);
}

static size_t progress_len(const struct report *r)
{
    return r->progress == NULL || *r->progress == '\0' ? 0 : strlen(REPORT_PROGRESS) + strlen(r->progress);
}

/* The maximum rows of the headline, other failures, other workers and the progress. */
static int other_rows(const struct report *r, size_t head)
{
    unsigned n = r->n_other_failures, shown = n < REPORT_OTHERS_MAX ? n : REPORT_OTHERS_MAX;

    return 2 + (int)(head / COLUMNS) + (int)shown + (n > shown) + 2 * (r->n_others > 0) +
           (progress_len(r) > 0 ? rows_of(progress_len(r)) : 0);
}

cddp_status report_write(const struct report *r, struct cdi_buf *out)
{
    size_t before = out->len;
    cddp_status st = write_head(r, out);

    if (st == CDDP_OK)
        st = write_details(r, ROWS - other_rows(r, out->len - before), out);
    if (st == CDDP_OK)
        st = write_other_failures(r, out);
    if (st == CDDP_OK)
        st = write_others(r, out);
    if (st == CDDP_OK && progress_len(r) > 0)
        st = cdi_buf_printf(out, "    " REPORT_PROGRESS "%s\n", r->progress);
    return st;
}

/* -------------------------------------------------------------------------------------------------- cddprun's error
 * file ----
 */

/* Makes {"message": {"message": TEXT, ...}} from a worker's file, or from the headline. NULL: out of memory. */
static json_t *make_error(const struct report *r)
{
    char message[REPORT_MESSAGE_MAX], headline[1024];

    report_headline(&r->first, headline, sizeof headline);
    if (r->error_file == NULL || !report_error_file(r->error_file, message, sizeof message))
        (void)snprintf(message, sizeof message, "%s", headline);
    return json_pack("{s:{s:o, s:{s:o, s:I}}}", "message", "message", json_text(message), "extraInfo", "py_callstack",
                     json_text(headline), "timestamp", (json_int_t)(r->first.time_ms / 1000));
}

int report_copy_error_file(const struct report *r, int status, const char *to)
{
    json_t *root = NULL, *inner;
    int error = ENOMEM;

    if (r->error_file != NULL)
        root = json_load_file(r->error_file, 0, NULL);
    inner = json_object_get(root, "message");
    if (!json_is_object(inner)) {
        json_decref(root);
        root = make_error(r);
        inner = json_object_get(root, "message");
    }
    (void)json_object_set_new(inner, "errorCode", json_integer(status));
    errno = 0;
    if (root != NULL && inner != NULL)
        error = json_dump_file(root, to, JSON_COMPACT) == 0 ? 0 : errno != 0 ? errno : EIO;
    json_decref(root);
    return error;
}
