/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/reply.h"

#include "protocol/bulk.h"
#include "protocol/frame.h"
#include "protocol/json_text.h"
#include "watch/explain.h"
#include "watch/job_json.h"

#include <cddp/version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PART (512u * 1024)                   /* bytes of nodes, from which on a REPLY has another frame */
#define WHOLE_MAX (size_t)(32 * 1024 * 1024) /* bytes of all frames of a REPLY; further nodes are left out */

/* --------------------------------------------------------------------------------------------------- writing ---- */

/* A REPLY that is being written: frames, each with the jobs that begin or go on in it. */
struct reply {
    struct cdi_buf *out;
    json_t *jobs;       /* of the frame that is being filled */
    json_t *nodes;      /* of the last of these jobs; borrowed */
    size_t part, whole; /* bytes of nodes: in this frame, in those sent */
    bool cut;
    cddp_status st;
};

static void reply_send(struct reply *r, bool more, const char *error)
{
    json_t *root = json_pack("{s:s, s:b, s:o?}", "version", CDDP_VERSION, "more", (int)more, "jobs", r->jobs);
    char *text;

    if (root != NULL && error != NULL)
        (void)json_object_set_new(root, "error", json_text(error));
    if (root != NULL && r->cut)
        (void)json_object_set_new(root, "cut", json_true());
    text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9));
    r->st = text == NULL ? CDDP_E_NOMEM : cdi_frame_put(r->out, CDI_BULK_REPLY, text, strlen(text));
    free(text);
    json_decref(root);
    r->whole += r->part;
    r->part = 0;
    r->jobs = json_array();
    r->nodes = NULL;
}

static void reply_begin_job(struct reply *r, const struct page_job *j)
{
    json_t *job = page_job_head(j), *nodes = json_array();

    r->nodes = NULL;
    if (job == NULL || nodes == NULL || json_object_set(job, "nodes", nodes) != 0 ||
        json_array_append(r->jobs, job) != 0)
        r->st = CDDP_E_NOMEM;
    else
        r->nodes = nodes;
    json_decref(nodes);
    json_decref(job);
}

/* Adds a node, in a new frame if this one is full. The same job then begins again there. */
static void reply_add_node(struct reply *r, const struct page_job *j, const struct page_node *n)
{
    json_t *node = page_node_json(j, n);
    char *text = node == NULL ? NULL : json_dumps(node, JSON_COMPACT);
    size_t size = text == NULL ? 0 : strlen(text);

    free(text);
    if (node == NULL || size == 0) {
        r->st = CDDP_E_NOMEM;
    } else if (size > CDI_FRAME_MAX - PART || r->whole + r->part + size > WHOLE_MAX) {
        r->cut = true;
    } else {
        if (r->part + size > PART) {
            reply_send(r, true, NULL);
            if (r->st == CDDP_OK)
                reply_begin_job(r, j);
        }
        r->part += size;
        if (r->st == CDDP_OK && json_array_append(r->nodes, node) != 0)
            r->st = CDDP_E_NOMEM;
    }
    json_decref(node);
}

static void say_missing(const struct page_data *data, const char *job, char *why, size_t cap)
{
    if (data->n_jobs == 1)
        (void)snprintf(why, cap, "the rendezvous has no job '%.150s'; its job is '%.150s'", job, data->jobs[0].run_id);
    else
        (void)snprintf(why, cap, "the rendezvous has no job '%s'", job);
}

cddp_status reply_write(const struct page_data *data, const char *job, struct cdi_buf *out)
{
    struct reply r = {.out = out, .jobs = json_array()};
    char why[400] = "";
    size_t found = 0;

    for (size_t i = 0; i < data->n_jobs && r.st == CDDP_OK; i++) {
        const struct page_job *j = &data->jobs[i];

        if (job != NULL && strcmp(job, j->run_id) != 0)
            continue;
        found++;
        reply_begin_job(&r, j);
        for (size_t k = 0; k < j->n_nodes && r.st == CDDP_OK; k++)
            reply_add_node(&r, j, &j->node[k]);
        r.part += 1024; /* of the job itself */
    }
    if (found == 0 && job != NULL)
        say_missing(data, job, why, sizeof why);
    if (r.st == CDDP_OK)
        reply_send(&r, false, why[0] == '\0' ? NULL : why);
    json_decref(r.jobs);
    return r.st;
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

static const char *text_at(json_t *o, const char *name, const char *otherwise)
{
    const char *text = json_line(json_object_get(o, name));

    return text == NULL ? otherwise : text;
}

static uint32_t count_at(json_t *o, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(o, name));

    return n < 0 ? 0 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

/* Reads a node; one of a wrong form is an error, or as if it had not reported. */
static cddp_status read_node(struct reply_job *j, json_t *json, bool strict, struct cdi_error *err)
{
    struct cdi_node_report *report = &j->reports[j->facts.n_nodes];
    json_t *ago = json_object_get(json, "answered_ms_ago");
    cddp_status st = cdi_node_report_decode(json, report, err);

    if (st != CDDP_OK)
        return strict || st == CDDP_E_NOMEM ? st : CDDP_OK;
    j->facts.node[j->facts.n_nodes++] = (struct page_node){.node_rank = report->node_rank,
                                                           .host = report->host,
                                                           .answered = json_is_true(json_object_get(json, "answered")),
                                                           .ms_ago = (int64_t)json_integer_value(ago),
                                                           .ranks = report->ranks,
                                                           .n_ranks = report->n_ranks};
    return CDDP_OK;
}

static cddp_status read_job(struct reply_job *j, json_t *json, bool strict, struct cdi_error *err)
{
    json_t *nodes = json_object_get(json, "nodes");
    size_t n = json_array_size(nodes);
    cddp_status st = CDDP_OK;

    j->facts = (struct page_job){.run_id = text_at(json, "name", strict ? "" : "?"),
                                 .state = text_at(json, "state", strict ? "" : "?"),
                                 .why = text_at(json, "why", ""),
                                 .round = count_at(json, "round"),
                                 .restarts = count_at(json, "restarts"),
                                 .world_size = count_at(json, "world_size"),
                                 .nodes = count_at(json, "nodes_present"),
                                 .node = calloc(n + 1, sizeof *j->facts.node)};
    j->reports = calloc(n + 1, sizeof *j->reports);
    if (j->facts.node == NULL || j->reports == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a reply");
    for (size_t i = 0; i < n && st == CDDP_OK; i++)
        st = read_node(j, json_array_get(nodes, i), strict, err);
    return st;
}

cddp_status reply_read(json_t *reply, bool strict, size_t groups, struct reply_jobs *out, struct cdi_error *err)
{
    json_t *jobs = json_object_get(reply, "jobs");
    cddp_status st = CDDP_OK;

    *out = (struct reply_jobs){.v = calloc(json_array_size(jobs) + 1, sizeof *out->v)};
    if (strict && !json_is_array(jobs))
        return cdi_fail(err, CDDP_E_PROTOCOL, "the reply of the rendezvous has a wrong form");
    if (out->v == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a reply");
    while (st == CDDP_OK && out->n < json_array_size(jobs)) {
        struct reply_job *j = &out->v[out->n];

        st = read_job(j, json_array_get(jobs, out->n++), strict, err);
        if (st == CDDP_OK && explain_places(&j->facts, groups) != CDDP_OK)
            st = cdi_fail(err, CDDP_E_NOMEM, "out of memory for a reply");
    }
    return st;
}

void reply_release(struct reply_jobs *r)
{
    for (size_t i = 0; i < r->n; i++) {
        for (size_t k = 0; k < r->v[i].facts.n_nodes; k++)
            cdi_node_report_release(&r->v[i].reports[k]);
        free(r->v[i].reports);
        free(r->v[i].facts.node);
        free(r->v[i].facts.placed);
    }
    free(r->v);
    *r = (struct reply_jobs){0};
}
