/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/query.h"

#include "protocol/bulk.h"
#include "protocol/frame.h"
#include "protocol/json_text.h"
#include "rendezvous/http/pages.h"
#include "rendezvous/poll_agents.h"
#include "rendezvous/snapshot.h"

#include <cddp/version.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUESTION_MAX 4096                    /* bytes of a QUERY */
#define QUESTIONS_MAX (16 * QUESTION_MAX)    /* bytes that may wait for the answer to an earlier question */
#define OUT_FULL (1024u * 1024)              /* queued bytes from which on no further question is read */
#define PART (512u * 1024)                   /* bytes of nodes, from which on a REPLY has another frame */
#define WHOLE_MAX (size_t)(32 * 1024 * 1024) /* bytes of all frames of a REPLY; further nodes are left out */

/* ------------------------------------------------------------------------------------------------- the reply ---- */

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

static bool wanted(const struct conn *c, const struct page_job *j)
{
    return c->ask_name[0] == '\0' ? c->port_job == NULL || strcmp(c->port_job->run_id, j->run_id) == 0
                                  : strcmp(c->ask_name, j->run_id) == 0;
}

static void write_reply(const struct conn *c, const struct page_data *data, struct reply *r)
{
    char why[400] = "";
    size_t found = 0;

    for (size_t i = 0; i < data->n_jobs && r->st == CDDP_OK; i++) {
        const struct page_job *j = &data->jobs[i];

        if (!wanted(c, j))
            continue;
        found++;
        reply_begin_job(r, j);
        for (size_t k = 0; k < j->n_nodes && r->st == CDDP_OK; k++)
            reply_add_node(r, j, &j->node[k]);
        r->part += 1024; /* of the job itself */
    }
    if (found == 0 && c->ask_name[0] != '\0' && data->n_jobs == 1)
        (void)snprintf(why, sizeof why, "the rendezvous has no job '%.150s'; its job is '%.150s'", c->ask_name,
                       data->jobs[0].run_id);
    else if (found == 0 && c->ask_name[0] != '\0')
        (void)snprintf(why, sizeof why, "the rendezvous has no job '%s'", c->ask_name);
    if (r->st == CDDP_OK)
        reply_send(r, false, why[0] == '\0' ? NULL : why);
    json_decref(r->jobs);
}

static void query_answer(struct conn *c)
{
    struct page_data data;
    struct reply r = {.out = &c->out, .jobs = json_array()};

    if (snapshot_take(c->ctx, &data) != CDDP_OK) {
        json_decref(r.jobs);
        conn_close(c, CDI_LOG_WARN, "out of memory for the reply");
        return;
    }
    write_reply(c, &data, &r);
    snapshot_release(&data);
    if (r.st != CDDP_OK) {
        conn_close(c, CDI_LOG_WARN, "out of memory for the reply");
        return;
    }
    c->ask_from_ms = conn_now_ms(c->ctx) + QUERY_BETWEEN_MS;
    conn_set_due(c, CONN_DUE_QUERY);
    conn_mark_dirty(c);
}

static void query_on_answers(struct conn *c)
{
    query_answer(c);
    query_received(c); /* the next question may be there */
}

/* ---------------------------------------------------------------------------------------------- the question ---- */

/* Reads {"what": "job", "job": NAME}; without NAME it is about all jobs. */
static cddp_status read_question(struct conn *c, const struct cdi_frame *f, struct cdi_error *err)
{
    json_t *root = f->len > QUESTION_MAX ? NULL : json_loadb((const char *)f->payload, f->len, 0, NULL);
    const char *what = json_line(json_object_get(root, "what"));
    json_t *job = json_object_get(root, "job");
    cddp_status st = CDDP_OK;

    if (f->type != CDI_BULK_QUERY || what == NULL || strcmp(what, "job") != 0 ||
        (job != NULL && !json_is_null(job) && !json_is_string(job)) || json_text_bytes(job) >= sizeof c->ask_name)
        st = cdi_fail(err, CDDP_E_PROTOCOL, "a client asked something that this rendezvous server does not know");
    else
        json_cut(c->ask_name, sizeof c->ask_name, json_line(job));
    json_decref(root);
    return st;
}

/* Takes the next question. Returns CDDP_OK if it is answered; a known job's agents are asked first. */
static cddp_status next_question(struct conn *c, struct cdi_error *err)
{
    struct cdi_frame f;
    struct conn_job *job;
    cddp_status st = cdi_frame_next(&c->in, &f, err);

    if (st != CDDP_OK)
        return st;
    st = read_question(c, &f, err);
    cdi_buf_consume(&c->in, f.size);
    if (st != CDDP_OK)
        return st;
    job = c->ask_name[0] == '\0' ? c->port_job : c->ctx->find_job(c->ctx, c->ask_name);
    if (job == NULL && c->ask_name[0] != '\0') {
        query_answer(c);
        return CDDP_OK;
    }
    poll_agents_begin(c, job, c->ask_from_ms, QUERY_WAIT_MS, query_on_answers);
    return CDDP_IN_PROGRESS;
}

void query_received(struct conn *c)
{
    struct cdi_error err = {0};
    cddp_status st = CDDP_OK;

    if (c->state == CONN_QUERY && poll_agents_waits(c) && c->in.len > QUESTIONS_MAX)
        st = cdi_fail(&err, CDDP_E_LIMIT, "a client sends questions faster than they are answered");
    while (st == CDDP_OK && c->state == CONN_QUERY && !poll_agents_waits(c) && conn_queued(c) < OUT_FULL)
        st = next_question(c, &err);
    if (st < 0 && c->state == CONN_QUERY)
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
    conn_flush(c);
    if (c->state == CONN_QUERY && conn_queued(c) >= OUT_FULL && !c->paused)
        conn_pause(c);
}

bool query_has_room(const struct conn_ctx *ctx)
{
    return ctx->n_queries < QUERY_CLIENTS_MAX;
}

void query_begin(struct conn *c)
{
    c->state = CONN_QUERY;
    c->ctx->n_queries++;
    conn_set_due(c, CONN_DUE_QUERY);
}
