/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late_switch MS LINK...: a switch among links of this network namespace, which hands on each frame MS milliseconds
 * after it came. It does what a bridge with "tc netem delay" would, on kernels without netem, and in one process for
 * all hosts, so that it costs little of a small machine. Frames keep their virtio header: offloaded ones, large and
 * without a checksum yet, pass whole. Prints "ready", and runs until its standard input ends.
 */
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST_LINKS 64
#define VNET_HDR 10                             /* struct virtio_net_hdr, before each frame */
#define LONGEST (VNET_HDR + 14 + 4 + (1 << 16)) /* an offloaded frame */
#define MOST_KEPT ((size_t)512 << 20)           /* bytes in frames that wait; more are dropped, as a real switch does */
#define SOCKET_BYTES (64 << 20)
#define AT_ONCE 64 /* frames read from a link before the others have their turn */

struct frame {
    struct frame *next;
    int64_t due_ns;
    int from;
    size_t len;
    unsigned char bytes[];
};

struct link {
    int fd;
    unsigned char mac[ETH_ALEN]; /* of the host at its end, as its frames say */
    bool known;
};

static struct link links[MOST_LINKS];
static int n_links;
static struct frame *first, **last = &first;
static size_t kept;
static unsigned long dropped;

static void fail(const char *what)
{
    (void)fprintf(stderr, "late_switch: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int open_link(const char *name)
{
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, bytes = SOCKET_BYTES;
    struct sockaddr_ll at = {.sll_family = AF_PACKET,
                             .sll_protocol = __builtin_bswap16(ETH_P_ALL),
                             .sll_ifindex = (int)if_nametoindex(name)};
    struct packet_mreq all = {.mr_ifindex = at.sll_ifindex, .mr_type = PACKET_MR_PROMISC};

    if (fd < 0 || at.sll_ifindex == 0 || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0 ||
        bind(fd, (struct sockaddr *)&at, sizeof at) != 0)
        fail(name);
    return fd;
}

/* Reads what has come on a link; each frame is due a constant time later, so the queue is in order. */
static void take(int i, int64_t delay_ns)
{
    static unsigned char bytes[LONGEST];

    for (int k = 0; k < AT_ONCE; k++) {
        ssize_t len = recv(links[i].fd, bytes, sizeof bytes, 0);
        struct frame *f;

        if (len < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (len < 0)
            fail("recv");
        if (len < VNET_HDR + ETH_HLEN)
            continue;
        f = kept + (size_t)len > MOST_KEPT ? NULL : malloc(sizeof *f + (size_t)len);
        if (f == NULL) {
            dropped++;
            continue;
        }
        *f = (struct frame){.due_ns = now_ns() + delay_ns, .from = i, .len = (size_t)len};
        memcpy(f->bytes, bytes, (size_t)len);
        memcpy(links[i].mac, bytes + VNET_HDR + ETH_ALEN, ETH_ALEN);
        links[i].known = true;
        kept += f->len;
        *last = f;
        last = &f->next;
    }
}

/* To the host whose address it carries; to all others, if that is nobody's yet or a group's. */
static void hand_on(const struct frame *f)
{
    const unsigned char *to = f->bytes + VNET_HDR;
    int only = -1;

    for (int i = 0; i < n_links && (to[0] & 1) == 0; i++)
        if (links[i].known && memcmp(links[i].mac, to, ETH_ALEN) == 0)
            only = i;
    for (int i = 0; i < n_links; i++)
        if (i != f->from && (only == -1 || only == i) && send(links[i].fd, f->bytes, f->len, 0) < 0)
            dropped++;
}

static void hand_on_due(void)
{
    struct frame *f;

    while ((f = first) != NULL && f->due_ns <= now_ns()) {
        hand_on(f);
        first = f->next;
        if (first == NULL)
            last = &first;
        kept -= f->len;
        free(f);
    }
}

int main(int argc, char **argv)
{
    int64_t delay_ns = argc > 2 ? (int64_t)(strtod(argv[1], NULL) * 1e6) : 0;
    struct pollfd polled[MOST_LINKS + 1];

    if (argc < 4 || argc > 2 + MOST_LINKS || delay_ns <= 0) {
        (void)fprintf(stderr, "usage: %s MILLISECONDS LINK LINK...\n", argv[0]);
        return 2;
    }
    for (int i = 2; i < argc; i++, n_links++) {
        links[n_links].fd = open_link(argv[i]);
        polled[n_links] = (struct pollfd){.fd = links[n_links].fd, .events = POLLIN};
    }
    polled[n_links] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    (void)printf("ready\n");
    (void)fflush(stdout);
    while (polled[n_links].revents == 0) {
        int64_t wait_ns = first == NULL ? 0 : first->due_ns - now_ns();
        struct timespec wait = {.tv_sec = wait_ns > 0 ? wait_ns / 1000000000 : 0,
                                .tv_nsec = wait_ns > 0 ? wait_ns % 1000000000 : 0};

        if (ppoll(polled, (nfds_t)n_links + 1, first == NULL ? NULL : &wait, NULL) < 0 && errno != EINTR)
            fail("ppoll");
        for (int i = 0; i < n_links; i++)
            if (polled[i].revents != 0)
                take(i, delay_ns);
        hand_on_due();
    }
    if (dropped > 0)
        (void)fprintf(stderr, "late_switch: %lu frames were dropped\n", dropped);
    return 0;
}
