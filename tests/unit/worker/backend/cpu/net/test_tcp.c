/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between nodes, and foreign connections. Collectives over TCP are tested in tests/conformance. */
#include "common/clock.h"
#include "common/tcp.h"
#include "hygiene.h"
#include "ranks.h"
#include "worker/backend/cpu/net/abort_fd.h"
#include "worker/backend/cpu/net/tcp.h"
#include "worker/backend/cpu/net/tcp_frame.h"
#include "worker/backend/cpu/net/tcp_listener.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

CDI_SUITE(tcp, .timeout = 240);

Test(tcp, headers_round_trip_and_limits_hold)
{
    static const struct {
        struct cdi_tcp_header h;
        cddp_status status;
    } cases[] = {
        {{CDI_TCP_IS_HELLO, 0, CDI_TCP_HELLO}, CDDP_OK},
        {{CDI_TCP_IS_HELLO, 0, CDI_TCP_HELLO - 1}, CDDP_E_PROTOCOL},
        {{CDI_TCP_IS_OP, 7, CDI_TCP_OP}, CDDP_OK},
        {{CDI_TCP_IS_DATA, 0xffffffff, CDI_TCP_PAYLOAD_MAX}, CDDP_OK},
        {{CDI_TCP_IS_DATA, 1, CDI_TCP_PAYLOAD_MAX + 1}, CDDP_E_PROTOCOL},
        {{CDI_TCP_IS_ABORT, 0, 3}, CDDP_E_PROTOCOL},
        {{CDI_TCP_IS_ABORT, 0, CDI_TCP_ABORT_MAX}, CDDP_E_PROTOCOL},
        {{CDI_TCP_IS_BYE, 0, 1}, CDDP_E_PROTOCOL},
        {{CDI_TCP_IS_ROUND, 0, CDI_TCP_OP + CDI_TCP_PAYLOAD_MAX}, CDDP_OK},
        {{CDI_TCP_IS_ROUND, 0, CDI_TCP_OP + CDI_TCP_PAYLOAD_MAX + 1}, CDDP_E_PROTOCOL},
        {{CDI_TCP_IS_ROUND, 0, CDI_TCP_OP - 1}, CDDP_E_PROTOCOL},
        {{CDI_TCP_IS_PROOF, 0, CDI_TCP_PROOF}, CDDP_OK},
        {{CDI_TCP_IS_PROOF, 0, CDI_TCP_PROOF + 1}, CDDP_E_PROTOCOL},
        {{(enum cdi_tcp_type)8, 0, 0}, CDDP_E_PROTOCOL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t wire[CDI_TCP_HEADER];
        struct cdi_tcp_header back;

        cdi_tcp_put_header(wire, &cases[i].h);
        cr_assert_eq(cdi_tcp_get_header(wire, &back, NULL), cases[i].status, "case %zu", i);
        if (cases[i].status == CDDP_OK)
            cr_assert(back.type == cases[i].h.type && back.seq == cases[i].h.seq && back.len == cases[i].h.len);
        wire[0] ^= 1;
        cr_assert_eq(cdi_tcp_get_header(wire, &back, NULL), CDDP_E_PROTOCOL, "another magic");
    }
}

/* Without the second option the first one would end a connection after a cut of 13 s in place of 15 minutes. */
Test(tcp, backoff_is_short_where_the_kernel_permits_it)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), most_ms = 0, give_up_ms = 0;
    socklen_t len = sizeof most_ms;
    bool has;

    cr_assert_geq(fd, 0);
    has = getsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &most_ms, &len) == 0;
    cdi_tcp_set_options(fd);
    if (has)
        cr_assert(getsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &most_ms, &len) == 0 && most_ms == CDI_TCP_BACKOFF_MS);
    cr_assert_eq(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &give_up_ms, &len), 0);
    cr_assert_eq(give_up_ms, has ? 924600 : 0);
    (void)close(fd);
}

Test(tcp, rejects_hello_of_another_byte_order_and_cleans_its_text)
{
    struct cdi_tcp_hello h = {.from = 3, .to = 7, .pid = 42, .channel = CDI_TCP_PAIR_CONTROL, .host = "node\x1b[1m"}, g;
    uint8_t wire[CDI_TCP_HELLO];

    memset(h.nonce, 9, sizeof h.nonce);
    cdi_tcp_put_hello(wire, &h);
    cr_assert_eq(cdi_tcp_get_hello(wire, &g, NULL), CDDP_OK);
    cr_assert(g.from == 3 && g.to == 7 && g.pid == 42 && g.channel == CDI_TCP_PAIR_CONTROL);
    cr_assert_str_eq(g.host, "node\\x1b[1m");
    wire[CDI_AUTH_NONCE] ^= 5;
    cr_assert_eq(cdi_tcp_get_hello(wire, &g, NULL), CDDP_E_PROTOCOL);
}

Test(tcp, abort_keeps_message_and_unknown_status_is_protocol_error)
{
    uint8_t wire[CDI_TCP_ABORT_MAX];
    struct cdi_error err;
    const struct cdi_error died = {.status = CDDP_E_PEER, .msg = "rank 3 died", .blamed = 4},
                           well = {.status = CDDP_OK, .msg = "all is well"};
    uint32_t len = cdi_tcp_put_abort(wire, &died);

    cr_assert_eq(cdi_tcp_get_abort(wire, len, &err), CDDP_E_PEER);
    cr_assert_str_eq(err.msg, "rank 3 died");
    cr_assert_eq(err.blamed, 4);
    len = cdi_tcp_put_abort(wire, &well);
    cr_assert_eq(cdi_tcp_get_abort(wire, len, &err), CDDP_E_PROTOCOL);
}

/* ----------------------------------------------------------------------------------------- foreign connections ---- */

/* Connects to rank 1, with a time limit for its answers. */
static int dial_rank_1(struct rank *r, int *fd)
{
    const struct cdi_oob oob = rank_oob(r);
    const struct timeval patience = {.tv_sec = 10};
    char text[512];
    struct cdi_address a;

    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    RANK_CHECK(cdi_oob_get_text(&oob, "addr/1", text, sizeof text, 10000, &r->err) == CDDP_OK);
    text[strcspn(text, " ")] = '\0';
    RANK_CHECK(cdi_address_parse(text, &a));
    RANK_CHECK(setsockopt(*fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    RANK_CHECK(connect(*fd, &a.u.any, a.len) == 0);
    return 0;
}

/* Sends other bytes than a hello, and waits until rank 1 closes the connection. */
static int send_junk(struct rank *r)
{
    uint8_t junk[CDI_TCP_HEADER + CDI_TCP_HELLO];
    int fd;

    memset(junk, 'x', sizeof junk);
    if (dial_rank_1(r, &fd) != 0)
        return 1;
    RANK_CHECK(send(fd, junk, sizeof junk, MSG_NOSIGNAL) == (ssize_t)sizeof junk);
    RANK_CHECK(recv(fd, junk, 1, 0) <= 0 && errno != EAGAIN, "a foreign connection got an answer");
    (void)close(fd);
    return 0;
}

/*
 * Says hello as rank 0. token: makes the proof in *proof with it; NULL: sends the *proof that is there. Returns in
 * *said whether rank 1 has admitted the connection.
 */
static int say_hello(struct rank *r, const struct cdi_secret *token, uint8_t proof[CDI_TCP_HEADER + CDI_TCP_PROOF],
                     bool *admitted)
{
    uint8_t bytes[CDI_TCP_HEADER + CDI_TCP_HELLO];
    const size_t proof_len = CDI_TCP_HEADER + CDI_TCP_PROOF;
    const struct cdi_tcp_hello h = {.to = 1, .channel = CDI_TCP_DATA, .host = "liar"};
    struct cdi_tcp_hello peer;
    struct cdi_tcp tcp = {.rank = 0};
    int fd;

    cdi_tcp_put_header(bytes, &(struct cdi_tcp_header){.type = CDI_TCP_IS_HELLO, .len = CDI_TCP_HELLO});
    cdi_tcp_put_hello(bytes + CDI_TCP_HEADER, &h);
    if (dial_rank_1(r, &fd) != 0)
        return 1;
    RANK_CHECK(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) == (ssize_t)sizeof bytes);
    RANK_CHECK(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == (ssize_t)sizeof bytes);
    RANK_CHECK(cdi_tcp_get_hello(bytes + CDI_TCP_HEADER, &peer, NULL) == CDDP_OK && peer.from == 1);
    if (token != NULL) {
        tcp.token = *token;
        cdi_tcp_make_proof(&tcp, CDI_AUTH_CLIENT, &h, peer.nonce, proof);
    }
    RANK_CHECK(send(fd, proof, proof_len, MSG_NOSIGNAL) == (ssize_t)proof_len);
    errno = 0;
    *admitted = recv(fd, bytes, proof_len, MSG_WAITALL) == (ssize_t)proof_len;
    RANK_CHECK(errno != EAGAIN, "neither admitted nor closed");
    tcp.token = token != NULL ? *token : tcp.token;
    RANK_CHECK(!*admitted || token == NULL || cdi_tcp_check_proof(&tcp, CDI_AUTH_SERVER, &h, peer.nonce, bytes));
    (void)close(fd);
    return 0;
}

/* Reads the token of the communicator, as its ranks do. */
static int read_token(struct rank *r, struct cdi_secret *token)
{
    const struct cdi_oob oob = rank_oob(r);
    char text[512];

    RANK_CHECK(cdi_oob_get_text(&oob, "nodes", text, sizeof text, 10000, &r->err) == CDDP_OK);
    for (size_t i = 0; i < sizeof token->key; i++) {
        unsigned v;

        RANK_CHECK(sscanf(text + 2 * i, "%2x", &v) == 1);
        token->key[i] = (uint8_t)v;
    }
    return 0;
}

/* Rank 0 gets the address of rank 1 after the foreign connections. */
static cddp_status get_late(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                            struct cdi_error *err)
{
    struct rank *r = arg;
    const struct cdi_oob oob = rank_oob(r);

    while (strcmp(name, "addr/1") == 0 && atomic_load(&r->board->flag[0]) == 0)
        (void)usleep(1000);
    return oob.get(oob.arg, name, buf, cap, len, timeout_ms, err);
}

static cddp_status set_late(void *arg, const char *name, const void *value, size_t len, struct cdi_error *err)
{
    const struct cdi_oob oob = rank_oob(arg);

    return oob.set(oob.arg, name, value, len, err);
}

static int connect_foreign(struct rank *r)
{
    static const struct cdi_secret wrong = {.key = {1}};
    uint8_t proof[CDI_TCP_HEADER + CDI_TCP_PROOF] = {0};
    struct cdi_secret token;
    bool admitted;

    if (send_junk(r) != 0 || read_token(r, &token) != 0)
        return 1;
    RANK_CHECK(say_hello(r, NULL, proof, &admitted) == 0 && !admitted, "without a proof");
    RANK_CHECK(say_hello(r, &wrong, proof, &admitted) == 0 && !admitted, "another token");
    RANK_CHECK(say_hello(r, &token, proof, &admitted) == 0 && admitted); /* recorded; the connection then ends */
    RANK_CHECK(say_hello(r, NULL, proof, &admitted) == 0 && !admitted, "a replayed proof");
    atomic_store(&r->board->flag[0], 1);
    return 0;
}

static int with_foreign_connections(struct rank *r)
{
    static const struct cdi_coll barrier = {.kind = CDI_BARRIER, .bucket = -1, .lazy = true};
    const struct cdi_oob late = {.set = set_late, .get = get_late, .arg = r};

    if (r->rank == 2)
        return connect_foreign(r);
    r->world.size = r->world.n_nodes = r->size = 2;
    if (r->rank == 0) {
        r->world.keys = late;
        RANK_CHECK(cdi_cpu_create_at(&r->b, &r->world, NULL, NULL, NULL, &r->err) == CDDP_OK);
    } else {
        RANK_CHECK(rank_open(r) == CDDP_OK);
    }
    return rank_do(r, &barrier) != CDDP_OK;
}

Test(tcp, rejects_foreign_connections_without_harm)
{
    const struct ranks_layout l = {.node_size = {1, 1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, with_foreign_connections, NULL, NULL), 0);
}

/* Rank 0 tries the port of another program first. */
static cddp_status get_with_impostor(void *arg, const char *name, void *buf, size_t cap, size_t *len,
                                     int64_t timeout_ms, struct cdi_error *err)
{
    struct rank *r = arg;
    const struct cdi_oob oob = rank_oob(r);
    char text[512], both[1024];
    cddp_status st = oob.get(oob.arg, name, buf, cap, len, timeout_ms, err);

    if (st != CDDP_OK || strcmp(name, "addr/1") != 0)
        return st;
    st = cdi_oob_get_text(&oob, "impostor", text, sizeof text, 10000, err);
    *len = (size_t)snprintf(both, sizeof both, "%s %.*s", text, (int)*len, (const char *)buf);
    memcpy(buf, both, *len);
    return st;
}

/* Answers as rank 1 would, and sends the proof of rank 0 back to it. */
static int pretend_to_be_rank_1(struct rank *r)
{
    const struct cdi_oob oob = rank_oob(r);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;
    uint8_t bytes[CDI_TCP_HEADER + CDI_TCP_HELLO];
    const size_t proof_len = CDI_TCP_HEADER + CDI_TCP_PROOF;
    struct cdi_tcp_hello h;
    char text[64];

    RANK_CHECK(bind(listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(listener, 8) == 0);
    RANK_CHECK(getsockname(listener, (struct sockaddr *)&a, &len) == 0);
    (void)snprintf(text, sizeof text, "127.0.0.1:%d", ntohs(a.sin_port));
    RANK_CHECK(cdi_oob_set_text(&oob, "impostor", text, &r->err) == CDDP_OK);
    fd = accept(listener, NULL, NULL);
    RANK_CHECK(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == (ssize_t)sizeof bytes);
    RANK_CHECK(cdi_tcp_get_hello(bytes + CDI_TCP_HEADER, &h, NULL) == CDDP_OK && h.from == 0 && h.to == 1);
    h.from = 1;
    h.to = 0;
    cdi_tcp_put_hello(bytes + CDI_TCP_HEADER, &h);
    RANK_CHECK(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) == (ssize_t)sizeof bytes);
    RANK_CHECK(recv(fd, bytes, proof_len, MSG_WAITALL) == (ssize_t)proof_len);
    RANK_CHECK(send(fd, bytes, proof_len, MSG_NOSIGNAL) == (ssize_t)proof_len);
    RANK_CHECK(recv(fd, bytes, 1, 0) <= 0);
    (void)close(fd);
    RANK_CHECK(fcntl(listener, F_SETFL, O_NONBLOCK) == 0);
    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) { /* rank 0 may have tried again */
        RANK_CHECK(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == (ssize_t)sizeof bytes);
        RANK_CHECK(cdi_tcp_get_hello(bytes + CDI_TCP_HEADER, &h, NULL) == CDDP_OK);
        RANK_CHECK(h.channel == CDI_TCP_DATA, "rank 0 goes on with an impostor");
        (void)close(fd);
    }
    (void)close(listener);
    return 0;
}

static int with_impostor(struct rank *r)
{
    const struct cdi_oob both = {.set = set_late, .get = get_with_impostor, .arg = r};

    if (r->rank == 2)
        return pretend_to_be_rank_1(r);
    r->world.size = r->world.n_nodes = r->size = 2;
    r->world.keys = r->rank == 0 ? both : rank_oob(r);
    RANK_CHECK(cdi_cpu_create_at(&r->b, &r->world, NULL, NULL, NULL, &r->err) == CDDP_OK);
    rank_close(r);
    return 0;
}

Test(tcp, rank_that_connects_rejects_an_impostor)
{
    const struct ranks_layout l = {.node_size = {1, 1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, with_impostor, NULL, NULL), 0);
}

/* The store is slow: each request of rank 1 takes a while, and rank 1 makes one after another. */
static cddp_status slow_get(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                            struct cdi_error *err)
{
    struct rank *r = arg;
    const struct cdi_oob oob = rank_oob(r);

    (void)usleep(300000);
    atomic_fetch_add(&r->board->flag[2], strcmp(name, "broken") == 0);
    return oob.get(oob.arg, name, buf, cap, len, timeout_ms, err);
}

/* Silent connections, until the ranks are connected: at first more than a listen queue holds. */
static int connect_silently(struct rank *r)
{
    const struct cdi_oob oob = rank_oob(r);
    int fd[200], n = 0;
    char text[512];
    struct cdi_address a;

    RANK_CHECK(cdi_oob_get_text(&oob, "addr/1", text, sizeof text, 10000, &r->err) == CDDP_OK);
    text[strcspn(text, " ")] = '\0';
    RANK_CHECK(cdi_address_parse(text, &a));
    for (int i = 0; i < 200; i++)
        fd[i] = -1;
    for (; atomic_load(&r->board->flag[1]) < 2; n++) {
        int *one = &fd[n % 200];

        if (*one >= 0)
            (void)close(*one);
        *one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(*one, &a.u.any, a.len);
        if (n >= 100 &&
            atomic_load(&r->board->flag[2]) >= 2) /* the connections are open, and rank 1 waits for rank 0 */
            atomic_store(&r->board->flag[0], 1);
        if (n >= 100)
            (void)usleep(10000);
    }
    for (int i = 0; i < 200; i++)
        if (fd[i] >= 0)
            (void)close(fd[i]);
    return 0;
}

/* Rank 0 gets only the address with the silent connections. */
static cddp_status get_one_address(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                                   struct cdi_error *err)
{
    cddp_status st = get_late(arg, name, buf, cap, len, timeout_ms, err);

    if (st == CDDP_OK && strcmp(name, "addr/1") == 0) {
        const char *end = memchr(buf, ' ', *len);

        *len = end != NULL ? (size_t)(end - (const char *)buf) : *len;
    }
    return st;
}

static int with_silent_connections(struct rank *r)
{
    const struct cdi_oob late = {.set = set_late, .get = get_one_address, .arg = r};
    const struct cdi_oob slow = {.set = set_late, .get = slow_get, .arg = r};
    struct cdi_address loopback;
    cddp_status st;

    if (r->rank == 2)
        return connect_silently(r);
    (void)cdi_address_parse("127.0.0.1:1", &loopback);
    r->world.size = r->world.n_nodes = r->size = 2;
    r->world.keys = r->rank == 0 ? late : slow;
    st = cdi_cpu_create_at(&r->b, &r->world, NULL, &loopback, NULL, &r->err);
    atomic_fetch_add(&r->board->flag[1], 1);
    RANK_CHECK(st == CDDP_OK);
    return 0;
}

Test(tcp, foreign_connections_do_not_block_a_rank_with_a_slow_store)
{
    const struct ranks_layout l = {.node_size = {1, 1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, with_silent_connections, NULL, NULL), 0);
}

static void accept_from_host(struct cdi_listener *d, const char *host, int64_t when_ms)
{
    struct cdi_pending_conn *s = &d->pending[cdi_listener_slot(d)];

    *s = (struct cdi_pending_conn){.fd = 1, .until_ms = when_ms};
    cr_assert(cdi_address_parse(host, &s->from));
}

Test(tcp, foreign_connection_replaces_only_those_of_its_host)
{
    static struct cdi_listener d;
    int left = 0;

    for (int i = 0; i < CDI_TCP_PENDING; i++)
        d.pending[i].fd = -1;
    accept_from_host(&d, "[fd00::1]:1", 0);
    accept_from_host(&d, "10.0.0.1:1", 1);
    accept_from_host(&d, "10.0.0.1:2", 2);
    accept_from_host(&d, "10.0.0.2:1", 0);
    for (int i = 0; i < CDI_TCP_PENDING; i++)
        d.pending[i].challenged = d.pending[i].fd >= 0 && d.pending[i].until_ms == 0; /* one of each */
    for (int i = 0; i < 10 * CDI_TCP_PENDING; i++)
        accept_from_host(&d, "10.0.0.2:1", 3 + i);
    for (int i = 0; i < CDI_TCP_PENDING; i++) {
        left += d.pending[i].until_ms < 3;
        cr_assert(d.pending[i].until_ms < 3 || d.pending[i].until_ms > 8 * CDI_TCP_PENDING, "the oldest goes");
    }
    cr_assert_eq(left, 4, "those of other hosts, and the one that has said hello");
}

/* The host of the store dies after rank 1 has read the list of nodes. */
static cddp_status get_until_host_dies(void *arg, const char *name, void *buf, size_t cap, size_t *len,
                                       int64_t timeout_ms, struct cdi_error *err)
{
    struct rank *r = arg;
    const struct cdi_oob oob = rank_oob(r);

    if (strcmp(name, "broken") == 0)
        return cdi_fail_by(err, 0, CDDP_E_PEER, "rank 0, which hosts the store, has died");
    return oob.get(oob.arg, name, buf, cap, len, timeout_ms, err);
}

/* Rank 0 does not connect before rank 1 has given up. */
static int without_store(struct rank *r)
{
    const struct cdi_oob late = {.set = set_late, .get = get_late, .arg = r};
    const struct cdi_oob dead = {.set = set_late, .get = get_until_host_dies, .arg = r};
    cddp_status st;

    r->world.init_timeout_ms = 50000;
    r->world.keys = r->rank == 0 ? late : dead;
    st = cdi_cpu_create_at(&r->b, &r->world, NULL, NULL, NULL, &r->err);
    atomic_store(&r->board->flag[0], 1);
    RANK_CHECK(st == CDDP_E_PEER && strcmp(r->err.msg, "rank 0, which hosts the store, has died") == 0);
    return 0;
}

Test(tcp, rank_that_waits_for_a_connection_notices_the_end_of_the_store)
{
    const struct ranks_layout l = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, without_store, NULL, NULL), 0);
}

static int never_connects(struct rank *r)
{
    r->world.init_timeout_ms = 2000;
    if (r->rank == 1)
        return 0;
    RANK_CHECK(rank_open(r) == CDDP_E_TIMEOUT);
    RANK_CHECK(strstr(r->err.msg, "node 1 did not connect within ") != NULL);
    return 0;
}

Test(tcp, names_missing_node_on_all_others)
{
    const struct ranks_layout l = {.node_size = {1, 1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, never_connects, NULL, NULL), 0);
}

/* Nodes out of order. */
static int wrong_order(struct rank *r)
{
    r->world.node_rank = 1 - r->rank;
    RANK_CHECK(rank_open(r) == CDDP_E_INVALID);
    RANK_CHECK(strstr(r->err.msg, "ranks must be in the order of the nodes") != NULL);
    return 0;
}

Test(tcp, rejects_ranks_out_of_node_order)
{
    const struct ranks_layout l = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, wrong_order, NULL, NULL), 0);
}

/* ---------------------------------------------------------------------------------------------------- abort fd ---- */

/* A segment with one rank, and a flight page without an agent. */
static void make_wait(struct cdi_wait *w, struct cdi_shm **shm, struct cdi_flight **flight)
{
    static const struct cdi_mapper plain = {.map = NULL};
    void *mem;
    int fd;

    cr_assert_eq(cdi_shm_memfd("test", cdi_shm_bytes(1, false), true, &fd, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_create(shm, 0, 1, 0, false, NULL, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_map(&plain, fd, cdi_shm_bytes(1, false), &mem, NULL), CDDP_OK);
    cdi_shm_format(*shm, mem);
    cr_assert_eq(cdi_flight_attach(flight, NULL, NULL), CDDP_OK);
    cdi_wait_init(w, *shm, *flight, 1000);
    (void)close(fd);
}

static bool is_readable(const struct cdi_abort_fd *a, int within_ms)
{
    struct pollfd p = {.fd = a->fd, .events = POLLIN};

    return poll(&p, 1, within_ms) == 1;
}

/* Starts an abort fd, calls `what`, and checks whether it becomes readable and stays so. */
static void ring(void (*what)(struct cdi_wait *w), bool must)
{
    struct cdi_flight *flight;
    struct cdi_abort_fd a;
    struct cdi_wait wait;
    struct cdi_shm *shm;

    make_wait(&wait, &shm, &flight);
    cdi_abort_fd_start(&a, &wait);
    if (a.fd >= 0) { /* otherwise this kernel has no futex_waitv */
        cr_assert_not(is_readable(&a, 0));
        what(&wait);
        cr_assert_eq(is_readable(&a, must ? 10000 : 50), must);
        cr_assert_eq(is_readable(&a, 0), must);
    }
    cdi_abort_fd_stop(&a);
    cdi_abort_fd_stop(&a);
    cr_assert_eq(a.fd, -1);
    cdi_shm_destroy(shm);
    cdi_flight_release(flight);
}

static void a_rank_dies(struct cdi_wait *w)
{
    cdi_flight_tell_death(w->flight, 3, "rank 3 died");
}

static void the_round_ends(struct cdi_wait *w)
{
    cdi_flight_tell_round_over(w->flight);
}

static void a_peer_gives_up(struct cdi_wait *w)
{
    const struct cdi_error enough = {.status = CDDP_E_ABORTED, .msg = "enough"};

    cdi_shm_abort(w->shm, &enough);
}

static void a_stop_is_wanted(struct cdi_wait *w)
{
    cdi_flight_tell_stop_wanted(w->flight);
}

/* Other wake-ups must not make it sleep forever. */
static void a_stop_is_wanted_and_then_a_rank_dies(struct cdi_wait *w)
{
    a_stop_is_wanted(w);
    (void)poll(NULL, 0, 50);
    a_rank_dies(w);
}

/* A rank died after it had begun an abort, before it woke any other; then another rank aborts. */
static void the_first_to_give_up_dies_of_it(struct cdi_wait *w)
{
    (void)poll(NULL, 0, 50); /* now the thread sleeps; otherwise the fd becomes readable anyway */
    atomic_store(cdi_shm_abort_word(w->shm), 1);
    a_peer_gives_up(w);
}

Test(tcp, abort_fd_is_readable_only_after_an_end_of_all_waits)
{
    ring(the_first_to_give_up_dies_of_it, true);
    ring(a_rank_dies, true);
    ring(the_round_ends, true);
    ring(a_peer_gives_up, true);
    ring(a_stop_is_wanted, false);
    ring(a_stop_is_wanted_and_then_a_rank_dies, true);
    for (int i = 0; i < 50; i++)
        ring(the_round_ends, true);
}

/* ---------------------------------------------------------------------------------- failures on another node ---- */

#define DEAF_MS 20000 /* the timeout, which must not end the wait */
#define SOON_MS 10000 /* on a busy machine */

/* Waits until rank `of` waits in the operation that it has begun. */
static void begin_to_wait(struct rank *r, int of)
{
    while (atomic_load(&r->board->flag[of]) == 0)
        (void)usleep(1000);
    (void)usleep(200000); /* so that it sleeps; an earlier event must end the wait, too */
}

/* The last rank aborts, rank 0 is in `op`, and all others compute. */
static int abort_far_away(struct rank *r)
{
    const struct cdi_coll *op = r->arg;
    int64_t t0 = cdi_now_ms();
    cddp_status st;

    r->world.timeout_ms = DEAF_MS;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == r->size - 1) {
        begin_to_wait(r, 0);
        r->ops->abort(r->b, &(struct cdi_error){.status = CDDP_E_ABORTED, .msg = "the last rank aborted the job"});
    }
    if (r->rank != 0) { /* computes until rank 0 has noticed it */
        while (atomic_load(&r->board->flag[1]) == 0)
            (void)usleep(1000);
        return 0;
    }
    atomic_store(&r->board->flag[0], 1);
    st = rank_do(r, op);
    atomic_store(&r->board->flag[1], 1);
    RANK_CHECK(st == CDDP_E_ABORTED, "status %d", (int)st);
    RANK_CHECK(strcmp(r->err.msg, "the last rank aborted the job") == 0);
    RANK_CHECK(cdi_now_ms() - t0 < SOON_MS);
    return 0;
}

static float number;
static const struct cdi_coll from_rank_1 = {
    .kind = CDI_RECV, .out = &number, .count = 1, .dtype = CDDP_FLOAT32, .root = 1, .bucket = -1, .lazy = true};
static const struct cdi_coll sum_of_all = {.kind = CDI_ALL_REDUCE,
                                           .in = &number,
                                           .out = &number,
                                           .count = 1,
                                           .dtype = CDDP_FLOAT32,
                                           .bucket = -1,
                                           .lazy = true};

Test(tcp, wait_within_node_ends_with_abort_on_another_node)
{
    const struct ranks_layout l = {.node_size = {2, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, abort_far_away, &from_rank_1, NULL), 0);
    cr_assert_eq(ranks_fork_on(&l, 60, abort_far_away, &sum_of_all, NULL), 0);
}

/* Rank 2 has no link to rank 0: rank 1, which computes, has to pass the abort on. */
Test(tcp, abort_passes_computing_node)
{
    const struct ranks_layout l = {.node_size = {1, 1, 1}}, two_by_two = {.node_size = {2, 2, 2}};

    cr_assert_eq(ranks_fork_on(&l, 60, abort_far_away, &from_rank_1, NULL), 0, "waiting for a connection");
    cr_assert_eq(ranks_fork_on(&l, 60, abort_far_away, &sum_of_all, NULL), 0, "waiting for the neighbour");
    cr_assert_eq(ranks_fork_on(&two_by_two, 60, abort_far_away, &from_rank_1, NULL), 0);
}

/* The last rank dies, and there is no agent to report it. */
static int die_far_away(struct rank *r)
{
    int64_t t0 = cdi_now_ms();
    cddp_status st;

    r->world.timeout_ms = DEAF_MS;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == r->size - 1) {
        begin_to_wait(r, 0);
        (void)raise(SIGKILL);
    }
    if (r->rank != 0) {
        while (atomic_load(&r->board->flag[1]) == 0)
            (void)usleep(1000);
        return 0;
    }
    atomic_store(&r->board->flag[0], 1);
    st = rank_do(r, &from_rank_1);
    atomic_store(&r->board->flag[1], 1);
    RANK_CHECK(st == CDDP_E_PEER, "status %d", (int)st);
    RANK_CHECK(strstr(r->err.msg, "rank 2 (pid ") != NULL && strstr(r->err.msg, ") died") != NULL);
    RANK_CHECK(cdi_now_ms() - t0 < SOON_MS);
    return 0;
}

Test(tcp, wait_within_node_ends_with_death_on_another_node)
{
    const struct ranks_layout l = {.node_size = {2, 1}}, chain = {.node_size = {1, 1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, die_far_away, NULL, NULL), 1, "only the one that was killed");
    cr_assert_eq(ranks_fork_on(&chain, 60, die_far_away, NULL, NULL), 1);
}

/* A rank exits after its last operation without cddp_finalize; the others continue for a while. */
static int leave_early(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &sum_of_all) == CDDP_OK);
    if (r->rank == r->size - 1)
        _exit(0);
    (void)usleep(20000);
    rank_close(r);
    return 0;
}

Test(tcp, rank_may_end_after_last_operation)
{
    const struct ranks_layout l = {.node_size = {2, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, leave_early, NULL, NULL), 0);
}

/* ------------------------------------------------------------------------------------------- late receivers ---- */

/* The rank of the other node leaves before the first message, so the two have no link for it. */
static int alone_after_goodbye(struct rank *r)
{
    int waits = *(const int *)r->arg, other = 1 - waits;
    float got = 0;
    const struct cdi_coll op = {.kind = r->rank == 0 ? CDI_SEND : CDI_RECV,
                                .in = &number,
                                .out = &got,
                                .count = 1,
                                .dtype = CDDP_FLOAT32,
                                .root = other,
                                .bucket = -1,
                                .lazy = true};
    char want[64];

    r->world.timeout_ms = 50000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == other) {
        rank_close(r);
        return 0;
    }
    (void)snprintf(want, sizeof want, "rank %d has left the job", other);
    RANK_CHECK(rank_do(r, &op) == CDDP_E_PEER && strstr(r->err.msg, want) != NULL, "want %s", want);
    return 0;
}

Test(tcp, message_does_not_wait_for_a_rank_that_has_left)
{
    const struct ranks_layout l = {.node_size = {1, 1}};

    for (int waits = 0; waits < 2; waits++)
        cr_assert_eq(ranks_fork_on(&l, 60, alone_after_goodbye, &waits, NULL), 0);
}

/* The rank of the other node computes: neither the rank nor the network has failed. */
static int alone_with_a_message(struct rank *r)
{
    int waits = *(const int *)r->arg, other = 1 - waits;
    const struct cdi_coll op = {
        .kind = CDI_SEND, .in = &number, .count = 1, .dtype = CDDP_FLOAT32, .root = other, .bucket = -1, .lazy = true};
    char want[64];

    r->world.timeout_ms = 2000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == waits) {
        cddp_status st = rank_do(r, &op);

        atomic_store(&r->board->flag[0], 1);
        (void)snprintf(want, sizeof want, "rank %d did not arrive within 2 s", other);
        RANK_CHECK(st == CDDP_E_TIMEOUT && strstr(r->err.msg, want) != NULL, "want %s", want);
        RANK_CHECK(strstr(r->err.msg, "wrong network") == NULL);
        return 0;
    }
    while (atomic_load(&r->board->flag[0]) == 0)
        (void)usleep(1000);
    return 0;
}

Test(tcp, missing_receiver_is_not_reported_as_broken_network)
{
    static const struct ranks_layout l = {.node_size = {1, 1}};
    static const int lower = 0, higher = 1;

    cr_assert_eq(ranks_fork_on(&l, 60, alone_with_a_message, &lower, NULL), 0);
    cr_assert_eq(ranks_fork_on(&l, 60, alone_with_a_message, &higher, NULL), 0);
}

/* One rank may not open another file; the other one sends to it, or receives. */
static int alone_with_few_files(struct rank *r)
{
    int limited = *(const int *)r->arg, other = 1 - r->rank;
    const struct cdi_coll op = {.kind = r->rank == 0 ? CDI_SEND : CDI_RECV,
                                .in = &number,
                                .out = &number,
                                .count = 1,
                                .dtype = CDDP_FLOAT32,
                                .root = other,
                                .bucket = -1,
                                .lazy = true};
    struct rlimit files;
    cddp_status st;
    int next;

    r->world.timeout_ms = 40000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == limited) {
        RANK_CHECK((next = dup(0)) >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &files) == 0);
        files.rlim_cur = (rlim_t)next;
        RANK_CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    }
    st = rank_do(r, &op);
    RANK_CHECK(strstr(r->err.msg, "raise the limit of open files") != NULL, "%s", r->err.msg);
    RANK_CHECK(st == CDDP_E_SYSTEM, "%d", (int)st);
    return 0;
}

Test(tcp, few_open_files_are_named)
{
    static const struct ranks_layout l = {.node_size = {1, 1}};

    for (int limited = 0; limited < 2; limited++)
        cr_assert_eq(ranks_fork_on(&l, 60, alone_with_few_files, &limited, NULL), 0);
}

/* Called in place of the first clock read after `due_ms`. */
static void (*_Atomic when_due)(void);
static _Atomic int64_t due_ms;

int clock_gettime(clockid_t id, struct timespec *now)
{
    static _Atomic(int (*)(clockid_t, struct timespec *)) real;
    void (*due)(void);
    int rc;

    if (atomic_load(&real) == NULL)
        atomic_store(&real, (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"));
    rc = atomic_load(&real)(id, now);
    if (id == CLOCK_MONOTONIC && atomic_load(&when_due) != NULL &&
        (int64_t)now->tv_sec * 1000 + now->tv_nsec / 1000000 >= atomic_load(&due_ms)) {
        due = atomic_exchange(&when_due, NULL);
        if (due != NULL)
            due();
    }
    return rc;
}

static struct ranks_board *last_moment;

/* Rank 1 sends, and the message arrives, while rank 0 reads the clock. */
static void let_rank_1_send(void)
{
    atomic_store(&last_moment->flag[0], 1);
    while (atomic_load(&last_moment->flag[1]) == 0)
        (void)usleep(1000);
}

static int come_while_the_clock_is_read(struct rank *r)
{
    const struct cdi_coll to_rank_0 = {
        .kind = CDI_SEND, .in = &number, .count = 1, .dtype = CDDP_FLOAT32, .bucket = -1, .lazy = true};

    r->world.timeout_ms = 2000;
    last_moment = r->board;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, r->rank == 0 ? &from_rank_1 : &to_rank_0) == CDDP_OK); /* they are connected */
    if (r->rank == 0) {
        atomic_store(&due_ms, cdi_now_ms() + r->world.timeout_ms + CDI_TCP_SLACK_OP_MS);
        atomic_store(&when_due, let_rank_1_send);
        RANK_CHECK(rank_do(r, &from_rank_1) == CDDP_OK);
        return 0;
    }
    while (atomic_load(&r->board->flag[0]) == 0)
        (void)usleep(1000);
    RANK_CHECK(rank_do(r, &to_rank_0) == CDDP_OK);
    atomic_store(&r->board->flag[1], 1);
    return 0;
}

Test(tcp, message_that_arrives_during_clock_read_is_in_time)
{
    static const struct ranks_layout l = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, come_while_the_clock_is_read, NULL, NULL), 0);
}

/* A rank that arrives after the other one timed out gets its error, and does not try to connect. */
static int come_too_late(struct rank *r)
{
    const struct cdi_coll op = {.kind = r->rank == 0 ? CDI_SEND : CDI_RECV,
                                .in = &number,
                                .out = &number,
                                .count = 1,
                                .dtype = CDDP_FLOAT32,
                                .root = 1 - r->rank,
                                .bucket = -1,
                                .lazy = true};
    int64_t t0;
    cddp_status st;

    r->world.timeout_ms = r->rank == 1 ? 2000 : DEAF_MS;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    while (r->rank == 0 && atomic_load(&r->board->flag[0]) == 0)
        (void)usleep(1000);
    t0 = cdi_now_ms();
    st = rank_do(r, &op);
    RANK_CHECK(st == CDDP_E_TIMEOUT && strstr(r->err.msg, "rank 0 did not arrive within 2 s") != NULL);
    RANK_CHECK(cdi_now_ms() - t0 < SOON_MS);
    if (r->rank == 1)
        rank_close(r);
    atomic_store(&r->board->flag[0], 1);
    return 0;
}

Test(tcp, late_rank_gets_error_of_rank_that_timed_out)
{
    static const struct ranks_layout l = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, come_too_late, NULL, NULL), 0);
}

/* ------------------------------------------------------------------------------------------- hidden deaths ---- */

/* Rank 1 has a child, such as a data loader, that survives when rank 1 is killed. There is no agent. */
static int leave_an_heir(struct rank *r)
{
    int64_t t0 = cdi_now_ms();
    cddp_status st;

    r->world.timeout_ms = DEAF_MS;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1) {
        if (fork() == 0) {
            (void)alarm(90);
            while (atomic_load(&r->board->flag[1]) == 0)
                (void)usleep(1000);
            _exit(0);
        }
        begin_to_wait(r, 0);
        (void)raise(SIGKILL);
    }
    atomic_store(&r->board->flag[0], 1);
    st = rank_do(r, &from_rank_1);
    atomic_store(&r->board->flag[1], 1);
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 1 (pid ") != NULL);
    RANK_CHECK(cdi_now_ms() - t0 < SOON_MS);
    return 0;
}

Test(tcp, forked_child_does_not_hide_death_of_parent)
{
    const struct ranks_layout one = {.node_size = {2}}, two = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&one, 60, leave_an_heir, NULL, NULL), 1, "only the one that was killed");
    cr_assert_eq(ranks_fork_on(&two, 60, leave_an_heir, NULL, NULL), 1);
}

/* Has children as long as the other rank has not found out. */
static void *fork_heirs(void *arg)
{
    struct rank *r = arg;

    for (int i = 0; i < 200 && atomic_load(&r->board->flag[2]) == 0; i++) {
        if (fork() != 0)
            continue;
        (void)alarm(90);
        while (atomic_load(&r->board->flag[1]) == 0)
            (void)usleep(20000);
        _exit(0);
    }
    return NULL;
}

/* Rank 0 has children from before its links are made until they are. */
static int fork_while_connecting(struct rank *r)
{
    static const struct cdi_coll barrier = {.kind = CDI_BARRIER, .bucket = -1, .lazy = true};
    int64_t t0 = cdi_now_ms();
    pthread_t thread;
    cddp_status st;

    r->world.timeout_ms = DEAF_MS;
    RANK_CHECK(r->rank != 0 || pthread_create(&thread, NULL, fork_heirs, r) == 0);
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 0) {
        atomic_store(&r->board->flag[2], 1);
        (void)pthread_join(thread, NULL);
        begin_to_wait(r, 0);
        (void)raise(SIGKILL);
    }
    atomic_store(&r->board->flag[0], 1);
    st = rank_do(r, &barrier);
    atomic_store(&r->board->flag[1], 1);
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 0 (pid ") != NULL);
    RANK_CHECK(cdi_now_ms() - t0 < SOON_MS);
    return 0;
}

Test(tcp, child_forked_while_connecting_does_not_hide_death_of_parent)
{
    static const struct ranks_layout l = {.node_size = {1, 1}};

    for (int i = 0; i < 10; i++)
        cr_assert_eq(ranks_fork_on(&l, 60, fork_while_connecting, NULL, NULL), 1); /* the killed one */
}

/* Rank 2 dies while rank 1 waits for it; rank 0, the only rank with a socket to it, computes. */
static int die_beside(struct rank *r)
{
    const struct cdi_coll from_2 = {.kind = CDI_RECV, .root = 2, .bucket = -1, .lazy = true};
    int64_t t0 = cdi_now_ms();
    cddp_status st;

    r->world.timeout_ms = DEAF_MS;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 2) {
        begin_to_wait(r, 0);
        (void)raise(SIGKILL);
    }
    if (r->rank == 0) {
        while (atomic_load(&r->board->flag[1]) == 0)
            (void)usleep(1000);
        return 0;
    }
    atomic_store(&r->board->flag[0], 1);
    st = rank_do(r, &from_2);
    atomic_store(&r->board->flag[1], 1);
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 2 (pid ") != NULL);
    RANK_CHECK(cdi_now_ms() - t0 < SOON_MS);
    return 0;
}

Test(tcp, every_rank_of_node_notices_each_death)
{
    const struct ranks_layout l = {.node_size = {3}};

    cr_assert_eq(ranks_fork_on(&l, 60, die_beside, NULL, NULL), 1);
}

/* ------------------------------------------------------------------------------------------ broken connections ---- */

enum { BREAKS_DATA = 1, BREAKS_CONTROL = 2, IS_IDLE = 4, DEATH_IS_REPORTED = 8 };

/* Resets the connections of this rank's only link, as a firewall does. */
static int reset_sockets(struct rank *r, int which)
{
    const struct sockaddr none = {.sa_family = AF_UNSPEC};
    int n = 0;

    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_storage a;
        socklen_t len = sizeof a;

        if (getpeername(fd, (struct sockaddr *)&a, &len) != 0 || a.ss_family != AF_INET)
            continue;
        if ((which & 1 << n++) != 0) /* data, then control, as they were made */
            RANK_CHECK(connect(fd, &none, sizeof none) == 0);
    }
    RANK_CHECK(n == 2, "%d sockets", n);
    return 0;
}

static void *report_death(void *arg)
{
    struct rank *r = arg;

    (void)poll(NULL, 0, 300);
    cdi_flight_tell_death(r->world.flight, 1, "rank 1 was killed");
    return NULL;
}

/* Rank 1 lives, and one or both of its connections with rank 0 break. */
static int lose_connection(struct rank *r)
{
    int how = *(const int *)r->arg;
    pthread_t agent;

    r->world.timeout_ms = DEAF_MS;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &sum_of_all) == CDDP_OK);
    if (r->rank == 1) {
        if ((how & IS_IDLE) == 0)
            begin_to_wait(r, 0);
        RANK_CHECK(reset_sockets(r, how) == 0);
        atomic_store(&r->board->flag[1], 1);
        while (atomic_load(&r->board->flag[2]) == 0)
            (void)usleep(1000);
        rank_close(r);
        return 0;
    }
    if ((how & IS_IDLE) != 0)
        begin_to_wait(r, 1);
    if ((how & DEATH_IS_REPORTED) != 0)
        RANK_CHECK(pthread_create(&agent, NULL, report_death, r) == 0);
    atomic_store(&r->board->flag[0], 1);
    if ((how & DEATH_IS_REPORTED) != 0) {
        RANK_CHECK(rank_do(r, &from_rank_1) == CDDP_E_PEER && strstr(r->err.msg, "rank 1 was killed") != NULL);
        RANK_CHECK(pthread_join(agent, NULL) == 0 && r->err.blamed == 2);
    } else {
        RANK_CHECK(rank_do(r, &sum_of_all) == CDDP_E_IO);
        RANK_CHECK(strstr(r->err.msg, "the connection of rank 0 with rank 1 (pid ") != NULL);
        RANK_CHECK(strstr(r->err.msg, "broke: Connection reset by peer") != NULL &&
                   strstr(r->err.msg, ") died") == NULL);
        RANK_CHECK(r->err.blamed == 0);
    }
    atomic_store(&r->board->flag[2], 1);
    rank_close(r);
    return 0;
}

static void lose(int how)
{
    const struct ranks_layout l = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, lose_connection, &how, NULL), 0, "case %d", how);
}

Test(tcp, broken_connection_is_not_a_death)
{
    lose(BREAKS_DATA);
    lose(BREAKS_CONTROL);
    lose(BREAKS_CONTROL | IS_IDLE);
    lose(BREAKS_DATA | BREAKS_CONTROL);
}

Test(tcp, report_of_a_death_explains_a_broken_connection)
{
    lose(BREAKS_DATA | DEATH_IS_REPORTED);
    lose(BREAKS_DATA | BREAKS_CONTROL | DEATH_IS_REPORTED);
}

/* The kernel resets the data socket of a rank that dies with unread data. */
static int die_with_unread_data(struct rank *r)
{
    static float many[1 << 20];
    struct cdi_coll op = {.kind = r->rank == 0 ? CDI_SEND : CDI_RECV,
                          .in = many,
                          .out = many,
                          .count = 1,
                          .dtype = CDDP_FLOAT32,
                          .root = 1 - r->rank,
                          .bucket = -1,
                          .lazy = true};

    r->world.timeout_ms = DEAF_MS;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &op) == CDDP_OK); /* makes the connection */
    if (r->rank == 1) {
        begin_to_wait(r, 0);
        (void)raise(SIGKILL);
    }
    atomic_store(&r->board->flag[0], 1);
    op.count = sizeof many / sizeof many[0];
    RANK_CHECK(rank_do(r, &op) == CDDP_E_PEER && strstr(r->err.msg, ") died") != NULL);
    return 0;
}

Test(tcp, death_with_unread_data_is_a_death)
{
    const struct ranks_layout l = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, die_with_unread_data, NULL, NULL), 1, "only the one that was killed");
}
