/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "hygiene.h"
#include "protocol/hello.h"
#include "rdzv_child.h"
#include "worker/store/conn.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <sys/socket.h>

CDI_SUITE(store_client);

/* A server that runs a script, with one connection after another, in a separate thread. */
struct script {
    int listener;
    uint16_t port;
    pthread_t thread;
    bool (*play)(int fd, int nth); /* true: and then another connection */
    bool ok;
};

static void *play_all(void *arg)
{
    struct script *s = arg;
    bool more = true;

    for (int nth = 0; more; nth++) {
        int fd = accept(s->listener, NULL, NULL);

        if (fd < 0)
            break;
        more = s->play(fd, nth);
        (void)close(fd);
    }
    return NULL;
}

static void start(struct script *s, bool (*play)(int fd, int nth))
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;

    s->listener = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(bind(s->listener, (struct sockaddr *)&a, len) == 0 && listen(s->listener, 8) == 0);
    cr_assert_eq(getsockname(s->listener, (struct sockaddr *)&a, &len), 0);
    s->port = ntohs(a.sin_port);
    s->play = play;
    cr_assert_eq(pthread_create(&s->thread, NULL, play_all, s), 0);
}

static void stop(struct script *s)
{
    (void)pthread_join(s->thread, NULL);
    (void)close(s->listener);
}

static bool get_bytes(int fd, void *buf, size_t n)
{
    return recv(fd, buf, n, MSG_WAITALL) == (ssize_t)n;
}

static bool want_bytes(int fd, const void *want, size_t n)
{
    char got[256];

    if (get_bytes(fd, got, n) && memcmp(got, want, n) == 0)
        return true;
    fprintf(stderr, "the client sent something else than the script says\n");
    return false;
}

static void put_bytes(int fd, const void *p, size_t n)
{
    (void)send(fd, p, n, MSG_NOSIGNAL);
}

#define WANT(fd, text) want_bytes(fd, text, sizeof(text) - 1)
#define PUT(fd, text) put_bytes(fd, text, sizeof(text) - 1)

static bool greet(int fd)
{
    char nonce[4];

    if (!WANT(fd, "\x00\xce\xf7\x85\x3c\x0d") || !get_bytes(fd, nonce, 4))
        return false;
    put_bytes(fd, nonce, 4);
    return true;
}

static cddp_store *open_at(const struct script *s)
{
    const cddp_store_options opt = {.size = sizeof opt, .host = "127.0.0.1", .port = s->port, .timeout_ms = 10000};
    cddp_store *store = NULL;

    cr_assert_eq(cddp_store_open(&store, &opt), CDDP_OK, "%s", cddp_last_error());
    return store;
}

/* ----------------------------------------------------------------------------------------- protocol bytes ---- */

static bool all_ops(int fd, int nth)
{
    (void)nth;
    (void)(greet(fd) && WANT(fd, "\x01\x02\0\0\0\0\0\0\0/k\x03\0\0\0\0\0\0\0one"));
    if (WANT(fd, "\x04\x02\0\0\0\0\0\0\0/n\xfe\xff\xff\xff\xff\xff\xff\xff"))
        PUT(fd, "\x05\0\0\0\0\0\0\0");
    if (WANT(fd, "\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k"))
        PUT(fd, "\0");
    if (WANT(fd, "\x03\x02\0\0\0\0\0\0\0/k"))
        for (size_t i = 0; i < 11; i++) /* as slow as can be */
            put_bytes(fd, &"\x03\0\0\0\0\0\0\0one"[i], 1);
    if (WANT(fd, "\x02\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0a\0\0\0\0\0\0\0\0"))
        PUT(fd, "\x03\0\0\0\0\0\0\0one");
    if (WANT(fd, "\x05\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k\x02\0\0\0\0\0\0\0/m"))
        PUT(fd, "\x01");
    if (WANT(fd, "\x08\x02\0\0\0\0\0\0\0/k"))
        PUT(fd, "\x01\0\0\0\0\0\0\0");
    return false;
}

Test(store_client, sends_every_operation_as_pytorch_does)
{
    struct script s;
    const char *const two[] = {"k", "m"};
    cddp_store *store;
    char buf[8];
    size_t len;
    int64_t sum;
    int yes = 7;

    start(&s, all_ops);
    store = open_at(&s);
    cr_assert_eq(cddp_store_set(store, "k", "one", 3), CDDP_OK);
    cr_assert_eq(cddp_store_add(store, "n", -2, &sum), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(sum, 5);
    cr_assert_eq(cddp_store_get(store, "k", buf, sizeof buf, &len, 0), CDDP_OK);
    cr_assert(len == 3 && memcmp(buf, "one", 3) == 0);
    cr_assert_eq(cddp_store_compare_set(store, "k", "a", 1, NULL, 0, buf, sizeof buf, &len), CDDP_OK);
    cr_assert_eq(len, 3);
    cr_assert_eq(cddp_store_check(store, two, 2, &yes), CDDP_OK);
    cr_assert_eq(yes, 0);
    cr_assert_eq(cddp_store_delete(store, "k", &yes), CDDP_OK);
    cr_assert_eq(yes, 1);
    cddp_store_close(store);
    stop(&s);
}

static bool cancel_and_go_on(int fd, int nth)
{
    (void)nth;
    if (greet(fd) && WANT(fd, "\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k\x0c"))
        PUT(fd, "\x01");
    if (WANT(fd, "\x04\x02\0\0\0\0\0\0\0/n\x01\0\0\0\0\0\0\0"))
        PUT(fd, "\x01\0\0\0\0\0\0\0");
    return false;
}

Test(store_client, cancels_a_wait_that_times_out)
{
    struct script s;
    const char *const k = "k";
    cddp_store *store;

    start(&s, cancel_and_go_on);
    store = open_at(&s);
    cr_assert_eq(cddp_store_wait(store, &k, 1, 50), CDDP_E_TIMEOUT);
    cr_assert_str_eq(cddp_last_error(), "key 'k' did not appear in the store within 0.05 s");
    cr_assert_eq(cddp_store_add(store, "n", 1, NULL), CDDP_OK);
    cddp_store_close(store);
    stop(&s);
}

static sem_t cut_heals;

static bool confirm_late(int fd, int nth)
{
    (void)nth;
    if (greet(fd) && WANT(fd, "\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k\x0c") && sem_wait(&cut_heals) == 0)
        PUT(fd, "\0\x01");
    if (WANT(fd, "\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k"))
        PUT(fd, "\0");
    return false;
}

Test(store_client, a_cut_longer_than_a_wait_keeps_the_connection)
{
    struct script s;
    const char *const k = "k";
    cddp_store *store;

    cdi_store_cancel_ms = 20;
    cr_assert_eq(sem_init(&cut_heals, 0, 0), 0);
    start(&s, confirm_late);
    store = open_at(&s);
    cr_assert_eq(cddp_store_wait(store, &k, 1, 20), CDDP_E_TIMEOUT);
    cr_assert_str_eq(cddp_last_error(), "key 'k' did not appear in the store within 0.02 s");
    cr_assert_eq(cddp_store_wait(store, &k, 1, 20), CDDP_E_TIMEOUT, "%s", cddp_last_error());
    (void)sem_post(&cut_heals);
    cr_assert_eq(cddp_store_wait(store, &k, 1, 0), CDDP_OK, "%s", cddp_last_error());
    cddp_store_close(store);
    stop(&s);
    (void)sem_destroy(&cut_heals);
}

static bool answer_nonsense(int fd, int nth)
{
    (void)nth;
    if (greet(fd) && WANT(fd, "\x05\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k"))
        PUT(fd, "\x09");
    return false;
}

Test(store_client, a_closed_connection_names_the_error_that_closed_it)
{
    struct script s;
    const char *const k = "k";
    cddp_store *store;
    int yes;

    start(&s, answer_nonsense);
    store = open_at(&s);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(cddp_store_check(store, &k, 1, &yes), i == 0 ? CDDP_E_PROTOCOL : CDDP_E_CLOSED);
        cr_assert(i == 0 || strstr(cddp_last_error(), "was closed after an earlier error: the server at 127.0.0.1:"),
                  "%s", cddp_last_error());
    }
    cddp_store_close(store);
    stop(&s);
}

static bool cross(int fd, int nth)
{
    (void)nth;
    if (greet(fd) && WANT(fd, "\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k\x0c"))
        PUT(fd, "\0\x01"); /* the key was set just before the cancellation */
    return false;
}

Test(store_client, wait_that_ends_during_cancel_succeeds)
{
    struct script s;
    const char *const k = "k";
    cddp_store *store;

    start(&s, cross);
    store = open_at(&s);
    cr_assert_eq(cddp_store_wait(store, &k, 1, 50), CDDP_OK);
    cddp_store_close(store);
    stop(&s);
}

static bool too_long(int fd, int nth)
{
    (void)nth;
    if (greet(fd) && WANT(fd, "\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k"))
        PUT(fd, "\0");
    if (WANT(fd, "\x03\x02\0\0\0\0\0\0\0/k"))
        PUT(fd, "\x03\0\0\0\0\0\0\0one");
    if (WANT(fd, "\x04\x02\0\0\0\0\0\0\0/n\x01\0\0\0\0\0\0\0"))
        PUT(fd, "\x01\0\0\0\0\0\0\0");
    return false;
}

Test(store_client, returns_the_length_of_a_value_that_does_not_fit)
{
    struct script s;
    cddp_store *store;
    char buf[4] = "xyz";
    size_t len = 0;

    start(&s, too_long);
    store = open_at(&s);
    cr_assert_eq(cddp_store_get(store, "k", buf, 2, &len, 0), CDDP_E_LIMIT);
    cr_assert_eq(len, 3);
    cr_assert_str_eq(buf, "xyz");
    cr_assert_eq(cddp_store_add(store, "n", 1, NULL), CDDP_OK, "the connection is as before");
    cddp_store_close(store);
    stop(&s);
}

/* ------------------------------------------------------------------------------------------------ faulty servers
 */

static bool close_after_greeting(int fd, int nth)
{
    (void)nth;
    (void)greet(fd);
    return false;
}

Test(store_client, end_of_the_round_is_a_sticky_error)
{
    struct script s;
    cddp_store *store;

    start(&s, close_after_greeting);
    store = open_at(&s);
    cr_assert_eq(cddp_store_add(store, "n", 1, NULL), CDDP_E_CLOSED);
    cr_assert(strstr(cddp_last_error(), "ended the connection: the round is over") != NULL, "%s", cddp_last_error());
    cr_assert_eq(cddp_store_add(store, "n", 1, NULL), CDDP_E_CLOSED);
    cddp_store_close(store);
    stop(&s);
}

static bool huge(int fd, int nth)
{
    (void)nth;
    if (greet(fd) && WANT(fd, "\x02\x02\0\0\0\0\0\0\0/k\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0b"))
        PUT(fd, "\xff\xff\xff\xff\xff\xff\xff\x7f");
    return false;
}

Test(store_client, does_not_allocate_an_impossible_length)
{
    struct script s;
    cddp_store *store;
    size_t len;

    start(&s, huge);
    store = open_at(&s);
    cr_assert_eq(cddp_store_compare_set(store, "k", NULL, 0, "b", 1, NULL, 0, &len), CDDP_E_PROTOCOL);
    cddp_store_close(store);
    stop(&s);
}

static bool web_server(int fd, int nth)
{
    char request[10];

    (void)nth;
    (void)get_bytes(fd, request, sizeof request);
    PUT(fd, "HTTP/1.1 400 Bad Request\r\n\r\n");
    return false;
}

Test(store_client, detects_a_server_that_is_not_a_store)
{
    struct script s;
    cddp_store_options opt = {.size = sizeof opt, .host = "127.0.0.1", .timeout_ms = 10000};
    cddp_store *store;

    start(&s, web_server);
    opt.port = s.port;
    cr_assert_eq(cddp_store_open(&store, &opt), CDDP_E_PROTOCOL);
    cr_assert(strstr(cddp_last_error(), "is not a store") != NULL);
    stop(&s);
}

static bool second_time(int fd, int nth)
{
    if (nth >= 2)
        (void)greet(fd);
    return nth < 2;
}

Test(store_client, retries_to_connect)
{
    struct script s;

    start(&s, second_time);
    cddp_store_close(open_at(&s));
    stop(&s);
}

/* ------------------------------------------------------------------------------------------------ the auth token ----
 */

static struct cdi_secret server_secret;
static struct cdi_hello seen;

static void set_secret(const char *text)
{
    static char path[64];
    int fd;

    (void)snprintf(path, sizeof path, "/tmp/cddp_token_XXXXXX");
    fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) &&
              write(fd, "-0123456789abcdef", 17) == 17);
    (void)close(fd);
    (void)setenv("CDDP_AUTH_TOKEN_FILE", path, 1);
}

static void forget_secret(void)
{
    (void)unlink(getenv("CDDP_AUTH_TOKEN_FILE"));
    (void)unsetenv("CDDP_AUTH_TOKEN_FILE");
}

/* Runs the handshake of a server with server_secret (all zero: none). */
static bool open_as_server(int fd)
{
    const struct cdi_secret none = {.key = {0}};
    bool auth = memcmp(&none, &server_secret, sizeof none) != 0;
    struct cdi_hello_server h;
    struct cdi_buf in, out;
    uint8_t byte;

    cdi_hello_server_init(&h);
    cdi_buf_init(&in, 0);
    cdi_buf_init(&out, 0);
    while (h.state != CDI_HELLO_S_READY && h.state != CDI_HELLO_S_REFUSED && get_bytes(fd, &byte, 1)) {
        (void)cdi_buf_append(&in, &byte, 1);
        if (cdi_hello_server_feed(&h, &in, &out, NULL) < 0 && h.state != CDI_HELLO_S_REFUSED)
            break;
        seen = h.hello;
        if (h.state == CDI_HELLO_S_ASKED)
            (void)cdi_hello_server_challenge(&h, auth ? &server_secret : NULL, &out, NULL);
        else if (h.state == CDI_HELLO_S_PROVED)
            (void)cdi_hello_server_welcome(&h, &out, NULL);
        put_bytes(fd, cdi_buf_data(&out), out.len);
        cdi_buf_consume(&out, out.len);
    }
    cdi_buf_release(&in);
    cdi_buf_release(&out);
    return h.state == CDI_HELLO_S_READY;
}

static bool authenticated(int fd, int nth)
{
    (void)nth;
    if (open_as_server(fd))
        (void)greet(fd);
    return false;
}

static cddp_status open_status(const struct script *s, int timeout_ms)
{
    const cddp_store_options opt = {.size = sizeof opt, .host = "127.0.0.1", .port = s->port, .timeout_ms = timeout_ms};
    cddp_store *store = NULL;
    cddp_status st = cddp_store_open(&store, &opt);

    cddp_store_close(store);
    return st;
}

Test(store_client, sends_job_and_round_and_proves_the_token)
{
    struct script s;

    set_secret("hunter2\n");
    cr_assert_eq(cdi_secret_load(&server_secret, getenv("CDDP_AUTH_TOKEN_FILE"), NULL), CDDP_OK);
    (void)setenv("TORCHELASTIC_RUN_ID", "job 7", 1);
    (void)setenv("CDDP_ROUND", "4", 1);
    start(&s, authenticated);
    cr_assert_eq(open_status(&s, 10000), CDDP_OK, "%s", cddp_last_error());
    stop(&s);
    cr_assert_eq(seen.kind, CDI_HELLO_STORE);
    cr_assert_eq(seen.round, 4);
    cr_assert_str_eq(seen.run_id, "job 7");
    (void)unsetenv("CDDP_ROUND");
    start(&s, authenticated);
    cr_assert_eq(open_status(&s, 10000), CDDP_OK, "%s", cddp_last_error());
    stop(&s);
    cr_assert_eq(seen.round, CDI_HELLO_CURRENT_ROUND);
    forget_secret();
}

Test(store_client, rejects_a_server_that_does_not_prove_the_token)
{
    struct script s;

    set_secret("hunter2");
    start(&s, authenticated);
    cr_assert_eq(open_status(&s, 10000), CDDP_E_DENIED);
    cr_assert(strstr(cddp_last_error(), "the server does not have the job's auth token") != NULL, "%s",
              cddp_last_error());
    stop(&s);
    server_secret.key[0] = 1;
    start(&s, authenticated);
    cr_assert_eq(open_status(&s, 10000), CDDP_E_DENIED);
    cr_assert(strstr(cddp_last_error(), "use the same token on all nodes") != NULL, "%s", cddp_last_error());
    stop(&s);
    forget_secret();
}

static bool as_torchrun(int fd, int nth)
{
    char byte;

    (void)nth;
    (void)get_bytes(fd, &byte, 1); /* not the store's first byte: close */
    return true;
}

Test(store_client, sends_no_request_to_a_server_without_the_token)
{
    struct script s;

    set_secret("hunter2");
    start(&s, as_torchrun);
    cr_assert_eq(open_status(&s, 2000), CDDP_E_IO);
    cr_assert(strstr(cddp_last_error(), "when asked to prove the job's auth token") != NULL, "%s", cddp_last_error());
    (void)shutdown(s.listener, SHUT_RDWR);
    stop(&s);
    forget_secret();
    (void)setenv("CDDP_AUTH_TOKEN_FILE", "/nowhere/token", 1);
    start(&s, as_torchrun);
    cr_assert_eq(open_status(&s, 10000), CDDP_E_SYSTEM);
    cr_assert(strstr(cddp_last_error(), "'/nowhere/token'") != NULL, "%s", cddp_last_error());
    (void)shutdown(s.listener, SHUT_RDWR);
    stop(&s);
}

static bool silent(int fd, int nth)
{
    char byte;

    (void)nth;
    while (recv(fd, &byte, 1, 0) > 0)
        ;
    return false;
}

static bool as_torchrun_then_silent(int fd, int nth)
{
    return nth == 0 ? as_torchrun(fd, nth) : silent(fd, nth);
}

Test(store_client, reports_the_cause_of_the_last_full_attempt)
{
    struct script s;

    set_secret("hunter2");
    start(&s, as_torchrun_then_silent);
    cr_assert_eq(open_status(&s, 2000), CDDP_E_IO, "%s", cddp_last_error());
    cr_assert(strstr(cddp_last_error(), "when asked to prove the job's auth token") != NULL, "%s", cddp_last_error());
    (void)shutdown(s.listener, SHUT_RDWR);
    stop(&s);
    forget_secret();
}

static bool no_room_at_all(int fd, int nth)
{
    struct cdi_hello_server h;
    struct cdi_buf out;
    char nonce[4];

    (void)nth;
    cdi_hello_server_init(&h);
    cdi_buf_init(&out, 0);
    if (WANT(fd, "\x00\xce\xf7\x85\x3c\x0d") && get_bytes(fd, nonce, 4)) {
        (void)cdi_hello_server_refuse(&h, "raise the limit", &out, NULL);
        for (size_t i = 0; i < out.len; i++)
            put_bytes(fd, cdi_buf_data(&out) + i, 1);
    }
    cdi_buf_release(&out);
    return false;
}

static bool no_room_before_the_proof(int fd, int nth)
{
    struct cdi_hello_server h;
    struct cdi_buf out;
    char byte;

    (void)nth;
    cdi_hello_server_init(&h);
    cdi_buf_init(&out, 0);
    if (get_bytes(fd, &byte, 1)) {
        (void)cdi_hello_server_refuse(&h, "raise the limit", &out, NULL);
        put_bytes(fd, cdi_buf_data(&out), out.len);
        while (get_bytes(fd, &byte, 1))
            ;
    }
    cdi_buf_release(&out);
    return false;
}

Test(store_client, does_not_retry_a_full_server)
{
    struct script s;

    start(&s, no_room_at_all);
    cr_assert_eq(open_status(&s, 10000), CDDP_E_LIMIT, "%s", cddp_last_error());
    cr_assert(strstr(cddp_last_error(), "takes no more connections: raise the limit") != NULL, "%s", cddp_last_error());
    stop(&s);
    set_secret("hunter2\n");
    start(&s, no_room_before_the_proof);
    cr_assert_eq(open_status(&s, 10000), CDDP_E_LIMIT, "%s", cddp_last_error());
    cr_assert(strstr(cddp_last_error(), "takes no more connections: raise the limit") != NULL, "%s", cddp_last_error());
    stop(&s);
    forget_secret();
}

Test(store_client, gives_up_on_a_silent_server_at_the_deadline)
{
    struct script s;
    cddp_store_options opt = {.size = sizeof opt, .host = "127.0.0.1", .timeout_ms = 1000};
    cddp_store *store;

    start(&s, silent);
    opt.port = s.port;
    cr_assert_eq(cddp_store_open(&store, &opt), CDDP_E_TIMEOUT);
    stop(&s);
}

Test(store_client, names_a_port_without_a_listener_and_the_cause)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* bound, so that no other process gets it */
    cddp_store_options opt = {.size = sizeof opt, .host = "127.0.0.1", .timeout_ms = 1000};
    cddp_store *store;
    char where[64];

    cr_assert(bind(fd, (struct sockaddr *)&a, len) == 0 && getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    opt.port = ntohs(a.sin_port);
    cr_assert_eq(cddp_store_open(&store, &opt), CDDP_E_IO);
    (void)snprintf(where, sizeof where, "127.0.0.1:%d", opt.port);
    cr_assert(strstr(cddp_last_error(), where) != NULL && strstr(cddp_last_error(), "Connection refused") != NULL, "%s",
              cddp_last_error());
    (void)close(fd);
}

Test(store_client, names_a_host_that_does_not_resolve)
{
    const cddp_store_options opt = {.size = sizeof opt, .host = "no-such-host.invalid", .port = 1, .timeout_ms = 100};
    cddp_store *store;

    cr_assert_eq(cddp_store_open(&store, &opt), CDDP_E_NOT_FOUND);
    cr_assert(strstr(cddp_last_error(), "'no-such-host.invalid'") != NULL);
}

/* A typing error is reported long before the timeout, 300 s by default, if the name service reports it at all. */
Test(store_client, gives_up_early_on_an_unknown_name)
{
    const cddp_store_options opt = {.size = sizeof opt, .host = "no-such-host.invalid", .port = 1, .timeout_ms = 60000};
    struct addrinfo *none = NULL;
    cddp_store *store;

    if (getaddrinfo("no-such-host.invalid", "1", NULL, &none) != EAI_NONAME)
        cr_skip_test("the name service of this machine does not answer");
    cdi_store_unknown_ms = 50;
    cr_assert_eq(cddp_store_open(&store, &opt), CDDP_E_NOT_FOUND);
    cr_assert_str_eq(cddp_last_error(), "the store's host 'no-such-host.invalid' (MASTER_ADDR) does not resolve: Name "
                                        "or service not known (tried for 0.05 s)");
}

Test(store_client, a_host_with_a_port_is_rejected_at_once)
{
    const cddp_store_options opt = {.size = sizeof opt, .host = "localhost:80", .port = 1};
    cddp_store *store;

    cr_assert_eq(cddp_store_open(&store, &opt), CDDP_E_INVALID);
    cr_assert_str_eq(cddp_last_error(), "cddp_store_options.host 'localhost:80' is an address with a port; give "
                                        "cddp_store_options.host=localhost and port=80");
}

Test(store_client, rejects_bad_arguments_before_sending)
{
    struct script s;
    cddp_store *store;
    cddp_store_options opt = {.size = 1};
    char *key = malloc(8193), *value = malloc(8u * 1024 * 1024 + 1);
    const char *none = NULL;
    int yes;

    cr_assert_eq(cddp_store_open(NULL, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_store_open(&store, &opt), CDDP_E_INVALID);
    opt = (cddp_store_options){.size = sizeof opt, .host = "127.0.0.1", .port = 70000};
    cr_assert_eq(cddp_store_open(&store, &opt), CDDP_E_INVALID);
    (void)setenv("MASTER_PORT", "many", 1);
    opt = (cddp_store_options){.size = sizeof opt, .host = "127.0.0.1"};
    cr_assert_eq(cddp_store_open(&store, &opt), CDDP_E_INVALID);
    cr_assert_str_eq(cddp_last_error(), "MASTER_PORT='many' is not a whole number from 1 to 65535");
    (void)unsetenv("MASTER_PORT");
    start(&s, close_after_greeting);
    store = open_at(&s);
    memset(key, 'k', 8192);
    key[8192] = '\0';
    memset(value, 'v', 8u * 1024 * 1024 + 1);
    cr_assert_eq(cddp_store_set(store, key, "", 0), CDDP_E_INVALID);
    cr_assert_eq(cddp_store_set(store, NULL, "", 0), CDDP_E_INVALID);
    cr_assert_eq(cddp_store_set(store, "k", value, 8u * 1024 * 1024 + 1), CDDP_E_INVALID);
    cr_assert_eq(cddp_store_set(store, "k", NULL, 1), CDDP_E_INVALID);
    cr_assert_eq(cddp_store_set(NULL, "k", "", 0), CDDP_E_INVALID);
    cr_assert_eq(cddp_store_check(store, &none, 1, &yes), CDDP_E_INVALID);
    cr_assert_eq(cddp_store_check(store, &none, 0, &yes), CDDP_E_INVALID);
    cr_assert_eq(cddp_store_wait(store, NULL, 1, 0), CDDP_E_INVALID);
    cddp_store_close(store);
    cddp_store_close(NULL);
    stop(&s);
    free(key);
    free(value);
}

/* ------------------------------------------------------------------------------------------ the project's own server
 */

static cddp_store *shared_store;

static void *count_up(void *arg)
{
    (void)arg;
    for (int i = 0; i < 200; i++)
        if (cddp_store_add(shared_store, "count", 1, NULL) != CDDP_OK)
            return (void *)"failed";
    return NULL;
}

Test(store_client, threads_share_one_client)
{
    struct rdzv_child server;
    struct script as_server = {0};
    pthread_t thread[4];
    int64_t sum = 0;
    size_t len = 0, big = 8u * 1024 * 1024;
    char *value = malloc(big), *back = malloc(big);
    void *failed;

    rdzv_child_start(&server);
    as_server.port = (uint16_t)server.port;
    shared_store = open_at(&as_server);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, count_up, NULL), 0);
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(thread[i], &failed);
        cr_assert_null(failed);
    }
    cr_assert_eq(cddp_store_add(shared_store, "count", 0, &sum), CDDP_OK);
    cr_assert_eq(sum, 800);
    for (size_t i = 0; i < big; i++)
        value[i] = (char)(i * 2654435761u >> 13);
    cr_assert_eq(cddp_store_set(shared_store, "big", value, big), CDDP_OK);
    cr_assert_eq(cddp_store_get(shared_store, "big", back, big, &len, 0), CDDP_OK, "%s", cddp_last_error());
    cr_assert(len == big && memcmp(value, back, big) == 0);
    cr_assert_eq(cddp_store_get(shared_store, "none", back, big, &len, 30), CDDP_E_TIMEOUT);
    cr_assert_eq(cddp_store_add(shared_store, "count", 1, &sum), CDDP_OK);
    cr_assert_eq(sum, 801);
    cddp_store_close(shared_store);
    rdzv_child_stop(&server);
    free(value);
    free(back);
}
