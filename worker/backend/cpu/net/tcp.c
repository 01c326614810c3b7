/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/net/tcp.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define OVER_MS 300 /* how long received data are still processed after all waits have ended */
#define NAP_MS 500  /* the longest sleep, to notice that this process was stopped */
#define LOOK_MS \
    50 /* between two checks for hang-ups within the node; a sleep begins for so long without the node's sockets */

/* ---------------------------------------------------------------------------------------------------- frames ---- */

cddp_status cdi_link_send(struct cdi_link *l, enum cdi_tcp_type type, const void *body, size_t len, bool *moved,
                          struct cdi_error *err)
{
    struct cdi_flow *f = &l->tx;

    if (!f->busy) {
        const struct cdi_tcp_header h = {.type = type, .seq = f->seq++, .len = (uint32_t)len};

        cdi_tcp_put_header(f->head, &h);
        f->head_done = f->body_done = 0;
        f->busy = true;
    }
    while (f->head_done < CDI_TCP_HEADER || f->body_done < len) {
        struct iovec iov[2] = {
            {.iov_base = f->head + f->head_done, .iov_len = CDI_TCP_HEADER - f->head_done},
            {.iov_base = (void *)((uintptr_t)body + f->body_done), .iov_len = len - f->body_done},
        };
        const struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
        ssize_t n = sendmsg(l->data, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        f->wanted = n < 0 && errno == EAGAIN;
        if (f->wanted)
            return CDDP_IN_PROGRESS;
        if (n < 0)
            return cdi_fail(err, CDDP_E_PEER, "the connection with rank %d ended", l->rank);
        *moved = true;
        if ((size_t)n > iov[0].iov_len) {
            f->body_done += (size_t)n - iov[0].iov_len;
            n = (ssize_t)iov[0].iov_len;
        }
        f->head_done += (size_t)n;
    }
    f->busy = false;
    f->wanted = false;
    return CDDP_OK;
}

/* Receives at most `want` bytes. CDDP_OK: at least one was received. */
static cddp_status link_receive(struct cdi_link *l, void *to, size_t want, size_t *got, bool *moved,
                                struct cdi_error *err)
{
    ssize_t n;

    do
        n = recv(l->data, to, want, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    l->rx.wanted = n < 0 && errno == EAGAIN;
    if (l->rx.wanted)
        return CDDP_IN_PROGRESS;
    if (n <= 0)
        return cdi_fail(err, CDDP_E_PEER, "the connection with rank %d ended", l->rank);
    *moved = true;
    *got += (size_t)n;
    return CDDP_OK;
}

cddp_status cdi_link_recv(struct cdi_link *l, enum cdi_tcp_type type, void *body, size_t len, bool *moved,
                          struct cdi_error *err)
{
    struct cdi_flow *f = &l->rx;
    cddp_status st = CDDP_OK;

    while (f->head_done < CDI_TCP_HEADER && st == CDDP_OK) {
        struct cdi_tcp_header h;

        st = link_receive(l, f->head + f->head_done, CDI_TCP_HEADER - f->head_done, &f->head_done, moved, err);
        if (st != CDDP_OK || f->head_done < CDI_TCP_HEADER)
            continue;
        st = cdi_tcp_get_header(f->head, &h, err);
        if (st == CDDP_OK && (h.type != type || h.len != len || h.seq != f->seq))
            st = cdi_fail(err, CDDP_E_PROTOCOL, "rank %d sent unexpected data", l->rank);
        f->body_done = 0;
    }
    while (st == CDDP_OK && f->body_done < len)
        st = link_receive(l, (uint8_t *)body + f->body_done, len - f->body_done, &f->body_done, moved, err);
    if (st != CDDP_OK)
        return st;
    f->head_done = 0;
    f->seq++;
    f->wanted = false;
    return CDDP_OK;
}

/* -------------------------------------------------------------------------------------------------- the loop ---- */

struct pumping {
    struct cdi_tcp *tcp;
    struct cdi_link *const *links;
    int n;
    int64_t deadline_ms, look_at_ms, looked_ms;
    int64_t over_ms; /* all waits have ended, and received data are processed until then; 0: they have not */
    bool last_try;   /* the deadline is over, and data that arrived before it have had their attempt */
};

/*
 * Has an event ended all waits? An abort overtakes data that were sent before it, and an operation whose data have all
 * arrived succeeds. So there is one more attempt, and there are further ones for a moment while they move data.
 */
static cddp_status pump_check(struct pumping *g, bool moved, struct cdi_error *err)
{
    cddp_status st = cdi_wait_check(g->tcp->wait, err);
    int64_t now = cdi_now_ms();

    if (st == CDDP_OK || (g->over_ms != 0 && (!moved || now >= g->over_ms)))
        return st;
    if (g->over_ms == 0)
        g->over_ms = now + OVER_MS;
    return CDDP_OK;
}

static void pump_set_deadline(struct pumping *g)
{
    bool begun = true;

    for (int i = 0; i < g->n; i++)
        begun = begun && g->links[i]->begun;
    g->last_try = false;
    g->looked_ms = cdi_now_ms();
    g->deadline_ms =
        cdi_deadline_ms(g->looked_ms, g->tcp->wait->timeout_ms + (begun ? CDI_TCP_SLACK_DATA_MS : CDI_TCP_SLACK_OP_MS));
}

/* Returns the link that this rank waits for; one that has not begun comes first. */
static const struct cdi_link *pump_slowest(const struct pumping *g)
{
    const struct cdi_link *who = NULL;

    for (int i = 0; i < g->n; i++)
        if ((g->links[i]->rx.wanted || g->links[i]->tx.wanted) && (who == NULL || (who->begun && !g->links[i]->begun)))
            who = g->links[i];
    return who;
}

static cddp_status pump_timed_out(const struct pumping *g, struct cdi_error *err)
{
    const struct cdi_link *who = pump_slowest(g);
    double seconds = (double)g->tcp->wait->timeout_ms / 1000;

    if (who == NULL)
        return cdi_fail(err, CDDP_E_TIMEOUT, "not done within %.4g s", seconds);
    return cdi_fail_by(err, cdi_wait_rank_of_job(g->tcp->wait, who->rank), CDDP_E_TIMEOUT,
                       "rank %d did not %s within %.4g s", who->rank, who->begun ? "continue" : "arrive", seconds);
}

/* Adds the sockets of the node's other ranks, which hang up when those die. Returns their number. */
static nfds_t watch_node(const struct cdi_shm *shm, struct pollfd *p)
{
    nfds_t n = 0;

    for (int r = 0; r < shm->size; r++)
        if (shm->socks[r] >= 0)
            p[n++] = (struct pollfd){.fd = shm->socks[r], .events = POLLRDHUP};
    return n;
}

/*
 * Sleeps until data may move, an event has ended all waits, or the deadline. Only a long sleep includes the sockets of
 * the node, of which its first rank has many.
 */
static void pump_sleep(struct pumping *g, struct pollfd *p, nfds_t n)
{
    const struct cdi_tcp *tcp = g->tcp;
    int64_t left_ms = g->deadline_ms - cdi_now_ms();

    p[n++] = (struct pollfd){.fd = tcp->abort_fd.fd, .events = POLLIN};
    if (poll(p, n, cdi_tcp_poll_ms(tcp, left_ms < LOOK_MS ? left_ms : LOOK_MS)) != 0 || tcp->abort_fd.fd < 0)
        return;
    n += watch_node(tcp->wait->shm, p + n);
    left_ms -= LOOK_MS;
    (void)poll(p, n, cdi_tcp_poll_ms(tcp, left_ms < NAP_MS ? left_ms : NAP_MS));
    g->look_at_ms = 0;
}

/* No data could move: sleeps, then checks for other events. */
static cddp_status pump_idle(struct pumping *g, struct cdi_error *err)
{
    struct pollfd *p = g->tcp->polled;
    const struct cdi_link *who;
    cddp_status st = CDDP_OK;
    int64_t now;

    for (int i = 0; i < g->n; i++) {
        const struct cdi_link *l = g->links[i];
        int events = (l->rx.wanted ? POLLIN : 0) | (l->tx.wanted ? POLLOUT : 0);

        p[2 * i] = (struct pollfd){.fd = events != 0 ? l->data : -1, .events = (short)events};
        p[2 * i + 1] = (struct pollfd){.fd = events != 0 && !cdi_link_gone(l) ? l->control : -1, .events = POLLIN};
    }
    who = pump_slowest(g);
    cdi_wait_note_peer(g->tcp->wait, who != NULL ? who->rank : -1);
    pump_sleep(g, p, (nfds_t)g->n * 2);
    cdi_wait_note_peer(g->tcp->wait, -1);
    st = pump_check(g, false, err);
    if (g->over_ms != 0)
        return st;
    for (int i = 0; i < g->n && st == CDDP_OK; i++) {
        struct cdi_link *l = g->links[i];

        if (p[2 * i + 1].revents == 0)
            continue;
        if (l->suspect) /* there was another round of attempts since then, without progress */
            st = cdi_link_read_control(g->tcp, l, err);
        st = st == CDDP_IN_PROGRESS ? CDDP_OK : st;
        l->suspect = true;
    }
    now = cdi_now_ms();
    g->deadline_ms = cdi_deadline_ms(g->deadline_ms, cdi_wait_stopped_ms(&g->looked_ms, now, NAP_MS));
    if (st == CDDP_OK && now >= g->look_at_ms) {
        g->look_at_ms = now + LOOK_MS;
        if (cdi_wait_hung_up(g->tcp->wait, err) >= 0)
            return err->status;
    }
    if (st != CDDP_OK || now < g->deadline_ms)
        return st;
    if (g->last_try)
        return pump_timed_out(g, err);
    g->last_try = true; /* data that arrived since the last attempt are in time */
    return CDDP_OK;
}

/* Finds out why an attempt failed, if a socket ended. */
static cddp_status pump_explain(struct pumping *g, struct cdi_error *err)
{
    for (int i = 0; i < g->n && err->status == CDDP_E_PEER; i++) {
        struct pollfd p = {.fd = g->links[i]->data, .events = POLLRDHUP};

        if (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
            return cdi_link_end_cause(g->tcp, g->links[i], err);
    }
    return err->status;
}

cddp_status cdi_tcp_pump(struct cdi_tcp *tcp, struct cdi_link *const *links, int n, cdi_pump_fn fn, void *arg,
                         void (*what)(const void *arg, char *buf, size_t cap), const void *what_arg,
                         struct cdi_error *err)
{
    struct pumping g = {.tcp = tcp, .links = links, .n = n, .look_at_ms = cdi_now_ms() + LOOK_MS};
    struct cdi_shm *shm = tcp->wait->shm;
    struct cdi_error why;
    char name[320];
    cddp_status st;

    pump_set_deadline(&g);
    for (int i = 0; i < n; i++)
        links[i]->suspect = false;
    for (;;) {
        bool moved = false;

        for (int i = 0; i < n; i++)
            links[i]->rx.wanted = links[i]->tx.wanted = false;
        st = fn(arg, &moved, &why);
        if (st == CDDP_OK)
            return CDDP_OK;
        if (st != CDDP_IN_PROGRESS) {
            st = pump_explain(&g, &why);
            break;
        }
        if (moved) {
            (void)atomic_fetch_add_explicit(&shm->ranks[shm->rank].moved, 1, memory_order_relaxed);
            pump_set_deadline(&g);
            for (int i = 0; i < n; i++)
                links[i]->suspect = false;
            st = pump_check(&g, true, &why);
        } else {
            st = g.over_ms != 0 ? pump_check(&g, false, &why) : pump_idle(&g, &why);
        }
        if (st != CDDP_OK)
            break;
    }
    if (cdi_shm_aborted(shm, err) == st)
        return st; /* the message of another rank is complete */
    what(what_arg, name, sizeof name);
    return cdi_fail_since(err, &why, "%s: %.800s", name, why.msg);
}
