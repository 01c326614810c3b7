/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "common/tcp.h"
#include "hygiene.h"
#include "protocol/c10d.h"
#include "protocol/hello.h"
#include "within.h"
#include "worker/store/client.h"
#include "worker/store/host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

CDI_SUITE(store_host);

static struct cdi_store_host *host_at(const char *where, const struct cdi_secret *secret)
{
    const struct cdi_store_host_options opt = {.host = where, .secret = secret};
    struct cdi_store_host *h = NULL;
    struct cdi_error err;

    cr_assert_eq(cdi_store_host_start(&h, &opt, &err), CDDP_OK, "%s", err.msg);
    return h;
}

static cddp_store *client_of(const struct cdi_store_host *h)
{
    cddp_store *s = NULL;
    struct cdi_error err;

    cr_assert_eq(cdi_store_open(&s, cdi_store_host_address(h), cdi_store_host_port(h), 10000, &err), CDDP_OK, "%s",
                 err.msg);
    return s;
}

static int raw_connection(const struct cdi_store_host *h)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)cdi_store_host_port(h))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* Returns whether the server closes it within the time. */
static bool is_closed(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;

    return poll(&p, 1, ms) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

Test(store_host, clients_share_keys)
{
    struct cdi_store_host *h = host_at("127.0.0.1", NULL);
    cddp_store *a = client_of(h), *b = client_of(h);
    char value[8];
    size_t len;
    int64_t sum;

    cr_assert_str_eq(cdi_store_host_address(h), "127.0.0.1");
    cr_assert_eq(cdi_store_host_clients(h), 2);
    cr_assert_eq(cddp_store_set(a, "k", "one", 3), CDDP_OK);
    cr_assert_eq(cddp_store_get(b, "k", value, sizeof value, &len, 0), CDDP_OK);
    cr_assert(len == 3 && memcmp(value, "one", 3) == 0);
    cr_assert_eq(cddp_store_add(a, "n", 2, &sum), CDDP_OK);
    cr_assert_eq(cddp_store_add(b, "n", 3, &sum), CDDP_OK);
    cr_assert_eq(sum, 5);
    cddp_store_close(a);
    cddp_store_close(b);
    cdi_store_host_stop(h);
    cdi_store_host_stop(NULL);
}

static void *set_later(void *arg)
{
    (void)usleep(20000);
    (void)cddp_store_set(arg, "late", "x", 1);
    return NULL;
}

/* After a cut that has healed, the next retransmission could otherwise come after the end of the lease. */
Test(store_host, backoff_is_short_at_both_ends)
{
    struct cdi_store_host *h = host_at("127.0.0.1", NULL);
    cddp_store *s = client_of(h);
    int n = 0, most_ms;

    for (int fd = 3; fd < 256; fd++) {
        socklen_t len = sizeof most_ms;

        if (getsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &most_ms, &len) != 0)
            continue;
        cr_expect_eq(most_ms, CDI_TCP_BACKOFF_MS, "fd %d: %d ms", fd, most_ms);
        n++;
    }
    cr_expect(n == 0 || n == 3, "%d sockets", n); /* 0: an older kernel */
    cddp_store_close(s);
    cdi_store_host_stop(h);
}

Test(store_host, a_wait_ends_when_another_client_sets_the_key)
{
    struct cdi_store_host *h = host_at("::1", NULL);
    cddp_store *a = client_of(h), *b = client_of(h);
    const char *const key = "late";
    pthread_t t;

    cr_assert_str_eq(cdi_store_host_address(h), "::1");
    cr_assert_eq(pthread_create(&t, NULL, set_later, b), 0);
    cr_assert_eq(cddp_store_wait(a, &key, 1, 10000), CDDP_OK);
    (void)pthread_join(t, NULL);
    cddp_store_close(a);
    cddp_store_close(b);
    cdi_store_host_stop(h);
}

Test(store_host, client_that_does_not_read_delays_no_other)
{
    struct cdi_store_host *h = host_at("127.0.0.1", NULL);
    int fd = raw_connection(h);
    static char megabyte[1 << 20];
    cddp_store *s = client_of(h);
    struct cdi_buf b;
    int64_t before;

    cr_assert_eq(cddp_store_set(s, "k", megabyte, sizeof megabyte), CDDP_OK);
    cr_assert_eq(cddp_store_add(s, "n", 1, NULL), CDDP_OK); /* a reply: the value has arrived as well */
    cdi_buf_init(&b, 0);
    (void)cdi_buf_append(&b, CDI_C10D_HELLO, CDI_C10D_HELLO_LEN);
    for (int i = 0; i < 200; i++) { /* 200 MiB of replies, which are never read */
        (void)cdi_c10d_put_op(&b, CDI_C10D_GET);
        (void)cdi_c10d_put_string(&b, "/k", 2);
    }
    cr_assert_eq(send(fd, cdi_buf_data(&b), b.len, 0), (ssize_t)b.len);
    cdi_buf_release(&b);
    before = cdi_now_ms();
    for (int i = 0; i < 100; i++)
        cr_assert_eq(cddp_store_add(s, "n", 1, NULL), CDDP_OK);
    cr_assert_lt(cdi_now_ms() - before, cdi_within_ms(5000));
    (void)close(fd);
    cddp_store_close(s);
    cdi_store_host_stop(h);
}

Test(store_host, sends_all_replies_to_a_slow_reader)
{
    struct cdi_store_host *h = host_at("127.0.0.1", NULL);
    int fd = raw_connection(h);
    static char half[1 << 19], got[1 << 19];
    cddp_store *s = client_of(h);
    struct cdi_buf b;
    uint8_t head[8];

    cr_assert_eq(cddp_store_set(s, "k", half, sizeof half), CDDP_OK);
    cr_assert_eq(cddp_store_add(s, "n", 1, NULL), CDDP_OK); /* a reply: the value has arrived as well */
    cdi_buf_init(&b, 0);
    (void)cdi_buf_append(&b, CDI_C10D_HELLO, CDI_C10D_HELLO_LEN);
    for (int i = 0; i < 40; i++) {
        (void)cdi_c10d_put_op(&b, CDI_C10D_GET);
        (void)cdi_c10d_put_string(&b, "/k", 2);
    }
    cr_assert_eq(send(fd, cdi_buf_data(&b), b.len, 0), (ssize_t)b.len);
    cdi_buf_release(&b);
    cr_assert_eq(cddp_store_add(s, "n", 1, NULL), CDDP_OK); /* the host is alive, and the other client still waits */
    for (int i = 0; i < 40; i++) {
        cr_assert_eq(recv(fd, head, 8, MSG_WAITALL), 8, "answer %d", i);
        cr_assert_eq(cdi_c10d_get_u64(head), sizeof half);
        cr_assert_eq(recv(fd, got, sizeof got, MSG_WAITALL), (ssize_t)sizeof got);
    }
    (void)close(fd);
    cddp_store_close(s);
    cdi_store_host_stop(h);
}

Test(store_host, closes_other_protocols_at_once_and_silent_clients_later)
{
    struct cdi_store_host *h = host_at("127.0.0.1", NULL);
    int web = raw_connection(h), garbage = raw_connection(h), mute = raw_connection(h), bad = raw_connection(h);

    (void)send(web, "GET / HTTP/1.1\r\n\r\n", 18, 0);
    (void)send(garbage, "\x16\x03\x01", 3, 0);
    (void)send(bad, "\x00\xce\xf7\x85\x3c\xff", 6, 0);
    cr_assert(is_closed(web, 2000));
    cr_assert(is_closed(garbage, 2000));
    cr_assert(is_closed(bad, 2000));
    cr_assert(is_closed(mute, 8000));
    (void)close(web);
    (void)close(garbage);
    (void)close(mute);
    (void)close(bad);
    cdi_store_host_stop(h);
}

static void set_token(const char *text, char path[64])
{
    int fd;

    (void)snprintf(path, 64, "/tmp/cddp_token_XXXXXX");
    fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) &&
              write(fd, "-0123456789abcdef", 17) == 17);
    (void)close(fd);
    (void)setenv("CDDP_AUTH_TOKEN_FILE", path, 1);
}

Test(store_host, serves_only_clients_that_prove_the_token)
{
    struct cdi_secret secret;
    char right[64], wrong[64];
    struct cdi_store_host *h;
    struct cdi_error err;
    cddp_store *s = NULL;
    int plain;

    set_token("wrong", wrong);
    set_token("hunter2", right);
    cr_assert_eq(cdi_secret_load(&secret, right, &err), CDDP_OK);
    h = host_at("127.0.0.1", &secret);
    plain = raw_connection(h);
    (void)send(plain,
               CDI_C10D_HELLO "\x0d"
                              "1234",
               10, 0);
    cr_assert(is_closed(plain, 2000), "a plain connection must not get a PING answered");
    (void)close(plain);
    s = client_of(h);
    cr_assert_eq(cddp_store_set(s, "k", "v", 1), CDDP_OK);
    cddp_store_close(s);
    (void)setenv("CDDP_AUTH_TOKEN_FILE", wrong, 1);
    cr_assert_eq(cdi_store_open(&s, "127.0.0.1", cdi_store_host_port(h), 10000, &err), CDDP_E_DENIED);
    cr_assert_not_null(strstr(err.msg, "use the same token on all nodes"), "%s", err.msg);
    (void)unsetenv("CDDP_AUTH_TOKEN_FILE");
    cdi_store_host_stop(h);
    (void)unlink(right);
    (void)unlink(wrong);
}

Test(store_host, rejects_a_client_of_another_job)
{
    struct cdi_secret secret;
    const struct cdi_store_host_options opt = {.host = "127.0.0.1", .run_id = "job 1", .secret = &secret};
    struct cdi_store_host *h;
    struct cdi_error err;
    cddp_store *s = NULL;
    char path[64];

    set_token("hunter2", path);
    cr_assert_eq(cdi_secret_load(&secret, path, &err), CDDP_OK);
    cr_assert_eq(cdi_store_host_start(&h, &opt, &err), CDDP_OK);
    (void)setenv("TORCHELASTIC_RUN_ID", "job 2", 1);
    cr_assert_eq(cdi_store_open(&s, "127.0.0.1", cdi_store_host_port(h), 10000, &err), CDDP_E_DENIED);
    cr_assert_not_null(strstr(err.msg, "another job"), "%s", err.msg);
    (void)setenv("TORCHELASTIC_RUN_ID", "job 1", 1);
    cr_assert_eq(cdi_store_open(&s, "127.0.0.1", cdi_store_host_port(h), 10000, &err), CDDP_OK, "%s", err.msg);
    cddp_store_close(s);
    cdi_store_host_stop(h);
    (void)unlink(path);
}

Test(store_host, names_a_used_port_with_the_remedy)
{
    struct cdi_store_host *h = host_at("127.0.0.1", NULL), *second = NULL;
    const struct cdi_store_host_options opt = {.host = "127.0.0.1", .port = cdi_store_host_port(h)};
    struct cdi_error err;
    char port[32];

    cr_assert_eq(cdi_store_host_start(&second, &opt, &err), CDDP_E_EXISTS);
    (void)snprintf(port, sizeof port, "port %d of '127.0.0.1'", opt.port);
    cr_assert_not_null(strstr(err.msg, port), "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, "free MASTER_PORT"), "%s", err.msg);
    cdi_store_host_stop(h);
}

Test(store_host, names_a_host_name_that_does_not_resolve)
{
    const struct cdi_store_host_options opt = {.host = "no such host"};
    struct cdi_store_host *h = NULL;
    struct cdi_error err;

    cr_assert_eq(cdi_store_host_start(&h, &opt, &err), CDDP_E_NOT_FOUND);
    cr_assert_not_null(strstr(err.msg, "'no such host' (MASTER_ADDR)"), "%s", err.msg);
}

Test(store_host, listens_everywhere_for_an_address_of_another_host)
{
    struct cdi_store_host *h = host_at("192.0.2.1", NULL); /* reserved for documentation: no host has it */
    cddp_store *s = client_of(h);

    cr_assert_str_eq(cdi_store_host_address(h), "127.0.0.1");
    cddp_store_close(s);
    cdi_store_host_stop(h);
}

Test(store_host, rejects_new_clients_without_descriptors)
{
    struct cdi_store_host *h = host_at("127.0.0.1", NULL);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)cdi_store_host_port(h))};
    cddp_store *s = client_of(h);
    int fds[4];
    struct rlimit before, few;
    struct cdi_error err;
    struct cdi_buf in;
    char byte;

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (size_t i = 0; i < 4; i++)
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)dup(fds[0]);
    (void)close((int)few.rlim_cur);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (size_t i = 0; i < 4; i++) {
        cr_assert_eq(connect(fds[i], (struct sockaddr *)&a, sizeof a), 0);
        if (i % 2 == 0) { /* like PyTorch, which retries */
            (void)send(fds[i], "\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04", 10, 0);
            cr_assert(is_closed(fds[i], 5000));
            continue;
        }
        (void)send(fds[i], "\x00\xce\xf7\x85\x3c\x0d\x01\x02\xd0\xcd", 10, 0);
        cdi_buf_init(&in, 0);
        do {
            cr_assert_eq(recv(fds[i], &byte, 1, 0), 1);
            (void)cdi_buf_append(&in, &byte, 1);
        } while (cdi_hello_read_refusal(&in, &err) == CDDP_IN_PROGRESS);
        cdi_buf_release(&in);
        cr_assert_not_null(strstr(err.msg, "rank 0, which hosts it, has 1 connections, and may open"), "%s", err.msg);
    }
    cr_assert_eq(cddp_store_add(s, "n", 1, NULL), CDDP_OK);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < 4; i++)
        (void)close(fds[i]);
    cddp_store_close(client_of(h));
    cddp_store_close(s);
    cdi_store_host_stop(h);
}

Test(store_host, waits_for_descriptors)
{
    struct cdi_store_host *h = host_at("127.0.0.1", NULL);
    cddp_store *s = client_of(h);
    struct rlimit before, few;
    int fd;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    fd = raw_connection(h);
    (void)send(fd, CDI_C10D_HELLO, CDI_C10D_HELLO_LEN, 0);
    few = before;
    few.rlim_cur = (rlim_t)dup(fd); /* the next descriptor would be this one */
    (void)close((int)few.rlim_cur);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int i = 0; i < 10; i++)
        cr_assert_eq(cddp_store_add(s, "n", 1, NULL), CDDP_OK);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    (void)close(fd);
    cddp_store_close(client_of(h));
    cddp_store_close(s);
    cdi_store_host_stop(h);
}
