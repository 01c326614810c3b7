/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/query.h"

#include "common/clock.h"
#include "common/dial.h"
#include "launcher/plan/endpoint.h"
#include "protocol/bulk.h"
#include "protocol/frame.h"
#include "protocol/hello.h"
#include "protocol/json_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUT_MAX 65536

struct query {
    struct cdi_dial io;
    uint16_t port;
    char host[256];
    int64_t deadline_ms; /* of the current call */
};

/* Tries the addresses of the host, one after the other. */
static cddp_status query_connect(struct query *q, struct cdi_error *err)
{
    struct cdi_error why = {.os_error = 0};
    cddp_status st;

    (void)snprintf(q->io.peer, sizeof q->io.peer, "'%s' port %u", q->host, q->port);
    st = cdi_dial_name(&q->io, q->host, q->port, q->deadline_ms, &why);
    if (st == CDDP_E_NOT_FOUND)
        return cdi_fail(err, st, "the host '%s' is not known here: %s", q->host, why.msg);
    if (st == CDDP_E_IO && why.os_error == ETIMEDOUT)
        return cdi_fail(err, CDDP_E_TIMEOUT, "%s did not answer in time", q->io.peer);
    if (st == CDDP_E_IO)
        return cdi_fail(err, st, "nothing answers at %s: %s; is the job running, and is this its port?", q->io.peer,
                        why.msg);
    return st == CDDP_OK ? st : cdi_fail_since(err, &why, "%s", why.msg);
}

/* ------------------------------------------------------------------------------------------------- handshake ---- */

static cddp_status handshake(struct query *q, const struct cdi_secret *secret, struct cdi_error *err)
{
    struct cdi_hello_client hello;
    cddp_status st = cdi_hello_client_start(&hello, CDI_HELLO_QUERY, "", 0, secret, &q->io.out, err);

    if (st != CDDP_OK)
        return st;
    for (;;) {
        st = cdi_dial_flush(&q->io, q->deadline_ms, err);
        if (st == CDDP_OK)
            st = cdi_dial_need(&q->io, q->io.in.len + 1, q->deadline_ms, err);
        if (st != CDDP_OK)
            return st;
        st = cdi_hello_client_feed(&hello, &q->io.in, &q->io.out, err);
        if (st == CDDP_E_PROTOCOL)
            return cdi_fail(err, st, "'%s' port %u is not a rendezvous of cddprun: another program listens there",
                            q->host, q->port);
        if (st < 0)
            return cdi_error_wrap(err, "'%s' port %u", q->host, q->port);
        if (st == CDDP_OK)
            return CDDP_OK;
    }
}

static cddp_status open_at(struct query *q, const struct cdi_secret *secret, int64_t timeout_ms, struct cdi_error *err)
{
    cddp_status st;

    q->deadline_ms = cdi_deadline_ms(cdi_now_ms(), timeout_ms);
    st = query_connect(q, err);
    if (st == CDDP_OK)
        st = handshake(q, secret, err);
    return st != CDDP_E_CLOSED
               ? st
               : cdi_fail(err, st,
                          "'%s' port %u closed the connection: it is not a rendezvous of cddprun, or is just ending",
                          q->host, q->port);
}

/* Of an endpoint without a port: the two that jobs have by default. */
static cddp_status open_somewhere(struct query *q, const struct cdi_secret *secret, int64_t timeout_ms,
                                  struct cdi_error *err)
{
    cddp_status st;

    q->port = QUERY_PORT;
    st = open_at(q, secret, timeout_ms, err);
    if (st != CDDP_E_IO) /* nothing listens there */
        return st;
    q->port = QUERY_SECOND_PORT;
    st = open_at(q, secret, timeout_ms, err);
    return st != CDDP_E_IO ? st
                           : cdi_fail(err, st, "nothing answers at '%s', neither at port %d nor at %d; give HOST:PORT",
                                      q->host, QUERY_PORT, QUERY_SECOND_PORT);
}

cddp_status query_open(struct query **out, const char *endpoint, const struct cdi_secret *secret, int64_t timeout_ms,
                       struct cdi_error *err)
{
    struct query *q = calloc(1, sizeof *q);
    cddp_status st;

    if (q == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a question");
    q->io.fd = -1;
    cdi_buf_init(&q->io.in, QUERY_REPLY_MAX);
    cdi_buf_init(&q->io.out, OUT_MAX);
    st = endpoint_parse(endpoint, "the endpoint", q->host, &q->port, err);
    if (st == CDDP_OK)
        st = q->port != 0 ? open_at(q, secret, timeout_ms, err) : open_somewhere(q, secret, timeout_ms, err);
    if (st == CDDP_OK)
        *out = q;
    else
        query_close(q);
    return st;
}

void query_close(struct query *q)
{
    if (q == NULL)
        return;
    cdi_dial_drop(&q->io);
    free(q);
}

/* -------------------------------------------------------------------------------------------------- question ---- */

static cddp_status query_put(struct query *q, const char *job, struct cdi_error *err)
{
    json_t *root = json_pack("{s:s, s:o*}", "what", "job", "job", job == NULL ? NULL : json_text(job));
    char *text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    cddp_status st = text == NULL ? CDDP_E_NOMEM : cdi_frame_put(&q->io.out, CDI_BULK_QUERY, text, strlen(text));

    free(text);
    json_decref(root);
    return st == CDDP_OK ? st : cdi_fail(err, st, "out of memory for a question");
}

/* Receives one REPLY, and subtracts its size from *left. Frames of other types are for newer clients. */
static cddp_status receive_part(struct query *q, json_t **part, size_t *left, struct cdi_error *err)
{
    struct cdi_frame f = {.type = 0};
    cddp_status st;

    do {
        cdi_buf_consume(&q->io.in, f.size);
        f.size = 0;
        while ((st = cdi_frame_next(&q->io.in, &f, err)) == CDDP_IN_PROGRESS)
            if ((st = cdi_dial_need(&q->io, q->io.in.len + 1, q->deadline_ms, err)) != CDDP_OK)
                return st;
    } while (st == CDDP_OK && f.type != CDI_BULK_REPLY);
    if (st != CDDP_OK)
        return st;
    if (f.len > *left)
        return cdi_fail(err, CDDP_E_LIMIT, "the reply of '%s' port %u is too large", q->host, q->port);
    *left -= f.len;
    *part = json_loadb((const char *)f.payload, f.len, 0, NULL);
    cdi_buf_consume(&q->io.in, f.size);
    if (json_is_object(*part) && json_is_array(json_object_get(*part, "jobs")))
        return CDDP_OK;
    json_decref(*part);
    *part = NULL;
    return cdi_fail(err, CDDP_E_PROTOCOL, "the reply of '%s' port %u has a wrong form", q->host, q->port);
}

/* Adds the nodes of a job that was begun in an earlier part. Returns false if it is another job. */
static bool continue_job(json_t *whole, json_t *job)
{
    json_t *last = json_array_get(whole, json_array_size(whole) - 1);
    json_t *name = json_object_get(job, "name");

    if (last == NULL || name == NULL || !json_equal(json_object_get(last, "name"), name))
        return false;
    return json_array_extend(json_object_get(last, "nodes"), json_object_get(job, "nodes")) == 0;
}

/* Merges a later part of a reply into the whole, and takes its other members, such as "cut". */
static bool merge(json_t *whole, json_t *part)
{
    json_t *jobs = json_object_get(whole, "jobs"), *more = json_object_get(part, "jobs"), *job;
    bool ok = true;
    size_t i;

    json_array_foreach(more, i, job) ok =
        ok && ((i == 0 && continue_job(jobs, job)) || json_array_append(jobs, job) == 0);
    (void)json_object_del(part, "jobs");
    return ok && json_object_update(whole, part) == 0;
}

cddp_status query_ask(struct query *q, const char *job, int64_t timeout_ms, json_t **reply, struct cdi_error *err)
{
    json_t *whole = NULL, *part = NULL;
    const char *error;
    size_t left = QUERY_REPLY_MAX;
    cddp_status st;

    q->deadline_ms = cdi_deadline_ms(cdi_now_ms(), timeout_ms);
    st = query_put(q, job, err);
    if (st == CDDP_OK)
        st = cdi_dial_flush(&q->io, q->deadline_ms, err);
    while (st == CDDP_OK && (whole == NULL || json_is_true(json_object_get(whole, "more")))) {
        st = receive_part(q, &part, &left, err);
        if (st != CDDP_OK)
            break;
        if (whole == NULL) {
            whole = part;
            continue;
        }
        if (!merge(whole, part))
            st = cdi_fail(err, CDDP_E_NOMEM, "out of memory for the reply of '%s' port %u", q->host, q->port);
        json_decref(part);
    }
    error = json_line(json_object_get(whole, "error"));
    if (st == CDDP_OK && error != NULL)
        st = cdi_fail(err, CDDP_E_NOT_FOUND, "'%s' port %u: %s", q->host, q->port, error);
    if (st == CDDP_OK)
        *reply = whole;
    else
        json_decref(whole);
    return st;
}
