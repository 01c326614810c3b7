/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/net/tcp.h"

#include "common/clock.h"
#include "worker/backend/who.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define OVER_MS 300 /* how long received data are still processed after all waits have ended */
#define LOOK_MS 50  /* the longest sleep: between two looks for ranks of this node that died, and to notice a stop */

/* ---------------------------------------------------------------------------------------------------- frames ---- */

/* Returns what is left of a frame. The type of msg_iovlen differs between C libraries. */
static struct msghdr frame_rest(struct cdi_flow *f, const struct iovec *part, int n,
                                struct iovec iov[1 + CDI_TCP_PARTS])
{
    struct msghdr msg = {.msg_iov = iov};
    size_t skip = f->done;

    if (skip < CDI_TCP_HEADER)
        iov[msg.msg_iovlen++] = (struct iovec){.iov_base = f->head + skip, .iov_len = CDI_TCP_HEADER - skip};
    skip -= skip < CDI_TCP_HEADER ? skip : CDI_TCP_HEADER;
    for (int i = 0; i < n; i++) {
        size_t over = skip < part[i].iov_len ? skip : part[i].iov_len;

        if (over < part[i].iov_len)
            iov[msg.msg_iovlen++] =
                (struct iovec){.iov_base = (uint8_t *)part[i].iov_base + over, .iov_len = part[i].iov_len - over};
        skip -= over;
    }
    return msg;
}

/* Has the socket blocked, now or before? rc: of the call, unless that was left out. */
static bool flow_blocks(struct cdi_flow *f, ssize_t rc)
{
    f->wanted = f->quiet = f->quiet || (rc < 0 && errno == EAGAIN);
    return f->wanted;
}

static size_t parts_len(const struct iovec *part, int n)
{
    size_t len = 0;

    for (int i = 0; i < n; i++)
        len += part[i].iov_len;
    return len;
}

cddp_status cdi_link_send_parts(struct cdi_link *l, enum cdi_tcp_type type, const struct iovec *part, int n,
                                bool *moved, struct cdi_error *err)
{
    struct cdi_flow *f = &l->tx;
    size_t len = parts_len(part, n);

    if (!f->busy) {
        const struct cdi_tcp_header h = {.type = type, .seq = f->seq++, .len = (uint32_t)len};

        cdi_tcp_put_header(f->head, &h);
        f->done = 0;
        f->busy = true;
    }
    while (f->done < CDI_TCP_HEADER + len) {
        struct iovec iov[1 + CDI_TCP_PARTS];
        const struct msghdr msg = frame_rest(f, part, n, iov);
        ssize_t sent = f->quiet ? -1 : sendmsg(l->data, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (flow_blocks(f, sent))
            return CDDP_IN_PROGRESS;
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            l->data_errno = errno;
        if (sent < 0)
            return cdi_fail(err, CDDP_E_PEER, "the connection with rank %d ended", l->rank);
        *moved = true;
        f->done += (size_t)sent;
    }
    f->busy = false;
    f->wanted = false;
    return CDDP_OK;
}

cddp_status cdi_link_send(struct cdi_link *l, enum cdi_tcp_type type, const void *body, size_t len, bool *moved,
                          struct cdi_error *err)
{
    const struct iovec part = {.iov_base = (void *)(uintptr_t)body, .iov_len = len};

    return cdi_link_send_parts(l, type, &part, 1, moved, err);
}

static cddp_status unexpected(const struct cdi_link *l, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_PROTOCOL, "rank %d sent unexpected data", l->rank);
}

/* Checks a header, and the operation after it, as soon as they are complete. mine: NULL: no operation follows. */
static cddp_status check_frame(struct cdi_link *l, enum cdi_tcp_type type, const struct iovec *part, size_t len,
                               const struct cdi_shm_desc *mine, struct cdi_error *err)
{
    struct cdi_flow *f = &l->rx;
    struct cdi_tcp_header h;
    cddp_status st;

    if (f->busy || f->done < CDI_TCP_HEADER)
        return CDDP_OK;
    st = cdi_tcp_get_header(f->head, &h, err);
    if (st != CDDP_OK)
        return st;
    if (h.seq != f->seq)
        return unexpected(l, err);
    if (mine != NULL && (h.type == CDI_TCP_IS_OP || h.type == CDI_TCP_IS_ROUND)) {
        const struct cdi_shm_desc own = cdi_desc_compared(mine);
        struct cdi_shm_desc other;
        int32_t late;

        if (f->done < CDI_TCP_HEADER + CDI_TCP_OP)
            return CDDP_OK;
        cdi_tcp_get_op(part[0].iov_base, &other, &late);
        other = cdi_desc_compared(&other);
        if (memcmp(&other, &own, sizeof other) != 0)
            return CDDP_E_MISMATCH;
    }
    if (h.type != type || h.len != len)
        return unexpected(l, err);
    f->busy = true;
    return CDDP_OK;
}

/*
 * One call receives header and payload together, but never more than the expected frame. So no byte is written outside
 * of the parts, for any frame of the peer.
 */
static cddp_status link_recv(struct cdi_link *l, enum cdi_tcp_type type, const struct iovec *part, int n,
                             const struct cdi_shm_desc *mine, bool *moved, struct cdi_error *err)
{
    struct cdi_flow *f = &l->rx;
    size_t len = parts_len(part, n);

    while (f->done < CDI_TCP_HEADER + len) {
        struct iovec iov[1 + CDI_TCP_PARTS];
        struct msghdr msg = frame_rest(f, part, n, iov);
        ssize_t got = f->quiet ? -1 : recvmsg(l->data, &msg, MSG_DONTWAIT);
        cddp_status st;

        if (flow_blocks(f, got))
            return CDDP_IN_PROGRESS;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            l->data_errno = errno;
        if (got <= 0)
            return cdi_fail(err, CDDP_E_PEER, "the connection with rank %d ended", l->rank);
        *moved = true;
        f->done += (size_t)got;
        st = check_frame(l, type, part, len, mine, err);
        if (st != CDDP_OK)
            return st;
    }
    f->done = 0;
    f->seq++;
    f->busy = false;
    f->wanted = false;
    return CDDP_OK;
}

cddp_status cdi_link_recv_parts(struct cdi_link *l, enum cdi_tcp_type type, const struct iovec *part, int n,
                                bool *moved, struct cdi_error *err)
{
    return link_recv(l, type, part, n, NULL, moved, err);
}

cddp_status cdi_link_recv_first(struct cdi_link *l, enum cdi_tcp_type type, const struct iovec *part, int n,
                                const struct cdi_shm_desc *mine, bool *moved, struct cdi_error *err)
{
    return link_recv(l, type, part, n, mine, moved, err);
}

cddp_status cdi_link_recv(struct cdi_link *l, enum cdi_tcp_type type, void *body, size_t len, bool *moved,
                          struct cdi_error *err)
{
    const struct iovec part = {.iov_base = body, .iov_len = len};

    return link_recv(l, type, &part, 1, NULL, moved, err);
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

/* The next attempts make calls on all sockets. */
static void pump_try_all(const struct pumping *g)
{
    for (int i = 0; i < g->n; i++)
        g->links[i]->rx.quiet = g->links[i]->tx.quiet = false;
}

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
    pump_try_all(g);
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
                       "%s did not %s within %.4g s", cdi_who(g->tcp->wait->ranks, who->rank).text,
                       who->begun ? "continue" : "arrive", seconds);
}

/* Sleeps until data may move, an event has ended all waits, or it is time to look for ranks of this node that died. */
static void pump_sleep(const struct pumping *g, struct pollfd *p, nfds_t n)
{
    int64_t left_ms = g->deadline_ms - cdi_now_ms();

    p[n++] = (struct pollfd){.fd = g->tcp->abort_fd.fd, .events = POLLIN};
    (void)poll(p, n, cdi_tcp_poll_ms(g->tcp, left_ms < LOOK_MS ? left_ms : LOOK_MS));
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
    for (int i = 0; i < g->n; i++) {
        if ((p[2 * i].revents & ~POLLOUT) != 0)
            g->links[i]->rx.quiet = false;
        if ((p[2 * i].revents & ~POLLIN) != 0)
            g->links[i]->tx.quiet = false;
    }
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
    g->deadline_ms = cdi_deadline_ms(g->deadline_ms, cdi_wait_stopped_ms(&g->looked_ms, now, LOOK_MS));
    if (st == CDDP_OK && now >= g->look_at_ms) {
        g->look_at_ms = now + LOOK_MS;
        if (cdi_wait_find_dead(g->tcp->wait, err) >= 0)
            return err->status;
    }
    if (st != CDDP_OK || now < g->deadline_ms)
        return st;
    if (g->last_try)
        return pump_timed_out(g, err);
    pump_try_all(g);
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
    pump_try_all(&g);
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
