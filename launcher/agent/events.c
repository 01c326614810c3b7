/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/events.h"

#include "common/clock.h"
#include "launcher/agent/supervise.h"
#include "launcher/process/signame.h"
#include "protocol/json_text.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct event_log {
    struct writer *console;
    struct writer_sink *to;
    uint32_t source;
    void (*fn)(void *arg, const char *event, int32_t rank, const char *text);
    void *arg;
};

cddp_status event_log_check(int fd, struct cdi_error *err)
{
    int mode = fcntl(fd, F_GETFL);

    if (mode >= 0 && (mode & O_ACCMODE) != O_RDONLY)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID, "--status_fd %d is %s", fd,
                    mode < 0 ? "not an open descriptor" : "not open for writing");
}

cddp_status event_log_start(struct event_log **out, struct writer *console, uint32_t source, int fd,
                            struct cdi_error *err)
{
    struct event_log *s = calloc(1, sizeof *s);

    if (s != NULL && fd >= 0)
        s->to = writer_descriptor(console, fd);
    if (s == NULL || (s->to == NULL && fd >= 0)) {
        free(s);
        return cdi_fail(err, CDDP_E_NOMEM, "--status_fd: out of memory");
    }
    s->console = console;
    s->source = source;
    *out = s;
    return CDDP_OK;
}

void event_log_free(struct event_log *s)
{
    if (s == NULL)
        return;
    writer_file_done(s->to);
    free(s);
}

void event_log_listen(struct event_log *s, void (*fn)(void *arg, const char *event, int32_t rank, const char *text),
                      void *arg)
{
    if (s == NULL)
        return;
    s->fn = fn;
    s->arg = arg;
}

static long long number_of(json_t *o, const char *name)
{
    return (long long)json_integer_value(json_object_get(o, name));
}

/* What a person wants to know of an event. */
static void pass_on(const struct event_log *s, const char *event, json_t *o)
{
    const char *text = json_lines(json_object_get(o, "text"));
    const char *name = json_line(json_object_get(o, json_object_get(o, "name") != NULL ? "name" : "signal"));
    json_t *rank = json_object_get(o, "rank");
    char line[96] = "";

    if (strcmp(event, "round") == 0)
        (void)snprintf(line, sizeof line, "nodes: %lld, ranks: %lld, restarts: %lld", number_of(o, "n_nodes"),
                       number_of(o, "world_size"), number_of(o, "restart_count"));
    else if (strcmp(event, "started") == 0)
        (void)snprintf(line, sizeof line, "pid %lld", number_of(o, "pid"));
    else if (text == NULL && name == NULL)
        (void)snprintf(line, sizeof line, "exit status %lld", number_of(o, "status"));
    s->fn(s->arg, event, rank == NULL ? -1 : (int32_t)json_integer_value(rank),
          line[0] != '\0' ? line
          : text != NULL  ? text
                          : name);
}

/* Writes one line; takes the reference. */
static void event_log_put(struct event_log *s, const char *event, json_t *o)
{
    char *text;
    size_t n;

    if (s->fn != NULL)
        pass_on(s, event, o);
    if (s->to == NULL) {
        json_decref(o);
        return;
    }
    (void)json_object_set_new(o, "event", json_string(event));
    (void)json_object_set_new(o, "time_ms", json_integer(cdi_wall_ms()));
    text = json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(o);
    if (text == NULL)
        return;
    n = strlen(text);
    text[n] = '\n'; /* replaces its NUL: a line is pushed whole */
    writer_push(s->console, s->to, s->source, text, n + 1);
    free(text);
}

void event_log_round(struct event_log *s, const struct cdi_msg_assign *a, uint32_t n_procs)
{
    if (s == NULL)
        return;
    event_log_put(s, "round",
                  json_pack("{s:I, s:I, s:i, s:I, s:I, s:I, s:I, s:s, s:I}", "round", (json_int_t)a->round,
                            "restart_count", (json_int_t)a->restart_count, "node_rank", a->node_rank, "n_nodes",
                            (json_int_t)a->n_nodes, "rank_base", (json_int_t)a->rank_base, "n_procs",
                            (json_int_t)n_procs, "world_size", (json_int_t)a->world_size, "master_addr", a->master_addr,
                            "master_port", (json_int_t)a->master_port));
}

void event_log_started(struct event_log *s, int32_t rank, uint32_t local_rank, int pid)
{
    if (s == NULL)
        return;
    event_log_put(s, "started",
                  json_pack("{s:i, s:I, s:i}", "rank", rank, "local_rank", (json_int_t)local_rank, "pid", pid));
}

/* The members that describe a worker's end. */
static json_t *event_end_of(const struct cdi_failure *f)
{
    char name[32];
    json_t *o =
        json_pack("{s:i, s:i, s:I, s:i}", "rank", f->rank, "local_rank", f->local_rank, "pid", (json_int_t)f->pid,
                  "status", f->kind == CDI_END_EXIT ? f->code : supervise_failure_status(f));

    if (f->kind == CDI_END_SIGNAL) {
        (void)json_object_set_new(o, "signal", json_string(signame(f->code, name, sizeof name)));
        (void)json_object_set_new(o, "core_dumped", json_boolean(f->core_dumped != 0));
    }
    return o;
}

void event_log_ended(struct event_log *s, const struct cdi_failure *end)
{
    if (s != NULL)
        event_log_put(s, "ended", event_end_of(end));
}

void event_log_failure(struct event_log *s, const struct cdi_failure *first)
{
    json_t *o;

    if (s == NULL)
        return;
    o = event_end_of(first);
    (void)json_object_set_new(o, "node_rank", json_integer(first->node_rank));
    (void)json_object_set_new(o, "host", json_text(first->host));
    (void)json_object_set_new(o, "text", json_text(first->text));
    event_log_put(s, "failure", o);
}

void event_log_restart(struct event_log *s, uint32_t restart_count, const char *text)
{
    if (s != NULL)
        event_log_put(s, "restart",
                      json_pack("{s:I, s:o}", "restart_count", (json_int_t)restart_count, "text", json_text(text)));
}

void event_log_signal(struct event_log *s, int signal)
{
    char name[32];

    if (s != NULL)
        event_log_put(s, "signal",
                      json_pack("{s:i, s:s}", "signal", signal, "name", signame(signal, name, sizeof name)));
}

void event_log_end(struct event_log *s, int exit_status)
{
    if (s != NULL)
        event_log_put(s, "end", json_pack("{s:i}", "status", exit_status));
}
