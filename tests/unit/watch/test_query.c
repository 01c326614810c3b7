/* SPDX-License-Identifier: Apache-2.0 */
/* The client that asks: a real server in a thread, and listeners that are none, or play one. */
#include "watch/query.h"

#include "common/clock.h"
#include "common/log.h"
#include "hygiene.h"
#include "protocol/bulk.h"
#include "protocol/frame.h"
#include "protocol/hello.h"
#include "rendezvous/server.h"
#include "watch/views.h"
#include "within.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

CDI_SUITE(query);

#define PATIENCE_MS 20000

/* -------------------------------------------------------------------------------------------- a real server ---- */

static struct {
    uv_loop_t loop;
    uv_async_t stop;
    pthread_t thread;
    struct rdzv_server *server;
    char endpoint[64];
} host;

static void on_stop(uv_async_t *async)
{
    uv_close((uv_handle_t *)async, NULL);
    rdzv_server_close(host.server, NULL, NULL);
}

static void *run(void *arg)
{
    (void)arg;
    (void)uv_run(&host.loop, UV_RUN_DEFAULT);
    return NULL;
}

static void start(struct rdzv_server_options opt)
{
    struct cdi_error err = {0};

    cdi_log_set_level(CDI_LOG_OFF);
    opt.views = &watch_views;
    cr_assert_eq(uv_loop_init(&host.loop), 0);
    cr_assert_eq(uv_async_init(&host.loop, &host.stop, on_stop), 0);
    cr_assert_eq(rdzv_server_start(&host.server, &host.loop, &opt, &err), CDDP_OK, "%s", err.msg);
    (void)snprintf(host.endpoint, sizeof host.endpoint, "127.0.0.1:%u", rdzv_server_port(host.server));
    cr_assert_eq(pthread_create(&host.thread, NULL, run, NULL), 0);
}

static void stop(void)
{
    (void)uv_async_send(&host.stop);
    (void)pthread_join(host.thread, NULL);
    cr_assert_eq(uv_loop_close(&host.loop), 0);
    uv_library_shutdown();
}

static struct query *open_it(const struct cdi_secret *secret)
{
    struct cdi_error err = {0};
    struct query *q = NULL;

    cr_assert_eq(query_open(&q, host.endpoint, secret, PATIENCE_MS, &err), CDDP_OK, "%s", err.msg);
    return q;
}

Test(query, tells_the_state_of_a_job)
{
    struct cdi_error err = {0};
    json_t *reply, *job;
    struct query *q;
    int64_t begin;

    start((struct rdzv_server_options){.run_id = "mine", .min_nodes = 2, .max_nodes = 2});
    q = open_it(NULL);
    begin = cdi_now_ms();
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(query_ask(q, i == 0 ? NULL : "mine", PATIENCE_MS, &reply, &err), CDDP_OK, "%s", err.msg);
        job = json_array_get(json_object_get(reply, "jobs"), 0);
        cr_assert_str_eq(json_string_value(json_object_get(job, "name")), "mine");
        cr_assert_str_eq(json_string_value(json_object_get(job, "state")), "joining");
        cr_assert_eq(json_integer_value(json_object_get(job, "min_nodes")), 2);
        cr_assert(json_is_array(json_object_get(job, "nodes")));
        json_decref(reply);
    }
    cr_assert_geq(cdi_now_ms() - begin, 200, "replies are 100 ms apart");
    cr_assert_eq(query_ask(q, "other", PATIENCE_MS, &reply, &err), CDDP_E_NOT_FOUND);
    cr_assert_not_null(strstr(err.msg, "has no job 'other'; its job is 'mine'"), "%s", err.msg);
    cr_assert_eq(query_ask(q, "mine", PATIENCE_MS, &reply, &err), CDDP_OK, "the connection is still good");
    json_decref(reply);
    query_close(q);
    stop();
}

Test(query, server_of_many_jobs_may_have_none)
{
    struct cdi_error err = {0};
    json_t *reply;
    struct query *q;

    start((struct rdzv_server_options){.max_jobs = 10});
    q = open_it(NULL);
    cr_assert_eq(query_ask(q, NULL, PATIENCE_MS, &reply, &err), CDDP_OK, "%s", err.msg);
    cr_assert_eq(json_array_size(json_object_get(reply, "jobs")), 0);
    json_decref(reply);
    cr_assert_eq(query_ask(q, "none", PATIENCE_MS, &reply, &err), CDDP_E_NOT_FOUND);
    query_close(q);
    stop();
}

Test(query, auth_token_must_be_proved)
{
    struct cdi_secret right = {{1, 2, 3}}, wrong = {{4}};
    struct cdi_error err = {0};
    struct query *q;
    json_t *reply;

    start((struct rdzv_server_options){.run_id = "mine", .secret = &right});
    cr_assert_eq(query_open(&q, host.endpoint, NULL, PATIENCE_MS, &err), CDDP_E_DENIED);
    cr_assert_not_null(strstr(err.msg, "--auth_token_file"), "%s", err.msg);
    cr_assert_eq(query_open(&q, host.endpoint, &wrong, PATIENCE_MS, &err), CDDP_E_DENIED);
    q = open_it(&right);
    cr_assert_eq(query_ask(q, NULL, PATIENCE_MS, &reply, &err), CDDP_OK, "%s", err.msg);
    json_decref(reply);
    query_close(q);
    stop();
}

Test(query, number_of_clients_is_limited)
{
    struct cdi_error err = {0};
    struct query *q[40], *again = NULL;
    cddp_status st = CDDP_OK;
    size_t n = 0;

    start((struct rdzv_server_options){.run_id = "mine"});
    while (st == CDDP_OK && n < 40)
        n += (st = query_open(&q[n], host.endpoint, NULL, PATIENCE_MS, &err)) == CDDP_OK;
    cr_assert(n == 32 && st == CDDP_E_DENIED, "%zu: %s", n, err.msg);
    cr_assert_not_null(strstr(err.msg, "too many clients"), "%s", err.msg);
    query_close(q[--n]);
    for (int64_t end = cdi_now_ms() + cdi_within_ms(5000); again == NULL && cdi_now_ms() < end;)
        if (query_open(&again, host.endpoint, NULL, PATIENCE_MS, &err) != CDDP_OK)
            again = NULL;
    cr_assert_not_null(again, "the end of one makes room");
    query_close(again);
    while (n > 0)
        query_close(q[--n]);
    stop();
}

/* A client that is past the handshake, and sends what it likes. */
static int greet_as_client(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
    struct cdi_hello_client hello;
    struct cdi_buf in, out;
    uint8_t bytes[256];
    cddp_status st = CDDP_IN_PROGRESS;
    ssize_t n = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_port = htons(rdzv_server_port(host.server));
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    cdi_buf_init(&in, 0);
    cdi_buf_init(&out, 0);
    cr_assert_eq(cdi_hello_client_start(&hello, CDI_HELLO_QUERY, "", 0, NULL, &out, NULL), CDDP_OK);
    while (st == CDDP_IN_PROGRESS && n > 0) {
        (void)send(fd, cdi_buf_data(&out), out.len, MSG_NOSIGNAL);
        cdi_buf_consume(&out, out.len);
        n = recv(fd, bytes, sizeof bytes, 0);
        (void)cdi_buf_append(&in, bytes, n > 0 ? (size_t)n : 0);
        st = cdi_hello_client_feed(&hello, &in, &out, NULL);
    }
    cr_assert_eq(st, CDDP_OK);
    cdi_buf_release(&in);
    cdi_buf_release(&out);
    return fd;
}

static void send_frame(int fd, uint16_t type, const char *payload, size_t len)
{
    struct cdi_buf out;

    cdi_buf_init(&out, 0);
    cr_assert_eq(cdi_frame_put(&out, type, payload, len), CDDP_OK);
    (void)send(fd, cdi_buf_data(&out), out.len, MSG_NOSIGNAL);
    cdi_buf_release(&out);
}

Test(query, malformed_questions_end_the_connection)
{
    static char large[8192];
    static const struct {
        uint16_t type;
        const char *payload;
    } cases[] = {{CDI_BULK_QUERY, "{"},
                 {CDI_BULK_QUERY, "[]"},
                 {CDI_BULK_QUERY, "{\"what\": \"secrets\"}"},
                 {CDI_BULK_QUERY, "{\"what\": \"job\", \"job\": 7}"},
                 {CDI_BULK_REPORT, "{\"what\": \"job\"}"},
                 {CDI_BULK_QUERY, large},
                 {1, "{\"version\": 1}"}};

    start((struct rdzv_server_options){.run_id = "mine"});
    (void)snprintf(large, sizeof large, "{\"what\": \"job\", \"job\": \"%08000d\"}", 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int fd = greet_as_client();
        char bytes[64];

        send_frame(fd, cases[i].type, cases[i].payload, strlen(cases[i].payload));
        cr_assert_eq(recv(fd, bytes, sizeof bytes, 0), 0, "case %zu", i);
        (void)close(fd);
    }
    stop();
}

/* Thousands of questions without a pause, and a client that reads none of the replies: the server stays as it is. */
Test(query, many_questions_at_once_are_harmless)
{
    static const char unknown[] = "{\"what\": \"job\", \"job\": \"none\"}", known[] = "{\"what\": \"job\"}";
    struct cdi_error err = {0};
    struct cdi_buf out;
    struct query *q;
    json_t *reply;
    int fds[2];

    start((struct rdzv_server_options){.run_id = "mine"});
    cdi_buf_init(&out, 0);
    for (int i = 0; i < 20000; i++)
        cr_assert_eq(cdi_frame_put(&out, CDI_BULK_QUERY, unknown, sizeof unknown - 1), CDDP_OK);
    fds[0] = greet_as_client();
    fds[1] = greet_as_client();
    (void)send(fds[0], cdi_buf_data(&out), out.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    for (int i = 0; i < 100; i++)
        send_frame(fds[1], CDI_BULK_QUERY, known, sizeof known - 1);
    q = open_it(NULL);
    cr_assert_eq(query_ask(q, NULL, PATIENCE_MS, &reply, &err), CDDP_OK, "%s", err.msg);
    json_decref(reply);
    query_close(q);
    cdi_buf_release(&out);
    (void)close(fds[0]);
    stop(); /* with questions that are not answered yet */
    (void)close(fds[1]);
}

/* ------------------------------------------------------------------------------------- listeners that play one ---- */

static struct {
    int fd;
    pthread_t thread;
    void (*serve)(int fd);
} fake;

static void *fake_run(void *arg)
{
    int fd;

    (void)arg;
    while ((fd = accept(fake.fd, NULL, NULL)) >= 0) {
        fake.serve(fd);
        (void)close(fd);
    }
    return NULL;
}

static void fake_start(void (*serve)(int fd))
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;

    fake.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fake.fd, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(listen(fake.fd, 8), 0);
    cr_assert_eq(getsockname(fake.fd, (struct sockaddr *)&a, &len), 0);
    (void)snprintf(host.endpoint, sizeof host.endpoint, "127.0.0.1:%u", ntohs(a.sin_port));
    fake.serve = serve;
    cr_assert_eq(pthread_create(&fake.thread, NULL, fake_run, NULL), 0);
}

static void fake_stop(void)
{
    (void)shutdown(fake.fd, SHUT_RDWR);
    (void)pthread_join(fake.thread, NULL);
    (void)close(fake.fd);
}

static void serve_ssh(int fd)
{
    char bytes[256];

    (void)send(fd, "SSH-2.0-OpenSSH_9.2p1 Debian\r\n", 30, MSG_NOSIGNAL);
    (void)recv(fd, bytes, sizeof bytes, 0);
}

static void serve_nothing(int fd)
{
    char bytes[256];

    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        ;
}

static void serve_end(int fd)
{
    char bytes[256];

    (void)recv(fd, bytes, sizeof bytes, 0);
}

/* Sends what is in `out`, and receives more into `in`; false: the end. */
static bool turn(int fd, struct cdi_buf *in, struct cdi_buf *out)
{
    uint8_t bytes[4096];
    ssize_t n;

    (void)send(fd, cdi_buf_data(out), out->len, MSG_NOSIGNAL);
    cdi_buf_consume(out, out->len);
    n = recv(fd, bytes, sizeof bytes, 0);
    return n > 0 && cdi_buf_append(in, bytes, (size_t)n) == CDDP_OK;
}

static bool greet(int fd, struct cdi_buf *in, struct cdi_buf *out)
{
    struct cdi_hello_server h;
    cddp_status st;

    cdi_hello_server_init(&h);
    while (h.state != CDI_HELLO_S_READY) {
        st = cdi_hello_server_feed(&h, in, out, NULL);
        if (st == CDDP_OK && h.state == CDI_HELLO_S_ASKED)
            st = cdi_hello_server_challenge(&h, NULL, out, NULL);
        else if (st == CDDP_OK)
            st = cdi_hello_server_welcome(&h, out, NULL);
        else if (st != CDDP_IN_PROGRESS || !turn(fd, in, out))
            return false;
    }
    return true;
}

static const char *const *parts; /* of a REPLY */

static void serve_parts(int fd)
{
    struct cdi_buf in, out;
    struct cdi_frame f;

    cdi_buf_init(&in, 0);
    cdi_buf_init(&out, 0);
    if (greet(fd, &in, &out)) {
        while (cdi_frame_next(&in, &f, NULL) == CDDP_IN_PROGRESS && turn(fd, &in, &out))
            ;
        (void)cdi_frame_put(&out, 799, "{}", 2); /* a frame of a newer server */
        for (const char *const *part = parts; *part != NULL; part++)
            (void)cdi_frame_put(&out, CDI_BULK_REPLY, *part, strlen(*part));
        (void)turn(fd, &in, &out);
    }
    cdi_buf_release(&in);
    cdi_buf_release(&out);
}

static cddp_status open_fake(int64_t timeout_ms, struct cdi_error *err)
{
    struct query *q = NULL;
    cddp_status st = query_open(&q, host.endpoint, NULL, timeout_ms, err);

    query_close(q);
    return st;
}

Test(query, other_listeners_are_told_apart)
{
    static const struct {
        void (*serve)(int fd);
        cddp_status status;
        const char *text;
    } cases[] = {{serve_ssh, CDDP_E_PROTOCOL, "another program listens there"},
                 {serve_end, CDDP_E_CLOSED, "is not a rendezvous"},
                 {serve_nothing, CDDP_E_TIMEOUT, "did not answer in time"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cdi_error err = {0};

        fake_start(cases[i].serve);
        cr_assert_eq(open_fake(cases[i].serve == serve_nothing ? 300 : PATIENCE_MS, &err), cases[i].status, "%zu: %s",
                     i, err.msg);
        cr_assert_not_null(strstr(err.msg, cases[i].text), "%s", err.msg);
        fake_stop();
        cr_assert_eq(open_fake(PATIENCE_MS, &err), CDDP_E_IO, "nothing listens any more: %s", err.msg);
    }
}

Test(query, wrong_endpoints_are_rejected)
{
    struct cdi_error err = {0};
    struct query *q;

    cr_assert_eq(query_open(&q, "a b", NULL, 100, &err), CDDP_E_INVALID);
    cr_assert_eq(query_open(&q, "host:70000", NULL, 100, &err), CDDP_E_INVALID);
    cr_assert_eq(query_open(&q, "no-such-host.invalid:1", NULL, 100, &err), CDDP_E_NOT_FOUND, "%s", err.msg);
}

Test(query, reply_in_parts_becomes_one)
{
    static const char *const good[] = {
        "{\"more\": true, \"jobs\": [{\"name\": \"a\", \"nodes\": [1]}, {\"name\": \"b\", \"nodes\": [2]}]}",
        "{\"more\": true, \"jobs\": [{\"name\": \"b\", \"nodes\": [3, 4]}]}",
        "{\"more\": false, \"cut\": true, \"jobs\": [{\"name\": \"c\", \"nodes\": []}]}", NULL};
    struct cdi_error err = {0};
    json_t *reply, *jobs;
    struct query *q;

    parts = good;
    fake_start(serve_parts);
    cr_assert_eq(query_open(&q, host.endpoint, NULL, PATIENCE_MS, &err), CDDP_OK, "%s", err.msg);
    cr_assert_eq(query_ask(q, NULL, PATIENCE_MS, &reply, &err), CDDP_OK, "%s", err.msg);
    jobs = json_object_get(reply, "jobs");
    cr_assert_eq(json_array_size(jobs), 3);
    cr_assert_eq(json_array_size(json_object_get(json_array_get(jobs, 0), "nodes")), 1);
    cr_assert_eq(json_array_size(json_object_get(json_array_get(jobs, 1), "nodes")), 3);
    cr_assert(json_is_true(json_object_get(reply, "cut")) && json_is_false(json_object_get(reply, "more")));
    json_decref(reply);
    query_close(q);
    fake_stop();
}

Test(query, broken_replies_are_errors)
{
    static const char *const no_json[] = {"{", NULL}, *const no_jobs[] = {"{\"jobs\": 3}", NULL},
                             *const no_end[] = {"{\"more\": true, \"jobs\": []}", NULL};
    static const char *const *const cases[] = {no_json, no_jobs, no_end};

    for (size_t i = 0; i < 3; i++) {
        struct cdi_error err = {0};
        json_t *reply;
        struct query *q;
        cddp_status st;

        parts = cases[i];
        fake_start(serve_parts);
        cr_assert_eq(query_open(&q, host.endpoint, NULL, PATIENCE_MS, &err), CDDP_OK, "%s", err.msg);
        st = query_ask(q, NULL, 500, &reply, &err);
        cr_assert_eq(st, i == 2 ? CDDP_E_TIMEOUT : CDDP_E_PROTOCOL, "%s", err.msg);
        query_close(q);
        fake_stop();
    }
}
