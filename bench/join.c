/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's ranks as a store server sees them, all in one process and one thread, over real connections: each connects,
 * shakes hands as PyTorch's client does (VALIDATE and PING), adds itself to a counter, waits for a key, and gets its
 * 128 bytes; the last one to count sets the key. join.py starts it. Prints one line of JSON and keeps its
 * connections until its standard input ends. Beyond 20,000 connections they come from several loopback addresses. libc
 * only.
 */
#include "load.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PER_ADDRESS 4000u /* connections from one loopback address: the kernel is slow to find the last free ports */
#define ID_LEN 128
#define AT_ONCE 1000u /* connections that have not been answered yet; more would only wait in the kernel */

enum state { CONNECTING, PINGED, ADDED, WAITING, GETTING, DONE };

struct rank {
    int fd;
    enum state state;
    size_t have; /* bytes of the answer */
    uint8_t answer[8 + ID_LEN];
};

static struct sockaddr_in address;
static uint32_t first_address;
static uint8_t id[ID_LEN];
static unsigned n_ranks, n_done, n_open;
static int ep;

static size_t put(uint8_t *to, const void *data, size_t len)
{
    memcpy(to, data, len);
    return len;
}

static size_t put_u64(uint8_t *to, uint64_t n)
{
    return put(to, &n, sizeof n); /* little-endian, as the protocol */
}

static size_t put_key(uint8_t *to, const char *key)
{
    size_t n = put_u64(to, strlen(key));

    return n + put(to + n, key, strlen(key));
}

/* Small requests fit an empty socket's buffer. false: it is not connected yet. */
static bool give(struct rank *r, const uint8_t *request, size_t len, enum state next)
{
    ssize_t n = send(r->fd, request, len, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n < 0 && r->state == CONNECTING && (errno == EAGAIN || errno == ENOTCONN))
        return false;
    if (n != (ssize_t)len)
        die("send");
    r->state = next;
    r->have = 0;
    return true;
}

static bool greet(struct rank *r)
{
    return give(r,
                (const uint8_t *)"\x00\xce\xf7\x85\x3c\x0d"
                                 "ABCD",
                10, PINGED);
}

static void add(struct rank *r)
{
    uint8_t b[64] = {4};
    size_t n = 1 + put_key(b + 1, "/joined");

    n += put_u64(b + n, 1);
    (void)give(r, b, n, ADDED);
}

static void set_id(struct rank *r)
{
    uint8_t b[64 + ID_LEN] = {1};
    size_t n = 1 + put_key(b + 1, "/id");

    n += put_u64(b + n, ID_LEN);
    n += put(b + n, id, ID_LEN);
    (void)give(r, b, n, ADDED);
}

static void wait_for_id(struct rank *r)
{
    uint8_t b[64] = {6};
    size_t n = 1 + put_u64(b + 1, 1);

    n += put_key(b + n, "/id");
    (void)give(r, b, n, WAITING);
}

static void get_id(struct rank *r)
{
    uint8_t b[64] = {3};

    (void)give(r, b, 1 + put_key(b + 1, "/id"), GETTING);
}

static void check_id(const struct rank *r)
{
    uint64_t len;

    memcpy(&len, r->answer, 8);
    if (len == ID_LEN && memcmp(r->answer + 8, id, ID_LEN) == 0)
        return;
    errno = EPROTO;
    die("the id is not what was set");
}

/* Its answer is whole: the next step. */
static void step(struct rank *r)
{
    uint64_t count;

    switch (r->state) {
    case CONNECTING:
    case DONE:
        break;
    case PINGED:
        n_open--;
        add(r);
        break;
    case ADDED:
        memcpy(&count, r->answer, 8);
        if (count == n_ranks)
            set_id(r);
        wait_for_id(r);
        break;
    case WAITING:
        get_id(r);
        break;
    case GETTING:
        check_id(r);
        r->state = DONE;
        n_done++;
        break;
    }
}

static void receive(struct rank *r)
{
    static const size_t wants[] = {[PINGED] = 4, [ADDED] = 8, [WAITING] = 1, [GETTING] = 8 + ID_LEN, [DONE] = 1};
    size_t want = wants[r->state];
    ssize_t n = recv(r->fd, r->answer + r->have, want - r->have, MSG_DONTWAIT);

    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0)
        die(n == 0 ? "the server closed a connection" : "recv");
    r->have += (size_t)n;
    if (r->have == want)
        step(r);
}

static void ready(struct rank *r, uint32_t events)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = r};

    if (r->state != CONNECTING) {
        receive(r);
        return;
    }
    if ((events & (EPOLLERR | EPOLLHUP)) != 0)
        die("connect");
    if (greet(r) && epoll_ctl(ep, EPOLL_CTL_MOD, r->fd, &ev) != 0)
        die("epoll_ctl");
}

static void begin(struct rank *r, unsigned number)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = r};
    struct sockaddr_in from = {.sin_family = AF_INET};
    int on = 1;

    r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (r->fd < 0)
        die("socket");
    (void)setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    from.sin_addr.s_addr = htonl(first_address + number / PER_ADDRESS);
    (void)setsockopt(r->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(r->fd, (const struct sockaddr *)&from, sizeof from) != 0)
        die("bind");
    if (connect(r->fd, (const struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS)
        die("connect");
    n_open++;
    if (!greet(r))
        ev.events = EPOLLOUT;
    if (epoll_ctl(ep, EPOLL_CTL_ADD, r->fd, &ev) != 0)
        die("epoll_ctl");
}

static double join_all(struct rank *ranks)
{
    double began = now_s();
    unsigned begun = 0;

    while (n_done < n_ranks) {
        struct epoll_event evs[512];
        bool more = begun < n_ranks && n_open < AT_ONCE;
        int n;

        if (more) {
            begin(&ranks[begun], begun);
            begun++;
        }
        if (more && begun % 16 != 0)
            continue;
        n = epoll_wait(ep, evs, 512, more ? 0 : -1);
        for (int i = 0; i < n; i++)
            ready(evs[i].data.ptr, evs[i].events);
    }
    return now_s() - began;
}

int main(int argc, char **argv)
{
    struct rank *ranks;
    double took, cpu, own;
    char byte;

    n_ranks = argc == 4 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    if (n_ranks == 0) {
        (void)fprintf(stderr, "usage: join PORT PID RANKS\n");
        return 2;
    }
    take_all_descriptors();
    address = (struct sockaddr_in){.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)strtoul(argv[1], NULL, 10)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    first_address = INADDR_LOOPBACK + ((uint32_t)getpid() & 0xffff) * 64;
    for (unsigned i = 0; i < ID_LEN; i++)
        id[i] = (uint8_t)(i * 37 + 11);
    ranks = calloc(n_ranks, sizeof *ranks);
    ep = epoll_create1(EPOLL_CLOEXEC);
    if (ranks == NULL || ep < 0)
        die("setup");
    cpu = cpu_ns(argv[2]);
    own = cpu_ns("self");
    took = join_all(ranks);
    cpu = cpu_ns(argv[2]) - cpu;
    own = cpu_ns("self") - own;
    (void)printf("{\"ranks\": %u, \"s\": %.4f, \"cpu_us\": %.2f, \"load_us\": %.2f}\n", n_ranks, took,
                 cpu / 1e3 / n_ranks, own / 1e3 / n_ranks);
    (void)fflush(stdout);
    return read(STDIN_FILENO, &byte, 1) < 0;
}
