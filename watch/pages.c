/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/pages.h"

#include "watch/job_json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPACT 64 /* ranks, from which on /status is for programs only */

static const char *const job_states[] = PAGE_JOB_STATES;

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

        all = page_json_add(all, json_pack("{s:s, s:o*, s:o*, s:o*, s:o*}", "address", a->address, "host",
                                           a->host == NULL ? NULL : text_of(a->host), "node_rank",
                                           a->node_rank < 0 ? NULL : json_integer(a->node_rank), "first_rank",
                                           a->node_rank < 0 ? NULL : json_integer(a->first_rank), "ranks",
                                           a->node_rank < 0 ? NULL : json_integer(a->n_ranks)));
    }
    return all;
}

static json_t *waits_of(const struct page_job *j)
{
    json_t *all = json_array();

    for (size_t i = 0; all != NULL && i < j->n_clients; i++) {
        const struct page_wait *w = &j->clients[i];

        all = page_json_add(all, json_pack("{s:s, s:s, s:I, s:f}", "address", w->address, "key", w->key, "missing",
                                           (json_int_t)w->missing, "for_s", (double)w->for_ms / 1e3));
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
    json_t *view = page_job_view(j), *job;

    job = json_pack("{s:o, s:s, s:o, s:i, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I}, s:o, s:o, s:o}", "run_id",
                    text_of(j->run_id), "state", j->state, "why", text_of(j->why), "port", (int)j->port, "round",
                    (json_int_t)j->round, "restarts", (json_int_t)j->restarts, "ranks", (json_int_t)j->world_size,
                    "nodes", "present", (json_int_t)j->nodes, "waiting", (json_int_t)j->waiting, "needed",
                    (json_int_t)j->needed, "min", (json_int_t)j->min_nodes, "max", (json_int_t)j->max_nodes, "agents",
                    agents_of(j), "store", store_of(j), "waits", waits_of(j));
    if (view == NULL || job == NULL || json_object_update(job, view) != 0) {
        json_decref(job);
        job = NULL;
    }
    json_decref(view);
    return job;
}

cddp_status page_json(const struct page_data *s, struct cdi_buf *out)
{
    json_t *jobs = json_array(), *root;
    char *text;
    cddp_status st;
    size_t placed = 0;

    for (size_t i = 0; i < s->n_jobs; i++) {
        placed += s->jobs[i].n_placed;
        if (json_array_append_new(jobs, job_of(&s->jobs[i])) != 0) {
            json_decref(jobs);
            return CDDP_E_NOMEM;
        }
    }
    root = json_pack("{s:s, s:f, s:b, s:I, s:{s:I, s:I, s:I, s:I}, s:o}", "version", s->version, "uptime_s",
                     s->uptime_s, "draining", (int)s->draining, "resident_bytes", (json_int_t)s->resident_bytes,
                     "connections", "open", (json_int_t)s->connections, "limit", (json_int_t)s->connections_limit,
                     "accepted", (json_int_t)s->accepted, "dropped", (json_int_t)s->dropped, "jobs", jobs);
    text = root == NULL ? NULL
                        : json_dumps(root, (placed > COMPACT ? JSON_COMPACT : JSON_INDENT(1)) | JSON_REAL_PRECISION(9));
    json_decref(root);
    if (text == NULL)
        return CDDP_E_NOMEM;
    st = cdi_buf_printf(out, "%s\n", text);
    free(text);
    return st;
}

/* --------------------------------------------------------------------------------------------------- metrics ---- */

/* Metrics of the server s, and of each job j: name, type, help, value. A value that is NAN is not known: no sample. */
/* clang-format off */
#define SERVER_METRICS(M) \
    M(process_start_time_seconds, "gauge", "Start of the process, Unix time.", s->started_s) \
    M(process_resident_memory_bytes, "gauge", "Memory of the process.", s->resident_bytes) \
    M(cddp_rendezvous_draining, "gauge", "1 while new jobs are rejected and the server exits after the last one.", s->draining) \
    M(cddp_rendezvous_jobs, "gauge", "Jobs.", s->n_jobs) \
    M(cddp_rendezvous_connections, "gauge", "Open connections of every kind.", s->connections) \
    M(cddp_rendezvous_connections_limit, "gauge", "Limit of open connections; further ones are rejected.", s->connections_limit) \
    M(cddp_rendezvous_connections_accepted_total, "counter", "Connections accepted.", s->accepted) \
    M(cddp_rendezvous_connections_dropped_total, "counter", "Connections closed because of an error.", s->dropped)
#define JOB_METRICS(M) \
    M(cddp_job_round, "gauge", "Number of the running round, or of the round that nodes join.", j->round) \
    M(cddp_job_restarts_total, "counter", "Failed rounds that another round followed.", j->restarts) \
    M(cddp_job_ranks, "gauge", "Workers of the running round.", j->world_size) \
    M(cddp_job_nodes, "gauge", "Nodes of the job that are present.", j->nodes) \
    M(cddp_job_nodes_waiting, "gauge", "Nodes that wait for a round to begin.", j->waiting) \
    M(cddp_job_nodes_needed, "gauge", "Nodes that the next round takes.", j->needed) \
    M(cddp_job_nodes_min, "gauge", "Fewest nodes of a round.", j->min_nodes) \
    M(cddp_job_nodes_max, "gauge", "Most nodes of a round.", j->max_nodes) \
    M(cddp_job_steps_total, "counter", "Steps that every rank has completed.", j->sum.min_step) \
    M(cddp_job_steps_per_second, "gauge", "Steps per second, by the last steps or, if it is longer, the time since.", j->sum.steps_per_s) \
    M(cddp_job_last_step_age_seconds, "gauge", "Time since the last step of any rank.", (double)j->sum.step_age_ms / 1e3) \
    M(cddp_job_step_seconds, "gauge", "Time of a step, mean over the ranks and their last steps; 0: none of late.", j->sum.step_us / 1e6) \
    M(cddp_job_step_communication_hidden_seconds, "gauge", "Communication in a step, hidden by computation.", j->sum.hidden_us / 1e6) \
    M(cddp_job_step_communication_exposed_seconds, "gauge", "Communication in a step for which the program waits.", j->sum.exposed_us / 1e6) \
    M(cddp_job_step_waiting_seconds, "gauge", "Waiting for the last rank in a step.", j->sum.late_us / 1e6) \
    M(cddp_job_slowest_rank, "gauge", "The rank that the others most often wait for.", j->n_placed > 0 && j->sum.slowest >= 0 ? (double)j->sum.slowest : NAN) \
    M(cddp_job_slowest_rank_ratio, "gauge", "Part of the steps in which they wait for it.", j->n_placed > 0 && j->sum.slowest >= 0 ? j->sum.slowest_share : NAN) \
    M(cddp_job_gpu_load_ratio, "gauge", "Load of the ranks' GPUs, mean.", j->sum.n_gpus > 0 ? j->sum.gpu_load : NAN) \
    M(cddp_job_gpu_least_load_ratio, "gauge", "Load of the rank's GPU that has least to do.", j->sum.n_gpus > 0 ? j->sum.gpu_least_load : NAN) \
    M(cddp_job_gpu_memory_used_ratio, "gauge", "Used memory of the fullest GPU.", j->sum.gpu_memory >= 0 ? j->sum.gpu_memory : NAN) \
    M(cddp_store_connections, "gauge", "Open connections to the job's store.", j->store_connections) \
    M(cddp_store_keys, "gauge", "Keys that have a value.", j->keys) \
    M(cddp_store_bytes, "gauge", "Memory of keys, values, queues and waits.", j->bytes) \
    M(cddp_store_limit_bytes, "gauge", "Limit of this memory.", j->bytes_limit) \
    M(cddp_store_waits, "gauge", "Pending waits.", j->waits) \
    M(cddp_store_waits_limit, "gauge", "Limit of pending waits.", j->waits_limit)
#define SERVER_VALUE(name, type, help, value) static double name(const struct page_data *s) { return (double)(value); }
#define JOB_VALUE(name, type, help, value) static double name(const struct page_job *j) { return (double)(value); }
#define SERVER_FAMILY(name, type, help, value) {#name, type, help, name, NULL},
#define JOB_FAMILY(name, type, help, value) {#name, type, help, NULL, name},

SERVER_METRICS(SERVER_VALUE)
JOB_METRICS(JOB_VALUE)

static const struct family {
    const char *name, *type, *help;
    double (*of_server)(const struct page_data *s);
    double (*of_job)(const struct page_job *j);
} families[] = {SERVER_METRICS(SERVER_FAMILY) JOB_METRICS(JOB_FAMILY)};
/* clang-format on */

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
    for (size_t i = 0; st == CDDP_OK && i < s->n_jobs; i++) {
        double value = f->of_job(&s->jobs[i]);

        if (!isnan(value))
            st = put_sample(out, f->name, &s->jobs[i], NULL, NULL, value);
    }
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
    return job_states[i];
}

static double is_in_state(const struct page_job *j, size_t i)
{
    return strcmp(j->state, job_states[i]) == 0;
}

static const char *place_text(size_t i)
{
    return cdi_place_name((enum cdi_place)i);
}

static double ranks_at(const struct page_job *j, size_t i)
{
    return (double)j->sum.by_place[i];
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

static const struct labelled job_state = {"cddp_job_state", "gauge",    "1 for the current state of the job.",
                                          "state",          state_text, is_in_state};
static const struct labelled job_places = {
    "cddp_job_ranks_at", "gauge", "Ranks by their place: in a collective, after one, ...", "place",
    place_text,          ranks_at};
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
        st = put_labelled(s, &job_state, sizeof job_states / sizeof job_states[0], out);
    if (st == CDDP_OK)
        st = put_labelled(s, &job_places, CDI_PLACES_KINDS, out);
    return st == CDDP_OK ? put_labelled(s, &store_operations, CDI_C10D_N_OPS, out) : st;
}
