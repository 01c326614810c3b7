/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A blocking client of the job's store over poll(2). One mutex per client: a request and its reply are never mixed with
 * another's. A connection that has failed is closed at once, since nobody knows which replies would still come.
 */
#include "worker/store_client.h"

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "protocol/c10d.h"
#include "worker/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_MS 300000
#define FIRST_PAUSE_MS 20 /* between attempts to connect; grows by half each time, up to the next line */
#define LAST_PAUSE_MS 2000
#define ONE_ADDRESS_MS 10000 /* for one address to answer a connection attempt, when there are others to try */
#define CANCEL_MS 10000      /* for the server to confirm that a wait is cancelled */
#define WATCH_MS 50          /* how often a wait looks at the flight page */
#define KEY_MAX (CDI_C10D_KEY_MAX - 1)

struct cddp_store {
    pthread_mutex_t lock;
    int fd; /* -1: closed after an error */
    struct cdi_buf out, in;
    int64_t timeout_ms;
    const struct cdi_flight *flight; /* may be NULL */
    char where[300];                 /* "host:port", for sentences */
};

/* ------------------------------------------------------------------------------------------------------ bytes ------
 */

static cddp_status lost(const cddp_store *s, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_CLOSED,
                    "the store at %s ended the connection: the round is over, or its host has stopped", s->where);
}

static cddp_status poll_fd(const cddp_store *s, int fd, short events, int64_t deadline_ms, struct cdi_error *err)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int64_t left = deadline_ms - cdi_now_ms();
        int n;
        cddp_status st;

        if (left <= 0)
            return cdi_fail(err, CDDP_E_TIMEOUT, "the store at %s did not answer in time", s->where);
        left = s->flight != NULL && left > WATCH_MS ? WATCH_MS : left > 60000 ? 60000 : left;
        n = poll(&p, 1, (int)left);
        if (n > 0)
            return CDDP_OK;
        if (n < 0 && errno != EINTR)
            return cdi_fail_errno(err, errno, "poll");
        st = s->flight != NULL ? cdi_flight_check(s->flight, err) : CDDP_OK;
        if (st != CDDP_OK)
            return st;
    }
}

static cddp_status flush(cddp_store *s, int64_t deadline_ms, struct cdi_error *err)
{
    while (s->out.len > 0) {
        ssize_t n = send(s->fd, cdi_buf_data(&s->out), s->out.len, MSG_NOSIGNAL);
        cddp_status st = CDDP_OK;

        if (n >= 0)
            cdi_buf_consume(&s->out, (size_t)n);
        else if (errno == EAGAIN)
            st = poll_fd(s, s->fd, POLLOUT, deadline_ms, err);
        else if (errno == EPIPE || errno == ECONNRESET)
            st = lost(s, err);
        else if (errno != EINTR)
            st = cdi_fail(err, CDDP_E_IO, "sending to the store at %s: %s", s->where, strerror(errno));
        if (st != CDDP_OK)
            return st;
    }
    return CDDP_OK;
}

/* Until n bytes have come. */
static cddp_status need(cddp_store *s, size_t n, int64_t deadline_ms, struct cdi_error *err)
{
    while (s->in.len < n) {
        size_t room = n - s->in.len < 4096 ? 4096 : n - s->in.len;
        uint8_t *to = cdi_buf_reserve(&s->in, room);
        ssize_t got = to == NULL ? -2 : recv(s->fd, to, room, 0);
        cddp_status st = CDDP_OK;

        if (to == NULL)
            return cdi_fail(err, CDDP_E_NOMEM, "out of memory for an answer of the store");
        if (got > 0)
            cdi_buf_commit(&s->in, (size_t)got);
        else if (got == 0 || errno == ECONNRESET)
            st = lost(s, err);
        else if (errno == EAGAIN)
            st = poll_fd(s, s->fd, POLLIN, deadline_ms, err);
        else if (errno != EINTR)
            st = cdi_fail(err, CDDP_E_IO, "receiving from the store at %s: %s", s->where, strerror(errno));
        if (st != CDDP_OK)
            return st;
    }
    return CDDP_OK;
}

static cddp_status read_u8(cddp_store *s, int64_t deadline_ms, unsigned *v, struct cdi_error *err)
{
    cddp_status st = need(s, 1, deadline_ms, err);

    if (st == CDDP_OK) {
        *v = *cdi_buf_data(&s->in);
        cdi_buf_consume(&s->in, 1);
    }
    return st;
}

static cddp_status read_u64(cddp_store *s, int64_t deadline_ms, uint64_t *v, struct cdi_error *err)
{
    cddp_status st = need(s, 8, deadline_ms, err);

    if (st == CDDP_OK) {
        *v = cdi_c10d_get_u64(cdi_buf_data(&s->in));
        cdi_buf_consume(&s->in, 8);
    }
    return st;
}

static cddp_status nonsense(const cddp_store *s, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_PROTOCOL, "what listens at %s is not a store: check MASTER_ADDR and MASTER_PORT",
                    s->where);
}

/* A string into the caller's memory; too long for it: *len, no copy, CDDP_E_LIMIT. */
static cddp_status read_string(cddp_store *s, int64_t deadline_ms, void *buf, size_t cap, size_t *len,
                               struct cdi_error *err)
{
    uint64_t n;
    cddp_status st = read_u64(s, deadline_ms, &n, err);

    if (st != CDDP_OK)
        return st;
    if (n > CDI_C10D_VALUE_MAX)
        return nonsense(s, err);
    st = need(s, (size_t)n, deadline_ms, err);
    if (st != CDDP_OK)
        return st;
    *len = (size_t)n;
    if (n > 0 && n <= cap)
        memcpy(buf, cdi_buf_data(&s->in), (size_t)n);
    cdi_buf_consume(&s->in, (size_t)n);
    if (n > cap)
        return cdi_fail(err, CDDP_E_LIMIT, "the value has %zu bytes, more than the %zu given for it", (size_t)n, cap);
    return CDDP_OK;
}

/* ----------------------------------------------------------------------------------------------------- connect -----
 */

static cddp_status connect_one(cddp_store *s, const struct addrinfo *a, int64_t deadline_ms, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1, why = 0;
    socklen_t len = sizeof why;

    if (fd < 0)
        return cdi_fail_errno(err, errno, "cannot make a socket for the store");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        cddp_status st;

        if (errno != EINPROGRESS)
            return cdi_fail(err, CDDP_E_IO, "%s", strerror(errno));
        st = poll_fd(s, fd, POLLOUT, deadline_ms, err);
        if (st != CDDP_OK)
            return st == CDDP_E_TIMEOUT ? cdi_fail(err, CDDP_E_IO, "no answer") : st;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len) != 0 || why != 0)
            return cdi_fail(err, CDDP_E_IO, "%s", strerror(why));
    }
    s->fd = cdi_steal_fd(&fd);
    return CDDP_OK;
}

static cddp_status shake_hands(cddp_store *s, int64_t deadline_ms, struct cdi_error *err)
{
    uint32_t nonce;
    cddp_status st;

    if (getrandom(&nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce)
        nonce = (uint32_t)cdi_now_ns();
    if (cdi_buf_append(&s->out, CDI_C10D_HELLO, CDI_C10D_HELLO_LEN) != CDDP_OK ||
        cdi_c10d_put_op(&s->out, CDI_C10D_PING) != CDDP_OK || cdi_buf_put_u32(&s->out, nonce) != CDDP_OK)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    st = flush(s, deadline_ms, err);
    if (st == CDDP_OK)
        st = need(s, 4, deadline_ms, err);
    if (st == CDDP_E_CLOSED) /* as a starting server does, or one that is just ending: worth another try */
        return cdi_fail(err, CDDP_E_IO, "it closed the connection without an answer");
    if (st != CDDP_OK)
        return st;
    if (cdi_c10d_get_u32(cdi_buf_data(&s->in)) != nonce)
        return nonsense(s, err);
    cdi_buf_consume(&s->in, 4);
    return CDDP_OK;
}

static void drop_connection(cddp_store *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    s->fd = -1;
    cdi_buf_release(&s->in);
    cdi_buf_release(&s->out);
}

/* One attempt at every address. CDDP_E_IO and CDDP_E_NOT_FOUND are worth another one. */
static cddp_status try_once(cddp_store *s, const char *host, int port, int64_t deadline_ms, struct cdi_error *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list, *a;
    char service[16];
    cddp_status st = CDDP_E_IO;
    int rc;

    (void)snprintf(service, sizeof service, "%d", port);
    rc = getaddrinfo(host, service, &hints, &list);
    if (rc == EAI_SYSTEM || rc == EAI_MEMORY)
        return cdi_fail_errno(err, rc == EAI_MEMORY ? ENOMEM : errno, "resolving '%.255s'", host);
    if (rc != 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "%s", gai_strerror(rc));
    for (a = list; a != NULL; a = a->ai_next) {
        int64_t until = cdi_deadline_ms(cdi_now_ms(), ONE_ADDRESS_MS);

        st = connect_one(s, a, a->ai_next != NULL && until < deadline_ms ? until : deadline_ms, err);
        if (st == CDDP_OK)
            st = shake_hands(s, deadline_ms, err);
        if (st != CDDP_E_IO)
            break;
        drop_connection(s);
    }
    freeaddrinfo(list);
    return st;
}

static void pause_ms(int64_t ms, int64_t deadline_ms)
{
    int64_t left = deadline_ms - cdi_now_ms();
    uint32_t random = 0;
    struct timespec ts;

    (void)getrandom(&random, sizeof random, GRND_NONBLOCK);
    ms = ms / 2 + (int64_t)(random % (uint32_t)(ms + 1)); /* 50 to 150 %: many ranks must not come in one wave */
    ms = ms > left ? left : ms;
    if (ms <= 0)
        return;
    ts.tv_sec = (time_t)(ms / 1000);
    ts.tv_nsec = (long)(ms % 1000 * 1000000);
    (void)nanosleep(&ts, NULL);
}

static cddp_status connect_with_retries(cddp_store *s, const char *host, int port, struct cdi_error *err)
{
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), s->timeout_ms), pause = FIRST_PAUSE_MS;
    double seconds = (double)s->timeout_ms / 1000;

    for (;;) {
        struct cdi_error why;
        cddp_status st = try_once(s, host, port, deadline_ms, &why);

        if (st == CDDP_OK)
            return CDDP_OK;
        drop_connection(s);
        if (st != CDDP_E_IO && st != CDDP_E_NOT_FOUND) {
            if (err != NULL)
                *err = why;
            return st;
        }
        pause_ms(pause, deadline_ms);
        if (cdi_now_ms() >= deadline_ms) {
            if (st == CDDP_E_NOT_FOUND)
                return cdi_fail(err, st,
                                "the store's host '%.255s' (MASTER_ADDR) does not resolve: %.200s (tried for "
                                "%.4g s)",
                                host, why.msg, seconds);
            return cdi_fail(err, st,
                            "cannot reach the store at %s (MASTER_ADDR, MASTER_PORT): %.200s (tried for %.4g s)",
                            s->where, why.msg, seconds);
        }
        pause = pause * 3 / 2 > LAST_PAUSE_MS ? LAST_PAUSE_MS : pause * 3 / 2;
    }
}

cddp_status cdi_store_open(cddp_store **out, const char *host, int port, int64_t timeout_ms, struct cdi_error *err)
{
    cddp_store *s = calloc(1, sizeof *s);
    cddp_status st;

    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    s->fd = -1;
    s->timeout_ms = timeout_ms;
    cdi_buf_init(&s->out, CDI_C10D_REQUEST_MAX);
    cdi_buf_init(&s->in, CDI_C10D_VALUE_MAX + 65536);
    (void)snprintf(s->where, sizeof s->where, strchr(host, ':') != NULL ? "[%.255s]:%d" : "%.255s:%d", host, port);
    (void)pthread_mutex_init(&s->lock, NULL);
    st = connect_with_retries(s, host, port, err);
    if (st != CDDP_OK) {
        cddp_store_close(s);
        return st;
    }
    *out = s;
    return CDDP_OK;
}

void cdi_store_watch(cddp_store *store, const struct cdi_flight *flight)
{
    store->flight = flight;
}

void cddp_store_close(cddp_store *store)
{
    if (store == NULL)
        return;
    drop_connection(store);
    (void)pthread_mutex_destroy(&store->lock);
    free(store);
}

/* -------------------------------------------------------------------------------------------------- operations -----
 */

/* A key as it goes over the wire: prefix and name one after the other. */
struct key {
    const char *prefix, *name;
};

static struct key verbatim(const char *name)
{
    return (struct key){"", name};
}

static struct key public_key(const char *name)
{
    return (struct key){"/", name};
}

static cddp_status check_key(const char *name, struct cdi_error *err)
{
    if (name == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "the key is NULL");
    if (strnlen(name, KEY_MAX + 1) > KEY_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "the key '%.32s...' is longer than %u bytes", name, KEY_MAX);
    return CDDP_OK;
}

static cddp_status check_value(const void *value, size_t len, struct cdi_error *err)
{
    if (value == NULL && len > 0)
        return cdi_fail(err, CDDP_E_INVALID, "the value is NULL");
    if (len > CDI_C10D_VALUE_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "the value has %zu bytes, more than the %u that a store takes", len,
                        CDI_C10D_VALUE_MAX);
    return CDDP_OK;
}

static cddp_status put_key(cddp_store *s, struct key k)
{
    size_t a = strlen(k.prefix), b = strlen(k.name);
    cddp_status st = cdi_buf_put_u64(&s->out, a + b);

    if (st == CDDP_OK)
        st = cdi_buf_append(&s->out, k.prefix, a);
    return st == CDDP_OK ? cdi_buf_append(&s->out, k.name, b) : st;
}

static cddp_status put_value(cddp_store *s, const void *value, size_t len)
{
    return cdi_c10d_put_string(&s->out, len > 0 ? value : "", len);
}

/* An operation is: begin (takes the lock), requests and replies, end (gives it back). */
static cddp_status begin(cddp_store *s, struct cdi_error *err)
{
    (void)pthread_mutex_lock(&s->lock);
    if (s->fd < 0)
        return cdi_fail(err, CDDP_E_CLOSED, "the connection to the store at %s was closed after an earlier error",
                        s->where);
    return CDDP_OK;
}

static cddp_status end(cddp_store *s, cddp_status st)
{
    if (st != CDDP_OK && st != CDDP_E_LIMIT)
        drop_connection(s);
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

static int64_t deadline_of(const cddp_store *s, int64_t timeout_ms)
{
    return cdi_deadline_ms(cdi_now_ms(), timeout_ms == 0 ? s->timeout_ms : timeout_ms);
}

/* Send what was put, unless that failed: nothing partial may be left behind. */
static cddp_status submit(cddp_store *s, cddp_status put, int64_t deadline_ms, struct cdi_error *err)
{
    if (put != CDDP_OK)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a request to the store");
    return flush(s, deadline_ms, err);
}

/* The wait has timed out: take it back. A wake-up may have crossed our word, and then the wait has succeeded. */
static cddp_status cancel(cddp_store *s, struct cdi_error *err)
{
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), CANCEL_MS);
    bool woken = false;
    unsigned answer;
    cddp_status st = submit(s, cdi_c10d_put_op(&s->out, CDI_C10D_CANCEL_WAIT), deadline_ms, err);

    while (st == CDDP_OK) {
        st = read_u8(s, deadline_ms, &answer, err);
        if (st != CDDP_OK || answer == CDI_C10D_WAIT_CANCELED)
            break;
        if (answer != CDI_C10D_STOP_WAITING || woken)
            return nonsense(s, err);
        woken = true;
    }
    return st == CDDP_OK && !woken ? CDDP_IN_PROGRESS : st;
}

/* CDDP_OK; CDDP_IN_PROGRESS: timed out, and the connection is as before. */
static cddp_status wait_keys(cddp_store *s, const struct key *keys, size_t n, int64_t timeout_ms, struct cdi_error *err)
{
    int64_t deadline_ms = deadline_of(s, timeout_ms);
    struct cdi_error why;
    unsigned answer;
    cddp_status st = cdi_c10d_put_op(&s->out, CDI_C10D_WAIT);

    if (st == CDDP_OK)
        st = cdi_buf_put_u64(&s->out, n);
    for (size_t i = 0; i < n && st == CDDP_OK; i++)
        st = put_key(s, keys[i]);
    st = submit(s, st, deadline_ms, err);
    if (st != CDDP_OK)
        return st;
    st = read_u8(s, deadline_ms, &answer, &why);
    if (st == CDDP_E_TIMEOUT)
        return cancel(s, err);
    if (st != CDDP_OK) {
        if (err != NULL)
            *err = why;
        return st;
    }
    return answer == CDI_C10D_STOP_WAITING ? CDDP_OK : nonsense(s, err);
}

/* end() for what may have been a wait that timed out. */
static cddp_status end_wait(cddp_store *s, cddp_status st, const char *name, int64_t timeout_ms, struct cdi_error *err)
{
    double seconds = (double)(timeout_ms == 0 ? s->timeout_ms : timeout_ms) / 1000;

    if (st != CDDP_IN_PROGRESS)
        return end(s, st);
    (void)end(s, CDDP_OK);
    return cdi_fail(err, CDDP_E_TIMEOUT, "key '%.128s' did not appear in the store within %.4g s", name, seconds);
}

static cddp_status do_set(cddp_store *s, struct key k, const void *value, size_t len, struct cdi_error *err)
{
    cddp_status st = check_key(k.name, err);

    if (st == CDDP_OK)
        st = check_value(value, len, err);
    if (st != CDDP_OK)
        return st;
    st = begin(s, err);
    if (st == CDDP_OK) {
        cddp_status put = cdi_c10d_put_op(&s->out, CDI_C10D_SET);

        if (put == CDDP_OK)
            put = put_key(s, k);
        if (put == CDDP_OK)
            put = put_value(s, value, len);
        st = submit(s, put, deadline_of(s, 0), err);
    }
    return end(s, st);
}

static cddp_status do_get(cddp_store *s, struct key k, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                          struct cdi_error *err)
{
    cddp_status st = check_key(k.name, err);

    if (st != CDDP_OK)
        return st;
    st = begin(s, err);
    if (st == CDDP_OK)
        st = wait_keys(s, &k, 1, timeout_ms, err);
    if (st == CDDP_OK) {
        int64_t deadline_ms = deadline_of(s, 0);
        cddp_status put = cdi_c10d_put_op(&s->out, CDI_C10D_GET);

        if (put == CDDP_OK)
            put = put_key(s, k);
        st = submit(s, put, deadline_ms, err);
        if (st == CDDP_OK)
            st = read_string(s, deadline_ms, buf, cap, len, err);
    }
    return end_wait(s, st, k.name, timeout_ms, err);
}

static cddp_status do_add(cddp_store *s, struct key k, int64_t delta, int64_t *sum, struct cdi_error *err)
{
    cddp_status st = check_key(k.name, err);
    uint64_t v = 0;

    if (st != CDDP_OK)
        return st;
    st = begin(s, err);
    if (st == CDDP_OK) {
        int64_t deadline_ms = deadline_of(s, 0);
        cddp_status put = cdi_c10d_put_op(&s->out, CDI_C10D_ADD);

        if (put == CDDP_OK)
            put = put_key(s, k);
        if (put == CDDP_OK)
            put = cdi_c10d_put_i64(&s->out, delta);
        st = submit(s, put, deadline_ms, err);
        if (st == CDDP_OK)
            st = read_u64(s, deadline_ms, &v, err);
    }
    if (st == CDDP_OK && sum != NULL)
        *sum = (int64_t)v;
    return end(s, st);
}

static cddp_status do_compare_set(cddp_store *s, struct key k, const void *expected, size_t expected_len,
                                  const void *desired, size_t desired_len, void *buf, size_t cap, size_t *len,
                                  struct cdi_error *err)
{
    cddp_status st = check_key(k.name, err);

    if (st == CDDP_OK)
        st = check_value(expected, expected_len, err);
    if (st == CDDP_OK)
        st = check_value(desired, desired_len, err);
    if (st != CDDP_OK)
        return st;
    st = begin(s, err);
    if (st == CDDP_OK) {
        int64_t deadline_ms = deadline_of(s, 0);
        cddp_status put = cdi_c10d_put_op(&s->out, CDI_C10D_COMPARE_SET);

        if (put == CDDP_OK)
            put = put_key(s, k);
        if (put == CDDP_OK)
            put = put_value(s, expected, expected_len);
        if (put == CDDP_OK)
            put = put_value(s, desired, desired_len);
        st = submit(s, put, deadline_ms, err);
        if (st == CDDP_OK)
            st = read_string(s, deadline_ms, buf, cap, len, err);
    }
    return end(s, st);
}

static cddp_status do_check(cddp_store *s, const struct key *keys, size_t n, bool *all, struct cdi_error *err)
{
    unsigned answer = CDI_C10D_NOT_READY;
    cddp_status st = begin(s, err);

    if (st == CDDP_OK) {
        int64_t deadline_ms = deadline_of(s, 0);
        cddp_status put = cdi_c10d_put_op(&s->out, CDI_C10D_CHECK);

        if (put == CDDP_OK)
            put = cdi_buf_put_u64(&s->out, n);
        for (size_t i = 0; i < n && put == CDDP_OK; i++)
            put = put_key(s, keys[i]);
        st = submit(s, put, deadline_ms, err);
        if (st == CDDP_OK)
            st = read_u8(s, deadline_ms, &answer, err);
        if (st == CDDP_OK && answer != CDI_C10D_READY && answer != CDI_C10D_NOT_READY)
            st = nonsense(s, err);
    }
    *all = answer == CDI_C10D_READY;
    return end(s, st);
}

cddp_status cdi_store_set(cddp_store *store, const char *key, const void *value, size_t len, struct cdi_error *err)
{
    return do_set(store, verbatim(key), value, len, err);
}

cddp_status cdi_store_get(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                          struct cdi_error *err)
{
    return do_get(store, verbatim(key), buf, cap, len, timeout_ms, err);
}

cddp_status cdi_store_add(cddp_store *store, const char *key, int64_t delta, int64_t *sum, struct cdi_error *err)
{
    return do_add(store, verbatim(key), delta, sum, err);
}

cddp_status cdi_store_compare_set(cddp_store *store, const char *key, const void *expected, size_t expected_len,
                                  const void *desired, size_t desired_len, void *buf, size_t cap, size_t *len,
                                  struct cdi_error *err)
{
    return do_compare_set(store, verbatim(key), expected, expected_len, desired, desired_len, buf, cap, len, err);
}

cddp_status cdi_store_wait(cddp_store *store, const char *key, int64_t timeout_ms, struct cdi_error *err)
{
    struct key k = verbatim(key);
    cddp_status st = begin(store, err);

    if (st == CDDP_OK)
        st = wait_keys(store, &k, 1, timeout_ms, err);
    return end_wait(store, st, key, timeout_ms, err);
}

cddp_status cdi_store_exists(cddp_store *store, const char *key, bool *exists, struct cdi_error *err)
{
    struct key k = verbatim(key);

    return do_check(store, &k, 1, exists, err);
}

/* ------------------------------------------------------------------------------------------------ public names -----
 */

/* The way out of each public function. */
static cddp_status out(cddp_status st, struct cdi_error *err)
{
    if (st == CDDP_OK)
        return st;
    err->status = st;
    return cdi_last_error_set(err);
}

static cddp_status no_store(struct cdi_error *err)
{
    return out(cdi_fail(err, CDDP_E_INVALID, "store is NULL"), err);
}

static cddp_status open_checked(cddp_store **store, const cddp_store_options *opt, struct cdi_error *err)
{
    const char *host = opt->host != NULL ? opt->host : cdi_env_str("MASTER_ADDR");
    int64_t port = opt->port;
    cddp_status st = CDDP_OK;

    if (host == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "MASTER_ADDR is not set: give the store's host, or start with cddprun");
    if (port == 0)
        st = cdi_env_int("MASTER_PORT", 1, 65535, &port, err);
    if (st != CDDP_OK)
        return cdi_fail(err, CDDP_E_INVALID, "%s",
                        st == CDDP_E_NOT_FOUND ? "MASTER_PORT is not set: give the store's port, or start with cddprun"
                                               : err->msg);
    if (port < 1 || port > 65535 || opt->timeout_ms < 0)
        return cdi_fail(err, CDDP_E_INVALID, "the store's port must be from 1 to 65535, its timeout not negative");
    return cdi_store_open(store, host, (int)port, opt->timeout_ms == 0 ? DEFAULT_TIMEOUT_MS : opt->timeout_ms, err);
}

cddp_status cddp_store_open(cddp_store **store, const cddp_store_options *opt)
{
    const cddp_store_options none = {.size = sizeof none};
    struct cdi_error err;

    if (store == NULL)
        return out(cdi_fail(&err, CDDP_E_INVALID, "out is NULL"), &err);
    if (opt != NULL && opt->size != sizeof *opt)
        return out(
            cdi_fail(&err, CDDP_E_INVALID, "cddp_store_options.size is %zu, not sizeof(cddp_store_options)", opt->size),
            &err);
    return out(open_checked(store, opt != NULL ? opt : &none, &err), &err);
}

cddp_status cddp_store_set(cddp_store *store, const char *key, const void *value, size_t len)
{
    struct cdi_error err;

    return store == NULL ? no_store(&err) : out(do_set(store, public_key(key), value, len, &err), &err);
}

cddp_status cddp_store_get(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len, int timeout_ms)
{
    struct cdi_error err;
    size_t n;

    if (store == NULL)
        return no_store(&err);
    if (buf == NULL && cap > 0)
        return out(cdi_fail(&err, CDDP_E_INVALID, "buf is NULL"), &err);
    return out(do_get(store, public_key(key), buf, cap, len != NULL ? len : &n, timeout_ms, &err), &err);
}

cddp_status cddp_store_add(cddp_store *store, const char *key, int64_t delta, int64_t *sum)
{
    struct cdi_error err;

    return store == NULL ? no_store(&err) : out(do_add(store, public_key(key), delta, sum, &err), &err);
}

cddp_status cddp_store_compare_set(cddp_store *store, const char *key, const void *expected, size_t expected_len,
                                   const void *desired, size_t desired_len, void *buf, size_t cap, size_t *len)
{
    struct cdi_error err;
    size_t n;

    if (store == NULL)
        return no_store(&err);
    if (buf == NULL && cap > 0)
        return out(cdi_fail(&err, CDDP_E_INVALID, "buf is NULL"), &err);
    return out(do_compare_set(store, public_key(key), expected, expected_len, desired, desired_len, buf, cap,
                              len != NULL ? len : &n, &err),
               &err);
}

/* The caller's list as keys; *list is the caller's to free. */
static cddp_status key_list(const char *const *keys, size_t n, struct key **list, struct cdi_error *err)
{
    if (n == 0 || keys == NULL || n > CDI_C10D_LIST_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "a list of keys has 1 to %u of them", CDI_C10D_LIST_MAX);
    *list = calloc(n, sizeof **list);
    if (*list == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a list of %zu keys", n);
    for (size_t i = 0; i < n; i++) {
        cddp_status st = check_key(keys[i], err);

        if (st != CDDP_OK)
            return st;
        (*list)[i] = public_key(keys[i]);
    }
    return CDDP_OK;
}

cddp_status cddp_store_wait(cddp_store *store, const char *const *keys, size_t n_keys, int timeout_ms)
{
    CDI_AUTOFREE struct key *list = NULL;
    struct cdi_error err;
    cddp_status st;

    if (store == NULL)
        return no_store(&err);
    st = key_list(keys, n_keys, &list, &err);
    if (st != CDDP_OK)
        return out(st, &err);
    st = begin(store, &err);
    if (st == CDDP_OK)
        st = wait_keys(store, list, n_keys, timeout_ms, &err);
    if (st != CDDP_IN_PROGRESS || n_keys == 1)
        return out(end_wait(store, st, keys[0], timeout_ms, &err), &err);
    (void)end(store, CDDP_OK);
    return out(cdi_fail(&err, CDDP_E_TIMEOUT, "not all of %zu keys ('%.64s', ...) appeared in the store in time",
                        n_keys, keys[0]),
               &err);
}

cddp_status cddp_store_check(cddp_store *store, const char *const *keys, size_t n_keys, int *all_exist)
{
    CDI_AUTOFREE struct key *list = NULL;
    struct cdi_error err;
    bool all = false;
    cddp_status st;

    if (store == NULL)
        return no_store(&err);
    if (all_exist == NULL)
        return out(cdi_fail(&err, CDDP_E_INVALID, "all_exist is NULL"), &err);
    st = key_list(keys, n_keys, &list, &err);
    if (st == CDDP_OK)
        st = do_check(store, list, n_keys, &all, &err);
    if (st == CDDP_OK)
        *all_exist = all;
    return out(st, &err);
}

cddp_status cddp_store_delete(cddp_store *store, const char *key, int *deleted)
{
    struct cdi_error err;
    uint64_t n = 0;
    cddp_status st;

    if (store == NULL)
        return no_store(&err);
    st = check_key(key, &err);
    if (st != CDDP_OK)
        return out(st, &err);
    st = begin(store, &err);
    if (st == CDDP_OK) {
        int64_t deadline_ms = deadline_of(store, 0);
        cddp_status put = cdi_c10d_put_op(&store->out, CDI_C10D_DELETE_KEY);

        if (put == CDDP_OK)
            put = put_key(store, public_key(key));
        st = submit(store, put, deadline_ms, &err);
        if (st == CDDP_OK)
            st = read_u64(store, deadline_ms, &n, &err);
    }
    if (st == CDDP_OK && deleted != NULL)
        *deleted = n > 0;
    return out(end(store, st), &err);
}
