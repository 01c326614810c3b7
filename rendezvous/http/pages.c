/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/http/pages.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const page_job_states[] = {"joining", "running", "stopping", "closed"};
const size_t page_n_job_states = sizeof page_job_states / sizeof page_job_states[0];

static uint64_t all_operations(const struct page_job *j)
{
    uint64_t n = 0;

    for (size_t i = 0; i < CDI_C10D_N_OPS; i++)
        n += j->operations[i];
    return n;
}

/* ------------------------------------------------------------------------------------------------------ JSON ---- */

/* Replaces the non-ASCII bytes of invalid UTF-8 by question marks. */
static json_t *text_of(const char *s)
{
    json_t *text = json_string(s);
    char *plain;

    if (text != NULL)
        return text;
    plain = strdup(s);
    if (plain == NULL)
        return NULL;
    for (char *at = plain; *at != '\0'; at++)
        if ((unsigned char)*at >= 0x80)
            *at = '?';
    text = json_string(plain);
    free(plain);
    return text;
}

static json_t *agents_of(const struct page_job *j)
{
    json_t *all = json_array();

    for (size_t i = 0; all != NULL && i < j->n_agents; i++) {
        const struct page_agent *a = &j->agents[i];
        json_t *one = json_pack("{s:s, s:o*, s:o*, s:o*, s:o*}", "address", a->address, "host",
                                a->host == NULL ? NULL : text_of(a->host), "node_rank",
                                a->node_rank < 0 ? NULL : json_integer(a->node_rank), "first_rank",
                                a->node_rank < 0 ? NULL : json_integer(a->first_rank), "ranks",
                                a->node_rank < 0 ? NULL : json_integer(a->n_ranks));

        if (one == NULL || json_array_append_new(all, one) != 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static json_t *waits_of(const struct page_job *j)
{
    json_t *all = json_array();

    for (size_t i = 0; all != NULL && i < j->n_clients; i++) {
        const struct page_wait *w = &j->clients[i];
        json_t *one = json_pack("{s:s, s:s, s:I, s:f}", "address", w->address, "key", w->key, "missing",
                                (json_int_t)w->missing, "for_s", (double)w->for_ms / 1e3);

        if (one == NULL || json_array_append_new(all, one) != 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static json_t *operations_of(const struct page_job *j)
{
    json_t *all = json_object();

    for (unsigned i = 0; all != NULL && i < CDI_C10D_N_OPS; i++)
        if (json_object_set_new(all, cdi_c10d_op_name(i), json_integer((json_int_t)j->operations[i])) != 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

static json_t *store_of(const struct page_job *j)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o}", "connections", (json_int_t)j->store_connections,
                     "keys", (json_int_t)j->keys, "bytes", (json_int_t)j->bytes, "bytes_limit",
                     (json_int_t)j->bytes_limit, "waits", (json_int_t)j->waits, "waits_limit",
                     (json_int_t)j->waits_limit, "operations_per_s", j->operations_per_s, "operations",
                     operations_of(j));
}

static json_t *job_of(const struct page_job *j)
{
    return json_pack("{s:o, s:s, s:o, s:i, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I}, s:o, s:o, s:o}", "run_id",
                     text_of(j->run_id), "state", j->state, "why", text_of(j->why), "port", (int)j->port, "round",
                     (json_int_t)j->round, "restarts", (json_int_t)j->restarts, "ranks", (json_int_t)j->world_size,
                     "nodes", "present", (json_int_t)j->nodes, "waiting", (json_int_t)j->waiting, "needed",
                     (json_int_t)j->needed, "min", (json_int_t)j->min_nodes, "max", (json_int_t)j->max_nodes, "agents",
                     agents_of(j), "store", store_of(j), "waits", waits_of(j));
}

cddp_status page_json(const struct page_data *s, struct cdi_buf *out)
{
    json_t *jobs = json_array(), *root;
    char *text;
    cddp_status st;

    for (size_t i = 0; i < s->n_jobs; i++)
        if (json_array_append_new(jobs, job_of(&s->jobs[i])) != 0) {
            json_decref(jobs);
            return CDDP_E_NOMEM;
        }
    root = json_pack("{s:s, s:f, s:b, s:I, s:{s:I, s:I, s:I, s:I}, s:o}", "version", s->version, "uptime_s",
                     s->uptime_s, "draining", (int)s->draining, "resident_bytes", (json_int_t)s->resident_bytes,
                     "connections", "open", (json_int_t)s->connections, "limit", (json_int_t)s->connections_limit,
                     "accepted", (json_int_t)s->accepted, "dropped", (json_int_t)s->dropped, "jobs", jobs);
    text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(root);
    if (text == NULL)
        return CDDP_E_NOMEM;
    st = cdi_buf_printf(out, "%s\n", text);
    free(text);
    return st;
}

/* --------------------------------------------------------------------------------------------------- metrics ---- */

/* A metric of the server (of_server) or of each job (of_job): see the table below. */
struct family {
    const char *name, *type, *help;
    double (*of_server)(const struct page_data *s);
    double (*of_job)(const struct page_job *j);
};

/* clang-format off */
static double up(const struct page_data *s) { return s->started_s; }
static double resident(const struct page_data *s) { return (double)s->resident_bytes; }
static double draining(const struct page_data *s) { return s->draining; }
static double n_jobs(const struct page_data *s) { return (double)s->n_jobs; }
static double connections(const struct page_data *s) { return (double)s->connections; }
static double connections_limit(const struct page_data *s) { return (double)s->connections_limit; }
static double accepted(const struct page_data *s) { return (double)s->accepted; }
static double dropped(const struct page_data *s) { return (double)s->dropped; }
static double round_of(const struct page_job *j) { return j->round; }
static double restarts(const struct page_job *j) { return j->restarts; }
static double ranks(const struct page_job *j) { return j->world_size; }
static double nodes(const struct page_job *j) { return (double)j->nodes; }
static double waiting(const struct page_job *j) { return j->waiting; }
static double needed(const struct page_job *j) { return j->needed; }
static double min_nodes(const struct page_job *j) { return j->min_nodes; }
static double max_nodes(const struct page_job *j) { return j->max_nodes; }
static double store_connections(const struct page_job *j) { return (double)j->store_connections; }
static double keys(const struct page_job *j) { return (double)j->keys; }
static double bytes(const struct page_job *j) { return (double)j->bytes; }
static double bytes_limit(const struct page_job *j) { return (double)j->bytes_limit; }
static double waits(const struct page_job *j) { return (double)j->waits; }
static double waits_limit(const struct page_job *j) { return (double)j->waits_limit; }
/* clang-format on */

static const struct family families[] = {
    {"process_start_time_seconds", "gauge", "Start of the process, Unix time.", up, NULL},
    {"process_resident_memory_bytes", "gauge", "Memory of the process.", resident, NULL},
    {"cddp_rendezvous_draining", "gauge", "1 while new jobs are rejected and the server exits after the last one.",
     draining, NULL},
    {"cddp_rendezvous_jobs", "gauge", "Jobs.", n_jobs, NULL},
    {"cddp_rendezvous_connections", "gauge", "Open connections of every kind.", connections, NULL},
    {"cddp_rendezvous_connections_limit", "gauge", "Limit of open connections; further ones are rejected.",
     connections_limit, NULL},
    {"cddp_rendezvous_connections_accepted_total", "counter", "Connections accepted.", accepted, NULL},
    {"cddp_rendezvous_connections_dropped_total", "counter", "Connections closed because of an error.", dropped, NULL},
    {"cddp_job_round", "gauge", "Number of the running round, or of the round that nodes join.", NULL, round_of},
    {"cddp_job_restarts_total", "counter", "Failed rounds that another round followed.", NULL, restarts},
    {"cddp_job_ranks", "gauge", "Workers of the running round.", NULL, ranks},
    {"cddp_job_nodes", "gauge", "Nodes of the job that are present.", NULL, nodes},
    {"cddp_job_nodes_waiting", "gauge", "Nodes that wait for a round to begin.", NULL, waiting},
    {"cddp_job_nodes_needed", "gauge", "Nodes that the next round takes.", NULL, needed},
    {"cddp_job_nodes_min", "gauge", "Fewest nodes of a round.", NULL, min_nodes},
    {"cddp_job_nodes_max", "gauge", "Most nodes of a round.", NULL, max_nodes},
    {"cddp_store_connections", "gauge", "Open connections to the job's store.", NULL, store_connections},
    {"cddp_store_keys", "gauge", "Keys that have a value.", NULL, keys},
    {"cddp_store_bytes", "gauge", "Memory of keys, values, queues and waits.", NULL, bytes},
    {"cddp_store_limit_bytes", "gauge", "Limit of this memory.", NULL, bytes_limit},
    {"cddp_store_waits", "gauge", "Pending waits.", NULL, waits},
    {"cddp_store_waits_limit", "gauge", "Limit of pending waits.", NULL, waits_limit},
};

/* Appends the value of a label, quoted. */
static cddp_status put_label(struct cdi_buf *out, const char *s)
{
    cddp_status st = cdi_buf_put_u8(out, '"');

    for (; st == CDDP_OK && *s != '\0'; s++) {
        if (*s == '"' || *s == '\\')
            st = cdi_buf_put_u8(out, '\\');
        if (st == CDDP_OK)
            st = *s == '\n' ? cdi_buf_append(out, "\\n", 2) : cdi_buf_put_u8(out, (uint8_t)*s);
    }
    return st == CDDP_OK ? cdi_buf_put_u8(out, '"') : st;
}

/* Appends NAME{run_id="...",MORE="WHICH"} VALUE; more NULL: no second label. */
static cddp_status put_sample(struct cdi_buf *out, const char *name, const struct page_job *j, const char *more,
                              const char *which, double value)
{
    cddp_status st = cdi_buf_printf(out, "%s{run_id=", name);

    if (st == CDDP_OK)
        st = put_label(out, j->run_id);
    if (st == CDDP_OK && more != NULL)
        st = cdi_buf_printf(out, ",%s=\"%s\"", more, which);
    return st == CDDP_OK ? cdi_buf_printf(out, "} %.15g\n", value) : st;
}

static cddp_status metrics_put_head(struct cdi_buf *out, const char *name, const char *type, const char *help)
{
    return cdi_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static cddp_status put_family(const struct page_data *s, const struct family *f, struct cdi_buf *out)
{
    cddp_status st = metrics_put_head(out, f->name, f->type, f->help);

    if (st == CDDP_OK && f->of_server != NULL)
        return cdi_buf_printf(out, "%s %.15g\n", f->name, f->of_server(s));
    for (size_t i = 0; st == CDDP_OK && i < s->n_jobs; i++)
        st = put_sample(out, f->name, &s->jobs[i], NULL, NULL, f->of_job(&s->jobs[i]));
    return st;
}

/* A metric with several samples per job, which differ in a second label. */
struct labelled {
    const char *name, *type, *help, *label;
    const char *(*text)(size_t i); /* of the label */
    double (*value)(const struct page_job *j, size_t i);
};

static const char *state_text(size_t i)
{
    return page_job_states[i];
}

static double is_in_state(const struct page_job *j, size_t i)
{
    return strcmp(j->state, page_job_states[i]) == 0;
}

static const char *operation_text(size_t i)
{
    return cdi_c10d_op_name((unsigned)i);
}

static double n_operations(const struct page_job *j, size_t i)
{
    return (double)j->operations[i];
}

static cddp_status put_labelled(const struct page_data *s, const struct labelled *f, size_t n, struct cdi_buf *out)
{
    cddp_status st = metrics_put_head(out, f->name, f->type, f->help);

    for (size_t i = 0; st == CDDP_OK && i < s->n_jobs; i++)
        for (size_t k = 0; st == CDDP_OK && k < n; k++)
            st = put_sample(out, f->name, &s->jobs[i], f->label, f->text(k), f->value(&s->jobs[i], k));
    return st;
}

static const struct labelled job_states = {"cddp_job_state", "gauge",    "1 for the current state of the job.",
                                           "state",          state_text, is_in_state};
static const struct labelled store_operations = {"cddp_store_operations_total",
                                                 "counter",
                                                 "Requests that the store has processed.",
                                                 "operation",
                                                 operation_text,
                                                 n_operations};

cddp_status page_metrics(const struct page_data *s, struct cdi_buf *out)
{
    static const char info[] = "cddp_rendezvous_build_info";
    cddp_status st = metrics_put_head(out, info, "gauge", "Always 1; the label holds the version.");

    if (st == CDDP_OK)
        st = cdi_buf_printf(out, "%s{version=\"%s\"} 1\n", info, s->version);
    for (size_t i = 0; st == CDDP_OK && i < sizeof families / sizeof families[0]; i++)
        st = put_family(s, &families[i], out);
    if (st == CDDP_OK)
        st = put_labelled(s, &job_states, page_n_job_states, out);
    return st == CDDP_OK ? put_labelled(s, &store_operations, CDI_C10D_N_OPS, out) : st;
}

/* ------------------------------------------------------------------------------------------------------ HTML ---- */

static cddp_status put_text(struct cdi_buf *out, const char *s)
{
    cddp_status st = CDDP_OK;

    for (; st == CDDP_OK && *s != '\0'; s++) {
        if (*s == '<')
            st = cdi_buf_append(out, "&lt;", 4);
        else if (*s == '&')
            st = cdi_buf_append(out, "&amp;", 5);
        else
            st = cdi_buf_put_u8(out, (uint8_t)*s);
    }
    return st;
}

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* "1.5 MiB" */
static const char *size_text(char text[32], size_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double n = (double)bytes / 1024;
    size_t unit = 0;

    if (bytes < 1024) {
        (void)snprintf(text, 32, "%zu byte%s", bytes, plural(bytes));
        return text;
    }
    for (; n >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        n /= 1024;
    (void)snprintf(text, 32, n < 10 ? "%.1f %s" : "%.0f %s", n, units[unit]);
    return text;
}

/* "3 d 4 h": the two largest units. */
static const char *time_text(char text[48], double seconds)
{
    uint64_t s = seconds < 0 ? 0 : (uint64_t)seconds, minutes = s / 60, hours = minutes / 60, days = hours / 24;

    if (days > 0)
        (void)snprintf(text, 48, "%llu d %llu h", (unsigned long long)days, (unsigned long long)(hours % 24));
    else if (hours > 0)
        (void)snprintf(text, 48, "%llu h %llu min", (unsigned long long)hours, (unsigned long long)(minutes % 60));
    else if (minutes > 0)
        (void)snprintf(text, 48, "%llu min %llu s", (unsigned long long)minutes, (unsigned long long)(s % 60));
    else
        (void)snprintf(text, 48, "%llu s", (unsigned long long)s);
    return text;
}

static cddp_status put_agent(const struct page_agent *a, struct cdi_buf *out)
{
    cddp_status st = a->node_rank < 0 ? cdi_buf_printf(out, "<tr><td>-<td>")
                                      : cdi_buf_printf(out, "<tr><td>%d<td>", (int)a->node_rank);

    if (st == CDDP_OK)
        st = put_text(out, a->host == NULL ? "" : a->host);
    if (st == CDDP_OK && a->node_rank < 0)
        return cdi_buf_printf(out, "<td>%s<td>not in the round\n", a->address);
    if (st == CDDP_OK && a->n_ranks == 1)
        return cdi_buf_printf(out, "<td>%s<td>%u\n", a->address, a->first_rank);
    return st != CDDP_OK
               ? st
               : cdi_buf_printf(out, "<td>%s<td>%u to %u\n", a->address, a->first_rank, a->first_rank + a->n_ranks - 1);
}

/* Appends the numbers of a job's round and store. */
static cddp_status put_numbers(const struct page_job *j, struct cdi_buf *out)
{
    uint64_t operations = all_operations(j);
    char limits[32], used[32], limit[32];

    (void)snprintf(limits, sizeof limits, j->min_nodes == j->max_nodes ? "%u" : "%u to %u", j->min_nodes, j->max_nodes);
    return cdi_buf_printf(
        out,
        "</h2>\n<p>%s, round %u, %u rank%s, %zu node%s (of %s; waiting: %u), %u restart%s, port %u</p>\n"
        "<p>store: %zu key%s, %s of %s, %zu wait%s, %zu connection%s, %llu operation%s, %.0f per second</p>\n<p>",
        j->state, j->round, j->world_size, plural(j->world_size), j->nodes, plural(j->nodes), limits, j->waiting,
        j->restarts, plural(j->restarts), j->port, j->keys, plural(j->keys), size_text(used, j->bytes),
        size_text(limit, j->bytes_limit), j->waits, plural(j->waits), j->store_connections,
        plural(j->store_connections), (unsigned long long)operations, plural(operations), j->operations_per_s);
}

static cddp_status put_job(const struct page_job *j, struct cdi_buf *out)
{
    cddp_status st = cdi_buf_append(out, "<h2>", 4);

    if (st == CDDP_OK)
        st = put_text(out, j->run_id[0] == '\0' ? "(a job without a name)" : j->run_id);
    if (st == CDDP_OK)
        st = put_numbers(j, out);
    if (st == CDDP_OK)
        st = put_text(out, j->why);
    if (st == CDDP_OK)
        st = cdi_buf_printf(out, "</p>\n<table><tr><th>node<th>host<th>address<th>ranks\n");
    for (size_t i = 0; st == CDDP_OK && i < j->n_agents; i++)
        st = put_agent(&j->agents[i], out);
    return st == CDDP_OK ? cdi_buf_printf(out, "</table>\n") : st;
}

cddp_status page_html(const struct page_data *s, struct cdi_buf *out)
{
    char up_for[48], memory[32];
    cddp_status st = cdi_buf_printf(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>cddp rendezvous</title>\n"
        "<style>body{font-family:sans-serif;margin:2em}th,td{text-align:left;padding:0 1.5em 0 0}</style>\n"
        "<h1>cddp rendezvous %s</h1>\n<p>up for %s%s, %zu of at most %zu connections (%llu accepted, %llu "
        "dropped), %s of memory, %zu job%s. The same data as <a href=\"/status\">JSON</a> and "
        "<a href=\"/metrics\">for Prometheus</a>.</p>\n",
        s->version, time_text(up_for, s->uptime_s), s->draining ? ", draining" : "", s->connections,
        s->connections_limit, (unsigned long long)s->accepted, (unsigned long long)s->dropped,
        size_text(memory, s->resident_bytes), s->n_jobs, plural(s->n_jobs));

    for (size_t i = 0; st == CDDP_OK && i < s->n_jobs; i++)
        st = put_job(&s->jobs[i], out);
    return st == CDDP_OK ? cdi_buf_printf(out, "</html>\n") : st;
}
