/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/conn.h"
#include "protocol/frame.h"
#include "protocol/sniff.h"
#include "rendezvous/http/http.h"
#include "rendezvous/round/session.h"
#include "rendezvous/snapshot.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define OUT_MAX (128u * 1024 * 1024) /* bytes of replies that wait for one connection */
#define OUT_ENOUGH (1024u * 1024)    /* from here on no further request of it is read */
#define IN_MAX (CDI_C10D_REQUEST_MAX + 1024u * 1024)
#define KEEP 16384 /* an empty buffer larger than this is freed */
#define VISIT_MS 1000
#define LINGER_MS 2000
#define END_MS 1000
#define NO_STORE 404 /* what PyTorch's store client is shown where there is no store: known from http */
#define YOUNG_MS 20  /* a connection has so long for its opening, however many others want its place */

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

static int64_t now_of(const struct conn_home *home)
{
    return (int64_t)uv_now(home->loop);
}

static int64_t wall_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void conn_address_name(const struct sockaddr_storage *addr, char buf[CONN_NAME])
{
    char ip[INET6_ADDRSTRLEN] = "?";

    if (addr->ss_family == AF_INET6) {
        struct sockaddr_in6 a;

        memcpy(&a, addr, sizeof a);
        if (IN6_IS_ADDR_V4MAPPED(&a.sin6_addr)) {
            (void)inet_ntop(AF_INET, &a.sin6_addr.s6_addr[12], ip, sizeof ip);
            (void)snprintf(buf, CONN_NAME, "%s:%u", ip, ntohs(a.sin6_port));
        } else {
            (void)inet_ntop(AF_INET6, &a.sin6_addr, ip, sizeof ip);
            (void)snprintf(buf, CONN_NAME, "[%s]:%u", ip, ntohs(a.sin6_port));
        }
    } else {
        struct sockaddr_in a;

        memcpy(&a, addr, sizeof a);
        (void)inet_ntop(AF_INET, &a.sin_addr, ip, sizeof ip);
        (void)snprintf(buf, CONN_NAME, "%s:%u", ip, ntohs(a.sin_port));
    }
}

static struct in6_addr ip_of(const struct sockaddr_storage *addr)
{
    struct in6_addr ip = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    struct sockaddr_in6 six;
    struct sockaddr_in four;

    if (addr->ss_family == AF_INET6) {
        memcpy(&six, addr, sizeof six);
        return six.sin6_addr;
    }
    memcpy(&four, addr, sizeof four);
    memcpy(&ip.s6_addr[12], &four.sin_addr, 4);
    return ip;
}

/* --------------------------------------------------------------------------------------------------- closing ---- */

/* Its buffers have grown or shrunk. */
static void account(struct conn *c)
{
    size_t held = c->in.cap + c->out.cap + c->flying.cap;

    c->home->buffered += held - c->held;
    c->held = held;
}

static void on_closed(uv_handle_t *handle)
{
    struct conn *c = (struct conn *)handle;
    struct conn_home *home = c->home;
    struct conn_job *job = c->job;

    if (c->agent) {
        session_detach(job->session, c->peer, c->why, c->broken, now_of(home), wall_ms());
        conn_flush_all(home);
    }
    cdi_buf_release(&c->in);
    cdi_buf_release(&c->out);
    cdi_buf_release(&c->flying);
    account(c);
    home->n_visitors -= c->visit != CONN_STAYS;
    home->n_closing -= c->visit == CONN_STAYS;
    free(c);
    home->n_open--;
    if (job != NULL)
        job->n_conns--;
    home->conn_closed(home, job);
}

/* May a drop be logged? They are refilled with time. */
static bool may_log(struct conn_drops *d, int64_t now_ms)
{
    d->allowed += (double)(now_ms - d->ms) * CONN_DROPS_PER_S / 1e3;
    d->ms = now_ms;
    if (d->allowed > CONN_DROPS_BURST)
        d->allowed = CONN_DROPS_BURST;
    if (d->allowed < 1) {
        d->silent++;
        return false;
    }
    d->allowed--;
    return true;
}

void conn_log_drop(struct conn_home *home, enum cdi_log_level level, const char *name, const char *why)
{
    char line[512];

    home->n_dropped += level >= CDI_LOG_WARN;
    if (level >= CDI_LOG_WARN && !may_log(&home->drops, now_of(home)))
        return;
    (void)snprintf(line, sizeof line, "%.*s", (int)sizeof line - 1, why);
    for (char *at = line; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            *at = '?'; /* words of the peer must not look like other lines */
    cdi_log(level, "RDZV-DROP", "rendezvous: connection from %s closed: %s", name, line);
}

static void log_drop(const struct conn *c, enum cdi_log_level level, const char *why)
{
    char name[CONN_NAME];

    conn_address_name(&c->addr, name);
    conn_log_drop(c->home, level, name, why);
}

/* It has as long as all of that kind for something. */
static void await(struct conn *c, enum conn_due kind)
{
    c->deadline_ms = now_of(c->home) + c->home->due_ms[kind];
    cdi_list_remove(&c->due);
    cdi_list_push_back(&c->home->due[kind], &c->due);
}

/* Look at it at every tick, until it has nothing that is not finished. */
static void watch(struct conn *c)
{
    if (cdi_list_empty(&c->busy))
        cdi_list_push_back(&c->home->busy, &c->busy);
}

/* It is about to have another state. */
static void leave(struct conn *c)
{
    struct in6_addr ip = ip_of(&c->addr);

    if (c->state == CONN_STORE)
        cdi_serve_release(&c->serve);
    else if (c->state == CONN_CONTROL)
        nodes_remove(&c->home->nodes, &ip, c->job);
}

void conn_close(struct conn *c, enum cdi_log_level level, const char *why)
{
    if (c->state == CONN_CLOSING)
        return;
    if (c->state != CONN_LINGERING) {
        (void)snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, why);
        log_drop(c, level, why);
    }
    leave(c);
    c->state = CONN_CLOSING;
    cdi_list_remove(&c->link);
    cdi_list_remove(&c->dirty);
    cdi_list_remove(&c->due);
    cdi_list_remove(&c->busy);
    c->home->n_visitor_files -= c->visit != CONN_STAYS;
    c->home->n_closing += c->visit == CONN_STAYS;
    uv_close((uv_handle_t *)&c->tcp, on_closed); /* which closes the descriptor now */
}

/* The network or the other side's kernel ended it: its agent may come back. */
static void broke(struct conn *c, int status)
{
    if (c->state != CONN_LINGERING)
        c->broken = true;
    conn_close(c, CDI_LOG_INFO, uv_strerror(status));
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    struct conn *c = (struct conn *)req->handle;

    /* A client that is done closes now, and its end of file closes ours; the server itself does not wait for that. */
    if (c->state == CONN_LINGERING && (status != 0 || c->home->closing))
        conn_close(c, CDI_LOG_DEBUG, "finished");
}

/* LINGERING: is all written? */
static void linger(struct conn *c)
{
    if (c->writing || c->out.len > 0 || c->shut)
        return;
    c->shut = true;
    if (uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, on_shutdown) != 0)
        conn_close(c, CDI_LOG_DEBUG, "finished");
}

static void mark_dirty(struct conn *c)
{
    if (cdi_list_empty(&c->dirty))
        cdi_list_push_back(&c->home->dirty, &c->dirty);
}

void conn_finish(struct conn *c, enum conn_due due, enum cdi_log_level level, const char *why)
{
    if (c->state == CONN_CLOSING || c->state == CONN_LINGERING)
        return;
    (void)snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, why);
    log_drop(c, level, why);
    leave(c);
    c->state = CONN_LINGERING;
    await(c, c->visit != CONN_STAYS ? CONN_DUE_VISIT : due);
    cdi_buf_release(&c->in);
    mark_dirty(c);
}

/* --------------------------------------------------------------------------------------------------- writing ---- */

static size_t queued(const struct conn *c)
{
    return c->out.len + c->flying.len;
}

static void alloc_scratch(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    const struct conn *c = (const struct conn *)handle;

    (void)suggested;
    *buf = uv_buf_init((char *)c->home->scratch, sizeof c->home->scratch);
}

static void serve(struct conn *c);

static void on_written(uv_write_t *req, int status)
{
    struct conn *c = (struct conn *)req->handle;

    c->writing = false;
    cdi_buf_release(&c->flying);
    account(c);
    if (status != 0) {
        if (status != UV_ECANCELED)
            broke(c, status);
        return;
    }
    c->progress_ms = now_of(c->home);
    mark_dirty(c);
    if (c->paused && c->state != CONN_CLOSING) {
        c->paused = false;
        (void)uv_read_start((uv_stream_t *)&c->tcp, alloc_scratch, on_read);
        serve(c);
    }
    conn_flush_all(c->home);
}

static void flush(struct conn *c)
{
    uv_buf_t b = uv_buf_init((char *)(uintptr_t)cdi_buf_data(&c->out), (unsigned)c->out.len);
    int n;

    if (c->writing || c->out.len == 0)
        return;
    n = uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
    if (n < 0 && n != UV_EAGAIN) {
        broke(c, n);
        return;
    }
    if (n > 0)
        cdi_buf_consume(&c->out, (size_t)n);
    if (c->out.len == 0) {
        if (c->out.cap > KEEP)
            cdi_buf_release(&c->out);
        return;
    }
    c->flying = c->out;
    cdi_buf_init(&c->out, c->flying.limit);
    b = uv_buf_init((char *)(uintptr_t)cdi_buf_data(&c->flying), (unsigned)c->flying.len);
    c->writing = true;
    watch(c);
    c->progress_ms = now_of(c->home);
    c->queue_seen = c->flying.len;
    n = uv_write(&c->write, (uv_stream_t *)&c->tcp, &b, 1, on_written);
    if (n != 0) {
        c->writing = false;
        broke(c, n);
    }
}

void conn_flush_all(struct conn_home *home)
{
    while (!cdi_list_empty(&home->dirty)) {
        struct conn *c = cdi_list_of(home->dirty.next, struct conn, dirty);

        cdi_list_remove(&c->dirty);
        if (c->state == CONN_STORE && c->serve.broken) {
            conn_close(c, CDI_LOG_WARN, "it does not read its replies");
            continue;
        }
        flush(c);
        if (c->state == CONN_LINGERING)
            linger(c);
    }
}

void conn_send(struct conn *c, const void *bytes, size_t len)
{
    if (c->state == CONN_CLOSING || c->state == CONN_LINGERING)
        return;
    if (cdi_buf_append(&c->out, bytes, len) != CDDP_OK)
        conn_close(c, CDI_LOG_WARN, "it does not read what it is sent");
    else
        mark_dirty(c);
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

static void on_store_woken(struct cdi_serve *s)
{
    mark_dirty(cdi_list_of(s, struct conn, serve));
}

static void serve_store(struct conn *c, struct cdi_buf *in)
{
    size_t had = in->len;
    struct cdi_error err;
    cddp_status st;

    do {
        st = cdi_serve_feed(&c->serve, in, OUT_ENOUGH, &err);
        flush(c);
    } while (st == CDDP_IN_PROGRESS && c->state == CONN_STORE && queued(c) < OUT_ENOUGH);
    if (c->state != CONN_STORE)
        return;
    if (in->len < had)
        c->begun_ms = now_of(c->home);
    if (st < 0) {
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
    } else if (queued(c) >= OUT_ENOUGH) {
        /* It asks faster than it reads: let it wait until on_written(), which is sure to come. */
        c->paused = true;
        (void)uv_read_stop((uv_stream_t *)&c->tcp);
    }
}

/* May who asks see the pages about jobs? */
static bool http_may(const struct conn *c);

static void serve_http(struct conn *c)
{
    struct status status = {0};
    struct http_request req;
    struct cdi_error err = {0};
    cddp_status parsed = http_parse(&c->in, &req, &err), st = CDDP_OK;
    bool show = parsed == CDDP_OK && http_wants_status(&req) && http_may(c);

    if (parsed == CDDP_IN_PROGRESS)
        return;
    if (show)
        st = overview_take(c->home, &status);
    if (st == CDDP_OK)
        st = http_answer(parsed == CDDP_OK ? &req : NULL, show ? &status : NULL, &c->out);
    overview_release(&status);
    if (st != CDDP_OK)
        conn_close(c, CDI_LOG_WARN, "no memory for an answer");
    else if (parsed == CDDP_OK)
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_DEBUG, "answered");
    else
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
}

static void serve_control(struct conn *c)
{
    struct cdi_error err = {0};
    cddp_status st = session_feed(c->job->session, c->peer, &c->in, now_of(c->home), wall_ms(), &err);

    if (st < 0)
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
}

static void enter_job(struct conn *c, struct conn_job *job)
{
    c->job = job;
    job->n_conns++;
}

static void begin_store(struct conn *c, struct conn_job *job)
{
    struct cdi_kv *keys = session_keys(job->session);

    if (keys == NULL) {
        conn_close(c, CDI_LOG_INFO, "the job is over, or there is no memory for its keys");
        return;
    }
    enter_job(c, job);
    cdi_list_remove(&c->due);
    c->state = CONN_STORE;
    c->begun_ms = now_of(c->home);
    cdi_serve_init(&c->serve, keys, &c->out, on_store_woken);
    c->serve.counts = job->operations;
}

static void begin_control(struct conn *c, struct conn_job *job)
{
    struct in6_addr ip = ip_of(&c->addr);
    cddp_status st = nodes_add(&c->home->nodes, &ip, job);

    if (st == CDDP_OK && (st = session_attach(job->session, c, now_of(c->home), &c->peer)) != CDDP_OK)
        nodes_remove(&c->home->nodes, &ip, job);
    if (st != CDDP_OK) {
        conn_close(c, CDI_LOG_WARN, "no memory for another agent");
        return;
    }
    enter_job(c, job);
    cdi_list_remove(&c->due);
    c->agent = true;
    c->state = CONN_CONTROL;
}

/* Refuse an agent in the language of control messages; retry: for now; gone: its job is over. */
static void refuse_agent(struct conn *c, bool retry, bool gone, const char *why)
{
    struct cdi_msg m = {.type = CDI_MSG_CLOSED,
                        .u.closed = {.status = CDI_CLOSE_REFUSED, .retry = retry, .gone = gone}};

    (void)snprintf(m.u.closed.text, sizeof m.u.closed.text, "%.511s", why);
    (void)cdi_msg_encode(&m, &c->out, NULL); /* without memory it is closed all the same */
    conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, why);
}

/* -------------------------------------------------------------------------------------------- who may, and may not
 * ----
 */

static bool is_loopback(const struct in6_addr *ip)
{
    return IN6_IS_ADDR_LOOPBACK(ip) || (IN6_IS_ADDR_V4MAPPED(ip) && ip->s6_addr[12] == 127);
}

/* Who has not proved the secret; job NULL: a node of any job will do. */
static bool may(const struct conn *c, enum rdzv_who who, const struct conn_job *job)
{
    struct in6_addr ip = ip_of(&c->addr);

    switch (who) {
    case RDZV_ANY:
        return true;
    case RDZV_NEVER:
        return false;
    case RDZV_AUTO:
        break;
    }
    return c->home->secret == NULL || is_loopback(&ip) ||
           nodes_has(&c->home->nodes, &ip, job); /* they have proved it */
}

static bool http_may(const struct conn *c)
{
    return may(c, c->home->http, c->gate);
}

/* It gets nothing. The log names its address, but not again and again. */
static void deny(struct conn *c, const char *why)
{
    struct conn_home *home = c->home;
    struct in6_addr ip = ip_of(&c->addr);
    enum cdi_log_level level = CDI_LOG_WARN;
    size_t n = home->n_denied < CONN_DENIED_MAX ? home->n_denied : CONN_DENIED_MAX;

    for (size_t i = 0; i < n; i++)
        if (memcmp(&home->denied[i], &ip, sizeof ip) == 0)
            level = CDI_LOG_DEBUG;
    if (level == CDI_LOG_WARN)
        home->denied[home->n_denied++ % CONN_DENIED_MAX] = ip;
    conn_finish(c, CONN_DUE_LINGER, level, why);
}

/* Was it asked for a proof that has not come? */
static bool lacks_proof(const struct conn *c)
{
    return c->state == CONN_HELLO && c->hello.state == CDI_HELLO_S_PROVING && c->hello.auth;
}

/* -------------------------------------------------------------------------------------------------- visitors ---- */

/* Why it cannot stay, for whoever runs the job. */
static void say_full(const struct conn *c, char *why, size_t cap)
{
    char host[256] = "";
    struct rlimit files = {.rlim_cur = 0};

    if (c->visit == CONN_TOO_MANY) {
        (void)snprintf(why, cap, "there are %zu connections already, as many as %s allows; raise it",
                       c->home->max_connections, c->home->max_flag);
        return;
    }
    (void)gethostname(host, sizeof host - 1);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    (void)snprintf(why, cap,
                   "the rendezvous may open no more than %llu files on %s, and each rank and each agent needs one; "
                   "raise that limit there (ulimit -Hn)",
                   (unsigned long long)files.rlim_cur, host);
}

/* Will there be room soon? Somebody who does not say what it wants, or who is just leaving, keeps its place not long.
 */
static bool room_soon(const struct conn_home *home)
{
    return !cdi_list_empty(&home->due[CONN_DUE_OPEN]) || !cdi_list_empty(&home->due[CONN_DUE_LINGER]) ||
           !cdi_list_empty(&home->due[CONN_DUE_END]);
}

/* Has it earned its place, or may another connection have it? */
static bool is_unproved(const struct conn *c)
{
    return c->visit == CONN_STAYS && (c->state == CONN_SNIFFING || c->state == CONN_HELLO || c->state == CONN_HTTP ||
                                      (c->state == CONN_NEW && c->home->secret == NULL));
}

bool conn_make_room(struct conn_home *home)
{
    int64_t young_ms = now_of(home) + home->due_ms[CONN_DUE_OPEN] - YOUNG_MS;
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &home->due[CONN_DUE_LINGER]) {
        struct conn *c = cdi_list_of(node, struct conn, due);

        if (c->visit == CONN_STAYS && c->shut) {
            conn_close(c, CDI_LOG_DEBUG, "finished");
            return true;
        }
    }
    cdi_list_for_each (node, safe, &home->due[CONN_DUE_OPEN]) {
        struct conn *c = cdi_list_of(node, struct conn, due);

        if (c->deadline_ms > young_ms)
            return false; /* as are all that follow */
        if (is_unproved(c)) {
            conn_close(c, CDI_LOG_WARN, "it has not said what it wants, and another connection needs its place");
            return true;
        }
    }
    return false;
}

/* A visitor has said what it wants. One that would not understand an answer is closed, and so is one that shall try
 * again. */
static void turn_away(struct conn *c, bool understands)
{
    char why[512];

    say_full(c, why, sizeof why);
    if (!understands || cdi_hello_server_refuse(&c->hello, why, &c->out, NULL) != CDDP_OK)
        conn_close(c, CDI_LOG_WARN, why);
    else
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, why);
}

/* PyTorch's client understands no sentence, and tries again by itself. libcddp's does, and says so by its first PING.
 */
static void turn_away_plain(struct conn *c)
{
    const struct conn_job *job = c->gate != NULL ? c->gate : c->home->only;
    bool own;

    if (cdi_c10d_sniff_ping(cdi_buf_data(&c->in), c->in.len, &own) == CDDP_IN_PROGRESS)
        return;
    cdi_hello_server_init(&c->hello);
    turn_away(c, own && job != NULL && may(c, c->home->plain_store, job) && !room_soon(c->home));
}

/* --------------------------------------------------------------------------------------------------- opening ---- */

/*
 * A store client on the port of all jobs: most often torchrun, whose agents meet in a store. PyTorch's client can show
 * no text of ours: it prints the number that its first PING gets, if that is a wrong one. Without an answer it guesses
 * that the server has crashed. libcddp's client understands a refusal.
 */
static void explain_port_of_all(struct conn *c)
{
    static const char why[] =
        "it speaks the store's plain protocol on the port of all jobs, where cddprun's agents meet; "
        "ranks use the port of their job (MASTER_PORT), and torchrun cannot meet here";
    const uint8_t *bytes = cdi_buf_data(&c->in);
    uint8_t answer[4] = {NO_STORE & 0xff, NO_STORE >> 8};
    bool own;

    if (cdi_c10d_sniff_ping(bytes, c->in.len, &own) == CDDP_IN_PROGRESS)
        return;
    cdi_hello_server_init(&c->hello);
    if (own) {
        (void)cdi_hello_server_refuse(&c->hello, why, &c->out, NULL);
    } else if (bytes[CDI_C10D_HELLO_LEN] == CDI_C10D_PING) {
        answer[0] ^= memcmp(answer, bytes + CDI_C10D_HELLO_LEN + 1, sizeof answer) == 0; /* it must not be right */
        (void)cdi_buf_append(&c->out, answer, sizeof answer);
    }
    conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, why);
}

static void begin_plain_store(struct conn *c)
{
    struct conn_job *job = c->gate != NULL ? c->gate : c->home->only;

    if (job == NULL)
        explain_port_of_all(c);
    else if (!may(c, c->home->plain_store, job))
        deny(c, "it speaks the store's plain protocol, which does not prove the job's secret (see --plain_store)");
    else
        begin_store(c, job);
}

static void refuse_hello(struct conn *c, const char *why)
{
    (void)cdi_hello_server_refuse(&c->hello, why, &c->out, NULL);
    conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, why);
}

/* False: it was closed. */
static bool welcome_hello(struct conn *c)
{
    struct cdi_error err = {0};

    if (cdi_hello_server_welcome(&c->hello, &c->out, &err) != CDDP_OK) {
        conn_close(c, CDI_LOG_WARN, err.msg);
        return false;
    }
    mark_dirty(c);
    return true;
}

static struct conn_job *job_of_hello(const struct conn *c, const char *run_id)
{
    if (c->gate != NULL)
        return strcmp(c->gate->run_id, run_id) == 0 ? c->gate : NULL;
    return c->home->find_job(c->home, run_id);
}

static void admit_store(struct conn *c)
{
    struct conn_job *job = job_of_hello(c, c->hello.hello.run_id);
    const struct round *round = job == NULL ? NULL : session_round(job->session);
    char why[512];

    if (job == NULL) {
        (void)snprintf(why, sizeof why, "no job '%.255s' is here; check --rdzv_id and the port", c->hello.hello.run_id);
        refuse_hello(c, why);
    } else if (round_state(round) == ROUND_CLOSED) {
        refuse_hello(c, "the job is over");
    } else if (c->hello.hello.round != CDI_HELLO_CURRENT_ROUND && c->hello.hello.round != round_number(round)) {
        (void)snprintf(why, sizeof why, "this worker is of round %u of the job, and round %u is the current one",
                       c->hello.hello.round, round_number(round));
        refuse_hello(c, why);
    } else if (welcome_hello(c)) {
        begin_store(c, job);
    }
}

/* Said before JOIN, which a cddprun that looks for its rendezvous at several ports understands as "the next one". */
static bool is_of_another_job(const struct conn *c)
{
    const char *run_id = c->hello.hello.run_id;

    return c->home->only != NULL && run_id[0] != '\0' && strcmp(c->home->only->run_id, run_id) != 0;
}

static void admit(struct conn *c)
{
    struct conn_job *job;
    char why[512];

    if (c->hello.hello.kind == CDI_HELLO_STORE) {
        admit_store(c);
        return;
    }
    if (is_of_another_job(c)) {
        (void)snprintf(why, sizeof why,
                       "this rendezvous serves job '%.100s', not '%.100s'; check --rdzv_id and the port",
                       c->home->only->run_id, c->hello.hello.run_id);
        refuse_hello(c, why);
        return;
    }
    if (!welcome_hello(c))
        return;
    /* An agent's JOIN tells the rest. A server of one job lets the job's round say what does not fit. */
    job = c->home->only != NULL ? c->home->only : job_of_hello(c, c->hello.hello.run_id);
    if (job != NULL)
        begin_control(c, job);
    else
        c->state = CONN_NEW;
}

/* An agent that has sent JOIN without a HELLO is of another version. It understands CLOSED. */
static bool is_without_hello(const struct conn *c)
{
    const uint8_t *p = cdi_buf_data(&c->in);
    size_t skip = c->hello.opened ? 0 : CDI_CONTROL_OPENING_LEN;

    return c->hello.state == CDI_HELLO_S_OPENING && c->in.len >= skip + CDI_FRAME_HEADER &&
           p[skip + 4] == CDI_MSG_JOIN && p[skip + 5] == 0;
}

static void serve_hello(struct conn *c)
{
    struct cdi_error err = {0};
    cddp_status st = CDDP_OK;

    if (is_without_hello(c)) {
        refuse_agent(c, false, false,
                     "this cddprun is of another version than the rendezvous: it joins without HELLO; use one version "
                     "on all nodes");
        return;
    }
    while (st == CDDP_OK && c->state == CONN_HELLO) {
        st = cdi_hello_server_feed(&c->hello, &c->in, &c->out, &err);
        if (st == CDDP_OK && c->visit != CONN_STAYS) {
            turn_away(c, c->hello.hello.kind == CDI_HELLO_AGENT || !room_soon(c->home));
            return;
        }
        if (st == CDDP_OK && c->hello.state == CDI_HELLO_S_ASKED)
            st = cdi_hello_server_challenge(&c->hello, c->home->secret, &c->out, &err);
        else if (st == CDDP_OK)
            admit(c);
    }
    mark_dirty(c);
    if (st == CDDP_E_DENIED)
        deny(c, err.msg);
    else if (st < 0)
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
}

/* The first JOIN of a job makes it. */
static void serve_new(struct conn *c)
{
    struct conn_job *job = c->gate;
    struct cdi_error err = {0};
    struct cdi_frame f;
    struct cdi_msg m;
    cddp_status st = cdi_frame_next(&c->in, &f, &err);

    if (st == CDDP_OK)
        st = cdi_msg_decode(f.type, f.payload, f.len, &m, &err);
    if (st == CDDP_IN_PROGRESS)
        return;
    if (st == CDDP_OK && m.type != CDI_MSG_JOIN)
        st = cdi_fail(&err, CDDP_E_PROTOCOL, "it sends %s before JOIN", cdi_msg_name(m.type));
    if (st != CDDP_OK) {
        conn_finish(c, CONN_DUE_LINGER, CDI_LOG_WARN, err.msg);
        return;
    }
    if (job == NULL)
        job = c->home->find_job(c->home, m.u.join.run_id);
    if (job == NULL)
        st = c->home->make_job(c->home, &m.u.join, &job, &err);
    if (st != CDDP_OK) /* a job that ends makes room */
        refuse_agent(c, st == CDDP_E_LIMIT || st == CDDP_E_EXISTS, st == CDDP_E_CLOSED, err.msg);
    else
        begin_control(c, job);
}

static void sniff(struct conn *c)
{
    switch (cdi_sniff(cdi_buf_data(&c->in), c->in.len)) {
    case CDI_SNIFF_UNDECIDED:
        break;
    case CDI_SNIFF_STORE:
        if (c->visit != CONN_STAYS)
            turn_away_plain(c);
        else
            begin_plain_store(c);
        break;
    case CDI_SNIFF_CONTROL:
        cdi_hello_server_init(&c->hello);
        c->state = CONN_HELLO; /* the deadline stays, here and below */
        break;
    case CDI_SNIFF_HTTP:
        c->state = CONN_HTTP;
        break;
    case CDI_SNIFF_GARBAGE:
        conn_close(c, CDI_LOG_WARN, "its first bytes are of no protocol that is spoken here");
        break;
    }
}

/* Do what the bytes in c->in ask for. */
static void serve(struct conn *c)
{
    if (c->state == CONN_SNIFFING)
        sniff(c);
    if (c->state == CONN_HELLO)
        serve_hello(c);
    if (c->state == CONN_NEW)
        serve_new(c);
    switch (c->state) {
    case CONN_STORE:
        serve_store(c, &c->in);
        break;
    case CONN_CONTROL:
        serve_control(c);
        break;
    case CONN_HTTP:
        serve_http(c);
        break;
    case CONN_SNIFFING:
    case CONN_HELLO:
    case CONN_NEW:
    case CONN_LINGERING:
    case CONN_CLOSING:
        break;
    }
    if (c->state == CONN_STORE && c->in.len > 0)
        watch(c);
    /* A store connection seldom needs one again: see serve_store_at_once(). */
    if (c->in.len == 0 && (c->state == CONN_STORE || c->in.cap > KEEP))
        cdi_buf_release(&c->in);
}

/* Requests are carried out where they were read to; only what is left of an unfinished one is kept. */
static void serve_store_at_once(struct conn *c, uint8_t *bytes, size_t n)
{
    struct cdi_buf in = {.mem = bytes, .len = n, .cap = n, .limit = n};

    serve_store(c, &in);
    if (c->state != CONN_STORE || in.len == 0)
        return;
    c->begun_ms = now_of(c->home);
    if (cdi_buf_append(&c->in, cdi_buf_data(&in), in.len) != CDDP_OK)
        conn_close(c, CDI_LOG_WARN, "no memory for what it sends");
    else
        watch(c);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct conn *c = (struct conn *)stream;
    struct conn_home *home = c->home;

    if (n == 0)
        return;
    if (n == UV_EOF && c->state == CONN_LINGERING && queued(c) > 0) {
        (void)uv_read_stop(stream); /* it wants no more than the rest */
    } else if (n < 0 && lacks_proof(c)) {
        deny(c, "it went without proving the job's secret");
    } else if (n == UV_EOF) {
        conn_close(c, CDI_LOG_DEBUG, "its connection closed");
    } else if (n < 0) {
        broke(c, (int)n);
    } else if (c->state == CONN_STORE && c->in.len == 0) {
        serve_store_at_once(c, (uint8_t *)buf->base, (size_t)n);
    } else if (c->state != CONN_LINGERING) {
        if (cdi_buf_append(&c->in, buf->base, (size_t)n) != CDDP_OK)
            conn_close(c, CDI_LOG_WARN, "no memory for what it sends");
        else
            serve(c);
    }
    account(c);
    if (home->buffered > home->max_buffered && c->held > KEEP)
        conn_close(c, CDI_LOG_WARN,
                   "requests and replies that are not complete take more memory than they may, its own too");
    conn_flush_all(home);
}

/* --------------------------------------------------------------------------------------------- opening, time ---- */

void conn_home_init(struct conn_home *home, uv_loop_t *loop, int64_t undecided_ms)
{
    home->loop = loop;
    home->max_connections = SIZE_MAX;
    home->due_ms[CONN_DUE_OPEN] = undecided_ms;
    home->due_ms[CONN_DUE_VISIT] = undecided_ms < VISIT_MS ? undecided_ms : VISIT_MS;
    home->due_ms[CONN_DUE_LINGER] = LINGER_MS;
    home->due_ms[CONN_DUE_END] = END_MS;
    for (int kind = 0; kind < CONN_N_DUES; kind++)
        cdi_list_init(&home->due[kind]);
    cdi_list_init(&home->busy);
    cdi_list_init(&home->conns);
    cdi_list_init(&home->dirty);
    cdi_list_init(&home->jobs);
    nodes_init(&home->nodes);
}

cddp_status conn_open(struct conn_home *home, int fd, const struct sockaddr_storage *addr, struct conn_job *gate,
                      enum conn_visit visit)
{
    struct conn *c = calloc(1, sizeof *c);

    if (c == NULL || uv_tcp_init(home->loop, &c->tcp) != 0) {
        free(c);
        (void)close(fd);
        return CDDP_E_NOMEM;
    }
    c->home = home;
    c->gate = gate;
    c->addr = *addr;
    c->visit = visit;
    cdi_buf_init(&c->in, IN_MAX);
    cdi_buf_init(&c->out, OUT_MAX);
    cdi_buf_init(&c->flying, OUT_MAX);
    cdi_list_init(&c->dirty);
    cdi_list_init(&c->due);
    cdi_list_init(&c->busy);
    await(c, visit != CONN_STAYS ? CONN_DUE_VISIT : CONN_DUE_OPEN);
    cdi_list_push_back(&home->conns, &c->link);
    home->n_open++;
    home->n_visitors += visit != CONN_STAYS;
    home->n_visitor_files += visit != CONN_STAYS;
    home->n_accepted++;
    if (uv_tcp_open(&c->tcp, fd) != 0) {
        (void)close(fd);
        conn_close(c, CDI_LOG_WARN, "the socket cannot be used");
        return CDDP_E_SYSTEM;
    }
    if (uv_read_start((uv_stream_t *)&c->tcp, alloc_scratch, on_read) != 0) {
        conn_close(c, CDI_LOG_WARN, "the socket cannot be read");
        return CDDP_E_SYSTEM;
    }
    return CDDP_OK;
}

/* Its deadline has come. */
static void too_late(struct conn *c)
{
    char why[512];

    cdi_list_remove(&c->due);
    if (c->state == CONN_LINGERING) {
        conn_close(c, CDI_LOG_DEBUG, "finished");
    } else if (c->visit != CONN_STAYS) {
        say_full(c, why, sizeof why);
        conn_close(c, CDI_LOG_WARN, why);
    } else if (lacks_proof(c)) {
        deny(c, "it did not prove the job's secret in time");
    } else {
        conn_close(c, CDI_LOG_INFO, "it did not say in time what it wants");
    }
}

/* One that has something unfinished: is it going on? */
static void look(struct conn *c, int64_t now_ms)
{
    size_t queue = uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp);
    bool half = c->state == CONN_STORE && c->in.len > 0;

    if (half && !c->paused && now_ms - c->begun_ms >= c->home->stall_ms) {
        conn_close(c, CDI_LOG_WARN, "it did not finish its request in time");
    } else if (c->writing && queue == c->queue_seen && now_ms - c->progress_ms >= c->home->stall_ms) {
        conn_close(c, CDI_LOG_WARN, "it does not read what it is sent");
    } else if (queue != c->queue_seen) {
        c->queue_seen = queue;
        c->progress_ms = now_ms;
    } else if (!c->writing && !half) {
        cdi_list_remove(&c->busy);
    }
}

static void tell_of_silent_drops(struct conn_home *home)
{
    if (home->drops.silent == 0 || now_of(home) - home->drops.ms < 1000)
        return;
    cdi_log(CDI_LOG_WARN, "RDZV-DROPS", "rendezvous: %llu more connections were closed for such reasons",
            (unsigned long long)home->drops.silent);
    home->drops.silent = 0;
}

void conn_tick(struct conn_home *home)
{
    struct cdi_list *node, *safe;
    int64_t now_ms = now_of(home);

    tell_of_silent_drops(home);
    for (int kind = 0; kind < CONN_N_DUES; kind++) {
        struct cdi_list *list = &home->due[kind];

        while (!cdi_list_empty(list) && cdi_list_of(list->next, struct conn, due)->deadline_ms <= now_ms)
            too_late(cdi_list_of(list->next, struct conn, due));
    }
    cdi_list_for_each (node, safe, &home->busy) {
        look(cdi_list_of(node, struct conn, busy), now_ms);
    }
}
