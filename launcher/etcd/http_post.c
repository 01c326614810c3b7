/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/etcd/http_post.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct http_post {
    uv_loop_t *loop;
    struct libcurl curl;
    struct http_post_options opt;
    void *multi, *easy, *headers; /* easy: kept, with its connections, from one request to the next */
    uv_timer_t timer;
    struct cdi_buf body, in;
    bool busy, closing, finished;
    int result, open_handles;
    void (*done)(void *arg, const struct http_post_answer *a);
    void *arg;
    char error[LIBCURL_ERROR_SIZE];
};

struct watch {
    uv_poll_t poll;
    struct http_post *owner;
    int fd, events;
};

static void http_post_free(struct http_post *p)
{
    if (p->open_handles > 0)
        return;
    cdi_buf_release(&p->body);
    cdi_buf_release(&p->in);
    free(p);
}

static void on_handle_closed(uv_handle_t *h)
{
    struct http_post *p = h->data;

    p->open_handles--;
    if (p->closing)
        http_post_free(p);
}

static void on_watch_closed(uv_handle_t *h)
{
    struct watch *w = (struct watch *)h;
    struct http_post *p = w->owner;

    free(w);
    p->open_handles--;
    if (p->closing)
        http_post_free(p);
}

/* ------------------------------------------------------------------------------------------------- libcurl ---- */

static void http_post_finish(struct http_post *p)
{
    struct http_post_answer a = {.text = p->error[0] != '\0' ? p->error : p->curl.strerror(p->result)};
    char *ip = NULL;
    long status = 0;

    if (p->result == 0)
        (void)p->curl.easy_getinfo(p->easy, LIBCURL_RESPONSE_CODE, &status);
    (void)p->curl.easy_getinfo(p->easy, LIBCURL_LOCAL_IP, &ip);
    a.status = (int)status;
    a.fatal =
        p->result == LIBCURL_BAD_CERT || p->result == LIBCURL_BAD_CA_FILE || p->result == LIBCURL_PEER_NOT_VERIFIED;
    a.bytes = cdi_buf_data(&p->in);
    a.n = p->in.len;
    (void)snprintf(a.local_ip, sizeof a.local_ip, "%s", ip != NULL ? ip : "");
    (void)p->curl.multi_remove_handle(p->multi, p->easy);
    p->done(p->arg, &a);
}

/* Called after libcurl has returned, so that done() may send the next request. */
static void look_for_end(struct http_post *p)
{
    struct libcurl_message *m;
    int left;

    while (!p->closing && (m = p->curl.multi_info_read(p->multi, &left)) != NULL) {
        if (m->msg != LIBCURL_DONE)
            continue;
        p->result = m->data.result;
        p->finished = true;
    }
    if (!p->finished || !p->busy || p->closing)
        return;
    p->finished = false;
    p->busy = false;
    http_post_finish(p);
}

/* A socket with an error counts as ready, not as broken: the peer's last words, such as a TLS alert, may still be in
   it, and a read knows the error's name. libcurl's flag for errors would end the request before that. libuv has stopped
   the watch then; if libcurl still wants the socket, it goes on. */
static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct watch *w = (struct watch *)poll;
    struct http_post *p = w->owner;
    int running, ready = status < 0 ? UV_READABLE | UV_WRITABLE : events;

    if (p->closing)
        return;
    (void)p->curl.multi_socket_action(
        p->multi, w->fd,
        (ready & UV_READABLE ? LIBCURL_CSELECT_IN : 0) | (ready & UV_WRITABLE ? LIBCURL_CSELECT_OUT : 0), &running);
    if (status < 0 && !uv_is_closing((uv_handle_t *)poll))
        (void)uv_poll_start(poll, w->events, on_poll);
    look_for_end(p);
}

static int on_socket(void *easy, int fd, int what, void *arg, void *of_socket)
{
    struct http_post *p = arg;
    struct watch *w = of_socket;

    (void)easy;
    if (what == LIBCURL_POLL_REMOVE) {
        if (w != NULL)
            uv_close((uv_handle_t *)&w->poll, on_watch_closed);
        return 0;
    }
    if (w == NULL) {
        w = calloc(1, sizeof *w);
        if (w == NULL)
            return -1;
        w->owner = p;
        w->fd = fd;
        if (uv_poll_init(p->loop, &w->poll, fd) != 0) {
            free(w);
            return -1;
        }
        p->open_handles++;
        (void)p->curl.multi_assign(p->multi, fd, w);
    }
    w->events = (what & LIBCURL_POLL_IN ? UV_READABLE : 0) | (what & LIBCURL_POLL_OUT ? UV_WRITABLE : 0);
    (void)uv_poll_start(&w->poll, w->events, on_poll);
    return 0;
}

static void on_timeout(uv_timer_t *t)
{
    struct http_post *p = t->data;
    int running;

    if (p->closing)
        return;
    (void)p->curl.multi_socket_action(p->multi, LIBCURL_TIMEOUT, 0, &running);
    look_for_end(p);
}

static int on_timer(void *multi, long ms, void *arg)
{
    struct http_post *p = arg;

    (void)multi;
    if (p->closing)
        return 0;
    if (ms < 0)
        (void)uv_timer_stop(&p->timer);
    else
        (void)uv_timer_start(&p->timer, on_timeout, (uint64_t)ms, 0);
    return 0;
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct http_post *p = arg;

    return cdi_buf_append(&p->in, bytes, size * n) == CDDP_OK ? size * n : 0;
}

/* A worker must not inherit it. */
static int on_new_socket(void *arg, int fd, int purpose)
{
    (void)arg;
    (void)purpose;
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? 0 : 1;
}

/* ---------------------------------------------------------------------------------------------------- public ---- */

static void set_files(struct http_post *p)
{
    if (p->opt.cacert[0] != '\0')
        (void)p->curl.easy_setopt(p->easy, LIBCURL_CAINFO, p->opt.cacert);
    if (p->opt.cert[0] != '\0')
        (void)p->curl.easy_setopt(p->easy, LIBCURL_SSLCERT, p->opt.cert);
    if (p->opt.key[0] != '\0')
        (void)p->curl.easy_setopt(p->easy, LIBCURL_SSLKEY, p->opt.key);
}

cddp_status http_post_open(struct http_post **out, uv_loop_t *loop, const struct http_post_options *opt,
                           struct cdi_error *err)
{
    struct http_post *p = calloc(1, sizeof *p);
    cddp_status st;

    if (p == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for the client of etcd");
    p->loop = loop;
    p->opt = *opt;
    cdi_buf_init(&p->body, 0);
    cdi_buf_init(&p->in, opt->answer_max);
    st = libcurl_open(&p->curl, err);
    if (st != CDDP_OK) {
        free(p);
        return st;
    }
    p->multi = p->curl.multi_init();
    p->easy = p->multi == NULL ? NULL : p->curl.easy_init();
    if (p->easy == NULL) {
        if (p->multi != NULL)
            (void)p->curl.multi_cleanup(p->multi);
        free(p);
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for the client of etcd");
    }
    (void)uv_timer_init(loop, &p->timer);
    p->timer.data = p;
    p->open_handles = 1;
    (void)p->curl.multi_setopt(p->multi, LIBCURL_SOCKETFUNCTION, on_socket);
    (void)p->curl.multi_setopt(p->multi, LIBCURL_SOCKETDATA, p);
    (void)p->curl.multi_setopt(p->multi, LIBCURL_TIMERFUNCTION, on_timer);
    (void)p->curl.multi_setopt(p->multi, LIBCURL_TIMERDATA, p);
    (void)p->curl.easy_setopt(p->easy, LIBCURL_WRITEFUNCTION, on_bytes);
    (void)p->curl.easy_setopt(p->easy, LIBCURL_WRITEDATA, p);
    (void)p->curl.easy_setopt(p->easy, LIBCURL_ERRORBUFFER, p->error);
    (void)p->curl.easy_setopt(p->easy, LIBCURL_SOCKOPTFUNCTION, on_new_socket);
    (void)p->curl.easy_setopt(p->easy, LIBCURL_NOSIGNAL, 1L);
    (void)p->curl.easy_setopt(p->easy, LIBCURL_NOPROXY, "*"); /* as etcd's clients in Python do */
    (void)p->curl.easy_setopt(p->easy, LIBCURL_HTTP_VERSION, LIBCURL_HTTP_1_1);
    set_files(p);
    *out = p;
    return CDDP_OK;
}

static bool set_headers(struct http_post *p, const char *token)
{
    char line[1200];
    void *list;

    p->curl.slist_free_all(p->headers);
    p->headers = p->curl.slist_append(NULL, "Content-Type: application/json");
    (void)snprintf(line, sizeof line, "Authorization: %s", token);
    list = p->headers == NULL || token[0] == '\0' ? p->headers : p->curl.slist_append(p->headers, line);
    if (list == NULL)
        return false;
    p->headers = list;
    (void)p->curl.easy_setopt(p->easy, LIBCURL_HTTPHEADER, p->headers);
    return true;
}

bool http_post_send(struct http_post *p, const char *url, const char *token, const struct cdi_buf *body,
                    int64_t timeout_ms, void (*done)(void *arg, const struct http_post_answer *a), void *arg)
{
    if (p->busy || p->closing)
        return false;
    cdi_buf_consume(&p->body, p->body.len);
    cdi_buf_consume(&p->in, p->in.len);
    if (cdi_buf_append(&p->body, cdi_buf_data(body), body->len) != CDDP_OK || !set_headers(p, token))
        return false;
    p->error[0] = '\0';
    p->done = done;
    p->arg = arg;
    (void)p->curl.easy_setopt(p->easy, LIBCURL_URL, url);
    (void)p->curl.easy_setopt(p->easy, LIBCURL_POSTFIELDSIZE, (long)p->body.len);
    (void)p->curl.easy_setopt(p->easy, LIBCURL_POSTFIELDS, (const char *)cdi_buf_data(&p->body));
    (void)p->curl.easy_setopt(p->easy, LIBCURL_TIMEOUT_MS, (long)timeout_ms);
    uv_update_time(p->loop);
    p->busy = p->curl.multi_add_handle(p->multi, p->easy) == 0; /* its timer starts the request */
    return p->busy;
}

void http_post_close(struct http_post *p)
{
    if (p == NULL || p->closing)
        return;
    if (p->busy)
        (void)p->curl.multi_remove_handle(p->multi, p->easy);
    p->busy = false;
    p->curl.easy_cleanup(p->easy);
    (void)p->curl.multi_cleanup(p->multi); /* closes the connections: on_socket() removes their watches */
    p->curl.slist_free_all(p->headers);
    p->closing = true;
    uv_close((uv_handle_t *)&p->timer, on_handle_closed);
}
