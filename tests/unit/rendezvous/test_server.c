/* SPDX-License-Identifier: Apache-2.0 */
/* The server over the loopback interface. It runs in a thread with its own loop; the test is a blocking client. */
#include "common/clock.h"
#include "common/log.h"
#include "common/tcp.h"
#include "hygiene.h"
#include "protocol/bulk.h"
#include "protocol/c10d.h"
#include "protocol/frame.h"
#include "protocol/hello.h"
#include "protocol/message.h"
#include "rendezvous/server.h"
#include "watch/views.h"
#include "within.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

CDI_SUITE(server);

#define READ_TIMEOUT_S 10 /* a longer read of the client fails the test */

/* -------------------------------------------------------------------------------------- a server in a thread ---- */

static struct {
    uv_loop_t loop;
    uv_async_t stop;
    pthread_t thread;
    struct rdzv_server *server;
    uint16_t port;
    bool drains; /* at the next on_stop() */
    pthread_mutex_t lock;
    char log[16384];
} host = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void to_log(enum cdi_log_level level, const char *id, const char *text, void *arg)
{
    size_t at;

    (void)level, (void)arg;
    pthread_mutex_lock(&host.lock);
    at = strlen(host.log);
    (void)snprintf(host.log + at, sizeof host.log - at, "%s %s\n", id, text);
    pthread_mutex_unlock(&host.lock);
}

static bool logged(const char *text)
{
    bool is;

    pthread_mutex_lock(&host.lock);
    is = strstr(host.log, text) != NULL;
    pthread_mutex_unlock(&host.lock);
    return is;
}

static void on_stop(uv_async_t *async)
{
    if (host.drains) {
        host.drains = false;
        rdzv_server_drain(host.server, NULL, NULL);
        return;
    }
    uv_close((uv_handle_t *)async, NULL);
    rdzv_server_close(host.server, NULL, NULL);
}

static void *run(void *arg)
{
    (void)arg;
    (void)uv_run(&host.loop, UV_RUN_DEFAULT);
    return NULL;
}

static uint32_t job_restarts; /* of the job, in each JOIN */

static void start(struct rdzv_server_options opt)
{
    struct cdi_error err = {0};

    cdi_log_set_level(CDI_LOG_INFO);
    cdi_log_set_sink(to_log, NULL);
    opt.run_id = "job";
    opt.views = &watch_views;
    job_restarts = opt.max_restarts;
    cr_assert_eq(uv_loop_init(&host.loop), 0);
    cr_assert_eq(uv_async_init(&host.loop, &host.stop, on_stop), 0);
    cr_assert_eq(rdzv_server_start(&host.server, &host.loop, &opt, &err), CDDP_OK, "%s", err.msg);
    host.port = rdzv_server_port(host.server);
    cr_assert_neq(host.port, 0);
    cr_assert_eq(pthread_create(&host.thread, NULL, run, NULL), 0);
}

static void stop(void)
{
    int64_t begin = cdi_now_ms();

    (void)uv_async_send(&host.stop);
    (void)pthread_join(host.thread, NULL);
    cr_assert_lt(cdi_now_ms() - begin, cdi_within_ms(5000));
    cr_assert_eq(uv_loop_close(&host.loop), 0);
    uv_library_shutdown(); /* libuv keeps an internal pipe until then */
    cdi_log_set_sink(NULL, NULL);
}

/* --------------------------------------------------------------------------------------------------- clients ---- */

static uint16_t dial_port; /* of the next connection; 0: host.port */

static int dial_address(const char *ip)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(dial_port == 0 ? host.port : dial_port)};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = a.sin_port};
    struct timeval patience = {.tv_sec = READ_TIMEOUT_S};
    int on = 1;
    bool six = strchr(ip, ':') != NULL;
    int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    (void)inet_pton(six ? AF_INET6 : AF_INET, ip, six ? (void *)&a6.sin6_addr : (void *)&a.sin_addr);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd, six ? (struct sockaddr *)&a6 : (struct sockaddr *)&a, six ? sizeof a6 : sizeof a) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static int dial(void)
{
    int fd = dial_address("127.0.0.1");

    cr_assert_geq(fd, 0);
    return fd;
}

static void put(int fd, const void *bytes, size_t len)
{
    cr_assert_eq(send(fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
}

static void get(int fd, void *bytes, size_t len)
{
    /* recv() of 0 bytes would wait for one. */
    cr_assert_eq(len == 0 ? 0 : recv(fd, bytes, len, MSG_WAITALL), (ssize_t)len);
}

/* Reads until the server closes. Returns false if it does not in time. */
static bool ends(int fd)
{
    char bytes[4096];
    ssize_t n;

    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        ;
    return n == 0 || errno == ECONNRESET;
}

static int dial_store(void)
{
    int fd = dial();
    char ping[10] = "\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04", pong[4];

    put(fd, ping, sizeof ping);
    get(fd, pong, 4);
    cr_assert_eq(memcmp(pong, ping + 6, 4), 0);
    return fd;
}

/* Sends a request with a key and perhaps a value. */
static void ask(int fd, enum cdi_c10d_op op, const char *key, const char *value)
{
    struct cdi_buf b;

    cdi_buf_init(&b, 0);
    (void)cdi_c10d_put_op(&b, op);
    if (op == CDI_C10D_WAIT)
        (void)cdi_buf_put_u64(&b, 1);
    (void)cdi_c10d_put_string(&b, key, strlen(key));
    if (value != NULL)
        (void)cdi_c10d_put_string(&b, value, strlen(value));
    put(fd, cdi_buf_data(&b), b.len);
    cdi_buf_release(&b);
}

static void answers(int fd, const char *want)
{
    uint8_t len[8];
    char text[256];

    get(fd, len, 8);
    cr_assert_eq(cdi_c10d_get_u64(len), strlen(want));
    get(fd, text, strlen(want));
    cr_assert_eq(memcmp(text, want, strlen(want)), 0);
}

static void tell(int fd, struct cdi_msg m)
{
    struct cdi_buf b;

    cdi_buf_init(&b, 0);
    cr_assert_eq(cdi_msg_encode(&m, &b, NULL), CDDP_OK);
    put(fd, cdi_buf_data(&b), b.len);
    cdi_buf_release(&b);
}

static struct cdi_msg hear(int fd, enum cdi_msg_type type)
{
    uint8_t head[8], *payload;
    struct cdi_msg m;
    struct cdi_error err = {0};
    uint16_t heard;
    uint32_t len;

    get(fd, head, 8);
    len = cdi_c10d_get_u32(head);
    heard = (uint16_t)(head[4] | head[5] << 8);
    payload = malloc(len);
    get(fd, payload, len);
    if (cdi_bulk_is(heard)) { /* the server asks now and then where the ranks are */
        free(payload);
        return hear(fd, type);
    }
    cr_assert_eq(cdi_msg_decode(heard, payload, len, &m, &err), CDDP_OK, "%s", err.msg);
    free(payload);
    cr_assert_eq(m.type, type, "%s came, not %s", cdi_msg_name(m.type), cdi_msg_name(type));
    return m;
}

/* The handshake of a client, up to READY. */
static cddp_status greet(int fd, enum cdi_hello_kind kind, const char *run_id, uint32_t round,
                         const struct cdi_secret *secret, struct cdi_error *err)
{
    struct cdi_hello_client c;
    struct cdi_buf in, out;
    cddp_status st;

    cdi_buf_init(&in, 0);
    cdi_buf_init(&out, 0);
    st = cdi_hello_client_start(&c, kind, run_id, round, secret, &out, err);
    while (st == CDDP_OK || st == CDDP_IN_PROGRESS) {
        char byte;

        if (out.len > 0)
            put(fd, cdi_buf_data(&out), out.len);
        cdi_buf_consume(&out, out.len);
        if (c.state == CDI_HELLO_C_READY)
            break;
        if (recv(fd, &byte, 1, 0) != 1) /* one at a time, so that bytes after READY stay in the socket */
            st = cdi_fail(err, CDDP_E_CLOSED, "the server closed");
        else if (cdi_buf_append(&in, &byte, 1) == CDDP_OK)
            st = cdi_hello_client_feed(&c, &in, &out, err);
    }
    cdi_buf_release(&in);
    cdi_buf_release(&out);
    return st;
}

static const struct cdi_secret *agents_secret; /* NULL: none */

static struct cdi_msg join_of(const char *run_id, int32_t node_rank, uint32_t nodes)
{
    struct cdi_msg m = {.type = CDI_MSG_JOIN,
                        .u.join = {.version = 1, .host = "h", .node_rank = node_rank, .n_procs = 2}};

    (void)snprintf(m.u.join.run_id, sizeof m.u.join.run_id, "%s", run_id);
    m.u.join.min_nodes = m.u.join.max_nodes = nodes;
    m.u.join.max_restarts = job_restarts;
    return m;
}

static int dial_agent(const char *run_id, int32_t node_rank, uint32_t nodes)
{
    int fd = dial();
    struct cdi_error err = {0};

    cr_assert_eq(greet(fd, CDI_HELLO_AGENT, run_id, CDI_HELLO_CURRENT_ROUND, agents_secret, &err), CDDP_OK, "%s",
                 err.msg);
    tell(fd, join_of(run_id, node_rank, nodes));
    return fd;
}

/* ----------------------------------------------------------------------------------------------------- tests ---- */

/* After a cut that has healed, the next retransmission could otherwise come after the end of the lease. */
Test(server, backoff_of_its_connections_is_short)
{
    int n = 0, most_ms = 0, client;

    start((struct rdzv_server_options){.host = "127.0.0.1"});
    client = dial();
    for (int64_t until = cdi_now_ms() + cdi_within_ms(5000); n < 2 && cdi_now_ms() < until;) {
        n = 0;
        for (int fd = 3; fd < 256; fd++) {
            socklen_t len = sizeof most_ms;

            n += getsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &most_ms, &len) == 0 && most_ms == CDI_TCP_BACKOFF_MS;
        }
        if (most_ms == 0) /* an older kernel */
            break;
    }
    cr_expect(n == 2 || most_ms == 0, "%d sockets", n); /* it listens, and has accepted one */
    (void)close(client);
    stop();
}

Test(server, failed_round_closes_stores_before_next_assignment)
{
    struct cdi_msg m = {.type = CDI_MSG_FAILED, .u.failed.failure = {.kind = CDI_END_SIGNAL, .code = 9}};
    int a, b, waiting, idle, fresh;

    start((struct rdzv_server_options){.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
    a = dial_agent("job", 0, 2);
    (void)hear(a, CDI_MSG_WELCOME);
    b = dial_agent("job", 1, 2);
    (void)hear(b, CDI_MSG_WELCOME);
    (void)hear(a, CDI_MSG_ASSIGN);
    cr_assert_eq(hear(b, CDI_MSG_ASSIGN).u.assign.rank_base, 2);
    waiting = dial_store();
    idle = dial_store();
    ask(idle, CDI_C10D_SET, "old", "key");
    ask(waiting, CDI_C10D_WAIT, "never", NULL);
    tell(b, m);
    cr_assert_eq(hear(a, CDI_MSG_ROUND_OVER).u.round_over.failure.code, 9);
    (void)hear(b, CDI_MSG_ROUND_OVER);
    ask(idle, CDI_C10D_GET, "old", NULL);
    answers(idle, "key"); /* the keys of the round exist until all nodes have stopped */
    tell(a, (struct cdi_msg){.type = CDI_MSG_STOPPED});
    tell(b, (struct cdi_msg){.type = CDI_MSG_STOPPED});
    cr_assert_eq(hear(a, CDI_MSG_ASSIGN).u.assign.round, 1);
    cr_assert(ends(waiting));
    cr_assert(ends(idle));
    fresh = dial_store();
    ask(fresh, CDI_C10D_GET, "old", NULL);
    answers(fresh, "");

    (void)hear(b, CDI_MSG_ASSIGN); /* with unread data, close() would reset instead of sending EOF */
    (void)close(b);                /* the node is lost, and no restart is left */
    m = hear(a, CDI_MSG_ROUND_OVER);
    cr_assert(!m.u.round_over.restart);
    cr_assert_eq(m.u.round_over.failure.kind, CDI_END_NODE);
    tell(a, (struct cdi_msg){.type = CDI_MSG_STOPPED, .u.stopped.round = 1});
    m = hear(a, CDI_MSG_CLOSED);
    cr_assert_eq(m.u.closed.status, CDI_CLOSE_FAILED);
    cr_assert_not_null(strstr(m.u.closed.text, "node 1 (h, pid 0) was lost"));
    cr_assert(ends(fresh));
    (void)close(a), (void)close(waiting), (void)close(idle), (void)close(fresh);
    stop();
}

Test(server, names_a_spare_node_that_does_not_learn_the_end)
{
    const struct cdi_msg done = {.type = CDI_MSG_DONE};
    struct cdi_msg join;
    int nodes[2];

    start((struct rdzv_server_options){.min_nodes = 1, .max_nodes = 1, .spares = 1});
    for (int i = 0; i < 2; i++) {
        nodes[i] = dial();
        cr_assert_eq(greet(nodes[i], CDI_HELLO_AGENT, "job", CDI_HELLO_CURRENT_ROUND, NULL, NULL), CDDP_OK);
        join = join_of("job", -1, 1);
        join.u.join.spares = 1;
        tell(nodes[i], join);
        (void)hear(nodes[i], CDI_MSG_WELCOME);
        if (i == 0)
            (void)hear(nodes[i], CDI_MSG_ASSIGN);
    }
    tell(nodes[0], done);
    cr_assert_eq(hear(nodes[0], CDI_MSG_CLOSED).u.closed.status, CDI_CLOSE_DONE);
    (void)close(nodes[0]);
    host.drains = true;
    (void)uv_async_send(&host.stop);
    for (int64_t until = cdi_now_ms() + cdi_within_ms(10000); !logged("RDZV-DRAIN") && cdi_now_ms() < until;)
        (void)poll(NULL, 0, 10);
    cr_expect(logged("the job is over, but a spare node (h) cannot be reached"), "%s", host.log);
    stop();
    (void)close(nodes[1]);
}

Test(server, agent_may_return_after_reset_but_not_after_eof)
{
    const struct linger reset = {.l_onoff = 1};
    struct cdi_msg m = {.type = CDI_MSG_JOIN, .u.join = {.version = 1, .run_id = "job", .host = "h", .n_procs = 2}};
    int a, b;

    start((struct rdzv_server_options){.min_nodes = 2, .max_nodes = 2});
    a = dial_agent("job", 0, 2);
    (void)hear(a, CDI_MSG_WELCOME);
    b = dial_agent("job", 1, 2);
    (void)snprintf(m.u.join.session, sizeof m.u.join.session, "%s", hear(b, CDI_MSG_WELCOME).u.welcome.session);
    (void)hear(a, CDI_MSG_ASSIGN);
    (void)hear(b, CDI_MSG_ASSIGN);
    m.u.join.min_nodes = m.u.join.max_nodes = 2;
    for (int i = 0; i < 3; i++) {
        (void)setsockopt(b, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        (void)close(b);
        b = dial();
        cr_assert_eq(greet(b, CDI_HELLO_AGENT, "job", CDI_HELLO_CURRENT_ROUND, NULL, NULL), CDDP_OK);
        tell(b, m);
        cr_assert(hear(b, CDI_MSG_WELCOME).u.welcome.resumed);
    }
    tell(b, (struct cdi_msg){.type = CDI_MSG_HEARTBEAT, .u.heartbeat.seq = 7});
    cr_assert_eq(hear(b, CDI_MSG_HEARTBEAT).u.heartbeat.seq, 7);
    (void)close(b);
    m = hear(a, CDI_MSG_ROUND_OVER);
    cr_assert_eq(m.u.round_over.failure.kind, CDI_END_NODE);
    cr_assert_not_null(strstr(m.u.round_over.failure.text, "its connection closed"));
    (void)close(a);
    stop();
}

Test(server, rejects_agent_of_another_job)
{
    struct cdi_error err = {0};
    struct cdi_msg m;
    int stranger, a;

    start((struct rdzv_server_options){0});
    stranger = dial();
    cr_assert_eq(greet(stranger, CDI_HELLO_AGENT, "other", CDI_HELLO_CURRENT_ROUND, NULL, &err), CDDP_E_DENIED);
    cr_assert_not_null(strstr(err.msg, "serves job 'job', not 'other'"), "%s", err.msg);
    (void)close(stranger);
    stranger = dial();
    cr_assert_eq(greet(stranger, CDI_HELLO_AGENT, "", CDI_HELLO_CURRENT_ROUND, NULL, &err), CDDP_OK, "%s", err.msg);
    tell(stranger, join_of("other", -1, 1));
    m = hear(stranger, CDI_MSG_CLOSED);
    cr_assert_eq(m.u.closed.status, CDI_CLOSE_REFUSED);
    cr_assert_not_null(strstr(m.u.closed.text, "serves job 'job', not 'other'"));
    a = dial_agent("job", -1, 1);
    (void)hear(a, CDI_MSG_WELCOME);
    (void)hear(a, CDI_MSG_ASSIGN);
    (void)shutdown(stranger, SHUT_WR);
    cr_assert(ends(stranger));
    tell(a, (struct cdi_msg){.type = CDI_MSG_DONE});
    cr_assert_eq(hear(a, CDI_MSG_CLOSED).u.closed.status, CDI_CLOSE_DONE);
    (void)close(stranger), (void)close(a);
    stop();
}

Test(server, closes_garbage_and_silence_with_one_log_line)
{
    static const char *const bad[] = {"\x0d\x01\x02\x03\x04", "\x16\x03\x01", "SSH-2.0-x\r\n"};
    int fd, store;

    start((struct rdzv_server_options){.undecided_ms = 100});
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fd = dial();
        put(fd, bad[i], strlen(bad[i]));
        cr_assert(ends(fd));
        (void)close(fd);
    }
    cr_assert(logged("RDZV-DROP rendezvous: connection from 127.0.0.1:"));
    cr_assert(logged("unrecognized protocol"));
    fd = dial(); /* sends nothing */
    cr_assert(ends(fd));
    (void)close(fd);
    fd = dial();
    put(fd, "CDDP", 4); /* an incomplete opening */
    cr_assert(ends(fd));
    (void)close(fd);
    cr_assert(logged("timed out before sending a request"));
    fd = dial();
    put(fd, CDI_CONTROL_OPENING, CDI_CONTROL_OPENING_LEN); /* an agent that sends nothing else */
    cr_assert(ends(fd));
    (void)close(fd);
    fd = dial(); /* an agent without JOIN */
    cr_assert_eq(greet(fd, CDI_HELLO_AGENT, "job", CDI_HELLO_CURRENT_ROUND, NULL, NULL), CDDP_OK);
    cr_assert(ends(fd));
    (void)close(fd);
    store = dial_store();
    put(store, "\x13", 1);
    cr_assert(ends(store));
    cr_assert(logged("19 is not a store operation"));
    (void)close(store);
    stop();
}

Test(server, drops_only_the_client_that_never_reads)
{
    static char value[8 << 20];
    struct cdi_buf b;
    int greedy, other;

    start((struct rdzv_server_options){.stall_ms = 300});
    other = dial_store();
    greedy = dial_store();
    cdi_buf_init(&b, 0);
    (void)cdi_c10d_put_op(&b, CDI_C10D_SET);
    (void)cdi_c10d_put_string(&b, "big", 3);
    (void)cdi_c10d_put_string(&b, value, sizeof value);
    put(greedy, cdi_buf_data(&b), b.len);
    cdi_buf_release(&b);
    for (int i = 0; i < 64; i++)
        ask(greedy, CDI_C10D_GET, "big", NULL);
    for (int64_t end = cdi_now_ms() + 5000; !logged("the peer does not read what it is sent");) {
        cr_assert_lt(cdi_now_ms(), end);
        ask(other, CDI_C10D_GET, "none", NULL);
        answers(other, "");
    }
    (void)close(greedy), (void)close(other);
    stop();
}

Test(server, client_that_reads_late_gets_every_reply)
{
    enum { N = 3000, SIZE = 4096 };
    static char value[SIZE + 1], reply[SIZE + 8];
    struct cdi_buf b;
    int fd;

    start((struct rdzv_server_options){0});
    fd = dial_store();
    memset(value, 'x', SIZE);
    ask(fd, CDI_C10D_SET, "k", value);
    cdi_buf_init(&b, 0);
    for (int i = 0; i < N; i++) {
        (void)cdi_c10d_put_op(&b, CDI_C10D_GET);
        (void)cdi_c10d_put_string(&b, "k", 1);
    }
    put(fd, cdi_buf_data(&b), b.len);
    for (int i = 0; i < N; i++) {
        get(fd, reply, sizeof reply);
        cr_assert_eq(cdi_c10d_get_u64(reply), SIZE);
        cr_assert_eq(memcmp(reply + 8, value, SIZE), 0);
    }
    cdi_buf_release(&b);
    (void)close(fd);
    stop();
}

Test(server, port_and_address_errors_have_one_message_each)
{
    struct rdzv_server_options opt = {.run_id = "job", .views = &watch_views};
    struct rdzv_server *second;
    struct cdi_error err;
    uv_loop_t loop;

    start((struct rdzv_server_options){0});
    cr_assert_eq(uv_loop_init(&loop), 0);
    opt.port = host.port;
    cr_assert_eq(rdzv_server_start(&second, &loop, &opt, &err), CDDP_E_EXISTS);
    cr_assert_not_null(strstr(err.msg, "is in use by another program"));
    opt.port = 0;
    opt.host = "no.such.host.invalid";
    cr_assert_eq(rdzv_server_start(&second, &loop, &opt, &err), CDDP_E_NOT_FOUND);
    cr_assert_not_null(strstr(err.msg, "listening address 'no.such.host.invalid' does not resolve"));
    opt.host = "127.0.0.1:29400";
    opt.host_flag = "--bind";
    opt.port_flag = "--port";
    cr_assert_eq(rdzv_server_start(&second, &loop, &opt, &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "--bind '127.0.0.1:29400' is an address with a port; give --bind=127.0.0.1 and "
                              "--port=29400");
    opt.host = "192.0.2.1";
    cr_assert_eq(rdzv_server_start(&second, &loop, &opt, &err), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "is not an address of this node"));
    opt.host = NULL;
    opt.min_nodes = 3;
    cr_assert_eq(rdzv_server_start(&second, &loop, &opt, &err), CDDP_E_INVALID);
    cr_assert_eq(uv_loop_close(&loop), 0);
    stop();
}

Test(server, star_listens_on_both_families)
{
    int four, six;

    start((struct rdzv_server_options){.host = "*"});
    four = dial_store();
    six = dial_address("::1");
    if (six >= 0) { /* a node without IPv6 has only IPv4 */
        char text[13];

        put(six, "GET /healthz HTTP/1.0\r\n\r\n", 25);
        get(six, text, sizeof text);
        cr_assert_eq(memcmp(text, "HTTP/1.1 200 ", 13), 0);
        (void)close(six);
    }
    (void)close(four);
    stop();
}

Test(server, warns_if_ranks_exceed_descriptors)
{
    struct cdi_msg m = join_of("job", 0, 1);
    const int64_t end = cdi_now_ms() + READ_TIMEOUT_S * 1000;
    struct rlimit before, few;
    int agent;

    start((struct rdzv_server_options){0});
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 500;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    agent = dial();
    cr_assert_eq(greet(agent, CDI_HELLO_AGENT, "job", CDI_HELLO_CURRENT_ROUND, NULL, NULL), CDDP_OK);
    m.u.join.n_procs = 1000;
    tell(agent, m);
    (void)hear(agent, CDI_MSG_WELCOME);
    (void)hear(agent, CDI_MSG_ASSIGN);
    while (!logged("RDZV-FEW-FDS") && cdi_now_ms() < end) {
        (void)close(dial_store()); /* keeps the server busy until its next tick */
    }
    cr_assert(logged("each of its 1000 ranks and 1 nodes"));
    cr_assert(logged("the limit here is 500 open files"));
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    (void)close(agent);
    stop();
}

static const char pytorchs_opening[] = "\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04";

/* Connects as libcddp does; the rejection must contain this text. */
static void gets_rejection(int fd, const char *words)
{
    struct cdi_error err = {0};
    struct cdi_buf in;
    char byte;

    cdi_buf_init(&in, 0);
    put(fd, "\x00\xce\xf7\x85\x3c\x0d\x01\x02\xd0\xcd", 10);
    do {
        cr_assert_eq(recv(fd, &byte, 1, 0), 1);
        (void)cdi_buf_append(&in, &byte, 1);
    } while (cdi_hello_read_refusal(&in, &err) == CDDP_IN_PROGRESS);
    cr_assert_not_null(strstr(err.msg, words), "%s", err.msg);
    cdi_buf_release(&in);
}

Test(server, rejects_connections_without_descriptors)
{
    struct rlimit before, few;
    int store, more[8], last;
    int64_t begin;

    start((struct rdzv_server_options){0});
    store = dial_store();
    begin = cdi_now_ms();
    for (size_t i = 0; i < 8; i++)
        more[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* opened by the test before the limit */
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)more[7] + 1;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (size_t i = 0; i < 8; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(host.port)};
        struct timeval patience = {.tv_sec = READ_TIMEOUT_S};

        (void)inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
        (void)setsockopt(more[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        cr_assert_eq(connect(more[i], (struct sockaddr *)&a, sizeof a), 0);
        if (i % 2 == 0) {
            put(more[i], pytorchs_opening, 10);
        } else {
            gets_rejection(more[i], "open files on");
        }
        cr_assert(ends(more[i]), "it was closed");
        (void)shutdown(more[i], SHUT_WR);
    }
    cr_assert_lt(cdi_now_ms() - begin, cdi_within_ms(4000));
    ask(store, CDI_C10D_GET, "k", NULL);
    answers(store, "");
    cr_assert(logged("RDZV-NO-FDS"));
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < 8; i++)
        (void)close(more[i]);
    last = dial_store();
    (void)close(last), (void)close(store);
    stop();
}

Test(server, close_does_not_wait_for_idle_clients)
{
    int waiting, agent, silent;
    int64_t begin;

    start((struct rdzv_server_options){.min_nodes = 2, .max_nodes = 2});
    waiting = dial_store();
    ask(waiting, CDI_C10D_WAIT, "never", NULL);
    agent = dial_agent("job", -1, 2);
    (void)hear(agent, CDI_MSG_WELCOME);
    silent = dial();
    begin = cdi_now_ms();
    stop();
    cr_assert_lt(cdi_now_ms() - begin, cdi_within_ms(900));
    cr_assert(ends(waiting) && ends(agent) && ends(silent));
    (void)close(waiting), (void)close(agent), (void)close(silent);
}

/* -------------------------------------------------------------------------------------------- authentication ---- */

static const struct cdi_secret right = {.key = {1, 2, 3}}, wrong = {.key = {1, 2, 4}};

/* Returns how often a text is in the log. */
static int times_logged(const char *text)
{
    int n = 0;

    pthread_mutex_lock(&host.lock);
    for (const char *at = host.log; (at = strstr(at, text)) != NULL; at++)
        n++;
    pthread_mutex_unlock(&host.lock);
    return n;
}

/* An agent that continues without a proof. */
static void barge_in(const struct cdi_secret *secret)
{
    struct cdi_hello_client c;
    struct cdi_buf out;
    int fd = dial();

    cdi_buf_init(&out, 0);
    cr_assert_eq(cdi_hello_client_start(&c, CDI_HELLO_AGENT, "job", 0, secret, &out, NULL), CDDP_OK);
    put(fd, cdi_buf_data(&out), out.len);
    tell(fd, join_of("job", 1, 2));
    cr_assert(ends(fd));
    cdi_buf_release(&out);
    (void)close(fd);
}

Test(server, unauthenticated_peer_reads_and_changes_nothing)
{
    struct cdi_error err = {0};
    int a, b, fd, store;

    start((struct rdzv_server_options){
        .min_nodes = 2, .max_nodes = 2, .secret = &right, .plain_store = RDZV_ACCESS_NEVER});
    agents_secret = &right;
    a = dial_agent("job", 0, 2);
    (void)hear(a, CDI_MSG_WELCOME);

    for (int kind = CDI_HELLO_AGENT; kind <= CDI_HELLO_STORE; kind++) {
        for (int i = 0; i < 3; i++) {
            fd = dial();
            cr_assert_eq(greet(fd, (enum cdi_hello_kind)kind, "job", 0, &wrong, &err), CDDP_E_DENIED);
            cr_assert_not_null(strstr(err.msg, "auth token was not proved"), "%s", err.msg);
            cr_assert(ends(fd));
            (void)close(fd);
        }
        fd = dial();
        cr_assert_eq(greet(fd, (enum cdi_hello_kind)kind, "job", 0, NULL, &err), CDDP_E_DENIED);
        cr_assert_not_null(strstr(err.msg, "requires the job's auth token"), "%s", err.msg);
        (void)close(fd);
    }
    cr_assert_eq(times_logged("connection from 127.0.0.1:"), 1, "%s", host.log);
    cr_assert(logged("wrong proof of the job's auth token"));
    barge_in(&wrong);
    barge_in(NULL);
    fd = dial(); /* JOIN without HELLO */
    put(fd, CDI_CONTROL_OPENING, CDI_CONTROL_OPENING_LEN);
    tell(fd, join_of("job", 1, 2));
    cr_assert(ends(fd));
    (void)close(fd);
    fd = dial(); /* plain store, which is not allowed */
    put(fd, "\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04", 10);
    cr_assert(ends(fd));
    (void)close(fd);

    store = dial();
    cr_assert_eq(greet(store, CDI_HELLO_STORE, "job", 0, &right, &err), CDDP_OK, "%s", err.msg);
    put(store, "\x00\xce\xf7\x85\x3c", 5);
    ask(store, CDI_C10D_SET, "k", "v");
    ask(store, CDI_C10D_GET, "k", NULL);
    answers(store, "v");
    b = dial_agent("job", 1, 2);
    (void)hear(b, CDI_MSG_WELCOME);
    cr_assert_eq(hear(b, CDI_MSG_ASSIGN).u.assign.node_rank, 1, "no other node has joined");
    (void)hear(a, CDI_MSG_ASSIGN);
    (void)close(a), (void)close(b), (void)close(store);
    agents_secret = NULL;
    stop();
}

Test(server, checks_job_and_round_of_store_client)
{
    static const struct {
        const char *run_id;
        uint32_t round;
        const char *says;
    } cases[] = {{"other", 0, "no job 'other'"},
                 {"job", 1, "round 1 of the job, but the current round is 0"},
                 {"job", 0, NULL},
                 {"job", CDI_HELLO_CURRENT_ROUND, NULL}};
    struct cdi_error err = {0};

    start((struct rdzv_server_options){0});
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int fd = dial();
        cddp_status st = greet(fd, CDI_HELLO_STORE, cases[i].run_id, cases[i].round, NULL, &err);

        cr_assert_eq(st, cases[i].says == NULL ? CDDP_OK : CDDP_E_DENIED, "case %zu", i);
        cr_assert(cases[i].says == NULL || strstr(err.msg, cases[i].says) != NULL, "%s", err.msg);
        (void)close(fd);
    }
    stop();
}

/* Finds an address of this node other than loopback. Returns false if there is none. */
static bool own_address(char ip[INET_ADDRSTRLEN])
{
    struct ifaddrs *list, *i;
    bool found = false;

    if (getifaddrs(&list) != 0)
        return false;
    for (i = list; i != NULL && !found; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_LOOPBACK) != 0 ||
            (i->ifa_flags & IFF_UP) == 0)
            continue;
        found = inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr, ip, INET_ADDRSTRLEN) != NULL;
    }
    freeifaddrs(list);
    return found;
}

static bool plain_store_works(const char *ip)
{
    int fd = dial_address(ip);
    char pong[4];
    bool works;

    cr_assert_geq(fd, 0);
    put(fd, "\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04", 10);
    works = recv(fd, pong, 4, MSG_WAITALL) == 4;
    (void)close(fd);
    return works;
}

Test(server, plain_store_is_for_this_node_and_joined_nodes)
{
    char ip[INET_ADDRSTRLEN];
    struct cdi_error err = {0};
    int agent;

    if (!own_address(ip))
        cr_skip_test("this machine has no address but the loopback's");
    start((struct rdzv_server_options){.host = "*", .secret = &right});
    cr_assert(plain_store_works("127.0.0.1"));
    cr_assert(!plain_store_works(ip));
    cr_assert(logged("cannot prove the job's auth token (cddp-rendezvous has --plain_store)"));
    agent = dial_address(ip);
    cr_assert_eq(greet(agent, CDI_HELLO_AGENT, "job", 0, &right, &err), CDDP_OK, "%s", err.msg);
    tell(agent, join_of("job", 0, 1));
    (void)hear(agent, CDI_MSG_WELCOME);
    cr_assert(plain_store_works(ip));
    (void)close(agent);
    stop();
    start((struct rdzv_server_options){.host = "*", .secret = &right, .plain_store = RDZV_ACCESS_ANY});
    cr_assert(plain_store_works(ip));
    stop();
}

/* PyTorch's client shares the store with libcddp, whose keys open the data ports. */
Test(server, plain_store_client_has_no_access_to_keys_of_libcddp)
{
    struct cdi_error err = {0};
    int proved, plain;

    start((struct rdzv_server_options){.secret = &right});
    proved = dial();
    cr_assert_eq(greet(proved, CDI_HELLO_STORE, "job", 0, &right, &err), CDDP_OK, "%s", err.msg);
    put(proved, "\x00\xce\xf7\x85\x3c", 5);
    ask(proved, CDI_C10D_SET, "cddp/0/nodes", "token");
    ask(proved, CDI_C10D_GET, "cddp/0/nodes", NULL);
    answers(proved, "token");
    plain = dial_store();
    ask(plain, CDI_C10D_SET, "k", "v");
    ask(plain, CDI_C10D_GET, "k", NULL);
    answers(plain, "v");
    ask(plain, CDI_C10D_GET, "cddp/0/nodes", NULL);
    cr_assert(ends(plain));
    cr_assert(logged("GET of a key of libcddp (cddp/...) without a proof of the job's auth token"), "%s", host.log);
    (void)close(plain), (void)close(proved);
    stop();
    start((struct rdzv_server_options){0}); /* without an auth token there is nothing to prove */
    plain = dial_store();
    ask(plain, CDI_C10D_SET, "cddp/0/nodes", "token");
    ask(plain, CDI_C10D_GET, "cddp/0/nodes", NULL);
    answers(plain, "token");
    (void)close(plain);
    stop();
}

/* ---------------------------------------------------------------------------------------------- several jobs ---- */

/* Starts a job of one agent and returns its port. */
static int begin_job(const char *run_id, uint16_t *port)
{
    int fd = dial_agent(run_id, -1, 1);
    struct cdi_msg m;

    (void)hear(fd, CDI_MSG_WELCOME);
    m = hear(fd, CDI_MSG_ASSIGN);
    *port = (uint16_t)m.u.assign.master_port;
    cr_assert_str_eq(m.u.assign.master_addr, "", "the address to which the agent connected");
    return fd;
}

static int store_at(uint16_t port)
{
    int fd;

    dial_port = port;
    fd = dial_store();
    dial_port = 0;
    return fd;
}

static void end_job(int agent)
{
    tell(agent, (struct cdi_msg){.type = CDI_MSG_DONE});
    cr_assert_eq(hear(agent, CDI_MSG_CLOSED).u.closed.status, CDI_CLOSE_DONE);
}

Test(server, jobs_have_separate_ports_and_keys)
{
    struct cdi_error err = {0};
    uint16_t port[2];
    int agent[2], store[2], named, fd;
    struct cdi_msg m;

    start((struct rdzv_server_options){.max_jobs = 2});
    agent[0] = begin_job("red", &port[0]);
    agent[1] = begin_job("blue", &port[1]);
    cr_assert(port[0] != 0 && port[1] != 0 && port[0] != port[1] && port[0] != host.port && port[1] != host.port);
    for (int i = 0; i < 2; i++) {
        store[i] = store_at(port[i]);
        ask(store[i], CDI_C10D_SET, "k", i == 0 ? "red" : "blue");
    }
    for (int i = 0; i < 2; i++) {
        ask(store[i], CDI_C10D_GET, "k", NULL);
        answers(store[i], i == 0 ? "red" : "blue");
    }
    named = dial(); /* the shared port, with the name of the job */
    cr_assert_eq(greet(named, CDI_HELLO_STORE, "blue", 0, NULL, &err), CDDP_OK, "%s", err.msg);
    put(named, "\x00\xce\xf7\x85\x3c", 5);
    ask(named, CDI_C10D_GET, "k", NULL);
    answers(named, "blue");
    fd = dial();                            /* and without it */
    put(fd, "\x00\xce\xf7\x85\x3c\x07", 6); /* the reply depends on the first request */
    cr_assert(ends(fd));
    (void)close(fd);
    cr_assert(logged("plain store connection on the shared port"));
    fd = dial();
    cr_assert_eq(greet(fd, CDI_HELLO_STORE, "x\nforged", 0, NULL, &err), CDDP_E_DENIED);
    (void)close(fd);
    cr_assert(logged("no job 'x\\x0aforged'"));
    dial_port = port[0]; /* the name of another job at red's port */
    fd = dial();
    dial_port = 0;
    cr_assert_eq(greet(fd, CDI_HELLO_STORE, "blue", 0, NULL, &err), CDDP_E_DENIED);
    (void)close(fd);
    fd = dial_agent("green", -1, 1);
    m = hear(fd, CDI_MSG_CLOSED);
    cr_assert_not_null(strstr(m.u.closed.text, "already has 2 jobs, the limit of --max_jobs"));
    (void)close(fd);
    fd = dial_agent("blue", -1, 2); /* later agents must agree with the first one */
    m = hear(fd, CDI_MSG_CLOSED);
    cr_assert_not_null(strstr(m.u.closed.text, "--nnodes=2:2, but the job with 1:1"));
    (void)close(fd);

    end_job(agent[0]);
    cr_assert(ends(store[0]));
    ask(store[1], CDI_C10D_GET, "k", NULL);
    answers(store[1], "blue");
    (void)close(agent[0]), (void)close(store[0]);
    for (int64_t end = cdi_now_ms() + 5000; !logged("job 'red' has ended: all workers finished");) {
        cr_assert_lt(cdi_now_ms(), end);
        ask(store[1], CDI_C10D_GET, "k", NULL);
        answers(store[1], "blue");
    }
    agent[0] = begin_job("red", &port[0]); /* the name is free again, without state of the old job */
    store[0] = store_at(port[0]);
    ask(store[0], CDI_C10D_GET, "k", NULL);
    answers(store[0], "");
    end_job(agent[0]);
    end_job(agent[1]);
    for (int i = 0; i < 2; i++)
        (void)close(agent[i]), (void)close(store[i]);
    (void)close(named);
    stop();
}

Test(server, finished_job_ends_despite_its_clients)
{
    uint16_t port;
    int agent, fd;

    start((struct rdzv_server_options){.max_jobs = 1, .over_ms = 300});
    agent = begin_job("stays", &port);
    end_job(agent);
    cr_assert(ends(agent), "the wait for it is limited");
    (void)close(agent);
    job_restarts = 3;
    for (int64_t end = cdi_now_ms() + 5000;;) { /* max_jobs is 1: rejected until then */
        uint8_t head[6];

        agent = dial_agent("lost", -1, 1);
        get(agent, head, sizeof head);
        if (head[4] == CDI_MSG_WELCOME)
            break;
        (void)close(agent);
        cr_assert_lt(cdi_now_ms(), end);
    }
    fd = dial();
    (void)shutdown(agent, SHUT_WR); /* its agent is lost, and no other joins */
    for (int64_t end = cdi_now_ms() + 5000; !logged("job 'lost' has ended: node 0 (h, pid 0) was lost");) {
        cr_assert_lt(cdi_now_ms(), end);
        (void)poll(NULL, 0, 20);
    }
    (void)close(agent), (void)close(fd);
    stop();
}

/* An agent returns with this session to a job that no longer exists. */
static struct cdi_msg come_back(const char *run_id, const char *session)
{
    struct cdi_msg m = join_of(run_id, -1, 1);
    int fd = dial();

    (void)snprintf(m.u.join.session, sizeof m.u.join.session, "%s", session);
    cr_assert_eq(greet(fd, CDI_HELLO_AGENT, run_id, CDI_HELLO_CURRENT_ROUND, NULL, NULL), CDDP_OK);
    tell(fd, m);
    m = hear(fd, CDI_MSG_CLOSED);
    cr_assert_eq(m.u.closed.status, CDI_CLOSE_REFUSED);
    cr_assert(!m.u.closed.retry);
    (void)close(fd);
    return m;
}

static void await_log(const char *text)
{
    for (int64_t end = cdi_now_ms() + 5000; !logged(text);) {
        cr_assert_lt(cdi_now_ms(), end);
        (void)poll(NULL, 0, 20);
    }
}

Test(server, returning_agent_restarts_only_an_abandoned_job)
{
    struct cdi_msg over, lost, m;
    int agent;

    start((struct rdzv_server_options){.max_jobs = 2, .over_ms = 300});
    agent = dial_agent("over", -1, 1);
    over = hear(agent, CDI_MSG_WELCOME);
    (void)hear(agent, CDI_MSG_ASSIGN);
    end_job(agent);
    over.u.welcome.session[30] ^= 1; /* an unknown token, as after its lease has ended */
    m = come_back("over", over.u.welcome.session);
    cr_assert(m.u.closed.gone, "the job still exists");
    cr_assert_str_eq(m.u.closed.text, "job 'over' is over");
    (void)close(agent);
    await_log("job 'over' has ended");
    m = come_back("over", over.u.welcome.session);
    cr_assert(m.u.closed.gone);
    cr_assert_str_eq(m.u.closed.text, "job 'over' is over");

    job_restarts = 3;
    agent = dial_agent("lost", -1, 1);
    lost = hear(agent, CDI_MSG_WELCOME);
    (void)hear(agent, CDI_MSG_ASSIGN);
    (void)close(agent);
    await_log("job 'lost' has ended");
    m = come_back("lost", lost.u.welcome.session);
    cr_assert(!m.u.closed.gone);
    cr_assert_not_null(strstr(m.u.closed.text, "no longer has job 'lost'"));
    m = come_back("over", "of an older rendezvous");
    cr_assert(!m.u.closed.gone);
    stop();
}

Test(server, job_survives_rejected_first_agent)
{
    struct cdi_msg m = join_of("job", -1, 1);
    uint16_t port;
    int refused, agent, store;

    start((struct rdzv_server_options){.max_jobs = 1, .over_ms = 300});
    m.u.join.n_procs = 70000;
    refused = dial();
    cr_assert_eq(greet(refused, CDI_HELLO_AGENT, "job", CDI_HELLO_CURRENT_ROUND, NULL, NULL), CDDP_OK);
    tell(refused, m);
    cr_assert_not_null(strstr(hear(refused, CDI_MSG_CLOSED).u.closed.text, "has 70000 workers"));
    agent = begin_job("job", &port);
    store = store_at(port);
    for (int64_t end = cdi_now_ms() + 1000; cdi_now_ms() < end;) {
        ask(store, CDI_C10D_GET, "k", NULL);
        answers(store, "");
    }
    end_job(agent);
    (void)close(agent), (void)close(store), (void)close(refused);
    stop();
}

Test(server, rejects_job_without_free_port)
{
    struct cdi_msg m;
    uint16_t port;
    int agent, fd, taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof a;

    (void)inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    cr_assert_eq(bind(taken, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(listen(taken, 1), 0);
    cr_assert_eq(getsockname(taken, (struct sockaddr *)&a, &len), 0);
    port = ntohs(a.sin_port);
    start((struct rdzv_server_options){.max_jobs = 9, .first_job_port = port, .last_job_port = port});
    fd = dial_agent("job", -1, 1);
    m = hear(fd, CDI_MSG_CLOSED);
    cr_assert_not_null(strstr(m.u.closed.text, "all of --job_ports"), "%s", m.u.closed.text);
    (void)close(fd);
    fd = dial_agent("", -1, 1);
    cr_assert_not_null(strstr(hear(fd, CDI_MSG_CLOSED).u.closed.text, "name this one with --rdzv_id"));
    (void)close(fd);
    (void)close(taken);
    agent = dial_agent("job", -1, 1);
    (void)hear(agent, CDI_MSG_WELCOME);
    cr_assert_eq(hear(agent, CDI_MSG_ASSIGN).u.assign.master_port, port);
    (void)close(agent);
    stop();
}

Test(server, slow_request_closes_only_its_connection)
{
    int half, other;

    start((struct rdzv_server_options){.stall_ms = 300});
    half = dial_store();
    other = dial_store();
    put(half, "\x01\x02\0\0\0\0\0\0\0k", 10);
    while (!logged("timed out before completing its request")) {
        ask(other, CDI_C10D_GET, "none", NULL);
        answers(other, "");
    }
    cr_assert(ends(half));
    (void)close(half), (void)close(other);
    stop();
}

Test(server, limits_memory_of_incomplete_requests)
{
    static char value[1 << 20];
    struct cdi_buf b;
    int greedy, other;

    start((struct rdzv_server_options){.max_buffered = 512 << 10});
    other = dial_store();
    greedy = dial_store();
    cdi_buf_init(&b, 0);
    (void)cdi_c10d_put_op(&b, CDI_C10D_SET);
    (void)cdi_c10d_put_string(&b, "big", 3);
    (void)cdi_buf_put_u64(&b, 8 << 20);
    put(greedy, cdi_buf_data(&b), b.len);
    cdi_buf_release(&b);
    (void)send(greedy, value, sizeof value, MSG_NOSIGNAL); /* it may be closed before all bytes are sent */
    cr_assert(ends(greedy));
    cr_assert(logged("exceed the memory limit"));
    ask(other, CDI_C10D_GET, "big", NULL);
    answers(other, "");
    (void)close(greedy), (void)close(other);
    stop();
}

/* Each client reads one reply, and no more. The next reply follows by itself, without another read from the client. */
Test(server, limits_memory_of_replies_that_follow_without_a_read)
{
    static char value[7 << 20], reply[sizeof value];
    static const char gets[] = "\x03\x03\0\0\0\0\0\0\0big\x03\x03\0\0\0\0\0\0\0big\x03\x03\0\0\0\0\0\0\0big";
    int other, slow[8];

    start((struct rdzv_server_options){.max_buffered = 32 << 20});
    other = dial_store();
    (void)memset(value, 'x', sizeof value - 1);
    ask(other, CDI_C10D_SET, "big", value);
    for (size_t i = 0; i < 8; i++) {
        slow[i] = dial_store();
        put(slow[i], gets, sizeof gets - 1);
        (void)recv(slow[i], reply, sizeof reply, MSG_WAITALL); /* less if it was closed */
    }
    for (int64_t end = cdi_now_ms() + cdi_within_ms(2000); !logged("exceed the memory limit");)
        cr_assert_lt(cdi_now_ms(), end, "replies of 8 MiB wait for each of 8 clients");
    ask(other, CDI_C10D_GET, "none", NULL);
    answers(other, "");
    for (size_t i = 0; i < 8; i++)
        (void)close(slow[i]);
    (void)close(other);
    stop();
}

Test(server, rejects_connections_above_limit)
{
    struct cdi_error err = {0};
    int first, second, third;

    start((struct rdzv_server_options){.max_connections = 2, .max_flag = "--so_many"});
    first = dial_store();
    second = dial_store();
    third = dial();
    put(third, pytorchs_opening, 10);
    cr_assert(ends(third));
    (void)close(third);
    cr_assert(logged("all 2 connections that --so_many allows are open"));
    third = dial();
    gets_rejection(third, "that --so_many allows are open");
    (void)close(third);
    third = dial();
    cr_assert_eq(greet(third, CDI_HELLO_AGENT, "job", 0, NULL, &err), CDDP_E_LIMIT);
    cr_assert_not_null(strstr(err.msg, "that --so_many allows are open"), "%s", err.msg);
    (void)close(third);
    third = dial(); /* a client that sends nothing is closed, too */
    cr_assert(ends(third));
    (void)close(third);
    third = dial();
    put(third, "GET /healthz HTTP/1.1\r\n\r\n", 25);
    cr_assert(ends(third), "a monitor gets its page");
    (void)close(third);
    (void)close(second);
    for (int64_t end = cdi_now_ms() + 5000; cdi_now_ms() < end;) {
        char byte;

        third = dial();
        put(third, pytorchs_opening, 10);
        if (recv(third, &byte, 1, 0) == 1)
            break;
        (void)close(third);
        third = -1;
    }
    cr_assert_geq(third, 0, "the slot of the closed one is free");
    (void)close(first), (void)close(third);
    stop();
}

Test(server, ranks_retry_while_a_slot_may_become_free)
{
    int first, silent, third;
    char byte;

    start((struct rdzv_server_options){.max_connections = 2, .undecided_ms = 60000});
    first = dial_store();
    silent = dial();
    third = dial();
    put(third, "\x00\xce\xf7\x85\x3c\x0d\x01\x02\xd0\xcd", 10);
    cr_assert_eq(recv(third, &byte, 1, 0), 0, "closed without a reply, to try again");
    put(silent, pytorchs_opening, 10);
    cr_assert_eq(recv(silent, &byte, 1, 0), 1);
    (void)close(third);
    third = dial();
    gets_rejection(third, "all 2 connections that --max_connections allows");
    (void)close(first), (void)close(silent), (void)close(third);
    stop();
}

Test(server, request_sent_with_opening_has_full_time)
{
    char half[16] = "\x00\xce\xf7\x85\x3c\x01\x01\0\0\0\0\0\0\0";
    int64_t begin;
    int fd;

    start((struct rdzv_server_options){.stall_ms = 700});
    fd = dial();
    begin = cdi_now_ms();
    put(fd, half, sizeof half);
    cr_assert(ends(fd));
    cr_assert_geq(cdi_now_ms() - begin, 650);
    (void)close(fd);
    stop();
}

Test(server, limits_log_lines_of_drops)
{
    enum { FLOOD = 120 };

    start((struct rdzv_server_options){0});
    for (int i = 0; i < FLOOD; i++) {
        int fd = dial();

        put(fd, "garbage", 7);
        cr_assert(ends(fd));
        (void)close(fd);
    }
    cr_assert_leq(times_logged("RDZV-DROP "), FLOOD - 20, "%s", host.log);
    cr_assert_geq(times_logged("RDZV-DROP "), 50);
    for (int64_t end = cdi_now_ms() + 10000; !logged("RDZV-DROPS rendezvous: ");)
        cr_assert_lt(cdi_now_ms(), end);
    stop();
}

Test(server, auth_token_protects_pages_about_jobs)
{
    static const struct {
        enum rdzv_access access;
        const char *path, *status;
    } cases[] = {{RDZV_ACCESS_NEVER, "/status", "HTTP/1.1 403 "}, {RDZV_ACCESS_NEVER, "/metrics", "HTTP/1.1 403 "},
                 {RDZV_ACCESS_NEVER, "/", "HTTP/1.1 403 "},       {RDZV_ACCESS_NEVER, "/healthz", "HTTP/1.1 200 "},
                 {RDZV_ACCESS_AUTO, "/status", "HTTP/1.1 200 "}, /* this node */
                 {RDZV_ACCESS_ANY, "/metrics", "HTTP/1.1 200 "}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256], answer[13];
        int fd;

        start((struct rdzv_server_options){.secret = &right, .http = cases[i].access});
        fd = dial();
        (void)snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n\r\n", cases[i].path);
        put(fd, text, strlen(text));
        get(fd, answer, sizeof answer);
        cr_assert_eq(memcmp(answer, cases[i].status, sizeof answer), 0, "case %zu", i);
        cr_assert(ends(fd));
        (void)close(fd);
        stop();
    }
}
