/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/conn.h"
#include "protocol/frame.h"
#include "protocol/sniff.h"
#include "rendezvous/http.h"
#include "rendezvous/session.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OUT_MAX (128u * 1024 * 1024) /* bytes of replies that wait for one connection */
#define OUT_ENOUGH (1024u * 1024)    /* from here on no further request of it is read */
#define IN_MAX (CDI_C10D_REQUEST_MAX + 1024u * 1024)
#define KEEP 16384 /* an empty buffer larger than this is freed */
#define LINGER_MS 2000

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

/* "[::1]:29500", without asking anybody for names. */
static void name_of(const struct conn *c, char buf[80])
{
    char ip[INET6_ADDRSTRLEN] = "?";

    if (c->addr.ss_family == AF_INET6) {
        struct sockaddr_in6 a;

        memcpy(&a, &c->addr, sizeof a);
        if (IN6_IS_ADDR_V4MAPPED(&a.sin6_addr)) {
            (void)inet_ntop(AF_INET, &a.sin6_addr.s6_addr[12], ip, sizeof ip);
            (void)snprintf(buf, 80, "%s:%u", ip, ntohs(a.sin6_port));
        } else {
            (void)inet_ntop(AF_INET6, &a.sin6_addr, ip, sizeof ip);
            (void)snprintf(buf, 80, "[%s]:%u", ip, ntohs(a.sin6_port));
        }
    } else {
        struct sockaddr_in a;

        memcpy(&a, &c->addr, sizeof a);
        (void)inet_ntop(AF_INET, &a.sin_addr, ip, sizeof ip);
        (void)snprintf(buf, 80, "%s:%u", ip, ntohs(a.sin_port));
    }
}

/* ------------------------------------------------------------------------------------------------------- closing ----
 */

static void on_closed(uv_handle_t *handle)
{
    struct conn *c = (struct conn *)handle;
    struct conn_home *home = c->home;

    if (c->agent && home->session != NULL) {
        session_detach(home->session, c->peer, c->why, c->broken, now_of(home), wall_ms());
        conn_flush_all(home);
    }
    cdi_buf_release(&c->in);
    cdi_buf_release(&c->out);
    cdi_buf_release(&c->flying);
    free(c);
    home->n_open--;
    home->conn_closed(home);
}

static void log_drop(const struct conn *c, enum cdi_log_level level, const char *why)
{
    char name[80];

    name_of(c, name);
    cdi_log(level, "RDZV-DROP", "rendezvous: connection from %s closed: %s", name, why);
}

static void leave_store(struct conn *c)
{
    if (c->state == CONN_STORE)
        cdi_serve_release(&c->serve);
}

void conn_close(struct conn *c, enum cdi_log_level level, const char *why)
{
    if (c->state == CONN_CLOSING)
        return;
    if (c->state != CONN_LINGERING) {
        (void)snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, why);
        log_drop(c, level, why);
    }
    leave_store(c);
    c->state = CONN_CLOSING;
    cdi_list_remove(&c->link);
    cdi_list_remove(&c->dirty);
    uv_close((uv_handle_t *)&c->tcp, on_closed);
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

void conn_finish(struct conn *c, int64_t linger_ms, enum cdi_log_level level, const char *why)
{
    if (c->state == CONN_CLOSING || c->state == CONN_LINGERING)
        return;
    (void)snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, why);
    log_drop(c, level, why);
    leave_store(c);
    c->state = CONN_LINGERING;
    c->deadline_ms = now_of(c->home) + linger_ms;
    cdi_buf_release(&c->in);
    mark_dirty(c);
}

/* ------------------------------------------------------------------------------------------------------- writing ----
 */

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

/* ------------------------------------------------------------------------------------------------------- reading ----
 */

static void on_store_woken(struct cdi_serve *s)
{
    mark_dirty(cdi_list_of(s, struct conn, serve));
}

static void serve_store(struct conn *c)
{
    struct cdi_error err = {0};
    cddp_status st;

    do {
        st = cdi_serve_feed(&c->serve, &c->in, OUT_ENOUGH, &err);
        flush(c);
    } while (st == CDDP_IN_PROGRESS && c->state == CONN_STORE && queued(c) < OUT_ENOUGH);
    if (c->state != CONN_STORE)
        return;
    if (st < 0) {
        conn_finish(c, LINGER_MS, CDI_LOG_WARN, err.msg);
    } else if (queued(c) >= OUT_ENOUGH) {
        /* It asks faster than it reads: let it wait until on_written(), which is sure to come. */
        c->paused = true;
        (void)uv_read_stop((uv_stream_t *)&c->tcp);
    }
}

static void serve_http(struct conn *c)
{
    struct http_request req;
    struct cdi_error err = {0};
    cddp_status st = http_parse(&c->in, &req, &err);

    if (st == CDDP_IN_PROGRESS)
        return;
    if (http_answer(st == CDDP_OK ? &req : NULL, &c->out) != CDDP_OK)
        conn_close(c, CDI_LOG_WARN, "no memory for an answer");
    else
        conn_finish(c, LINGER_MS, st == CDDP_OK ? CDI_LOG_DEBUG : CDI_LOG_WARN, st == CDDP_OK ? "answered" : err.msg);
}

static void serve_control(struct conn *c)
{
    struct cdi_error err = {0};
    struct session *session = c->home->session;
    cddp_status st = session_feed(session, c->peer, &c->in, now_of(c->home), wall_ms(), &err);

    if (st < 0)
        conn_finish(c, LINGER_MS, CDI_LOG_WARN, err.msg);
}

static void begin_store(struct conn *c)
{
    struct cdi_kv *keys = session_keys(c->home->session);

    if (keys == NULL) {
        conn_close(c, CDI_LOG_INFO, "the job is over, or there is no memory for its keys");
        return;
    }
    c->state = CONN_STORE;
    cdi_serve_init(&c->serve, keys, &c->out, on_store_woken);
}

static void begin_control(struct conn *c)
{
    (void)cdi_frame_take_opening(&c->in);
    if (session_attach(c->home->session, c, now_of(c->home), &c->peer) != CDDP_OK) {
        conn_close(c, CDI_LOG_WARN, "no memory for another agent");
        return;
    }
    c->agent = true;
    c->state = CONN_CONTROL;
}

static void sniff(struct conn *c)
{
    switch (cdi_sniff(cdi_buf_data(&c->in), c->in.len)) {
    case CDI_SNIFF_UNDECIDED:
        break;
    case CDI_SNIFF_STORE:
        begin_store(c);
        break;
    case CDI_SNIFF_CONTROL:
        begin_control(c);
        break;
    case CDI_SNIFF_HTTP:
        c->state = CONN_HTTP; /* the deadline stays */
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
    switch (c->state) {
    case CONN_STORE:
        serve_store(c);
        break;
    case CONN_CONTROL:
        serve_control(c);
        break;
    case CONN_HTTP:
        serve_http(c);
        break;
    case CONN_SNIFFING:
    case CONN_LINGERING:
    case CONN_CLOSING:
        break;
    }
    if (c->in.len == 0 && c->in.cap > KEEP)
        cdi_buf_release(&c->in);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct conn *c = (struct conn *)stream;
    struct conn_home *home = c->home;

    if (n == 0)
        return;
    if (n == UV_EOF && c->state == CONN_LINGERING && queued(c) > 0) {
        (void)uv_read_stop(stream); /* it wants no more than the rest */
    } else if (n == UV_EOF) {
        conn_close(c, CDI_LOG_DEBUG, "its connection closed");
    } else if (n < 0) {
        broke(c, (int)n);
    } else if (c->state != CONN_LINGERING) {
        if (cdi_buf_append(&c->in, buf->base, (size_t)n) != CDDP_OK)
            conn_close(c, CDI_LOG_WARN, "no memory for what it sends");
        else
            serve(c);
    }
    conn_flush_all(home);
}

/* ------------------------------------------------------------------------------------------------- opening, time ----
 */

cddp_status conn_open(struct conn_home *home, int fd, const struct sockaddr_storage *addr)
{
    struct conn *c = calloc(1, sizeof *c);

    if (c == NULL || uv_tcp_init(home->loop, &c->tcp) != 0) {
        free(c);
        (void)close(fd);
        return CDDP_E_NOMEM;
    }
    c->home = home;
    c->addr = *addr;
    c->deadline_ms = now_of(home) + home->undecided_ms;
    cdi_buf_init(&c->in, IN_MAX);
    cdi_buf_init(&c->out, OUT_MAX);
    cdi_buf_init(&c->flying, OUT_MAX);
    cdi_list_init(&c->dirty);
    cdi_list_push_back(&home->conns, &c->link);
    home->n_open++;
    if (uv_tcp_open(&c->tcp, fd) != 0) {
        (void)close(fd);
        conn_close(c, CDI_LOG_WARN, "the socket cannot be used");
        return CDDP_E_SYSTEM;
    }
    (void)uv_tcp_nodelay(&c->tcp, 1);
    if (uv_read_start((uv_stream_t *)&c->tcp, alloc_scratch, on_read) != 0) {
        conn_close(c, CDI_LOG_WARN, "the socket cannot be read");
        return CDDP_E_SYSTEM;
    }
    return CDDP_OK;
}

static void look(struct conn *c, int64_t now_ms)
{
    size_t queue = uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp);

    if (c->state == CONN_LINGERING && now_ms >= c->deadline_ms) {
        conn_close(c, CDI_LOG_DEBUG, "finished");
    } else if ((c->state == CONN_SNIFFING || c->state == CONN_HTTP) && now_ms >= c->deadline_ms) {
        conn_close(c, CDI_LOG_INFO, "it did not say in time what it wants");
    } else if (c->writing && queue == c->queue_seen && now_ms - c->progress_ms >= c->home->stall_ms) {
        conn_close(c, CDI_LOG_WARN, "it does not read what it is sent");
    } else if (queue != c->queue_seen) {
        c->queue_seen = queue;
        c->progress_ms = now_ms;
    }
}

void conn_tick(struct conn_home *home)
{
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &home->conns)
        look(cdi_list_of(node, struct conn, link), now_of(home));
}
