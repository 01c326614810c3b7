/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners, the timer, and the session's wishes carried out on connections. */
#include "rendezvous/server.h"
#include "common/cleanup.h"
#include "rendezvous/conn.h"
#include "rendezvous/session.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS 250
#define STOPPED_MS 2000 /* a tick that comes so late means that the process, or the machine, stood still */
#define CLOSING_TICK_MS 20
#define CLOSE_MS 1000       /* how long rdzv_server_close() waits for clients that read */
#define ACCEPT_AT_ONCE 64   /* then others get a turn */
#define ACCEPT_PAUSE_MS 250 /* when there is no descriptor left at all */
#define LISTENERS_MAX 8
#define BACKLOG 4096

struct listener {
    uv_poll_t poll; /* first */
    struct rdzv_server *server;
    int fd;
};

struct rdzv_server {
    struct conn_home home; /* first */
    struct listener listeners[LISTENERS_MAX];
    size_t n_listeners;
    uv_timer_t timer;
    size_t n_handles;  /* listeners and timer, until their close callback */
    int reserve_fd;    /* given up to accept and close a connection when descriptors have run out */
    bool out_of_fds;   /* it was said */
    int64_t tick_ms;   /* when the last tick was */
    int64_t resume_ms; /* accepting pauses until then; 0: it does not */
    uint16_t port;
    void (*closed)(void *arg);
    void *closed_arg;
};

static void on_tick(uv_timer_t *timer);
static void on_connection(uv_poll_t *poll, int status, int events);

/* -------------------------------------------------------------------------------------------- the session's wishes
 * ---- */

static void send_to(void *conn, const void *bytes, size_t len)
{
    conn_send(conn, bytes, len);
}

static void hang_up_on(void *conn, const char *why)
{
    conn_finish(conn, 2000, CDI_LOG_WARN, why);
}

static void rename_peer(void *conn, uint32_t peer)
{
    ((struct conn *)conn)->peer = peer;
}

static void end_keys(void *arg)
{
    struct rdzv_server *s = arg;
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &s->home.conns) {
        struct conn *c = cdi_list_of(node, struct conn, link);

        if (c->state == CONN_STORE)
            conn_close(c, CDI_LOG_DEBUG, "its round is over");
    }
}

static void get_random(void *bytes, size_t len)
{
    if (getrandom(bytes, len, 0) != (ssize_t)len)
        memset(bytes, 0, len); /* cannot happen for so few bytes */
}

/* ------------------------------------------------------------------------------------------------------- closing ----
 */

static void free_when_all_closed(struct rdzv_server *s)
{
    void (*closed)(void *arg) = s->closed;
    void *arg = s->closed_arg;

    if (s->n_handles > 0 || s->home.n_open > 0)
        return;
    session_destroy(s->home.session);
    if (s->reserve_fd >= 0)
        (void)close(s->reserve_fd);
    free(s);
    if (closed != NULL)
        closed(arg);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct rdzv_server *s = handle->data;

    s->n_handles--;
    free_when_all_closed(s);
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct listener *l = (struct listener *)handle;

    (void)close(l->fd);
    l->server->n_handles--;
    free_when_all_closed(l->server);
}

/* The timer watches the last connections go, so it is closed when they are. */
static void close_timer_if_idle(struct rdzv_server *s)
{
    if (s->home.n_open == 0 && !uv_is_closing((uv_handle_t *)&s->timer))
        uv_close((uv_handle_t *)&s->timer, on_timer_closed);
}

static void on_conn_closed(struct conn_home *home)
{
    struct rdzv_server *s = (struct rdzv_server *)home;

    if (home->closing) {
        close_timer_if_idle(s);
        free_when_all_closed(s);
    }
}

static void close_listeners(struct rdzv_server *s)
{
    for (size_t i = 0; i < s->n_listeners; i++)
        uv_close((uv_handle_t *)&s->listeners[i].poll, on_listener_closed);
}

void rdzv_server_close(struct rdzv_server *s, void (*closed)(void *arg), void *arg)
{
    struct cdi_list *node, *safe;

    s->closed = closed;
    s->closed_arg = arg;
    s->home.closing = true;
    close_listeners(s);
    cdi_list_for_each (node, safe, &s->home.conns) {
        struct conn *c = cdi_list_of(node, struct conn, link);

        if (c->state == CONN_LINGERING && c->shut)
            conn_close(c, CDI_LOG_DEBUG, "the rendezvous ends");
        else
            conn_finish(c, CLOSE_MS, CDI_LOG_DEBUG, "the rendezvous ends");
    }
    conn_flush_all(&s->home);
    (void)uv_timer_start(&s->timer, on_tick, CLOSING_TICK_MS, CLOSING_TICK_MS);
    close_timer_if_idle(s);
}

/* ----------------------------------------------------------------------------------------------------- accepting ----
 */

static void pause_accepting(struct rdzv_server *s)
{
    for (size_t i = 0; i < s->n_listeners; i++)
        (void)uv_poll_stop(&s->listeners[i].poll);
    s->resume_ms = (int64_t)uv_now(s->home.loop) + ACCEPT_PAUSE_MS;
}

static void resume_accepting(struct rdzv_server *s)
{
    s->resume_ms = 0;
    if (s->reserve_fd < 0)
        s->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (size_t i = 0; i < s->n_listeners; i++)
        (void)uv_poll_start(&s->listeners[i].poll, UV_READABLE, on_connection);
}

/*
 * No descriptor is left. A connection that stays in the backlog would wake the loop for ever and leave its client
 * without an answer: give up the reserve for a moment, to take it and close it. Returns accept4()'s errno, 0 if one was
 * turned away. (Without a free descriptor the kernel says EMFILE even where nobody is waiting.)
 */
static int turn_away(struct rdzv_server *s, int listen_fd)
{
    int fd, why;

    if (s->reserve_fd < 0)
        return EMFILE;
    (void)close(s->reserve_fd);
    fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    why = fd < 0 ? errno : 0;
    if (fd >= 0)
        (void)close(fd);
    s->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && !s->out_of_fds) {
        s->out_of_fds = true;
        cdi_log(CDI_LOG_ERROR, "RDZV-NO-FDS",
                "rendezvous: no file descriptors are left, new connections are turned away; raise the limit "
                "(ulimit -n)");
    }
    return why;
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct listener *l = (struct listener *)poll;
    struct rdzv_server *s = l->server;

    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
        struct sockaddr_storage addr = {0};
        socklen_t len = sizeof addr;
        int fd = accept4(l->fd, (struct sockaddr *)&addr, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        int why = fd < 0 ? errno : 0;

        if (fd >= 0) {
            s->out_of_fds = false;
            (void)conn_open(&s->home, fd, &addr);
        } else if (why == EMFILE || why == ENFILE) {
            why = turn_away(s, l->fd);
        }
        if (why == EAGAIN)
            return;
        if (why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM) {
            pause_accepting(s);
            return;
        } /* else that one connection has failed (ECONNABORTED and the like): go on */
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct rdzv_server *s = timer->data;
    struct timespec ts;
    int64_t now_ms = (int64_t)uv_now(s->home.loop);

    if (!s->home.closing) {
        (void)clock_gettime(CLOCK_REALTIME, &ts);
        if (now_ms - s->tick_ms > STOPPED_MS)
            session_excuse(s->home.session, now_ms - s->tick_ms, now_ms);
        s->tick_ms = now_ms;
        session_tick(s->home.session, now_ms, (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000);
        if (s->resume_ms != 0 && now_ms >= s->resume_ms)
            resume_accepting(s);
    }
    conn_tick(&s->home);
    conn_flush_all(&s->home);
}

/* ------------------------------------------------------------------------------------------------------ starting ----
 */

static uint16_t port_of(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;

        memcpy(&in6, a, sizeof in6);
        return ntohs(in6.sin6_port);
    }
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;

        memcpy(&in, a, sizeof in);
        return ntohs(in.sin_port);
    }
    return 0;
}

static void set_port(struct sockaddr_storage *a, uint16_t port)
{
    /* Both families keep the port at the same place. */
    _Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port), "port's place");
    port = htons(port);
    memcpy((char *)a + offsetof(struct sockaddr_in, sin_port), &port, sizeof port);
}

static cddp_status bind_failed(int errnum, const char *host, uint16_t port, struct cdi_error *err)
{
    if (errnum == EADDRINUSE)
        return cdi_fail(err, CDDP_E_EXISTS,
                        "port %u on %s is in use by another program; end that one, or choose another port with "
                        "--master_port (0: any free one)",
                        port, host);
    if (errnum == EADDRNOTAVAIL)
        return cdi_fail(err, CDDP_E_INVALID,
                        "%s is no address of this machine, so the rendezvous cannot listen there; check --master_addr",
                        host);
    if (errnum == EACCES)
        return cdi_fail(err, CDDP_E_SYSTEM, "port %u may only be opened by root; choose one above 1023", port);
    return cdi_fail_errno(err, errnum, "the rendezvous cannot listen on port %u of %s", port, host);
}

/* Open a listening socket; on success it is the next of s->listeners, not yet polled. */
static cddp_status add_socket(struct rdzv_server *s, const struct sockaddr *addr, socklen_t len, bool both,
                              const char *host, struct cdi_error *err)
{
    struct sockaddr_storage a = {0};
    CDI_AUTOCLOSE int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1, off = 0;

    if (fd < 0)
        return bind_failed(errno, host, s->port, err);
    memcpy(&a, addr, len);
    set_port(&a, s->port);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (addr->sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, both ? &off : &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, len) != 0 || listen(fd, BACKLOG) != 0)
        return bind_failed(errno, host, s->port, err);
    len = sizeof a;
    if (s->port == 0 && getsockname(fd, (struct sockaddr *)&a, &len) == 0)
        s->port = port_of((struct sockaddr *)&a);
    s->listeners[s->n_listeners++].fd = cdi_steal_fd(&fd);
    return CDDP_OK;
}

static void close_sockets(struct rdzv_server *s)
{
    while (s->n_listeners > 0)
        (void)close(s->listeners[--s->n_listeners].fd);
}

/* Every address: one socket for both families, or IPv4 alone where there is no IPv6. */
static cddp_status listen_everywhere(struct rdzv_server *s, struct cdi_error *err)
{
    struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in any = {.sin_family = AF_INET};
    cddp_status st = add_socket(s, (struct sockaddr *)&any6, sizeof any6, true, "any address", err);

    if (st != CDDP_OK && st != CDDP_E_EXISTS)
        st = add_socket(s, (struct sockaddr *)&any, sizeof any, false, "any address", err);
    return st;
}

/* All addresses of a name. One that this machine cannot bind (no IPv6) does no harm if another can be. */
static cddp_status listen_on(struct rdzv_server *s, const char *host, uint16_t port, struct cdi_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    cddp_status st = CDDP_E_NOT_FOUND;
    int rc = getaddrinfo(host, NULL, &hints, &list);

    if (rc != 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND,
                        "the address '%s' to listen on does not resolve: %s; check --master_addr", host,
                        rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    s->port = port;
    for (const struct addrinfo *a = list; a != NULL && s->n_listeners < LISTENERS_MAX; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        st = add_socket(s, a->ai_addr, a->ai_addrlen, false, host, err);
        if (st == CDDP_E_EXISTS)
            break;
    }
    freeaddrinfo(list);
    if (st == CDDP_E_EXISTS)
        close_sockets(s);
    return s->n_listeners > 0 ? CDDP_OK : st;
}

static cddp_status open_sockets(struct rdzv_server *s, const struct rdzv_server_options *opt, struct cdi_error *err)
{
    const char *host = opt->host == NULL ? "127.0.0.1" : opt->host;
    cddp_status st = CDDP_E_EXISTS;

    s->port = opt->port;
    if (strcmp(host, "*") == 0)
        return listen_everywhere(s, err);
    /* A free port of the first address may be taken on the second: then try another one. */
    for (int tries = 0; st == CDDP_E_EXISTS && tries < (opt->port == 0 ? 16 : 1); tries++)
        st = listen_on(s, host, opt->port, err);
    return st;
}

static cddp_status make_session(struct rdzv_server *s, const struct rdzv_server_options *opt, struct cdi_error *err)
{
    const struct session_ops ops = {.send = send_to,
                                    .hang_up = hang_up_on,
                                    .rename = rename_peer,
                                    .end_keys = end_keys,
                                    .random = get_random,
                                    .arg = s};
    uint32_t max_nodes = opt->max_nodes == 0 ? 1 : opt->max_nodes;
    const struct session_options so = {
        .round =
            {
                .run_id = opt->run_id,
                .min_nodes = opt->min_nodes == 0 ? 1 : opt->min_nodes,
                .max_nodes = max_nodes,
                .max_restarts = opt->max_restarts,
                .join_timeout_ms = opt->join_timeout_ms == 0 ? 600000 : opt->join_timeout_ms,
                .last_call_ms = 30000,
            },
        .lease_ms = opt->lease_ms == 0 ? 15000 : opt->lease_ms,
        .hello_ms = s->home.undecided_ms,
    };

    return session_create(&s->home.session, &so, &ops, (int64_t)uv_now(s->home.loop), err);
}

static cddp_status start_handles(struct rdzv_server *s, struct cdi_error *err)
{
    uv_loop_t *loop = s->home.loop;
    size_t n = s->n_listeners, i;
    int rc = 0;

    for (i = 0; i < n; i++) {
        struct listener *l = &s->listeners[i];

        l->server = s;
        rc = uv_poll_init(loop, &l->poll, l->fd);
        if (rc != 0)
            break;
        s->n_handles++;
        (void)uv_poll_start(&l->poll, UV_READABLE, on_connection);
    }
    s->n_listeners = i;
    for (; i < n; i++)
        (void)close(s->listeners[i].fd);
    (void)uv_timer_init(loop, &s->timer);
    s->timer.data = s;
    s->n_handles++;
    s->tick_ms = (int64_t)uv_now(loop);
    (void)uv_timer_start(&s->timer, on_tick, TICK_MS, TICK_MS);
    if (rc == 0)
        return CDDP_OK;
    /* From here on the loop owns the memory. */
    rdzv_server_close(s, NULL, NULL);
    return cdi_fail(err, CDDP_E_SYSTEM, "the rendezvous cannot wait for connections: %s", uv_strerror(rc));
}

cddp_status rdzv_server_start(struct rdzv_server **out, uv_loop_t *loop, const struct rdzv_server_options *opt,
                              struct cdi_error *err)
{
    struct rdzv_server *s = calloc(1, sizeof *s);
    cddp_status st;

    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a rendezvous");
    uv_update_time(loop);
    s->home.loop = loop;
    s->home.undecided_ms = opt->undecided_ms == 0 ? 5000 : opt->undecided_ms;
    s->home.stall_ms = opt->stall_ms == 0 ? 300000 : opt->stall_ms;
    s->home.conn_closed = on_conn_closed;
    cdi_list_init(&s->home.conns);
    cdi_list_init(&s->home.dirty);
    s->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    st = open_sockets(s, opt, err);
    if (st == CDDP_OK)
        st = make_session(s, opt, err);
    if (st != CDDP_OK) {
        close_sockets(s);
        if (s->reserve_fd >= 0)
            (void)close(s->reserve_fd);
        free(s);
        return st;
    }
    st = start_handles(s, err);
    if (st == CDDP_OK)
        *out = s;
    return st;
}

uint16_t rdzv_server_port(const struct rdzv_server *s)
{
    return s->port;
}
