/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/query.h"

#include "protocol/bulk.h"
#include "protocol/frame.h"
#include "protocol/json_text.h"
#include "rendezvous/poll_agents.h"
#include "rendezvous/snapshot.h"
#include "rendezvous/views.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUESTION_MAX 4096                 /* bytes of a QUERY */
#define QUESTIONS_MAX (16 * QUESTION_MAX) /* bytes that may wait for the answer to an earlier question */
#define OUT_FULL (1024u * 1024)           /* queued bytes from which on no further question is read */

/* ------------------------------------------------------------------------------------------------- the reply ---- */

static void query_answer(struct conn *c)
{
    const char *job = c->ask_name[0] != '\0' ? c->ask_name : c->port_job != NULL ? c->port_job->run_id : NULL;
    struct page_data data;
    cddp_status st = snapshot_take(c->ctx, &data);

    if (st == CDDP_OK)
        st = c->ctx->views->reply(&data, job, &c->out);
    snapshot_release(&data);
    if (st != CDDP_OK) {
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
