/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control sockets, on which ranks of different nodes send aborts and goodbyes. A separate thread reads them at all
 * times, also while the program computes. It ends the waits of the whole node and passes an abort on, also through
 * nodes where no rank waits. Without such a thread (no descriptor, no thread available), a rank that waits for the data
 * of a link reads its control socket.
 */
#include "common/clock.h"
#include "common/thread.h"
#include "worker/backend/cpu/net/tcp.h"
#include "worker/backend/describe.h"
#include "worker/backend/queue.h"
#include "worker/backend/who.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define WORD_MS 1000 /* after the end of a socket, for the other one, the agent or another rank to report why */
#define WORD_SLICE_MS 5
#define CONTROL_SLICE_MS 50 /* between two checks of shared memory, where there is no abort fd */
/*
 * The thread reads only after the network has been quiet for a while. An abort may overtake data that were sent before
 * it, and an operation whose data have all arrived must succeed. The same holds for a rank that ends without a goodbye
 * after its last operation. A rank that waits for the data of this link reads at once.
 */
#define NEWS_QUIET_MS 150
#define DEATH_QUIET_MS 1000
#define QUIET_AT_LAST_MS 3000 /* after this time even if data still move */

/* --------------------------------------------------------------------------------------------------- receiving ---- */

/* Handles a complete frame, or bytes that are not a frame. */
static void handle_frame(struct cdi_tcp *tcp, struct cdi_link *l, cddp_status header, const struct cdi_tcp_header *h)
{
    struct cdi_error why;

    if (header == CDDP_OK && h->type == CDI_TCP_IS_ABORT) {
        (void)cdi_tcp_get_abort(l->control_in + CDI_TCP_HEADER, h->len, &why);
        cdi_shm_abort(tcp->wait->shm, &why); /* the text is complete */
        atomic_store(&l->fate, CDI_LINK_LEFT);
    } else {
        atomic_store(&l->fate, header == CDDP_OK && h->type == CDI_TCP_IS_BYE ? CDI_LINK_LEFT : CDI_LINK_BROKEN);
    }
}

/* Reads available bytes; tcp->lock is held. */
static void read_control_locked(struct cdi_tcp *tcp, struct cdi_link *l)
{
    struct cdi_tcp_header h = {.len = 0};
    cddp_status st;
    ssize_t n;

    if (l->control < 0 || atomic_load(&l->fate) != CDI_LINK_ALIVE)
        return;
    n = recv(l->control, l->control_in + l->control_got, sizeof l->control_in - l->control_got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) { /* the kernel of a dead process resets a socket that holds bytes which the process has not read */
        l->control_errno = n < 0 ? errno : 0;
        atomic_store(&l->fate, n == 0 || (errno == ECONNRESET && l->last_sent) ? CDI_LINK_DIED : CDI_LINK_RESET);
        return;
    }
    l->control_got += (size_t)n;
    if (l->control_got < CDI_TCP_HEADER)
        return;
    st = cdi_tcp_get_header(l->control_in, &h, NULL);
    if (st != CDDP_OK || l->control_got >= CDI_TCP_HEADER + (size_t)h.len)
        handle_frame(tcp, l, st, &h);
}

static enum cdi_link_fate read_control(struct cdi_tcp *tcp, struct cdi_link *l)
{
    (void)pthread_mutex_lock(&tcp->lock);
    read_control_locked(tcp, l);
    (void)pthread_mutex_unlock(&tcp->lock);
    return (enum cdi_link_fate)atomic_load(&l->fate);
}

static cddp_status broke(const struct cdi_tcp *tcp, const struct cdi_link *l, int errnum, struct cdi_error *err)
{
    (void)cdi_fail(err, CDDP_E_IO,
                   "the connection of %s with %s broke: %s. Nothing reports that %s died: check "
                   "whether a firewall or another device between the nodes ends connections",
                   cdi_who(tcp->wait->ranks, tcp->rank).text, cdi_who_note(tcp->wait->ranks, l->rank, l->who).text,
                   errnum != 0 ? strerror(errnum) : "the other end was closed",
                   cdi_who(tcp->wait->ranks, l->rank).text);
    if (err != NULL)
        err->os_error = errnum;
    return CDDP_E_IO;
}

/* The control socket ended by an error. Waits a moment for a report of the agent or of another rank. */
static cddp_status link_reset(struct cdi_tcp *tcp, struct cdi_link *l, struct cdi_error *err)
{
    int64_t until_ms = cdi_now_ms() + WORD_MS;
    cddp_status st;

    while ((st = cdi_wait_check(tcp->wait, err)) == CDDP_OK && cdi_now_ms() < until_ms)
        (void)poll(NULL, 0, WORD_SLICE_MS);
    return st != CDDP_OK ? st : broke(tcp, l, l->control_errno, err);
}

cddp_status cdi_link_read_control(struct cdi_tcp *tcp, struct cdi_link *l, struct cdi_error *err)
{
    enum cdi_link_fate fate = read_control(tcp, l);
    cddp_status st = cdi_shm_aborted(tcp->wait->shm, err);

    if (st != CDDP_OK)
        return st;
    if (fate == CDI_LINK_DIED)
        return cdi_wait_report_death(tcp->wait, l->rank, l->who, err);
    if (fate == CDI_LINK_RESET)
        return link_reset(tcp, l, err);
    if (fate == CDI_LINK_BROKEN)
        return cdi_fail_by(err, cdi_wait_rank_of_job(tcp->wait, l->rank), CDDP_E_PROTOCOL, "%s sent unexpected data",
                           cdi_who(tcp->wait->ranks, l->rank).text);
    return CDDP_IN_PROGRESS;
}

int cdi_tcp_poll_ms(const struct cdi_tcp *tcp, int64_t left_ms)
{
    int64_t most = tcp->abort_fd.fd >= 0 ? INT_MAX : CDI_TCP_SLICE_MS;

    return (int)(left_ms < 0 ? 0 : left_ms < most ? left_ms : most);
}

cddp_status cdi_link_end_cause(struct cdi_tcp *tcp, struct cdi_link *l, struct cdi_error *err)
{
    int64_t until_ms = cdi_now_ms() + WORD_MS;
    cddp_status st = cdi_wait_check(tcp->wait, err);

    while (st == CDDP_OK && !cdi_link_gone(l) && cdi_now_ms() < until_ms) {
        struct pollfd p[] = {{.fd = l->control, .events = POLLIN}, {.fd = tcp->abort_fd.fd, .events = POLLIN}};

        (void)poll(p, 2, cdi_tcp_poll_ms(tcp, until_ms - cdi_now_ms()));
        st = cdi_link_read_control(tcp, l, err);
        if (st != CDDP_IN_PROGRESS)
            return st;
        st = cdi_wait_check(tcp->wait, err);
    }
    if (st == CDDP_OK) /* the fate of a link is set after its message */
        st = cdi_wait_check(tcp->wait, err);
    if (st != CDDP_OK)
        return st;
    if (cdi_link_gone(l))
        return cdi_fail_by(err, cdi_wait_rank_of_job(tcp->wait, l->rank), CDDP_E_PEER, "%s " CDI_HAS_LEFT,
                           cdi_who(tcp->wait->ranks, l->rank).text);
    return broke(tcp, l, l->data_errno, err); /* a death would have ended control, too */
}

/* ----------------------------------------------------------------------------------------------------- sending ---- */

/* tcp->lock is held until the frame is sent, so that no other thread closes the socket before. */
static void send_control_locked(struct cdi_link *l, enum cdi_tcp_type type, const void *body, uint32_t len)
{
    uint8_t out[CDI_TCP_HEADER + CDI_TCP_ABORT_MAX];
    const struct cdi_tcp_header h = {.type = type, .len = len};

    if (l->control < 0 || l->last_sent)
        return;
    l->last_sent = true;
    cdi_tcp_put_header(out, &h);
    if (len > 0)
        memcpy(out + CDI_TCP_HEADER, body, len);
    /* The only frame in this direction: it fits the empty socket buffer. */
    (void)send(l->control, out, CDI_TCP_HEADER + len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void send_control_all(struct cdi_tcp *tcp, enum cdi_tcp_type type, const void *body, uint32_t len)
{
    (void)pthread_mutex_lock(&tcp->lock);
    for (int i = 0; i < cdi_tcp_n_links(tcp); i++) {
        struct cdi_link *l = cdi_tcp_nth_link(tcp, i);

        if (l != NULL)
            send_control_locked(l, type, body, len);
    }
    (void)pthread_mutex_unlock(&tcp->lock);
}

void cdi_tcp_pass_abort(struct cdi_tcp *tcp)
{
    uint8_t body[CDI_TCP_ABORT_MAX];
    struct cdi_error why;

    if (cdi_shm_aborted(tcp->wait->shm, &why) != CDDP_OK)
        send_control_all(tcp, CDI_TCP_IS_ABORT, body, cdi_tcp_put_abort(body, &why));
}

void cdi_tcp_send_goodbye(struct cdi_tcp *tcp)
{
    cdi_tcp_pass_abort(tcp);
    send_control_all(tcp, CDI_TCP_IS_BYE, NULL, 0);
    (void)pthread_mutex_lock(&tcp->lock);
    for (int i = 0; i < cdi_tcp_n_links(tcp); i++) {
        struct cdi_link *l = cdi_tcp_nth_link(tcp, i);

        if (l != NULL && l->data >= 0)
            (void)shutdown(l->data, SHUT_WR);
    }
    (void)pthread_mutex_unlock(&tcp->lock);
}

/* -------------------------------------------------------------------------------------------------- the thread ---- */

/* A wait until the network is quiet: before the thread reads, and before it reports a death. */
struct quiet {
    bool is_on;
    uint32_t moved; /* its value when the network became quiet */
    int64_t quiet_ms, quiet_at_ms, last_ms;
};

static void quiet_begin(const struct cdi_tcp *tcp, struct quiet *v, int64_t quiet_ms)
{
    int64_t now = cdi_now_ms();

    if (v->is_on)
        return;
    *v = (struct quiet){.is_on = true,
                        .moved = cdi_wait_moved(tcp->wait),
                        .quiet_ms = quiet_ms,
                        .quiet_at_ms = now + quiet_ms,
                        .last_ms = now + QUIET_AT_LAST_MS};
}

/* Returns true once, after the network has been quiet for long enough. */
static bool is_quiet(const struct cdi_tcp *tcp, struct quiet *v)
{
    uint32_t moved = cdi_wait_moved(tcp->wait);
    int64_t now = cdi_now_ms();

    if (!v->is_on || (now < v->quiet_at_ms && now < v->last_ms))
        return false;
    if (moved != v->moved && now < v->last_ms) {
        v->moved = moved;
        v->quiet_at_ms = now + v->quiet_ms;
        return false;
    }
    v->is_on = false;
    return true;
}

/* Reads all links. Returns the first one that ended by a failure, or NULL. */
static struct cdi_link *read_all_control(struct cdi_tcp *tcp)
{
    struct cdi_link *failed = NULL;

    (void)pthread_mutex_lock(&tcp->lock);
    for (int i = 0; i < cdi_tcp_n_links(tcp); i++) {
        struct cdi_link *l = cdi_tcp_nth_link(tcp, i);

        if (l == NULL || !l->made)
            continue;
        read_control_locked(tcp, l);
        if (failed == NULL && atomic_load(&l->fate) != CDI_LINK_ALIVE && !cdi_link_gone(l))
            failed = l;
    }
    (void)pthread_mutex_unlock(&tcp->lock);
    return failed;
}

cddp_status cdi_control_look(struct cdi_tcp *tcp, struct cdi_error *err)
{
    struct cdi_link *l = read_all_control(tcp);
    cddp_status st = l != NULL ? cdi_link_read_control(tcp, l, err) : CDDP_OK;

    return st == CDDP_IN_PROGRESS ? CDDP_OK : st;
}

/* Ends the waits of the node with the error of a link. */
static void abort_node(struct cdi_tcp *tcp, struct cdi_link *l)
{
    struct cdi_error why;

    if (cdi_link_read_control(tcp, l, &why) < 0)
        cdi_shm_abort(tcp->wait->shm, &why);
}

static void *control_main(void *arg)
{
    struct cdi_tcp *tcp = arg;
    struct quiet news = {.is_on = false}, death = {.is_on = false};
    struct cdi_link *failed = NULL;

    cdi_thread_name("cddp-control");
    while (atomic_load(&tcp->control.stop) == 0) {
        struct epoll_event e[4];
        bool slices = news.is_on || death.is_on || tcp->abort_fd.fd < 0;
        int n = epoll_wait(tcp->control.epoll, e, 4, slices ? CONTROL_SLICE_MS : -1);

        for (int i = 0; i < n; i++)
            if (e[i].data.ptr != NULL)
                quiet_begin(tcp, &news, NEWS_QUIET_MS);
        if (is_quiet(tcp, &news)) {
            struct cdi_link *l = read_all_control(tcp);

            if (l != NULL && failed == NULL) {
                failed = l;
                quiet_begin(tcp, &death, DEATH_QUIET_MS);
            }
        }
        if (is_quiet(tcp, &death))
            abort_node(tcp, failed);
        if (cdi_wait_check(tcp->wait, NULL) != CDDP_OK) {
            cdi_tcp_pass_abort(tcp); /* also an abort of other ranks of this node, which may have no link */
            break;
        }
    }
    return NULL;
}

static bool control_watch(struct cdi_control_thread *c, int fd, struct cdi_link *l)
{
    struct epoll_event e = {.events = l != NULL ? EPOLLIN | EPOLLET : EPOLLIN, .data.ptr = l};

    return epoll_ctl(c->epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

void cdi_control_start(struct cdi_tcp *tcp)
{
    struct cdi_control_thread *c = &tcp->control;

    atomic_init(&c->stop, 0);
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->epoll = c->wake_fd < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll >= 0 && control_watch(c, c->wake_fd, NULL) &&
        (tcp->abort_fd.fd < 0 || control_watch(c, tcp->abort_fd.fd, NULL)) &&
        cdi_thread_start(&c->thread, control_main, tcp))
        return;
    if (c->epoll >= 0)
        (void)close(c->epoll);
    if (c->wake_fd >= 0)
        (void)close(c->wake_fd);
    c->epoll = c->wake_fd = -1;
}

void cdi_control_stop(struct cdi_tcp *tcp)
{
    struct cdi_control_thread *c = &tcp->control;
    const uint64_t one = 1;

    if (c->epoll < 0)
        return;
    atomic_store(&c->stop, 1);
    (void)!write(c->wake_fd, &one, sizeof one); /* cannot fail on an eventfd that was never written to */
    (void)pthread_join(c->thread, NULL);
    (void)close(c->epoll);
    (void)close(c->wake_fd);
    c->epoll = c->wake_fd = -1;
}

void cdi_control_add(struct cdi_tcp *tcp, struct cdi_link *l)
{
    (void)pthread_mutex_lock(&tcp->lock);
    l->made = true;
    (void)pthread_mutex_unlock(&tcp->lock);
    if (tcp->control.epoll >= 0)
        (void)control_watch(&tcp->control, l->control, l); /* out of memory: a rank that waits for its data reads it */
}
