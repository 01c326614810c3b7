/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/join.h"

#include "common/clock.h"
#include "protocol/frame.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_FIRST_MS 20
#define RETRY_MAX_MS 1000
#define CLOSE_WAIT_MS 1000
#define QUEUE_MAX (1024u * 1024) /* bytes on their way out; more means that nobody reads */

struct join {
    uv_loop_t *loop;
    uv_tcp_t tcp;
    uv_timer_t retry, beat;
    uv_connect_t connect;
    uv_shutdown_t shutdown;
    struct join_options opt;
    struct join_events on;
    void *arg;
    struct cdi_buf in;
    char chunk[16384];
    uint64_t wait_ms;
    uint32_t beat_seq;
    bool tcp_open; /* tcp is initialised and not closing */
    bool connected, lost, closing;
    int open_handles;
    int last_error;
};

static void try_connect(struct join *j);

static void on_closed(uv_handle_t *h)
{
    struct join *j = h->data;

    if (--j->open_handles > 0 || !j->closing)
        return;
    cdi_buf_release(&j->in);
    free(j);
}

static void close_tcp(struct join *j)
{
    if (!j->tcp_open)
        return;
    j->tcp_open = false;
    j->connected = false;
    uv_close((uv_handle_t *)&j->tcp, on_closed);
}

static void lose(struct join *j, const char *text)
{
    if (j->lost || j->closing)
        return;
    j->lost = true;
    close_tcp(j);
    (void)uv_timer_stop(&j->retry);
    (void)uv_timer_stop(&j->beat);
    j->on.lost(j->arg, text);
}

/* --------------------------------------------------------------------------------------------------- writing ---- */

struct out {
    uv_write_t req;
    struct cdi_buf bytes;
};

static void on_written(uv_write_t *req, int status)
{
    struct out *o = (struct out *)req;

    (void)status; /* a broken connection is seen by the reading side */
    cdi_buf_release(&o->bytes);
    free(o);
}

static void send_bytes(struct join *j, struct out *o)
{
    uv_buf_t b = uv_buf_init((char *)(uintptr_t)cdi_buf_data(&o->bytes), (unsigned)o->bytes.len);

    if (uv_stream_get_write_queue_size((uv_stream_t *)&j->tcp) > QUEUE_MAX ||
        uv_write(&o->req, (uv_stream_t *)&j->tcp, &b, 1, on_written) != 0)
        on_written(&o->req, 0);
}

static struct out *new_out(void)
{
    struct out *o = calloc(1, sizeof *o);

    if (o != NULL)
        cdi_buf_init(&o->bytes, 2 * CDI_FRAME_MAX);
    return o;
}

void join_send(struct join *j, const struct cdi_msg *msg)
{
    struct out *o;

    if (j == NULL || !j->connected || j->closing || (o = new_out()) == NULL)
        return;
    if (cdi_msg_encode(msg, &o->bytes, NULL) == CDDP_OK)
        send_bytes(j, o);
    else
        on_written(&o->req, 0);
}

static void send_hello(struct join *j)
{
    struct cdi_msg msg = {.type = CDI_MSG_JOIN, .u.join = j->opt.hello};
    struct out *o = new_out();

    if (o != NULL && cdi_frame_put_opening(&o->bytes) == CDDP_OK && cdi_msg_encode(&msg, &o->bytes, NULL) == CDDP_OK) {
        send_bytes(j, o);
        return;
    }
    if (o != NULL)
        on_written(&o->req, 0);
    lose(j, "out of memory while joining the rendezvous");
}

static void on_beat(uv_timer_t *t)
{
    struct join *j = t->data;
    struct cdi_msg msg = {.type = CDI_MSG_HEARTBEAT};

    msg.u.heartbeat.seq = ++j->beat_seq;
    join_send(j, &msg);
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct join *j = h->data;

    (void)suggested;
    *buf = uv_buf_init(j->chunk, sizeof j->chunk);
}

static void handle(struct join *j, const struct cdi_msg *msg)
{
    if (msg->type == CDI_MSG_WELCOME) {
        uint64_t every = msg->u.welcome.lease_ms / 3;

        (void)uv_timer_start(&j->beat, on_beat, every == 0 ? 1 : every, every == 0 ? 1 : every);
    }
    j->on.message(j->arg, msg);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct join *j = s->data;
    struct cdi_error err = {.status = CDDP_OK};
    struct cdi_frame f;
    struct cdi_msg msg;
    cddp_status st;
    char text[512];

    if (n == 0)
        return;
    if (n < 0) {
        (void)snprintf(text, sizeof text, "the connection to the rendezvous at %s was lost: %s", j->opt.name,
                       n == UV_EOF ? "it was closed by the other side" : uv_strerror((int)n));
        lose(j, text);
        return;
    }
    st = cdi_buf_append(&j->in, buf->base, (size_t)n);
    while (st == CDDP_OK && !j->lost && !j->closing) {
        st = cdi_frame_next(&j->in, &f, &err);
        if (st != CDDP_OK)
            break;
        st = cdi_msg_decode(f.type, f.payload, f.len, &msg, &err);
        cdi_buf_consume(&j->in, f.size);
        if (st == CDDP_OK)
            handle(j, &msg);
    }
    if (st < 0)
        lose(j, err.msg[0] != '\0' ? err.msg : "the rendezvous sent more than this cddprun accepts");
}

/* ------------------------------------------------------------------------------------------------ connecting ---- */

static void on_retry(uv_timer_t *t)
{
    try_connect(t->data);
}

static void later(struct join *j, int error)
{
    char text[512];

    j->last_error = error;
    if (cdi_now_ms() + (int64_t)j->wait_ms >= j->opt.deadline_ms) {
        (void)snprintf(text, sizeof text, "cannot reach the rendezvous at %s: %s", j->opt.name, uv_strerror(error));
        lose(j, text);
        return;
    }
    /* A little different for each process, so that many do not come back at once. */
    (void)uv_timer_start(&j->retry, on_retry, j->wait_ms + (uint64_t)(cdi_now_ns() / 1000) % (j->wait_ms / 4 + 1), 0);
    j->wait_ms = j->wait_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : j->wait_ms * 2;
}

static void tell_connected(struct join *j)
{
    struct sockaddr_storage peer;
    int len = sizeof peer;
    char addr[64] = "";
    uint16_t port = 0;

    if (uv_tcp_getpeername(&j->tcp, (struct sockaddr *)&peer, &len) == 0) {
        if (peer.ss_family == AF_INET6) {
            (void)uv_ip6_name((struct sockaddr_in6 *)&peer, addr, sizeof addr);
            port = ntohs(((struct sockaddr_in6 *)&peer)->sin6_port);
        } else {
            (void)uv_ip4_name((struct sockaddr_in *)&peer, addr, sizeof addr);
            port = ntohs(((struct sockaddr_in *)&peer)->sin_port);
        }
    }
    j->on.connected(j->arg, addr, port);
}

static void on_connect(uv_connect_t *req, int status)
{
    struct join *j = req->data;

    if (j->closing || j->lost || status == UV_ECANCELED)
        return;
    if (status == 0) {
        j->connected = true;
        (void)uv_tcp_nodelay(&j->tcp, 1);
        tell_connected(j);
        send_hello(j);
        if (!j->lost)
            status = uv_read_start((uv_stream_t *)&j->tcp, on_alloc, on_read);
        if (status == 0)
            return;
    }
    close_tcp(j);
    later(j, status);
}

static void try_connect(struct join *j)
{
    int rc = uv_tcp_init(j->loop, &j->tcp);

    if (rc == 0) {
        j->tcp.data = j;
        j->tcp_open = true;
        j->open_handles++;
        j->connect.data = j;
        rc = uv_tcp_connect(&j->connect, &j->tcp, (const struct sockaddr *)&j->opt.addr, on_connect);
    }
    if (rc == 0)
        return;
    close_tcp(j);
    later(j, rc);
}

cddp_status join_start(struct join **out, uv_loop_t *loop, const struct join_options *opt, const struct join_events *on,
                       void *arg, struct cdi_error *err)
{
    struct join *j = calloc(1, sizeof *j);
    int rc;

    if (j == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "joining the rendezvous: out of memory");
    j->loop = loop;
    j->opt = *opt;
    j->on = *on;
    j->arg = arg;
    j->wait_ms = RETRY_FIRST_MS;
    cdi_buf_init(&j->in, CDI_FRAME_MAX + CDI_FRAME_HEADER + sizeof j->chunk);
    (void)uv_timer_init(loop, &j->retry);
    (void)uv_timer_init(loop, &j->beat);
    j->retry.data = j;
    j->beat.data = j;
    j->open_handles = 2;
    rc = uv_timer_start(&j->retry, on_retry, 0, 0);
    if (rc != 0) {
        join_close(j);
        return cdi_fail_errno(err, -rc, "joining the rendezvous");
    }
    *out = j;
    return CDDP_OK;
}

/* The last of a closing connection; also called when the wait for what is queued ends. */
static void close_rest(struct join *j)
{
    close_tcp(j);
    if (!uv_is_closing((uv_handle_t *)&j->retry))
        uv_close((uv_handle_t *)&j->retry, on_closed);
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    if (status != UV_ECANCELED)
        close_rest(req->data);
}

static void on_close_wait(uv_timer_t *t)
{
    close_rest(t->data);
}

void join_close(struct join *j)
{
    if (j == NULL || j->closing)
        return;
    j->closing = true;
    uv_close((uv_handle_t *)&j->beat, on_closed);
    j->shutdown.data = j;
    if (!j->tcp_open || !j->connected || uv_stream_get_write_queue_size((uv_stream_t *)&j->tcp) == 0 ||
        uv_shutdown(&j->shutdown, (uv_stream_t *)&j->tcp, on_shutdown) != 0) {
        close_rest(j);
        return;
    }
    (void)uv_timer_start(&j->retry, on_close_wait, CLOSE_WAIT_MS, 0);
}

/* ------------------------------------------------------------------------------------------------- addresses ---- */

cddp_status join_resolve(struct sockaddr_storage *out, const char *host, uint16_t port, struct cdi_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int rc;

    *out = (struct sockaddr_storage){0};
    if (strcmp(host, "*") == 0)
        host = "127.0.0.1";
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)out) == 0 ||
        uv_ip6_addr(host, port, (struct sockaddr_in6 *)out) == 0)
        return CDDP_OK;
    rc = getaddrinfo(host, NULL, &hints, &found);
    if (rc != 0 || found == NULL)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "--master_addr '%.200s' is not known to this machine: %s", host,
                        rc != 0 ? gai_strerror(rc) : "no address");
    memcpy(out, found->ai_addr, found->ai_addrlen);
    if (found->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)out)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)out)->sin_port = htons(port);
    freeaddrinfo(found);
    return CDDP_OK;
}
