/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/store/conn.h"

#include "common/clock.h"
#include "common/env.h"
#include "common/resolve.h"
#include "common/time_limits.h"
#include "protocol/c10d.h"
#include "protocol/hello.h"
#include "worker/base/last_error.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FIRST_PAUSE_MS 20 /* between attempts to connect; grows by half each time, up to the next line */
#define LAST_PAUSE_MS 2000
#define SHORT_ATTEMPT_MS 3000 /* an attempt that the deadline ends sooner shows nothing new */
#define ONE_ADDRESS_MS 10000  /* for one address to answer a connection attempt, when there are others to try */
#define WATCH_MS 50           /* between two checks of the flight page in a wait */

/* What a connection sends before the store's protocol begins. Nothing without an auth token. */
struct job {
    const struct cdi_secret *secret;
    const char *run_id;
    uint32_t round;
};

/* ----------------------------------------------------------------------------------------------------- bytes ---- */

static cddp_status conn_report_end(const cddp_store *s, struct cdi_error *err)
{
    if (s->by == CDI_STORE_BY_ID)
        return cdi_fail(err, CDDP_E_PEER,
                        "the process that made the cddp_unique_id, and hosts the store at %s, has died or left the job",
                        s->where);
    if (s->by == CDI_STORE_BY_RANK_0)
        return cdi_fail_by(err, 0, CDDP_E_PEER, "rank 0, which hosts the store at %s, has died or left the job",
                           s->where);
    return cdi_fail(err, CDDP_E_CLOSED,
                    "the store at %s ended the connection: the round is over, or its host has stopped", s->where);
}

/* An end of the connection has a meaning here: see enum cdi_store_by. */
static cddp_status conn_explain(const cddp_store *s, cddp_status st, struct cdi_error *err)
{
    return st == CDDP_E_CLOSED ? conn_report_end(s, err) : st;
}

cddp_status cdi_store_flush(cddp_store *s, int64_t deadline_ms, struct cdi_error *err)
{
    return conn_explain(s, cdi_dial_flush(&s->io, deadline_ms, err), err);
}

cddp_status cdi_store_need(cddp_store *s, size_t n, int64_t deadline_ms, struct cdi_error *err)
{
    return conn_explain(s, cdi_dial_need(&s->io, n, deadline_ms, err), err);
}

cddp_status cdi_store_read_u8(cddp_store *s, int64_t deadline_ms, unsigned *v, struct cdi_error *err)
{
    cddp_status st = cdi_store_need(s, 1, deadline_ms, err);

    if (st == CDDP_OK) {
        *v = *cdi_buf_data(&s->io.in);
        cdi_buf_consume(&s->io.in, 1);
    }
    return st;
}

cddp_status cdi_store_read_u64(cddp_store *s, int64_t deadline_ms, uint64_t *v, struct cdi_error *err)
{
    cddp_status st = cdi_store_need(s, 8, deadline_ms, err);

    if (st == CDDP_OK) {
        *v = cdi_c10d_get_u64(cdi_buf_data(&s->io.in));
        cdi_buf_consume(&s->io.in, 8);
    }
    return st;
}

cddp_status cdi_store_nonsense(const cddp_store *s, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_PROTOCOL, "the server at %s is not a store: check %s", s->where,
                    s->given ? "host and port" : "MASTER_ADDR and MASTER_PORT");
}

cddp_status cdi_store_read_string(cddp_store *s, int64_t deadline_ms, void *buf, size_t cap, size_t *len,
                                  struct cdi_error *err)
{
    uint64_t n;
    cddp_status st = cdi_store_read_u64(s, deadline_ms, &n, err);

    if (st != CDDP_OK)
        return st;
    if (n > CDI_C10D_VALUE_MAX)
        return cdi_store_nonsense(s, err);
    st = cdi_store_need(s, (size_t)n, deadline_ms, err);
    if (st != CDDP_OK)
        return st;
    *len = (size_t)n;
    if (n > 0 && n <= cap)
        memcpy(buf, cdi_buf_data(&s->io.in), (size_t)n);
    cdi_buf_consume(&s->io.in, (size_t)n);
    if (n > cap)
        return cdi_fail(err, CDDP_E_LIMIT, "the value has %zu bytes, more than the %zu given for it", (size_t)n, cap);
    return CDDP_OK;
}

/* --------------------------------------------------------------------------------------------------- connect ---- */

/* Makes a closed connection worth a retry: a server that starts or ends closes it, too. */
static cddp_status conn_retry_if_closed(cddp_status st, const char *when, struct cdi_error *err)
{
    return st == CDDP_E_CLOSED ? cdi_fail(err, CDDP_E_IO, "it closed the connection %s", when) : st;
}

/* Reports the server's own error message, with its remedy. A retry would not help. */
static cddp_status conn_rejected(const cddp_store *s, const struct cdi_error *why, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_LIMIT, "the store at %s takes no more connections: %.600s", s->where, why->msg);
}

/* Sends the job's name; both sides prove that they know the auth token. */
static cddp_status conn_authenticate(cddp_store *s, const struct job *job, int64_t deadline_ms, struct cdi_error *err)
{
    struct cdi_hello_client hello;
    struct cdi_error why = {.msg = ""};
    cddp_status st =
        cdi_hello_client_start(&hello, CDI_HELLO_STORE, job->run_id, job->round, job->secret, &s->io.out, err);

    if (st != CDDP_OK)
        return st;
    for (;;) {
        st = cdi_store_flush(s, deadline_ms, err);
        if (st == CDDP_OK)
            st = cdi_store_need(s, s->io.in.len + 1, deadline_ms, err);
        if (st != CDDP_OK)
            return conn_retry_if_closed(st,
                                        s->by == CDI_STORE_BY_ID
                                            ? "when asked to prove the auth token of the cddp_unique_id"
                                            : "when asked to prove the job's auth token (" CDI_SECRET_ENV
                                              "): does it have the same one?",
                                        err);
        st = cdi_hello_client_feed(&hello, &s->io.in, &s->io.out, &why);
        if (st == CDDP_OK)
            return st;
        if (st == CDDP_E_LIMIT)
            return conn_rejected(s, &why, err);
        if (st < 0)
            return cdi_fail(err, st, "authentication with the store at %s failed: %.600s", s->where, why.msg);
    }
}

/* Reads the answer that is not our nonce: a refusal because of too many connections, or not a store. */
static cddp_status read_refusal(cddp_store *s, int64_t deadline_ms, struct cdi_error *err)
{
    struct cdi_error why = {.msg = ""};
    cddp_status st;

    while ((st = cdi_hello_read_refusal(&s->io.in, &why)) == CDDP_IN_PROGRESS) {
        st = cdi_store_need(s, s->io.in.len + 1, deadline_ms, err);
        if (st != CDDP_OK)
            return conn_retry_if_closed(st, "without an answer", err);
    }
    return st == CDDP_E_LIMIT ? conn_rejected(s, &why, err) : cdi_store_nonsense(s, err);
}

static cddp_status conn_handshake(cddp_store *s, const struct job *job, int64_t deadline_ms, struct cdi_error *err)
{
    uint32_t nonce;
    cddp_status st = job->secret != NULL ? conn_authenticate(s, job, deadline_ms, err) : CDDP_OK;

    if (st != CDDP_OK)
        return st;
    if (getrandom(&nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce)
        nonce = (uint32_t)cdi_now_ns();
    nonce = cdi_c10d_own_ping(nonce);
    if (cdi_buf_append(&s->io.out, CDI_C10D_HELLO, CDI_C10D_HELLO_LEN) != CDDP_OK ||
        cdi_c10d_put_op(&s->io.out, CDI_C10D_PING) != CDDP_OK || cdi_buf_put_u32(&s->io.out, nonce) != CDDP_OK)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    st = cdi_store_flush(s, deadline_ms, err);
    if (st == CDDP_OK)
        st = cdi_store_need(s, 4, deadline_ms, err);
    if (st != CDDP_OK)
        return conn_retry_if_closed(st, "without an answer", err);
    if (cdi_c10d_get_u32(cdi_buf_data(&s->io.in)) != nonce)
        return read_refusal(s, deadline_ms, err);
    cdi_buf_consume(&s->io.in, 4);
    return CDDP_OK;
}

int64_t cdi_store_unknown_ms =
    1000 * CDI_LIMIT_NAME_S; /* as for cddprun: a name may appear a little later than the program */

void cdi_store_drop(cddp_store *s)
{
    cdi_dial_drop(&s->io);
}

/* Tries every address of the list once. CDDP_E_IO is worth a retry. *refused: all of them refuse connections. */
static cddp_status conn_try_all(cddp_store *s, const struct addrinfo *list, const struct job *job, int64_t deadline_ms,
                                bool *refused, struct cdi_error *err)
{
    cddp_status st = CDDP_E_IO;

    *refused = true;

    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        int64_t until = cdi_deadline_ms(cdi_now_ms(), ONE_ADDRESS_MS);

        st = cdi_dial_connect(&s->io, a->ai_addr, a->ai_addrlen,
                              a->ai_next != NULL && until < deadline_ms ? until : deadline_ms, err);
        if (st == CDDP_OK)
            st = conn_handshake(s, job, deadline_ms, err);
        if (s->by == CDI_STORE_BY_ID &&
            (st == CDDP_E_DENIED || st == CDDP_E_PROTOCOL)) /* the address is another host's, too */
            st = cdi_fail(err, CDDP_E_IO, "another server listens there");
        if (st != CDDP_E_IO)
            break;
        *refused = *refused && err != NULL && err->os_error == ECONNREFUSED;
        cdi_store_drop(s);
    }
    return st;
}

/*
 * Tries once. CDDP_E_IO and CDDP_E_NOT_FOUND are worth a retry. *unknown: the name service has answered that there is
 * no such name, which is most often a typing error.
 */
static cddp_status conn_try_name(cddp_store *s, const struct cdi_store_way *way, const struct job *job,
                                 int64_t deadline_ms, bool *unknown, struct cdi_error *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list;
    char service[16];
    cddp_status st;
    bool refused;
    int rc;

    (void)snprintf(service, sizeof service, "%d", way->port);
    rc = cdi_resolve(way->host, service, &hints, &list);
    *unknown = rc == EAI_NONAME || rc == EAI_NODATA;
    if (rc == EAI_SYSTEM || rc == EAI_MEMORY)
        return cdi_fail_errno(err, rc == EAI_MEMORY ? ENOMEM : errno, "resolving '%.255s'", way->host);
    if (rc != 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "%s", gai_strerror(rc));
    st = conn_try_all(s, list, job, deadline_ms, &refused, err); /* the store may start later than this rank */
    freeaddrinfo(list);
    return st;
}

/*
 * Tries the addresses of an id once. *refused: all of them refuse connections. The store existed before the id, so it
 * has ended.
 */
static cddp_status conn_try_id(cddp_store *s, const struct cdi_store_endpoint *id, const struct job *job,
                               int64_t deadline_ms, bool *refused, struct cdi_error *err)
{
    struct addrinfo list[CDI_NET_ADDRESSES + 1];
    struct cdi_address at[CDI_NET_ADDRESSES + 1];

    memcpy(at, id->address, sizeof at);
    for (int i = 0; i < id->n; i++)
        list[i] = (struct addrinfo){.ai_family = at[i].u.any.sa_family,
                                    .ai_addr = &at[i].u.any,
                                    .ai_addrlen = at[i].len,
                                    .ai_next = i + 1 < id->n ? &list[i + 1] : NULL};
    return conn_try_all(s, list, job, deadline_ms, refused, err);
}

/* Sleeps for 50 to 150 % of ms, so that many ranks do not connect at once. */
static cddp_status pause_ms(const cddp_store *s, int64_t ms, int64_t deadline_ms, struct cdi_error *err)
{
    uint32_t random = 0;
    cddp_status st = CDDP_OK;

    (void)getrandom(&random, sizeof random, GRND_NONBLOCK);
    ms = cdi_deadline_ms(cdi_now_ms(), ms / 2 + (int64_t)(random % (uint32_t)(ms + 1)));
    ms = ms > deadline_ms ? deadline_ms : ms;
    for (int64_t left = ms - cdi_now_ms(); left > 0 && st == CDDP_OK; left = ms - cdi_now_ms()) {
        const struct timespec ts = {.tv_nsec = (left < WATCH_MS ? left : WATCH_MS) * 1000000};

        (void)nanosleep(&ts, NULL);
        st = s->flight != NULL ? cdi_flight_check(s->flight, err) : CDDP_OK;
    }
    return st;
}

/* Returns whether the deadline ended this attempt before the server had time: the one before then shows more. */
static bool is_cut_off(cddp_status st, int64_t tried_ms, int64_t deadline_ms)
{
    return (st == CDDP_E_IO || st == CDDP_E_TIMEOUT) && cdi_now_ms() >= deadline_ms &&
           deadline_ms - tried_ms < SHORT_ATTEMPT_MS;
}

static cddp_status connect_with_retries(cddp_store *s, const struct cdi_store_way *way, const struct job *job,
                                        struct cdi_error *err)
{
    int64_t began_ms = cdi_now_ms(), deadline_ms = cdi_deadline_ms(began_ms, s->timeout_ms), pause = FIRST_PAUSE_MS;

    struct cdi_error why = {.msg = ""}, before;
    cddp_status st = CDDP_OK, st_before, st_pause;
    bool unknown = false, unknown_before; /* no such host name, or the store of the id has ended */

    for (;;) {
        int64_t until_ms, tried_ms = cdi_now_ms();

        st_before = st;
        unknown_before = unknown;
        before = why;
        st = way->id != NULL ? conn_try_id(s, way->id, job, deadline_ms, &unknown, &why)
                             : conn_try_name(s, way, job, deadline_ms, &unknown, &why);
        if (st == CDDP_OK)
            return CDDP_OK;
        cdi_store_drop(s);
        if (st_before != CDDP_OK && is_cut_off(st, tried_ms, deadline_ms)) {
            st = st_before;
            unknown = unknown_before;
            why = before;
        }
        until_ms = unknown ? cdi_deadline_ms(began_ms, cdi_store_unknown_ms) : deadline_ms;
        if (st != CDDP_E_IO && st != CDDP_E_NOT_FOUND) {
            if (err != NULL)
                *err = why;
            return st;
        }
        until_ms = until_ms < deadline_ms ? until_ms : deadline_ms;
        st_pause = pause_ms(s, pause, until_ms, err);
        if (st_pause != CDDP_OK)
            return st_pause;
        if (cdi_now_ms() >= until_ms) {
            double seconds = (double)(until_ms - began_ms) / 1000;

            if (st == CDDP_E_NOT_FOUND)
                return cdi_fail(err, st, "the store's host '%.255s' (%s) does not resolve: %.200s (tried for %.4g s)",
                                way->host, way->given ? "cddp_init_options.host" : "MASTER_ADDR", why.msg, seconds);
            if (way->id != NULL)
                return cdi_fail(err, st,
                                "cannot reach the store of this cddp_unique_id at %s: %.200s (tried for %.4g s); the "
                                "process that made it must run, and each rank can use it for one cddp_init only",
                                s->where, why.msg, seconds);
            if (way->given)
                return cdi_fail(
                    err, st, "cannot reach the store at %s (cddp_init_options: host, port): %.200s (tried for %.4g s)",
                    s->where, why.msg, seconds);
            return cdi_fail(err, st,
                            "cannot reach the store at %s (MASTER_ADDR, MASTER_PORT): %.200s (tried for %.4g s)",
                            s->where, why.msg, seconds);
        }
        pause = pause * 3 / 2 > LAST_PAUSE_MS ? LAST_PAUSE_MS : pause * 3 / 2;
    }
}

/* Reads the auth token, and with it the job's name, from the environment. */
static cddp_status read_job_env(struct job *job, struct cdi_secret *secret, struct cdi_error *err)
{
    const char *path = cdi_env_str(CDI_SECRET_ENV);
    int64_t round;
    cddp_status st;

    if (path == NULL)
        return CDDP_OK;
    st = cdi_env_int_or("CDDP_ROUND", 0, UINT32_MAX - 1, CDI_HELLO_CURRENT_ROUND, &round, err);
    if (st == CDDP_OK)
        st = cdi_secret_load(secret, path, err);
    if (st != CDDP_OK)
        return st;
    job->run_id = cdi_env_str("TORCHELASTIC_RUN_ID");
    job->round = (uint32_t)round;
    job->secret = secret;
    return CDDP_OK;
}

cddp_status cdi_store_open(cddp_store **out, const char *host, int port, int64_t timeout_ms, struct cdi_error *err)
{
    const struct cdi_store_way way = {.host = host, .port = port};

    return cdi_store_join(out, &way, timeout_ms, err);
}

static void set_where(cddp_store *s, const struct cdi_store_way *way)
{
    size_t used = 0;

    s->given = way->given;
    s->by = way->id != NULL ? CDI_STORE_BY_ID : CDI_STORE_BY_OTHERS;
    if (way->id == NULL) {
        (void)snprintf(s->where, sizeof s->where, strchr(way->host, ':') != NULL ? "[%.255s]:%d" : "%.255s:%d",
                       way->host, way->port);
        return;
    }
    for (int i = 0; i < way->id->n; i++) {
        char text[CDI_ADDRESS_TEXT];

        cdi_address_text(&way->id->address[i].u.any, text);
        used += (size_t)snprintf(s->where + used, sizeof s->where - used, "%s%s", i > 0 ? " or " : "", text);
        if (used >= sizeof s->where)
            return;
    }
}

cddp_status cdi_store_join(cddp_store **out, const struct cdi_store_way *way, int64_t timeout_ms, struct cdi_error *err)
{
    cddp_store *s = calloc(1, sizeof *s);
    struct cdi_secret secret = {.key = {0}};
    struct job job = {.secret = NULL};
    cddp_status st;

    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    s->owner = cdi_owner_here(-1);
    s->io.fd = -1;
    s->timeout_ms = timeout_ms;
    cdi_store_follow(s, way->flight);
    cdi_buf_init(&s->io.out, CDI_C10D_REQUEST_MAX);
    cdi_buf_init(&s->io.in, CDI_C10D_VALUE_MAX + 65536);
    set_where(s, way);
    (void)snprintf(s->io.peer, sizeof s->io.peer, "the store at %s", s->where);
    (void)pthread_mutex_init(&s->lock, NULL);
    if (way->id != NULL)
        job = (struct job){.secret = &way->id->secret, .round = CDI_HELLO_CURRENT_ROUND};
    st = way->id == NULL ? read_job_env(&job, &secret, err) : CDDP_OK;
    if (st == CDDP_OK)
        st = connect_with_retries(s, way, &job, err);
    cdi_secret_release(&secret);
    if (st != CDDP_OK) {
        cddp_store_close(s);
        return st;
    }
    *out = s;
    return CDDP_OK;
}

static cddp_status conn_interrupt(const void *arg, struct cdi_error *err)
{
    return cdi_flight_check(((const cddp_store *)arg)->flight, err);
}

void cdi_store_follow(cddp_store *s, const struct cdi_flight *flight)
{
    s->flight = flight;
    s->io.interrupt = flight != NULL ? conn_interrupt : NULL;
    s->io.arg = s;
}

void cdi_store_watch(cddp_store *store, const struct cdi_flight *flight, enum cdi_store_by by)
{
    cdi_store_follow(store, flight);
    store->by = by;
}

void cdi_store_set_timeout(cddp_store *store, int64_t timeout_ms)
{
    store->timeout_ms = timeout_ms;
}

void cddp_store_close(cddp_store *store)
{
    struct cdi_error err;

    if (store == NULL)
        return;
    if (!cdi_owner_is_surely_here(&store->owner)) {
        (void)cdi_owner_refuse(&store->owner, "cddp_store_close", "connection to the store", &err);
        (void)cdi_last_error_set(&err);
        return;
    }
    cdi_store_drop(store);
    (void)pthread_mutex_destroy(&store->lock);
    free(store);
}
