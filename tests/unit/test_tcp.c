/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between nodes, and strangers at the door. What collectives do over TCP is in tests/backend. */
#include "hygiene.h"
#include "ranks.h"
#include "worker/backend/cpu/bell.h"
#include "worker/backend/cpu/tcp_frame.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

CDI_SUITE(tcp, .timeout = 60);

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
        {{CDI_TCP_IS_ABORT, 0, 4 + CDI_SHM_TEXT}, CDDP_E_PROTOCOL},
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
    uint8_t wire[4 + CDI_SHM_TEXT];
    struct cdi_error err;
    uint32_t len = cdi_tcp_put_abort(wire, CDDP_E_PEER, "rank 3 died");

    cr_assert_eq(cdi_tcp_get_abort(wire, len, &err), CDDP_E_PEER);
    cr_assert_str_eq(err.msg, "rank 3 died");
    len = cdi_tcp_put_abort(wire, CDDP_OK, "all is well");
    cr_assert_eq(cdi_tcp_get_abort(wire, len, &err), CDDP_E_PROTOCOL);
}

/* ------------------------------------------------------------------------------------------------- strangers ---- */

/* Connect to where rank 1 listens, say something else, and wait to be thrown out. */
static int stranger(struct rank *r, const void *said, size_t len)
{
    const struct cdi_meet meet = rank_meet(r);
    const struct timeval patience = {.tv_sec = 10};
    char text[512];
    struct cdi_address a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    RANK_CHECK(meet.get(meet.arg, "addr/1", text, sizeof text, 10000, &r->err) == CDDP_OK);
    text[strcspn(text, " ")] = '\0';
    RANK_CHECK(cdi_net_parse(text, &a));
    RANK_CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    RANK_CHECK(connect(fd, &a.u.any, a.len) == 0);
    RANK_CHECK(send(fd, said, len, MSG_NOSIGNAL) == (ssize_t)len);
    RANK_CHECK(recv(fd, text, sizeof text, 0) <= 0 && errno != EAGAIN, "the stranger got an answer");
    (void)close(fd);
    return 0;
}

/* Rank 0 learns where rank 1 is when the strangers have been there. */
static cddp_status late_get(void *arg, const char *name, char *buf, size_t cap, int64_t timeout_ms,
                            struct cdi_error *err)
{
    struct rank *r = arg;
    const struct cdi_meet meet = rank_meet(r);

    while (strcmp(name, "addr/1") == 0 && atomic_load(&r->board->flag[0]) == 0)
        (void)usleep(1000);
    return meet.get(meet.arg, name, buf, cap, timeout_ms, err);
}

static cddp_status late_set(void *arg, const char *name, const char *text, struct cdi_error *err)
{
    const struct cdi_meet meet = rank_meet(arg);

    return meet.set(meet.arg, name, text, err);
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
    static const struct cdi_op barrier = {.kind = CDI_BARRIER, .bucket = -1, .lazy = true};
    const struct cdi_meet late = {.set = late_set, .get = late_get, .arg = r};

    if (r->rank == 2)
        return be_strangers(r);
    r->world.size = r->world.n_nodes = r->size = 2;
    if (r->rank == 0)
        RANK_CHECK(cdi_cpu_create_at(&r->b, &r->world, &late, NULL, NULL, &r->err) == CDDP_OK);
    else
        RANK_CHECK(rank_open(r) == CDDP_OK);
    return rank_do(r, &barrier) != CDDP_OK;
}

Test(tcp, strangers_are_refused_and_do_no_harm)
{
    const struct ranks_layout l = {.node_size = {1, 1, 1}};

    cr_assert_eq(ranks_fork_on(&l, 30, besieged, NULL, NULL), 0);
}

static int never_connects(struct rank *r)
{
    r->world.join_timeout_ms = 500;
    if (r->rank == 1)
        return 0;
    RANK_CHECK(rank_open(r) == CDDP_E_TIMEOUT);
    RANK_CHECK(strstr(r->err.msg, "node 1 did not come to connect within 0.") != NULL);
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

static bool rings(const struct cdi_bell *bell, int within_ms)
{
    struct pollfd p = {.fd = bell->fd, .events = POLLIN};

    return poll(&p, 1, within_ms) == 1;
}

/* Start a bell, let `what` happen, and see whether it rings, and stays so. */
static void ring(void (*what)(struct cdi_wait *w), bool must)
{
    struct cdi_flight *flight;
    struct cdi_bell bell;
    struct cdi_wait wait;
    struct cdi_shm *shm;

    make_wait(&wait, &shm, &flight);
    cdi_bell_start(&bell, &wait);
    if (bell.fd >= 0) { /* else this kernel has no futex_waitv */
        cr_assert_not(rings(&bell, 0));
        what(&wait);
        cr_assert_eq(rings(&bell, must ? 10000 : 50), must);
        cr_assert_eq(rings(&bell, 0), must);
    }
    cdi_bell_stop(&bell);
    cdi_bell_stop(&bell);
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
    cdi_shm_abort(w->shm, CDDP_E_ABORTED, "enough");
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

Test(tcp, the_bell_rings_for_what_ends_all_waits_and_for_nothing_else)
{
    ring(a_rank_dies, true);
    ring(the_round_ends, true);
    ring(a_peer_gives_up, true);
    ring(a_stop_is_wanted, false);
    ring(a_stop_is_wanted_and_then_a_rank_dies, true);
    for (int i = 0; i < 50; i++)
        ring(the_round_ends, true);
}
