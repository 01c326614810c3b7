/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/rdzv_client.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/tcp.h"
#include "launcher/agent/lease.h"
#include "protocol/bulk.h"
#include "protocol/frame.h"
#include "protocol/hello.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETRY_FIRST_MS 20
#define RETRY_MAX_MS 1000
#define ATTEMPT_MS 5000 /* for one address to accept the connection */
#define ANSWER_MS 10000 /* for a rendezvous to answer JOIN; twice as long the next time, since it may be busy */
#define ANSWER_MAX_MS 60000
#define OWN_ANSWER_MS 3000 /* the same for the program at this node's own port: no network delays it */
#define SILENT "it accepts connections but does not answer"
#define SILENT_MAX 2      /* answers that this program may leave out */
#define BAD_ANSWERS_MAX 8 /* connections that end before an answer: then it is not a rendezvous server */
#define REPORT_WAITING_MS 10000
#define SURE_MS 500         /* a server that is only starting does not refuse connections for so long */
#define RETURN_RETRY_MS 250 /* between two attempts to reconnect: the lease runs */
#define RETURN_ATTEMPT_MS 1000
#define RETURN_ANSWER_MS 2000
#define CLOSE_WAIT_MS 1000
#define FOREIGN_MS 60000             /* for the job's own rendezvous to start on a node with another job's */
#define QUEUE_MAX (4u * 1024 * 1024) /* queued bytes; with more, the server does not read */

struct rdzv_client {
    uv_loop_t *loop;
    uv_tcp_t tcp;
    uv_timer_t retry;
    uv_timer_t beat;  /* the next lease_look() */
    uv_timer_t limit; /* of the present attempt */
    uv_timer_t waiting;
    uv_connect_t connect;
    uv_shutdown_t shutdown;
    struct rdzv_client_options opt;
    struct rdzv_client_events on;
    void *arg;
    struct lease lease;
    int64_t act_by_ms; /* as reported */
    bool held;         /* as reported */
    struct cdi_hello_client opening;
    struct cdi_buf in;
    char chunk[16384];
    uint64_t wait_ms;
    unsigned addr, next_addr, n_bad_answers, n_silent; /* addr: of the present attempt */
    unsigned port, next_port; /* of the present and the next attempt, from the address's own on */
    int64_t foreign_ms;       /* since when one of several ports has another job's rendezvous; 0: never */
    bool tcp_open;            /* tcp is initialised and not closing */
    bool connected, lost, closing;
    bool answered;        /* JOIN was answered on this connection */
    bool resuming;        /* JOIN resumes a session */
    bool known;           /* WELCOME was received once */
    bool again;           /* rdzv_client_again() was called */
    bool over;            /* CLOSED was received: the end of the connection is expected */
    bool last_chance;     /* the rendezvous ended the connection, and no restart is left: one attempt to reconnect */
    bool reset;           /* ended by a reset: from a killed process, or from a firewall */
    bool hosted;          /* the rendezvous runs in another node's cddprun, and ends with it */
    bool in_round;        /* a round has begun */
    bool counted;         /* its end has been counted in `restarts` */
    bool reported_note;   /* opt.note was reported */
    bool reported_broken; /* the broken connection was reported */
    unsigned n_tries;     /* attempts to reconnect; the first is the break itself */
    int64_t refused_ms;   /* since when connections are refused; 0: not refused */
    int64_t gone_ms;      /* of a hosted one: refusing connections for so long means that it has ended */
    uint64_t answer_ms;   /* how long the next answer to the first JOIN may take */
    uint32_t restarts;    /* of the job, as far as this agent knows */
    int open_handles;
    struct lookup *lookup; /* of the addresses, in progress; NULL: none */
    char session[64];      /* of WELCOME */
    char trying[80];       /* the address of the present attempt */
    char last_try[256];    /* how the last one ended: "10.0.0.1: connection refused" */
    char refusal[640];     /* the server's reason for not accepting this agent now; "": none */
};

static void client_try_connect(struct rdzv_client *j);

static void client_on_closed(uv_handle_t *h)
{
    struct rdzv_client *j = h->data;

    if (--j->open_handles > 0 || !j->closing)
        return;
    cdi_buf_release(&j->in);
    free(j);
}

static int fd_of(const struct rdzv_client *j)
{
    uv_os_fd_t fd;

    return uv_fileno((const uv_handle_t *)&j->tcp, &fd) == 0 ? fd : -1;
}

static void close_tcp(struct rdzv_client *j)
{
    if (!j->tcp_open)
        return;
    if (j->connected)
        (void)shutdown(fd_of(j), SHUT_RDWR); /* the guard has a copy, which close() would leave open */
    j->tcp_open = false;
    j->connected = false;
    uv_close((uv_handle_t *)&j->tcp, client_on_closed);
}

/* By a reset: an end of file would mean that this agent has died. */
static void reset_tcp(struct rdzv_client *j)
{
    const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};

    if (!j->tcp_open)
        return;
    if (j->connected)
        (void)connect(fd_of(j), &nowhere, sizeof nowhere); /* resets it now, although the guard has a copy */
    if (!j->connected || uv_tcp_close_reset(&j->tcp, client_on_closed) != 0) {
        close_tcp(j);
        return;
    }
    j->tcp_open = false;
    j->connected = false;
}

static void update_act_by(struct rdzv_client *j)
{
    int64_t at = j->lost || j->closing ? CDI_NEVER_MS : lease_act_by_ms(&j->lease);

    if (at == j->act_by_ms)
        return;
    j->act_by_ms = at;
    j->on.act_by(j->arg, at);
}

/* Stops the workers immediately, and again if another process (a scheduler that resumes the job) has continued them. */
static void update_held(struct rdzv_client *j, bool again)
{
    if (j->lease.held == j->held && !(j->held && again))
        return;
    j->held = j->lease.held;
    j->on.hold(j->arg, j->held);
}

static void report_no_link(struct rdzv_client *j)
{
    if (j->on.broken != NULL)
        j->on.broken(j->arg);
}

static void client_end(struct rdzv_client *j, bool fenced, const char *text)
{
    char why[1536];

    if (j->lost || j->closing)
        return;
    j->lost = true;
    if (j->held) {
        /* The answer would have shown whether another round may run without this node. */
        if (j->lease.still_ms >= 1000) { /* a busy node may not run this agent for a moment */
            (void)snprintf(why, sizeof why,
                           "no message from the rendezvous at %s while this node was stopped for %lld s, and then: %s",
                           j->opt.name, (long long)j->lease.still_ms / 1000, text);
            text = why;
        }
        fenced = true;
        j->held = j->lease.held = false;
    }
    update_act_by(j);
    (void)uv_timer_stop(&j->retry);
    (void)uv_timer_stop(&j->beat);
    (void)uv_timer_stop(&j->limit);
    (void)uv_timer_stop(&j->waiting);
    if (fenced) {
        j->on.fenced(j->arg, text); /* first: the connection may still deliver why the round has failed */
        if (!j->closing)
            reset_tcp(j);
        if (!j->closing)
            report_no_link(j);
        return;
    }
    close_tcp(j);
    j->on.lost(j->arg, text);
}

static void client_lose(struct rdzv_client *j, const char *text)
{
    client_end(j, false, text);
}

/* --------------------------------------------------------------------------------------------------- writing ---- */

struct out {
    uv_write_t req;
    struct cdi_buf bytes;
};

static void client_on_written(uv_write_t *req, int status)
{
    struct out *o = (struct out *)req;

    (void)status; /* the reading side notices a broken connection */
    cdi_buf_release(&o->bytes);
    free(o);
}

static void send_bytes(struct rdzv_client *j, struct out *o)
{
    uv_buf_t b = uv_buf_init((char *)(uintptr_t)cdi_buf_data(&o->bytes), (unsigned)o->bytes.len);

    if (uv_stream_get_write_queue_size((uv_stream_t *)&j->tcp) > QUEUE_MAX ||
        uv_write(&o->req, (uv_stream_t *)&j->tcp, &b, 1, client_on_written) != 0)
        client_on_written(&o->req, 0);
}

static struct out *new_out(void)
{
    struct out *o = calloc(1, sizeof *o);

    if (o != NULL)
        cdi_buf_init(&o->bytes, 2 * CDI_FRAME_MAX);
    return o;
}

static void check_lease(struct rdzv_client *j);

void rdzv_client_send(struct rdzv_client *j, const struct cdi_msg *msg)
{
    struct out *o;

    if (j != NULL && msg->type == CDI_MSG_DONE) { /* also where it cannot be sent now: it is sent after a reconnect */
        j->lease.idle = true;
        check_lease(j);
    }
    if (j == NULL || !j->connected || j->opening.state != CDI_HELLO_C_READY || j->closing || (o = new_out()) == NULL)
        return;
    if (cdi_msg_encode(msg, &o->bytes, NULL) == CDDP_OK)
        send_bytes(j, o);
    else
        client_on_written(&o->req, 0);
}

bool rdzv_client_send_bulk(struct rdzv_client *j, uint16_t type, const void *payload, size_t len)
{
    struct out *o;

    if (j == NULL || !j->connected || !j->known || j->opening.state != CDI_HELLO_C_READY || j->closing ||
        uv_stream_get_write_queue_size((uv_stream_t *)&j->tcp) + len > RDZV_CLIENT_BULK_MAX)
        return false;
    o = new_out();
    if (o == NULL)
        return false;
    if (cdi_frame_put(&o->bytes, type, payload, len) == CDDP_OK) {
        send_bytes(j, o);
        return true;
    }
    client_on_written(&o->req, 0);
    return false;
}

static void send_or_drop(struct rdzv_client *j, struct out *o)
{
    if (o->bytes.len > 0)
        send_bytes(j, o);
    else
        client_on_written(&o->req, 0);
}

static void send_hello(struct rdzv_client *j)
{
    struct cdi_error err = {.status = CDDP_OK};
    struct out *o = new_out();

    if (o != NULL && cdi_hello_client_start(&j->opening, CDI_HELLO_AGENT, j->opt.hello.run_id, CDI_HELLO_CURRENT_ROUND,
                                            j->opt.secret, &o->bytes, &err) == CDDP_OK) {
        send_bytes(j, o);
        return;
    }
    if (o != NULL)
        client_on_written(&o->req, 0);
    client_lose(j, err.msg[0] != '\0' ? err.msg : "out of memory while joining the rendezvous");
}

static void send_join(struct rdzv_client *j)
{
    struct cdi_msg msg = {.type = CDI_MSG_JOIN, .u.join = j->opt.hello};

    msg.u.join.sent_ms = cdi_wall_ms();
    j->resuming = j->opt.hello.session[0] != '\0';
    lease_joining(&j->lease, cdi_now_ms());
    rdzv_client_send(j, &msg);
}

/* --------------------------------------------------------------------------------------------------- waiting ---- */

static void client_on_retry(uv_timer_t *t)
{
    client_try_connect(t->data);
}

static long long seconds_left(const struct rdzv_client *j)
{
    int64_t left = (j->opt.deadline_ms - cdi_now_ms()) / 1000;

    return left < 0 ? 0 : left;
}

/* May the job continue if the rendezvous, and with it the state of the round, is lost? */
static bool has_restart_left(const struct rdzv_client *j)
{
    return j->opt.rejoins && (j->opt.elastic || !j->in_round || j->counted || j->restarts < j->opt.hello.max_restarts);
}

/* Is it time to give up? Then text is the error message. */
static bool client_gives_up(const struct rdzv_client *j, char *text, size_t cap)
{
    int64_t now = cdi_now_ms();

    /* After a reset, only a refused connection means that the server is gone: a failed network may recover. */
    if (j->last_chance && (!j->reset || j->refused_ms != 0))
        (void)snprintf(text, cap, "lost the rendezvous at %s: it %s the connection", j->opt.name,
                       j->reset ? "reset" : "closed");
    else if (j->again && j->hosted && j->refused_ms != 0 && now - j->refused_ms > j->gone_ms)
        (void)snprintf(text, cap, "lost the rendezvous at %s (%s)", j->opt.name, j->last_try);
    else if (j->known || now + (int64_t)j->wait_ms < j->opt.deadline_ms)
        return false;
    else if (j->refusal[0] != '\0')
        (void)snprintf(text, cap, "%s", j->refusal);
    else
        (void)snprintf(text, cap, "cannot reach the rendezvous at %s (%s)%s", j->opt.name, j->last_try, j->opt.note);
    return true;
}

static bool is_alone(const struct rdzv_client_options *opt)
{
    return opt->hello.max_nodes <= 1 && opt->hello.spares == 0;
}

/* Has the node that can only be the host found its port in use? Another program answers there, or nobody. */
static bool is_host_without_port(const struct rdzv_client_options *opt)
{
    return opt->taken && opt->hello.node_rank == 0;
}

/* Neither another process nor this agent hosts the rendezvous. */
static bool is_vacant(const struct rdzv_client *j)
{
    return j->opt.note[0] != '\0' && j->refused_ms != 0 && cdi_now_ms() - j->refused_ms >= SURE_MS;
}

/* The port of this agent is in use no more. */
static void host_if_free(struct rdzv_client *j)
{
    if (!j->opt.taken || !j->on.vacant(j->arg, &j->opt))
        return;
    j->opt.own = true;
    j->opt.taken = false;
    j->opt.note[0] = '\0';
    j->next_addr = 0;
    lease_init(&j->lease, true, is_alone(&j->opt));
}

static void report_note_once(struct rdzv_client *j)
{
    char text[1024];

    if (j->reported_note)
        return;
    j->reported_note = true;
    (void)snprintf(text, sizeof text, "no answer from %s (%s)%s; trying for another %lld s", j->opt.name, j->last_try,
                   j->opt.note, seconds_left(j));
    j->on.waiting(j->arg, text);
}

/*
 * Reports a connection that broke and was not restored immediately. There is time until the lease ends and the workers
 * have to be killed, but the user should learn now why the job seems to hang: 600 s are long.
 */
static void report_broken_once(struct rdzv_client *j)
{
    int64_t left = (lease_fence_ms(&j->lease) - cdi_now_ms()) / 1000;
    char text[1024], host[160] = "";

    if (j->reported_broken || !j->known || ++j->n_tries < 2 || !has_restart_left(j))
        return;
    j->reported_broken = true;
    if (j->hosted)
        (void)snprintf(host, sizeof host, ", but no longer than %.3g s if its host refuses connections",
                       (double)j->gone_ms / 1000);
    (void)snprintf(text, sizeof text,
                   "lost the connection to the rendezvous at %s (%s); trying again for %lld s; after that this node%s "
                   "tries for another %lld s (--rdzv_conf=join_timeout=SECONDS)%s",
                   j->opt.name, j->last_try, left < 0 ? 0 : (long long)left,
                   j->in_round ? " kills its workers (the lease), and" : "",
                   (long long)j->opt.hello.join_timeout_ms / 1000, host);
    j->on.waiting(j->arg, text);
}

/* The name may have another address by now. The next attempt uses it; this one does not wait for the lookup. */
static void look_up_again(struct rdzv_client *j)
{
    if (j->opt.own || j->opt.host[0] == '\0')
        return;
    if (lookup_fetch(&j->lookup, j->opt.addrs, &j->opt.n_addrs))
        j->next_addr %= j->opt.n_addrs;
    if (j->lookup == NULL)
        j->lookup = lookup_start(j->opt.host, j->opt.port);
}

/* This attempt failed: `why`. Another one follows, unless the time is over. */
static void client_later(struct rdzv_client *j, const char *why)
{
    /* The attempts of one pass over all addresses and ports follow quickly; only the passes become slower. */
    bool in_round = j->next_port > 0 && !j->known && !j->again;
    char text[1024];
    uint64_t jitter;

    reset_tcp(j);
    (void)uv_timer_stop(&j->limit);
    (void)snprintf(j->last_try, sizeof j->last_try, "%s: %s", j->trying, why);
    if (client_gives_up(j, text, sizeof text)) {
        client_lose(j, text);
        return;
    }
    if (is_vacant(j))
        host_if_free(j);
    if (is_vacant(j))
        report_note_once(j);
    report_broken_once(j);
    look_up_again(j);
    report_no_link(j);
    if (j->lost || j->closing)
        return;
    /* A little different for each process, so that many do not connect at the same time. */
    jitter = ((uint64_t)cdi_now_ns() / 1000 + (uint64_t)getpid() * 7919) % (j->wait_ms / 4 + 1);
    (void)uv_timer_start(&j->retry, client_on_retry, in_round ? RETRY_FIRST_MS : j->wait_ms + jitter, 0);
    if (j->next_addr == 0 && !in_round && !j->known)
        j->wait_ms = j->wait_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : j->wait_ms * 2;
}

/* Connects again, to the address that worked before, for as long as the lease allows. */
static void reconnect(struct rdzv_client *j, uint64_t wait_ms)
{
    lease_broken(&j->lease);
    j->n_tries = 0;
    j->answered = false;
    j->wait_ms = wait_ms;
    client_later(j, "the connection broke");
}

/*
 * The server has no place for this agent now. One may become free: another job ends, or the server notices that an old
 * connection of this agent is broken.
 */
static void wait_for_place(struct rdzv_client *j, const char *why, const char *refusal)
{
    char text[1024];
    bool first = j->refusal[0] == '\0';

    (void)snprintf(j->refusal, sizeof j->refusal, "%s", refusal);
    (void)snprintf(text, sizeof text, "%s; trying again for %lld s", refusal, seconds_left(j));
    client_later(j, why);
    if (first && !j->lost && !j->known && !j->again)
        j->on.waiting(j->arg, text);
}

static void client_on_beat(uv_timer_t *t);

static void check_lease(struct rdzv_client *j)
{
    struct cdi_msg msg = {.type = CDI_MSG_HEARTBEAT};
    int64_t now = cdi_now_ms(), next = CDI_NEVER_MS;
    enum lease_action due = LEASE_NOTHING;
    char text[1024];

    while (!j->lost && !j->closing && (due = lease_look(&j->lease, now, &next)) != LEASE_NOTHING) {
        if (due == LEASE_BEAT) {
            msg.u.heartbeat.seq = lease_beat(&j->lease, now);
            rdzv_client_send(j, &msg);
            update_held(j, true);
        } else if (due == LEASE_HOLD) {
            update_held(j, true);
        } else if (due == LEASE_RECONNECT) {
            reconnect(j, RETURN_RETRY_MS);
        } else {
            (void)snprintf(text, sizeof text, "no message from the rendezvous at %s for %lld s", j->opt.name,
                           (long long)(now - j->lease.alive_ms) / 1000);
            client_end(j, true, text);
        }
    }
    update_act_by(j);
    if (j->lost || j->closing || next == CDI_NEVER_MS)
        return;
    uv_update_time(j->loop);
    (void)uv_timer_start(&j->beat, client_on_beat, next > now ? (uint64_t)(next - now) : 0, 0);
}

static void client_on_beat(uv_timer_t *t)
{
    check_lease(t->data);
}

void rdzv_client_look(struct rdzv_client *j)
{
    if (j != NULL)
        check_lease(j);
}

/* One of several ports may be another job's; for some time that does not end the attempts. */
static bool is_at_another_port(struct rdzv_client *j)
{
    if (j->opt.n_ports < 2 || j->known || j->again)
        return false;
    if (j->foreign_ms == 0)
        j->foreign_ms = cdi_now_ms();
    return cdi_now_ms() - j->foreign_ms < FOREIGN_MS;
}

/*
 * The process that accepted the connection does not answer like a rendezvous server. A server that is starting, ending
 * or overloaded may do the same.
 */
static void not_rendezvous(struct rdzv_client *j, const char *why, bool final)
{
    char text[1024];

    if (j->known || j->again || j->opt.elected || is_at_another_port(j) ||
        (!final && ++j->n_bad_answers < BAD_ANSWERS_MAX)) {
        client_later(j, why);
        return;
    }
    (void)snprintf(text, sizeof text, "%s (%s) is not a cddprun rendezvous server: %s; check address and port%s",
                   j->opt.name, j->trying, why, j->opt.note);
    client_lose(j, text);
}

static void client_on_limit(uv_timer_t *t)
{
    struct rdzv_client *j = t->data;

    if (j->connected && is_host_without_port(&j->opt) && !j->known && ++j->n_silent >= SILENT_MAX)
        not_rendezvous(j, SILENT, true);
    else if (j->connected)
        client_later(j, SILENT "; is it a cddprun rendezvous server?");
    else
        client_later(j, "no answer; packets may be dropped on the way");
}

static void on_waiting_timer(uv_timer_t *t)
{
    struct rdzv_client *j = t->data;
    char text[1400];

    if (j->refusal[0] != '\0')
        (void)snprintf(text, sizeof text, "%s; trying again for %lld s", j->refusal, seconds_left(j));
    else
        (void)snprintf(text, sizeof text, "waiting for the rendezvous at %s (%s) for another %lld s%s", j->opt.name,
                       j->last_try[0] != '\0' ? j->last_try : j->trying, seconds_left(j), j->opt.note);
    j->on.waiting(j->arg, text);
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

static void client_on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct rdzv_client *j = h->data;

    (void)suggested;
    *buf = uv_buf_init(j->chunk, sizeof j->chunk);
}

/* The rendezvous does not know this agent: its lease has expired, or the server was restarted. */
static void join_as_new(struct rdzv_client *j, const char *text)
{
    j->restarts += j->in_round && !j->counted && !j->opt.elastic;
    j->in_round = j->counted = false;
    j->opt.hello.restart_count = j->restarts;
    j->opt.hello.session[0] = '\0';
    j->opt.hello.round = -1;
    client_end(j, true, text);
}

static void client_on_welcome(struct rdzv_client *j, const struct cdi_msg *msg)
{
    char text[400];

    (void)snprintf(text, sizeof text, "connected to the rendezvous at %s again", j->opt.name);
    if (j->reported_broken)
        j->on.waiting(j->arg, text);
    j->reported_broken = false;
    j->resuming = j->last_chance = false;
    j->known = true;
    j->refusal[0] = j->opt.note[0] = '\0'; /* this agent's port is used by the rendezvous */
    j->next_port = j->port;
    j->next_addr = j->addr;
    j->hosted = msg->u.welcome.hosted;
    j->gone_ms = msg->u.welcome.lease_ms / 3;
    (void)snprintf(j->session, sizeof j->session, "%s", msg->u.welcome.session);
    lease_welcome(&j->lease, msg->u.welcome.lease_ms, cdi_now_ms());
    update_held(j, false);
    check_lease(j);
}

/* From now on a broken connection is restored. */
static void client_on_assign(struct rdzv_client *j, const struct cdi_msg_assign *assign)
{
    j->in_round = true;
    j->lease.idle = false;
    j->counted = false;
    j->restarts = assign->restart_count;
    j->opt.hello.round = assign->round;
    (void)snprintf(j->opt.hello.session, sizeof j->opt.hello.session, "%s", j->session);
}

/* The message may arrive twice: the first may have been about a consequence of the cause. */
static void client_on_round_over(struct rdzv_client *j, const struct cdi_msg_round_over *over)
{
    if (over->counts != j->counted)
        j->restarts = over->counts ? j->restarts + 1 : j->restarts - 1;
    j->counted = over->counts;
}

static void handle(struct rdzv_client *j, const struct cdi_msg *msg)
{
    bool refused = msg->type == CDI_MSG_CLOSED && msg->u.closed.status == CDI_CLOSE_REFUSED;

    /* Also where it was known, and has no round yet: an elected server may wait for etcd. Then the lease is the limit.
     */
    if (refused && msg->u.closed.retry && !j->resuming) {
        wait_for_place(j, "it has no free place", msg->u.closed.text);
        return;
    }
    if (!j->answered) {
        j->answered = true;
        (void)uv_timer_stop(&j->limit);
        (void)uv_timer_stop(&j->waiting);
    }
    if (refused && j->resuming && !msg->u.closed.gone && has_restart_left(j)) {
        join_as_new(j, msg->u.closed.text);
        return;
    }
    j->over |= msg->type == CDI_MSG_CLOSED;
    if (msg->type == CDI_MSG_WELCOME) {
        client_on_welcome(j, msg);
    } else if (msg->type == CDI_MSG_HEARTBEAT) {
        lease_answer(&j->lease, msg->u.heartbeat.seq);
        update_held(j, false);
        update_act_by(j);
    } else if (msg->type == CDI_MSG_ASSIGN) {
        client_on_assign(j, &msg->u.assign);
    } else if (msg->type == CDI_MSG_ROUND_OVER) {
        client_on_round_over(j, &msg->u.round_over);
    }
    if (!j->lost)
        j->on.message(j->arg, msg);
}

/* Ends a closing connection; also called when the wait for its end is over. */
static void close_rest(struct rdzv_client *j)
{
    close_tcp(j);
    if (!uv_is_closing((uv_handle_t *)&j->retry))
        uv_close((uv_handle_t *)&j->retry, client_on_closed);
}

static void client_on_ended(struct rdzv_client *j, ssize_t n)
{
    const char *why = n == UV_EOF ? "it closed the connection" : uv_strerror((int)n);
    char text[512];

    if (!j->answered) {
        not_rendezvous(j, why, false);
        return;
    }
    if (!j->over && !(j->opt.own && n == UV_EOF)) { /* a server in this process ends only what it means to end */
        bool last_chance = (n == UV_EOF || n == UV_ECONNRESET) && !has_restart_left(j);

        reconnect(j, last_chance ? RETRY_FIRST_MS : RETURN_RETRY_MS);
        j->last_chance = last_chance;
        j->reset = n == UV_ECONNRESET;
        return;
    }
    (void)snprintf(text, sizeof text, "lost the rendezvous at %s: %s", j->opt.name, why);
    client_lose(j, text);
}

static void on_no_room(struct rdzv_client *j, const char *why)
{
    char text[1024];

    (void)snprintf(text, sizeof text, "the rendezvous at %.200s takes no more connections: %.400s", j->opt.name, why);
    wait_for_place(j, why, text);
}

/* Continues HELLO; sends JOIN after both sides have authenticated each other. */
static cddp_status continue_opening(struct rdzv_client *j, struct cdi_error *err)
{
    struct out *o = new_out();
    cddp_status st;

    if (o == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory while joining the rendezvous");
    st = cdi_hello_client_feed(&j->opening, &j->in, &o->bytes, err);
    send_or_drop(j, o);
    if (st == CDDP_OK)
        send_join(j);
    if (st != CDDP_E_LIMIT)
        return st;
    on_no_room(j, err->msg);
    return CDDP_IN_PROGRESS;
}

static void client_on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct rdzv_client *j = s->data;
    struct cdi_error err = {.status = CDDP_OK};
    struct cdi_frame f;
    struct cdi_msg msg;
    cddp_status st;

    if (n == 0)
        return;
    if (j->closing) {
        if (n < 0)
            close_rest(j);
        return;
    }
    if (lease_was_stopped(&j->lease, cdi_now_ms()))
        update_held(j, true);
    if (n < 0) {
        client_on_ended(j, n);
        return;
    }
    st = cdi_buf_append(&j->in, buf->base, (size_t)n);
    if (st == CDDP_OK && j->opening.state != CDI_HELLO_C_READY)
        st = continue_opening(j, &err);
    while (st == CDDP_OK && !j->lost && !j->closing && j->connected) {
        st = cdi_frame_next(&j->in, &f, &err);
        if (st != CDDP_OK)
            break;
        if (cdi_bulk_is(f.type)) {
            if (j->on.bulk != NULL)
                j->on.bulk(j->arg, f.type, f.payload, f.len);
            cdi_buf_consume(&j->in, f.size);
            continue;
        }
        st = cdi_msg_decode(f.type, f.payload, f.len, &msg, &err);
        cdi_buf_consume(&j->in, f.size);
        if (st == CDDP_OK)
            handle(j, &msg);
    }
    if (st >= 0 || j->lost)
        return;
    if (st == CDDP_E_DENIED && (j->opt.elected || is_at_another_port(j))) {
        client_later(j, err.msg);
        return;
    }
    if (st == CDDP_E_DENIED) {
        client_lose(j, err.msg);
        return;
    }
    if (err.msg[0] == '\0')
        (void)snprintf(err.msg, sizeof err.msg, "the rendezvous sent more than this cddprun accepts");
    if (j->answered)
        client_lose(j, err.msg);
    else
        not_rendezvous(j, "it uses another protocol", true);
}

/* ------------------------------------------------------------------------------------------------ connecting ---- */

static void report_connected(struct rdzv_client *j)
{
    struct sockaddr_storage peer = {0};
    int len = sizeof peer;
    char addr[CDI_HOST_TEXT];

    (void)uv_tcp_getpeername(&j->tcp, (struct sockaddr *)&peer, &len);
    cdi_address_host((const struct sockaddr *)&peer, addr);
    j->on.connected(j->arg, addr, cdi_address_port((const struct sockaddr *)&peer), fd_of(j));
}

/* Returns how long the answer to JOIN may take. */
static uint64_t answer_within(struct rdzv_client *j)
{
    int64_t left = j->opt.deadline_ms - cdi_now_ms();
    uint64_t ms = j->answer_ms;

    if (j->known || j->again)
        return RETURN_ANSWER_MS;
    if (j->answer_ms < ANSWER_MAX_MS)
        j->answer_ms *= 2;
    return left < 1 ? 1 : (uint64_t)left < ms ? (uint64_t)left : ms;
}

static void client_on_connect(uv_connect_t *req, int status)
{
    struct rdzv_client *j = req->data;
    uv_os_fd_t fd;

    if (j->closing || j->lost || status == UV_ECANCELED)
        return;
    if (status == 0 && uv_fileno((uv_handle_t *)&j->tcp, &fd) == 0 && cdi_is_self_connected(fd))
        status = UV_ECONNREFUSED;
    if (status != UV_ECONNREFUSED)
        j->refused_ms = 0;
    else if (j->refused_ms == 0)
        j->refused_ms = cdi_now_ms();
    if (status == 0) {
        j->connected = true;
        (void)uv_tcp_nodelay(&j->tcp, 1);
        (void)uv_timer_start(&j->limit, client_on_limit, answer_within(j), 0);
        cdi_buf_consume(&j->in, j->in.len);
        report_connected(j);
        send_hello(j);
        if (!j->lost)
            status = uv_read_start((uv_stream_t *)&j->tcp, client_on_alloc, client_on_read);
    }
    if (status != 0) {
        j->refusal[0] = '\0';
        client_later(j, uv_strerror(status));
    }
}

static void client_try_connect(struct rdzv_client *j)
{
    struct sockaddr_storage a = j->opt.addrs[j->next_addr];
    int rc = uv_tcp_init(j->loop, &j->tcp);
    uint16_t port = cdi_address_port((const struct sockaddr *)&a);
    char addr[CDI_HOST_TEXT];

    j->port = j->next_port;
    j->addr = j->next_addr;
    cdi_address_host((const struct sockaddr *)&a, addr);
    if (j->opt.n_ports > 1)
        cdi_address_set_port((struct sockaddr *)&a, (uint16_t)(port + j->port));
    (void)snprintf(j->trying, sizeof j->trying, j->opt.n_ports > 1 ? "%s, port %u" : "%s", addr, port + j->port);
    j->next_addr = (j->next_addr + 1) % j->opt.n_addrs;
    if (j->next_addr == 0 && j->opt.n_ports > 1 && !j->known && !j->again)
        j->next_port = (j->port + 1) % j->opt.n_ports;
    if (rc == 0) {
        int64_t left = j->known || j->again ? RETURN_ATTEMPT_MS : j->opt.deadline_ms - cdi_now_ms();

        j->tcp.data = j;
        j->tcp_open = true;
        j->open_handles++;
        j->connect.data = j;
        rc = uv_tcp_connect(&j->connect, &j->tcp, (const struct sockaddr *)&a, client_on_connect);
        (void)uv_timer_start(&j->limit, client_on_limit,
                             left < 1            ? 1
                             : left < ATTEMPT_MS ? (uint64_t)left
                                                 : ATTEMPT_MS,
                             0);
    }
    if (rc != 0)
        client_later(j, uv_strerror(rc));
}

cddp_status rdzv_client_start(struct rdzv_client **out, uv_loop_t *loop, const struct rdzv_client_options *opt,
                              const struct rdzv_client_events *on, void *arg, struct cdi_error *err)
{
    struct rdzv_client *j = calloc(1, sizeof *j);
    int rc;

    struct sockaddr_storage numeric;

    if (j == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "joining the rendezvous: out of memory");
    j->loop = loop;
    j->opt = *opt;
    if (strcmp(opt->host, "*") == 0 || uv_ip4_addr(opt->host, 0, (struct sockaddr_in *)&numeric) == 0 ||
        uv_ip6_addr(opt->host, 0, (struct sockaddr_in6 *)&numeric) == 0)
        j->opt.host[0] = '\0'; /* there is nothing to look up */
    j->on = *on;
    j->arg = arg;
    j->wait_ms = RETRY_FIRST_MS;
    j->answer_ms = is_host_without_port(opt) ? OWN_ANSWER_MS : ANSWER_MS;
    j->act_by_ms = CDI_NEVER_MS;
    lease_init(&j->lease, opt->own, is_alone(opt));
    cdi_buf_init(&j->in, CDI_FRAME_MAX + CDI_FRAME_HEADER + sizeof j->chunk);
    (void)uv_timer_init(loop, &j->retry);
    (void)uv_timer_init(loop, &j->beat);
    (void)uv_timer_init(loop, &j->limit);
    (void)uv_timer_init(loop, &j->waiting);
    j->retry.data = j;
    j->beat.data = j;
    j->limit.data = j;
    j->waiting.data = j;
    j->open_handles = 4;
    (void)uv_timer_start(&j->waiting, on_waiting_timer, REPORT_WAITING_MS, REPORT_WAITING_MS);
    rc = uv_timer_start(&j->retry, client_on_retry, 0, 0);
    if (rc != 0) {
        rdzv_client_close(j);
        return cdi_fail_errno(err, -rc, "joining the rendezvous");
    }
    *out = j;
    return CDDP_OK;
}

void rdzv_client_again(struct rdzv_client *j, int64_t deadline_ms)
{
    if (!j->lost || j->closing)
        return;
    j->lost = j->known = j->answered = false;
    j->again = true;
    j->refusal[0] = '\0';
    j->refused_ms = 0;
    j->n_bad_answers = 0;
    j->n_silent = 0;
    j->wait_ms = RETRY_FIRST_MS;
    j->opt.deadline_ms = deadline_ms;
    lease_init(&j->lease, j->opt.own, is_alone(&j->opt));
    (void)uv_timer_start(&j->waiting, on_waiting_timer, REPORT_WAITING_MS, REPORT_WAITING_MS);
    (void)uv_timer_start(&j->retry, client_on_retry, RETRY_FIRST_MS,
                         0); /* the handle of the old connection closes first */
}

void rdzv_client_move(struct rdzv_client *j, const char *addr, uint16_t port)
{
    if (j->closing)
        return;
    if (lookup_addresses(j->opt.addrs, &j->opt.n_addrs, addr, port, NULL) != CDDP_OK)
        return; /* it is numeric, as its host has said */
    (void)snprintf(j->opt.name, sizeof j->opt.name, strchr(addr, ':') == NULL ? "%.250s:%u" : "[%.250s]:%u", addr,
                   port);
    j->next_addr = 0;
    j->refused_ms = 0;
    if (j->lost)
        return; /* rdzv_client_again() follows */
    if (j->known)
        lease_broken(&j->lease);
    j->answered = false;
    reset_tcp(j);
    (void)uv_timer_stop(&j->limit);
    j->wait_ms = RETRY_FIRST_MS;
    (void)uv_timer_start(&j->retry, client_on_retry, RETRY_FIRST_MS, 0); /* the old handle closes first */
}

static void client_on_shutdown(uv_shutdown_t *req, int status)
{
    if (status != 0 && status != UV_ECANCELED)
        close_rest(req->data);
}

static void on_close_wait(uv_timer_t *t)
{
    close_rest(t->data);
}

/*
 * Closing a socket with unread bytes resets the connection: the last messages may be lost, and the rendezvous would
 * count the node as present until its lease ends. So this sends the end of file first, and reads all bytes.
 */
void rdzv_client_close(struct rdzv_client *j)
{
    if (j == NULL || j->closing)
        return;
    j->closing = true;
    lookup_drop(j->lookup);
    j->lookup = NULL;
    update_act_by(j);
    uv_close((uv_handle_t *)&j->beat, client_on_closed);
    uv_close((uv_handle_t *)&j->limit, client_on_closed);
    uv_close((uv_handle_t *)&j->waiting, client_on_closed);
    j->shutdown.data = j;
    if (!j->tcp_open || !j->connected || uv_shutdown(&j->shutdown, (uv_stream_t *)&j->tcp, client_on_shutdown) != 0) {
        close_rest(j);
        return;
    }
    (void)uv_timer_start(&j->retry, on_close_wait, CLOSE_WAIT_MS, 0);
}
