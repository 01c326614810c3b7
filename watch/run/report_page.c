/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/run/report_page.h"

#include "common/nofollow.h"
#include "protocol/json_text.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NS_PER_US 1000
#define STEPS_ROUNDED 1e12 /* more steps than any run has: they need no rounding */

/* Made of report.html by embed_page.py. */
extern const unsigned char report_html_head[], report_html_tail[];
extern const unsigned long report_html_head_size, report_html_tail_size;

/* Appends to a JSON array or sets a member; NULL and a failure before it make *rc -1. */
static void put(json_t *object, const char *name, json_t *value, int *rc)
{
    if (json_object_set_new(object, name, value) != 0)
        *rc = -1;
}

static void append(json_t *array, json_t *value, int *rc)
{
    if (json_array_append_new(array, value) != 0)
        *rc = -1;
}

/* ----------------------------------------------------------------------------------------------------- parts ---- */

static json_int_t mean_us(int64_t sum_ns, uint64_t n)
{
    return n == 0 ? 0 : (json_int_t)((uint64_t)sum_ns / n / NS_PER_US);
}

static size_t used_spans(const struct run_record *rr, int64_t ended_ms)
{
    int64_t ms = ended_ms - rr->began_ms, n = ms < 0 ? 1 : ms / rr->span_ms + 1;

    return n > RUN_RECORD_SPANS ? RUN_RECORD_SPANS : (size_t)n;
}

static json_t *spans_of(const struct run_record *rr, int64_t ended_ms, int *rc)
{
    static const char *const names[] = {"period_us", "comm_us", "exposed_us", "late_us"};
    json_t *o = json_object(), *lists[6];

    for (int k = 0; k < 6; k++)
        lists[k] = json_array();
    for (size_t i = 0; i < used_spans(rr, ended_ms); i++) {
        const struct run_record_sums *s = &rr->spans[i].sums;
        int64_t sums[] = {s->period_ns, s->comm_ns, s->exposed_ns, s->late_ns};
        double steps = rr->spans[i].steps; /* a worker may have written any number into its page */

        append(lists[0], json_real(steps < STEPS_ROUNDED ? (double)(int64_t)(steps * 1000 + 0.5) / 1000 : steps), rc);
        append(lists[1], json_integer((json_int_t)s->n), rc);
        for (int k = 0; k < 4; k++)
            append(lists[2 + k], json_integer(mean_us(sums[k], s->n)), rc);
    }
    put(o, "ms", json_integer(rr->span_ms), rc);
    put(o, "steps", lists[0], rc);
    put(o, "n", lists[1], rc);
    for (int k = 0; k < 4; k++)
        put(o, names[k], lists[2 + k], rc);
    return o;
}

static json_t *ranks_of(const struct run_record *rr, int *rc)
{
    json_t *all = json_array();

    for (uint32_t i = 0; i < rr->n_ranks; i++) {
        const struct run_record_rank *r = &rr->ranks[i];

        append(all,
               json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "n", (json_int_t)r->sums.n, "period_us",
                         mean_us(r->sums.period_ns, r->sums.n), "comm_us", mean_us(r->sums.comm_ns, r->sums.n),
                         "exposed_us", mean_us(r->sums.exposed_ns, r->sums.n), "late_us",
                         mean_us(r->sums.late_ns, r->sums.n), "n_late", (json_int_t)r->n_late, "caused_us",
                         (json_int_t)(r->caused_ns / NS_PER_US)),
               rc);
    }
    return all;
}

static json_t *rounds_of(const struct run_record *rr, int *rc)
{
    json_t *all = json_array();

    for (size_t i = 0; i < rr->n_rounds; i++) {
        const struct run_record_round *r = &rr->rounds[i];

        append(all,
               json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o}", "round", (json_int_t)r->round, "restart_count",
                         (json_int_t)r->restart_count, "n_nodes", (json_int_t)r->n_nodes, "world_size",
                         (json_int_t)r->world_size, "began_ms", (json_int_t)r->began_ms, "ended_ms",
                         (json_int_t)r->ended_ms, "failed", (int)r->failed, "text", json_text(r->text)),
               rc);
    }
    return all;
}

static json_t *events_of(const struct run_record *rr, int *rc)
{
    json_t *all = json_array();

    for (size_t i = 0; i < rr->n_events; i++) {
        const struct run_record_event *e = &rr->events[i];

        append(all,
               json_pack("{s:I, s:o, s:o}", "time_ms", (json_int_t)e->time_ms, "kind", json_text(e->kind), "text",
                         json_text(e->text)),
               rc);
    }
    return all;
}

static json_t *failures_of(const struct run_record *rr, int *rc)
{
    json_t *all = json_array();

    for (size_t i = 0; i < rr->n_failures; i++) {
        const struct cdi_failure *f = &rr->failures[i];
        size_t line = strcspn(f->text, "\n");
        char headline[sizeof f->text];

        (void)snprintf(headline, sizeof headline, "%.*s", (int)line, f->text);
        append(all,
               json_pack("{s:I, s:i, s:o, s:o, s:o}", "time_ms", (json_int_t)f->time_ms, "rank", (int)f->rank, "host",
                         json_text(f->host), "headline", json_text(headline), "details",
                         json_text(f->text[line] == '\n' ? f->text + line + 1 : "")),
               rc);
    }
    return all;
}

static json_t *machine_of(const struct report_page_about *a, int *rc)
{
    json_t *o = json_object(), *gpus = json_array();

    for (uint32_t i = 0; i < a->machine->n_gpus && i < CDI_GPUS_MAX; i++)
        append(gpus, json_text(a->machine->gpus[i].model[0] != '\0' ? a->machine->gpus[i].model : "unknown model"), rc);
    put(o, "cores", json_integer(a->machine->n_cores), rc);
    put(o, "memory_bytes", json_integer((json_int_t)a->memory_bytes), rc);
    put(o, "processor", json_text(a->processor), rc);
    put(o, "system", json_text(a->system), rc);
    put(o, "libc", json_text(a->libc), rc);
    put(o, "gpus", gpus, rc);
    return o;
}

static json_t *command_of(const struct report_page_about *a, int *rc)
{
    json_t *words = json_array();

    for (char *const *word = a->command; *word != NULL; word++)
        append(words, json_text(*word), rc);
    return words;
}

static json_t *scope_of(const struct run_record *rr, const struct report_page_about *a)
{
    uint32_t world = rr->n_rounds > 0 ? rr->rounds[rr->n_rounds - 1].world_size : 0;
    char text[200] = "";

    if (world > a->n_local)
        (void)snprintf(text, sizeof text,
                       "Times of steps are those that node rank 0 has received, of its %u rank%s and "
                       "of others that have sent theirs.",
                       a->n_local, a->n_local == 1 ? "" : "s");
    return json_string(text);
}

static json_t *report_page_json(const struct run_record *rr, const struct report_page_about *a)
{
    json_t *o = json_object();
    int rc = 0;

    put(o, "format", json_integer(1), &rc);
    put(o, "version", json_text(a->version), &rc);
    put(o, "run_id", json_text(a->run_id), &rc);
    put(o, "host", json_text(a->machine->host), &rc);
    put(o, "directory", json_text(a->directory), &rc);
    put(o, "command", command_of(a, &rc), &rc);
    put(o, "why", json_text(a->why), &rc);
    put(o, "scope", scope_of(rr, a), &rc);
    put(o, "began_ms", json_integer(rr->began_ms), &rc);
    put(o, "ended_ms", json_integer(a->ended_ms), &rc);
    put(o, "status", json_integer(a->exit_status), &rc);
    put(o, "restarts", json_integer(a->restarts), &rc);
    put(o, "n_steps", json_integer((json_int_t)rr->n_steps), &rc);
    put(o, "leader", json_integer(rr->leader < 0 ? 0 : rr->leader), &rc);
    put(o, "machine", machine_of(a, &rc), &rc);
    put(o, "spans", spans_of(rr, a->ended_ms, &rc), &rc);
    put(o, "ranks_each", json_integer(rr->ranks_each), &rc);
    put(o, "ranks", ranks_of(rr, &rc), &rc);
    put(o, "rounds", rounds_of(rr, &rc), &rc);
    put(o, "rounds_lost", json_integer((json_int_t)rr->n_rounds_lost), &rc);
    put(o, "events", events_of(rr, &rc), &rc);
    put(o, "events_lost", json_integer((json_int_t)rr->n_events_lost), &rc);
    put(o, "failures", failures_of(rr, &rc), &rc);
    put(o, "failures_lost", json_integer((json_int_t)rr->n_failures_lost), &rc);
    if (rc == 0)
        return o;
    json_decref(o);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------ page ---- */

/*
 * Inside <script> an HTML parser looks for "</script" and "<!--", whatever the type: no JSON text needs a plain <, > or
 * &.
 */
static cddp_status append_json(struct cdi_buf *out, const char *text)
{
    cddp_status st = CDDP_OK;

    while (st == CDDP_OK && *text != '\0') {
        size_t n = strcspn(text, "<>&");

        st = cdi_buf_append(out, text, n);
        text += n;
        if (st == CDDP_OK && *text != '\0')
            st = cdi_buf_printf(out, "\\u%04x", (unsigned)*text++);
    }
    return st;
}

cddp_status report_page_make(const struct run_record *rr, const struct report_page_about *about, struct cdi_buf *out)
{
    json_t *json = report_page_json(rr, about);
    char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    cddp_status st = text == NULL ? CDDP_E_NOMEM : CDDP_OK;

    json_decref(json);
    if (st == CDDP_OK)
        st = cdi_buf_append(out, report_html_head, report_html_head_size);
    if (st == CDDP_OK)
        st = append_json(out, text);
    if (st == CDDP_OK)
        st = cdi_buf_append(out, report_html_tail, report_html_tail_size);
    free(text);
    return st;
}

/* ------------------------------------------------------------------------------------------------------ file ---- */

static const char *directory_of(const char *path, char dir[PATH_MAX])
{
    const char *slash = strrchr(path, '/');

    if (slash == NULL)
        (void)snprintf(dir, PATH_MAX, ".");
    else
        (void)snprintf(dir, PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return slash == NULL ? path : slash + 1;
}

/* A file that does not exist yet: its directory's real path, and its name. */
static char *new_file(const char *path)
{
    char dir[PATH_MAX], *real, *target = NULL;
    const char *name = directory_of(path, dir);

    real = realpath(dir, NULL);
    if (real != NULL && asprintf(&target, "%s/%s", strcmp(real, "/") == 0 ? "" : real, name) < 0)
        target = NULL;
    free(real);
    return target;
}

cddp_status report_page_check(const char *path, char **target, struct cdi_error *err)
{
    char dir[PATH_MAX], *to;
    struct stat st;
    bool exists = stat(path, &st) == 0;

    if (!exists && (errno != ENOENT || lstat(path, &st) == 0))
        return cdi_fail(err, CDDP_E_INVALID, "--report '%.300s': %s", path, strerror(errno != 0 ? errno : ENOENT));
    if (cdi_link_is_planted(path))
        return cdi_fail(err, CDDP_E_INVALID, "--report '%.300s' is a symbolic link of another user; give another path",
                        path);
    if (exists && !S_ISREG(st.st_mode))
        return cdi_fail(err, CDDP_E_INVALID, "--report '%.300s' is not a file; give the path of an HTML file", path);
    if (strlen(path) >= PATH_MAX || *directory_of(path, dir) == '\0')
        return cdi_fail(err, CDDP_E_INVALID, "--report '%.300s' does not name a file", path);
    to = exists ? realpath(path, NULL) : new_file(path);
    if (to == NULL || strlen(to) >= PATH_MAX - 16)
        (void)cdi_fail(err, CDDP_E_INVALID, "--report '%.300s': %s", path, to == NULL ? strerror(errno) : "too long");
    else if (directory_of(to, dir), access(dir, W_OK | X_OK) != 0)
        (void)cdi_fail(err, CDDP_E_INVALID, "--report '%.300s': cannot write into its directory: %s", path,
                       strerror(errno));
    else {
        *target = to;
        return CDDP_OK;
    }
    free(to);
    return CDDP_E_INVALID;
}

static int write_whole(int fd, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, bytes, n);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : EIO;
        bytes += done;
        n -= (size_t)done;
    }
    return 0;
}

cddp_status report_page_write(const char *target, const struct cdi_buf *page, struct cdi_error *err)
{
    char path[PATH_MAX];
    mode_t mask = umask(0);
    int fd, error;

    (void)umask(mask);
    (void)snprintf(path, sizeof path, "%.*s.XXXXXX", PATH_MAX - 16, target);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return cdi_fail_errno(err, errno, "cannot write the report '%.400s'", target);
    error = fchmod(fd, 0666 & ~mask) != 0 ? errno : write_whole(fd, cdi_buf_data(page), page->len);
    if (close(fd) != 0 && error == 0)
        error = errno;
    if (error == 0 && rename(path, target) != 0)
        error = errno;
    if (error == 0)
        return CDDP_OK;
    (void)unlink(path);
    return cdi_fail_errno(err, error, "cannot write the report '%.400s'", target);
}
