/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/trace/trace_tracks.h"

#include "common/utf8.h"

#include <cddp/version.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX (1u << 20) /* of all nodes and rounds; records of further ones are lost */

/* ----------------------------------------------------------------------------------------------------- lines ---- */

void trace_put_text(struct cdi_buf *b, const char *text)
{
    char clean[512];
    size_t n = strnlen(text, sizeof clean);

    cdi_utf8_clean(clean, text, n);
    (void)cdi_buf_append(b, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)clean[i];

        if (c == '"' || c == '\\')
            (void)cdi_buf_printf(b, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            (void)cdi_buf_printf(b, "\\u%04x", c);
        else
            (void)cdi_buf_append(b, &c, 1);
    }
    (void)cdi_buf_append(b, "\"", 1);
}

void trace_put_us(struct cdi_buf *b, const char *name, int64_t ns)
{
    if (ns < 0)
        ns = 0;
    (void)cdi_buf_printf(b, ",\"%s\":%" PRId64 ".%03" PRId64, name, ns / 1000, ns % 1000);
}

struct cdi_buf *trace_line(struct trace_format *t, const char *phase, uint32_t pid, uint32_t tid)
{
    cdi_buf_consume(&t->line, t->line.len);
    (void)cdi_buf_printf(&t->line, "{\"ph\":\"%s\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32, phase, pid, tid);
    return &t->line;
}

void trace_line_end(struct trace_format *t, const char *end)
{
    (void)cdi_buf_append(&t->line, end, strlen(end));
    if (cdi_buf_append(&t->line, ",\n", 2) != CDDP_OK ||
        cdi_buf_append(t->to, cdi_buf_data(&t->line), t->line.len) != CDDP_OK)
        t->n_lost++;
}

/* A "M" event: the name of a process or thread, and so on. */
static void put_name(struct trace_format *t, const char *what, uint32_t pid, uint32_t tid, const char *key,
                     const char *value)
{
    struct cdi_buf *b = trace_line(t, "M", pid, tid);

    (void)cdi_buf_printf(b, ",\"name\":\"%s\",\"args\":{\"%s\":", what, key);
    trace_put_text(b, value);
    trace_line_end(t, "}}");
}

static void put_order(struct trace_format *t, const char *what, uint32_t pid, uint32_t tid, int64_t order)
{
    struct cdi_buf *b = trace_line(t, "M", pid, tid);

    (void)cdi_buf_printf(b, ",\"name\":\"%s\",\"args\":{\"sort_index\":%" PRId64, what, order);
    trace_line_end(t, "}}");
}

/* ----------------------------------------------------------------------------------------- nodes, ranks, names ---- */

static void name_rank(struct trace_format *t, const struct trace_node *n, const struct trace_rank *r)
{
    char name[64];

    (void)snprintf(name, sizeof name, "rank %" PRId32, r->rank);
    put_name(t, "thread_name", n->pid, r->tid, "name", name);
    put_order(t, "thread_sort_index", n->pid, r->tid, 2 * (int64_t)r->rank);
    (void)snprintf(name, sizeof name, "rank %" PRId32 " collectives", r->rank);
    put_name(t, "thread_name", n->pid, r->tid + 1, "name", name);
    put_order(t, "thread_sort_index", n->pid, r->tid + 1, 2 * (int64_t)r->rank + 1);
}

void trace_name_clock(struct trace_format *t, const struct trace_node *n)
{
    char label[64];

    if (n->has_clock)
        (void)snprintf(label, sizeof label, "clock within %" PRId64 " us", (n->bound_ns + 999) / 1000);
    else
        (void)snprintf(label, sizeof label, "clock not aligned");
    put_name(t, "process_labels", n->pid, n->tid, "labels", label);
}

static void name_node(struct trace_format *t, const struct trace_node *n)
{
    char name[300];

    (void)snprintf(name, sizeof name, "node %" PRId32 " (%s)", n->node_rank, n->host);
    put_name(t, "process_name", n->pid, n->tid, "name", name);
    put_order(t, "process_sort_index", n->pid, n->tid, (int64_t)n->node_rank + 1);
    put_name(t, "thread_name", n->pid, n->tid, "name", "node");
    put_order(t, "thread_sort_index", n->pid, n->tid, -1);
}

void trace_name_all(struct trace_format *t)
{
    char name[300];

    (void)snprintf(name, sizeof name, "job %s", t->job);
    put_name(t, "process_name", TRACE_JOB_PID, TRACE_JOB_TID, "name", name);
    put_order(t, "process_sort_index", TRACE_JOB_PID, TRACE_JOB_TID, 0);
    put_name(t, "thread_name", TRACE_JOB_PID, TRACE_JOB_TID, "name", "rounds");
    put_name(t, "cddprun", TRACE_JOB_PID, TRACE_JOB_TID, "version", CDDP_VERSION);
    for (size_t i = 0; i < t->n_nodes; i++) {
        struct trace_node *n = &t->nodes[i];

        name_node(t, n);
        n->told_ns = TRACE_TOLD_NOTHING; /* its clock is stated again, too */
        for (size_t k = 0; k < n->n_ranks; k++)
            name_rank(t, n, &n->ranks[k]);
    }
}

struct trace_node *trace_node_of(struct trace_format *t, const struct cdi_records *r)
{
    struct trace_node *n;

    for (size_t i = 0; i < t->n_nodes; i++)
        if (t->nodes[i].node_rank == r->node_rank && strcmp(t->nodes[i].host, r->host) == 0)
            return &t->nodes[i];
    if (t->n_nodes >= RANKS_MAX)
        return NULL;
    if (t->n_nodes == t->cap) {
        size_t cap = t->cap == 0 ? 16 : 2 * t->cap;
        struct trace_node *nodes = reallocarray(t->nodes, cap, sizeof *nodes);

        if (nodes == NULL)
            return NULL;
        t->nodes = nodes;
        t->cap = cap;
    }
    n = &t->nodes[t->n_nodes];
    *n = (struct trace_node){.node_rank = r->node_rank,
                             .pid = TRACE_JOB_PID + 1 + (uint32_t)t->n_nodes,
                             .tid = TRACE_FIRST_TID + t->n_tids,
                             .round = r->round,
                             .told_ns = TRACE_TOLD_NOTHING};
    (void)snprintf(n->host, sizeof n->host, "%s", r->host);
    t->n_nodes++;
    t->n_tids++;
    name_node(t, n);
    return n;
}

struct trace_rank *trace_rank_of(struct trace_format *t, struct trace_node *n, int32_t rank)
{
    struct trace_rank *r;

    for (size_t i = 0; i < n->n_ranks; i++)
        if (n->ranks[i].rank == rank)
            return &n->ranks[i];
    if (t->n_ranks >= RANKS_MAX)
        return NULL;
    if (n->n_ranks == n->cap) {
        size_t cap = n->cap == 0 ? 8 : 2 * n->cap;
        struct trace_rank *ranks = reallocarray(n->ranks, cap, sizeof *ranks);

        if (ranks == NULL)
            return NULL;
        n->ranks = ranks;
        n->cap = cap;
    }
    r = &n->ranks[n->n_ranks++];
    *r = (struct trace_rank){.rank = rank, .tid = TRACE_FIRST_TID + t->n_tids};
    t->n_tids += 2;
    t->n_ranks++;
    name_rank(t, n, r);
    return r;
}
