/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners, the timer, jobs, and the sessions' operations on connections. */
#include "rendezvous/server.h"
#include "common/clock.h"
#include "common/time_limits.h"
#include "rendezvous/conn.h"
#include "rendezvous/dispatch.h"
#include "rendezvous/listen.h"
#include "rendezvous/poll_agents.h"
#include "rendezvous/round/session.h"
#include "rendezvous/snapshot.h"
#include "rendezvous/view/hang_watch.h"
#include "rendezvous/view/relay.h"
#include "rendezvous/view/view.h"
#include "rendezvous/views.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define TICK_MS 250
#define STOPPED_MS 2000 /* a tick that is this late means that the process, or the node, was suspended */
#define CLOSING_TICK_MS 20
#define DRAIN_LOG_MS 2000   /* a wait for agents that is shorter is not worth a message */
#define ACCEPT_AT_ONCE 64   /* then other events get a turn */
#define ACCEPT_WHEN_FULL 4  /* the same when new connections replace others, which must be served first */
#define ACCEPT_PAUSE_MS 250 /* when no descriptor is left */
#define OVERFLOW_MAX 4      /* overflow connections at once */
#define OTHER_FILES 32      /* descriptors other than connections */
#define OVER_MAX 1024       /* finished jobs whose ids are kept */

struct rdzv_server;

struct listener {
    uv_poll_t poll; /* first */
    struct rdzv_server *server;
    struct listen_port *listen_port;
    int fd;
};

/* A port with its listening sockets: the shared port, or that of one job. */
struct listen_port {
    struct listener listeners[LISTEN_MAX];
    size_t n;      /* of listeners[] */
    size_t n_open; /* of these, until the close callback */
    uint16_t port;
    struct job *job; /* NULL: the shared port */
};

struct job {
    struct conn_job conn; /* first */
    struct rdzv_server *server;
    struct hang_watch *hang_watch;
    struct relay relay;
    struct listen_port listen_port; /* empty if the job uses the shared port */
    int64_t over_ms;                /* time at which it was found to be over or without agents; -1: neither */
    int64_t close_ms;               /* time that its last connections then have */
    bool ending;                    /* its connections and its port are closing */
    bool warned;                    /* the warning about too few descriptors is logged */
};

struct rdzv_server {
    struct conn_ctx ctx; /* first */
    struct listen_port listen_port;
    size_t n_jobs;
    struct cdi_secret secret;
    char *host; /* as in the options */
    struct listen_names names;
    struct session_options session; /* for all jobs */
    uint32_t max_jobs;              /* 0: a single job, created at the start */
    uint16_t first_job_port, last_job_port;
    int64_t over_ms; /* time that the last connections of a finished job have */
    bool elected;
    int64_t answer_until_ms; /* elected */
    uv_timer_t timer;
    bool timer_open;           /* until the close callback */
    size_t n_listeners;        /* of all ports, until the close callback */
    int reserve[OVERFLOW_MAX]; /* descriptors to close for an overflow connection when none is free */
    size_t n_reserve;
    char over[OVER_MAX][SESSION_ID_LEN + 1]; /* ids of the jobs that finished last */
    size_t n_over;                           /* in total */
    bool out_of_fds;                         /* this is logged */
    int64_t tick_ms;                         /* time of the last tick */
    int64_t resume_ms;                       /* end of the pause in accepting; 0: no pause */
    void (*closed)(void *arg);
    void *closed_arg;
    int64_t drain_ms; /* when draining began */
    bool drain_logged;
};

static void server_on_tick(uv_timer_t *timer);
static void on_connection(uv_poll_t *poll, int status, int events);

/* ----------------------------------------------------------------------------------- operations for sessions ---- */

static void send_to(void *conn, const void *bytes, size_t len)
{
    conn_send(conn, bytes, len);
}

/* While an elected server waits for etcd, agents return several times per second, and the user knows why. */
static void hang_up_on(void *conn, const char *why)
{
    const struct rdzv_server *s = (const struct rdzv_server *)((struct conn *)conn)->ctx;
    bool waits = s->elected && cdi_now_ms() > s->answer_until_ms;

    conn_finish(conn, CONN_DUE_LINGER, waits ? CDI_LOG_DEBUG : CDI_LOG_WARN, why);
}

static void rename_peer(void *conn, uint32_t peer)
{
    ((struct conn *)conn)->peer = peer;
}

static void end_job_keys(void *arg)
{
    const struct job *job = arg;
    struct conn_ctx *ctx = &job->server->ctx;
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &ctx->conns) {
        struct conn *c = cdi_list_of(node, struct conn, link);

        if (c->state == CONN_STORE && c->job == &job->conn)
            conn_close(c, CDI_LOG_DEBUG, "the round is over");
    }
}

static void on_bulk(void *arg, uint32_t peer, uint16_t type, const void *payload, size_t len)
{
    int64_t now_ms = (int64_t)uv_now(((struct job *)arg)->server->ctx.loop);
    struct job *job = arg;
    const struct view_node *node = view_on_bulk(job->conn.view, peer, type, payload, len, now_ms);

    relay_on_bulk(&job->relay, peer, type, payload, len);
    if (node != NULL)
        hang_watch_on_report(job->hang_watch, node->report.node_rank, node->report.asked, now_ms);
}

static size_t queued_for(void *conn)
{
    return conn_queued(conn);
}

/* By the clock itself: the loop's may be from before a time in which this process was stopped. */
static bool may_answer(void *arg)
{
    const struct job *job = arg;

    return cdi_now_ms() <= job->server->answer_until_ms;
}

static void get_random(void *bytes, size_t len)
{
    if (getrandom(bytes, len, 0) != (ssize_t)len)
        memset(bytes, 0, len); /* cannot happen for this few bytes */
}

/* --------------------------------------------------------------------------------------------------- closing ---- */

static void destroy_job(struct job *job)
{
    cdi_list_remove(&job->conn.link);
    poll_agents_forget(&job->server->ctx, &job->conn);
    job->server->n_jobs--;
    hang_watch_destroy(job->hang_watch);
    view_destroy(job->conn.view);
    session_destroy(job->conn.session);
    free(job);
}

static void free_server(struct rdzv_server *s)
{
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &s->ctx.jobs) {
        destroy_job(cdi_list_of(node, struct job, conn.link));
    }
    agent_addrs_release(&s->ctx.agent_addrs);
    cdi_secret_release(&s->secret);
    while (s->n_reserve > 0)
        (void)close(s->reserve[--s->n_reserve]);
    free(s->host);
    free(s);
}

static void free_when_all_closed(struct rdzv_server *s)
{
    void (*closed)(void *arg) = s->closed;
    void *arg = s->closed_arg;

    if (s->timer_open || s->n_listeners > 0 || s->ctx.n_open > 0)
        return;
    free_server(s);
    if (closed != NULL)
        closed(arg);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct rdzv_server *s = handle->data;

    s->timer_open = false;
    free_when_all_closed(s);
}

static void on_ask_timer_closed(uv_handle_t *handle)
{
    struct rdzv_server *s = handle->data;

    uv_close((uv_handle_t *)&s->timer, on_timer_closed);
}

/* Frees a finished job after its last connection and listener are closed. */
static void free_job_if_gone(struct job *job)
{
    if (!job->ending || job->listen_port.n_open > 0 || job->conn.n_conns > 0 || job->server->ctx.closing)
        return;
    destroy_job(job);
#ifdef __GLIBC__
    (void)malloc_trim(
        0); /* by itself free() returns only what is at the heap's end; the keys may have been gigabytes */
#endif
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct listener *l = (struct listener *)handle;
    struct rdzv_server *s = l->server;

    (void)close(l->fd);
    s->n_listeners--;
    l->listen_port->n_open--;
    if (l->listen_port->job != NULL)
        free_job_if_gone(l->listen_port->job);
    if (s->ctx.closing)
        free_when_all_closed(s);
}

/* The timer supervises the last connections, so it closes after them. */
static void close_timer_if_idle(struct rdzv_server *s)
{
    if (s->ctx.n_open == 0 && !uv_is_closing((uv_handle_t *)&s->ctx.ask_timer))
        uv_close((uv_handle_t *)&s->ctx.ask_timer, on_ask_timer_closed);
}

/* Opens the reserved descriptors again after overflow connections have closed. */
static void server_fill_reserve(struct rdzv_server *s)
{
    while (s->n_reserve + s->ctx.n_overflow_files < OVERFLOW_MAX) {
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

        if (fd < 0)
            return;
        s->reserve[s->n_reserve++] = fd;
    }
}

static void close_if_drained(struct rdzv_server *s);
static void resume_accepting(struct rdzv_server *s);

static void on_conn_closed(struct conn_ctx *ctx, struct conn_job *job)
{
    struct rdzv_server *s = (struct rdzv_server *)ctx;

    server_fill_reserve(s);
    if (s->resume_ms != 0 && !ctx->closing)
        resume_accepting(s);
    if (job != NULL)
        free_job_if_gone((struct job *)job);
    close_if_drained(s);
    if (ctx->closing) {
        close_timer_if_idle(s);
        free_when_all_closed(s);
    }
}

static void close_port(struct listen_port *lp)
{
    for (size_t i = 0; i < lp->n; i++)
        if (!uv_is_closing((uv_handle_t *)&lp->listeners[i].poll))
            uv_close((uv_handle_t *)&lp->listeners[i].poll, on_listener_closed);
}

/* Closes every connection of a job (NULL: of all jobs) after its queued bytes are written. */
static void finish_conns(struct rdzv_server *s, const struct job *job, const char *why)
{
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &s->ctx.conns) {
        struct conn *c = cdi_list_of(node, struct conn, link);

        if (job != NULL && c->job != &job->conn && c->port_job != &job->conn)
            continue;
        if (c->state == CONN_LINGERING && c->shut)
            conn_close(c, CDI_LOG_DEBUG, why);
        else
            conn_finish(c, CONN_DUE_END, CDI_LOG_DEBUG, why);
    }
    conn_flush_all(&s->ctx);
}

void rdzv_server_close(struct rdzv_server *s, void (*closed)(void *arg), void *arg)
{
    struct cdi_list *node, *safe;

    if (s->ctx.closing)
        return;
    s->closed = closed;
    s->closed_arg = arg;
    s->ctx.closing = true;
    close_port(&s->listen_port);
    cdi_list_for_each (node, safe, &s->ctx.jobs) {
        close_port(&cdi_list_of(node, struct job, conn.link)->listen_port);
    }
    finish_conns(s, NULL, "the rendezvous server is shutting down");
    (void)uv_timer_start(&s->timer, server_on_tick, CLOSING_TICK_MS, CLOSING_TICK_MS);
    close_timer_if_idle(s);
}

/* ------------------------------------------------------------------------------------------------- accepting ---- */

static void poll_port(struct listen_port *lp, bool on)
{
    for (size_t i = 0; i < lp->n; i++) {
        if (uv_is_closing((uv_handle_t *)&lp->listeners[i].poll))
            continue;
        if (on)
            (void)uv_poll_start(&lp->listeners[i].poll, UV_READABLE, on_connection);
        else
            (void)uv_poll_stop(&lp->listeners[i].poll);
    }
}

static void poll_all_ports(struct rdzv_server *s, bool on)
{
    struct cdi_list *node, *safe;

    poll_port(&s->listen_port, on);
    cdi_list_for_each (node, safe, &s->ctx.jobs) {
        poll_port(&cdi_list_of(node, struct job, conn.link)->listen_port, on);
    }
}

static void pause_accepting(struct rdzv_server *s)
{
    poll_all_ports(s, false);
    s->resume_ms = (int64_t)uv_now(s->ctx.loop) + ACCEPT_PAUSE_MS;
}

static void resume_accepting(struct rdzv_server *s)
{
    s->resume_ms = 0;
    server_fill_reserve(s);
    poll_all_ports(s, true);
}

/*
 * Accepts a connection when no descriptor is left, as an overflow connection with one of the reserved descriptors.
 * Left in the backlog, it would wake the loop again and again, and its client would get no reply. (Without a free
 * descriptor accept4() returns EMFILE even if the backlog is empty.) Returns the descriptor, or -1 and errno.
 */
static int accept_overflow(struct rdzv_server *s, int listen_fd, struct sockaddr_storage *addr, socklen_t *len)
{
    int fd, why;

    if (s->n_reserve == 0) {
        errno = EMFILE;
        return -1;
    }
    (void)close(s->reserve[--s->n_reserve]);
    fd = accept4(listen_fd, (struct sockaddr *)addr, len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    why = errno;
    if (fd < 0)
        server_fill_reserve(s);
    if (fd >= 0 && !s->out_of_fds) {
        s->out_of_fds = true;
        cdi_log(CDI_LOG_ERROR, "RDZV-NO-FDS",
                "rendezvous: no file descriptors are left; new connections are rejected; raise the limit "
                "(ulimit -n)");
    }
    errno = why;
    return fd;
}

static bool is_full(const struct conn_ctx *ctx)
{
    return ctx->n_open - ctx->n_overflow - ctx->n_closing >= ctx->max_connections;
}

static size_t server_half_of_files(void)
{
    struct rlimit files;

    return getrlimit(RLIMIT_NOFILE, &files) == 0 ? (size_t)files.rlim_cur / 2 : SIZE_MAX;
}

/* Accepts one connection. Returns 0, or the errno of accept4(). */
static int accept_one(struct rdzv_server *s, const struct listener *l)
{
    enum conn_reject reject = CONN_ACCEPTED;
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof addr;
    int fd;

    if (is_full(&s->ctx) && s->ctx.n_overflow >= OVERFLOW_MAX && !conn_make_room(&s->ctx))
        return EMFILE;
    fd = accept4(l->fd, (struct sockaddr *)&addr, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        s->out_of_fds = false;
    } else if (errno == EMFILE || errno == ENFILE) {
        len = sizeof addr;
        fd = accept_overflow(s, l->fd, &addr, &len);
        reject = CONN_REJECT_NO_FILES;
    }
    if (fd < 0)
        return errno;
    if (reject == CONN_REJECT_NO_FILES && conn_make_room(&s->ctx)) {
        server_fill_reserve(s); /* with the descriptor just closed; the new connection keeps its own */
        reject = CONN_ACCEPTED;
    } else if (reject == CONN_ACCEPTED && is_full(&s->ctx) && !conn_make_room(&s->ctx)) {
        reject = CONN_REJECT_TOO_MANY;
    } else if (s->ctx.n_open - s->ctx.n_closing >= s->ctx.crowded) {
        (void)conn_make_room(&s->ctx);
    }
    (void)conn_open(&s->ctx, fd, &addr, l->listen_port->job == NULL ? NULL : &l->listen_port->job->conn, reject);
    return 0;
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct listener *l = (struct listener *)poll;
    struct rdzv_server *s = l->server;

    (void)status;
    (void)events;
    server_fill_reserve(s); /* an overflow connection may just have freed a reserved descriptor */
    for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
        int why;

        if (i >= ACCEPT_WHEN_FULL && (is_full(&s->ctx) || s->out_of_fds))
            return;
        why = accept_one(s, l);
        if (why == EAGAIN)
            return;
        if (why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM) {
            pause_accepting(s);
            return;
        } /* any other error, such as ECONNABORTED, concerns that connection only */
    }
}

/* Warns if there are fewer descriptors than connections of the job, one for each rank and each agent. */
static void warn_of_few_files(struct job *job, const struct round *round)
{
    uint64_t need = (uint64_t)round_world_size(round) + round_nodes(round) + OTHER_FILES;
    struct rlimit files;

    if (job->warned || round_state(round) != ROUND_RUNNING || getrlimit(RLIMIT_NOFILE, &files) != 0 ||
        need <= files.rlim_cur)
        return;
    job->warned = true;
    cdi_log(CDI_LOG_WARN, "RDZV-FEW-FDS",
            "rendezvous: job '%s' needs a connection for each of its %u ranks and %u nodes, but the limit here is %llu "
            "open files, so some will be rejected; raise the limit on this node (ulimit -Hn %llu)",
            job->conn.run_id, round_world_size(round), round_nodes(round), (unsigned long long)files.rlim_cur,
            (unsigned long long)need);
}

/* Keeps the id of a job that is over. One that only lost its agents is not: they may return and restart it. */
static void server_remember_over(struct rdzv_server *s, const struct job *job)
{
    if (round_state(session_round(job->conn.session)) == ROUND_CLOSED)
        (void)snprintf(s->over[s->n_over++ % OVER_MAX], sizeof s->over[0], "%s", session_id(job->conn.session));
}

static bool server_job_is_over(const struct rdzv_server *s, const char *token)
{
    for (size_t i = 0; i < s->n_over && i < OVER_MAX; i++)
        if (session_token_is_of(token, s->over[i]))
            return true;
    return false;
}

/* Ends a job that is over, or has no agents, after its connections have closed or had time to. */
static void tick_job(struct rdzv_server *s, struct job *job, int64_t now_ms, int64_t wall_ms)
{
    const struct round *round = session_round(job->conn.session);
    uint32_t first;

    session_tick(job->conn.session, now_ms, wall_ms);
    hang_watch_tick(job->hang_watch, now_ms, wall_ms);
    poll_agents_sample(&s->ctx, &job->conn, hang_watch_is_calm(job->hang_watch));
    warn_of_few_files(job, round);
    if (s->ctx.only == &job->conn || job->ending)
        return;
    if (round_state(round) != ROUND_CLOSED && round_present(round) > 0)
        job->over_ms = -1;
    else if (job->over_ms < 0)
        job->over_ms = now_ms;
    if (job->over_ms < 0)
        return;
    /* An agent that was cut off at the end may return, and has to hear how the job has ended. */
    if ((job->conn.n_conns > 0 || session_n_joined(job->conn.session, &first) > 0) &&
        now_ms - job->over_ms < job->close_ms)
        return;
    cdi_log(CDI_LOG_INFO, "RDZV-JOB-END", "rendezvous: job '%s' has ended: %s", job->conn.run_id,
            round_why(round)[0] != '\0' ? round_why(round) : "no agents are left");
    job->ending = true;
    server_remember_over(s, job);
    close_port(&job->listen_port);
    finish_conns(s, job, "the job is over");
    free_job_if_gone(job);
}

static void tick_jobs(struct rdzv_server *s, int64_t now_ms)
{
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &s->ctx.jobs) {
        struct job *job = cdi_list_of(node, struct job, conn.link);

        if (now_ms - s->tick_ms > STOPPED_MS)
            session_extend_leases(job->conn.session, now_ms - s->tick_ms, now_ms);
        tick_job(s, job, now_ms, conn_wall_ms());
    }
    s->tick_ms = now_ms;
}

/* Names the agents that have not read yet that the job is over. */
static void log_drain(const struct session *session, uint32_t n, uint32_t first)
{
    const char *host = round_host(session_round(session), first);
    int32_t rank = round_node_rank(session_round(session), first);
    char more[32] = "", node[32] = "a spare node";

    if (rank >= 0)
        (void)snprintf(node, sizeof node, "node %d", rank);
    if (n > 1)
        (void)snprintf(more, sizeof more, " and %u more", n - 1);
    cdi_log(CDI_LOG_WARN, "RDZV-DRAIN",
            "the job is over, but %s (%s)%s cannot be reached to learn that; waiting for it, at most for the lease "
            "(%lld s)",
            node, host != NULL ? host : "?", more, (long long)session_lease_ms(session) / 1000);
}

/*
 * The only job has ended when every agent has closed its connection, as it does after CLOSED, or has lost its lease.
 * One that was cut off at the end returns meanwhile, and gets CLOSED then.
 */
static void close_if_drained(struct rdzv_server *s)
{
    const struct session *only = s->ctx.only != NULL ? s->ctx.only->session : NULL;
    uint32_t first = 0;
    size_t left;

    if (!s->ctx.draining || s->ctx.closing)
        return;
    left = only != NULL ? session_n_joined(only, &first) : s->n_jobs;
    if (left == 0) {
        rdzv_server_close(s, s->closed, s->closed_arg);
    } else if (only != NULL && !s->drain_logged && (int64_t)uv_now(s->ctx.loop) - s->drain_ms >= DRAIN_LOG_MS) {
        s->drain_logged = true;
        log_drain(only, (uint32_t)left, first);
    }
}

void rdzv_server_drain(struct rdzv_server *s, void (*closed)(void *arg), void *arg)
{
    s->ctx.draining = true;
    s->drain_ms = (int64_t)uv_now(s->ctx.loop);
    if (s->ctx.only != NULL) /* from now on: one that is cut off has a whole lease to return */
        session_extend_leases(s->ctx.only->session, session_lease_ms(s->ctx.only->session), s->drain_ms);
    s->closed = closed;
    s->closed_arg = arg;
    close_if_drained(s);
}

static void server_on_tick(uv_timer_t *timer)
{
    struct rdzv_server *s = timer->data;
    int64_t now_ms = (int64_t)uv_now(s->ctx.loop);

    if (!s->ctx.closing) {
        tick_jobs(s, now_ms);
        snapshot_measure(&s->ctx);
        if (s->resume_ms != 0 && now_ms >= s->resume_ms)
            resume_accepting(s);
    }
    conn_tick(&s->ctx);
    conn_flush_all(&s->ctx);
    close_if_drained(s);
}

/* ------------------------------------------------------------------------------------------------------ jobs ---- */

static struct conn_job *server_find_job(struct conn_ctx *ctx, const char *run_id)
{
    struct rdzv_server *s = (struct rdzv_server *)ctx;
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &s->ctx.jobs) {
        struct job *job = cdi_list_of(node, struct job, conn.link);

        if (!job->ending && strcmp(job->conn.run_id, run_id) == 0)
            return &job->conn;
    }
    return NULL;
}

/* Listens on a port, and starts to poll it. */
static cddp_status open_port(struct rdzv_server *s, struct listen_port *lp, uint16_t port, struct cdi_error *err)
{
    struct listen_set set;
    cddp_status st = listen_open(&set, s->host, port, s->names, err);
    int rc = 0;

    if (st != CDDP_OK)
        return st;
    lp->port = set.port;
    for (size_t i = 0; i < set.n; i++) {
        struct listener *l = &lp->listeners[i];

        *l = (struct listener){.server = s, .listen_port = lp, .fd = set.fds[i]};
        if (rc == 0)
            rc = uv_poll_init(s->ctx.loop, &l->poll, l->fd);
        if (rc != 0) {
            (void)close(l->fd);
            continue;
        }
        lp->n++;
        lp->n_open++;
        s->n_listeners++;
        (void)uv_poll_start(&l->poll, UV_READABLE, on_connection);
    }
    if (rc == 0)
        return CDDP_OK;
    close_port(lp);
    return cdi_fail(err, CDDP_E_SYSTEM, "the rendezvous server cannot poll its listening socket: %s", uv_strerror(rc));
}

/* Listens on the first free port of the range for jobs. */
static cddp_status open_job_port(struct rdzv_server *s, struct job *job, struct cdi_error *err)
{
    cddp_status st = CDDP_E_EXISTS;

    if (s->first_job_port == 0)
        return open_port(s, &job->listen_port, 0, err);
    for (uint32_t port = s->first_job_port; st == CDDP_E_EXISTS && port <= s->last_job_port; port++)
        st = open_port(s, &job->listen_port, (uint16_t)port, err);
    if (st != CDDP_E_EXISTS)
        return st;
    return cdi_fail(err, CDDP_E_EXISTS,
                    "the rendezvous server has no free port for another job; all of --job_ports %u-%u are in use",
                    s->first_job_port, s->last_job_port);
}

/* Creates a job without a separate port. */
static cddp_status new_job(struct rdzv_server *s, const struct session_options *opt, struct job **out,
                           struct cdi_error *err)
{
    struct job *job = calloc(1, sizeof *job);
    const char *run_id = opt->round.run_id == NULL ? "" : opt->round.run_id;
    const struct session_ops ops = {.send = send_to,
                                    .close_conn = hang_up_on,
                                    .renumber = rename_peer,
                                    .end_keys = end_job_keys,
                                    .random = get_random,
                                    .bulk = on_bulk,
                                    .queued = queued_for,
                                    .may_answer = s->elected ? may_answer : NULL,
                                    .arg = job};
    cddp_status st;

    if (job == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "the rendezvous server is out of memory for another job");
    job->server = s;
    job->listen_port.job = job;
    job->over_ms = -1;
    job->close_ms = s->over_ms;
    (void)snprintf(job->conn.run_id, sizeof job->conn.run_id, "%s", run_id);
    st = session_create(&job->conn.session, opt, &ops, (int64_t)uv_now(s->ctx.loop), err);
    if (st == CDDP_OK && ((st = view_create(&job->conn.view, job->conn.session)) != CDDP_OK ||
                          (st = hang_watch_create(&job->hang_watch, job->conn.session, job->conn.view,
                                                  &s->ctx.views->hang)) != CDDP_OK)) {
        view_destroy(job->conn.view);
        (void)cdi_fail(err, st, "the rendezvous server is out of memory for another job");
        session_destroy(job->conn.session);
    }
    if (st != CDDP_OK) {
        free(job);
        return st;
    }
    relay_init(&job->relay, job->conn.session, cdi_now_ns());
    cdi_list_push_back(&s->ctx.jobs, &job->conn.link);
    s->n_jobs++;
    *out = job;
    return CDDP_OK;
}

static int64_t ms_or_default(int64_t ms, int64_t default_ms)
{
    return ms > 0 ? ms : default_ms;
}

/* A configured last call applies to every round. */
static void set_last_call(struct round_options *o, int64_t ms)
{
    o->last_call_ms = ms;
    o->regroup_ms = ms;
}

static struct session_options options_of(const struct rdzv_server *s, const struct cdi_msg_join *join)
{
    struct session_options so = s->session;

    so.round.run_id = join->run_id;
    so.round.min_nodes = join->min_nodes;
    so.round.max_nodes = join->max_nodes;
    so.round.spares = join->spares;
    so.round.max_restarts = join->max_restarts;
    so.round.join_timeout_ms = ms_or_default(join->join_timeout_ms, so.round.join_timeout_ms);
    so.lease_ms = ms_or_default(join->lease_ms, so.lease_ms);
    if (join->last_call_ms >= 0)
        set_last_call(&so.round, join->last_call_ms);
    return so;
}

/* Creates a job from its first JOIN. */
static cddp_status server_make_job(struct conn_ctx *ctx, const struct cdi_msg_join *join, struct conn_job **out,
                                   struct cdi_error *err)
{
    struct rdzv_server *s = (struct rdzv_server *)ctx;
    const struct session_options so = options_of(s, join);
    struct job *job;
    cddp_status st;

    if (server_job_is_over(s, join->session))
        return cdi_fail(err, CDDP_E_CLOSED, "job '%.200s' is over", join->run_id);
    if (join->session[0] != '\0')
        return cdi_fail(err, CDDP_E_NOT_FOUND,
                        "the rendezvous server no longer has job '%.200s': the job is over, or the server was "
                        "restarted",
                        join->run_id);
    if (join->run_id[0] == '\0')
        return cdi_fail(err, CDDP_E_INVALID,
                        "this rendezvous server serves several jobs; name this one with --rdzv_id");
    if (s->ctx.draining)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "the rendezvous server is shutting down and accepts no new jobs");
    if (s->n_jobs >= s->max_jobs)
        return cdi_fail(err, CDDP_E_LIMIT, "the rendezvous server already has %zu jobs, the limit of --max_jobs",
                        s->n_jobs);
    st = new_job(s, &so, &job, err);
    if (st != CDDP_OK)
        return st;
    job->close_ms = ms_or_default(join->close_timeout_ms, s->over_ms);
    st = open_job_port(s, job, err);
    if (st != CDDP_OK) {
        job->ending = true;
        free_job_if_gone(job);
        return st;
    }
    job->conn.port = job->listen_port.port;
    session_set_port(job->conn.session, job->listen_port.port);
    cdi_log(CDI_LOG_INFO, "RDZV-JOB", "rendezvous: job '%s' (%u:%u nodes) uses port %u", job->conn.run_id,
            join->min_nodes, join->max_nodes, job->listen_port.port);
    *out = &job->conn;
    return CDDP_OK;
}

/* -------------------------------------------------------------------------------------------------- starting ---- */

static cddp_status server_init(struct rdzv_server *s, uv_loop_t *loop, const struct rdzv_server_options *opt,
                               struct cdi_error *err)
{
    conn_ctx_init(&s->ctx, loop, opt->undecided_ms == 0 ? 1000 * CDI_LIMIT_OPENING_S : opt->undecided_ms);
    s->ctx.stall_ms = opt->stall_ms == 0 ? 300000 : opt->stall_ms;
    s->ctx.plain_store = opt->plain_store;
    s->ctx.http = opt->http;
    s->ctx.max_buffered = opt->max_buffered == 0 ? (size_t)1 << 30 : opt->max_buffered;
    s->ctx.crowded = server_half_of_files();
    if (opt->max_connections != 0)
        s->ctx.max_connections = opt->max_connections;
    s->ctx.max_flag = opt->max_flag == NULL ? "--max_connections" : opt->max_flag;
    s->names.host = opt->host_flag == NULL ? "--master_addr" : opt->host_flag;
    s->names.port = opt->port_flag == NULL ? "--master_port" : opt->port_flag;
    s->ctx.ops = &dispatch_ops;
    s->ctx.views = opt->views;
    s->ctx.find_job = server_find_job;
    s->ctx.make_job = server_make_job;
    s->ctx.conn_closed = on_conn_closed;
    s->max_jobs = opt->max_jobs;
    s->elected = opt->elected;
    s->first_job_port = opt->first_job_port;
    s->last_job_port = opt->last_job_port;
    s->over_ms = opt->over_ms == 0 ? 1000 * CDI_LIMIT_CLOSE_S : opt->over_ms;
    s->session = (struct session_options){
        .round = {.join_timeout_ms = opt->join_timeout_ms == 0 ? 1000 * CDI_LIMIT_JOIN_S : opt->join_timeout_ms,
                  .last_call_ms = 1000 * CDI_LIMIT_LAST_CALL_S},
        .lease_ms = opt->lease_ms == 0 ? 1000 * CDI_LIMIT_LEASE_S : opt->lease_ms,
        .hello_ms = s->ctx.due_ms[CONN_DUE_OPEN],
        .hosted = opt->max_jobs == 0 && !opt->elected,
        .hands_over = opt->elected,
        .limits = opt->store};
    if (opt->last_call_ms != 0)
        set_last_call(&s->session.round, opt->last_call_ms);
    server_fill_reserve(s);
    s->host = strdup(opt->host == NULL ? "127.0.0.1" : opt->host);
    if (s->host == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a rendezvous server");
    if (opt->secret != NULL) {
        s->secret = *opt->secret;
        s->ctx.secret = &s->secret;
    }
    return CDDP_OK;
}

static cddp_status make_only_job(struct rdzv_server *s, const struct rdzv_server_options *opt, struct cdi_error *err)
{
    struct session_options so = s->session;
    struct job *job;
    cddp_status st;

    so.round.run_id = opt->run_id;
    so.round.min_nodes = opt->min_nodes == 0 ? 1 : opt->min_nodes;
    so.round.max_nodes = opt->max_nodes == 0 ? 1 : opt->max_nodes;
    so.round.spares = opt->spares;
    so.round.max_restarts = opt->max_restarts;
    st = new_job(s, &so, &job, err);
    if (st == CDDP_OK)
        s->ctx.only = &job->conn;
    return st;
}

cddp_status rdzv_server_start(struct rdzv_server **out, uv_loop_t *loop, const struct rdzv_server_options *opt,
                              struct cdi_error *err)
{
    struct rdzv_server *s = calloc(1, sizeof *s);
    cddp_status st;

    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a rendezvous server");
    uv_update_time(loop);
    st = server_init(s, loop, opt, err);
    if (st == CDDP_OK && s->max_jobs == 0)
        st = make_only_job(s, opt, err);
    if (st == CDDP_OK)
        st = open_port(s, &s->listen_port, opt->port, err);
    if (st == CDDP_OK && s->ctx.only != NULL)
        s->ctx.only->port = s->listen_port.port;
    if (st != CDDP_OK && s->n_listeners == 0) {
        free_server(s);
        return st;
    }
    (void)uv_timer_init(loop, &s->timer);
    s->timer.data = s;
    (void)uv_timer_init(loop, &s->ctx.ask_timer);
    s->ctx.ask_timer.data = s; /* whose first member is the ctx */
    s->timer_open = true;
    s->tick_ms = (int64_t)uv_now(loop);
    (void)uv_timer_start(&s->timer, server_on_tick, TICK_MS, TICK_MS);
    if (st != CDDP_OK)
        rdzv_server_close(s, NULL, NULL); /* the loop still refers to it */
    else
        *out = s;
    return st;
}

void rdzv_server_set_secret(struct rdzv_server *s, const struct cdi_secret *secret)
{
    s->secret = *secret;
    s->ctx.secret = &s->secret;
}

void rdzv_server_answer_until(struct rdzv_server *s, int64_t until_ms)
{
    s->answer_until_ms = until_ms;
}

size_t rdzv_server_jobs(const struct rdzv_server *s)
{
    return s->n_jobs;
}

size_t rdzv_server_waits(struct rdzv_server *s, struct page_wait *out, size_t cap)
{
    return snapshot_waits(&s->ctx, NULL, out, cap);
}

uint16_t rdzv_server_port(const struct rdzv_server *s)
{
    return s->listen_port.port;
}
