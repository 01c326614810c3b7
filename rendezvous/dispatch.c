/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/dispatch.h"
#include "protocol/frame.h"
#include "protocol/sniff.h"
#include "rendezvous/http/http.h"
#include "rendezvous/poll_agents.h"
#include "rendezvous/query.h"
#include "rendezvous/round/session.h"
#include "rendezvous/snapshot.h"
#include "rendezvous/views.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define HTTP_WAIT_MS 300 /* for the answers of agents; a page also shows older ones */
#define NO_STORE 404     /* PyTorch's store client prints it if there is no store; HTTP's number */

/* ---------------------------------------------------------------------------------------------------- access ---- */

static bool dispatch_is_loopback(const struct in6_addr *ip)
{
    return IN6_IS_ADDR_LOOPBACK(ip) || (IN6_IS_ADDR_V4MAPPED(ip) && ip->s6_addr[12] == 127);
}

/* Returns true if the peer may use a service without proving the auth token. job NULL: agents of any job count. */
static bool dispatch_may(const struct conn *c, enum rdzv_access access, const struct conn_job *job)
{
    struct in6_addr ip = conn_ip(&c->addr);

    switch (access) {
    case RDZV_ACCESS_ANY:
        return true;
    case RDZV_ACCESS_NEVER:
        return false;
    case RDZV_ACCESS_AUTO:
        break;
    }
    return c->ctx->secret == NULL || dispatch_is_loopback(&ip) ||
           agent_addrs_has(&c->ctx->agent_addrs, &ip, job); /* its agent has proved it */
}

/* Rejects without a reply. The log names each address once. */
static void dispatch_deny(struct conn *c, const char *why)
{
    struct conn_ctx *ctx = c->ctx;
    struct in6_addr ip = conn_ip(&c->addr);
    enum cdi_log_level level = CDI_LOG_WARN;
    size_t n = ctx->n_denied < CONN_DENIED_MAX ? ctx->n_denied : CONN_DENIED_MAX;

    for (size_t i = 0; i < n; i++)
        if (memcmp(&ctx->denied[i], &ip, sizeof ip) == 0)
            level = CDI_LOG_DEBUG;
    if (level == CDI_LOG_WARN)
        ctx->denied[ctx->n_denied++ % CONN_DENIED_MAX] = ip;
    conn_finish(c, CONN_DUE_LINGER, level, why);
}

/* Returns true if the peer was asked for a proof and has not sent it. */
static bool lacks_proof(const struct conn *c)
{
    return c->state == CONN_HELLO && c->hello.state == CDI_HELLO_S_PROVING && c->hello.auth;
}

/* ----------------------------------------------------------------------------------------------------- store ---- */

static void on_store_woken(struct cdi_serve *s)
{
    conn_mark_dirty(cdi_list_of(s, struct conn, serve));
}

static void dispatch_store(struct conn *c, struct cdi_buf *in)
{
    size_t had = in->len;
    struct cdi_error err;
    cddp_status st;

    do {
        st = cdi_serve_feed(&c->serve, in, CDI_SERVE_OUT_ENOUGH, &err);
        conn_flush(c);
    } while (st == CDDP_IN_PROGRESS && c->state == CONN_STORE && conn_queued(c) < CDI_SERVE_OUT_ENOUGH);
    if (c->state != CONN_STORE)
        return;
    if (in->len < had)
        c->begun_ms = conn_now_ms(c->ctx);
    if (st < 0) {
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
    } else if (conn_queued(c) >= CDI_SERVE_OUT_ENOUGH) {
        /* The client sends requests faster than it reads replies. */
        conn_pause(c);
    }
}

/* Processes requests in the read buffer, without a copy; copies only the rest of an incomplete one. */
static void serve_store_in_place(struct conn *c, uint8_t *bytes, size_t n)
{
    struct cdi_buf in = {.mem = bytes, .len = n, .cap = n, .limit = n};

    dispatch_store(c, &in);
    if (c->state != CONN_STORE || in.len == 0)
        return;
    c->begun_ms = conn_now_ms(c->ctx);
    if (cdi_buf_append(&c->in, cdi_buf_data(&in), in.len) != CDDP_OK)
        conn_close(c, CDI_LOG_WARN, "out of memory for its data");
    else
        conn_watch(c);
}

static void enter_job(struct conn *c, struct conn_job *job)
{
    c->job = job;
    job->n_conns++;
}

/* proved: the client has the job's auth token, or there is none. */
static void dispatch_begin_store(struct conn *c, struct conn_job *job, bool proved)
{
    struct cdi_kv *keys = session_keys(job->session);

    if (keys == NULL) {
        conn_close(c, CDI_LOG_INFO, "the job is over, or out of memory for its keys");
        return;
    }
    enter_job(c, job);
    cdi_list_remove(&c->due);
    c->state = CONN_STORE;
    c->begun_ms = conn_now_ms(c->ctx);
    cdi_serve_init(&c->serve, keys, &c->out, on_store_woken);
    c->serve.counts = job->operations;
    c->serve.guarded = !proved;
}

/* ------------------------------------------------------------------------------------------------------ http ---- */

static void http_respond(struct conn *c, bool show)
{
    struct page_data data = {0};
    const struct http_page *page = NULL;
    struct http_request req;
    struct cdi_error err = {0};
    cddp_status parsed = http_parse(&c->in, &req, &err), st = CDDP_OK;

    if (parsed == CDDP_OK)
        page = http_page_of(c->ctx->views->pages, &req);
    if (show)
        st = snapshot_take(c->ctx, &data);
    if (st == CDDP_OK)
        st = http_answer(parsed == CDDP_OK ? &req : NULL, page, show ? &data : NULL, &c->out);
    snapshot_release(&data);
    if (st != CDDP_OK)
        conn_close(c, CDI_LOG_WARN, "out of memory for the response");
    else if (parsed == CDDP_OK)
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_DEBUG, "answered");
    else
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
}

static void http_on_answers(struct conn *c)
{
    http_respond(c, true);
}

/* The pages about jobs say where the ranks are: that is asked first. */
static void dispatch_http(struct conn *c)
{
    struct http_request req;
    cddp_status parsed = http_parse(&c->in, &req, NULL);

    if (parsed == CDDP_IN_PROGRESS || poll_agents_waits(c))
        return;
    if (parsed == CDDP_OK && http_page_of(c->ctx->views->pages, &req) != NULL &&
        dispatch_may(c, c->ctx->http, c->port_job))
        poll_agents_begin(c, NULL, 0, HTTP_WAIT_MS, http_on_answers);
    else
        http_respond(c, false);
}

/* --------------------------------------------------------------------------------------------------- control ---- */

static void dispatch_control(struct conn *c)
{
    struct cdi_error err = {0};
    cddp_status st = session_feed(c->job->session, c->peer, &c->in, conn_now_ms(c->ctx), conn_wall_ms(), &err);

    if (st < 0)
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
}

static void begin_control(struct conn *c, struct conn_job *job)
{
    struct in6_addr ip = conn_ip(&c->addr);
    cddp_status st = agent_addrs_add(&c->ctx->agent_addrs, &ip, job);

    if (st == CDDP_OK && (st = session_attach(job->session, c, conn_now_ms(c->ctx), &c->peer)) != CDDP_OK)
        agent_addrs_remove(&c->ctx->agent_addrs, &ip, job);
    if (st != CDDP_OK) {
        conn_close(c, CDI_LOG_WARN, "out of memory for another agent");
        return;
    }
    enter_job(c, job);
    cdi_list_remove(&c->due);
    c->agent = true;
    c->state = CONN_CONTROL;
}

/* Rejects an agent with a CLOSED message. retry: it may try again later; gone: its job is over. */
static void refuse_agent(struct conn *c, bool retry, bool gone, const char *why)
{
    struct cdi_msg m = {.type = CDI_MSG_CLOSED,
                        .u.closed = {.status = CDI_CLOSE_REFUSED, .retry = retry, .gone = gone}};

    (void)snprintf(m.u.closed.text, sizeof m.u.closed.text, "%.511s", why);
    (void)cdi_msg_encode(&m, &c->out, NULL); /* closed without a message if out of memory */
    conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, why);
}

/* -------------------------------------------------------------------------------------------------- overflow ---- */

/* Writes the reason for the rejection, for the user of the job. */
static void describe_reject(const struct conn *c, char *why, size_t cap)
{
    char host[256] = "";
    struct rlimit files = {.rlim_cur = 0};

    if (c->reject == CONN_REJECT_TOO_MANY) {
        (void)snprintf(why, cap, "all %zu connections that %s allows are open; raise it", c->ctx->max_connections,
                       c->ctx->max_flag);
        return;
    }
    (void)gethostname(host, sizeof host - 1);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    (void)snprintf(
        why, cap,
        "the rendezvous server has %llu open files on %s, its limit, and each rank and each agent needs one; "
        "raise the limit there (ulimit -Hn)",
        (unsigned long long)files.rlim_cur, host);
}

/*
 * Rejects an overflow connection whose protocol is known. Closes it without a reply if the peer would not understand
 * one, or should try again.
 */
static void dispatch_reject(struct conn *c, bool understands)
{
    char why[512];

    describe_reject(c, why, sizeof why);
    if (!understands || cdi_hello_server_refuse(&c->hello, why, &c->out, NULL) != CDDP_OK)
        conn_close(c, CDI_LOG_WARN, why);
    else
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, why);
}

/*
 * The same for the plain store protocol. PyTorch's client cannot show an error message, and tries again by itself.
 * libcddp's client can; its first PING identifies it.
 */
static void dispatch_reject_plain(struct conn *c)
{
    const struct conn_job *job = c->port_job != NULL ? c->port_job : c->ctx->only;
    bool own;

    if (cdi_c10d_sniff_ping(cdi_buf_data(&c->in), c->in.len, &own) == CDDP_IN_PROGRESS)
        return;
    cdi_hello_server_init(&c->hello);
    dispatch_reject(c, own && job != NULL && dispatch_may(c, c->ctx->plain_store, job) && !conn_room_soon(c->ctx));
}

/* --------------------------------------------------------------------------------------------------- opening ---- */

/*
 * Rejects a store client on the shared port: most often torchrun, whose agents use a store for their rendezvous.
 * PyTorch's client cannot show an error message. It prints the number in the reply to its first PING if that is wrong,
 * and without a reply it reports a crashed server. libcddp's client understands a rejection.
 */
static void explain_shared_port(struct conn *c)
{
    static const char why[] =
        "plain store connection on the shared port, which is for cddprun agents; workers use the port of their "
        "job (MASTER_PORT), and torchrun cannot use this rendezvous server";
    const uint8_t *bytes = cdi_buf_data(&c->in);
    uint8_t answer[4] = {NO_STORE & 0xff, NO_STORE >> 8};
    bool own;

    if (cdi_c10d_sniff_ping(bytes, c->in.len, &own) == CDDP_IN_PROGRESS)
        return;
    cdi_hello_server_init(&c->hello);
    if (own) {
        (void)cdi_hello_server_refuse(&c->hello, why, &c->out, NULL);
    } else if (bytes[CDI_C10D_HELLO_LEN] == CDI_C10D_PING) {
        answer[0] ^= memcmp(answer, bytes + CDI_C10D_HELLO_LEN + 1, sizeof answer) == 0; /* it must be a wrong number */
        (void)cdi_buf_append(&c->out, answer, sizeof answer);
    }
    conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, why);
}

static void begin_plain_store(struct conn *c)
{
    struct conn_job *job = c->port_job != NULL ? c->port_job : c->ctx->only;

    if (job == NULL)
        explain_shared_port(c);
    else if (!dispatch_may(c, c->ctx->plain_store, job))
        dispatch_deny(c, "plain store connection, which cannot prove the job's auth token (cddp-rendezvous has "
                         "--plain_store)");
    else
        dispatch_begin_store(c, job, c->ctx->secret == NULL);
}

static void refuse_hello(struct conn *c, const char *why)
{
    (void)cdi_hello_server_refuse(&c->hello, why, &c->out, NULL);
    conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, why);
}

/* Accepts the HELLO. Returns false if the connection was closed. */
static bool welcome_hello(struct conn *c)
{
    struct cdi_error err = {0};

    if (cdi_hello_server_welcome(&c->hello, &c->out, &err) != CDDP_OK) {
        conn_close(c, CDI_LOG_WARN, err.msg);
        return false;
    }
    conn_mark_dirty(c);
    return true;
}

static struct conn_job *job_of_hello(const struct conn *c, const char *run_id)
{
    if (c->port_job != NULL)
        return strcmp(c->port_job->run_id, run_id) == 0 ? c->port_job : NULL;
    return c->ctx->find_job(c->ctx, run_id);
}

static void admit_store(struct conn *c)
{
    struct conn_job *job = job_of_hello(c, c->hello.hello.run_id);
    const struct round *round = job == NULL ? NULL : session_round(job->session);
    char why[512];

    if (job == NULL) {
        (void)snprintf(why, sizeof why, "the rendezvous server has no job '%.255s'; check --rdzv_id and the port",
                       c->hello.hello.run_id);
        refuse_hello(c, why);
    } else if (round_state(round) == ROUND_CLOSED) {
        refuse_hello(c, "the job is over");
    } else if (c->hello.hello.round != CDI_HELLO_CURRENT_ROUND && c->hello.hello.round != round_number(round)) {
        (void)snprintf(why, sizeof why, "this worker belongs to round %u of the job, but the current round is %u",
                       c->hello.hello.round, round_number(round));
        refuse_hello(c, why);
    } else if (welcome_hello(c)) {
        dispatch_begin_store(c, job, true);
    }
}

/* Checked before JOIN: a cddprun that searches several ports for its rendezvous server then tries the next one. */
static bool is_of_another_job(const struct conn *c)
{
    const char *run_id = c->hello.hello.run_id;

    return c->ctx->only != NULL && run_id[0] != '\0' && strcmp(c->ctx->only->run_id, run_id) != 0;
}

static void dispatch_admit(struct conn *c)
{
    struct conn_job *job;
    char why[512];

    if (c->hello.hello.kind == CDI_HELLO_STORE) {
        admit_store(c);
        return;
    }
    if (c->hello.hello.kind == CDI_HELLO_QUERY) {
        if (!query_has_room(c->ctx))
            refuse_hello(c, "too many clients ask about jobs; try again later");
        else if (welcome_hello(c))
            query_begin(c);
        return;
    }
    if (is_of_another_job(c)) {
        (void)snprintf(why, sizeof why,
                       "this rendezvous server serves job '%.100s', not '%.100s'; check --rdzv_id and the port",
                       c->ctx->only->run_id, c->hello.hello.run_id);
        refuse_hello(c, why);
        return;
    }
    if (!welcome_hello(c))
        return;
    /* JOIN holds the rest. With a single job, its round rejects a JOIN that does not fit. */
    job = c->ctx->only != NULL ? c->ctx->only : job_of_hello(c, c->hello.hello.run_id);
    if (job != NULL)
        begin_control(c, job);
    else
        c->state = CONN_NEW;
}

static void dispatch_hello(struct conn *c)
{
    struct cdi_error err = {0};
    cddp_status st = CDDP_OK;

    while (st == CDDP_OK && c->state == CONN_HELLO) {
        st = cdi_hello_server_feed(&c->hello, &c->in, &c->out, &err);
        if (st == CDDP_OK && c->reject != CONN_ACCEPTED) {
            dispatch_reject(c, c->hello.hello.kind == CDI_HELLO_AGENT || !conn_room_soon(c->ctx));
            return;
        }
        if (st == CDDP_OK && c->hello.state == CDI_HELLO_S_ASKED)
            st = cdi_hello_server_challenge(&c->hello, c->ctx->secret, &c->out, &err);
        else if (st == CDDP_OK)
            dispatch_admit(c);
    }
    conn_mark_dirty(c);
    if (st == CDDP_E_DENIED)
        dispatch_deny(c, err.msg);
    else if (st < 0)
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
}

/* The first JOIN of a job creates it. */
static void dispatch_new(struct conn *c)
{
    struct conn_job *job = c->port_job;
    struct cdi_error err = {0};
    struct cdi_frame f;
    struct cdi_msg m;
    cddp_status st = cdi_frame_next(&c->in, &f, &err);

    if (st == CDDP_OK)
        st = cdi_msg_decode(f.type, f.payload, f.len, &m, &err);
    if (st == CDDP_IN_PROGRESS)
        return;
    if (st == CDDP_OK && m.type != CDI_MSG_JOIN)
        st = cdi_fail(&err, CDDP_E_PROTOCOL, "received %s before JOIN", cdi_msg_name(m.type));
    if (st != CDDP_OK) {
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
        return;
    }
    if (job == NULL)
        job = c->ctx->find_job(c->ctx, m.u.join.run_id);
    if (job == NULL)
        st = c->ctx->make_job(c->ctx, &m.u.join, &job, &err);
    if (st != CDDP_OK) /* retry: the end of a job makes room */
        refuse_agent(c, st == CDDP_E_LIMIT || st == CDDP_E_EXISTS, st == CDDP_E_CLOSED, err.msg);
    else
        begin_control(c, job);
}

static void dispatch_sniff(struct conn *c)
{
    switch (cdi_sniff(cdi_buf_data(&c->in), c->in.len)) {
    case CDI_SNIFF_UNDECIDED:
        break;
    case CDI_SNIFF_STORE:
        if (c->reject != CONN_ACCEPTED)
            dispatch_reject_plain(c);
        else
            begin_plain_store(c);
        break;
    case CDI_SNIFF_CONTROL:
        cdi_hello_server_init(&c->hello);
        c->state = CONN_HELLO; /* the deadline remains, here and below */
        break;
    case CDI_SNIFF_HTTP:
        c->state = CONN_HTTP;
        break;
    case CDI_SNIFF_GARBAGE:
        conn_close(c, CDI_LOG_WARN, "unrecognized protocol");
        break;
    }
}

/* ----------------------------------------------------------------------------------- the connection's events ---- */

/* Processes the bytes in c->in. */
static void dispatch_serve(struct conn *c)
{
    if (c->state == CONN_SNIFFING)
        dispatch_sniff(c);
    if (c->state == CONN_HELLO)
        dispatch_hello(c);
    if (c->state == CONN_NEW)
        dispatch_new(c);
    switch (c->state) {
    case CONN_STORE:
        dispatch_store(c, &c->in);
        break;
    case CONN_CONTROL:
        dispatch_control(c);
        break;
    case CONN_HTTP:
        dispatch_http(c);
        break;
    case CONN_QUERY:
        query_received(c);
        break;
    case CONN_SNIFFING:
    case CONN_HELLO:
    case CONN_NEW:
    case CONN_LINGERING:
    case CONN_CLOSING:
        break;
    }
    if (c->state == CONN_STORE && c->in.len > 0)
        conn_watch(c);
    /* A store connection seldom needs a buffer again: see serve_store_in_place(). */
    if (c->in.len == 0 && (c->state == CONN_STORE || c->in.cap > CONN_KEEP))
        cdi_buf_release(&c->in);
}

static void dispatch_received(struct conn *c, uint8_t *bytes, size_t n)
{
    if (c->state == CONN_STORE && c->in.len == 0)
        serve_store_in_place(c, bytes, n);
    else if (cdi_buf_append(&c->in, bytes, n) != CDDP_OK)
        conn_close(c, CDI_LOG_WARN, "out of memory for its data");
    else
        dispatch_serve(c);
}

static bool dispatch_ended(struct conn *c)
{
    if (c->state == CONN_HTTP && poll_agents_waits(c)) { /* it may still read */
        poll_agents_answer(c);
        return true;
    }
    if (!lacks_proof(c))
        return false;
    dispatch_deny(c, "disconnected without proving the job's auth token");
    return true;
}

static void dispatch_overdue(struct conn *c)
{
    char why[512];

    if (c->reject != CONN_ACCEPTED) {
        describe_reject(c, why, sizeof why);
        conn_close(c, CDI_LOG_WARN, why);
    } else if (lacks_proof(c)) {
        dispatch_deny(c, "timed out before proving the job's auth token");
    } else if (c->state == CONN_HTTP && poll_agents_waits(c)) {
        poll_agents_answer(c);
    } else if (c->state == CONN_QUERY) {
        conn_close(c, CDI_LOG_DEBUG, "it asked nothing for a minute");
    } else {
        conn_close(c, CDI_LOG_INFO, "timed out before sending a request");
    }
}

const struct conn_ops dispatch_ops = {
    .received = dispatch_received, .resumed = dispatch_serve, .ended = dispatch_ended, .overdue = dispatch_overdue};
