/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/conn.h"
#include "common/address.h"
#include "rendezvous/round/session.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINGER_MS 2000
#define END_MS 1000
#define QUERY_MS 60000

static void conn_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

struct in6_addr conn_ip(const struct sockaddr_storage *addr)
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

/* Updates the sum of buffered bytes after a buffer has grown or shrunk. */
static void conn_account(struct conn *c)
{
    size_t held = c->in.cap + c->out.cap + c->flying.cap;

    c->ctx->buffered += held - c->held;
    c->held = held;
}

static void conn_on_closed(uv_handle_t *handle)
{
    struct conn *c = (struct conn *)handle;
    struct conn_ctx *ctx = c->ctx;
    struct conn_job *job = c->job;

    if (c->agent) {
        session_detach(job->session, c->peer, c->why, c->broken, conn_now_ms(ctx), conn_wall_ms());
        conn_flush_all(ctx);
    }
    cdi_buf_release(&c->in);
    cdi_buf_release(&c->out);
    cdi_buf_release(&c->flying);
    conn_account(c);
    ctx->n_overflow -= c->reject != CONN_ACCEPTED;
    ctx->n_closing -= c->reject == CONN_ACCEPTED;
    free(c);
    ctx->n_open--;
    if (job != NULL)
        job->n_conns--;
    ctx->conn_closed(ctx, job);
}

static void log_drop(const struct conn *c, enum cdi_log_level level, const char *why)
{
    char name[CDI_ADDRESS_TEXT];

    cdi_address_text((const struct sockaddr *)&c->addr, name);
    c->ctx->n_dropped += level >= CDI_LOG_WARN;
    drop_log_add(&c->ctx->drops, level, name, why, conn_now_ms(c->ctx));
}

void conn_set_due(struct conn *c, enum conn_due kind)
{
    c->deadline_ms = conn_now_ms(c->ctx) + c->ctx->due_ms[kind];
    cdi_list_remove(&c->due);
    cdi_list_push_back(&c->ctx->due[kind], &c->due);
}

void conn_watch(struct conn *c)
{
    if (cdi_list_empty(&c->busy))
        cdi_list_push_back(&c->ctx->busy, &c->busy);
}

/* Releases what belongs to the current state. */
static void leave_state(struct conn *c)
{
    struct in6_addr ip = conn_ip(&c->addr);

    if (c->state == CONN_STORE)
        cdi_serve_release(&c->serve);
    else if (c->state == CONN_CONTROL)
        agent_addrs_remove(&c->ctx->agent_addrs, &ip, c->job);
    else if (c->state == CONN_QUERY)
        c->ctx->n_queries--;
    cdi_list_remove(&c->asking);
}

void conn_close(struct conn *c, enum cdi_log_level level, const char *why)
{
    if (c->state == CONN_CLOSING)
        return;
    if (c->state != CONN_LINGERING) {
        (void)snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, why);
        log_drop(c, level, why);
    }
    leave_state(c);
    c->state = CONN_CLOSING;
    cdi_list_remove(&c->link);
    cdi_list_remove(&c->dirty);
    cdi_list_remove(&c->due);
    cdi_list_remove(&c->busy);
    c->ctx->n_overflow_files -= c->reject != CONN_ACCEPTED;
    c->ctx->n_closing += c->reject == CONN_ACCEPTED;
    uv_close((uv_handle_t *)&c->tcp, conn_on_closed); /* closes the descriptor now */
}

/* Closes after an I/O error. Its agent may reconnect. */
static void close_broken(struct conn *c, int status)
{
    if (c->state != CONN_LINGERING)
        c->broken = true;
    conn_close(c, CDI_LOG_INFO, uv_strerror(status));
}

static void conn_on_shutdown(uv_shutdown_t *req, int status)
{
    struct conn *c = (struct conn *)req->handle;

    /*
     * The client closes after reading, and its EOF closes this side. A server that shuts down does not wait for that.
     */
    if (c->state == CONN_LINGERING && (status != 0 || c->ctx->closing))
        conn_close(c, CDI_LOG_DEBUG, "finished");
}

/* LINGERING: shuts the connection down when all bytes are written. */
static void shutdown_if_written(struct conn *c)
{
    if (c->writing || c->out.len > 0 || c->shut)
        return;
    c->shut = true;
    if (uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, conn_on_shutdown) != 0)
        conn_close(c, CDI_LOG_DEBUG, "finished");
}

void conn_mark_dirty(struct conn *c)
{
    conn_account(c);
    if (cdi_list_empty(&c->dirty))
        cdi_list_push_back(&c->ctx->dirty, &c->dirty);
}

void conn_finish(struct conn *c, enum conn_due due, enum cdi_log_level level, const char *why)
{
    if (c->state == CONN_CLOSING || c->state == CONN_LINGERING)
        return;
    (void)snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, why);
    log_drop(c, level, why);
    leave_state(c);
    c->state = CONN_LINGERING;
    conn_set_due(c, c->reject != CONN_ACCEPTED ? CONN_DUE_REJECT : due);
    cdi_buf_release(&c->in);
    conn_mark_dirty(c);
}

/* --------------------------------------------------------------------------------------------------- writing ---- */

static void alloc_scratch(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    const struct conn *c = (const struct conn *)handle;

    (void)suggested;
    *buf = uv_buf_init((char *)c->ctx->scratch, sizeof c->ctx->scratch);
}

static void conn_on_written(uv_write_t *req, int status)
{
    struct conn *c = (struct conn *)req->handle;

    c->writing = false;
    cdi_buf_release(&c->flying);
    conn_account(c);
    if (status != 0) {
        if (status != UV_ECANCELED)
            close_broken(c, status);
        return;
    }
    c->progress_ms = conn_now_ms(c->ctx);
    conn_mark_dirty(c);
    if (c->paused && c->state != CONN_CLOSING) {
        c->paused = false;
        (void)uv_read_start((uv_stream_t *)&c->tcp, alloc_scratch, conn_on_read);
        c->ctx->ops->resumed(c);
    }
    conn_flush_all(c->ctx);
}

static void write_queued(struct conn *c)
{
    uv_buf_t b = uv_buf_init((char *)(uintptr_t)cdi_buf_data(&c->out), (unsigned)c->out.len);
    int n;

    if (c->writing || c->out.len == 0)
        return;
    n = uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
    if (n < 0 && n != UV_EAGAIN) {
        close_broken(c, n);
        return;
    }
    if (n > 0)
        cdi_buf_consume(&c->out, (size_t)n);
    if (c->out.len == 0) {
        if (c->out.cap > CONN_KEEP)
            cdi_buf_release(&c->out);
        return;
    }
    c->flying = c->out;
    cdi_buf_init(&c->out, c->flying.limit);
    b = uv_buf_init((char *)(uintptr_t)cdi_buf_data(&c->flying), (unsigned)c->flying.len);
    c->writing = true;
    conn_watch(c);
    c->progress_ms = conn_now_ms(c->ctx);
    c->queue_seen = c->flying.len;
    n = uv_write(&c->write, (uv_stream_t *)&c->tcp, &b, 1, conn_on_written);
    if (n != 0) {
        c->writing = false;
        close_broken(c, n);
    }
}

/* Whatever fills a connection's buffers ends here, so the limit is checked here: replies grow without a read, too. */
void conn_flush(struct conn *c)
{
    write_queued(c);
    conn_account(c);
    if (c->ctx->buffered > c->ctx->max_buffered && c->held > CONN_KEEP)
        conn_close(c, CDI_LOG_WARN, "incomplete requests and replies of all connections exceed the memory limit");
}

void conn_flush_all(struct conn_ctx *ctx)
{
    while (!cdi_list_empty(&ctx->dirty)) {
        struct conn *c = cdi_list_of(ctx->dirty.next, struct conn, dirty);

        cdi_list_remove(&c->dirty);
        if (c->state == CONN_STORE && c->serve.broken) {
            conn_close(c, CDI_LOG_WARN, "the client does not read its replies");
            continue;
        }
        conn_flush(c);
        if (c->state == CONN_LINGERING)
            shutdown_if_written(c);
    }
}

void conn_send(struct conn *c, const void *bytes, size_t len)
{
    if (c->state == CONN_CLOSING || c->state == CONN_LINGERING)
        return;
    if (cdi_buf_append(&c->out, bytes, len) != CDDP_OK)
        conn_close(c, CDI_LOG_WARN, "the peer does not read what it is sent");
    else
        conn_mark_dirty(c);
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

void conn_pause(struct conn *c)
{
    c->paused = true;
    (void)uv_read_stop((uv_stream_t *)&c->tcp);
}

/* EOF or a read error. */
static void conn_on_end(struct conn *c, int status)
{
    if (status == UV_EOF && c->state == CONN_LINGERING && conn_queued(c) > 0)
        (void)uv_read_stop((uv_stream_t *)&c->tcp); /* the peer only reads the rest */
    else if (c->ctx->ops->ended(c))
        return;
    else if (status == UV_EOF)
        conn_close(c, CDI_LOG_DEBUG, "its connection closed");
    else
        close_broken(c, status);
}

static void conn_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct conn *c = (struct conn *)stream;
    struct conn_ctx *ctx = c->ctx;

    if (n == 0)
        return;
    if (n < 0)
        conn_on_end(c, (int)n);
    else if (c->state != CONN_LINGERING)
        ctx->ops->received(c, (uint8_t *)buf->base, (size_t)n);
    conn_flush(c);
    conn_flush_all(ctx);
}

/* --------------------------------------------------------------------------------------------------- opening ---- */

bool conn_room_soon(const struct conn_ctx *ctx)
{
    return !cdi_list_empty(&ctx->due[CONN_DUE_OPEN]) || !cdi_list_empty(&ctx->due[CONN_DUE_LINGER]) ||
           !cdi_list_empty(&ctx->due[CONN_DUE_END]);
}

/* Returns true if it may be closed to make room for another connection. */
static bool is_unproved(const struct conn *c)
{
    return c->reject == CONN_ACCEPTED && (c->state == CONN_SNIFFING || c->state == CONN_HELLO ||
                                          c->state == CONN_HTTP || (c->state == CONN_NEW && c->ctx->secret == NULL));
}

bool conn_make_room(struct conn_ctx *ctx)
{
    int64_t young_ms = conn_now_ms(ctx) + ctx->due_ms[CONN_DUE_OPEN] - CDI_SERVE_YOUNG_MS;
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &ctx->due[CONN_DUE_LINGER]) {
        struct conn *c = cdi_list_of(node, struct conn, due);

        if (c->reject == CONN_ACCEPTED && c->shut) {
            conn_close(c, CDI_LOG_DEBUG, "finished");
            return true;
        }
    }
    cdi_list_for_each (node, safe, &ctx->due[CONN_DUE_OPEN]) {
        struct conn *c = cdi_list_of(node, struct conn, due);

        if (c->deadline_ms > young_ms)
            return false; /* all that follow are younger */
        if (is_unproved(c)) {
            conn_close(c, CDI_LOG_WARN, "it sent no request, and another connection needs its slot");
            return true;
        }
    }
    return false;
}

void conn_ctx_init(struct conn_ctx *ctx, uv_loop_t *loop, int64_t undecided_ms)
{
    ctx->loop = loop;
    ctx->started_ms = conn_now_ms(ctx);
    ctx->started_wall_ms = conn_wall_ms();
    drop_log_init(&ctx->drops, ctx->started_ms);
    ctx->max_connections = SIZE_MAX;
    ctx->due_ms[CONN_DUE_OPEN] = undecided_ms;
    ctx->due_ms[CONN_DUE_REJECT] = undecided_ms < CDI_SERVE_OVERFLOW_MS ? undecided_ms : CDI_SERVE_OVERFLOW_MS;
    ctx->due_ms[CONN_DUE_LINGER] = LINGER_MS;
    ctx->due_ms[CONN_DUE_END] = END_MS;
    ctx->due_ms[CONN_DUE_QUERY] = QUERY_MS;
    for (int kind = 0; kind < CONN_N_DUES; kind++)
        cdi_list_init(&ctx->due[kind]);
    cdi_list_init(&ctx->busy);
    cdi_list_init(&ctx->conns);
    cdi_list_init(&ctx->dirty);
    cdi_list_init(&ctx->jobs);
    cdi_list_init(&ctx->asking);
    agent_addrs_init(&ctx->agent_addrs);
}

cddp_status conn_open(struct conn_ctx *ctx, int fd, const struct sockaddr_storage *addr, struct conn_job *port_job,
                      enum conn_reject reject)
{
    struct conn *c = calloc(1, sizeof *c);

    if (c == NULL || uv_tcp_init(ctx->loop, &c->tcp) != 0) {
        free(c);
        (void)close(fd);
        return CDDP_E_NOMEM;
    }
    c->ctx = ctx;
    c->port_job = port_job;
    c->addr = *addr;
    c->reject = reject;
    cdi_buf_init(&c->in, CDI_SERVE_IN_MAX);
    cdi_buf_init(&c->out, CDI_SERVE_OUT_MAX);
    cdi_buf_init(&c->flying, CDI_SERVE_OUT_MAX);
    cdi_list_init(&c->dirty);
    cdi_list_init(&c->due);
    cdi_list_init(&c->busy);
    cdi_list_init(&c->asking);
    conn_set_due(c, reject != CONN_ACCEPTED ? CONN_DUE_REJECT : CONN_DUE_OPEN);
    cdi_list_push_back(&ctx->conns, &c->link);
    ctx->n_open++;
    ctx->n_overflow += reject != CONN_ACCEPTED;
    ctx->n_overflow_files += reject != CONN_ACCEPTED;
    ctx->n_accepted++;
    if (uv_tcp_open(&c->tcp, fd) != 0) {
        (void)close(fd);
        conn_close(c, CDI_LOG_WARN, "libuv cannot use the socket");
        return CDDP_E_SYSTEM;
    }
    if (uv_read_start((uv_stream_t *)&c->tcp, alloc_scratch, conn_on_read) != 0) {
        conn_close(c, CDI_LOG_WARN, "libuv cannot read the socket");
        return CDDP_E_SYSTEM;
    }
    return CDDP_OK;
}

/* ------------------------------------------------------------------------------------------------------ time ---- */

static void conn_overdue(struct conn *c)
{
    cdi_list_remove(&c->due);
    if (c->state == CONN_LINGERING)
        conn_close(c, CDI_LOG_DEBUG, "finished");
    else
        c->ctx->ops->overdue(c);
}

/* Closes a connection whose request or replies make no progress. */
static void check_progress(struct conn *c, int64_t now_ms)
{
    size_t queue = uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp);
    bool half = c->state == CONN_STORE && c->in.len > 0;

    if (half && !c->paused && now_ms - c->begun_ms >= c->ctx->stall_ms) {
        conn_close(c, CDI_LOG_WARN, "timed out before completing its request");
    } else if (c->writing && queue == c->queue_seen && now_ms - c->progress_ms >= c->ctx->stall_ms) {
        conn_close(c, CDI_LOG_WARN, "the peer does not read what it is sent");
    } else if (queue != c->queue_seen) {
        c->queue_seen = queue;
        c->progress_ms = now_ms;
    } else if (!c->writing && !half) {
        cdi_list_remove(&c->busy);
    }
}

void conn_tick(struct conn_ctx *ctx)
{
    struct cdi_list *node, *safe;
    int64_t now_ms = conn_now_ms(ctx);

    drop_log_tick(&ctx->drops, now_ms);
    for (int kind = 0; kind < CONN_N_DUES; kind++) {
        struct cdi_list *list = &ctx->due[kind];

        while (!cdi_list_empty(list) && cdi_list_of(list->next, struct conn, due)->deadline_ms <= now_ms)
            conn_overdue(cdi_list_of(list->next, struct conn, due));
    }
    cdi_list_for_each (node, safe, &ctx->busy) {
        check_progress(cdi_list_of(node, struct conn, busy), now_ms);
    }
}
