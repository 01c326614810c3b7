/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/links.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "common/thread.h"
#include "worker/base/data_port.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define PINGS 8
#define CHUNK (128 << 10)
#define SERVED_MAX 256 /* connections at once; more wait to be accepted */
#define QUEUE 4096     /* which wait; the kernel may allow fewer (net.core.somaxconn) */
#define SERVED_MS 5000 /* how long a silent one lasts */
#define STACK (256 << 10)

#define HELLO (CDI_AUTH_NONCE + 1) /* the client's nonce and its letter */

static struct {
    struct cdi_secret token;
    struct pollfd at[CDI_NET_ADDRESSES];
    int n_at;
    int served; /* atomic */
} server;

/* ------------------------------------------------------------------------------------------------------- bytes ---- */

/* The time limit is the socket's. Returns whether all bytes were moved. */
static bool receive_all(int fd, void *bytes, size_t n)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = recv(fd, (char *)bytes + got, n - got, 0);

        if (k <= 0 && !(k < 0 && errno == EINTR)) {
            errno = k == 0 ? ECONNRESET : errno;
            return false;
        }
        got += k > 0 ? (size_t)k : 0;
    }
    return true;
}

static bool send_all(int fd, const void *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = send(fd, (const char *)bytes + done, n - done, MSG_NOSIGNAL);

        if (k < 0 && errno != EINTR)
            return false;
        done += k > 0 ? (size_t)k : 0;
    }
    return true;
}

static void set_limits(int fd, int64_t ms)
{
    const struct timeval t = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    const int on = 1;

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int64_t unix_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Proves the token to the other side, which does the same. The client goes first. */
static bool links_prove(int fd, const struct cdi_secret *token, enum cdi_auth_side side, const uint8_t hello[HELLO],
                        const uint8_t server_nonce[CDI_AUTH_NONCE])
{
    const struct cdi_auth_about about = {
        .kind = hello[CDI_AUTH_NONCE], .client_nonce = hello, .server_nonce = server_nonce, .run_id = ""};
    uint8_t client[CDI_AUTH_HASH], server_proof[CDI_AUTH_HASH], got[CDI_AUTH_HASH];

    cdi_auth_proof(token, CDI_AUTH_CLIENT, &about, client);
    cdi_auth_proof(token, CDI_AUTH_SERVER, &about, server_proof);
    if (side == CDI_AUTH_SERVER)
        return receive_all(fd, got, sizeof got) && cdi_auth_equal(got, client) &&
               send_all(fd, server_proof, sizeof server_proof);
    if (!send_all(fd, client, sizeof client) || !receive_all(fd, got, sizeof got))
        return false;
    errno = EPROTO;
    return cdi_auth_equal(got, server_proof);
}

/* ------------------------------------------------------------------------------------------------------ server ---- */

static void answer_pings(int fd)
{
    char ping;

    while (receive_all(fd, &ping, 1)) {
        uint64_t now = htobe64((uint64_t)unix_ns());

        if (!send_all(fd, &now, sizeof now))
            return;
    }
}

static void swallow(int fd)
{
    CDI_AUTOFREE char *bytes = malloc(CHUNK);
    ssize_t n = 1;

    while (bytes != NULL && n > 0)
        n = recv(fd, bytes, CHUNK, 0);
}

static void *serve_one(void *arg)
{
    CDI_AUTOCLOSE int fd = (int)(intptr_t)arg;
    uint8_t hello[HELLO], nonce[CDI_AUTH_NONCE];

    set_limits(fd, SERVED_MS);
    if (receive_all(fd, hello, sizeof hello) && cdi_auth_nonce(nonce, NULL) == CDDP_OK &&
        send_all(fd, nonce, sizeof nonce) && links_prove(fd, &server.token, CDI_AUTH_SERVER, hello, nonce)) {
        if (hello[CDI_AUTH_NONCE] == 'p')
            answer_pings(fd);
        else if (hello[CDI_AUTH_NONCE] == 's')
            swallow(fd);
    }
    (void)__atomic_sub_fetch(&server.served, 1, __ATOMIC_RELAXED);
    return NULL;
}

/* Accepts one connection. Returns false if none can be served now. */
static bool serve_connection(int listener)
{
    pthread_t thread;
    int fd = -1;

    if (__atomic_add_fetch(&server.served, 1, __ATOMIC_RELAXED) <= SERVED_MAX)
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0 && cdi_thread_create(&thread, STACK, serve_one, (void *)(intptr_t)fd) == 0) {
        (void)pthread_detach(thread);
        return true;
    }
    if (fd >= 0)
        (void)close(fd);
    (void)__atomic_sub_fetch(&server.served, 1, __ATOMIC_RELAXED);
    return false;
}

static void *serve_all(void *arg)
{
    const struct timespec pause = {.tv_nsec = 2000000};

    (void)arg;
    for (;;) {
        if (poll(server.at, (nfds_t)server.n_at, -1) < 0 && errno != EINTR)
            return NULL;
        for (int i = 0; i < server.n_at; i++)
            if ((server.at[i].revents & POLLIN) != 0 && !serve_connection(server.at[i].fd))
                (void)nanosleep(&pause, NULL);
    }
}

cddp_status links_serve(const struct cdi_address *reached, int rank, const struct cdi_secret *token,
                        char text[LINKS_TEXT], struct cdi_error *err)
{
    struct cdi_address at[CDI_NET_ADDRESSES];
    pthread_t thread;
    size_t used = 0;
    int rc;
    cddp_status st = cdi_net_choose(cdi_env_str(CDI_NET_IFNAME_ENV), reached, at, &server.n_at, err);

    for (int i = 0; i < server.n_at && st == CDDP_OK; i++) {
        char one[CDI_ADDRESS_TEXT];

        server.at[i].events = POLLIN;
        st = cdi_data_listen(&at[i], rank, &server.at[i].fd, err);
        if (st == CDDP_OK)
            (void)listen(server.at[i].fd, QUEUE); /* all nodes come to node 0 at the same time */
        cdi_address_text(&at[i].u.any, one);
        used += (size_t)snprintf(text + used, LINKS_TEXT - used, "%s%s", i > 0 ? " " : "", one);
    }
    if (st != CDDP_OK)
        return st;
    server.token = *token;
    rc = cdi_thread_create(&thread, STACK, serve_all, NULL);
    if (rc != 0)
        return cdi_fail_errno(err, rc, "cannot start a thread");
    (void)pthread_detach(thread);
    return CDDP_OK;
}

/* ------------------------------------------------------------------------------------------------------ client ---- */

/* Returns 0, or an errno. */
static int finish_connect(int fd, int64_t until_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    socklen_t len = sizeof(int);
    int why = 0;

    for (;;) {
        int64_t left = until_ms - cdi_now_ms();
        int n = poll(&p, 1, left > 0 ? (int)left : 0);

        if (n > 0)
            return getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len) == 0 ? why : errno;
        if (n == 0)
            return ETIMEDOUT;
        if (errno != EINTR)
            return errno;
    }
}

/* Returns a connection to one address with blocking calls, or -1 and an errno in *why. */
static int connect_one(const struct cdi_address *a, int64_t until_ms, int *why)
{
    CDI_AUTOCLOSE int fd = socket(a->u.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *why = 0;
    if (fd < 0 || (connect(fd, &a->u.any, a->len) != 0 && errno != EINPROGRESS))
        *why = errno;
    else
        *why = finish_connect(fd, until_ms);
    if (*why == 0 && fcntl(fd, F_SETFL, 0) != 0)
        *why = errno;
    return *why == 0 ? cdi_steal_fd(&fd) : -1;
}

static void not_answered(const char *where, char why[160])
{
    (void)snprintf(why, 160, "%.64s accepts a connection, but does not answer: %.40s", where,
                   strerror(errno == EAGAIN ? ETIMEDOUT : errno));
}

/* Tries the addresses in their order, each for its part of the time. Returns -1 with the reason in why. */
static int links_connect(const struct links_target *t, char op, int64_t timeout_ms, char why[160])
{
    char text[LINKS_TEXT], *rest = text, *word;
    uint8_t hello[HELLO], nonce[CDI_AUTH_NONCE];
    int64_t until_ms = cdi_now_ms() + timeout_ms;

    (void)snprintf(text, sizeof text, "%s", t->text);
    (void)snprintf(why, 160, "the node has not published its addresses");
    hello[CDI_AUTH_NONCE] = (uint8_t)op;
    while ((word = strsep(&rest, " ")) != NULL) {
        struct cdi_address a;
        int error = EINVAL, fd = cdi_address_parse(word, &a) ? connect_one(&a, until_ms, &error) : -1;

        if (fd >= 0) {
            int64_t left = until_ms - cdi_now_ms();

            set_limits(fd, left > 1 ? left : 1);
            if (cdi_auth_nonce(hello, NULL) == CDDP_OK && send_all(fd, hello, sizeof hello) &&
                receive_all(fd, nonce, sizeof nonce) && links_prove(fd, &t->token, CDI_AUTH_CLIENT, hello, nonce)) {
                set_limits(fd, timeout_ms);
                return fd;
            }
            not_answered(word, why);
            (void)close(fd);
        } else if (*word != '\0')
            (void)snprintf(why, 160, "%.80s: %.60s", word, strerror(error));
    }
    return -1;
}

static bool ping(int fd, int64_t *clock_ns, int64_t *error_ns)
{
    *error_ns = INT64_MAX;
    for (int i = 0; i < PINGS; i++) {
        int64_t before = unix_ns(), began = cdi_now_ns(), trip;
        uint64_t there;

        if (!send_all(fd, "?", 1) || !receive_all(fd, &there, sizeof there))
            return false;
        trip = cdi_now_ns() - began;
        if (trip / 2 < *error_ns) {
            *error_ns = trip / 2;
            *clock_ns = before + trip / 2 - (int64_t)be64toh(there);
        }
    }
    return true;
}

struct reach {
    struct links_target *target;
    int64_t timeout_ms;
    pthread_t thread;
    bool started;
};

static void *reach_one(void *arg)
{
    struct reach *r = arg;
    struct links_target *t = r->target;
    CDI_AUTOCLOSE int fd = links_connect(t, 'p', r->timeout_ms, t->why);

    t->reached = fd >= 0 && ping(fd, &t->clock_ns, &t->error_ns);
    if (fd >= 0 && !t->reached)
        not_answered(t->text, t->why);
    if (t->reached)
        t->why[0] = '\0';
    return NULL;
}

void links_reach(struct links_target *targets, size_t n, int64_t timeout_ms)
{
    CDI_AUTOFREE struct reach *all = calloc(n > 0 ? n : 1, sizeof *all);

    for (size_t i = 0; i < n && all != NULL; i++) {
        all[i].target = &targets[i];
        all[i].timeout_ms = timeout_ms;
        all[i].started = cdi_thread_create(&all[i].thread, STACK, reach_one, &all[i]) == 0;
        if (!all[i].started)
            (void)reach_one(&all[i]);
    }
    for (size_t i = 0; i < n && all != NULL; i++)
        if (all[i].started)
            (void)pthread_join(all[i].thread, NULL);
    for (size_t i = 0; i < n && all == NULL; i++)
        (void)snprintf(targets[i].why, sizeof targets[i].why, "out of memory");
}

/* Sends for window_ms, and returns the bytes that the other kernel has acknowledged by then. */
static uint64_t pour(int fd, int64_t window_ms)
{
    CDI_AUTOFREE char *bytes = calloc(1, CHUNK);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int64_t until_ms = cdi_now_ms() + window_ms, left;
    uint64_t sent = 0;
    int waiting = 0;

    while (bytes != NULL && (left = until_ms - cdi_now_ms()) > 0) {
        ssize_t n = poll(&p, 1, (int)left) > 0 ? send(fd, bytes, CHUNK, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;

        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return 0;
        sent += n > 0 ? (uint64_t)n : 0;
    }
    if (ioctl(fd, TIOCOUTQ, &waiting) != 0 || (uint64_t)waiting > sent)
        return 0;
    return sent - (uint64_t)waiting;
}

double links_rate(const struct links_target *t, int64_t window_ms, int64_t timeout_ms)
{
    const struct linger reset = {.l_onoff = 1}; /* the bytes in the buffers are not worth the wait */
    char why[160];
    CDI_AUTOCLOSE int fd = links_connect(t, 's', timeout_ms, why);
    int64_t began = cdi_now_ns();
    uint64_t bytes = fd < 0 ? 0 : pour(fd, window_ms);

    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    return (double)bytes / (1 << 20) / ((double)(cdi_now_ns() - began) / 1e9);
}

/* ------------------------------------------------------------------------------------------------------ rounds ---- */

uint32_t links_rounds(uint32_t n)
{
    return n < 2 ? 0 : n - 1 + n % 2;
}

/* All but the last of an even number of seats move around a circle; a seat that nobody has means a rest. */
uint32_t links_partner(uint32_t node, uint32_t n, uint32_t round)
{
    const uint64_t m = links_rounds(n), last = m;
    uint64_t other;

    if (m == 0 || node >= n)
        return UINT32_MAX;
    if (node == last)
        other = round % m * ((m + 1) / 2) % m; /* the seat x with 2x = round (mod m); m is odd */
    else
        other = (round % m + m - node) % m;
    if (other == node)
        other = last;
    return other < n ? (uint32_t)other : UINT32_MAX;
}
