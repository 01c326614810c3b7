/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between nodes, and strangers at the door. What collectives do over TCP is in tests/conformance. */
#include "common/clock.h"
#include "hygiene.h"
#include "ranks.h"
#include "worker/backend/cpu/net/abort_fd.h"
#include "worker/backend/cpu/net/tcp.h"
#include "worker/backend/cpu/net/tcp_frame.h"
#include "worker/backend/cpu/net/tcp_listener.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

CDI_SUITE(tcp, .timeout = 240);

Test(tcp, headers_survive_and_limits_hold)
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
        {{(enum cdi_tcp_type)6, 0, 0}, CDDP_E_PROTOCOL},
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

Test(tcp, a_hello_of_another_byte_order_is_refused_and_its_text_is_cleaned)
{
    struct cdi_tcp_hello h = {.from = 3, .to = 7, .pid = 42, .channel = CDI_TCP_PAIR_CONTROL, .host = "node\x1b[1m"}, g;
    uint8_t wire[CDI_TCP_HELLO];

    memset(h.token, 9, sizeof h.token);
    cdi_tcp_put_hello(wire, &h);
    cr_assert_eq(cdi_tcp_get_hello(wire, &g, NULL), CDDP_OK);
    cr_assert(g.from == 3 && g.to == 7 && g.pid == 42 && g.channel == CDI_TCP_PAIR_CONTROL);
    cr_assert_str_eq(g.host, "node?[1m");
    wire[CDI_TCP_TOKEN] ^= 5;
    cr_assert_eq(cdi_tcp_get_hello(wire, &g, NULL), CDDP_E_PROTOCOL);
}

Test(tcp, an_abort_brings_its_sentence_and_a_status_that_is_none_is_a_protocol_error)
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

/* ------------------------------------------------------------------------------------------------- strangers ---- */

/* Connect to where rank 1 listens, say something else, and wait to be thrown out. */
static int stranger(struct rank *r, const void *said, size_t len)
{
    const struct cdi_oob oob = rank_oob(r);
    const struct timeval patience = {.tv_sec = 10};
    char text[512];
    struct cdi_address a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    RANK_CHECK(cdi_oob_get_text(&oob, "addr/1", text, sizeof text, 10000, &r->err) == CDDP_OK);
    text[strcspn(text, " ")] = '\0';
    RANK_CHECK(cdi_address_parse(text, &a));
    RANK_CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    RANK_CHECK(connect(fd, &a.u.any, a.len) == 0);
    RANK_CHECK(send(fd, said, len, MSG_NOSIGNAL) == (ssize_t)len);
    RANK_CHECK(recv(fd, text, sizeof text, 0) <= 0 && errno != EAGAIN, "the stranger got an answer");
    (void)close(fd);
    return 0;
}

/* Rank 0 learns where rank 1 is when the strangers have been there. */
static cddp_status late_get(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                            struct cdi_error *err)
{
    struct rank *r = arg;
    const struct cdi_oob oob = rank_oob(r);

    while (strcmp(name, "addr/1") == 0 && atomic_load(&r->board->flag[0]) == 0)
        (void)usleep(1000);
    return oob.get(oob.arg, name, buf, cap, len, timeout_ms, err);
}

static cddp_status late_set(void *arg, const char *name, const void *value, size_t len, struct cdi_error *err)
{
    const struct cdi_oob oob = rank_oob(arg);

    return oob.set(oob.arg, name, value, len, err);
}

static int be_strangers(struct rank *r)
{
    uint8_t junk[CDI_TCP_HEADER + CDI_TCP_HELLO], hello[CDI_TCP_HEADER + CDI_TCP_HELLO];
    const struct cdi_tcp_hello h = {.from = 0, .to = 1, .channel = CDI_TCP_DATA, .host = "liar"};
    const struct cdi_tcp_header head = {.type = CDI_TCP_IS_HELLO, .len = CDI_TCP_HELLO};

    memset(junk, 'x', sizeof junk);
    cdi_tcp_put_header(hello, &head);
    cdi_tcp_put_hello(hello + CDI_TCP_HEADER, &h); /* all right but for the token */
    if (stranger(r, junk, sizeof junk) != 0 || stranger(r, hello, sizeof hello) != 0)
        return 1;
    atomic_store(&r->board->flag[0], 1);
    return 0;
}

static int besieged(struct rank *r)
{
    static const struct cdi_coll barrier = {.kind = CDI_BARRIER, .bucket = -1, .lazy = true};
    const struct cdi_oob late = {.set = late_set, .get = late_get, .arg = r};

    if (r->rank == 2)
        return be_strangers(r);
    r->world.size = r->world.n_nodes = r->size = 2;
    if (r->rank == 0) {
        r->world.keys = late;
        RANK_CHECK(cdi_cpu_create_at(&r->b, &r->world, NULL, NULL, &r->err) == CDDP_OK);
    } else {
        RANK_CHECK(rank_open(r) == CDDP_OK);
    }
    return rank_do(r, &barrier) != CDDP_OK;
}

Test(tcp, strangers_are_refused_and_do_no_harm)
{
    const struct ranks_layout l = {.node_size = {1, 1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 30, besieged, NULL, NULL), 0);
}

/* The store is far away: what rank 1 asks of it takes a while, and it asks all the time. */
static cddp_status far_get(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                           struct cdi_error *err)
{
    struct rank *r = arg;
    const struct cdi_oob oob = rank_oob(r);

    (void)usleep(300000);
    atomic_fetch_add(&r->board->flag[2], strcmp(name, "broken") == 0);
    return oob.get(oob.arg, name, buf, cap, len, timeout_ms, err);
}

/* Connections that say nothing, until the ranks have met: at first more than a queue holds. */
static int crowd(struct rank *r)
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
        if (n >= 100 && atomic_load(&r->board->flag[2]) >= 2) /* the crowd is there, and rank 1 in its routine */
            atomic_store(&r->board->flag[0], 1);
        if (n >= 100)
            (void)usleep(10000);
    }
    for (int i = 0; i < 200; i++)
        if (fd[i] >= 0)
            (void)close(fd[i]);
    return 0;
}

/* Rank 0 knows no other door than the one where the crowd is. */
static cddp_status one_door(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                            struct cdi_error *err)
{
    cddp_status st = late_get(arg, name, buf, cap, len, timeout_ms, err);

    if (st == CDDP_OK && strcmp(name, "addr/1") == 0) {
        const char *end = memchr(buf, ' ', *len);

        *len = end != NULL ? (size_t)(end - (const char *)buf) : *len;
    }
    return st;
}

static int crowded(struct rank *r)
{
    const struct cdi_oob late = {.set = late_set, .get = one_door, .arg = r};
    const struct cdi_oob far = {.set = late_set, .get = far_get, .arg = r};
    struct cdi_address loopback;
    cddp_status st;

    if (r->rank == 2)
        return crowd(r);
    (void)cdi_address_parse("127.0.0.1:1", &loopback);
    r->world.size = r->world.n_nodes = r->size = 2;
    r->world.keys = r->rank == 0 ? late : far;
    st = cdi_cpu_create_at(&r->b, &r->world, NULL, &loopback, &r->err);
    atomic_fetch_add(&r->board->flag[1], 1);
    RANK_CHECK(st == CDDP_OK);
    return 0;
}

Test(tcp, strangers_do_not_keep_a_rank_out_where_the_store_is_far_away)
{
    const struct ranks_layout l = {.node_size = {1, 1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, crowded, NULL, NULL), 0);
}

static void come_from(struct cdi_listener *d, const char *host, int64_t when_ms)
{
    struct cdi_pending_conn *s = &d->pending[cdi_listener_slot(d)];

    *s = (struct cdi_pending_conn){.fd = 1, .until_ms = when_ms};
    cr_assert(cdi_address_parse(host, &s->from));
}

Test(tcp, a_stranger_pushes_out_only_those_from_its_own_host)
{
    static struct cdi_listener d;
    int left = 0;

    for (int i = 0; i < CDI_TCP_PENDING; i++)
        d.pending[i].fd = -1;
    come_from(&d, "[fd00::1]:1", 0);
    come_from(&d, "10.0.0.1:1", 1);
    come_from(&d, "10.0.0.1:2", 2);
    for (int i = 0; i < 10 * CDI_TCP_PENDING; i++)
        come_from(&d, "10.0.0.2:1", 3 + i);
    for (int i = 0; i < CDI_TCP_PENDING; i++) {
        left += d.pending[i].until_ms < 3;
        cr_assert(d.pending[i].until_ms < 3 || d.pending[i].until_ms > 8 * CDI_TCP_PENDING, "the oldest goes");
    }
    cr_assert_eq(left, 3);
}

static int never_connects(struct rank *r)
{
    r->world.join_timeout_ms = 2000;
    if (r->rank == 1)
        return 0;
    RANK_CHECK(rank_open(r) == CDDP_E_TIMEOUT);
    RANK_CHECK(strstr(r->err.msg, "node 1 did not come to connect within ") != NULL);
    return 0;
}

Test(tcp, a_node_that_does_not_come_is_named_on_all_others)
{
    const struct ranks_layout l = {.node_size = {1, 1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 20, never_connects, NULL, NULL), 0);
}

/* Nodes that do not follow one another. */
static int wrong_order(struct rank *r)
{
    r->world.node_rank = 1 - r->rank;
    RANK_CHECK(rank_open(r) == CDDP_E_INVALID);
    RANK_CHECK(strstr(r->err.msg, "ranks must be in the order of the nodes") != NULL);
    return 0;
}

Test(tcp, ranks_that_are_not_in_the_order_of_the_nodes_are_refused)
{
    const struct ranks_layout l = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 20, wrong_order, NULL, NULL), 0);
}

/* --------------------------------------------------------------------------------------------------- the bell ---- */

/* A rank's part of a segment with nobody else in it, and a page without an agent. */
static void make_wait(struct cdi_wait *w, struct cdi_shm **shm, struct cdi_flight **flight)
{
    static const struct cdi_mapper plain = {.map = NULL};
    void *mem;
    int fd;

    cr_assert_eq(cdi_shm_memfd("test", cdi_shm_bytes(1, false), &fd, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_create(shm, 0, 1, 0, false, NULL, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_map(&plain, fd, cdi_shm_bytes(1, false), &mem, NULL), CDDP_OK);
    cdi_shm_format(*shm, mem);
    cr_assert_eq(cdi_flight_attach(flight, NULL, NULL), CDDP_OK);
    cdi_wait_init(w, *shm, *flight, 1000);
    (void)close(fd);
}

static bool rings(const struct cdi_abort_fd *bell, int within_ms)
{
    struct pollfd p = {.fd = bell->fd, .events = POLLIN};

    return poll(&p, 1, within_ms) == 1;
}

/* Start a bell, let `what` happen, and see whether it rings, and stays so. */
static void ring(void (*what)(struct cdi_wait *w), bool must)
{
    struct cdi_flight *flight;
    struct cdi_abort_fd bell;
    struct cdi_wait wait;
    struct cdi_shm *shm;

    make_wait(&wait, &shm, &flight);
    cdi_abort_fd_start(&bell, &wait);
    if (bell.fd >= 0) { /* else this kernel has no futex_waitv */
        cr_assert_not(rings(&bell, 0));
        what(&wait);
        cr_assert_eq(rings(&bell, must ? 10000 : 50), must);
        cr_assert_eq(rings(&bell, 0), must);
    }
    cdi_abort_fd_stop(&bell);
    cdi_abort_fd_stop(&bell);
    cr_assert_eq(bell.fd, -1);
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

/* It must not fall asleep for good over what ends no wait. */
static void a_stop_is_wanted_and_then_a_rank_dies(struct cdi_wait *w)
{
    a_stop_is_wanted(w);
    (void)poll(NULL, 0, 50);
    a_rank_dies(w);
}

/* It died after it had begun, and before it woke anybody; then another rank gives up. */
static void the_first_to_give_up_dies_of_it(struct cdi_wait *w)
{
    (void)poll(NULL, 0, 50); /* now the bell sleeps; else it rings anyway */
    atomic_store(cdi_shm_abort_word(w->shm), 1);
    a_peer_gives_up(w);
}

Test(tcp, the_bell_rings_for_what_ends_all_waits_and_for_nothing_else)
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

#define DEAF_MS 20000 /* the timeout, which must not be what ends the wait */
#define SOON_MS 10000 /* on a busy machine */

/* Until rank `of` waits in the operation that it has begun. */
static void begin_to_wait(struct rank *r, int of)
{
    while (atomic_load(&r->board->flag[of]) == 0)
        (void)usleep(1000);
    (void)usleep(200000); /* so that it sleeps; what comes sooner has to be heard as well */
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
        r->ops->abort(r->b, CDDP_E_ABORTED, "the last rank aborted the job");
    }
    if (r->rank != 0) { /* computes until rank 0 has heard of it */
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

Test(tcp, a_rank_that_waits_within_its_node_hears_an_abort_on_another_node)
{
    const struct ranks_layout l = {.node_size = {2, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, abort_far_away, &from_rank_1, NULL), 0);
    cr_assert_eq(ranks_fork_on(&l, 60, abort_far_away, &sum_of_all, NULL), 0);
}

/* Rank 2 has no link to rank 0: rank 1, which computes, has to pass it on. */
Test(tcp, an_abort_passes_a_node_that_computes)
{
    const struct ranks_layout l = {.node_size = {1, 1, 1}}, two_by_two = {.node_size = {2, 2, 2}};

    cr_assert_eq(ranks_fork_on(&l, 60, abort_far_away, &from_rank_1, NULL), 0, "waiting for a connection");
    cr_assert_eq(ranks_fork_on(&l, 60, abort_far_away, &sum_of_all, NULL), 0, "waiting for the neighbour");
    cr_assert_eq(ranks_fork_on(&two_by_two, 60, abort_far_away, &from_rank_1, NULL), 0);
}

/* The last rank dies, and there is no agent to say so. */
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

Test(tcp, a_rank_that_waits_within_its_node_hears_of_a_death_on_another_node)
{
    const struct ranks_layout l = {.node_size = {2, 1}}, chain = {.node_size = {1, 1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, die_far_away, NULL, NULL), 1, "only the one that was killed");
    cr_assert_eq(ranks_fork_on(&chain, 60, die_far_away, NULL, NULL), 1);
}

/* A rank that has done all there was to do leaves without cddp_finalize; the others go on for a while. */
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

Test(tcp, a_rank_that_ends_after_the_last_operation_does_no_harm)
{
    const struct ranks_layout l = {.node_size = {2, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, leave_early, NULL, NULL), 0);
}

/* ------------------------------------------------------------------------------------------- late receivers ---- */

/* The rank of the other node computes: neither it nor the network is broken. */
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
        (void)snprintf(want, sizeof want, "rank %d did not come within 2 s", other);
        RANK_CHECK(st == CDDP_E_TIMEOUT && strstr(r->err.msg, want) != NULL, "want %s", want);
        RANK_CHECK(strstr(r->err.msg, "wrong network") == NULL);
        return 0;
    }
    while (atomic_load(&r->board->flag[0]) == 0)
        (void)usleep(1000);
    return 0;
}

Test(tcp, a_rank_that_does_not_come_for_a_message_is_no_broken_network)
{
    static const struct ranks_layout l = {.node_size = {1, 1}};
    static const int lower = 0, higher = 1;

    cr_assert_eq(ranks_fork_on(&l, 60, alone_with_a_message, &lower, NULL), 0);
    cr_assert_eq(ranks_fork_on(&l, 60, alone_with_a_message, &higher, NULL), 0);
}

/* Called in place of the first look at the clock that finds `due_ms` over. */
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

/* Rank 1 sends, and what it sends has arrived, while rank 0 looks at the clock. */
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
    RANK_CHECK(rank_do(r, r->rank == 0 ? &from_rank_1 : &to_rank_0) == CDDP_OK); /* they know each other */
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

Test(tcp, a_message_that_comes_while_the_clock_is_read_is_not_late)
{
    static const struct ranks_layout l = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, come_while_the_clock_is_read, NULL, NULL), 0);
}

/* A rank that comes after the other one gave up hears so, and does not try to connect. */
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
    RANK_CHECK(st == CDDP_E_TIMEOUT && strstr(r->err.msg, "rank 0 did not come within 2 s") != NULL);
    RANK_CHECK(cdi_now_ms() - t0 < SOON_MS);
    if (r->rank == 1)
        rank_close(r);
    atomic_store(&r->board->flag[0], 1);
    return 0;
}

Test(tcp, a_rank_that_comes_after_the_other_one_gave_up_is_told_so)
{
    static const struct ranks_layout l = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 60, come_too_late, NULL, NULL), 0);
}

/* ------------------------------------------------------------------------------------------- hidden deaths ---- */

/* Rank 1 has a child, as a data loader is, that lives on when it is killed. There is no agent. */
static int leave_an_heir(struct rank *r)
{
    int64_t t0 = cdi_now_ms();
    cddp_status st;

    r->world.timeout_ms = DEAF_MS;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1) {
        if (fork() == 0) {
            (void)alarm(50);
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

Test(tcp, a_forked_child_does_not_hide_the_death_of_its_parent)
{
    const struct ranks_layout one = {.node_size = {2}}, two = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&one, 60, leave_an_heir, NULL, NULL), 1, "only the one that was killed");
    cr_assert_eq(ranks_fork_on(&two, 60, leave_an_heir, NULL, NULL), 1);
}

/* Rank 2 dies while rank 1 waits for it and rank 0, to which alone it has a socket, computes. */
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

Test(tcp, every_rank_of_a_node_sees_each_other_one_die)
{
    const struct ranks_layout l = {.node_size = {3}};

    cr_assert_eq(ranks_fork_on(&l, 60, die_beside, NULL, NULL), 1);
}
