/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets that the ranks of other nodes connect to, and the connections that are admitted. */
#include "worker/backend/cpu/net/tcp_listener.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "common/tcp.h"
#include "worker/base/data_port.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SLICE_MS 20
#define HELLO_MS 5000 /* for the hello and the proof of a pending connection, which is closed then */

cddp_status cdi_listener_open(struct cdi_tcp *tcp, const struct cdi_address *reached, struct cdi_error *err)
{
    struct cdi_address at[CDI_NET_ADDRESSES];
    char name[32], text[CDI_TCP_ADDRESS_TEXT] = "";
    size_t used = 0;
    int n;
    cddp_status st = cdi_net_choose(cdi_env_str(CDI_NET_IFNAME_ENV), reached, at, &n, err);

    for (int i = 0; i < n && st == CDDP_OK; i++) {
        char one[CDI_ADDRESS_TEXT];
        int fd = -1;

        st = cdi_data_listen(&at[i], tcp->rank, &fd, err);
        if (st != CDDP_OK)
            break;
        tcp->listener.fd[tcp->listener.n_fds++] = fd;
        cdi_address_text(&at[i].u.any, one);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? " " : "", one);
    }
    (void)snprintf(name, sizeof name, "addr/%d", tcp->rank);
    return st == CDDP_OK ? cdi_oob_set_text(&tcp->oob, name, text, err) : st;
}

bool cdi_tcp_make_hello(const struct cdi_tcp *tcp, int to, enum cdi_tcp_channel channel,
                        uint8_t out[CDI_TCP_HEADER + CDI_TCP_HELLO], struct cdi_tcp_hello *h)
{
    const struct cdi_tcp_header head = {.type = CDI_TCP_IS_HELLO, .len = CDI_TCP_HELLO};

    *h = (struct cdi_tcp_hello){.from = tcp->rank, .to = to, .pid = (int32_t)getpid(), .channel = channel};
    (void)gethostname(h->host, sizeof h->host - 1);
    h->host[sizeof h->host - 1] = '\0';
    cdi_tcp_put_header(out, &head);
    if (cdi_auth_nonce(h->nonce, NULL) != CDDP_OK)
        return false;
    cdi_tcp_put_hello(out + CDI_TCP_HEADER, h);
    return true;
}

void cdi_tcp_make_proof(const struct cdi_tcp *tcp, enum cdi_auth_side side, const struct cdi_tcp_hello *client,
                        const uint8_t server_nonce[CDI_AUTH_NONCE], uint8_t out[CDI_TCP_HEADER + CDI_TCP_PROOF])
{
    const struct cdi_tcp_header head = {.type = CDI_TCP_IS_PROOF, .len = CDI_TCP_PROOF};

    cdi_tcp_put_header(out, &head);
    cdi_tcp_proof(&tcp->token, side, client, server_nonce, out + CDI_TCP_HEADER);
}

bool cdi_tcp_check_proof(const struct cdi_tcp *tcp, enum cdi_auth_side side, const struct cdi_tcp_hello *client,
                         const uint8_t server_nonce[CDI_AUTH_NONCE], const uint8_t in[CDI_TCP_HEADER + CDI_TCP_PROOF])
{
    struct cdi_tcp_header head;
    uint8_t want[CDI_TCP_PROOF];

    cdi_tcp_proof(&tcp->token, side, client, server_nonce, want);
    return cdi_tcp_get_header(in, &head, NULL) == CDDP_OK && head.type == CDI_TCP_IS_PROOF &&
           cdi_auth_equal(in + CDI_TCP_HEADER, want);
}

bool cdi_tcp_check_hello(const struct cdi_tcp *tcp, const uint8_t in[CDI_TCP_HEADER + CDI_TCP_HELLO],
                         struct cdi_tcp_hello *h)
{
    struct cdi_tcp_header head;

    return cdi_tcp_get_header(in, &head, NULL) == CDDP_OK && head.type == CDI_TCP_IS_HELLO &&
           cdi_tcp_get_hello(in + CDI_TCP_HEADER, h, NULL) == CDDP_OK && h->to == tcp->rank && h->from >= 0 &&
           h->from < tcp->size && h->from != tcp->rank;
}

static struct cdi_link *new_link(struct cdi_tcp *tcp, int rank, struct cdi_link **place)
{
    struct cdi_link *l = calloc(1, sizeof *l);

    if (l == NULL)
        return NULL;
    l->rank = rank;
    l->data = l->control = -1;
    (void)pthread_mutex_lock(&tcp->lock);
    *place = l;
    (void)pthread_mutex_unlock(&tcp->lock);
    return l;
}

struct cdi_link *cdi_tcp_new_pair(struct cdi_tcp *tcp, int rank)
{
    return new_link(tcp, rank, &tcp->pair[rank]);
}

struct cdi_link *cdi_tcp_new_mesh(struct cdi_tcp *tcp, int node)
{
    return new_link(tcp, tcp->first[node] + tcp->local_rank, &tcp->mesh[node]);
}

/* Has the peer closed it? Then it has tried again. */
static bool has_ended(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

void cdi_tcp_set_socket(struct cdi_tcp *tcp, int *slot, int fd)
{
    (void)pthread_mutex_lock(&tcp->lock);
    *slot = fd;
    (void)pthread_mutex_unlock(&tcp->lock);
}

void cdi_tcp_move_socket(struct cdi_tcp *tcp, int *to, int *from)
{
    (void)pthread_mutex_lock(&tcp->lock);
    *to = *from;
    *from = -1;
    (void)pthread_mutex_unlock(&tcp->lock);
}

void cdi_tcp_name_link(struct cdi_tcp *tcp, struct cdi_link *l, const struct cdi_tcp_hello *h)
{
    (void)pthread_mutex_lock(&tcp->lock);
    (void)snprintf(l->who, sizeof l->who, "pid %d on %s", (int)h->pid, h->host);
    (void)pthread_mutex_unlock(&tcp->lock);
}

/* Returns the socket of a link that `h` opens, or NULL: there is none, or it is in use. */
static int *socket_for(struct cdi_tcp *tcp, const struct cdi_tcp_hello *h, struct cdi_link **link)
{
    int node = cdi_tcp_node_of(tcp, h->from);
    struct cdi_link *l = NULL;
    int *slot;

    if (h->channel >= CDI_TCP_PAIR_DATA) {
        l = tcp->pair[h->from];
        if (l == NULL && h->from < tcp->rank)
            l = cdi_tcp_new_pair(tcp, h->from);
    } else if (node < tcp->node && h->from == tcp->first[node] + tcp->local_rank && tcp->local_rank < tcp->n_chains) {
        l = tcp->mesh[node] != NULL ? tcp->mesh[node] : cdi_tcp_new_mesh(tcp, node);
    }
    if (l == NULL)
        return NULL;
    slot = h->channel == CDI_TCP_DATA || h->channel == CDI_TCP_PAIR_DATA ? &l->data : &l->control;
    *link = l;
    if ((l->data < 0 || l->control < 0) && *slot >= 0 && has_ended(*slot)) {
        int dead = *slot;

        cdi_tcp_set_socket(tcp, slot, -1);
        (void)close(dead);
    }
    return *slot < 0 ? slot : NULL;
}

static void close_pending(struct cdi_tcp *tcp, struct cdi_pending_conn *s)
{
    int fd = s->fd;

    cdi_tcp_set_socket(tcp, &s->fd, -1);
    (void)close(fd);
}

/* Asks a connection whose hello is complete for its proof, or closes it. */
static void challenge(struct cdi_tcp *tcp, struct cdi_pending_conn *s)
{
    uint8_t answer[CDI_TCP_HEADER + CDI_TCP_HELLO];
    struct cdi_tcp_hello mine;

    if (!cdi_tcp_check_hello(tcp, s->in, &s->hello) ||
        !cdi_tcp_make_hello(tcp, s->hello.from, s->hello.channel, answer, &mine) ||
        send(s->fd, answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof answer) {
        close_pending(tcp, s);
        return;
    }
    memcpy(s->nonce, mine.nonce, sizeof s->nonce);
    s->challenged = true;
    s->got = 0;
}

/* Admits a connection whose proof is complete, or closes it. */
static void admit(struct cdi_tcp *tcp, struct cdi_pending_conn *s)
{
    uint8_t answer[CDI_TCP_HEADER + CDI_TCP_PROOF];
    struct cdi_link *l;
    int *slot =
        cdi_tcp_check_proof(tcp, CDI_AUTH_CLIENT, &s->hello, s->nonce, s->in) ? socket_for(tcp, &s->hello, &l) : NULL;

    if (slot != NULL && !has_ended(s->fd)) {
        cdi_tcp_make_proof(tcp, CDI_AUTH_SERVER, &s->hello, s->nonce, answer);
        if (send(s->fd, answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof answer) {
            cdi_tcp_name_link(tcp, l, &s->hello);
            cdi_tcp_move_socket(tcp, slot, &s->fd);
            return;
        }
    }
    close_pending(tcp, s);
}

void cdi_tcp_set_options(int fd)
{
    const int on = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    cdi_tcp_limit_backoff(fd);
}

static void read_pending(struct cdi_tcp *tcp, struct cdi_pending_conn *s)
{
    size_t len = CDI_TCP_HEADER + (s->challenged ? CDI_TCP_PROOF : CDI_TCP_HELLO);
    ssize_t n = recv(s->fd, s->in + s->got, len - s->got, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR) && cdi_now_ms() < s->until_ms)
        return;
    if (n <= 0) {
        close_pending(tcp, s);
        return;
    }
    s->got += (size_t)n;
    if (s->got == len && s->challenged)
        admit(tcp, s);
    else if (s->got == len)
        challenge(tcp, s);
}

static bool same_address(const struct cdi_address *a, const struct cdi_address *b)
{
    if (a->u.any.sa_family != b->u.any.sa_family)
        return false;
    if (a->u.any.sa_family == AF_INET6)
        return memcmp(&a->u.v6.sin6_addr, &b->u.v6.sin6_addr, sizeof a->u.v6.sin6_addr) == 0;
    return a->u.v4.sin_addr.s_addr == b->u.v4.sin_addr.s_addr;
}

static int n_from(const struct cdi_listener *d, const struct cdi_address *from)
{
    int n = 0;

    for (int i = 0; i < CDI_TCP_PENDING; i++)
        n += d->pending[i].fd >= 0 && same_address(&d->pending[i].from, from);
    return n;
}

static bool goes_before(const struct cdi_pending_conn *a, const struct cdi_pending_conn *b)
{
    return a->challenged != b->challenged ? !a->challenged : a->until_ms < b->until_ms;
}

int cdi_listener_slot(const struct cdi_listener *d)
{
    int best = 0, most = 0;

    for (int i = 0; i < CDI_TCP_PENDING; i++) {
        int n = d->pending[i].fd < 0 ? 0 : n_from(d, &d->pending[i].from);

        if (d->pending[i].fd < 0)
            return i;
        if (n > most || (n == most && goes_before(&d->pending[i], &d->pending[best]))) {
            best = i;
            most = n;
        }
    }
    return best;
}

/* Accepts one connection. Returns false if there is none. */
static bool accept_from(struct cdi_tcp *tcp, int listener)
{
    struct cdi_address from = {.len = sizeof from.u};
    struct cdi_pending_conn *s = &tcp->listener.pending[cdi_listener_slot(&tcp->listener)];
    int fd, replaced, why;

    (void)pthread_mutex_lock(&tcp->lock); /* no child is forked before the socket is in its place */
    fd = accept4(listener, &from.u.any, &from.len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    why = errno;
    replaced = fd >= 0 ? s->fd : -1;
    if (fd >= 0)
        *s = (struct cdi_pending_conn){.fd = fd, .until_ms = cdi_now_ms() + HELLO_MS, .from = from};
    (void)pthread_mutex_unlock(&tcp->lock);
    if (fd < 0 && cdi_tcp_is_full(why) && tcp->listener.full_since_ms == 0)
        tcp->listener.full_since_ms = cdi_now_ms();
    if (fd < 0)
        return why == ECONNABORTED || why == EINTR;
    tcp->listener.full_since_ms = 0;
    if (replaced >= 0)
        (void)close(replaced);
    cdi_tcp_set_options(fd);
    read_pending(tcp, s); /* a rank sends its hello at once */
    return true;
}

void cdi_listener_accept(struct cdi_tcp *tcp)
{
    (void)cdi_listener_accept_or(tcp, -1, 0);
}

/* Only sockets that exist: poll(2) fails with more entries than RLIMIT_NOFILE, even if they are unused. */
bool cdi_listener_accept_or(struct cdi_tcp *tcp, int fd, short events)
{
    struct cdi_listener *d = &tcp->listener;
    struct pollfd p[CDI_TCP_PENDING + CDI_NET_ADDRESSES + 1];
    nfds_t n_polled = 0;

    for (int i = 0; i < d->n_fds; i++)
        p[n_polled++] = (struct pollfd){.fd = d->fd[i], .events = POLLIN};
    for (int i = 0; i < CDI_TCP_PENDING; i++)
        if (d->pending[i].fd >= 0)
            p[n_polled++] = (struct pollfd){.fd = d->pending[i].fd, .events = POLLIN};
    if (fd >= 0)
        p[n_polled++] = (struct pollfd){.fd = fd, .events = events};
    (void)poll(p, n_polled, SLICE_MS);
    for (int i = 0; i < CDI_TCP_PENDING; i++)
        if (d->pending[i].fd >= 0)
            read_pending(tcp, &d->pending[i]);
    for (int i = 0; i < d->n_fds; i++)
        for (int n = 0; p[i].revents != 0 && n < CDI_DATA_BACKLOG && accept_from(tcp, d->fd[i]); n++)
            ;
    if (d->full_since_ms != 0)
        (void)poll(NULL, 0, SLICE_MS); /* the connection that waits ends every poll at once */
    return fd >= 0 && p[n_polled - 1].revents != 0;
}
