/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/tcp.h"

#include "common/clock.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define SLICE_MS 10 /* how often who waits for sockets looks at shared memory, where there is no bell */
#define LOOK_MS 50  /* and for hang-ups within the node, and how long who sleeps does so without the node's sockets */
#define LAST_WORDS_MS 300 /* a data socket ended: its control socket says why */

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

/* At most `want` bytes; CDDP_OK: some came. */
static cddp_status receive(struct cdi_link *l, void *to, size_t want, size_t *got, bool *moved, struct cdi_error *err)
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

        st = receive(l, f->head + f->head_done, CDI_TCP_HEADER - f->head_done, &f->head_done, moved, err);
        if (st != CDDP_OK || f->head_done < CDI_TCP_HEADER)
            continue;
        st = cdi_tcp_get_header(f->head, &h, err);
        if (st == CDDP_OK && (h.type != type || h.len != len || h.seq != f->seq))
            st = cdi_fail(err, CDDP_E_PROTOCOL, "rank %d sent something else than expected", l->rank);
        f->body_done = 0;
    }
    while (st == CDDP_OK && f->body_done < len)
        st = receive(l, (uint8_t *)body + f->body_done, len - f->body_done, &f->body_done, moved, err);
    if (st != CDDP_OK)
        return st;
    f->head_done = 0;
    f->seq++;
    f->wanted = false;
    return CDDP_OK;
}

/* --------------------------------------------------------------------------------------------------- control ---- */

/* What the other side said before it fell silent: CDDP_IN_PROGRESS: nothing yet. */
static cddp_status hear(struct cdi_tcp *tcp, struct cdi_link *l, struct cdi_error *err)
{
    struct cdi_tcp_header h;
    ssize_t n = recv(l->control, l->control_in + l->control_got, sizeof l->control_in - l->control_got, MSG_DONTWAIT);
    cddp_status st;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return CDDP_IN_PROGRESS;
    if (n <= 0)
        return cdi_wait_died(tcp->wait, l->rank, l->who, err);
    l->control_got += (size_t)n;
    if (l->control_got < CDI_TCP_HEADER)
        return CDDP_IN_PROGRESS;
    st = cdi_tcp_get_header(l->control_in, &h, err);
    if (st == CDDP_OK && l->control_got < CDI_TCP_HEADER + (size_t)h.len)
        return CDDP_IN_PROGRESS;
    if (st == CDDP_OK && h.type == CDI_TCP_IS_ABORT) {
        st = cdi_tcp_get_abort(l->control_in + CDI_TCP_HEADER, h.len, err);
        cdi_shm_abort(tcp->wait->shm, st, err->msg); /* the sentence is whole, as it is */
        return cdi_shm_aborted(tcp->wait->shm, err);
    }
    if (st == CDDP_OK && h.type == CDI_TCP_IS_BYE) {
        l->gone = true;
        return CDDP_IN_PROGRESS;
    }
    return cdi_fail(err, CDDP_E_PROTOCOL, "rank %d sent something else than expected", l->rank);
}

/* How long to poll when there are left_ms: to the end where a bell rings for all else that can happen. */
static int poll_ms(const struct cdi_tcp *tcp, int64_t left_ms)
{
    int64_t most = tcp->bell.fd >= 0 ? INT_MAX : SLICE_MS;

    return (int)(left_ms < 0 ? 0 : left_ms < most ? left_ms : most);
}

/* A data socket ended. */
static cddp_status last_words(struct cdi_tcp *tcp, struct cdi_link *l, struct cdi_error *err)
{
    int64_t until_ms = cdi_now_ms() + LAST_WORDS_MS;

    while (!l->gone && cdi_now_ms() < until_ms) {
        struct pollfd p[] = {{.fd = l->control, .events = POLLIN}, {.fd = tcp->bell.fd, .events = POLLIN}};
        cddp_status st;

        (void)poll(p, 2, poll_ms(tcp, until_ms - cdi_now_ms()));
        st = hear(tcp, l, err);
        if (st != CDDP_IN_PROGRESS)
            return st;
        st = cdi_wait_check(tcp->wait, err);
        if (st != CDDP_OK)
            return st;
    }
    if (l->gone)
        return cdi_fail(err, CDDP_E_PEER, "rank %d has left the job (cddp_finalize)", l->rank);
    return cdi_wait_died(tcp->wait, l->rank, l->who, err);
}

static void say(struct cdi_link *l, enum cdi_tcp_type type, const void *body, uint32_t len)
{
    uint8_t out[CDI_TCP_HEADER + 4 + CDI_SHM_TEXT];
    const struct cdi_tcp_header h = {.type = type, .len = len};

    if (l->control < 0 || atomic_exchange(&l->said, 1) != 0)
        return;
    cdi_tcp_put_header(out, &h);
    if (len > 0)
        memcpy(out + CDI_TCP_HEADER, body, len);
    /* The only frame that ever goes this way: an empty socket buffer takes it. */
    (void)send(l->control, out, CDI_TCP_HEADER + len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void say_to_all(struct cdi_tcp *tcp, enum cdi_tcp_type type, const void *body, uint32_t len)
{
    say(&tcp->prev, type, body, len);
    say(&tcp->next, type, body, len);
    (void)pthread_mutex_lock(&tcp->lock);
    for (int r = 0; r < tcp->size; r++)
        if (tcp->pair[r] != NULL)
            say(tcp->pair[r], type, body, len);
    (void)pthread_mutex_unlock(&tcp->lock);
}

void cdi_tcp_pass_abort(struct cdi_tcp *tcp)
{
    uint8_t body[4 + CDI_SHM_TEXT];
    struct cdi_error why;
    cddp_status st = cdi_shm_aborted(tcp->wait->shm, &why);

    if (st != CDDP_OK)
        say_to_all(tcp, CDI_TCP_IS_ABORT, body, cdi_tcp_put_abort(body, st, why.msg));
}

void cdi_tcp_say_bye(struct cdi_tcp *tcp)
{
    cdi_tcp_pass_abort(tcp);
    say_to_all(tcp, CDI_TCP_IS_BYE, NULL, 0);
}

/* -------------------------------------------------------------------------------------------------- the loop ---- */

struct pumping {
    struct cdi_tcp *tcp;
    struct cdi_link *const *links;
    int n;
    int64_t deadline_ms, look_at_ms;
};

static int64_t deadline_of(const struct pumping *g)
{
    bool begun = true;

    for (int i = 0; i < g->n; i++)
        begun = begun && g->links[i]->begun;
    return cdi_deadline_ms(cdi_now_ms(),
                           g->tcp->wait->timeout_ms + (begun ? CDI_TCP_SLACK_DATA_MS : CDI_TCP_SLACK_OP_MS));
}

/* Who keeps us waiting: first whoever has not even begun. */
static cddp_status late(const struct pumping *g, struct cdi_error *err)
{
    const struct cdi_link *who = NULL;

    for (int i = 0; i < g->n; i++)
        if ((g->links[i]->rx.wanted || g->links[i]->tx.wanted) && (who == NULL || (who->begun && !g->links[i]->begun)))
            who = g->links[i];
    return cdi_fail(err, CDDP_E_TIMEOUT, "rank %d did not %s within %.4g s", who != NULL ? who->rank : -1,
                    who != NULL && who->begun ? "go on" : "come", (double)g->tcp->wait->timeout_ms / 1000);
}

/* The sockets of the node's other ranks, which hang up when those die; so many. */
static nfds_t watch_node(const struct cdi_shm *shm, struct pollfd *p)
{
    nfds_t n = 0;

    for (int r = 0; r < shm->size; r++)
        if (shm->socks[r] >= 0)
            p[n++] = (struct pollfd){.fd = shm->socks[r], .events = POLLRDHUP};
    return n;
}

/*
 * Until something may move, something has ended all waits, or the deadline. Of the node's sockets, of which its first
 * rank has many, only a long sleep makes part.
 */
static void sleep_on(struct pumping *g, struct pollfd *p, nfds_t n)
{
    const struct cdi_tcp *tcp = g->tcp;
    int64_t left_ms = g->deadline_ms - cdi_now_ms();

    p[n++] = (struct pollfd){.fd = tcp->bell.fd, .events = POLLIN};
    if (poll(p, n, poll_ms(tcp, left_ms < LOOK_MS ? left_ms : LOOK_MS)) != 0 || tcp->bell.fd < 0)
        return;
    n += watch_node(tcp->wait->shm, p + n);
    (void)poll(p, n, poll_ms(tcp, left_ms - LOOK_MS));
    g->look_at_ms = 0;
}

/* Nothing could move: sleep, and see what else there is to know. */
static cddp_status idle(struct pumping *g, struct cdi_error *err)
{
    struct pollfd *p = g->tcp->polled;
    cddp_status st = CDDP_OK;
    int64_t now;

    for (int i = 0; i < g->n; i++) {
        const struct cdi_link *l = g->links[i];
        int events = (l->rx.wanted ? POLLIN : 0) | (l->tx.wanted ? POLLOUT : 0);

        p[2 * i] = (struct pollfd){.fd = events != 0 ? l->data : -1, .events = (short)events};
        p[2 * i + 1] = (struct pollfd){.fd = events != 0 && !l->gone ? l->control : -1, .events = POLLIN};
    }
    sleep_on(g, p, (nfds_t)g->n * 2);
    st = cdi_wait_check(g->tcp->wait, err);
    for (int i = 0; i < g->n && st == CDDP_OK; i++) {
        struct cdi_link *l = g->links[i];

        if (p[2 * i + 1].revents == 0)
            continue;
        if (l->suspect) /* there was another round of attempts since, and it moved nothing */
            st = hear(g->tcp, l, err);
        st = st == CDDP_IN_PROGRESS ? CDDP_OK : st;
        l->suspect = true;
    }
    now = cdi_now_ms();
    if (st == CDDP_OK && now >= g->look_at_ms) {
        g->look_at_ms = now + LOOK_MS;
        if (cdi_wait_hung_up(g->tcp->wait, err) >= 0)
            return err->status;
    }
    return st == CDDP_OK && now >= g->deadline_ms ? late(g, err) : st;
}

/* An attempt failed: if it was a socket that ended, why. */
static cddp_status explain(struct pumping *g, struct cdi_error *err)
{
    for (int i = 0; i < g->n && err->status == CDDP_E_PEER; i++) {
        struct pollfd p = {.fd = g->links[i]->data, .events = POLLRDHUP};

        if (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
            return last_words(g->tcp, g->links[i], err);
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
    char name[160];
    cddp_status st;

    g.deadline_ms = deadline_of(&g);
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
            st = explain(&g, &why);
            break;
        }
        if (moved) {
            (void)atomic_fetch_add_explicit(&shm->ranks[shm->rank].moved, 1, memory_order_relaxed);
            g.deadline_ms = deadline_of(&g);
            for (int i = 0; i < n; i++)
                links[i]->suspect = false;
            st = cdi_wait_check(tcp->wait, &why);
        } else {
            st = idle(&g, &why);
        }
        if (st != CDDP_OK)
            break;
    }
    if (cdi_shm_aborted(shm, err) == st)
        return st; /* another rank's sentence is whole */
    what(what_arg, name, sizeof name);
    return cdi_fail(err, st, "%s: %.800s", name, why.msg);
}
