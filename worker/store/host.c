/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/store/host.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/fork_close.h"
#include "common/list.h"
#include "common/resolve.h"
#include "common/tcp.h"
#include "common/thread.h"
#include "common/time_limits.h"
#include "protocol/hello.h"
#include "protocol/sniff.h"
#include "store/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define PEERS_MAX 16384
#define ADDRESS_MAX 80 /* an IPv6 address with the name of its interface */
#define RETRY_MS 10
#define BACKLOG 1024
#define READ_SIZE 65536
#define PAUSE_MS 100 /* without accepting, if not even such a one can be accepted */

enum phase {
    PHASE_SNIFF, /* its protocol is not known yet */
    PHASE_HELLO,
    PHASE_STORE,
    PHASE_CLOSING, /* closed once `out` is written */
};

/* One connection. All of it belongs to the thread. */
struct peer {
    struct cdi_serve serve; /* first; in PHASE_STORE, and then until the peer is closed */
    struct cdi_list link;
    int fd;
    enum phase phase;
    bool serving;
    bool overflow;       /* beyond the limit of descriptors: accepted only to be rejected */
    int64_t deadline_ms; /* before PHASE_STORE, and in PHASE_CLOSING */
    struct cdi_hello_server hello;
    struct cdi_buf in, out;
};

struct cdi_store_host {
    pthread_t thread;
    int listener, stop; /* stop: an eventfd */
    int reserve;        /* a descriptor for an overflow connection; -1: one has it */
    struct cdi_kv *kv;
    int crowded; /* peers: from here on idle ones are closed, to leave descriptors to the program */
    struct cdi_list peers;
    struct pollfd *polls; /* grows with n_peers, to PEERS_MAX */
    size_t polls_cap;
    atomic_int n_peers;
    int64_t paused_until_ms;
    char address[ADDRESS_MAX];
    int port;
    bool foreign;
    bool auth;
    struct cdi_secret secret;
    char run_id[CDI_HELLO_RUN_ID_MAX + 1];
};

static struct peer *peer_at(struct cdi_list *link)
{
    return cdi_list_of(link, struct peer, link);
}

/* ------------------------------------------------------------------------------------------------- listening ---- */

/* Returns a listening socket, or -errno. */
static int host_listen_on(const struct sockaddr *a, socklen_t len)
{
    int fd = cdi_fork_socket(a->sa_family), why;

    if (fd < 0)
        return -errno;
    why = cdi_tcp_listen(fd, a, len, true, BACKLOG);
    if (why == 0)
        return fd;
    cdi_fork_close(fd);
    return -why;
}

/* Listens on all addresses of this host, which reaches itself by loopback. */
static int host_listen_everywhere(int port, char address[ADDRESS_MAX])
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = host_listen_on((struct sockaddr *)&six, sizeof six);

    (void)snprintf(address, ADDRESS_MAX, "127.0.0.1");
    return fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL ? host_listen_on((struct sockaddr *)&four, sizeof four) : fd;
}

static int host_listen_at(struct addrinfo *list, const char *host, int port, char address[ADDRESS_MAX], bool *foreign)
{
    uint8_t bytes[16];
    bool literal = inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;

    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        int fd;

        /* A name that resolves to 127.0.1.1 on its own host resolves to another address on the others. */
        if (cdi_address_is_loopback(a->ai_addr) && !literal && !cdi_is_localhost(host))
            return host_listen_everywhere(port, address);
        fd = host_listen_on(a->ai_addr, a->ai_addrlen);
        if (fd >= 0)
            (void)getnameinfo(a->ai_addr, a->ai_addrlen, address, ADDRESS_MAX, NULL, 0, NI_NUMERICHOST);
        if (fd != -EADDRNOTAVAIL && fd != -EAFNOSUPPORT)
            return fd;
    }
    *foreign = true;
    return host_listen_everywhere(port, address);
}

/* Stores the listener and its port. */
static cddp_status host_note_port(struct cdi_store_host *h, int listener, struct cdi_error *err)
{
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;

    h->listener = listener;
    if (getsockname(h->listener, (struct sockaddr *)&bound, &len) != 0)
        return cdi_fail_errno(err, errno, "getsockname");
    h->port = cdi_address_port((struct sockaddr *)&bound);
    return CDDP_OK;
}

static cddp_status start_listening(struct cdi_store_host *h, const struct cdi_store_host_options *opt,
                                   struct cdi_error *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    const char *source = opt->host_source != NULL ? opt->host_source : "MASTER_ADDR";
    struct addrinfo *list;
    char service[16];
    int rc;

    if (opt->host == NULL) {
        rc = host_listen_everywhere(opt->port, h->address);
        return rc >= 0 ? host_note_port(h, rc, err) : cdi_fail_errno(err, -rc, "this process cannot host a store");
    }
    (void)snprintf(service, sizeof service, "%d", opt->port);
    rc = cdi_resolve(opt->host, service, &hints, &list);
    if (rc != 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "rank 0 hosts the job's store, but '%.255s' (%s) does not resolve: %s",
                        opt->host, source, gai_strerror(rc));
    rc = host_listen_at(list, opt->host, opt->port, h->address, &h->foreign);
    freeaddrinfo(list);
    if (rc == -EADDRINUSE)
        return cdi_fail(
            err, CDDP_E_EXISTS,
            "rank 0 cannot host the job's store: port %d of '%.255s' is in use by another program; give all "
            "ranks a free %s",
            opt->port, opt->host, opt->host_source != NULL ? "port" : "MASTER_PORT");
    if (rc < 0)
        return cdi_fail_errno(err, -rc, "rank 0 cannot host the job's store at '%.255s' (%s), port %d", opt->host,
                              source, opt->port);
    return host_note_port(h, rc, err);
}

/* ----------------------------------------------------------------------------------------------- connections ---- */

static void host_fill_reserve(struct cdi_store_host *h)
{
    if (h->reserve < 0)
        h->reserve = fcntl(h->stop, F_DUPFD_CLOEXEC, 0);
}

static void peer_close(struct cdi_store_host *h, struct peer *p)
{
    if (p->serving)
        cdi_serve_release(&p->serve);
    cdi_list_remove(&p->link);
    cdi_fork_close(p->fd);
    host_fill_reserve(h);
    cdi_buf_release(&p->in);
    cdi_buf_release(&p->out);
    free(p);
    (void)atomic_fetch_sub(&h->n_peers, 1);
}

static void on_woken(struct cdi_serve *s)
{
    (void)s; /* the loop writes to every connection that has output */
}

static void host_begin_store(struct cdi_store_host *h, struct peer *p)
{
    cdi_serve_init(&p->serve, h->kv, &p->out, on_woken);
    p->phase = PHASE_STORE;
    p->serving = true;
}

static bool host_close_after_output(struct peer *p)
{
    p->phase = PHASE_CLOSING;
    p->deadline_ms = cdi_deadline_ms(cdi_now_ms(), 1000 * CDI_LIMIT_OPENING_S);
    return true;
}

/* Returns whether a connection may close soon: one that has not sent its request yet. */
static bool host_has_room_soon(struct cdi_store_host *h)
{
    struct cdi_list *link, *next;

    cdi_list_for_each (link, next, &h->peers) {
        const struct peer *p = peer_at(link);

        if (!p->overflow && p->phase != PHASE_STORE)
            return true;
    }
    return false;
}

/* Rejects a connection with the reason. Returns false, to close it without one, if a retry may succeed soon. */
static bool host_reject(struct cdi_store_host *h, struct peer *p)
{
    struct rlimit files = {.rlim_cur = 0};
    char why[256];

    (void)getrlimit(RLIMIT_NOFILE, &files);
    (void)snprintf(why, sizeof why,
                   "rank 0, which hosts it, has %d connections, and may open %llu files in all; raise that limit "
                   "on its node (ulimit -n)",
                   atomic_load(&h->n_peers) - 1, (unsigned long long)files.rlim_cur);
    return !host_has_room_soon(h) && cdi_hello_server_refuse(&p->hello, why, &p->out, NULL) == CDDP_OK &&
           host_close_after_output(p);
}

/* Rejects a connection without a handshake. Returns false to close it. */
static bool reject_plain(struct cdi_store_host *h, struct peer *p)
{
    bool own;

    if (cdi_c10d_sniff_ping(cdi_buf_data(&p->in), p->in.len, &own) == CDDP_IN_PROGRESS)
        return true;
    cdi_hello_server_init(&p->hello);
    return own && host_reject(h, p);
}

/* Detects the protocol from the first bytes. Returns false to close the connection. */
static bool host_sniff(struct cdi_store_host *h, struct peer *p)
{
    switch (cdi_sniff(cdi_buf_data(&p->in), p->in.len)) {
    case CDI_SNIFF_UNDECIDED:
        return true;
    case CDI_SNIFF_STORE:
        if (h->auth)
            return false;
        if (p->overflow)
            return reject_plain(h, p);
        host_begin_store(h, p);
        return true;
    case CDI_SNIFF_CONTROL:
        cdi_hello_server_init(&p->hello);
        p->phase = PHASE_HELLO;
        return true;
    case CDI_SNIFF_HTTP:
    case CDI_SNIFF_GARBAGE:
        break;
    }
    return false;
}

static const char *objection(const struct cdi_store_host *h, const struct cdi_hello *hello)
{
    if (hello->kind != CDI_HELLO_STORE)
        return "rank 0 of a job hosts this store, which does not accept agents";
    if (h->run_id[0] != '\0' && hello->run_id[0] != '\0' && strcmp(h->run_id, hello->run_id) != 0)
        return "this is the store of another job (TORCHELASTIC_RUN_ID)";
    return NULL;
}

static bool host_hello(struct cdi_store_host *h, struct peer *p)
{
    while (p->phase == PHASE_HELLO) {
        cddp_status st = cdi_hello_server_feed(&p->hello, &p->in, &p->out, NULL);
        const char *why;

        if (st == CDDP_E_DENIED)
            return host_close_after_output(p);
        if (st != CDDP_OK)
            return st == CDDP_IN_PROGRESS;
        if (p->overflow)
            return host_reject(h, p);
        if (p->hello.state == CDI_HELLO_S_ASKED) {
            if (cdi_hello_server_challenge(&p->hello, h->auth ? &h->secret : NULL, &p->out, NULL) != CDDP_OK)
                return false;
            continue;
        }
        why = objection(h, &p->hello.hello); /* sent to a client that has the auth token */
        if (why != NULL)
            return cdi_hello_server_refuse(&p->hello, why, &p->out, NULL) == CDDP_OK && host_close_after_output(p);
        if (cdi_hello_server_welcome(&p->hello, &p->out, NULL) != CDDP_OK)
            return false;
        host_begin_store(h, p);
    }
    return true;
}

/* Processes complete requests, as long as there is room for replies. */
static bool host_process(struct cdi_store_host *h, struct peer *p)
{
    if (p->phase == PHASE_SNIFF && !host_sniff(h, p))
        return false;
    if (p->phase == PHASE_HELLO && !host_hello(h, p))
        return false;
    if (p->phase != PHASE_STORE)
        return true;
    return cdi_serve_feed(&p->serve, &p->in, CDI_SERVE_OUT_ENOUGH, NULL) >= 0 ||
           (p->out.len > 0 && host_close_after_output(p));
}

static bool host_receive(struct cdi_store_host *h, struct peer *p)
{
    uint8_t *to = cdi_buf_reserve(&p->in, READ_SIZE);
    ssize_t n = to == NULL ? 0 : recv(p->fd, to, READ_SIZE, 0);

    if (n > 0) {
        cdi_buf_commit(&p->in, (size_t)n);
        if (p->phase == PHASE_CLOSING)
            cdi_buf_consume(&p->in, p->in.len);
        return host_process(h, p);
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static bool host_transmit(struct cdi_store_host *h, struct peer *p)
{
    while (p->out.len > 0) {
        size_t before = p->out.len;
        ssize_t n = send(p->fd, cdi_buf_data(&p->out), p->out.len, MSG_NOSIGNAL);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        cdi_buf_consume(&p->out, (size_t)n);
        /* Processes requests that waited for room. */
        if (before >= CDI_SERVE_OUT_ENOUGH && p->out.len < CDI_SERVE_OUT_ENOUGH && !host_process(h, p))
            return false;
    }
    return p->phase != PHASE_CLOSING;
}

/* Accepts a connection on the reserve, the only descriptor that is left. */
static int accept_overflow(struct cdi_store_host *h)
{
    int fd, why;

    if (h->reserve < 0) {
        errno = EMFILE;
        return -1;
    }
    (void)close(h->reserve);
    h->reserve = -1;
    fd = cdi_fork_accept(h->listener);
    why = errno;
    if (fd < 0)
        host_fill_reserve(h);
    errno = why;
    return fd;
}

/* Returns whether another connection may have its place. */
static bool is_idle(const struct peer *p, int64_t now_ms)
{
    if (p->overflow)
        return false;
    if (p->phase == PHASE_CLOSING)
        return p->out.len == 0;
    return p->phase != PHASE_STORE && p->deadline_ms <= now_ms + 1000 * CDI_LIMIT_OPENING_S - CDI_SERVE_YOUNG_MS;
}

/* Closes the oldest connection that has not sent its request or proved its auth token. Returns false if there is none.
 */
static bool host_close_idle(struct cdi_store_host *h)
{
    int64_t now = cdi_now_ms();
    struct cdi_list *link, *next;

    cdi_list_for_each (link, next, &h->peers) {
        if (is_idle(peer_at(link), now)) {
            peer_close(h, peer_at(link));
            return true;
        }
    }
    return false;
}

static void host_accept_all(struct cdi_store_host *h)
{
    for (;;) {
        int fd = cdi_fork_accept(h->listener), on = 1;
        bool overflow = fd < 0 && (errno == EMFILE || errno == ENFILE);
        struct peer *p;

        if (overflow)
            fd = accept_overflow(h);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
                h->paused_until_ms = cdi_deadline_ms(cdi_now_ms(), PAUSE_MS);
            return;
        }
        if (atomic_load(&h->n_peers) >= h->crowded || overflow)
            overflow = !host_close_idle(h) && overflow; /* closing one has refilled the reserve */
        p = atomic_load(&h->n_peers) < PEERS_MAX || host_close_idle(h) ? calloc(1, sizeof *p) : NULL;
        if (p == NULL) {
            cdi_fork_close(fd);
            host_fill_reserve(h);
            continue;
        }
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        p->fd = fd;
        p->overflow = overflow;
        p->deadline_ms = cdi_deadline_ms(cdi_now_ms(), overflow ? CDI_SERVE_OVERFLOW_MS : 1000 * CDI_LIMIT_OPENING_S);
        cdi_buf_init(&p->in, CDI_SERVE_IN_MAX);
        cdi_buf_init(&p->out, CDI_SERVE_OUT_MAX);
        cdi_list_push_back(&h->peers, &p->link);
        (void)atomic_fetch_add(&h->n_peers, 1);
    }
}

/* -------------------------------------------------------------------------------------------------- the loop ---- */

static bool has_deadline(const struct peer *p)
{
    return p->phase != PHASE_STORE;
}

static short events_of(const struct peer *p)
{
    return (short)((p->out.len < CDI_SERVE_OUT_ENOUGH ? POLLIN : 0) | (p->out.len > 0 ? POLLOUT : 0));
}

/* Makes room for all connections and two descriptors of the host. Returns false without memory. */
static bool host_grow_polls(struct cdi_store_host *h)
{
    size_t want = (size_t)atomic_load(&h->n_peers) + 2;
    struct pollfd *grown;

    if (want <= h->polls_cap)
        return true;
    grown = calloc(2 * want, sizeof *grown);
    if (grown == NULL)
        return false;
    free(h->polls);
    h->polls = grown;
    h->polls_cap = 2 * want;
    return true;
}

/* Fills h->polls, and returns how long poll may sleep; -1: without a limit. */
static int host_fill_polls(struct cdi_store_host *h, size_t *n)
{
    int64_t now = cdi_now_ms(), until = INT64_MAX;
    bool paused = now < h->paused_until_ms;
    struct cdi_list *link, *next;

    h->polls[0] = (struct pollfd){.fd = h->stop, .events = POLLIN};
    h->polls[1] = (struct pollfd){.fd = paused ? -1 : h->listener, .events = POLLIN};
    *n = 2;
    if (paused)
        until = h->paused_until_ms;
    cdi_list_for_each (link, next, &h->peers) {
        struct peer *p = peer_at(link);

        h->polls[(*n)++] = (struct pollfd){.fd = p->fd, .events = events_of(p)};
        if (has_deadline(p) && p->deadline_ms < until)
            until = p->deadline_ms;
    }
    return until == INT64_MAX ? -1 : until <= now ? 0 : until - now > 60000 ? 60000 : (int)(until - now);
}

/* Reads from all connections, then writes to all: a request of one may wake another. */
static void host_serve_all(struct cdi_store_host *h)
{
    int64_t now = cdi_now_ms();
    struct cdi_list *link, *next;
    size_t i = 2;

    cdi_list_for_each (link, next, &h->peers) {
        struct peer *p = peer_at(link);
        short got = h->polls[i++].revents;

        if (((got & ~POLLOUT) != 0 && !host_receive(h, p)) || (has_deadline(p) && p->deadline_ms <= now))
            peer_close(h, p);
    }
    cdi_list_for_each (link, next, &h->peers) {
        struct peer *p = peer_at(link);

        if ((p->serving && p->serve.broken) || !host_transmit(h, p))
            peer_close(h, p);
    }
}

static bool host_is_stopped(const struct cdi_store_host *h)
{
    uint64_t n;

    return read(h->stop, &n, sizeof n) == (ssize_t)sizeof n;
}

static void *serve_until_stopped(void *arg)
{
    struct cdi_store_host *h = arg;
    size_t n;

    cdi_thread_name("cddp-store");
    for (;;) {
        int wait_ms;

        if (!host_grow_polls(h)) { /* the others are still served */
            peer_close(h, peer_at(h->peers.prev));
            continue;
        }
        wait_ms = host_fill_polls(h, &n);
        if (poll(h->polls, n, wait_ms) < 0)
            (void)poll(NULL, 0, RETRY_MS); /* the kernel is out of memory, or the limit of descriptors has shrunk */
        if (host_is_stopped(h))
            break;
        host_serve_all(h);
        if (h->polls[1].revents != 0)
            host_accept_all(h);
    }
    while (h->peers.next != &h->peers)
        peer_close(h, peer_at(h->peers.next));
    return NULL;
}

/* -------------------------------------------------------------------------------------------- start and stop ---- */

static void host_free(struct cdi_store_host *h)
{
    cdi_fork_close(h->listener);
    if (h->stop >= 0)
        (void)close(h->stop);
    if (h->reserve >= 0)
        (void)close(h->reserve);
    cdi_kv_destroy(h->kv);
    cdi_secret_release(&h->secret);
    free(h->polls);
    free(h);
}

static int host_half_of_files(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / 2 > PEERS_MAX)
        return PEERS_MAX;
    return (int)(files.rlim_cur / 2);
}

cddp_status cdi_store_host_start(struct cdi_store_host **out, const struct cdi_store_host_options *opt,
                                 struct cdi_error *err)
{
    struct cdi_store_host *h = calloc(1, sizeof *h);
    cddp_status st;
    int rc;

    if (h == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    h->listener = h->stop = h->reserve = -1;
    h->crowded = host_half_of_files();
    cdi_list_init(&h->peers);
    atomic_init(&h->n_peers, 0);
    h->auth = opt->secret != NULL;
    if (h->auth)
        h->secret = *opt->secret;
    (void)snprintf(h->run_id, sizeof h->run_id, "%s", opt->run_id != NULL ? opt->run_id : "");
    h->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    st = h->stop < 0 ? cdi_fail_errno(err, errno, "eventfd") : start_listening(h, opt, err);
    if (st == CDDP_OK && (cdi_kv_create(&h->kv, NULL) != CDDP_OK || !host_grow_polls(h)))
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    if (st == CDDP_OK) {
        host_fill_reserve(h);
        rc = cdi_thread_create(&h->thread, 0, serve_until_stopped, h);
        if (rc != 0)
            st = cdi_fail_errno(err, rc, "rank 0 cannot start the thread of the job's store");
    }
    if (st != CDDP_OK) {
        host_free(h);
        return st;
    }
    *out = h;
    return CDDP_OK;
}

const char *cdi_store_host_address(const struct cdi_store_host *h)
{
    return h->address;
}

bool cdi_store_host_is_foreign(const struct cdi_store_host *h)
{
    return h->foreign;
}

int cdi_store_host_port(const struct cdi_store_host *h)
{
    return h->port;
}

int cdi_store_host_clients(const struct cdi_store_host *h)
{
    return atomic_load(&h->n_peers);
}

void cdi_store_host_stop(struct cdi_store_host *h)
{
    const uint64_t one = 1;

    if (h == NULL)
        return;
    while (write(h->stop, &one, sizeof one) < 0 && errno == EINTR)
        ;
    (void)pthread_join(h->thread, NULL);
    host_free(h);
}
